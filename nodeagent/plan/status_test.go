package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

var (
	before = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	now    = metav1.NewTime(time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC))
)

func TestStatus(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	ann := announcement(
		virtual("198.51.100.1", 32), local("192.0.2.10", 24), local("192.0.2.9", 24), local("192.0.2.11", 24),
	)
	ann.Status.Addresses = []purelbv1.AddressStatus{
		{Address: "192.0.2.9", State: purelbv1.StateAnnounced, Epoch: 3, LastTransitionTime: before},
		{Address: "192.0.2.10", State: purelbv1.StatePending, Epoch: 3, LastTransitionTime: before},
		{Address: "192.0.2.11", State: purelbv1.StateAnnounced, Epoch: 3, LastTransitionTime: before},
		{Address: "192.0.2.12", State: purelbv1.StateAnnounced, Epoch: 3, LastTransitionTime: before},
		{Address: "192.0.2.13", State: purelbv1.StateAnnounced, Epoch: 3, LastTransitionTime: before},
	}
	ann.Status.Interfaces = []purelbv1.NodeInterface{{Name: "eth0"}}
	ann.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, LastTransitionTime: before}}
	report := Report{
		Results: map[netip.Addr]Result{
			addr("198.51.100.1"): {State: purelbv1.StateAnnounced, Interface: "kube-lb0"},
			addr("192.0.2.9"):    {State: purelbv1.StateAnnounced, Epoch: 3, Interface: "eth0"},
			addr("192.0.2.10"):   {State: purelbv1.StateAnnounced, Epoch: 3, Interface: "eth0"},
			addr("192.0.2.11"): {
				State: purelbv1.StateConflict, Epoch: 3, MAC: "02:00:00:00:00:02", Reason: ReasonAnswered,
				Message: "somebody answers",
			},
		},
		NotWithdrawn: map[netip.Addr]Result{
			addr("192.0.2.12"): {
				State: purelbv1.StateAnnounced, Interface: "eth0", Reason: ReasonWithdrawFailed, Message: "busy",
			},
			addr("192.0.2.99"): {
				State: purelbv1.StateAnnounced, Interface: "eth0", Reason: ReasonWithdrawFailed, Message: "another Announcement's",
			},
		},
		ReadyNote: "kube-lb0 is of kind ifb",
		FactsIn:   "node1",
		Now:       now,
	}
	message := "3 of 4 addresses announced; 192.0.2.11 Conflict: somebody answers; and 1 more; kube-lb0 is of kind ifb"
	want := purelbv1.AnnouncementStatus{
		ObservedGeneration: 7, Announced: 3, Desired: 4, Failing: "192.0.2.11 Conflict",
		LocalAddresses: "192.0.2.9,192.0.2.10", VirtualAddresses: "198.51.100.1", Services: "test/far,test/kuard",
		Addresses: []purelbv1.AddressStatus{
			{Address: "192.0.2.9", State: "Announced", Epoch: 3, Interface: "eth0", LastTransitionTime: before},
			{Address: "192.0.2.10", State: "Announced", Epoch: 3, Interface: "eth0", LastTransitionTime: now},
			// It was announced under this epoch: Takeover must not count again.
			{
				Address: "192.0.2.11", State: "Conflict", Epoch: 3, MAC: "02:00:00:00:00:02", Reason: "Lost",
				Message: "somebody answers", LastTransitionTime: now,
			},
			{
				Address: "192.0.2.12", State: "Announced", Interface: "eth0", Reason: "WithdrawFailed", Message: "busy",
				LastTransitionTime: before,
			},
			{Address: "198.51.100.1", State: "Announced", Interface: "kube-lb0", LastTransitionTime: now},
		},
		Interfaces: []purelbv1.NodeInterface{{Name: "eth0"}},
		Conditions: []metav1.Condition{
			{
				Type: "Ready", Status: "False", Reason: "Degraded", Message: message, ObservedGeneration: 7,
				LastTransitionTime: before,
			},
			{
				Type: "Stalled", Status: "True", Reason: "Degraded", Message: message, ObservedGeneration: 7,
				LastTransitionTime: now,
			},
		},
	}
	got := Status(&ann, report)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}

	// Said again later, nothing changes: not the mark of the lost address, nor
	// any time.
	ann.Status = got
	report.Now = metav1.NewTime(now.Add(time.Hour))
	if diff := cmp.Diff(got, Status(&ann, report)); diff != "" {
		t.Errorf("said again (-first +second):\n%s", diff)
	}
}

// gatewaysAt are gateways on eth0 with these addresses.
func gatewaysAt(addresses []string) []purelbv1.NodeGateway {
	var gateways []purelbv1.NodeGateway
	for _, a := range addresses {
		gateways = append(gateways, purelbv1.NodeGateway{Interface: "eth0", Address: a})
	}
	return gateways
}

// TestFailing checks which address the table names, and that the longest text fits into the schema.
func TestFailing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, addresses, want string }{
		{"none", "", ""},
		{"all announced", "Announced Announced", ""},
		{"one", "Announced Failed", "2001:db8::1 Failed"},
		{"the first", "Conflict Failed Announced", "2001:db8::0 Conflict, and 1 more"},
		{"Pending comes last", "Pending Waiting Pending", "2001:db8::1 Waiting, and 2 more"},
		{"Pending only", "Announced Pending", "2001:db8::1 Pending"},
	} {
		var addresses []purelbv1.AddressStatus
		for i, state := range strings.Fields(row.addresses) {
			addresses = append(addresses, purelbv1.AddressStatus{
				Address: fmt.Sprintf("2001:db8::%d", i), State: purelbv1.AddressState(state),
			})
		}
		if got := describeFailing(addresses); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	longest := purelbv1.AddressStatus{Address: strings.Repeat("x", 39), State: purelbv1.StateConflict}
	if n := len(describeFailing(slices.Repeat([]purelbv1.AddressStatus{longest}, 100))); n > 128 {
		t.Errorf("%d bytes", n)
	}
}

// The facts are in the status of one Announcement, and others give theirs up only when
// it has been reported.
func TestFacts(t *testing.T) {
	t.Parallel()
	old, latest := []purelbv1.NodeInterface{{Name: "eth0"}}, []purelbv1.NodeInterface{{Name: "eth0", Down: true}}
	for name, tc := range map[string]struct {
		report Report
		want   []purelbv1.NodeInterface
		macs   []string
	}{
		"here": {
			Report{FactsIn: "node1", Interfaces: latest, MACs: []string{"b"}}, latest, []string{"b"},
		},
		"here, not known this time": {Report{FactsIn: "node1"}, old, []string{"a"}},
		"here, there are none": {
			Report{FactsIn: "node1", Interfaces: []purelbv1.NodeInterface{}}, []purelbv1.NodeInterface{}, nil,
		},
		"elsewhere": {Report{FactsIn: "node0", Interfaces: latest, MACs: []string{"b"}}, nil, nil},
		"elsewhere, not reported yet": {
			Report{FactsIn: "node0", OthersKeepFacts: true, Interfaces: latest, MACs: []string{"b"}}, old, []string{"a"},
		},
		"here, never reported so far": {
			Report{FactsIn: "node1", OthersKeepFacts: true, Interfaces: latest, MACs: []string{"b"}}, latest, []string{"b"},
		},
		"elsewhere, and not this time": {Report{FactsIn: "node0"}, nil, nil},
	} {
		ann := announcement()
		ann.Status.Interfaces, ann.Status.MACs = old, []string{"a"}
		ann.Status.Gateways = gatewaysAt(ann.Status.MACs)
		tc.report.Gateways = gatewaysAt(tc.report.MACs)
		got := Status(&ann, tc.report)
		if diff := cmp.Diff(gatewaysAt(tc.macs), got.Gateways); diff != "" {
			t.Errorf("%s: gateways (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tc.want, got.Interfaces); diff != "" {
			t.Errorf("%s: interfaces (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tc.macs, got.MACs); diff != "" {
			t.Errorf("%s: MACs (-want +got):\n%s", name, diff)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, tc := range map[string]struct {
		results map[netip.Addr]Result
		want    []string
	}{
		"not looked at": {nil, []string{"Ready False Progressing", "Reconciling True Progressing"}},
		"all announced": {
			map[netip.Addr]Result{one: {State: purelbv1.StateAnnounced}, two: {State: purelbv1.StateAnnounced}},
			[]string{"Ready True Announced"},
		},
		"one pending": {
			map[netip.Addr]Result{one: {State: purelbv1.StatePending}, two: {State: purelbv1.StateAnnounced}},
			[]string{"Ready False Progressing", "Reconciling True Progressing"},
		},
		"one waits": {
			map[netip.Addr]Result{one: {State: purelbv1.StateWaiting}, two: {State: purelbv1.StateAnnounced}},
			[]string{"Ready False Degraded", "Stalled True Degraded"},
		},
		"pending and failed": {
			map[netip.Addr]Result{one: {State: purelbv1.StatePending}, two: {State: purelbv1.StateFailed}},
			[]string{"Ready False Degraded", "Reconciling True Progressing", "Stalled True Degraded"},
		},
		"renewal failed": {
			map[netip.Addr]Result{
				one: {State: purelbv1.StateAnnounced, Reason: ReasonRenewFailed}, two: {State: purelbv1.StateAnnounced},
			},
			[]string{"Ready False Degraded", "Stalled True Degraded"},
		},
	} {
		ann := announcement(local("192.0.2.1", 24), local("192.0.2.2", 24))
		var got []string
		for _, c := range Status(&ann, Report{Results: tc.results, Now: now}).Conditions {
			got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What became of shared entries: those that are announced count, and the others are listed, as
// far as a status has room.
func TestStatusOfSharedEntries(t *testing.T) {
	t.Parallel()
	announced := func(address string) (netip.Addr, Result) {
		return netip.MustParseAddr(address), Result{State: purelbv1.StateAnnounced, Interface: "kube-lb0"}
	}
	shared := func(revision int64, entries ...purelbv1.AnnouncedAddress) purelbv1.CommonAnnouncement {
		return purelbv1.CommonAnnouncement{Spec: purelbv1.CommonAnnouncementSpec{Revision: revision, Addresses: entries}}
	}
	many := func(n int) (entries []purelbv1.AnnouncedAddress) {
		for i := range n {
			entries = append(entries, virtual(nth(i).String(), 32))
		}
		return entries
	}
	for name, c := range map[string]struct {
		own      []purelbv1.AnnouncedAddress
		shared   []purelbv1.CommonAnnouncement
		listed   int
		revision int64
		columns  string // announced/desired and the Virtual addresses
	}{
		"none": {nil, nil, 0, 0, "0/0 "},
		"all are announced": {
			nil, []purelbv1.CommonAnnouncement{shared(5, virtual("198.51.100.1", 32)), shared(4, virtual("198.51.100.2", 32))},
			0, 5, "2/2 198.51.100.1,198.51.100.2",
		},
		"some are not": {
			nil, []purelbv1.CommonAnnouncement{shared(5, virtual("198.51.100.9", 32), virtual("198.51.100.1", 32))}, 1, 5,
			"1/2 198.51.100.1",
		},
		"its own entry for the same address": {
			[]purelbv1.AnnouncedAddress{virtual("198.51.100.9", 32)}, []purelbv1.CommonAnnouncement{
				shared(5, virtual("198.51.100.9", 32)),
			}, 1, 5, "0/2 ",
		},
		"as many as a status has room for": {nil, []purelbv1.CommonAnnouncement{shared(5, many(100)...)}, 100, 5, "0/100 "},
		"more":                             {nil, []purelbv1.CommonAnnouncement{shared(5, many(101)...)}, 100, 0, "0/101 "},
	} {
		ann := announcement(c.own...)
		ann.Spec.IncludeCommonAnnouncements = true
		results := map[netip.Addr]Result{}
		for _, address := range []string{"198.51.100.1", "198.51.100.2"} {
			addr, result := announced(address)
			results[addr] = result
		}
		got := Status(&ann, Report{Results: results, Shared: c.shared, Now: now})
		if len(got.Addresses) != c.listed || got.CommonAnnouncementsRevision == nil ||
			*got.CommonAnnouncementsRevision != c.revision {
			t.Errorf(
				"%s: %d addresses, revision %v; want %d, %d", name, len(got.Addresses), got.CommonAnnouncementsRevision, c.listed,
				c.revision,
			)
		}
		if columns := fmt.Sprintf("%d/%d %s", got.Announced, got.Desired, got.VirtualAddresses); columns != c.columns {
			t.Errorf("%s: %q, want %q", name, columns, c.columns)
		}
	}
	ann := announcement()
	if got := Status(&ann,
		Report{Shared: []purelbv1.CommonAnnouncement{shared(5,
			many(1)...)}, Now: now}); got.CommonAnnouncementsRevision != nil || got.Desired != 0 {
		t.Errorf("of a node that does not announce them: %+v", got)
	}
}

func TestStrandedAddressesAreListedAsFarAsThereIsRoom(t *testing.T) {
	t.Parallel()
	all := func(netip.Addr) bool { return true }
	for name, c := range map[string]struct {
		entries, stranded int
		takesUnlisted     func(netip.Addr) bool
		want              int
	}{
		"a few":                         {1, 3, all, 3},
		"as many as there is room for":  {0, 100, all, 100},
		"more":                          {2, 101, all, 100},
		"another Announcement's":        {1, 3, func(netip.Addr) bool { return false }, 1},
		"another Announcement's, again": {1, 3, nil, 1},
	} {
		var entries []purelbv1.AnnouncedAddress
		stranded := map[netip.Addr]Result{}
		for i := range c.entries {
			entries = append(entries, virtual(nth(i).String(), 32))
		}
		for i := range c.stranded { // of which the first are desired as well
			stranded[nth(i)] = Result{State: purelbv1.StateAnnounced, Reason: ReasonWithdrawFailed}
		}
		ann := announcement(entries...)
		if got := Status(&ann,
			Report{NotWithdrawn: stranded, TakesUnlisted: c.takesUnlisted, Now: now}); len(got.Addresses) != c.want {
			t.Errorf("%s: %d addresses, want %d", name, len(got.Addresses), c.want)
		}
	}
}

// An address that the node had under this epoch, and has not any more, is marked as lost.
func TestLostAddressesAreMarked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before purelbv1.AddressStatus
		result Result
		want   string
	}{
		"lost": {
			purelbv1.AddressStatus{State: purelbv1.StateAnnounced, Epoch: 3},
			Result{State: purelbv1.StatePending, Reason: ReasonProbing}, "Lost",
		},
		"yielded": {
			purelbv1.AddressStatus{State: purelbv1.StateAnnounced, Epoch: 3},
			Result{State: purelbv1.StateYielded, Reason: ReasonYielded}, "Yielded",
		},
		"contested": {
			purelbv1.AddressStatus{State: purelbv1.StateAnnounced, Epoch: 3},
			Result{State: purelbv1.StateAnnounced, Reason: ReasonContested}, "Contested",
		},
		"under an epoch before": {
			purelbv1.AddressStatus{State: purelbv1.StateAnnounced, Epoch: 2},
			Result{State: purelbv1.StatePending, Reason: ReasonProbing}, "Probing",
		},
		"never had it": {
			purelbv1.AddressStatus{State: purelbv1.StateConflict, Epoch: 3},
			Result{State: purelbv1.StatePending, Reason: ReasonProbing}, "Probing",
		},
		"lost, and still marked": {
			purelbv1.AddressStatus{State: purelbv1.StatePending, Epoch: 3, Reason: ReasonLost},
			Result{State: purelbv1.StateConflict, Reason: ReasonAnswered}, "Lost",
		},
	} {
		ann := announcement(local("192.0.2.1", 24))
		c.before.Address = "192.0.2.1"
		ann.Status.Addresses = []purelbv1.AddressStatus{c.before}
		got := Status(&ann, Report{Results: map[netip.Addr]Result{heldAddr: c.result}, Now: now}).Addresses[0]
		if got.State != c.result.State || got.Reason != c.want {
			t.Errorf("%s: %s %s, want %s", name, got.State, got.Reason, c.want)
		}
	}
}

func TestWhatIsReportedOfAnEntry(t *testing.T) {
	t.Parallel()
	ann := announcement(
		virtual("no address", 32), virtual("2001:db8::1", 128), local("192.0.2.1", 24), virtual("198.51.100.1", 32),
		virtual("also none", 32),
	)
	report := Report{
		Results: map[netip.Addr]Result{
			heldAddr:                            {State: purelbv1.StateAnnounced, Epoch: 3},
			netip.MustParseAddr("198.51.100.1"): {State: purelbv1.StateAnnounced},
		},
		Overrides: map[netip.Addr]Result{
			heldAddr: {State: purelbv1.StateFailed, Epoch: 3, Reason: ReasonAddFailed, Message: strings.Repeat("no ", 1000)},
		},
		Now: now,
	}
	status := Status(&ann, report)
	var got []string
	for _, s := range status.Addresses {
		got = append(got, fmt.Sprintf("%s %s %s %d", s.Address, s.State, s.Reason, len(s.Message)))
	}
	want := []string{
		"also none Failed Invalid 17", "no address Failed Invalid 17", "192.0.2.1 Failed AddFailed 512",
		"198.51.100.1 Announced  0", "2001:db8::1 Pending  0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// What is wrong stands before what is still to come.
	if got := status.Conditions[0].Message; got != "1 of 5 addresses announced; also none Failed: not an IP address; "+
		"and 3 more" {
		t.Errorf("%q", got)
	}
}

func TestMessageOfReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result Result
		want   string
	}{
		"announced": {Result{State: purelbv1.StateAnnounced}, "1 of 1 addresses announced"},
		"pending":   {Result{State: purelbv1.StatePending}, "0 of 1 addresses announced; 192.0.2.1 Pending"},
		"pending, and says": {
			Result{State: purelbv1.StatePending, Message: "why"}, "0 of 1 addresses announced; 192.0.2.1 Pending: why",
		},
	} {
		ann := announcement(local("192.0.2.1", 24))
		got := Status(&ann, Report{Results: map[netip.Addr]Result{heldAddr: c.result}, Now: now}).Conditions
		for _, condition := range got {
			if condition.Message != c.want {
				t.Errorf("%s: %s: %q, want %q", name, condition.Type, condition.Message, c.want)
			}
		}
	}
}

// A condition keeps its time while it has the same status.
func TestConditionsKeepTheirTime(t *testing.T) {
	t.Parallel()
	ann := announcement(local("192.0.2.1", 24))
	ann.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: metav1.ConditionTrue, LastTransitionTime: before},
		{Type: "Reconciling", Status: metav1.ConditionTrue, LastTransitionTime: before},
	}
	for _, c := range Status(&ann, Report{Now: now}).Conditions {
		want := before
		if c.Type == "Ready" { // it was True
			want = now
		}
		if !c.LastTransitionTime.Equal(&want) {
			t.Errorf("%s %s since %s, want %s", c.Type, c.Status, c.LastTransitionTime, want)
		}
	}
}

func TestSettingsOf(t *testing.T) {
	t.Parallel()
	p := func(n int32) *int32 { return &n }
	forever := &purelbv1.InterfaceAddressConfig{ValidLifetime: p(0), PreferredLifetime: p(600)}
	for name, tc := range map[string]struct {
		config *purelbv1.InterfaceAddressConfig
		want   AddressSettings
	}{
		"absent": {
			nil, AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true},
		},
		"valid alone": {
			&purelbv1.InterfaceAddressConfig{ValidLifetime: p(60)},
			AddressSettings{Valid: 60 * time.Second, Preferred: 60 * time.Second, NoPrefixRoute: true},
		},
		"preferred 0 is valid": {
			&purelbv1.InterfaceAddressConfig{ValidLifetime: p(60), PreferredLifetime: p(0)},
			AddressSettings{Valid: 60 * time.Second, Preferred: 60 * time.Second, NoPrefixRoute: true},
		},
		"forever, preferred for a while": {
			forever, AddressSettings{Valid: Forever, Preferred: 600 * time.Second, NoPrefixRoute: true},
		},
		"prefix route": {
			&purelbv1.InterfaceAddressConfig{NoPrefixRoute: new(bool)},
			AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second},
		},
	} {
		agent := &purelbv1.LBNodeAgent{Spec: purelbv1.LBNodeAgentSpec{Local: &purelbv1.LBNodeAgentLocal{
			AddressConfig: &purelbv1.AddressConfig{LocalInterface: tc.config},
		}}}
		if diff := cmp.Diff(tc.want, SettingsOf(agent).Local); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	got := SettingsOf(&purelbv1.LBNodeAgent{})
	want := Settings{
		Selection: Selection{LocalInterface: "default", VirtualInterface: "kube-lb0"},
		Local:     AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true},
		Virtual:   AddressSettings{Valid: Forever, Preferred: Forever},
		Probe:     ProbeSettings{IsEnabled: true, Count: 2, Interval: 100 * time.Millisecond},
		Announce:  AnnounceSettings{IsEnabled: true, Count: 3, Interval: 500 * time.Millisecond},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// What an LBNodeAgent says counts, also where it is 0.
func TestSettingsOfAll(t *testing.T) {
	t.Parallel()
	number := func(n int32) *int32 { return &n }
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	agent := &purelbv1.LBNodeAgent{Spec: purelbv1.LBNodeAgentSpec{Local: &purelbv1.LBNodeAgentLocal{
		LocalInterface: "eth.*", Interfaces: []purelbv1.InterfaceName{"wlan0", "wlan1"}, DummyInterface: "lb0",
		GARPConfig: &purelbv1.GARPConfig{
			Enabled: new(bool), InitialDelay: duration(time.Minute), Count: number(7), Interval: duration(time.Hour),
		},
		ProbeConfig: &purelbv1.ProbeConfig{Enabled: new(bool), Count: number(4), Interval: duration(time.Second)},
		AddressConfig: &purelbv1.AddressConfig{
			LocalInterface: &purelbv1.InterfaceAddressConfig{ValidLifetime: number(60), PreferredLifetime: number(90)},
			DummyInterface: &purelbv1.InterfaceAddressConfig{ValidLifetime: number(600), PreferredLifetime: number(1)},
		},
	}}}
	want := Settings{
		Selection: Selection{LocalInterface: "eth.*", Interfaces: []string{"wlan0", "wlan1"}, VirtualInterface: "lb0"},
		Local:     AddressSettings{Valid: time.Minute, Preferred: time.Minute, NoPrefixRoute: true},
		Virtual:   AddressSettings{Valid: 10 * time.Minute, Preferred: time.Second},
		Probe:     ProbeSettings{Count: 4, Interval: time.Second},
		Announce:  AnnounceSettings{Delay: time.Minute, Count: 7, Interval: time.Hour},
	}
	if diff := cmp.Diff(want, SettingsOf(agent)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSameStatus checks that each field of a status counts, and of each address.
func TestSameStatus(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	status := func() purelbv1.AnnouncementStatus {
		return purelbv1.AnnouncementStatus{
			Addresses: []purelbv1.AddressStatus{{Address: "192.0.2.1", LastTransitionTime: at}, {Address: "192.0.2.2"}},
		}
	}
	sameTime := status()
	sameTime.Addresses[0].LastTransitionTime = metav1.NewTime(at.UTC())
	if !SameStatus(status(), sameTime) {
		t.Error("what says the same differs")
	}
	for what, change := range map[string]func(*purelbv1.AnnouncementStatus){
		"a column":           func(s *purelbv1.AnnouncementStatus) { s.Services = "test/web" },
		"a MAC":              func(s *purelbv1.AnnouncementStatus) { s.MACs = []string{"02:00:00:00:00:01"} },
		"a condition":        func(s *purelbv1.AnnouncementStatus) { s.Conditions = []metav1.Condition{{Type: "Ready"}} },
		"a revision":         func(s *purelbv1.AnnouncementStatus) { s.CommonAnnouncementsRevision = new(int64) },
		"one address less":   func(s *purelbv1.AnnouncementStatus) { s.Addresses = s.Addresses[:1] },
		"an address's state": func(s *purelbv1.AnnouncementStatus) { s.Addresses[1].State = purelbv1.StateAnnounced },
		"an address's epoch": func(s *purelbv1.AnnouncementStatus) { s.Addresses[1].Epoch = 1 },
		"an address's time": func(s *purelbv1.AnnouncementStatus) {
			s.Addresses[0].LastTransitionTime = metav1.NewTime(at.Add(time.Second))
		},
	} {
		changed := status()
		if change(&changed); SameStatus(status(), changed) {
			t.Errorf("%s does not count", what)
		}
	}
}
