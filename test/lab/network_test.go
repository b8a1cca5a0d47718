package lab

import (
	"slices"
	"testing"
)

func TestHostCommands(t *testing.T) {
	far, err := plannedHost(Far)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"link set lo up",
		"link set eth0 up",
		"addr add 10.78.0.2/24 dev eth0",
		"addr add fd00:78::2/64 dev eth0 nodad",
		"route add default via 10.78.0.1",
		"route add default via fd00:78::1",
	}
	if got := plan(DefaultNodes).hostCommands(far); !slices.Equal(got, want) {
		t.Errorf("far:\n%q, want\n%q", got, want)
	}

	node, err := plannedHost("node2")
	if err != nil {
		t.Fatal(err)
	}
	commands := plan(DefaultNodes).hostCommands(node)
	for _, route := range []string{
		"route add 10.244.1.0/24 via 10.77.0.11", "route add fd00:244:0:3::/64 via fd00:77::13",
	} {
		if !slices.Contains(commands, route) {
			t.Errorf("node2 lacks %q in %q", route, commands)
		}
	}
	if own := "route add 10.244.2.0/24 via 10.77.0.12"; slices.Contains(commands, own) {
		t.Errorf("node2 sends its own pods' packets to itself: %q", own)
	}
}

func TestOnlyNodesAndRouterForward(t *testing.T) {
	for _, h := range plan(MaxNodes).hosts() {
		forwards := slices.Contains(plan(MaxNodes).sysctls(h.Name), "net.ipv4.ip_forward")
		if want := h.Name == Router || h.Name[:2] == "no"; forwards != want {
			t.Errorf("%s forwards: %v, want %v", h.Name, forwards, want)
		}
	}
}

func TestEveryPortIsOnTheBridgeOfItsSubnet(t *testing.T) {
	ports := map[string]bool{}
	for _, c := range plan(MaxNodes).cables() {
		if ports[c.port] {
			t.Errorf("two cables at the port %s", c.port)
		}
		if len(c.port) > 15 {
			t.Errorf("%s is too long for the name of a link", c.port)
		}
		ports[c.port] = true
		far := c.host == Far || c.link == farLink
		if (c.bridge == farBridge) != far {
			t.Errorf("%s of %s is on %s", c.link, c.host, c.bridge)
		}
	}
}
