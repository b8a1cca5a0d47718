package v1_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// samples is a valid spec, another valid spec, and a full status of each kind.
var samples = map[string]struct {
	plural        string
	spec, changed string
	status        string
	// columns of the table, with the cells of an object with that status; the
	// wide ones begin with a "+".
	columns, cells []string
	initial        []string // cells of a new object
}{
	"ServiceGroup": {
		plural:  "servicegroups",
		spec:    "local: {pool: 10.0.0.1, subnet: 10.0.0.0/24}",
		changed: "local: {pool: 10.0.0.2, subnet: 10.0.0.0/24}",
		status: `
observedGeneration: 1
type: local
allocatedIPv4: 1
allocatedIPv6: 2
availableIPv4: 3
availableIPv6: 9223372036854775807
availableIPv6Text: ">10^18"
announcedAs: Mixed
pools: [{range: 10.0.0.1-10.0.0.1, subnet: 10.0.0.0/24, announce: Local, capacity: 1, allocated: 1}]
ranges: 10.0.0.1-10.0.0.1
conditions: [{type: Ready, status: "True", reason: Accepted, message: 1 range,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		columns: []string{
			"Name", "Ready", "Reason", "Type", "Announced As", "IPv4 Used", "IPv4 Free", "IPv6 Used", "IPv6 Free", "Age",
			"+Ranges", "+Message",
		},
		cells: []string{
			"x", "True", "Accepted", "local", "Mixed", "1", "3", "2", ">10^18", "", "10.0.0.1-10.0.0.1", "1 range",
		},
		initial: []string{
			"x", "Unknown", "Pending", "<nil>", "<nil>", "0", "0", "0", "<nil>", "", "<nil>", "Not looked at yet",
		},
	},
	"LBNodeAgent": {
		plural:  "lbnodeagents",
		spec:    "nodeSelector: {rack: a}\nlocal: {interfaces: [eth1], subnets: [10.7.0.0/24, \"fd07::/64\"]}",
		changed: "nodeSelector: {rack: b}\nlocal: {interfaces: [eth1], subnets: [10.7.0.0/24, \"fd07::/64\"]}",
		status: `
observedGeneration: 1
desiredNodes: 3
readyNodes: 2
nodes: 2/3
speakers: 1/3
conditions: [{type: Ready, status: "False", reason: Progressing, message: 2 of 3,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		columns: []string{
			"Name", "Ready", "Reason", "Nodes", "Speakers", "Interface", "Interfaces", "Age", "+Node Selector", "+Subnets",
			"+Message",
		},
		cells: []string{
			"x", "False", "Progressing", "2/3", "1/3", "default", `["eth1"]`, "", `{"rack":"a"}`,
			`["10.7.0.0/24","fd07::/64"]`, "2 of 3",
		},
		initial: []string{
			"x", "Unknown", "Pending", "<nil>", "<nil>", "default", `["eth1"]`, "", `{"rack":"a"}`,
			`["10.7.0.0/24","fd07::/64"]`, "Not looked at yet",
		},
	},
	"Announcement": {
		plural:  "announcements",
		spec:    "nodeName: node1\nlbNodeAgent: default",
		changed: "nodeName: node1\nlbNodeAgent: other",
		status: `
observedGeneration: 1
announced: 2
desired: 3
failing: 10.0.0.2 Conflict
localAddresses: 10.0.0.1
virtualAddresses: 10.1.0.1
services: a/b
addresses: [{address: 10.0.0.1, state: Announced, epoch: 1, lastTransitionTime: "2026-01-01T00:00:00Z"}]
interfaces: [{name: eth0, mac: "02:00:00:00:00:01", subnets: [10.0.0.9/24], defaultRoute: [IPv4, IPv6],
  gateways: [10.0.0.254]}]
conditions: [{type: Ready, status: "False", reason: Progressing, message: 2 of 3,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		columns: []string{
			"Name", "Ready", "Reason", "Announced", "Desired", "Failing", "Age", "+Node", "+Local", "+Virtual", "+Services",
			"+Watches", "+Asks", "+Message",
		},
		cells: []string{
			"x", "False", "Progressing", "2", "3", "10.0.0.2 Conflict", "", "node1", "10.0.0.1", "10.1.0.1", "a/b", "<nil>",
			"<nil>", "2 of 3",
		},
		initial: []string{
			"x", "Unknown", "Pending", "0", "0", "<nil>", "", "node1", "<nil>", "<nil>", "<nil>", "<nil>", "<nil>",
			"The agent has not reported yet",
		},
	},
	"BGPPeer": {
		plural:  "bgppeers",
		spec:    "peerASN: External\nmyASN: 65001\ndiscover: DefaultGateway",
		changed: "peerASN: 65000\nmyASN: 65001\ndiscover: DefaultGateway",
		status: `
observedGeneration: 1
desiredSessions: 3
establishedSessions: 2
sessions: 2/3
neighbor: DefaultGateway
conditions: [{type: Ready, status: "False", reason: SessionsDown, message: 2/3 sessions,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		columns: []string{"Name", "Ready", "Reason", "Sessions", "Peer ASN", "Neighbor", "Age", "+Message"},
		cells:   []string{"x", "False", "SessionsDown", "2/3", "External", "DefaultGateway", "", "2/3 sessions"},
		initial: []string{"x", "Unknown", "Pending", "<nil>", "External", "<nil>", "", "Not looked at yet"},
	},
	"NodeRouting": {
		plural:  "noderoutings",
		spec:    "nodeName: node1\nlbNodeAgent: default\ninterface: kube-lb0\nrouterID: 10.0.0.1",
		changed: "nodeName: node1\nlbNodeAgent: other\ninterface: kube-lb0\nrouterID: 10.0.0.1",
		status: `
observedGeneration: 1
established: 2
desired: 2
sessionsText: 2/2
networks: 3
drained: true
conditions: [{type: Ready, status: "True", reason: Drained, message: all routes are withdrawn,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`,
		columns: []string{"Name", "Ready", "Reason", "Sessions", "Networks", "Drained", "Age", "+Node", "+Message"},
		cells:   []string{"x", "True", "Drained", "2/2", "3", "true", "", "node1", "all routes are withdrawn"},
		initial: []string{
			"x", "Unknown", "Pending", "<nil>", "0", "<nil>", "", "node1", "The speaker has not reported yet",
		},
	},
}

// statusOf parses a status.
func statusOf(t *testing.T, text string) any {
	t.Helper()
	return object(t, "status:\n"+indent(text)).Object["status"]
}

func TestStatus(t *testing.T) {
	connect(t)
	ctx := context.Background()
	for kind, sample := range samples {
		t.Run(kind, func(t *testing.T) {
			obj := manifest(t, kind, sample.spec)
			obj.Object["status"] = statusOf(t, sample.status)
			if err := api.Create(ctx, obj); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = api.Delete(ctx, obj) })

			// A new object says that nobody has looked at it yet, whatever its
			// author wrote.
			if diff := cmp.Diff([][]string{sample.initial}, table(t, sample.plural, sample.columns)); diff != "" {
				t.Errorf("table of a new object (-want +got):\n%s", diff)
			}

			// A write to the status leaves the spec alone, and the reverse.
			both := func() *unstructured.Unstructured {
				u := manifest(t, kind, sample.changed)
				u.Object["status"] = statusOf(t, sample.status)
				u.SetResourceVersion(obj.GetResourceVersion())
				return u
			}
			before := obj.DeepCopy()
			obj = both()
			if err := api.Status().Update(ctx, obj); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before.Object["spec"], obj.Object["spec"]); diff != "" {
				t.Errorf("a write to status changed spec:\n%s", diff)
			}
			if diff := cmp.Diff(statusOf(t, sample.status), obj.Object["status"]); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if obj.GetGeneration() != 1 {
				t.Errorf("a write to status made the generation %d", obj.GetGeneration())
			}
			if diff := cmp.Diff([][]string{sample.cells}, table(t, sample.plural, sample.columns)); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}

			before = obj.DeepCopy()
			obj = both()
			unstructured.RemoveNestedField(obj.Object, "status")
			if err := api.Update(ctx, obj); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before.Object["status"], obj.Object["status"]); diff != "" {
				t.Errorf("a write to spec changed status:\n%s", diff)
			}
			if obj.GetGeneration() != 2 {
				t.Errorf("a change of spec made the generation %d", obj.GetGeneration())
			}
		})
	}
}

// TestStandbyTable shows who watches whom, and what the watcher says of that.
func TestStandbyTable(t *testing.T) {
	connect(t)
	obj := manifest(t, "Announcement", standingBy(1, 1, ""))
	if err := api.Create(context.Background(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), obj) })
	obj.Object["status"] = statusOf(t, `
announced: 0
desired: 0
conditions: [{type: Ready, status: "False", reason: NoWitness, message: no other node,
  lastTransitionTime: "2026-01-01T00:00:00Z"}]`)
	if err := api.Status().Update(context.Background(), obj); err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{
			obj.GetName(), "False", "NoWitness", "0", "0", "<nil>", "", "node2", "<nil>", "<nil>", "<nil>", "node1", "<nil>",
			"no other node",
		},
	}
	if diff := cmp.Diff(want, table(t, "announcements", samples["Announcement"].columns)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// table fetches the objects of a kind as kubectl does, checks the columns and
// returns the cells. The age is left empty.
func table(t *testing.T, plural string, columns []string) [][]string {
	t.Helper()
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &v1.GroupVersion, "/apis"
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	rc, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	var tbl metav1.Table
	raw, err := rc.Get().Namespace(namespace).Resource(plural).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(context.Background()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &tbl); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range tbl.ColumnDefinitions {
		name := d.Name
		if d.Priority > 0 {
			name = "+" + name
		}
		names = append(names, name)
	}
	if diff := cmp.Diff(columns, names); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	var rows [][]string
	for _, r := range tbl.Rows {
		var cells []string
		for i, c := range r.Cells {
			s := fmt.Sprint(c)
			if i < len(names) && names[i] == "Age" {
				s = ""
			}
			cells = append(cells, s)
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestStatusRules(t *testing.T) {
	connect(t)
	ctx := context.Background()
	const ready = `conditions: [{type: Ready, status: "True", reason: Accepted, message: "", lastTransitionTime: ` +
		`"2026-01-01T00:00:00Z"}]`
	const when = `lastTransitionTime: "2026-01-01T00:00:00Z"`
	groups := func(line string) string {
		return "allocatedIPv4: 0\nallocatedIPv6: 0\navailableIPv4: 0\navailableIPv6: 0\n" + line
	}
	node := func(line string) string { return "announced: 0\ndesired: 0\n" + line }
	long := strings.Repeat("a", 1025)
	for _, row := range []struct {
		kind, name, status string
		refused            []cause
	}{
		{
			"ServiceGroup", "type", groups("type: bgp"),
			[]cause{{"status.type", `supported values: "local", "remote", "netbox"`}},
		},
		{"ServiceGroup", "announce", groups("pools: [{range: a, subnet: a, announce: Both, capacity: 1, allocated: 1}]"),
			[]cause{{"status.pools[0].announce", `supported values: "Local", "Virtual"`}}},
		{
			"ServiceGroup", "131 pools",
			groups("pools:\n" + repeat(131, "- {range: a%d, subnet: a, capacity: 1, allocated: 1}")), nil,
		},
		{
			"ServiceGroup", "132 pools",
			groups("pools:\n" + repeat(132, "- {range: a%d, subnet: a, capacity: 1, allocated: 1}")),
			[]cause{{"status.pools", "131"}},
		},
		{
			"ServiceGroup", "long range", groups("pools: [{range: " + long[:97] + ", subnet: a, capacity: 1, allocated: 1}]"),
			[]cause{{"status.pools[0].range", "96"}},
		},
		{
			"ServiceGroup", "long subnet", groups("pools: [{range: a, subnet: " + long[:44] + ", capacity: 1, allocated: 1}]"),
			[]cause{{"status.pools[0].subnet", "43"}},
		},
		{"ServiceGroup", "long ranges", groups("ranges: " + long), []cause{{"status.ranges", "1024"}}},
		{"ServiceGroup", "no counts", "type: local", []cause{
			{"status.allocatedIPv4", "Required"}, {"status.allocatedIPv6", "Required"},
			{"status.availableIPv4", "Required"}, {"status.availableIPv6", "Required"}}},
		{
			"ServiceGroup", "9 conditions",
			groups("conditions:\n" + repeat(9, `- {type: C%d, status: "True", reason: R, message: "", `+when+`}`)),
			[]cause{{"status.conditions", "8"}},
		},
		{"ServiceGroup", "a condition twice",
			groups(strings.Replace(ready, "]", strings.Replace(ready[len("conditions: ["):], "{", ", {", 1), 1)),
			[]cause{{"status.conditions[1]", "Duplicate"}}},
		{"LBNodeAgent", "no counts", ready, []cause{{"status.desiredNodes", "Required"}, {"status.readyNodes", "Required"}}},
		{
			"LBNodeAgent", "9 conditions",
			"desiredNodes: 0\nreadyNodes: 0\nconditions:\n" +
				repeat(9, `- {type: C%d, status: "True", reason: R, message: "", `+when+`}`),
			[]cause{{"status.conditions", "8"}},
		},
		{"Announcement", "no counts", ready, []cause{{"status.announced", "Required"}, {"status.desired", "Required"}}},
		{"Announcement", "state", node("addresses: [{address: 10.0.0.1, state: Lost, " + when + "}]"),
			[]cause{
				{
					"status.addresses[0].state",
					`supported values: "Pending", "Waiting", "Announced", "Yielded", "Conflict", "Failed"`,
				},
			}},
		{
			"Announcement", "no time", node("addresses: [{address: 10.0.0.1, state: Failed}]"),
			[]cause{{"status.addresses[0].lastTransitionTime", "Required"}},
		},
		{
			"Announcement", "100 addresses",
			node("addresses:\n" + repeat(100, "- {address: 10.0.0.%d, state: Announced, "+when+"}")), nil,
		},
		{
			"Announcement", "101 addresses",
			node("addresses:\n" + repeat(101, "- {address: 10.0.0.%d, state: Announced, "+when+"}")),
			[]cause{{"status.addresses", "100"}},
		},
		{
			"Announcement", "an address twice",
			node("addresses:\n" + strings.Repeat("- {address: 10.0.0.1, state: Announced, "+when+"}\n", 2)),
			[]cause{{"status.addresses[1]", "Duplicate"}},
		},
		{"Announcement", "long texts of an address",
			node("addresses: [{address: " + long[:40] + ", state: Failed, interface: " + long[:16] + ", mac: " + long[:65] +
				", reason: " + long[:65] + ", message: " + long[:513] + ", " + when + "}]"),
			[]cause{{"status.addresses[0].address", "39"}, {"status.addresses[0].interface", "15"}, {
				"status.addresses[0].mac", "64",
			},
				{"status.addresses[0].reason", "64"}, {"status.addresses[0].message", "512"}}},
		{"Announcement", "long lines",
			node("localAddresses: " + long + "\nvirtualAddresses: " + long + "\nservices: " + long),
			[]cause{{"status.localAddresses", "1024"}, {"status.virtualAddresses", "1024"}, {"status.services", "1024"}}},
		{"Announcement", "64 interfaces", node("interfaces:\n" + repeat(64, "- {name: eth%d}")), nil},
		{
			"Announcement", "65 interfaces", node("interfaces:\n" + repeat(65, "- {name: eth%d}")),
			[]cause{{"status.interfaces", "64"}},
		},
		{
			"Announcement", "an interface twice", node("interfaces: [{name: eth0}, {name: eth0}]"),
			[]cause{{"status.interfaces[1]", "Duplicate"}},
		},
		{"Announcement", "default route", node("interfaces: [{name: eth0, defaultRoute: [IPv5]}]"),
			[]cause{{"status.interfaces[0].defaultRoute[0]", `supported values: "IPv4", "IPv6"`}}},
		{
			"Announcement", "65 subnets", node("interfaces:\n- name: eth0\n  subnets:\n" + repeat(65, "  - 10.0.%d.0/24")),
			[]cause{{"status.interfaces[0].subnets", "64"}},
		},
		{
			"Announcement", "a subnet twice", node("interfaces: [{name: eth0, subnets: [10.0.0.0/24, 10.0.0.0/24]}]"),
			[]cause{{"status.interfaces[0].subnets[1]", "Duplicate"}},
		},
		{
			"Announcement", "17 gateways", node("interfaces:\n- name: eth0\n  gateways:\n" + repeat(17, "  - 10.0.0.%d")),
			[]cause{{"status.interfaces[0].gateways", "16"}},
		},
		{"Announcement", "long texts of an interface",
			node(
				"interfaces: [{name: " + long[:16] + ", mac: " + long[:65] + ", subnets: [" + long[:44] + "], gateways: [" +
					long[:40] + "]}]",
			),
			[]cause{
				{"status.interfaces[0].name", "15"}, {"status.interfaces[0].mac", "64"}, {"status.interfaces[0].subnets[0]", "43"},
				{"status.interfaces[0].gateways[0]", "39"},
			}},
		{
			"Announcement", "9 conditions",
			node("conditions:\n" + repeat(9, `- {type: C%d, status: "True", reason: R, message: "", `+when+`}`)),
			[]cause{{"status.conditions", "8"}},
		},
	} {
		t.Run(row.kind+"/"+row.name, func(t *testing.T) {
			obj := manifest(t, row.kind, samples[row.kind].spec)
			if err := api.Create(ctx, obj); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = api.Delete(ctx, obj) })
			updated := obj.DeepCopy()
			updated.Object["status"] = statusOf(t, row.status)
			checkRefused(t, api.Status().Update(ctx, updated, client.DryRunAll), row.refused)
		})
	}
}
