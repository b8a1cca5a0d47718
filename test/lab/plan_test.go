package lab

import (
	"net/netip"
	"testing"
)

func TestPlan(t *testing.T) {
	want := map[string][3]string{
		"cp":     {"10.77.0.2/24", "fd00:77::2/64", "02:00:00:77:00:02"},
		"node1":  {"10.77.0.11/24", "fd00:77::11/64", "02:00:00:77:00:11"},
		"node2":  {"10.77.0.12/24", "fd00:77::12/64", "02:00:00:77:00:12"},
		"node3":  {"10.77.0.13/24", "fd00:77::13/64", "02:00:00:77:00:13"},
		"client": {"10.77.0.50/24", "fd00:77::50/64", "02:00:00:77:00:50"},
		"router": {"10.77.0.1/24", "fd00:77::1/64", "02:00:00:77:00:01"},
		"far":    {"10.78.0.2/24", "fd00:78::2/64", "02:00:00:78:00:02"},
	}
	hosts := plan(DefaultNodes).hosts()
	if len(hosts) != len(want) {
		t.Errorf("%d hosts, want %d", len(hosts), len(want))
	}
	for _, h := range hosts {
		if got := [3]string{h.IPv4.String(), h.IPv6.String(), h.MAC}; got != want[h.Name] {
			t.Errorf("%s = %v, want %v", h.Name, got, want[h.Name])
		}
	}
}

func TestPodsAreInTheCluster(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for _, node := range plan(MaxNodes).nodes() {
		for i, cidr := range node.PodCIDRs {
			if seen[cidr] {
				t.Errorf("%s has the pods of another node: %s", node.Name, cidr)
			}
			seen[cidr] = true
			if cluster := clusterCIDRs()[i]; !cluster.Overlaps(cidr) || cluster.Bits() > cidr.Bits() {
				t.Errorf("%s: %s is not in %s", node.Name, cidr, cluster)
			}
		}
	}
}

func TestGatewaysAreOnTheLink(t *testing.T) {
	for _, h := range plan(DefaultNodes).hosts() {
		g := gateways(h)
		if !h.IPv4.Contains(g[0]) || !h.IPv6.Contains(g[1]) {
			t.Errorf("%s cannot reach its gateways %v", h.Name, g)
		}
	}
}
