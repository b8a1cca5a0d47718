package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestWithhold(t *testing.T) {
	t.Parallel()
	seen := func(reason string, ago time.Duration) purelbv1.AddressStatus {
		return purelbv1.AddressStatus{Address: "192.0.2.1", State: purelbv1.StateAnnounced, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-ago))}
	}
	observed := func(ann purelbv1.Announcement) purelbv1.Announcement {
		ann.Status.ObservedGeneration = 1
		return ann
	}
	const held, removed = true, false
	for name, tc := range map[string]struct {
		announcements []purelbv1.Announcement
		want          bool
		wait          time.Duration
	}{
		"never reported":               {[]purelbv1.Announcement{announcement()}, held, patience},
		"one of two never reported":    {[]purelbv1.Announcement{observed(announcement()), announcement()}, held, patience},
		"reported, in no status":       {[]purelbv1.Announcement{observed(announcement())}, removed, 0},
		"known, and another is new":    {[]purelbv1.Announcement{observed(reported(announcement(), seen("", 0))), announcement()}, removed, 0},
		"known":                        {[]purelbv1.Announcement{observed(reported(announcement(), seen("", 0)))}, removed, 0},
		"could not be withdrawn":       {[]purelbv1.Announcement{observed(reported(announcement(), seen(ReasonWithdrawFailed, 0)))}, removed, 0},
		"said a moment ago":            {[]purelbv1.Announcement{observed(reported(announcement(), seen(ReasonWithdrawing, time.Second)))}, held, time.Second},
		"said long enough ago":         {[]purelbv1.Announcement{observed(reported(announcement(), seen(ReasonWithdrawing, patience)))}, removed, 0},
		"said in the future":           {[]purelbv1.Announcement{observed(reported(announcement(), seen(ReasonWithdrawing, -time.Hour)))}, removed, 0},
		"asked for, somewhere else":    {[]purelbv1.Announcement{announcement(local("192.0.2.1", 25))}, removed, 0},
		"no Announcement that matters": {nil, removed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := SettingsOf(&purelbv1.LBNodeAgent{})
			desired, _ := Merge(tc.announcements, nil)
			p := Diff(settings, desired, Observed{Links: []Link{{Name: "eth0", Up: true}}, Addresses: []Address{on("eth0", "192.0.2.1/24", left(time.Second))}}, true)
			got, wait := p.Withhold(settings, tc.announcements, now.Time)
			_, withheld := got[netip.MustParseAddr("192.0.2.1")]
			kind := Remove
			if tc.want == held {
				kind = Renew // it is not to fade out meanwhile
			}
			if withheld != tc.want || wait != tc.wait || p.Operations[0].Kind != kind {
				t.Errorf("withheld %v for %v: %s", withheld, wait, p.Operations[0].Kind)
			}
		})
	}
}

// What is withheld is in the status of the Announcements that are new, until it
// is withdrawn.
func TestStatusOfWithheld(t *testing.T) {
	t.Parallel()
	report := Report{Now: now, Stranded: map[netip.Addr]Result{
		netip.MustParseAddr("192.0.2.2"): {State: purelbv1.StateAnnounced, Interface: "eth0", Reason: ReasonWithdrawing, Message: "later"},
	}}
	ann := announcement(local("192.0.2.1", 24))
	report.Results = map[netip.Addr]Result{netip.MustParseAddr("192.0.2.1"): {State: purelbv1.StateAnnounced, Epoch: 3, Interface: "eth0"}}
	got := Status(&ann, report)
	message := "1 of 1 addresses announced; 192.0.2.2 Announced: later"
	want := purelbv1.AnnouncementStatus{
		ObservedGeneration: 7, Announced: 1, Desired: 1, LocalAddresses: "192.0.2.1", Services: "test/kuard",
		Addresses: []purelbv1.AddressStatus{
			{Address: "192.0.2.1", State: "Announced", Epoch: 3, Interface: "eth0", LastTransitionTime: now},
			{Address: "192.0.2.2", State: "Announced", Interface: "eth0", Reason: "Withdrawing", Message: "later", LastTransitionTime: now},
		},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: "False", Reason: "Progressing", Message: message, ObservedGeneration: 7, LastTransitionTime: now},
			{Type: "Reconciling", Status: "True", Reason: "Progressing", Message: message, ObservedGeneration: 7, LastTransitionTime: now},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	ann.Status = got
	if diff := cmp.Diff(want, Status(&ann, report)); diff != "" {
		t.Errorf("said again (-want +got):\n%s", diff)
	}
	other := announcement()
	other.Status.ObservedGeneration = 1
	if got := Status(&other, report).Addresses; len(got) > 0 {
		t.Errorf("another Announcement that was reported before: %v", got)
	}
}
