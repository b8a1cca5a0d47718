package allocation_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// serviceFrom makes a Service from words: namespace/name, then in any order addresses,
// key=… (the sharing key), given=… (the key by which it was allocated the addresses),
// from=… (the group of the addresses), ports=80,443, age=… (higher is younger), local (it
// has policy Local) and unbranded (nothing is allocated to it).
func serviceFrom(t *testing.T, words string) *allocation.Service {
	t.Helper()
	s := &allocation.Service{IsOurs: true, Created: time.Unix(100, 0)}
	branded := true
	for i, word := range strings.Fields(words) {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case i == 0:
			s.Namespace, s.Name, _ = strings.Cut(word, "/")
		case name == "key":
			s.SharingKey = value
		case name == "given":
			s.Allocated.Key = value
		case name == "terms": // as ports
			s.Allocated.Ports = portsFrom(t, value)
		case name == "from":
			s.Allocated.Group = value
		case name == "local":
			s.HasPolicyLocal = true
		case name == "unbranded":
			branded = false
		case name == "age":
			seconds, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			s.Created = time.Unix(int64(seconds), 0)
		case name == "ports":
			s.Ports = portsFrom(t, value)
		default:
			s.Addresses = append(s.Addresses, netip.MustParseAddr(word))
		}
	}
	if branded {
		s.Allocated.Addresses = s.Addresses
	}
	return s
}

// portsFrom makes a set from numbers, separated by commas. Those that end in /UDP are of UDP.
func portsFrom(t *testing.T, list string) allocation.PortSet {
	t.Helper()
	var ports []corev1.ServicePort
	for p := range strings.SplitSeq(list, ",") {
		number, udp := strings.CutSuffix(p, "/UDP")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		port := corev1.ServicePort{Port: int32(n)}
		if udp {
			port.Protocol = corev1.ProtocolUDP
		}
		ports = append(ports, port)
	}
	return allocation.PortsOf(ports)
}

// requestFrom makes a request from words: those of serviceFrom, and group=…, want=…
// (requested addresses), multi=…, prefer and require (both families).
func requestFrom(t *testing.T, words string) *allocation.Request {
	t.Helper()
	req := &allocation.Request{
		Families: []allocation.Family{allocation.IPv4}, FamilyPolicy: corev1.IPFamilyPolicySingleStack,
		RequestedAddressesIn: "annotation purelb.io/addresses",
	}
	var rest []string
	for _, word := range strings.Fields(words) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "group":
			req.RequestedGroup = value
		case "want":
			req.RequestedAddressesText = strings.ReplaceAll(value, ",", " , ")
		case "multi":
			req.MultiPool = value
		case "prefer":
			req.FamilyPolicy, req.Families = corev1.IPFamilyPolicyPreferDualStack, []allocation.Family{
				allocation.IPv4, allocation.IPv6,
			}
		case "require":
			req.FamilyPolicy, req.Families = corev1.IPFamilyPolicyRequireDualStack, []allocation.Family{
				allocation.IPv4, allocation.IPv6,
			}
		default:
			rest = append(rest, word)
		}
	}
	req.Service = *serviceFrom(t, strings.Join(rest, " "))
	return req
}

var requestGroups = map[string]string{
	"dual": "local: {v4pool: {pool: 10.0.0.1-10.0.0.3, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::3', " +
		"subnet: 'fd00::/64'}}",
	"default": "remote: {v4pool: {pool: 10.1.0.0/29, subnet: 10.1.0.0/29}, v6pool: {pool: 'fd01::/125', subnet: " +
		"'fd01::/125'}}",
	"across": "{remote: {v4pool: {pool: 10.2.0.1-10.2.0.3, subnet: 10.2.0.0/24}}, shareAcrossNamespaces: true}",
	"multi": "local: {multiPool: true, v4pools: [{pool: 10.3.1.1-10.3.1.2, subnet: 10.3.1.0/24}, {pool: " +
		"10.3.2.1-10.3.2.2, subnet: 10.3.2.0/24}, " +
		"{pool: 10.3.3.1-10.3.3.2, subnet: 10.3.3.0/24}], v6pool: {pool: 'fd03::1-fd03::2', subnet: 'fd03::/64'}}",
	"spread": "remote: {multiPool: true, v4pools: [{pool: 10.4.1.1-10.4.1.2, subnet: 10.4.1.0/24}, {pool: " +
		"10.4.2.1-10.4.2.2, subnet: 10.4.2.0/24}]}",
	"ranges": "remote: {v4pools: [{pool: 10.5.1.1-10.5.1.2, subnet: 10.5.1.0/24}, {pool: 10.5.2.1-10.5.2.2, subnet: " +
		"10.5.2.0/24}]}",
}

func TestRequests(t *testing.T) {
	var groups []v1.ServiceGroup
	for name, spec := range requestGroups {
		groups = append(groups, groupMadeAt(t, name, 1, spec))
	}
	catalog := allocation.NewCatalog(groups, namespace)
	for _, row := range []struct {
		name    string
		request string
		others  []string
		// want are the addresses. reason is empty for Allocated. says is a part of the
		// message, of the warning or of the lost addresses.
		want, reason, says string
	}{
		// Addresses by name.
		{"by name", "a/b want=10.0.0.2", nil, "10.0.0.2", "", "10.0.0.2 from pool dual"},
		{"by name, of both families", "a/b require want=fd00::2,10.0.0.2", nil, "10.0.0.2 fd00::2", "", ""},
		{"by name, the other family from the same group", "a/b require want=10.0.0.2", nil, "10.0.0.2 fd00::1", "", ""},
		{"by name, instead of what it has", "a/b 10.0.0.1 want=10.0.0.2", nil, "10.0.0.2", "", ""},
		{"by name, what it has", "a/b 10.0.0.2 want=10.0.0.2", nil, "10.0.0.2", "", ""},
		{"no longer by name: keeps it", "a/b 10.0.0.2 from=dual", nil, "10.0.0.2", "", ""},
		{
			"against the group named", "a/b group=default want=10.0.0.2", nil, "10.0.0.2", "",
			"annotation purelb.io/service-group asks for ServiceGroup default, but 10.0.0.2 is of dual",
		},
		{
			"taken", "a/b want=10.0.0.2", []string{"a/d 10.0.0.2"}, "", v1.ReasonAddressInUse,
			"10.0.0.2 is in use by Service a/d",
		},
		{
			"taken in another namespace", "a/b want=10.0.0.2", []string{"c/d 10.0.0.2"}, "", v1.ReasonAddressInUse,
			"10.0.0.2 is in use by a Service of another namespace",
		},
		{
			"taken: keeps what it has", "a/b 10.0.0.3 want=10.0.0.2", []string{"c/d 10.0.0.2"}, "10.0.0.3",
			v1.ReasonAddressInUse, "",
		},
		{"taken by one that shares", "a/b want=10.0.0.2", []string{"a/d 10.0.0.2 key=k"}, "", v1.ReasonAddressInUse, "a/d"},
		{
			"one of two taken: neither", "a/b prefer want=10.0.0.2,fd00::2", []string{"a/d fd00::2"}, "", v1.ReasonAddressInUse,
			"fd00::2 is in use by Service a/d",
		},
		{"outside", "a/b want=10.9.0.1", nil, "", v1.ReasonAddressOutsidePools, "10.9.0.1 is in no pool"},
		{"outside by now, but held", "a/b group=dual 10.0.0.9 from=dual want=10.0.0.9", nil, "10.0.0.9", "", ""},
		{
			"network address", "a/b want=10.1.0.0", nil, "", v1.ReasonAddressOutsidePools,
			"first or last address of subnet 10.1.0.0/29",
		},
		{"broadcast address", "a/b want=10.1.0.7", nil, "", v1.ReasonAddressOutsidePools, "first or last"},
		{"anycast address", "a/b require want=fd01::", nil, "", v1.ReasonAddressOutsidePools, "first or last"},
		{
			"a node's", "a/b want=10.1.0.3", nil, "", v1.ReasonAddressInUse,
			"10.1.0.3 is an address of node n: it is never allocated",
		},
		{"a node's by now", "a/b 10.1.0.3 want=10.1.0.3", nil, "10.1.0.3", "", ""},
		{"no address", "a/b want=10.0.0.2,ten", nil, "", v1.ReasonInvalid, `"ten" is not an address`},
		{"nothing between commas", "a/b want=10.0.0.2,", nil, "", v1.ReasonInvalid, `"" is not an address`},
		{"mapped", "a/b want=::ffff:10.0.0.2", nil, "", v1.ReasonInvalid, "write it as 10.0.0.2"},
		{"two of one family", "a/b want=10.0.0.1,10.0.0.2", nil, "", v1.ReasonInvalid, "10.0.0.1 and 10.0.0.2 are both IPv4"},
		{
			"a family that is not wanted", "a/b want=fd00::1", nil, "", v1.ReasonInvalid,
			"fd00::1 is IPv6, which is not in spec.ipFamilies",
		},
		{"of two groups", "a/b require want=10.0.0.1,fd01::1", nil, "", v1.ReasonInvalid, "ask for addresses of one"},
		{"invalid: keeps what it has", "a/b 10.0.0.3 want=ten", nil, "10.0.0.3", v1.ReasonInvalid, ""},

		// The group where none is named.
		{"no group: default", "a/b", nil, "10.1.0.1", "", ""},
		{"adopted with what it has", "a/b unbranded 10.0.0.3", nil, "10.0.0.3", "", "from pool dual"},
		{
			"not adopted: another's", "a/b unbranded age=1 10.1.0.4", []string{"a/d 10.1.0.4"}, "10.1.0.1", "",
			"10.1.0.4 is Service a/d's",
		},
		{"not adopted: in no pool", "a/b unbranded 10.9.0.1", nil, "10.1.0.1", "", ""},
		{"not adopted: another group is asked for", "a/b unbranded 10.0.0.3 group=default", nil, "10.1.0.1", "", ""},
		{"group is gone", "a/b 10.9.0.1 from=gone", nil, "10.9.0.1", v1.ReasonNoSuchGroup, "gone"},
		{"group is gone, another one has its address", "a/b 10.0.0.2 from=gone", nil, "10.0.0.2", "", "from pool dual"},
		{
			"group is gone, another one has both of its addresses", "a/b require 10.0.0.2 fd00::2 from=gone", nil,
			"10.0.0.2 fd00::2", "", "from pool dual",
		},
		{
			"group is gone, and no other one has both of its addresses", "a/b require 10.0.0.2 fd01::2 from=gone", nil,
			"10.0.0.2 fd01::2", v1.ReasonNoSuchGroup, "gone",
		},
		{
			"group is gone, and the Service names it", "a/b 10.0.0.2 from=gone group=gone", nil, "10.0.0.2",
			v1.ReasonNoSuchGroup, "gone",
		},
		{
			"group is gone, another one has its address and one more family", "a/b require 10.0.0.2 from=gone", nil,
			"10.0.0.2 fd00::1", "", "from pool dual",
		},
		{"its address is of another group by now", "a/b 10.1.0.1 from=dual group=dual", nil, "10.1.0.1", "", ""},

		// Duplicates.
		{
			"the younger gets another", "a/b 10.0.0.1 from=dual age=2", []string{"c/d 10.0.0.1 age=1"}, "10.1.0.1", "",
			"10.0.0.1 is that of a Service of another namespace",
		},
		{"the older keeps it", "a/b 10.0.0.1 from=dual age=1", []string{"c/d 10.0.0.1 age=2"}, "10.0.0.1", "", ""},
		{"ours keeps it", "a/b 10.0.0.1 from=dual age=3", []string{"c/d 10.0.0.1 unbranded age=2"}, "10.0.0.1", "", ""},
		{
			"duplicates of different keys", "a/b 10.0.0.1 group=dual age=2 key=k given=k",
			[]string{"a/d 10.0.0.1 age=1 key=l given=l"}, "10.0.0.2", "", "10.0.0.1 is Service a/d's",
		},

		// Sharing.
		{"shares", "a/b group=dual key=k ports=80", []string{"a/c 10.0.0.2 key=k ports=443"}, "10.0.0.2", "", ""},
		{
			"shares with two", "a/b group=dual key=k ports=80",
			[]string{"a/c 10.0.0.2 key=k ports=443", "a/d 10.0.0.2 key=k ports=80/UDP"}, "10.0.0.2", "", "",
		},
		{"shares by name", "a/b want=10.0.0.2 key=k ports=80", []string{"a/c 10.0.0.2 key=k ports=443"}, "10.0.0.2", "", ""},
		{
			"shares what would not be allocated", "a/b group=default key=k ports=80", []string{"a/c 10.1.0.0 key=k ports=443"},
			"10.1.0.0", "", "",
		},
		{
			"by name, not what the key stands for", "a/b want=10.0.0.1 key=k ports=80", []string{"a/c 10.0.0.2 key=k ports=443"},
			"", v1.ReasonSharingRefused, "which is 10.0.0.2 of Service a/c",
		},
		{
			"a key without an address", "a/b group=dual key=k ports=80", []string{"a/c 10.0.0.1 key=l ports=443"}, "10.0.0.2",
			"", "",
		},
		{
			"a key of another group", "a/b group=dual key=k ports=80", []string{"a/c 10.1.0.2 key=k ports=443"}, "10.0.0.1", "",
			"",
		},
		{
			"a key of another namespace", "a/b group=dual key=k ports=80", []string{"x/c 10.0.0.1 key=k ports=443"}, "10.0.0.2",
			"", "",
		},
		{
			"a key of another namespace, across", "a/b group=across key=k ports=80", []string{"x/c 10.2.0.2 key=k ports=443"},
			"10.2.0.2", "", "",
		},
		{
			"by name, of another namespace", "a/b want=10.0.0.1 key=k ports=80", []string{"x/c 10.0.0.1 key=k ports=443"}, "",
			v1.ReasonSharingRefused, "a Service of another namespace, and its ServiceGroup does not share",
		},
		{
			"by name, of another key", "a/b want=10.0.0.1 key=k ports=80", []string{"a/c 10.0.0.1 key=l ports=443"}, "",
			v1.ReasonSharingRefused, `a/c, which shares it by the key "l", not "k"`,
		},
		{
			"by name, of one that does not share", "a/b want=10.0.0.1 key=k ports=80", []string{"a/c 10.0.0.1 ports=443"}, "",
			v1.ReasonSharingRefused, "a/c, which does not share it",
		},
		{
			"a port in common", "a/b group=dual key=k ports=443,80", []string{"a/c 10.0.0.2 key=k ports=80"}, "",
			v1.ReasonPortConflict, "10.0.0.2 cannot be shared with Service a/c: both have port TCP/80",
		},
		{
			"a port in common with the second", "a/b group=dual key=k ports=80",
			[]string{"a/c 10.0.0.2 key=k ports=443", "a/d 10.0.0.2 key=k ports=80"}, "", v1.ReasonPortConflict, "a/d",
		},
		{
			"one family cannot be shared", "a/b group=dual prefer key=k ports=80",
			[]string{"a/c 10.0.0.2 key=k ports=443", "a/d fd00::2 key=k ports=80"}, "", v1.ReasonPortConflict, "a/d",
		},
		{
			"one family is new", "a/b group=dual require key=k ports=80", []string{"a/c 10.0.0.2 key=k ports=443"},
			"10.0.0.2 fd00::1", "", "",
		},
		{
			"shared: stays", "a/b 10.0.0.1 key=k given=k group=dual ports=80", []string{"a/c 10.0.0.1 key=k given=k ports=443"},
			"10.0.0.1", "", "",
		},
		{
			"shared before the annotation was written", "a/b 10.0.0.1 key=k age=200 group=dual ports=80",
			[]string{"a/c 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1", "", "",
		},
		{
			"shared, and a port has changed", "a/b 10.0.0.1 key=k given=k age=200 group=dual ports=443",
			[]string{"a/c 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1", v1.ReasonPortConflict, "a/c",
		},
		{
			"shared, and the older's port has changed", "a/b 10.0.0.1 key=k given=k age=50 group=dual ports=443",
			[]string{"a/c 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1", v1.ReasonPortConflict, "a/c",
		},
		{"shared by three, and the third has the same port", "a/b 10.0.0.1 key=k given=k age=200 group=dual ports=443",
			[]string{"a/c 10.0.0.1 key=k given=k ports=80", "a/d 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1",
			v1.ReasonPortConflict, "a/d"},
		{"shared, of no range any more, and a port has changed",
			"a/b 10.9.0.1 from=multi key=k given=k age=200 group=multi ports=443",
			[]string{"a/c 10.9.0.1 key=k given=k ports=443"}, "10.3.1.1 10.3.3.1 10.9.0.1", v1.ReasonPortConflict, "a/c"},
		{"a key that its holder cannot share by yet", "a/b group=dual require key=l ports=80",
			[]string{"a/c 10.0.0.1 fd00::1 key=l given=k ports=443", "a/d 10.0.0.1 key=k given=k ports=90"}, "",
			v1.ReasonSharingRefused, `a/c, which still shares what it has by the key "k"`},
		{
			"a key that its holder has changed alone", "a/b group=dual key=l ports=80",
			[]string{"a/c 10.0.0.1 key=l given=k ports=443"}, "10.0.0.1", "", "",
		},
		{
			"shared, and the key has gone", "a/b 10.0.0.1 given=k age=200 group=dual ports=80",
			[]string{"a/c 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1", v1.ReasonSharingRefused, "a/c",
		},
		{
			"shared, and both keys have gone", "a/b 10.0.0.1 given=k age=200 group=dual ports=80",
			[]string{"a/c 10.0.0.1 given=k ports=443"}, "10.0.0.1", v1.ReasonSharingRefused, "a/c",
		},
		{
			"shared, and the key has changed", "a/b 10.0.0.1 key=l given=k age=200 group=dual ports=80",
			[]string{"a/c 10.0.0.1 key=k given=k ports=443"}, "10.0.0.1", v1.ReasonSharingRefused, "a/c",
		},
		{
			"a key after the address: the older's stands", "a/b 10.0.0.1 key=k age=200 group=dual ports=80",
			[]string{"a/c 10.0.0.2 key=k ports=443"}, "10.0.0.1", v1.ReasonSharingRefused, `"k" stands for 10.0.0.2`,
		},
		{
			"a key after the address: its own stands", "a/b 10.0.0.1 key=k age=50 group=dual ports=80",
			[]string{"a/c 10.0.0.2 key=k ports=443"}, "10.0.0.1", "", "",
		},
		{"alone with a changed key", "a/b 10.0.0.1 key=l given=k group=dual", nil, "10.0.0.1", "", ""},

		// Across namespaces nobody takes another's traffic by an edit of its own: the Service of
		// the request has port 80 by its terms, the other one 443.
		{"across, the older one's port has come to be this one's",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=200 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=80"}, "10.2.0.1", "", ""},
		{"across, the older has added this one's port",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=200 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443,80"}, "10.2.0.1", "", ""},
		{"across, the older has changed its key",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=200 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across given=k terms=443 ports=443"}, "10.2.0.1", "", ""},
		{"across, this one has taken the younger's port",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=50 group=across ports=443",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443"}, "", v1.ReasonPortConflict,
			"10.2.0.1 is that of a Service of another namespace"},
		{"across, this one has changed its key",
			"a/b 10.2.0.1 from=across key=l given=k terms=80 age=50 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443"}, "10.2.0.2", "",
			"10.2.0.1 is that of a Service of another namespace"},
		{"across, both have changed to one port: the older keeps it",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=50 group=across ports=8080",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=8080"}, "10.2.0.1", "", ""},
		{"across, a port that nobody has",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=200 group=across ports=80,8080",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443"}, "10.2.0.1", "", ""},
		{"across, records without ports: the older keeps it",
			"a/b 10.2.0.1 from=across key=k given=k age=200 group=across ports=443",
			[]string{"x/c 10.2.0.1 from=across key=k given=k ports=443"}, "", v1.ReasonPortConflict,
			"10.2.0.1 is that of a Service of another namespace"},
		{
			"across, still well", "a/b 10.2.0.1 from=across key=k given=k age=200 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across key=k given=k ports=443"}, "10.2.0.1", "", "",
		},
		{"across, the group has stopped: both keep it", "a/b 10.0.0.1 from=dual key=k given=k age=200 group=dual ports=80",
			[]string{"x/c 10.0.0.1 from=dual key=k given=k ports=443"},
			"10.0.0.1", v1.ReasonSharingRefused, "another namespace"},

		// Nor does anybody decide by policy Local where the traffic of another namespace goes.
		{"across, this one has policy Local", "a/b group=across key=k ports=80 local", []string{
			"x/c 10.2.0.2 key=k ports=443",
		},
			"", v1.ReasonSharingRefused,
			"10.2.0.2 cannot be shared with a Service of another namespace: one of the two has externalTrafficPolicy Local"},
		{"across, the other one has policy Local", "a/b group=across key=k ports=80", []string{
			"x/c 10.2.0.2 key=k given=k ports=443 local",
		},
			"", v1.ReasonSharingRefused, "one of the two has externalTrafficPolicy Local"},
		{"across, both have policy Local", "a/b group=across key=k ports=80 local", []string{
			"x/c 10.2.0.2 key=k ports=443 local",
		},
			"", v1.ReasonSharingRefused, "one of the two has externalTrafficPolicy Local"},
		{
			"policy Local within a namespace", "a/b group=across key=k ports=80 local", []string{"a/c 10.2.0.2 key=k ports=443"},
			"10.2.0.2", "", "",
		},
		{"across, the older has come to have policy Local",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=200 group=across ports=80",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443 local"}, "10.2.0.1", "", ""},
		{"across, this one has come to have policy Local",
			"a/b 10.2.0.1 from=across key=k given=k terms=80 age=50 group=across ports=80 local",
			[]string{"x/c 10.2.0.1 from=across key=k given=k terms=443 ports=443"}, "", v1.ReasonSharingRefused,
			"10.2.0.1 is that of a Service of another namespace"},
		{"across, records without ports, one with policy Local: the older keeps it",
			"a/b 10.2.0.1 from=across key=k given=k age=50 group=across ports=80 local",
			[]string{"x/c 10.2.0.1 from=across key=k given=k ports=443"}, "10.2.0.1", "", ""},
		{"given to two by mistake, the older has policy Local",
			"a/b 10.2.0.1 from=across key=k given=k age=50 group=across ports=80 local",
			[]string{"x/c 10.2.0.1 from=across key=l given=l terms=443 ports=443"}, "10.2.0.1", "", ""},

		// One of each range.
		{"of every range that a node has", "a/b group=multi", nil, "10.3.1.1 10.3.3.1", "", ""},
		{"of every range of both families", "a/b group=multi require", nil, "10.3.1.1 10.3.3.1 fd03::1", "", ""},
		{"of every remote range", "a/b group=spread", nil, "10.4.1.1 10.4.2.1", "", ""},
		{"asked for by the Service", "a/b group=ranges multi=true", nil, "10.5.1.1 10.5.2.1", "", ""},
		{"refused by the Service", "a/b group=spread multi=false", nil, "10.4.1.1", "", ""},
		{"neither yes nor no", "a/b group=spread multi=maybe", nil, "10.4.1.1 10.4.2.1", "", ""},
		{"no node has any", "a/b group=dual multi=true", nil, "10.0.0.1", "", ""},
		{
			"a full range", "a/b group=spread", []string{"c/d 10.4.1.1 10.4.1.2"}, "10.4.2.1", v1.ReasonExhausted,
			"range 10.4.1.1-10.4.1.2 of ServiceGroup spread has no free address: enlarge it, or delete Services",
		},
		{
			"all full", "a/b group=spread", []string{"c/d 10.4.1.1 10.4.1.2", "c/e 10.4.2.1 10.4.2.2"}, "", v1.ReasonExhausted,
			"no free IPv4",
		},
		{"a range more", "a/b group=spread 10.4.2.2", nil, "10.4.1.1 10.4.2.2", "", ""},
		{
			"a range that no node has any more: stays", "a/b group=multi 10.3.1.1 10.3.2.1 10.3.3.1", nil,
			"10.3.1.1 10.3.2.1 10.3.3.1", "", "",
		},
		{
			"a range that a node has again: the order stays", "a/b group=multi 10.3.3.1 10.3.1.1", nil,
			"10.3.3.1 10.3.1.1", "", "",
		},
		{
			"a range more, and another order", "a/b group=multi 10.3.3.1 10.3.2.1", nil,
			"10.3.1.1 10.3.3.1 10.3.2.1", "", "",
		},
		{
			"both families, in another order", "a/b group=multi require fd03::1 10.3.3.1 10.3.1.1", nil,
			"10.3.3.1 10.3.1.1 fd03::1", "", "",
		},
		{"the group has stopped: all stay", "a/b group=ranges 10.5.1.2 10.5.2.2", nil, "10.5.1.2 10.5.2.2", "", ""},
		{"the Service has stopped: one stays", "a/b group=ranges multi=false 10.5.1.2 10.5.2.2", nil, "10.5.1.2", "", ""},
		{"by name: one", "a/b group=spread want=10.4.2.2", nil, "10.4.2.2", "", ""},
		{
			"shares each", "a/b group=spread key=k ports=80", []string{"a/c 10.4.1.2 10.4.2.2 key=k ports=443"},
			"10.4.1.2 10.4.2.2", "", "",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := requestFrom(t, row.request)
			inputs := &allocation.Inputs{
				Catalog:       catalog,
				InUse:         allocation.NewInUse(&req.Service),
				NodeAddresses: map[netip.Addr]string{netip.MustParseAddr("10.1.0.3"): "an address of node n"},
				AnnounceType: func(r allocation.Range) v1.AnnounceType {
					if s := r.String(); strings.HasPrefix(s, "10.3.2.") || strings.HasPrefix(s, "10.0.") {
						return v1.AnnounceVirtual
					}
					return v1.AnnounceLocal
				},
			}
			for _, words := range row.others {
				inputs.InUse.Put(serviceFrom(t, words))
			}
			got := allocation.Allocate(req, inputs)
			if want := strings.ReplaceAll(row.want, " ", ", "); allocation.JoinAddresses(got.Addresses) != want {
				t.Errorf("addresses are %q, want %q", allocation.JoinAddresses(got.Addresses), want)
			}
			reason := row.reason
			if reason == "" {
				reason = v1.ReasonAllocated
			}
			said := strings.Join([]string{got.Message, got.Warning, fmt.Sprint(got.LostAddresses)}, "; ")
			if got.Reason != reason || !strings.Contains(said, row.says) {
				t.Errorf("%s: %s; want %s, saying %q", got.Reason, said, reason, row.says)
			}
			for _, words := range row.others {
				if other := serviceFrom(t, words); other.Namespace != req.Namespace && strings.Contains(said, other.String()) {
					t.Errorf("%q names Service %s to users of another namespace", said, other)
				}
			}
		})
	}
}
