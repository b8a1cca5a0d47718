package allocation_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

const netboxSpec = "netbox: {url: 'https://netbox.example', tokenSecretRef: {name: a, key: b}, "

// netboxGroup is a group of which NetBox was seen to have ranges, each as "range subnet".
func netboxGroup(t testing.TB, name, spec string, pools ...string) v1.ServiceGroup {
	sg := groupMadeAt(t, name, 1, netboxSpec+spec+"}")
	for _, p := range pools {
		r, subnet, _ := strings.Cut(p, " ")
		sg.Status.Pools = append(sg.Status.Pools, v1.PoolStatus{Range: r, Subnet: subnet})
	}
	return sg
}

func TestParseNetbox(t *testing.T) {
	for _, row := range []struct{ name, spec, want string }{
		{"tenant alone", "tenant: lab", ""},
		{"prefixes", "v4: {prefixes: [10.0.0.0/24]}, v6: {prefixes: ['fd00::/64']}", ""},
		{"ranges", "v4: {ranges: [10.0.0.5-10.0.0.9]}", ""},
		{"selector", "v4: {selector: {tag: lb, vrf: blue}}", ""},
		{
			"nothing", "status: active",
			"spec.netbox: Required value: say which addresses Services get: v4, v6, or tenant for the addresses that are " +
				"reserved for a tenant",
		},
		{
			"an empty source", "v4: {}",
			"spec.netbox.v4: Required value: at least one of prefixes, ranges and selector is needed",
		},
		{
			"an empty selector", "v4: {selector: {}}",
			"spec.netbox.v4.selector: Required value: at least one of tag, role, tenant and vrf is needed",
		},
		{
			"prefix with host bits", "v4: {prefixes: [10.0.0.7/24]}",
			`spec.netbox.v4.prefixes[0]: Invalid value: "10.0.0.7/24": has bits set beyond its prefix length; did you mean ` +
				`10.0.0.0/24?`,
		},
		{
			"prefix of the other family", "v6: {prefixes: [10.0.0.0/24]}",
			`spec.netbox.v6.prefixes[0]: Invalid value: "10.0.0.0/24": must be an IPv6 subnet`,
		},
		{
			"multicast", "v4: {prefixes: [224.0.0.0/24]}",
			`spec.netbox.v4.prefixes[0]: Invalid value: "224.0.0.0/24": range 224.0.0.0-224.0.0.255 has addresses of ` +
				`224.0.0.0/4 (multicast), which no Service can have`,
		},
		{
			"each faulty prefix", "v4: {prefixes: [10.0.0.7/24, 10.1.0.0/24, 10.2.0.9/24]}",
			`[spec.netbox.v4.prefixes[0]: Invalid value: "10.0.0.7/24": has bits set beyond its prefix length; did you mean ` +
				`10.0.0.0/24?, spec.netbox.v4.prefixes[2]: Invalid value: "10.2.0.9/24": has bits set beyond its prefix length; ` +
				`did you mean 10.2.0.0/24?]`,
		},
		{
			"each faulty range", "v4: {ranges: [10.0.0.5, 10.1.0.5-10.1.0.9, 10.2.0.5]}",
			`[spec.netbox.v4.ranges[0]: Invalid value: "10.0.0.5": must be an IP range of NetBox, as first-last, ` +
				`spec.netbox.v4.ranges[2]: Invalid value: "10.2.0.5": must be an IP range of NetBox, as first-last]`,
		},
		{
			"range without an end", "v4: {ranges: [10.0.0.5]}",
			`spec.netbox.v4.ranges[0]: Invalid value: "10.0.0.5": must be an IP range of NetBox, as first-last`,
		},
		{
			"range that ends before it starts", "v4: {ranges: [10.0.0.9-10.0.0.5]}",
			`spec.netbox.v4.ranges[0]: Invalid value: "10.0.0.9-10.0.0.5": ends (10.0.0.5) before it starts (10.0.0.9)`,
		},
		{
			"range of the other family", "v4: {ranges: ['fd00::1-fd00::2']}",
			`spec.netbox.v4.ranges[0]: Invalid value: "fd00::1-fd00::2": must be a range of IPv4 addresses`,
		},
		{
			"mask of IPv6 for IPv4", "v4: {prefixes: [10.0.0.0/24]}, aggregation: /64",
			`spec.netbox.aggregation: Invalid value: "/64": must be "default" or a mask from /1 to /32`,
		},
		{
			"masks of both families", "v4: {prefixes: [10.0.0.0/24], aggregation: /33}, v6: {prefixes: ['fd00::/64'], " +
				"aggregation: /129}, aggregation: /129",
			`[spec.netbox.aggregation: Invalid value: "/129": must be "default" or a mask from /1 to /128, ` +
				`spec.netbox.v4.aggregation: Invalid value: "/33": must be "default" or a mask from /1 to /32, ` +
				`spec.netbox.v6.aggregation: Invalid value: "/129": must be "default" or a mask from /1 to /128]`,
		},
		{
			"status of free addresses", "tenant: lab, status: reserved",
			`spec.netbox.status: Invalid value: "reserved": is the status of the tenant's free addresses: choose another for ` +
				`those of Services`,
		},
		{"dnsName", "tenant: lab, dnsName: '{{.Name}}.{{.Namespace}}.lb.example'", ""},
		{
			"dnsName with another field", "tenant: lab, dnsName: '{{.Cluster}}.lb.example'",
			`spec.netbox.dnsName: Invalid value: "{{.Cluster}}.lb.example": must be a DNS name, in which only {{.Name}} and ` +
				`{{.Namespace}} are replaced`,
		},
		{
			"caBundle", "tenant: lab, caBundle: 'no certificate'",
			`spec.netbox.caBundle: Invalid value: "…": has no certificate in PEM form (-----BEGIN CERTIFICATE-----)`,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			sg := groupMadeAt(t, "a", 1, netboxSpec+row.spec+"}")
			_, _, errs := allocation.ParseGroup(&sg)
			got := ""
			if len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestNetboxDefaults(t *testing.T) {
	for _, row := range []struct{ name, spec, status, role, tags string }{
		{"of a tenant", "tenant: lab", "active", "", ""},
		{"of prefixes", "v4: {prefixes: [10.0.0.0/24]}", "active", "vip", "purelb"},
		{"all named", "v4: {prefixes: [10.0.0.0/24]}, status: dhcp, role: anycast, tags: [a, b]", "dhcp", "anycast", "a b"},
		{"all named, of a tenant", "tenant: lab, status: dhcp, role: anycast, tags: [a, b]", "dhcp", "anycast", "a b"},
	} {
		sg := groupMadeAt(t, "a", 1, netboxSpec+row.spec+"}")
		group, _, errs := allocation.ParseGroup(&sg)
		if n := group.Netbox; len(errs) > 0 || n.Status != row.status || n.Role != row.role ||
			strings.Join(n.Tags, " ") != row.tags {
			t.Errorf("%s: status %q, role %q, tags %q, errors %v", row.name, n.Status, n.Role, n.Tags, errs)
		}
	}
}

func TestHasURL(t *testing.T) {
	n := &allocation.Netbox{URL: "https://netbox.example"}
	for text, want := range map[string]bool{
		"https://netbox.example": true, " https://netbox.example/api/\n": true, "https://netbox.example/other": false,
		"ftp://netbox.example": false, "": false,
	} {
		if n.HasURL(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	if (&allocation.Netbox{}).HasURL("ftp://netbox.example") {
		t.Error("what is no URL is that of a group without one")
	}
}

func TestIsWaitingForIPAM(t *testing.T) {
	for reason, want := range map[string]bool{
		v1.ReasonProgressing: true, v1.ReasonIPAMUnavailable: true, v1.ReasonAccepted: false, v1.ReasonInvalid: false,
		v1.ReasonOverlap: false,
	} {
		if v := (&allocation.Verdict{Reason: reason}); v.IsWaitingForIPAM() != want {
			t.Errorf("%s: %v", reason, !want)
		}
	}
}

func TestParseNetboxURL(t *testing.T) {
	for url, want := range map[string]string{
		"https://netbox.example":            "https://netbox.example",
		"https://netbox.example/":           "https://netbox.example",
		"https://netbox.example/api/":       "https://netbox.example",
		"http://netbox.example:8000/netbox": "http://netbox.example:8000/netbox",
		"HTTP://netbox.example":             "http://netbox.example",
		"https://netbox.example//api//":     "https://netbox.example",
		"https://user:secret@n": `spec.netbox.url: Invalid value: "…": must not have a user or password: the ` +
			`token goes into the Secret`,
		"https://n?a=b": `spec.netbox.url: Invalid value: "https://n?a=b": must not have a query or fragment`,
		"https://n/?":   `spec.netbox.url: Invalid value: "https://n/?": must not have a query or fragment`,
		"ftp://n":       `spec.netbox.url: Invalid value: "ftp://n": must be an http or https URL`,
		"netbox":        `spec.netbox.url: Invalid value: "netbox": must be an http or https URL`,
	} {
		sg := groupMadeAt(t, "a", 1, "netbox: {url: '"+url+"', tenant: t, tokenSecretRef: {name: a, key: b}}")
		group, warnings, errs := allocation.ParseGroup(&sg)
		got := group.Netbox.URL
		if len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
		if warns := len(warnings) > 0; warns != strings.HasPrefix(want, "http:") {
			t.Errorf("%s: warnings %q", url, warnings)
		}
	}
}

func TestNetboxDNSName(t *testing.T) {
	sg := groupMadeAt(t, "a", 1, netboxSpec+"tenant: t, dnsName: '{{.Name}}.{{.Namespace}}.lb.example'}")
	group, _, _ := allocation.ParseGroup(&sg)
	if got := group.Netbox.DNSNameOf("test", "web"); got != "web.test.lb.example" {
		t.Errorf("got %s", got)
	}
	if got := group.Netbox.DNSNameOf("test", strings.Repeat("a", 250)); got != "" {
		t.Errorf("a name that is too long: got %s", got)
	}
}

// What NetBox was last seen to have is in the group's status, so that a new manager knows
// it while NetBox is away.
func TestNetboxRanges(t *testing.T) {
	const (
		of4, of6 = "10.0.0.5-10.0.0.6", "fd00::5-fd00::6"
		sources  = "v4: {selector: {tag: lb}}, v6: {selector: {tag: lb}}, "
	)
	both := []string{of4 + " 10.0.0.0/24", of6 + " fd00::/64"}
	for _, row := range []struct {
		name, spec string
		pools      []string
		want       string
	}{
		{"prefix", "v4: {prefixes: [10.0.0.0/24]}", []string{"10.0.0.0-10.0.0.255 10.0.0.0/24"}, "10.0.0.0-10.0.0.255/24"},
		{
			"mask", "v4: {prefixes: [10.0.0.0/24]}, aggregation: /32", []string{"10.0.0.0-10.0.0.255 10.0.0.0/24"},
			"10.0.0.0-10.0.0.255/32",
		},
		{"short mask of a tenant", "tenant: t, aggregation: /32", both, of4 + "/32 " + of6 + "/64"},
		{"long mask of a tenant", "tenant: t, aggregation: /96", both, of4 + "/24 " + of6 + "/96"},
		{"short mask", sources + "aggregation: /32", both, of4 + "/32 " + of6 + "/64"},
		{"long mask", sources + "aggregation: /128", both, of4 + "/24 " + of6 + "/128"},
		{"short mask of IPv6", "v6: {selector: {tag: lb}}, aggregation: /32", both[1:], of6 + "/32"},
		{"masks of the families", "v4: {selector: {tag: lb}, aggregation: /32}, v6: {selector: {tag: lb}, aggregation: /128}",
			both, of4 + "/32 " + of6 + "/128"},
		{"mask of a family before the group's", "v4: {selector: {tag: lb}, aggregation: default}, aggregation: /32", both[:1],
			of4 + "/24"},
		{
			"prefix that is not asked for any more", "v4: {prefixes: [10.0.0.0/24]}",
			[]string{"10.9.0.0-10.9.0.255 10.9.0.0/24"}, "",
		},
		{
			"family that is not asked for any more", "v6: {selector: {tag: lb}}", []string{"10.9.0.0-10.9.0.255 10.9.0.0/24"},
			"",
		},
		{"range", "v4: {ranges: [10.0.0.5-10.0.0.9]}", []string{"10.0.0.5-10.0.0.9 10.0.0.0/24"}, "10.0.0.5-10.0.0.9/24"},
		{"selector", "v4: {selector: {tag: lb}}", []string{"10.9.0.0-10.9.0.255 10.9.0.0/24"}, "10.9.0.0-10.9.0.255/24"},
		{"unreadable", "tenant: t", []string{"10.9.0.0 10.9.0.0/24", "10.9.0.0-10.9.0.1 x"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			sg := netboxGroup(t, "a", row.spec, row.pools...)
			group, _, errs := allocation.ParseGroup(&sg)
			var got []string
			for _, r := range group.Ranges {
				got = append(
					got,
					r.String()+"/"+netip.PrefixFrom(r.Addrs.From(), r.Mask).String()[strings.Index(
						netip.PrefixFrom(r.Addrs.From(), r.Mask).String(), "/",
					)+1:],
				)
			}
			if strings.Join(got, " ") != row.want || len(errs) > 0 {
				t.Errorf("got %v %v, want %s", got, errs, row.want)
			}
		})
	}
}

// An external group is not ready where it overlaps a group with pools of its own, whichever is older. This test
// shows the row "somebody writes there that a prefix is for Services that has the pool of another ServiceGroup" of
// docs/trust.md.
func TestNetboxVerdicts(t *testing.T) {
	unreachable := netboxGroup(t, "a", "tenant: t")
	unreachable.Status.Conditions = []metav1.Condition{
		{
			Type: v1.ConditionReachable, Status: metav1.ConditionFalse, Reason: v1.ReasonIPAMUnavailable,
			Message: "connection refused",
		},
	}
	empty := netboxGroup(t, "a", "tenant: t")
	empty.Status.Conditions = []metav1.Condition{
		{Type: v1.ConditionReachable, Status: metav1.ConditionTrue, Message: "answers"},
		{Type: v1.ConditionDrift, Status: metav1.ConditionTrue, Message: "no tenant t"},
	}
	outdated := netboxGroup(t, "a", "tenant: t")
	outdated.Generation, outdated.Status.Conditions = 2, unreachable.Status.Conditions
	for _, row := range []struct {
		name   string
		groups []v1.ServiceGroup
		want   map[string]string
	}{
		{
			"not asked yet", []v1.ServiceGroup{netboxGroup(t, "a", "tenant: t")},
			map[string]string{"a": "Progressing: what NetBox has of the group is not known yet"},
		},
		{"never reached", []v1.ServiceGroup{unreachable}, map[string]string{"a": "IPAMUnavailable: connection refused"}},
		{"reached, and nothing there", []v1.ServiceGroup{empty}, map[string]string{"a": "IPAMRefused: no tenant t"}},
		{
			"not asked since the change", []v1.ServiceGroup{outdated},
			map[string]string{"a": "Progressing: what NetBox has of the group is not known yet"},
		},
		{
			"known", []v1.ServiceGroup{netboxGroup(t, "a", "tenant: t", "10.0.0.5-10.0.0.6 10.0.0.0/24")},
			map[string]string{"a": "Accepted: 1 range"},
		},
		{"two of one prefix",
			[]v1.ServiceGroup{netboxGroup(t, "a", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24"),
				netboxGroup(t, "b", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24")}, map[string]string{
				"a": "Accepted: 1 range", "b": "Accepted: 1 range",
			}},
		{"over an older pool", []v1.ServiceGroup{groupMadeAt(t, "b", 0, "local: {pool: 10.0.0.7, subnet: 10.0.0.0/24}"),
			netboxGroup(t, "a", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24")},
			map[string]string{"b": "Accepted: 1 range",
				"a": `Overlap: spec.netbox: Invalid value: "10.0.0.0-10.0.0.255": range 10.0.0.0-10.0.0.255 overlaps range ` +
					`10.0.0.7-10.0.0.7 of ServiceGroup b, which has these addresses already`}},
		{"over a younger pool", []v1.ServiceGroup{groupMadeAt(t, "b", 2, "local: {pool: 10.0.0.7, subnet: 10.0.0.0/24}"),
			netboxGroup(t, "a", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24")},
			map[string]string{"b": "Accepted: 1 range",
				"a": `Overlap: spec.netbox: Invalid value: "10.0.0.0-10.0.0.255": range 10.0.0.0-10.0.0.255 overlaps range ` +
					`10.0.0.7-10.0.0.7 of ServiceGroup b, which has these addresses already`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := map[string]string{}
			for name, v := range allocation.NewCatalog(row.groups, namespace) {
				got[name] = v.Reason + ": " + v.Message
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGroupContainingPreferring(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		netboxGroup(t, "b", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24"),
		netboxGroup(t, "a", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24"),
		netboxGroup(t, "waiting", "v4: {prefixes: [10.0.0.0/24]}"),
	}, namespace)
	for preferred, want := range map[string]string{"": "a", "a": "a", "b": "b", "waiting": "a", "none": "a"} {
		group, _, ok := catalog.GroupContainingPreferring(preferred, netip.MustParseAddr("10.0.0.5"))
		if !ok || group.Name != want {
			t.Errorf("preferring %q: got %v, want %s", preferred, group, want)
		}
	}
}

// TestExternalGroupInsteadOfDeleted has a Service whose group was deleted, and a group that contains its address now.
func TestExternalGroupInsteadOfDeleted(t *testing.T) {
	const pools = "10.0.0.0-10.0.0.255 10.0.0.0/24"
	external := netboxGroup(t, "new", "v4: {prefixes: [10.0.0.0/24]}", pools)
	local := groupMadeAt(t, "new", 1, "local: {pool: 10.0.0.0/24, subnet: 10.0.0.0/24}")
	for _, row := range []struct {
		name  string
		group v1.ServiceGroup
		was   v1.PoolType
		want  string
	}{
		{"external, and was", external, v1.PoolTypeNetbox, "new netbox"},
		{"external, and was not", external, v1.PoolTypeLocal, "old local"},
		{"not external, and was", local, v1.PoolTypeNetbox, "old netbox"},
		{"not external, and was not", local, v1.PoolTypeRemote, "new local"},
	} {
		req := &allocation.Request{
			Families: []allocation.Family{allocation.IPv4}, FamilyPolicy: corev1.IPFamilyPolicySingleStack,
		}
		req.Service = allocation.Service{
			Namespace: "test", Name: "web", IsOurs: true, Addresses: addresses("10.0.0.7"),
			Allocated: allocation.Record{Addresses: addresses("10.0.0.7"), Group: "old", Type: row.was},
		}
		catalog := allocation.NewCatalog([]v1.ServiceGroup{row.group}, namespace)
		got := allocation.Allocate(req, &allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse(&req.Service)})
		if text := got.Group + " " + string(got.Type); text != row.want || len(got.IPAMRequests) > 0 ||
			allocation.JoinAddresses(got.Addresses) != "10.0.0.7" {
			t.Errorf("%s: %v of %s, want %s; requests %v", row.name, got.Addresses, text, row.want, got.IPAMRequests)
		}
	}
}

// netboxRow is one decision about a Service of an external group.
type netboxRow struct {
	name      string
	families  []corev1.IPFamily
	policy    corev1.IPFamilyPolicy
	requested string
	key       string
	current   string
	adopts    bool
	others    string
	offers    map[allocation.IPAMRequest]allocation.Offer
	ranges    []string // of the group, or nil for one of each family

	want      string
	reason    string
	message   string
	requests  []allocation.IPAMRequest
	isPending bool
}

func TestAllocateFromExternalGroup(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	request := func(family corev1.IPFamily) allocation.IPAMRequest {
		return allocation.IPAMRequest{Group: "netbox", Family: family}
	}
	requestFor := func(a string) allocation.IPAMRequest {
		addr := netip.MustParseAddr(a)
		return allocation.IPAMRequest{Group: "netbox", Family: allocation.FamilyOf(addr), Address: addr}
	}
	shown := func(a string) allocation.IPAMRequest {
		c := requestFor(a)
		c.IsShown = true
		return c
	}
	offer := func(a string) allocation.Offer { return allocation.Offer{Address: netip.MustParseAddr(a)} }
	away := allocation.Offer{Reason: v1.ReasonIPAMUnavailable, Message: "NetBox is away"}
	ofOther := allocation.Offer{Reason: v1.ReasonOtherInstallation, Message: "the cluster is another installation's"}
	full := allocation.Offer{Reason: v1.ReasonExhausted, Message: "NetBox has no free IPv6 address"}
	slow := allocation.Offer{Reason: v1.ReasonIPAMUnavailable, Message: "NetBox is slow", IsWaiting: true}
	queued := allocation.Offer{Reason: v1.ReasonWaitingForIPAM, Message: "others are asking", IsWaiting: true}
	type requests = []allocation.IPAMRequest
	type offers = map[allocation.IPAMRequest]allocation.Offer
	dual := []corev1.IPFamily{v4, v6}

	for _, row := range []netboxRow{
		{name: "requests one", families: []corev1.IPFamily{v4}, requests: requests{request(v4)}, isPending: true,
			reason:  v1.ReasonWaitingForIPAM,
			message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{
			name: "gets what is offered", families: []corev1.IPFamily{v4}, offers: offers{request(v4): offer("10.0.0.5")},
			want: "10.0.0.5", requests: requests{request(v4)},
		},
		{
			name: "keeps what it has, and requests nothing", families: []corev1.IPFamily{v4}, current: "10.0.0.7",
			want: "10.0.0.7",
		},
		{
			name: "NetBox away", families: []corev1.IPFamily{v4}, offers: offers{request(v4): away},
			reason: v1.ReasonIPAMUnavailable, message: "NetBox is away", requests: requests{request(v4)},
		},
		{name: "NetBox away: keeps the other family", families: dual, policy: corev1.IPFamilyPolicyRequireDualStack,
			current: "10.0.0.7", offers: offers{request(v6): away}, want: "10.0.0.7",
			reason: v1.ReasonIPAMUnavailable, message: "NetBox is away", requests: requests{request(v6)}},
		{name: "requests both families at once", families: dual, policy: corev1.IPFamilyPolicyRequireDualStack,
			requests: requests{request(v4), request(v6)}, isPending: true,
			reason: v1.ReasonWaitingForIPAM, message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{name: "waits for the second one", families: dual, policy: corev1.IPFamilyPolicyPreferDualStack, offers: offers{
			request(v4): offer("10.0.0.5"),
		}, requests: requests{request(v4), request(v6)}, isPending: true,
			reason: v1.ReasonWaitingForIPAM, message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{name: "RequireDualStack gets both", families: dual, policy: corev1.IPFamilyPolicyRequireDualStack, offers: offers{
			request(v4): offer("10.0.0.5"), request(v6): offer("fd00::5"),
		},
			want: "10.0.0.5 fd00::5", requests: requests{request(v4), request(v6)}},
		{name: "RequireDualStack releases a lone one", families: dual, policy: corev1.IPFamilyPolicyRequireDualStack,
			offers: offers{request(v4): offer("10.0.0.5"), request(v6): full},
			reason: v1.ReasonExhausted, message: "NetBox has no free IPv6 address", requests: requests{request(v6)}},
		{name: "RequireDualStack requests nothing beside what is refused", families: dual,
			policy: corev1.IPFamilyPolicyRequireDualStack, offers: offers{request(v6): full},
			reason: v1.ReasonExhausted, message: "NetBox has no free IPv6 address", requests: requests{request(v6)}},
		{name: "RequireDualStack, and the group has no such range", families: dual,
			policy: corev1.IPFamilyPolicyRequireDualStack, ranges: []string{"10.0.0.0-10.0.0.255 10.0.0.0/24"},
			reason: v1.ReasonExhausted, message: "ServiceGroup netbox has no free IPv6 address" + addRange},
		{name: "RequireDualStack keeps what is offered while the other one takes long", families: dual,
			policy: corev1.IPFamilyPolicyRequireDualStack, offers: offers{request(v4): offer("10.0.0.5"), request(v6): slow},
			reason: v1.ReasonIPAMUnavailable, message: "NetBox is slow", requests: requests{request(v4), request(v6)}},
		{name: "RequireDualStack keeps what is offered while others are asking", families: dual,
			policy: corev1.IPFamilyPolicyRequireDualStack, offers: offers{request(v4): queued, request(v6): offer("fd00::5")},
			reason: v1.ReasonWaitingForIPAM, message: "others are asking", requests: requests{request(v4), request(v6)}},
		{name: "RequireDualStack keeps what is offered while NetBox is away", families: dual,
			policy: corev1.IPFamilyPolicyRequireDualStack, offers: offers{request(v4): offer("10.0.0.5"), request(v6): away},
			reason: v1.ReasonIPAMUnavailable, message: "NetBox is away", requests: requests{request(v4), request(v6)}},
		{name: "RequireDualStack keeps what is offered while the cluster is another installation's",
			families: dual, policy: corev1.IPFamilyPolicyRequireDualStack,
			offers: offers{request(v4): offer("10.0.0.5"), request(v6): ofOther}, requests: requests{request(v4), request(v6)},
			reason: v1.ReasonOtherInstallation, message: "the cluster is another installation's"},
		{name: "PreferDualStack does not wait for a slow one", families: dual, policy: corev1.IPFamilyPolicyPreferDualStack,
			offers: offers{request(v4): offer("10.0.0.5"), request(v6): slow},
			want:   "10.0.0.5", requests: requests{request(v4), request(v6)},
			message: "10.0.0.5 from pool netbox; by PreferDualStack it gets an IPv6 address, too, as soon as ServiceGroup " +
				"netbox has one that is free"},
		{name: "PreferDualStack takes what there is", families: dual, policy: corev1.IPFamilyPolicyPreferDualStack,
			offers: offers{request(v4): offer("10.0.0.5"), request(v6): full},
			want:   "10.0.0.5", requests: requests{request(v4), request(v6)},
			message: "10.0.0.5 from pool netbox; by PreferDualStack it gets an IPv6 address, too, as soon as ServiceGroup " +
				"netbox has one that is free"},
		{name: "PreferDualStack with nothing", families: dual, policy: corev1.IPFamilyPolicyPreferDualStack, offers: offers{
			request(v4): away, request(v6): full,
		},
			reason: v1.ReasonIPAMUnavailable, message: "NetBox is away", requests: requests{request(v4), request(v6)}},

		{name: "requests the address that is asked for", families: []corev1.IPFamily{v4}, requested: "10.0.0.9",
			requests: requests{requestFor("10.0.0.9")}, isPending: true,
			reason: v1.ReasonWaitingForIPAM, message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{name: "gets the address that is asked for", families: []corev1.IPFamily{v4}, requested: "10.0.0.9",
			current: "10.0.0.7", offers: offers{requestFor("10.0.0.9"): offer("10.0.0.9")},
			want: "10.0.0.9", requests: requests{requestFor("10.0.0.9")}},
		{name: "an answer to another request does not count", families: []corev1.IPFamily{v4}, requested: "10.0.0.9",
			offers: offers{request(v4): offer("10.0.0.5")}, requests: requests{requestFor("10.0.0.9")}, isPending: true,
			reason: v1.ReasonWaitingForIPAM, message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{name: "asked for, and another Service has it", families: []corev1.IPFamily{v4}, requested: "10.0.0.9",
			others: "10.0.0.9",
			reason: v1.ReasonAddressInUse, message: "10.0.0.9 is in use by Service test/other"},
		{name: "the first address of a subnet", families: []corev1.IPFamily{v4}, requested: "10.0.0.0",
			reason: v1.ReasonAddressOutsidePools,
			message: "annotation purelb.io/addresses: 10.0.0.0 is the first or last address of subnet 10.0.0.0/24: it is " +
				"never allocated"},
		{name: "shares without a request", families: []corev1.IPFamily{v4}, key: "k", others: "10.0.0.9", want: "10.0.0.9"},
		{name: "adopts by a request", families: []corev1.IPFamily{v4}, current: "10.0.0.9", adopts: true, requests: requests{
			shown("10.0.0.9"),
		}, isPending: true,
			reason: v1.ReasonWaitingForIPAM, message: "the IPAM system of ServiceGroup netbox has not answered yet"},
		{name: "adopts what it is offered", families: []corev1.IPFamily{v4}, current: "10.0.0.9", adopts: true,
			offers: offers{shown("10.0.0.9"): offer("10.0.0.9")},
			want:   "10.0.0.9", requests: requests{shown("10.0.0.9")}},
		{name: "is offered what another Service has", families: []corev1.IPFamily{v4}, others: "10.0.0.5", offers: offers{
			request(v4): offer("10.0.0.5"),
		},
			reason:  v1.ReasonAddressInUse,
			message: "10.0.0.5, which ServiceGroup netbox offers, is in use by Service test/other"},
	} {
		t.Run(row.name, func(t *testing.T) {
			testNetboxRow(t, &row)
		})
	}
}

func testNetboxRow(t *testing.T, row *netboxRow) {
	if row.ranges == nil {
		row.ranges = []string{"10.0.0.0-10.0.0.255 10.0.0.0/24", "fd00::-fd00::ffff:ffff:ffff:ffff fd00::/64"}
	}
	catalog := allocation.NewCatalog(
		[]v1.ServiceGroup{
			netboxGroup(t, "netbox", "v4: {prefixes: [10.0.0.0/24]}, v6: {prefixes: ['fd00::/64']}", row.ranges...),
		},
		namespace,
	)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "test", Name: "web", Annotations: map[string]string{v1.AnnotationServiceGroup: "netbox"},
		},
	}
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: row.families,
		IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack), Ports: []corev1.ServicePort{{Port: 80}},
	}
	if row.policy != "" {
		svc.Spec.IPFamilyPolicy = &row.policy
	}
	if row.requested != "" {
		svc.Annotations[v1.AnnotationAddresses] = row.requested
	}
	if row.key != "" {
		svc.Annotations[v1.AnnotationAllowSharedIP] = row.key
	}
	for _, a := range addresses(row.current) {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	if row.current != "" && !row.adopts {
		record := allocation.Record{Addresses: addresses(row.current), Group: "netbox", Type: v1.PoolTypeNetbox}
		svc.Status.Conditions = []metav1.Condition{
			{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: record.String()},
		}
	}
	inputs := &allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse(), Offers: row.offers}
	if row.others != "" {
		other := &allocation.Service{Namespace: "test", Name: "other", IsOurs: true, Addresses: addresses(row.others),
			SharingKey: row.key,
			Ports:      allocation.PortsOf([]corev1.ServicePort{{Port: 443}}), Allocated: allocation.Record{
				Addresses: addresses(row.others), Group: "netbox", Key: row.key,
			}}
		inputs.InUse.Put(other)
	}
	got := allocation.Allocate(allocation.RequestOf(svc), inputs)

	if diff := cmp.Diff(
		addresses(row.want), got.Addresses, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty(),
	); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	wantReason, wantMessage := row.reason, row.message
	if wantReason == "" {
		wantReason = v1.ReasonAllocated
	}
	if wantMessage == "" {
		wantMessage = allocation.JoinAddresses(addresses(row.want)) + " from pool netbox"
	}
	if got.Reason != wantReason || got.Message != wantMessage || got.IsAwaitingIPAM != row.isPending {
		t.Errorf(
			"got %s: %s (pending %v)\nwant %s: %s (pending %v)", got.Reason, got.Message, got.IsAwaitingIPAM,
			wantReason, wantMessage, row.isPending,
		)
	}
	if diff := cmp.Diff(
		row.requests, got.IPAMRequests, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty(),
	); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The NetBox of a group, and the prefixes that it names, stay while addresses are in use.
func TestAdmitNetbox(t *testing.T) {
	record := allocation.Record{Addresses: addresses("10.0.0.5"), Group: "netbox", Type: v1.PoolTypeNetbox}
	used := allocation.NewInUse(&allocation.Service{
		Namespace: "test", Name: "web", IsOurs: true, Addresses: record.Addresses, Allocated: record,
	})
	before := netboxGroup(t, "netbox", "v4: {prefixes: [10.0.0.0/24]}", "10.0.0.0-10.0.0.255 10.0.0.0/24")
	never := netboxGroup(t, "netbox", "v4: {prefixes: [10.0.0.0/24]}")
	const cure = "annotate the ServiceGroup with purelb.io/allow-orphans=true, and they stay as they are until their " +
		"Services go"
	for _, row := range []struct{ name, spec, want string }{
		{"another field", netboxSpec + "v4: {prefixes: [10.0.0.0/24]}, dnsName: a.example}", ""},
		{"one more prefix", netboxSpec + "v4: {prefixes: [10.0.0.0/24, 10.1.0.0/24]}}", ""},
		{
			"another prefix", netboxSpec + "v4: {prefixes: [10.1.0.0/24]}}",
			"spec: Forbidden: leaves 1 address in use by 1 Service (test/web) outside every pool: keep them in one, or " + cure,
		},
		{"another NetBox", "netbox: {url: 'https://other.example', tokenSecretRef: {name: a, key: b}, v4: {prefixes: " +
			"[10.0.0.0/24]}}",
			"spec: Forbidden: changes the NetBox from https://netbox.example to https://other.example with 1 address in use " +
				"by 1 Service (test/web): make another ServiceGroup instead, or " + cure},
		{"a tenant's addresses instead of new ones", netboxSpec + "tenant: lab}",
			"spec: Forbidden: changes the group from prefixes and ranges to addresses reserved for tenant lab with 1 address " +
				"in use by 1 Service (test/web): make another ServiceGroup instead, or " + cure},
		{"a tenant", netboxSpec + "v4: {prefixes: [10.0.0.0/24]}, tenant: lab}", ""},
		{"another kind", "local: {pool: 10.0.0.0/24, subnet: 10.0.0.0/24}",
			"spec: Forbidden: changes the group from netbox to local with 1 address in use by 1 Service (test/web): make " +
				"another ServiceGroup instead, or " + cure},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := allocation.Admission{
				Inputs: allocation.Inputs{InUse: used}, Namespace: namespace, Groups: []v1.ServiceGroup{before},
			}
			after := groupMadeAt(t, "netbox", 1, row.spec)
			after.Status = before.Status
			_, errs := a.AdmitUpdate(&before, &after)
			got := ""
			if len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
	a := allocation.Admission{
		Inputs: allocation.Inputs{InUse: used}, Namespace: namespace, Groups: []v1.ServiceGroup{before},
	}
	broken := before.DeepCopy()
	broken.Spec.Netbox.URL = "netbox.example" // it was taken while no webhook was there
	if _, errs := a.AdmitUpdate(broken, &before); len(errs) > 0 {
		t.Errorf("the URL is mended: %v", errs)
	}
	for _, sg := range []v1.ServiceGroup{before, never} {
		if _, refusal := a.AdmitDelete(&sg); !strings.Contains(refusal, "test/web") {
			t.Errorf("deletion: %q", refusal)
		}
	}
}

// What an external system may not give, whatever it says.
func TestObjectionTo(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		netboxGroup(t, "netbox", "v4: {selector: {tag: lb}}", "10.0.0.0-10.0.0.255 10.0.0.0/24"),
		groupMadeAt(t, "local", 2, "local: {pool: 10.1.0.0/24, subnet: 10.1.0.0/24}"),
	}, namespace)
	inputs := allocation.Inputs{
		Catalog: catalog, NodeAddresses: map[netip.Addr]string{netip.MustParseAddr("10.0.0.11"): "an address of node node1"},
	}
	for a, want := range map[string]string{
		"10.0.0.5":   "",
		"10.0.0.11":  "10.0.0.11 is an address of node node1: it is never allocated",
		"10.0.0.255": "10.0.0.255 is the first or last address of subnet 10.0.0.0/24: it is never allocated",
		"10.1.0.5":   "10.1.0.5 is of ServiceGroup local",
		"10.2.0.5":   "",
	} {
		if got := inputs.ObjectionTo("netbox", netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: got %q, want %q", a, got, want)
		}
	}
}

func TestRefuseRange(t *testing.T) {
	for text, isRefused := range map[string]bool{
		"10.0.0.1-10.0.0.9": false, "127.0.0.1-127.0.0.2": true, "fe80::1-fe80::2": true, "fd00::1-fd00::2": false,
		"::ffff:10.0.0.1-::ffff:10.0.0.2": true,
	} {
		if err := allocation.CheckRange(netipx.MustParseIPRange(text)); (err != nil) != isRefused {
			t.Errorf("%s: %v", text, err)
		}
	}
}
