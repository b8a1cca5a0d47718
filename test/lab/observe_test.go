package lab

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestParseAddresses(t *testing.T) {
	const text = `[
	{"ifindex":1,"ifname":"lo","addr_info":[
	  {"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host","label":"lo",
	   "valid_life_time":4294967295,"preferred_life_time":4294967295}]},
	{"ifindex":2,"link_index":3,"ifname":"eth0","addr_info":[
	  {},
	  {"family":"inet","local":"10.77.0.100","prefixlen":24,"dynamic":true,"noprefixroute":true,
	   "protocol":"0x64","valid_life_time":299,"preferred_life_time":299},
	  {"family":"inet6","local":"fd00:77::100","prefixlen":64,"nodad":true,"deprecated":true,
	   "protocol":"kernel_ll","valid_life_time":300,"preferred_life_time":0}]},
	{"ifname":"down0","addr_info":[]}]`
	want := []IfAddr{
		{Link: "lo", Prefix: netip.MustParsePrefix("127.0.0.1/8"), Valid: Forever, Preferred: Forever},
		{Link: "eth0", Prefix: netip.MustParsePrefix("10.77.0.100/24"), Valid: 299 * time.Second,
			Preferred: 299 * time.Second, NoPrefixRoute: true, Protocol: "0x64"},
		{Link: "eth0", Prefix: netip.MustParsePrefix("fd00:77::100/64"), Valid: 300 * time.Second,
			NoDAD: true, Protocol: "kernel_ll"},
	}
	got, err := parseAddresses([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("parseAddresses =\n%+v, want\n%+v", got, want)
	}
	if _, err := parseAddresses([]byte("Object")); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestParseAddressChange(t *testing.T) {
	for _, row := range []struct {
		line string
		want AddressChange // without Link if the line is none
	}{
		{`2: eth0    inet 10.77.0.100/32 scope global dynamic noprefixroute eth0\       valid_lft 300sec preferred_lft ` +
			`300sec`,
			AddressChange{Link: "eth0", Prefix: netip.MustParsePrefix("10.77.0.100/32")}},
		{`Deleted 5: kube-lb0    inet6 fc00:370:155::1/128 scope global nodad \       valid_lft forever preferred_lft ` +
			`forever`,
			AddressChange{Link: "kube-lb0", Prefix: netip.MustParsePrefix("fc00:370:155::1/128"), IsDeleted: true}},
		{`7: veth1@if2    inet6 fe80::1/64 scope link \       valid_lft forever preferred_lft forever`,
			AddressChange{Link: "veth1", Prefix: netip.MustParsePrefix("fe80::1/64")}},
		{`2: eth0: <BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state UP`, AddressChange{}},
		{`2: eth0    inet nonsense`, AddressChange{}},
		{``, AddressChange{}},
	} {
		got, ok := parseAddressChange(row.line)
		if ok != (row.want.Link != "") || ok && got != row.want {
			t.Errorf("%s: %+v, %t", row.line, got, ok)
		}
	}
}

func TestParseNeighbour(t *testing.T) {
	for _, tc := range []struct{ text, mac, state string }{
		{`[{"dst":"10.77.0.100","lladdr":"02:00:00:77:00:11","state":["REACHABLE"]}]`, "02:00:00:77:00:11", "REACHABLE"},
		{`[{"dst":"10.77.0.100","state":["FAILED"]}]`, "", "FAILED"},
		{"[ ]", "", ""},
		{"", "", ""},
	} {
		mac, state, err := parseNeighbour([]byte(tc.text))
		if mac != tc.mac || state != tc.state || err != nil {
			t.Errorf("parseNeighbour(%q) = %q, %q, %v", tc.text, mac, state, err)
		}
	}
}

func TestParseARPing(t *testing.T) {
	const text = `ARPING 10.77.0.100 from 10.77.0.50 eth0
Unicast reply from 10.77.0.100 [02:00:00:77:00:1B]  0.617ms
Unicast reply from 10.77.0.100 [02:00:00:77:00:11]  0.650ms
Unicast reply from 10.77.0.100 [02:00:00:77:00:11]  0.650ms
Sent 1 probes (1 broadcast(s))
Received 3 response(s)
`
	want := []string{"02:00:00:77:00:11", "02:00:00:77:00:1b"}
	if got := parseARPing(text); !slices.Equal(got, want) {
		t.Errorf("parseARPing = %q, want %q", got, want)
	}
	if got := parseARPing("Sent 1 probes (1 broadcast(s))\nReceived 0 response(s)\n"); len(got) != 0 {
		t.Errorf("parseARPing of silence = %q", got)
	}
}

func TestParseNDisc(t *testing.T) {
	if got := parseNDisc("02:00:00:77:00:1B\n02:00:00:77:00:11\n"); !slices.Equal(
		got, []string{"02:00:00:77:00:11", "02:00:00:77:00:1b"},
	) {
		t.Errorf("parseNDisc = %q", got)
	}
}

func TestRouteArgs(t *testing.T) {
	got := routeArgs(netip.MustParsePrefix("10.80.0.1/32"),
		[]netip.Addr{netip.MustParseAddr("10.77.0.11"), netip.MustParseAddr("10.77.0.12")})
	want := []string{"route", "replace", "10.80.0.1/32", "nexthop", "via", "10.77.0.11", "nexthop", "via", "10.77.0.12"}
	if !slices.Equal(got, want) {
		t.Errorf("routeArgs = %q, want %q", got, want)
	}
}

func TestMountsBelow(t *testing.T) {
	const text = `25 1 8:1 / / rw - ext4 /dev/a rw
30 25 8:1 /x /var/lib/purelb-lab/nodes/a rw - ext4 /dev/a rw
31 25 8:1 /x /var/lib/purelb-lab2 rw - ext4 /dev/a rw
`
	got := mountsBelow("/var/lib/purelb-lab", text)
	if want := []string{"/var/lib/purelb-lab/nodes/a"}; !slices.Equal(got, want) {
		t.Errorf("mountsBelow = %q, want %q", got, want)
	}
}
