package ipam

import (
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

var (
	errAway     = &Error{Reason: v1.ReasonIPAMUnavailable, Message: "no route", Scope: ScopeEndpoint}
	errNoAnswer = &Error{Reason: v1.ReasonIPAMUnavailable, Message: "it answers 500"}
)

// A system that is away is asked for its status, and now and then for something else. One whose
// status is well is asked for a job, also for one that is not due.
func TestWhatIsAskedOfAwaySystem(t *testing.T) {
	for _, row := range []struct {
		name    string
		failure *Error
		isDue   bool // the only job there is
		tried   time.Duration
		want    jobKind
	}{
		{"its status fails, and a job was tried less than a minute ago", errAway, true, trialInterval - 1, checkJob},
		{"its status fails, and a job was tried a minute ago", errAway, true, trialInterval, learnJob},
		{"its status fails, and no job is due", errAway, false, trialInterval, checkJob},
		{"its status is well, and a job was just tried", errNoAnswer, true, 0, learnJob},
		{"its status is well, and no job is due", errNoAnswer, false, 0, learnJob},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			q, e := c.queueOf(group1)
			c.noteAway(e, q, row.failure)
			q.health.wait = 0
			q.health.triedAt = c.now.Add(-row.tried)
			if !row.isDue {
				c.groups[group1].comparisonSchedule.dueAt = c.now.Add(time.Hour)
			}
			got, _ := c.nextJob(e, q)
			if got == nil || got.kind != row.want {
				t.Errorf("got %+v, want kind %d", got, row.want)
			}
		})
	}
}

// A system that is away is asked less and less often while nobody waits, and every 1.2 s or so
// while a Service does. One that refuses the token is asked again after ten seconds or more: somebody
// has to mend it first.
func TestHowLongAwaySystemIsLeftAlone(t *testing.T) {
	forbidden := &Error{Reason: v1.ReasonIPAMRefused, Message: "the token is not valid", Scope: ScopeEndpoint}
	other := &Error{Reason: v1.ReasonOtherInstallation, Message: "the cluster is another one's", Scope: ScopeEndpoint}
	for _, row := range []struct {
		name      string
		failure   *Error
		times     int
		isAwaited bool
		atMost    time.Duration // and at least four fifths of that
	}{
		{"away once", errAway, 1, false, 200 * time.Millisecond},
		{"away twice", errAway, 2, false, 400 * time.Millisecond},
		{"away for long", errAway, 100, false, 30 * time.Second},
		{"away for long, and a Service waits", errAway, 100, true, 1200 * time.Millisecond},
		{"refuses the token once, and a Service waits", forbidden, 1, true, 10 * time.Second},
		{"refuses the token for long, and a Service waits", forbidden, 100, true, 30 * time.Second},
		{"another installation once, and a Service waits", other, 1, true, 10 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			q, e := c.queueOf(group1)
			for range row.times {
				c.noteAway(e, q, row.failure)
			}
			if wait := q.health.notBefore(row.isAwaited).Sub(c.now); wait > row.atMost || wait < row.atMost*8/10 {
				t.Errorf("left alone for %s, want about %s", wait, row.atMost)
			}
		})
	}
}

// When a system is away, a Service says so unless it has an answer of its own. What it says of a
// system that is away for this reason and that, it says for a minute.
func TestAnswersWhileAway(t *testing.T) {
	exhausted, refused := allocation.Offer{Reason: v1.ReasonExhausted}, allocation.Offer{Reason: v1.ReasonIPAMRefused}
	for _, row := range []struct {
		name         string
		group        string
		said         *allocation.Offer
		isOfEndpoint bool
		ago          time.Duration
		want         string
	}{
		{"nothing was said", group1, nil, false, 0, errAway.Reason},
		{"an answer of its own", group1, &exhausted, false, time.Hour, exhausted.Reason},
		{"away for another reason for less than a minute", group1, &refused, true, detailInterval - 1, refused.Reason},
		{"away for another reason for a minute", group1, &refused, true, detailInterval, errAway.Reason},
		{"of another system", groupElsewhere, nil, false, 0, ""},
		{"of a group that is not configured", "new", nil, false, 0, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1, groupElsewhere)
			_, request := c.requestOf("web", row.group)
			if row.said != nil {
				c.said(request, *row.said, row.ago)
				request.isOfEndpoint = row.isOfEndpoint
			}
			q, e := c.queueOf(group1)
			c.noteAway(e, q, errAway)
			if request.offer.Reason != row.want {
				t.Errorf("got %+v, want %q", request.offer, row.want)
			}
		})
	}
}

// A system whose status is well is away when three jobs in a row go unanswered, among them a
// comparison. If none is, the group is compared soon. However many go unanswered, a few are
// remembered.
func TestSystemThatAnswersNoJob(t *testing.T) {
	for _, row := range []struct {
		name       string
		kinds      []jobKind
		isOneJob   bool
		isAway     bool
		isCompared bool
		remembered int
	}{
		{"two", []jobKind{compareJob, requestJob}, false, false, false, 2},
		{"three with a comparison", []jobKind{requestJob, compareJob, repairJob}, false, true, false, 3},
		{"three with the first comparison", []jobKind{learnJob, requestJob, requestJob}, false, true, false, 3},
		{"three without a comparison", []jobKind{requestJob, releaseJob, repairJob}, false, false, true, 3},
		{"one three times", []jobKind{compareJob, compareJob, compareJob}, true, false, false, 1},
		{
			"many without a comparison", []jobKind{requestJob, requestJob, requestJob, requestJob, requestJob}, false, false,
			true, 3,
		},
		{
			"many, and then a comparison", []jobKind{requestJob, requestJob, requestJob, requestJob, compareJob}, false, true,
			true, 4,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			q, e := c.queueOf(group1)
			g := c.groups[group1]
			g.comparisonSchedule.dueAt = c.now.Add(time.Hour)
			jobs := map[bool]*schedule{true: {}}
			for _, kind := range row.kinds {
				if jobs[false] = (&schedule{}); row.isOneJob {
					jobs[false] = jobs[true]
				}
				c.noteUnanswered(e, q, &job{kind: kind, group: group1, state: g, schedule: jobs[false]}, errNoAnswer)
			}
			if isAway := q.health.failure != nil; isAway != row.isAway {
				t.Errorf("away: %v", isAway)
			}
			if isCompared := c.isDue(&g.comparisonSchedule); isCompared != row.isCompared {
				t.Errorf("compared soon: %v", isCompared)
			}
			if n := len(q.health.unanswered); n != row.remembered {
				t.Errorf("%d jobs are remembered, want %d", n, row.remembered)
			}
		})
	}
}

// When a system is back, its groups are compared, and those are asked for who say that it is
// away. A request that says something else waits for its time, as do those of other systems.
func TestSystemIsBack(t *testing.T) {
	unavailable := allocation.Offer{Reason: v1.ReasonIPAMUnavailable}
	exhausted := allocation.Offer{Reason: v1.ReasonExhausted}
	for _, row := range []struct {
		name    string
		wasAway bool
		group   string
		said    *allocation.Offer
		want    bool
	}{
		{"says that it is away", true, group1, &unavailable, true},
		{"of another group of the system", true, group2, &unavailable, true},
		{"says something else", true, group1, &exhausted, false},
		{"says nothing", true, group1, nil, false},
		{"of another system", true, groupElsewhere, &unavailable, false},
		{"of a group that is not configured", true, "new", &unavailable, false},
		{"it was never away", false, group1, &unavailable, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1, group2, groupElsewhere)
			_, request := c.requestOf("web", row.group)
			if row.said != nil {
				c.said(request, *row.said, 0)
			}
			request.dueAt = c.now.Add(time.Hour)
			for _, g := range c.groups {
				g.comparisonSchedule.dueAt = c.now.Add(time.Hour)
			}
			q, e := c.queueOf(group1)
			if row.wasAway {
				q.health.failure = errAway
			}
			c.noteAnswer(e, q)
			if isDue := c.isDue(&request.schedule); isDue != row.want {
				t.Errorf("the request is asked for: %v", isDue)
			}
			for group, isCompared := range map[string]bool{group1: row.wasAway, group2: row.wasAway, groupElsewhere: false} {
				if isDue := c.isDue(&c.groups[group].comparisonSchedule); isDue != isCompared {
					t.Errorf("%s is compared: %v", group, isDue)
				}
			}
		})
	}
}

// A ServiceGroup says at once when the reason changes, and after a minute when only the message
// does. What is wrong with the system comes before what is wrong with the group.
func TestWhatGroupSays(t *testing.T) {
	const netbox = "https://netbox"
	well := &Error{Reason: v1.ReasonReachable, Message: "NetBox " + netbox + " answers"}
	ofGroup := &Error{Reason: v1.ReasonIPAMRefused, Message: "the token may not view ranges", Scope: ScopeGroup}
	other := &Error{Reason: v1.ReasonIPAMUnavailable, Message: "it answers 502", Scope: ScopeEndpoint}
	refused := &Error{Reason: v1.ReasonIPAMRefused, Message: errAway.Message}
	for _, row := range []struct {
		name          string
		said          *Error // or nil for nothing
		ago           time.Duration
		system, group *Error
		want          *Error
		isChange      bool
	}{
		{"nothing was said", nil, 0, nil, nil, well, true},
		{"as before", well, time.Hour, nil, nil, well, false},
		{"another reason", well, 0, errAway, nil, errAway, true},
		{"another reason with the same message", refused, 0, errAway, nil, errAway, true},
		{"another message in less than a minute", errAway, detailInterval - 1, other, nil, errAway, false},
		{"another message after a minute", errAway, detailInterval, other, nil, other, true},
		{"the group fails", well, 0, nil, ofGroup, ofGroup, true},
		{"both fail", well, 0, errAway, ofGroup, errAway, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			q, _ := c.queueOf(group1)
			g := c.groups[group1]
			if row.said != nil {
				g.observation.Reason, g.observation.Message = row.said.Reason, row.said.Message
				g.observedAt = c.now.Add(-row.ago)
			}
			q.health.failure, g.comparisonFailure = row.system, row.group
			c.noteObservation(group1, g, q)
			if o := g.observation; o.Reason != row.want.Reason || o.Message != row.want.Message {
				t.Errorf("got %s: %s, want %s: %s", o.Reason, o.Message, row.want.Reason, row.want.Message)
			}
			if isChange := c.observed[group1] > 0; isChange != row.isChange {
				t.Errorf("a change: %v", isChange)
			}
		})
	}
}

// A Service says at once when the reason changes. When only the message does, it says so after
// some time: later if the system is away, since the ServiceGroup has the details.
func TestWhatServiceSays(t *testing.T) {
	inUse := func(message string) *Error { return &Error{Reason: v1.ReasonAddressInUse, Message: message} }
	away := func(message string) *Error { return &Error{Reason: v1.ReasonIPAMUnavailable, Message: message} }
	for _, row := range []struct {
		name    string
		said    *Error // or nil for nothing
		ago     time.Duration
		failure *Error
		want    bool
	}{
		{"nothing was said", nil, 0, inUse("it is b's"), true},
		{"as before", inUse("it is b's"), 24 * time.Hour, inUse("it is b's"), false},
		{"another reason", away("it is b's"), 0, inUse("it is b's"), true},
		{"another reason, after long", away("it is b's"), 24 * time.Hour, inUse("it is b's"), true},
		{"another message in less than two minutes", inUse("it is b's"), 2*time.Minute - 1, inUse("it is c's"), false},
		{"another message after two minutes", inUse("it is b's"), 2 * time.Minute, inUse("it is c's"), true},
		{"away, with another message in less than half an hour", away("502"), 30*time.Minute - 1, away("503"), false},
		{"away, with another message after half an hour", away("502"), 30 * time.Minute, away("503"), true},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			key, request := c.requestOf("web", group1)
			if row.said != nil {
				c.said(request, allocation.Offer{Reason: row.said.Reason, Message: row.said.Message}, row.ago)
			}
			before := request.offer
			c.noteNoAddress(key, request, row.failure)
			want := before
			if row.want {
				want.Reason, want.Message = row.failure.Reason, row.failure.Message
			}
			if request.offer != want {
				t.Errorf("got %+v, want %+v", request.offer, want)
			}
			if isChange := c.answered["web"] > 0 && c.observed[group1] > 0; isChange != row.want {
				t.Errorf("a change: %v", isChange)
			}
		})
	}
}
