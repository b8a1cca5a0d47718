package plan

import (
	"fmt"
	"net/netip"
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
	ann := announcement(virtual("198.51.100.1", 32), local("192.0.2.10", 24), local("192.0.2.9", 24), local("192.0.2.11", 24))
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
			addr("192.0.2.11"):   {State: purelbv1.StateConflict, Epoch: 3, MAC: "02:00:00:00:00:02", Reason: ReasonAnswered, Message: "somebody answers"},
		},
		Stranded: map[netip.Addr]Result{
			addr("192.0.2.12"): {State: purelbv1.StateAnnounced, Interface: "eth0", Reason: ReasonWithdrawFailed, Message: "busy"},
			addr("192.0.2.99"): {State: purelbv1.StateAnnounced, Interface: "eth0", Reason: ReasonWithdrawFailed, Message: "another Announcement's"},
		},
		Note: "kube-lb0 is of kind ifb",
		Now:  now,
	}
	message := "3 of 4 addresses announced; 192.0.2.11 Conflict: somebody answers; and 1 more; kube-lb0 is of kind ifb"
	want := purelbv1.AnnouncementStatus{
		ObservedGeneration: 7, Announced: 3, Desired: 4,
		LocalAddresses: "192.0.2.9,192.0.2.10", VirtualAddresses: "198.51.100.1", Services: "test/far,test/kuard",
		Addresses: []purelbv1.AddressStatus{
			{Address: "192.0.2.9", State: "Announced", Epoch: 3, Interface: "eth0", LastTransitionTime: before},
			{Address: "192.0.2.10", State: "Announced", Epoch: 3, Interface: "eth0", LastTransitionTime: now},
			// It was announced under this epoch: Takeover must not count again.
			{Address: "192.0.2.11", State: "Conflict", Epoch: 3, MAC: "02:00:00:00:00:02", Reason: "Lost", Message: "somebody answers", LastTransitionTime: now},
			{Address: "192.0.2.12", State: "Announced", Interface: "eth0", Reason: "WithdrawFailed", Message: "busy", LastTransitionTime: before},
			{Address: "198.51.100.1", State: "Announced", Interface: "kube-lb0", LastTransitionTime: now},
		},
		Interfaces: []purelbv1.NodeInterface{{Name: "eth0"}},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: "False", Reason: "Degraded", Message: message, ObservedGeneration: 7, LastTransitionTime: before},
			{Type: "Stalled", Status: "True", Reason: "Degraded", Message: message, ObservedGeneration: 7, LastTransitionTime: now},
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

func TestReady(t *testing.T) {
	t.Parallel()
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, tc := range map[string]struct {
		results map[netip.Addr]Result
		want    []string
	}{
		"not looked at":      {nil, []string{"Ready False Progressing", "Reconciling True Progressing"}},
		"all announced":      {map[netip.Addr]Result{one: {State: purelbv1.StateAnnounced}, two: {State: purelbv1.StateAnnounced}}, []string{"Ready True Announced"}},
		"one pending":        {map[netip.Addr]Result{one: {State: purelbv1.StatePending}, two: {State: purelbv1.StateAnnounced}}, []string{"Ready False Progressing", "Reconciling True Progressing"}},
		"one waits":          {map[netip.Addr]Result{one: {State: purelbv1.StateStandby}, two: {State: purelbv1.StateAnnounced}}, []string{"Ready False Degraded", "Stalled True Degraded"}},
		"pending and failed": {map[netip.Addr]Result{one: {State: purelbv1.StatePending}, two: {State: purelbv1.StateFailed}}, []string{"Ready False Degraded", "Reconciling True Progressing", "Stalled True Degraded"}},
		"renewal failed":     {map[netip.Addr]Result{one: {State: purelbv1.StateAnnounced, Reason: ReasonRenewFailed}, two: {State: purelbv1.StateAnnounced}}, []string{"Ready False Degraded", "Stalled True Degraded"}},
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

func TestLine(t *testing.T) {
	t.Parallel()
	for n := range 300 {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf("2001:db8:%x::%x", n*7919, i))
		}
		got := line(items)
		if len(got) > maxLine {
			t.Fatalf("%d items: %d bytes", n, len(got))
		}
		listed, rest, cut := strings.Cut(got, " and ")
		shown := 0
		if listed != "" {
			shown = strings.Count(listed, ",") + 1
		}
		if cut && rest != fmt.Sprintf("%d more", n-shown) || !cut && shown != n {
			t.Fatalf("%d items: %d listed, then %q", n, shown, rest)
		}
	}
	if got := line([]string{strings.Repeat("x", 2000)}); got != "1 more" {
		t.Errorf("an item too long for the line: %q", got)
	}
}

func TestTruncate(t *testing.T) {
	t.Parallel()
	for n := 3; n < 20; n++ {
		if got := truncate(strings.Repeat("ü", 20), n); len(got) > n || strings.ContainsRune(got, '\uFFFD') {
			t.Errorf("truncate to %d: %q", n, got)
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
		"absent":                         {nil, AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second, NoPrefixRoute: true}},
		"valid alone":                    {&purelbv1.InterfaceAddressConfig{ValidLifetime: p(60)}, AddressSettings{Valid: 60 * time.Second, Preferred: 60 * time.Second, NoPrefixRoute: true}},
		"preferred 0 is valid":           {&purelbv1.InterfaceAddressConfig{ValidLifetime: p(60), PreferredLifetime: p(0)}, AddressSettings{Valid: 60 * time.Second, Preferred: 60 * time.Second, NoPrefixRoute: true}},
		"forever, preferred for a while": {forever, AddressSettings{Valid: Forever, Preferred: 600 * time.Second, NoPrefixRoute: true}},
		"prefix route":                   {&purelbv1.InterfaceAddressConfig{NoPrefixRoute: new(bool)}, AddressSettings{Valid: 300 * time.Second, Preferred: 300 * time.Second}},
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
		Probe:     ProbeSettings{Enabled: true, Count: 2, Interval: 100 * time.Millisecond},
		Announce:  AnnounceSettings{Enabled: true, Count: 3, Interval: 500 * time.Millisecond},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}
