package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestMACs(t *testing.T) {
	t.Parallel()
	nic := func(name, mac string) purelbv1.NodeInterface {
		return purelbv1.NodeInterface{Name: purelbv1.InterfaceName(name), MAC: mac}
	}
	for name, tc := range map[string]struct {
		observed   Observed
		interfaces []purelbv1.NodeInterface
		want       []string
	}{
		"selected ones first, then others ascending, each once": {
			observed: Observed{Interfaces: []NetworkInterface{
				{Name: "lo", Kind: "device", IsLoopback: true, MAC: "00:00:00:00:00:00"},
				{Name: "eth2", Kind: "device", MAC: "02:00:00:00:00:03"},
				{Name: "eth1", Kind: "device", MAC: "02:00:00:00:00:02"},
				{Name: "eth0", Kind: "device", MAC: "02:00:00:00:00:09"},
				{Name: "eth0.5", Kind: "vlan", MAC: "02:00:00:00:00:09"},
				{Name: "bond0", Kind: "bond", MAC: "02:00:00:00:00:04"},
				{Name: "ib0", Kind: "device", MAC: "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01"},
				{Name: "ppp0", Kind: "device"},
				{Name: "sit0", Kind: "device", MAC: "00:00:00:00:00:00"},
				{Name: "odd0", Kind: "device", MAC: "02-00-00-00-00-00"},
			}},
			interfaces: []purelbv1.NodeInterface{nic("eth0", "02:00:00:00:00:09"), nic("eth2", "02:00:00:00:00:03")},
			want:       []string{"02:00:00:00:00:09", "02:00:00:00:00:03", "02:00:00:00:00:02", "02:00:00:00:00:04"},
		},
		"not those of pods, nor virtual ones": {
			observed: Observed{
				Interfaces: []NetworkInterface{
					{Name: "eth0", Kind: "veth", MAC: "02:00:00:00:00:01"}, // of a node that is a network namespace
					{Name: "cali1", Kind: "veth", MAC: "ee:ee:ee:ee:ee:ee"},
					{Name: "veth1", Kind: "veth", MAC: "02:00:00:00:00:10", Master: "cni0"},
					{Name: "tap1", Kind: "tuntap", MAC: "02:00:00:00:00:11"},
					{Name: "kube-ipvs0", Kind: "dummy", MAC: "02:00:00:00:00:12"},
					{Name: "kube-lb0", Kind: "bridge", MAC: "02:00:00:00:00:13"},
					{Name: "old-lb0", Kind: "bridge", MAC: "02:00:00:00:00:14", IsOurs: true},
					{Name: "eth1", Kind: "veth", MAC: "02:00:00:00:00:15"},
				},
				Addresses: []Address{
					on("eth0", "192.0.2.11/24", notOurs), on("kube-ipvs0", "10.96.0.1/32", notOurs),
					on("kube-lb0", "198.51.100.1/32", notOurs),
					on("cali1", "fe80::1/64", notOurs), on("eth1", "192.0.2.1/32"),
				},
			},
			want: []string{"02:00:00:00:00:01"},
		},
		"bridges that can be on a link of the node": {
			observed: Observed{
				Interfaces: []NetworkInterface{
					{Name: "br0", Kind: "bridge", MAC: "02:00:00:00:00:02"},
					{Name: "eth0", Kind: "device", MAC: "02:00:00:00:00:01", Master: "br0"},
					{Name: "docker0", Kind: "bridge", MAC: "02:00:00:00:00:03"},
					{Name: "veth1", Kind: "veth", MAC: "02:00:00:00:00:10", Master: "docker0"},
					{Name: "virbr0", Kind: "bridge", MAC: "02:00:00:00:00:04"},
				},
				Addresses: []Address{on("virbr0", "192.168.122.1/24", notOurs)},
			},
			want: []string{"02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:04"},
		},
		"none": {want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 { // in whatever order the kernel lists them
				rand.Shuffle(len(tc.observed.Interfaces), func(i, j int) {
					tc.observed.Interfaces[i], tc.observed.Interfaces[j] = tc.observed.Interfaces[j], tc.observed.Interfaces[i]
				})
				got := NodeMACs(Selection{VirtualInterface: "kube-lb0"}, tc.observed, tc.interfaces)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestPodMACs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		observed Observed
		want     []string
	}{
		"those of pods, each once, ascending": {
			observed: Observed{
				Interfaces: []NetworkInterface{
					{Name: "lo", Kind: "device", IsLoopback: true, MAC: "00:00:00:00:00:00"},
					{Name: "eth0", Kind: "device", MAC: "02:00:00:00:00:01"},
					{Name: "cali1", Kind: "veth", MAC: "ee:ee:ee:ee:ee:ee"},
					{Name: "cali2", Kind: "veth", MAC: "ee:ee:ee:ee:ee:ee"},
					{Name: "tap1", Kind: "tuntap", MAC: "02:00:00:00:00:11"},
					{Name: "lxc1", Kind: "netkit", MAC: "02:00:00:00:00:12"},
					{Name: "tun1", Kind: "tuntap"},
				},
				Addresses: []Address{on("cali1", "fe80::1/64", notOurs)},
			},
			want: []string{"02:00:00:00:00:11", "02:00:00:00:00:12", "ee:ee:ee:ee:ee:ee"},
		},
		"not one that another interface has": {
			observed: Observed{Interfaces: []NetworkInterface{
				{Name: "cni0", Kind: "bridge", MAC: "02:00:00:00:00:10"},
				{Name: "veth1", Kind: "veth", MAC: "02:00:00:00:00:10", Master: "cni0"},
				{Name: "eth0", Kind: "device", MAC: "ee:ee:ee:ee:ee:ee"},
				{Name: "cali1", Kind: "veth", MAC: "ee:ee:ee:ee:ee:ee"},
			}},
		},
		"not those of a node that is a network namespace": {
			observed: Observed{
				Interfaces: []NetworkInterface{
					{Name: "eth0", Kind: "veth", MAC: "02:00:00:00:00:01"},
					{Name: "eth1", Kind: "veth", MAC: "02:00:00:00:00:02"},
					{Name: "eth2", Kind: "veth", MAC: "02:00:00:00:00:03"},
					{Name: "eth3", Kind: "veth", MAC: "02:00:00:00:00:04"},
				},
				Addresses: []Address{on("eth0", "192.0.2.11/24", notOurs), on("eth1", "192.0.2.1/32")},
				Routes: []Route{
					{Interface: "eth2", Destination: netip.MustParsePrefix("0.0.0.0/0")},
					{Interface: "eth3", Destination: netip.MustParsePrefix("2001:db8::/64"), Origin: OriginRA},
				},
			},
		},
		"none": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 { // in whatever order the kernel lists them
				rand.Shuffle(len(tc.observed.Interfaces), func(i, j int) {
					tc.observed.Interfaces[i], tc.observed.Interfaces[j] = tc.observed.Interfaces[j], tc.observed.Interfaces[i]
				})
				if diff := cmp.Diff(tc.want, PodMACs(tc.observed)); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// However many there are, the list is short, and has those of the selected ones.
func TestMACsAreBounded(t *testing.T) {
	t.Parallel()
	var observed Observed
	for i := range 200 {
		observed.Interfaces = append(
			observed.Interfaces,
			NetworkInterface{Name: fmt.Sprint("eth", i), Kind: "device", MAC: fmt.Sprintf("02:00:00:00:00:%02x", i)},
		)
	}
	last := "02:00:00:00:00:c7"
	got := NodeMACs(Selection{}, observed, []purelbv1.NodeInterface{{Name: "eth199", MAC: last}})
	if len(got) != 64 || got[0] != last {
		t.Errorf("%d, first %v", len(got), got[0])
	}
}
