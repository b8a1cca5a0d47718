package allocation_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// tenants are namespaces with their labels. Namespace "new" is not known yet.
var tenants = map[string]map[string]string{"gold": {"tier": "gold"}, "free": {"tier": "free"}, "plain": {}}

const (
	onlyGold = "allowedNamespaces: {from: Selector, selector: {matchLabels: {tier: gold}}}"
	pool4    = "remote: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}"
	pool1    = "remote: {pool: 10.1.0.1-10.1.0.2, subnet: 10.1.0.0/24}"
	dual     = "remote: {v4pool: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::4', " +
		"subnet: 'fd00::/64'}}"
	refused = "ask for another one, or have its administrator select the namespace in spec.allowedNamespaces"
)

// tenantRow is one allocation to Service namespace/web.
type tenantRow struct {
	name      string
	groups    map[string]string // specifications by name
	notReady  string            // the one of them that has a mistake
	namespace string
	ask       []string // annotations, as name=value without purelb.io/
	families  string   // "4" if empty
	prefers   bool     // PreferDualStack
	has       string   // addresses allocated to it
	of        string   // the group of these
	shows     string   // addresses that another controller has written
	others    []*allocation.Service
	// deleted are Services that had addresses: "namespace/name address,address age".
	deleted []string
	want    string // addresses
	group   string
	reason  string // "" for Allocated
	message string
	warning string
}

// other is another Service with addresses that are allocated to it.
func other(name, key, addrs string) *allocation.Service {
	namespace, name, _ := strings.Cut(name, "/")
	s := &allocation.Service{
		Namespace: namespace, Name: name, IsOurs: true, Created: time.Unix(1, 0), SharingKey: key,
		Addresses: addresses(addrs),
	}
	s.Allocated = allocation.Record{Addresses: s.Addresses, Group: "default", Key: key}
	return s
}

// showing is another Service of which another controller has written the addresses.
func showing(name string, isOurs bool, addrs string) *allocation.Service {
	s := other(name, "", addrs)
	s.IsOurs, s.Allocated = isOurs, allocation.Record{}
	return s
}

func (row *tenantRow) inputs(t *testing.T) *allocation.Inputs {
	t.Helper()
	var groups []v1.ServiceGroup
	for name, spec := range row.groups {
		groups = append(groups, groupMadeAt(t, name, 1, spec))
	}
	inputs := &allocation.Inputs{Catalog: allocation.NewCatalog(groups, namespace),
		InUse: allocation.NewInUse(row.others...), NamespaceLabels: tenants,
		NodeAddresses: map[netip.Addr]string{netip.MustParseAddr("10.0.0.4"): "an address of node n"},
		FormerOwners:  allocation.FormerOwners{}, Now: time.Unix(100_000, 0)}
	for _, text := range row.deleted {
		words := strings.Fields(text)
		age, err := time.ParseDuration(words[2])
		if err != nil {
			t.Fatal(err)
		}
		inputs.FormerOwners.Add(words[0], addresses(strings.ReplaceAll(words[1], ",", " ")), inputs.Now.Add(-age))
	}
	for name, v := range inputs.Catalog {
		if len(v.Errors) > 0 != (name == row.notReady) {
			t.Fatalf("%s: %s", name, v.Message)
		}
	}
	return inputs
}

func (row *tenantRow) request() *allocation.Request {
	svc := serviceAsking()
	svc.Namespace, svc.Name = row.namespace, "web"
	for _, a := range row.ask {
		name, value, _ := strings.Cut(a, "=")
		if name == "loadBalancerIP" {
			svc.Spec.LoadBalancerIP = value
			continue
		}
		svc.Annotations["purelb.io/"+name] = value
	}
	req := allocation.RequestOf(svc)
	req.Families = nil
	for _, f := range strings.Split("4"+row.families, "")[min(1, len(row.families)):] {
		req.Families = append(req.Families, map[string]allocation.Family{"4": allocation.IPv4, "6": allocation.IPv6}[f])
	}
	req.FamilyPolicy = corev1.IPFamilyPolicySingleStack
	if len(req.Families) > 1 {
		req.FamilyPolicy = corev1.IPFamilyPolicyRequireDualStack
	}
	if row.prefers {
		req.FamilyPolicy = corev1.IPFamilyPolicyPreferDualStack
	}
	req.Created = time.Unix(2, 0)
	req.Allocated = allocation.Record{Addresses: addresses(row.has), Group: row.of, Type: v1.PoolTypeRemote}
	req.Addresses = append(addresses(row.has), addresses(row.shows)...)
	return req
}

func (row *tenantRow) run(t *testing.T) {
	t.Helper()
	inputs, req := row.inputs(t), row.request()
	inputs.InUse.Put(&req.Service)
	got := allocation.Allocate(req, inputs)
	if row.reason == "" {
		row.reason = v1.ReasonAllocated
	}
	if !slices.Equal(got.Addresses, addresses(row.want)) || got.Reason != row.reason || got.Group != row.group {
		t.Errorf("%v of %s, %s: %s", got.Addresses, got.Group, got.Reason, got.Message)
	}
	if row.message != "" && got.Message != row.message {
		t.Errorf("message:\n  %s\nwant\n  %s", got.Message, row.message)
	}
	if diff := cmp.Diff(row.warning, got.Warning); diff != "" {
		t.Errorf("warning (-want +got):\n%s", diff)
	}
	// Asking again changes nothing.
	req.Addresses, req.Allocated = got.AddressesToShow(serviceShowing(row.shows)), got.Record()
	inputs.InUse.Put(&req.Service)
	if again := allocation.Allocate(req, inputs); !slices.Equal(again.Addresses, got.Addresses) ||
		again.Reason != got.Reason {
		t.Errorf("asked again: %v, %s: %s", again.Addresses, again.Reason, again.Message)
	}
}

func serviceShowing(addrs string) *corev1.Service {
	svc := serviceAsking()
	show(svc, addresses(addrs)...)
	return svc
}

// TestAllowedNamespaces has Services of namespaces that may and may not use a group.
func TestAllowedNamespaces(t *testing.T) {
	gold := map[string]string{"default": pool1, "gold": pool4 + "\n" + onlyGold}
	mistaken := map[string]string{"default": pool1, "gold": "remote: {pool: 10.0.0.1, subnet: 10.9.0.0/24}\n" + onlyGold}
	external := map[string]string{
		"default": pool1, "gold": "netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}\n" + onlyGold,
	}
	const (
		no   = "ServiceGroup gold is not for namespace free: " + refused
		kept = "ServiceGroup gold is not for namespace free any more: the Service keeps what it has, and gets nothing else " +
			"of it"
	)
	for _, row := range []tenantRow{
		{
			name: "selected", groups: gold, namespace: "gold", ask: []string{"service-group=gold"}, want: "10.0.0.1",
			group: "gold",
		},
		{
			name: "not selected", groups: gold, namespace: "free", ask: []string{"service-group=gold"},
			reason: v1.ReasonNotAllowed, message: no,
		},
		{
			name: "without labels", groups: gold, namespace: "plain", ask: []string{"service-group=gold"},
			reason: v1.ReasonNotAllowed,
		},
		{name: "not known", groups: gold, namespace: "new", ask: []string{"service-group=gold"}, reason: v1.ReasonNotAllowed},
		{name: "not known, and what it does not have counts", namespace: "new",
			groups: map[string]string{
				"default": pool4 + "\nallowedNamespaces: {from: Selector, selector: {matchExpressions: [{key: tier, operator: " +
					"DoesNotExist}]}}",
			},
			reason: v1.ReasonNotAllowed},
		{name: "does not have what it must not", namespace: "plain", want: "10.0.0.1", group: "default",
			groups: map[string]string{
				"default": pool4 + "\nallowedNamespaces: {from: Selector, selector: {matchExpressions: [{key: tier, operator: " +
					"DoesNotExist}]}}",
			}},
		{
			name: "from All", groups: map[string]string{"default": pool4 + "\nallowedNamespaces: {from: All}"}, namespace: "new",
			want: "10.0.0.1", group: "default",
		},
		{
			name: "from nothing", groups: map[string]string{"default": pool4 + "\nallowedNamespaces: {}"}, namespace: "new",
			want: "10.0.0.1", group: "default",
		},
		{name: "every namespace that is known", groups: map[string]string{
			"default": pool4 + "\nallowedNamespaces: {from: Selector, selector: {}}",
		},
			namespace: "plain", want: "10.0.0.1", group: "default"},
		{
			name: "by an address", groups: gold, namespace: "free", ask: []string{"addresses=10.0.0.2"},
			reason: v1.ReasonNotAllowed, message: no,
		},
		{
			name: "by an address that a node has: it does not learn that", groups: gold, namespace: "free",
			ask: []string{"addresses=10.0.0.4"}, reason: v1.ReasonNotAllowed, message: no,
		},
		{name: "by an address in use: it does not learn that", groups: gold, namespace: "free", ask: []string{
			"addresses=10.0.0.1",
		},
			others: []*allocation.Service{other("gold/a", "", "10.0.0.1")}, reason: v1.ReasonNotAllowed, message: no},
		{
			name: "by the deprecated field", groups: gold, namespace: "free", ask: []string{"loadBalancerIP=10.0.0.2"},
			reason: v1.ReasonNotAllowed, message: no,
		},
		{name: "by a key", groups: map[string]string{
			"default": pool1, "gold": pool4 + "\nshareAcrossNamespaces: true\n" + onlyGold,
		}, namespace: "free",
			ask: []string{"service-group=gold", "allow-shared-ip=k"}, others: []*allocation.Service{
				other("gold/a", "k", "10.0.0.1"),
			}, reason: v1.ReasonNotAllowed, message: no},
		{name: "by an address and a key", groups: map[string]string{
			"default": pool1, "gold": pool4 + "\nshareAcrossNamespaces: true\n" + onlyGold,
		}, namespace: "free",
			ask: []string{"addresses=10.0.0.1", "allow-shared-ip=k"}, others: []*allocation.Service{
				other("gold/a", "k", "10.0.0.1"),
			}, reason: v1.ReasonNotAllowed, message: no},
		{name: "by showing one", groups: gold, namespace: "free", shows: "10.0.0.1", want: "10.1.0.1", group: "default"},
		{
			name: "selected, and shows one", groups: gold, namespace: "gold", shows: "10.0.0.3", want: "10.0.0.3", group: "gold",
		},
		{name: "another group keeps its Services", groups: gold, namespace: "free", ask: []string{"service-group=gold"},
			has: "10.1.0.2", of: "default",
			want: "10.1.0.2", group: "default", reason: v1.ReasonNotAllowed, message: no},

		// The group was narrowed.
		{
			name: "keeps", groups: gold, namespace: "free", ask: []string{"service-group=gold"}, has: "10.0.0.3", of: "gold",
			want: "10.0.0.3", group: "gold", warning: kept,
		},
		{
			name: "keeps, and names none", groups: gold, namespace: "free", has: "10.0.0.3", of: "gold", want: "10.0.0.3",
			group: "gold", warning: kept,
		},
		{
			name: "keeps by name", groups: gold, namespace: "free", ask: []string{"addresses=10.0.0.3"}, has: "10.0.0.3",
			of: "gold", want: "10.0.0.3", group: "gold", warning: kept,
		},
		{name: "keeps, and gets no other", groups: gold, namespace: "free", ask: []string{"addresses=10.0.0.2"},
			has: "10.0.0.3", of: "gold", want: "10.0.0.3", group: "gold",
			reason: v1.ReasonNotAllowed, message: no},
		{
			name: "keeps, and gets another group", groups: gold, namespace: "free", ask: []string{"service-group=default"},
			has: "10.0.0.3", of: "gold", want: "10.1.0.1", group: "default",
		},
		{name: "keeps, and gets no other family", groups: map[string]string{"gold": dual + "\n" + onlyGold},
			namespace: "free", families: "46", has: "10.0.0.3", of: "gold",
			want: "10.0.0.3", group: "gold", reason: v1.ReasonNotAllowed, message: no, warning: kept},
		{name: "keeps, and would like another family", groups: map[string]string{"gold": dual + "\n" + onlyGold},
			namespace: "free", families: "46", prefers: true,
			has: "10.0.0.3", of: "gold", want: "10.0.0.3", group: "gold", warning: kept},
		{name: "keeps, and would like a family that the group does not have", groups: gold, namespace: "free", families: "46",
			prefers: true,
			has:     "10.0.0.3", of: "gold", want: "10.0.0.3", group: "gold", warning: kept},
		{
			name: "keeps what has left the pools", groups: gold, namespace: "free", has: "10.9.0.3", of: "gold",
			want: "10.9.0.3", group: "gold", warning: kept,
		},
		{name: "a group with a mistake: it does not learn that", groups: mistaken, notReady: "gold", namespace: "free",
			ask: []string{"service-group=gold"}, reason: v1.ReasonNotAllowed, message: no},
		{name: "selected by a group with a mistake", groups: mistaken, notReady: "gold", namespace: "gold",
			ask: []string{"service-group=gold"}, reason: v1.ReasonGroupNotReady},
		{name: "has an address of a group with a mistake", groups: mistaken, notReady: "gold", namespace: "free",
			ask: []string{"service-group=gold"}, has: "10.0.0.3", of: "gold",
			want: "10.0.0.3", group: "gold", reason: v1.ReasonGroupNotReady},
		{name: "a group whose IPAM system is away: it does not learn that", groups: external, namespace: "free",
			ask: []string{"service-group=gold"}, reason: v1.ReasonNotAllowed, message: no},
		{name: "an automatic group that is for Services that name it: naming it does not help", namespace: "free",
			groups: map[string]string{"default": pool1 + "\nautoAssign: false\n" + onlyGold}, reason: v1.ReasonNotAllowed,
			message: "ServiceGroup default is not for namespace free: " + refused},
		{name: "its group is gone, and it may not use the one that has its address", groups: gold, namespace: "free",
			has: "10.0.0.3", of: "before",
			want: "10.0.0.3", group: "before", reason: v1.ReasonNoSuchGroup, message: "there is no ServiceGroup before"},
		{name: "its group is gone, and it may use the one that has its address", groups: gold, namespace: "gold",
			has: "10.0.0.3", of: "before", want: "10.0.0.3", group: "gold"},
		{name: "lost it to another: gets no other", groups: gold, namespace: "free", ask: []string{"service-group=gold"},
			has: "10.0.0.3", of: "gold",
			others: []*allocation.Service{other("gold/a", "", "10.0.0.3")}, reason: v1.ReasonNotAllowed, message: no},
	} {
		t.Run(row.name, row.run)
	}
}

// TestReservations has addresses that are kept for Services.
func TestReservations(t *testing.T) {
	kept := map[string]string{
		"default": pool4 + "\nreservations: [{address: 10.0.0.1, service: gold/web}, {address: 10.0.0.2, service: gold/db}]",
	}
	two := map[string]string{"default": pool1, "vip": pool4 + "\nreservations: [{address: 10.0.0.2, service: gold/web}]"}
	const forOther = "10.0.0.1 is reserved for a Service of another namespace: no other Service gets it, and none " +
		"shares it"
	for _, row := range []tenantRow{
		{name: "gets it", groups: kept, namespace: "gold", want: "10.0.0.1", group: "default"},
		{name: "is for another namespace", groups: kept, namespace: "free", want: "10.0.0.3", group: "default"},
		{name: "gets it from a group that it does not name", groups: two, namespace: "gold", want: "10.0.0.2", group: "vip"},
		{
			name: "gets it from a group that it names", groups: two, namespace: "gold", ask: []string{"service-group=vip"},
			want: "10.0.0.2", group: "vip",
		},
		{
			name: "asks for it", groups: two, namespace: "gold", ask: []string{"addresses=10.0.0.2"}, want: "10.0.0.2",
			group: "vip",
		},
		{
			name: "asks for another one", groups: two, namespace: "gold", ask: []string{"addresses=10.0.0.3"}, want: "10.0.0.3",
			group: "vip",
		},
		{
			name: "names another group", groups: two, namespace: "gold", ask: []string{"service-group=default"},
			want: "10.1.0.1", group: "default",
		},
		{
			name: "has another one", groups: two, namespace: "gold", has: "10.1.0.2", of: "default", want: "10.1.0.2",
			group: "default",
		},
		{name: "another family does not decide the group", groups: map[string]string{
			"default": pool1, "vip": dual + "\nreservations: [{address: 'fd00::2', service: gold/web}]",
		},
			namespace: "gold", want: "10.1.0.1", group: "default"},
		{name: "both families", groups: map[string]string{
			"default": dual + "\nreservations: [{address: 'fd00::2', service: gold/web}, {address: 10.0.0.3, service: " +
				"gold/web}]",
		},
			namespace: "gold", families: "46", want: "10.0.0.3 fd00::2", group: "default"},
		{name: "one family", groups: map[string]string{
			"default": dual + "\nreservations: [{address: 'fd00::2', service: gold/web}]",
		},
			namespace: "gold", families: "46", want: "10.0.0.1 fd00::2", group: "default"},
		{name: "of two, the lower one", groups: map[string]string{
			"default": pool4 + "\nreservations: [{address: 10.0.0.3, service: gold/web}, {address: 10.0.0.2, service: " +
				"gold/web}]",
		},
			namespace: "gold", want: "10.0.0.2", group: "default"},
		{name: "of a group with a mistake", groups: map[string]string{
			"default": pool1,
			"vip":     pool4 + "\nreservations: [{address: 10.0.0.2, service: gold/web}, {address: 10.9.9.9, service: a/b}]",
		},
			notReady: "vip", namespace: "gold", want: "10.1.0.1", group: "default"},
		{name: "of two groups, the first", groups: map[string]string{
			"b": pool4 + "\nreservations: [{address: 10.0.0.3, service: gold/web}]",
			"a": pool1 + "\nreservations: [{address: 10.1.0.2, service: gold/web}]",
		},
			namespace: "gold", want: "10.1.0.2", group: "a"},
		{
			name:      "a node has it",
			groups:    map[string]string{"default": pool4 + "\nreservations: [{address: 10.0.0.4, service: gold/web}]"},
			namespace: "gold", want: "10.0.0.1", group: "default",
		},
		{name: "the namespace may not use the group", groups: map[string]string{
			"default": pool1, "vip": pool4 + "\nreservations: [{address: 10.0.0.2, service: free/web}]\n" + onlyGold,
		},
			namespace: "free", want: "10.1.0.1", group: "default"},
		{name: "every range: its own first", groups: map[string]string{
			"default": "remote: {multiPool: true, v4pools: [{pool: 10.0.0.1-10.0.0.2, subnet: 10.0.0.0/24}, {pool: " +
				"10.1.0.1-10.1.0.2, subnet: 10.1.0.0/24}]}\nreservations: [{address: 10.1.0.2, service: gold/web}]",
		},
			namespace: "gold", want: "10.0.0.1 10.1.0.2", group: "default"},

		// Others ask for it.
		{
			name: "by an address", groups: kept, namespace: "free", ask: []string{"addresses=10.0.0.1"},
			reason: v1.ReasonAddressInUse, message: forOther,
		},
		{
			name: "by the deprecated field", groups: kept, namespace: "free", ask: []string{"loadBalancerIP=10.0.0.1"},
			reason: v1.ReasonAddressInUse, message: forOther,
		},
		{name: "by an address, in its namespace", groups: kept, namespace: "gold", ask: []string{"addresses=10.0.0.2"},
			reason:  v1.ReasonAddressInUse,
			message: "10.0.0.2 is reserved for Service gold/db: no other Service gets it, and none shares it"},
		{name: "by a key, in its namespace", groups: kept, namespace: "gold", ask: []string{
			"allow-shared-ip=k", "service-group=default",
		},
			others: []*allocation.Service{other("gold/db", "k", "10.0.0.2")}, reason: v1.ReasonAddressInUse,
			message: "10.0.0.2 is reserved for Service gold/db: no other Service gets it, and none shares it"},
		{name: "by an address and a key", groups: map[string]string{
			"default": kept["default"] + "\nshareAcrossNamespaces: true",
		}, namespace: "free",
			ask: []string{"allow-shared-ip=k", "addresses=10.0.0.1"}, others: []*allocation.Service{
				other("gold/web", "k", "10.0.0.1"),
			}, reason: v1.ReasonAddressInUse, message: forOther},
		{name: "by showing it", groups: kept, namespace: "free", shows: "10.0.0.1", want: "10.0.0.3", group: "default"},
		{name: "and shows its own", groups: kept, namespace: "gold", shows: "10.0.0.1", want: "10.0.0.1", group: "default"},
		{
			name: "and nothing else is free", groups: kept, namespace: "free",
			others: []*allocation.Service{other("free/a", "", "10.0.0.3")}, reason: v1.ReasonExhausted,
		},

		// Others have it.
		{
			name: "another one has it", groups: kept, namespace: "gold",
			others: []*allocation.Service{other("free/a", "", "10.0.0.1")}, want: "10.0.0.3", group: "default",
		},
		{
			name: "another one shows it, and does not get it", groups: kept, namespace: "gold",
			others: []*allocation.Service{showing("free/a", true, "10.0.0.1")}, want: "10.0.0.1", group: "default",
		},
		{
			name: "a Service of another controller shows it", groups: kept, namespace: "gold",
			others: []*allocation.Service{showing("free/a", false, "10.0.0.1")}, want: "10.0.0.3", group: "default",
		},
		{name: "asks for what another one shows", groups: kept, namespace: "gold", ask: []string{"addresses=10.0.0.1"},
			others: []*allocation.Service{showing("free/a", true, "10.0.0.1")}, want: "10.0.0.1", group: "default"},
		{name: "has it already", groups: kept, namespace: "free", has: "10.0.0.1", of: "default", want: "10.0.0.1",
			group:   "default",
			warning: "10.0.0.1 is reserved for a Service of another namespace: this one keeps it until it asks for another one"},
		{name: "has it already, and asks for it", groups: kept, namespace: "free", ask: []string{"addresses=10.0.0.1"},
			has: "10.0.0.1", of: "default", want: "10.0.0.1", group: "default",
			warning: "10.0.0.1 is reserved for a Service of another namespace: this one keeps it until it asks for another one"},
		{name: "its key stands for another address", groups: kept, namespace: "gold", ask: []string{"allow-shared-ip=k"},
			others: []*allocation.Service{other("gold/a", "k", "10.0.0.3")}, want: "10.0.0.3", group: "default"},
	} {
		t.Run(row.name, row.run)
	}
}

// TestPendingReservation sets an address aside for a Service in a write that failed, after
// which the address is reserved for another one.
func TestPendingReservation(t *testing.T) {
	row := tenantRow{groups: map[string]string{"default": pool4}, namespace: "free"}
	req := row.request()
	for _, want := range []string{"10.0.0.2", "10.0.0.3"} {
		inputs := row.inputs(t)
		inputs.InUse.Put(req.WithPendingAddresses(addresses("10.0.0.2")))
		if got := allocation.Allocate(req, inputs).Addresses; !slices.Equal(got, addresses(want)) {
			t.Errorf("%v, not %s", got, want)
		}
		row.groups["default"] += "\nreservations: [{address: 10.0.0.2, service: gold/web}, {address: 10.0.0.1, service: " +
			"gold/web}]"
	}
}

// TestPendingAddressDecidesGroup has set the last address of the first group aside for a Service: a
// second attempt comes to the same.
func TestPendingAddressDecidesGroup(t *testing.T) {
	row := tenantRow{
		groups: map[string]string{
			"default": "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}", "more": pool1 + "\nautoAssign: true",
		},
		namespace: "free",
	}
	req, inputs := row.request(), row.inputs(t)
	for range 2 {
		got := allocation.Allocate(req, inputs)
		if !slices.Equal(got.Addresses, addresses("10.0.0.1")) {
			t.Errorf("%v", got.Addresses)
		}
		inputs.InUse.Put(req.WithPendingAddresses(got.Addresses))
	}
}

// TestAutoAssign has Services that name no group.
func TestAutoAssign(t *testing.T) {
	const auto, not, port = "\nautoAssign: true", "\nautoAssign: false", "allow-shared-ip=k"
	pool := func(n string) string { return "remote: {pool: 10." + n + ".0.1, subnet: 10." + n + ".0.0/24}" }
	one := []*allocation.Service{other("plain/a", "", "10.0.0.1")}
	for _, row := range []tenantRow{
		{
			name: "by default, the default group", groups: map[string]string{"default": pool("0"), "a": pool("1")},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "by default, no other", groups: map[string]string{"default": pool("0"), "a": pool("1")}, others: one,
			reason: v1.ReasonExhausted, message: "ServiceGroup default has no free IPv4 address" + addRange,
		},
		{
			name: "no default group", groups: map[string]string{"a": pool("1")}, reason: v1.ReasonNoSuchGroup,
			message: "there is no ServiceGroup default",
		},
		{
			name: "no default group, another one", groups: map[string]string{"a": pool("1") + auto}, want: "10.1.0.1",
			group: "a",
		},
		{
			name: "the default group first", groups: map[string]string{"default": pool("0"), "a": pool("1") + auto},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "the default group, explicitly", groups: map[string]string{"default": pool("0") + auto, "a": pool("1") + auto},
			want: "10.0.0.1", group: "default",
		},
		{
			name:   "the next by name",
			groups: map[string]string{"default": pool("0"), "b": pool("2") + auto, "a": pool("1") + auto}, others: one,
			want: "10.1.0.1", group: "a",
		},
		{
			name: "not the default group", groups: map[string]string{"default": pool("0") + not, "a": pool("1") + auto},
			want: "10.1.0.1", group: "a",
		},
		{name: "no group", groups: map[string]string{"default": pool("0") + not, "a": pool("1") + not},
			reason: v1.ReasonNotAllowed,
			message: "ServiceGroup default is only for Services that name it (autoAssign: false): name it, or another one, by " +
				"annotation purelb.io/service-group"},
		{
			name: "named", groups: map[string]string{"default": pool("0") + not}, ask: []string{"service-group=default"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "an address of it", groups: map[string]string{"default": pool("0") + not}, ask: []string{"addresses=10.0.0.1"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "an address of another one", groups: map[string]string{"default": pool("0"), "a": pool("1") + not},
			ask: []string{"addresses=10.1.0.1"}, want: "10.1.0.1", group: "a",
		},
		{
			name: "shows an address of it", groups: map[string]string{"default": pool("0") + not}, shows: "10.0.0.1",
			want: "10.0.0.1", group: "default",
		},
		{
			name: "has an address of it", groups: map[string]string{"default": pool("0") + not}, has: "10.0.0.1", of: "default",
			want: "10.0.0.1", group: "default",
		},
		{
			name:   "reserved in it",
			groups: map[string]string{"default": pool("0") + not + "\nreservations: [{address: 10.0.0.1, service: plain/web}]"},
			want:   "10.0.0.1", group: "default",
		},
		{
			name:   "the first that it may use",
			groups: map[string]string{"default": pool("0") + "\n" + onlyGold, "a": pool("1") + auto}, want: "10.1.0.1",
			group: "a",
		},
		{name: "the first that it may use has none", groups: map[string]string{
			"default": pool("1") + "\n" + onlyGold, "a": pool("0") + auto,
		}, others: one,
			reason: v1.ReasonExhausted, message: "ServiceGroup a has no free IPv4 address" + addRange},
		{name: "it may use none", groups: map[string]string{"default": pool("0") + "\n" + onlyGold},
			reason:  v1.ReasonNotAllowed,
			message: "ServiceGroup default is not for namespace plain: " + refused},
		{
			name: "one that is not ready",
			groups: map[string]string{
				"default": "netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}", "a": pool("1") + auto,
			},
			want: "10.1.0.1", group: "a",
		},
		{
			name: "one without the family", groups: map[string]string{"default": pool("3"), "a": dual + auto}, families: "6",
			want: "fd00::1", group: "a",
		},
		{
			name: "one without both families", groups: map[string]string{"default": pool1, "a": dual + auto}, families: "46",
			want: "10.0.0.1 fd00::1", group: "a",
		},
		{
			name: "one of two families will do", groups: map[string]string{"default": pool1, "a": dual + auto}, families: "46",
			prefers: true, want: "10.1.0.1", group: "default",
		},
		{
			name: "none of two families will not do", groups: map[string]string{"default": pool("0"), "a": pool1 + auto},
			families: "46", prefers: true, others: one, want: "10.1.0.1", group: "a",
		},
		{name: "only what is reserved for others is left", groups: map[string]string{
			"default": pool("0") + "\nreservations: [{address: 10.0.0.1, service: gold/web}]", "a": pool("1") + auto,
		},
			want: "10.1.0.1", group: "a"},
		{name: "where the key has an address", groups: map[string]string{"default": pool("0"), "a": pool1 + auto},
			ask:    []string{port},
			others: []*allocation.Service{other("plain/a", "k", "10.1.0.2")}, want: "10.1.0.2", group: "a"},
		{name: "where the key has an address, although another one has free ones", groups: map[string]string{
			"default": pool("0"), "a": pool1 + auto,
		}, ask: []string{port},
			others: []*allocation.Service{other("plain/a", "k", "10.0.0.1")}, want: "10.0.0.1", group: "default"},
		{name: "one with a mistake", groups: map[string]string{
			"default": pool1 + "\nreservations: [{address: 10.9.9.9, service: plain/web}]", "a": pool4 + auto,
		}, notReady: "default",
			want: "10.0.0.1", group: "a"},
		{name: "lost what it had of another one", groups: map[string]string{"default": pool("0"), "a": pool1},
			has: "10.1.0.2", of: "a",
			others: []*allocation.Service{other("gold/a", "", "10.1.0.2")}, want: "10.0.0.1", group: "default"},
		{name: "where the key has an address, of another namespace", groups: map[string]string{
			"default": pool("0"), "a": pool1 + auto,
		}, ask: []string{port},
			others: []*allocation.Service{other("gold/a", "k", "10.1.0.2")}, want: "10.0.0.1", group: "default"},
		{name: "the key has an address that is not its own", groups: map[string]string{
			"default": pool("0"), "a": pool1 + auto,
		}, ask: []string{port},
			others: []*allocation.Service{
				func() *allocation.Service { s := showing("plain/a", false, "10.1.0.2"); s.SharingKey = "k"; return s }(),
			}, want: "10.0.0.1", group: "default"},
		{name: "the key has an address elsewhere", groups: map[string]string{"default": pool("0"), "a": pool1 + auto},
			ask: []string{port},
			others: []*allocation.Service{
				func() *allocation.Service { s := other("plain/a", "k", "10.7.0.2"); s.Allocated.Group = "b"; return s }(),
			}, want: "10.0.0.1", group: "default"},
		{
			name: "names one that is not there", groups: map[string]string{"default": pool("0"), "a": pool("1") + auto},
			ask: []string{"service-group=b"}, reason: v1.ReasonNoSuchGroup,
		},
	} {
		row.namespace = "plain"
		t.Run(row.name, row.run)
	}
}

// TestUsageOfReservations counts addresses that are reserved, and not in use, by themselves.
func TestUsageOfReservations(t *testing.T) {
	g := parsedGroup(t, "remote: {v4pools: [{pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, {pool: 10.1.0.1-10.1.0.4, "+
		"subnet: 10.1.0.0/24}], v6pool: {pool: 'fd00::1-fd00::2', subnet: 'fd00::/64'}}\n"+
		"reservations: [{address: 10.0.0.1, service: a/a}, {address: 10.0.0.2, service: a/b}, {address: 10.1.0.4, service: "+
		"a/c}, {address: 'fd00::1', service: a/a}, {address: 'fd00::2', service: a/b}]")
	got := g.Usage(allocation.NewInUse(other("a/a", "", "10.0.0.1"), other("a/z", "", "10.1.0.1")))
	want := allocation.Usage{
		AllocatedIPv4: 2, ReservedIPv4: 2, AvailableIPv4: 4, ReservedIPv6: 2, AllocatedByRange: []int64{1, 1, 0},
		ReservedByRange: []int64{1, 1, 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestParseTenants has what is wrong with allowedNamespaces and reservations.
func TestParseTenants(t *testing.T) {
	const netbox = "netbox: {url: 'https://n', tenant: t, tokenSecretRef: {name: a, key: b}}\n"
	for _, row := range []struct {
		name, spec string
		want       []string
	}{
		{"nothing", pool4, nil},
		{"an external group", netbox + onlyGold, nil},
		{
			"Selector without selector", pool4 + "\nallowedNamespaces: {from: Selector}",
			[]string{
				"spec.allowedNamespaces.selector: Required value: from: Selector needs a selector; {} selects all namespaces",
			},
		},
		{
			"selector without Selector", pool4 + "\nallowedNamespaces: {selector: {}}",
			[]string{`spec.allowedNamespaces.from: Invalid value: "": selector counts only with from: Selector`},
		},
		{
			"selector with All", pool4 + "\nallowedNamespaces: {from: All, selector: {}}",
			[]string{`spec.allowedNamespaces.from: Invalid value: "All": selector counts only with from: Selector`},
		},
		{"an operator that is none",
			pool4 + "\nallowedNamespaces: {from: Selector, selector: {matchExpressions: [{key: a, operator: Is}]}}",
			[]string{`spec.allowedNamespaces.selector: Invalid value: "Is" is not a valid label selector operator`}},
		{
			"reserved in both families",
			dual + "\nreservations: [{address: 10.0.0.1, service: a/b}, {address: 'fd00::1', service: a/b}]", nil,
		},
		{"reserved twice", pool4 + "\nreservations: [{address: 10.0.0.1, service: a/b}, {address: 10.0.0.1, service: a/c}]",
			[]string{`spec.reservations[1].address: Invalid value: "10.0.0.1": is reserved for Service a/b already`}},
		{"reserved twice, in another form",
			dual + "\nreservations: [{address: 'fd00::1', service: a/b}, {address: 'fd00:0::1', service: a/b}]",
			[]string{`spec.reservations[1].address: Invalid value: "fd00:0::1": is reserved for Service a/b already`}},
		{"outside the pools", pool4 + "\nreservations: [{address: 10.0.0.5, service: a/b}]",
			[]string{
				`spec.reservations[0].address: Invalid value: "10.0.0.5": is in no pool of the group: add it to one, or remove ` +
					`the reservation`,
			}},
		{"a family that the group does not have", pool4 + "\nreservations: [{address: 'fd00::1', service: a/b}]",
			[]string{
				`spec.reservations[0].address: Invalid value: "fd00::1": is in no pool of the group: add it to one, or remove ` +
					`the reservation`,
			}},
		{"perhaps in the pool that is wrong",
			"remote: {pool: x, subnet: 10.0.0.0/24}\nreservations: [{address: 10.0.0.5, service: a/b}]",
			[]string{`spec.remote.pool: Invalid value: "x": must be a CIDR, a range first-last, or one address`}},
		{"a network address",
			"remote: {pool: 10.0.0.0/30, subnet: 10.0.0.0/30}\nreservations: [{address: 10.0.0.0, service: a/b}]",
			[]string{
				`spec.reservations[0].address: Invalid value: "10.0.0.0": 10.0.0.0 is the first or last address of subnet ` +
					`10.0.0.0/30: it is never allocated`,
			}},
		{
			"no address", pool4 + "\nreservations: [{address: ten, service: a/b}]",
			[]string{`spec.reservations[0].address: Invalid value: "ten": is not an address`},
		},
		{"two mistakes", pool4 + "\nreservations: [{address: ten, service: a/b}, {address: two, service: a/b}]",
			[]string{
				`spec.reservations[0].address: Invalid value: "ten": is not an address`,
				`spec.reservations[1].address: Invalid value: "two": is not an address`,
			}},
		{"IPv4-mapped", pool4 + "\nreservations: [{address: '::ffff:10.0.0.1', service: a/b}]",
			[]string{
				`spec.reservations[0].address: Invalid value: "::ffff:10.0.0.1": is an IPv4-mapped IPv6 address; write it as ` +
					`10.0.0.1`,
			}},
		{"no namespace", pool4 + "\nreservations: [{address: 10.0.0.1, service: web}]",
			[]string{
				`spec.reservations[0].service: Invalid value: "web": must be the namespace and the name of a Service, such as ` +
					`team-a/web`,
			}},
		{"no name", pool4 + "\nreservations: [{address: 10.0.0.1, service: team-a/}]",
			[]string{
				`spec.reservations[0].service: Invalid value: "team-a/": must be the namespace and the name of a Service, such ` +
					`as team-a/web`,
			}},
		{"three parts", pool4 + "\nreservations: [{address: 10.0.0.1, service: a/b/c}]",
			[]string{
				`spec.reservations[0].service: Invalid value: "a/b/c": must be the namespace and the name of a Service, such as ` +
					`team-a/web`,
			}},
		{"of an external group", netbox + "reservations: [{address: 10.0.0.1, service: a/b}]",
			[]string{"spec.reservations: Forbidden: NetBox allocates the addresses of the group: reserve them there"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, _, errs := allocation.ParseGroup(group(t, "g", row.spec))
			if diff := cmp.Diff(row.want, texts(errs)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAdmitTenants has what a change of a group means for Services.
func TestAdmitTenants(t *testing.T) {
	in := func(spec string) *v1.ServiceGroup { sg := groupMadeAt(t, "default", 1, pool4+"\n"+spec); return &sg }
	reserve := func(service string) string { return "reservations: [{address: 10.0.0.1, service: " + service + "}]" }
	const (
		inUse = `spec.reservations[0].address: Invalid value: "10.0.0.1": is in use by Service free/a: reserve another ` +
			`address, or let that Service ask for another one first`
		held = "spec.reservations: 10.0.0.1, reserved for Service gold/web, is in use by Service free/a, which keeps it " +
			"until it goes or asks for another one"
		leftOut = "spec.allowedNamespaces: leaves out namespaces with 1 address in use by 1 Service (free/a): they stay " +
			"until their Services go or ask for another group"
		unused = "spec.reservations: 10.0.0.1 is reserved for Service free/a, whose namespace may not use the group: " +
			"spec.allowedNamespaces leaves it out"
	)
	for _, row := range []struct {
		name          string
		before, after *v1.ServiceGroup // before is nil for one that is created
		warnings      []string
		refused       []string
	}{
		{"reserved for who has it", in(""), in(reserve("free/a")), nil, nil},
		{"reserved for another one", in(""), in(reserve("gold/web")), nil, []string{inUse}},
		{"created with it", nil, in(reserve("gold/web")), nil, []string{inUse}},
		{
			"reserved for another one before", in(reserve("gold/web")), in(reserve("gold/web") + "\nautoAssign: false"),
			[]string{held}, nil,
		},
		{"reserved for yet another one", in(reserve("gold/db")), in(reserve("gold/web")), nil, []string{inUse}},
		{"narrowed", in(""), in(onlyGold), []string{leftOut}, nil},
		{"narrowed, and reserved", in(""), in(onlyGold + "\n" + reserve("free/a")), []string{leftOut, unused}, nil},
		{
			"reserved for a namespace that is not there", in(""),
			in(onlyGold + "\n" + strings.ReplaceAll(reserve("new/a"), "0.1", "0.2")), []string{leftOut}, nil,
		},
		{"opened", in(onlyGold), in(""), nil, nil},
		{"nothing changed", in(onlyGold), in(onlyGold), nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := admissionOf("")
			a.NamespaceLabels = tenants
			foreign := other("free/b", "", "10.0.0.3")
			foreign.Allocated.Group = "another"
			a.InUse = allocation.NewInUse(other("free/a", "", "10.0.0.1"), other("gold/b", "", "10.0.0.3"), foreign)
			warnings, errs := a.AdmitCreate(row.after)
			if row.before != nil {
				warnings, errs = a.AdmitUpdate(row.before, row.after)
			}
			if diff := cmp.Diff(row.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.refused, texts(errs)); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
	// While addresses in use are not known nothing is said of them.
	a := admissionOf("")
	a.InUse = nil
	if warnings, errs := a.AdmitCreate(in(onlyGold + "\n" + reserve("gold/web"))); len(warnings)+len(errs) > 0 {
		t.Errorf("%v %v", warnings, errs)
	}
}

// TestSelectsNamespaces says when allocations depend on the labels of namespaces.
func TestSelectsNamespaces(t *testing.T) {
	for spec, want := range map[string]bool{
		pool4: false, pool4 + "\nallowedNamespaces: {from: All}": false, pool4 + "\n" + onlyGold: true,
	} {
		if got := allocation.NewCatalog(
			[]v1.ServiceGroup{groupMadeAt(t, "a", 1, pool1), groupMadeAt(t, "b", 2, spec)}, namespace,
		).SelectsNamespaces(); got != want {
			t.Errorf("%v: %s", got, spec)
		}
	}
}
