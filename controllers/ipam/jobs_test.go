package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// stubSystem is a System that does all that it is asked for, and does not remember it.
type stubSystem struct {
	System
	token     string
	allocated []netip.Addr
}

func (s *stubSystem) Allocate(_ context.Context, r Request) (netip.Addr, error) {
	s.allocated = append(s.allocated, r.Address)
	return r.Address, nil
}

// Release releases whatever it is asked for.
func (s *stubSystem) Release(context.Context, netip.Addr) error { return nil }

var (
	address1 = netip.MustParseAddr("10.0.0.1")
	address2 = netip.MustParseAddr("10.0.0.2")
)

// The Secret with the token is read unless that was done in the last minute, and a system is
// connected anew when it has another token. A token that cannot be read goes on being used; one
// that was taken away does not.
func TestTokenOfSystem(t *testing.T) {
	gone := &Error{Reason: v1.ReasonIPAMUnavailable, Message: "there is no Secret", Scope: ScopeEndpoint}
	unreadable := errors.New("the API server is away")
	for _, row := range []struct {
		name      string
		known     string // the token that is used; empty for none
		ago       time.Duration
		read      string
		readError error
		reads     int
		connects  []string
		want      string // empty for an error
		next      string // the token that is known afterwards
	}{
		{"none is known", "", time.Hour, "new", nil, 1, []string{"new"}, "new", "new"},
		{"read a minute ago", "old", maxTokenAge, "new", nil, 0, nil, "old", "old"},
		{"read more than a minute ago, the same", "old", maxTokenAge + 1, "old", nil, 1, nil, "old", "old"},
		{"read more than a minute ago, another one", "old", maxTokenAge + 1, "new", nil, 1, []string{"new"}, "new", "new"},
		{"cannot be read", "old", maxTokenAge + 1, "", unreadable, 1, nil, "old", "old"},
		{"cannot be read, and none is known", "", maxTokenAge + 1, "", unreadable, 1, nil, "", ""},
		{"taken away", "old", maxTokenAge + 1, "", gone, 1, nil, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			c.stub.token, c.stub.tokenError = row.read, row.readError
			var connects []string
			c.NewSystem = func(_ string, _ *allocation.Netbox, token string, _ types.UID) (System, error) {
				connects = append(connects, token)
				return &stubSystem{token: token}, nil
			}
			q, _ := c.queueOf(group1)
			g := c.groups[group1]
			q.token, q.tokenReadAt = row.known, c.now.Add(-row.ago)
			if row.known != "" {
				g.system, g.token = &stubSystem{token: row.known}, row.known
			}
			got, err := c.systemFor(t.Context(), q, &job{group: group1, state: g})
			if isKnown := err == nil; isKnown != (row.want != "") || isKnown && got.(*stubSystem).token != row.want {
				t.Errorf("got %+v, %v", got, err)
			}
			if c.stub.tokenReads != row.reads || !slices.Equal(connects, row.connects) || q.token != row.next {
				t.Errorf("%d reads, connected with %q, known is %q", c.stub.tokenReads, connects, q.token)
			}
		})
	}
}

// When an address has been released, the requests are asked for that wait for it, or for any of its
// family.
func TestWhatIsAskedForReleasedAddress(t *testing.T) {
	for _, row := range []struct {
		name    string
		request allocation.IPAMRequest
		want    bool
	}{
		{"for this address", allocation.IPAMRequest{Group: group1, Family: allocation.IPv4, Address: address1}, true},
		{"for any address", allocation.IPAMRequest{Group: group1, Family: allocation.IPv4}, true},
		{"for another address", allocation.IPAMRequest{Group: group1, Family: allocation.IPv4, Address: address2}, false},
		{"for any of the other family", allocation.IPAMRequest{Group: group1, Family: allocation.IPv6}, false},
		{"of another group", allocation.IPAMRequest{Group: group2, Family: allocation.IPv4, Address: address1}, false},
		{"of another group, for any address", allocation.IPAMRequest{Group: group2, Family: allocation.IPv4}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1, group2)
			c.SetRequests(ownerNamed("web"), []allocation.IPAMRequest{row.request})
			request := c.requests[requestKey{ownerNamed("web").UID, row.request}]
			waits := &request.schedule
			if !row.request.Address.IsValid() {
				request.pause = c.pauseOf(c.groups[row.request.Group], row.request.Family)
				waits = request.pause
			}
			waits.dueAt = c.now.Add(time.Hour)
			c.hastenRequestsFor(group1, c.groups[group1], address1)
			if isDue := c.isDue(waits); isDue != row.want {
				t.Errorf("asked for: %v", isDue)
			}
		})
	}
}

// A foreign record is not reported while it may be that of another ServiceGroup with the same
// system.
func TestRecordsOfOtherGroups(t *testing.T) {
	ranges := func(a netip.Addr) *Report { return &Report{Ranges: []Range{{Addrs: netipx.IPRangeFrom(a, a)}}} }
	requested := func(c *clocked, a netip.Addr) *requestState {
		request := allocation.IPAMRequest{Group: group2, Family: allocation.IPv4, Address: a}
		c.SetRequests(ownerNamed("web"), []allocation.IPAMRequest{request})
		return c.requests[requestKey{ownerNamed("web").UID, request}]
	}
	for _, row := range []struct {
		name string
		have func(*clocked)
		want bool
	}{
		{"nothing is known of it", func(*clocked) {}, false},
		{"it is to be released", func(c *clocked) { c.QueueRelease(group2, address1) }, true},
		{"another one is to be released", func(c *clocked) { c.QueueRelease(group2, address2) }, false},
		{"a Service asks for it", func(c *clocked) { requested(c, address1) }, true},
		{"a Service asks for another one", func(c *clocked) { requested(c, address2) }, false},
		{"a Service is offered it", func(c *clocked) {
			c.said(requested(c, netip.Addr{}), allocation.Offer{Address: address1}, 0)
		}, true},
		{"a Service is offered another one", func(c *clocked) {
			c.said(requested(c, netip.Addr{}), allocation.Offer{Address: address2}, 0)
		}, false},
		{"a range of another group has it", func(c *clocked) {
			c.groups[group2].observation.Report = ranges(address1)
		}, true},
		{"the ranges of another group are not known", func(c *clocked) { c.groups[group2].observation.Report = nil }, true},
		{"a range of another system has it", func(c *clocked) {
			c.groups[groupElsewhere].observation.Report = ranges(address1)
		}, false},
		{"a range of the group has it", func(c *clocked) { c.groups[group1].observation.Report = ranges(address1) }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1, group2, groupElsewhere)
			for _, g := range c.groups {
				g.observation.Report = ranges(address2)
			}
			row.have(c)
			if got := c.isOfAnotherGroup(group1, address1); got != row.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A record is not released while a Service asks the same system for its address, or is offered it, by whichever
// ServiceGroup.
func TestWhoNeedsAddress(t *testing.T) {
	for _, row := range []struct {
		name, group string
		asked       netip.Addr
		isOffered   bool
		want        bool
	}{
		{"of the group", group1, address1, false, true},
		{"of another group", group2, address1, false, true},
		{"of another group, another one", group2, address2, false, false},
		{"of another system", groupElsewhere, address1, false, false},
		{"offered by the group", group1, address1, true, true},
		{"offered by another group", group2, address1, true, true},
		{"offered by another system", groupElsewhere, address1, true, false},
		{"of a group that is not known yet", "new", address1, false, true},
	} {
		c := newClocked(group1, group2, groupElsewhere)
		request := allocation.IPAMRequest{Group: row.group, Family: allocation.IPv4}
		if !row.isOffered {
			request.Address = row.asked
		}
		c.SetRequests(ownerNamed("web"), []allocation.IPAMRequest{request})
		if row.isOffered {
			c.said(c.requests[requestKey{ownerNamed("web").UID, request}], allocation.Offer{Address: row.asked}, 0)
		}
		if got := c.isNeeded(group1, address1); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

// TestReleaseEndsRepair has an address that was to be recorded for a Service that gives it up: it is recorded no more
// once it is released. If another Service has it, too, it is not released, and recorded.
func TestReleaseEndsRepair(t *testing.T) {
	for isShared, want := range map[bool]int{false: 1, true: 2} {
		c := newClocked(group1)
		c.noteMissing(group1, []Missing{{Address: address1}, {Address: address2}}, c.now)
		c.repairs[recordKey{group1, address1}].reportedFor = v1.ReasonIPAMRefused
		c.noteDifference(group1, address1, Owner{}, "not recorded")
		c.stub.inUse[address1] = isShared
		c.QueueRelease(group1, address1)
		j := &job{
			kind: releaseJob, group: group1, state: c.groups[group1], address: address1,
			release: c.releases[recordKey{group1, address1}],
		}
		conclude, err := c.runRelease(t.Context(), j, &stubSystem{})
		if err != nil {
			t.Fatal(err)
		}
		conclude(nil)
		if len(c.repairs) != want || c.repairs[recordKey{group1, address2}] == nil ||
			len(c.groups[group1].observation.Differences) != want-1 {
			t.Errorf("shared %t: repairs %v, %v", isShared, c.repairs, c.groups[group1].observation.Differences)
		}
	}
}

// An address that a Service has is recorded again. That is reported, unless the record is only
// handed on among those who share the address.
func TestRepairIsReported(t *testing.T) {
	const lost = "10.0.0.1 was not recorded as test/web's: it is again"
	for _, row := range []struct {
		name                string
		isInUse, isHandedOn bool
		asked               int
		want                []string
	}{
		{"the record was lost", true, false, 1, []string{lost}},
		{"the owner shares it no more", true, true, 1, nil},
		{"no Service has it any more", false, false, 0, nil},
		{"no Service has it any more that shared it", false, true, 0, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, system := newClocked(group1), &stubSystem{}
			c.stub.inUse[address1] = row.isInUse
			key := recordKey{group1, address1}
			missing := Missing{Address: address1, Owner: ownerNamed("web"), HasOtherRecord: row.isHandedOn}
			c.repairs[key] = &pendingRepair{recordChange: c.newRecordChange(c.now), missing: missing}
			j := &job{kind: repairJob, group: group1, state: c.groups[group1], repair: c.repairs[key], address: address1}
			conclude, err := c.runRepair(t.Context(), j, system)
			conclude(errorOf(err))
			if !slices.Equal(c.found, row.want) || len(system.allocated) != row.asked {
				t.Errorf("reported %q, asked for %v", c.found, system.allocated)
			}
			if len(c.repairs) != 0 {
				t.Error("the repair is left")
			}
		})
	}
}

// What is not done about a record is tried again soon if the system has not answered, and after
// the next comparison if it has refused. It is reported when it is refused, or goes unanswered
// twice, and then once in some time.
func TestRecordFailure(t *testing.T) {
	no := &Error{Reason: v1.ReasonIPAMRefused, Message: "no"}
	never := &Error{Reason: v1.ReasonIPAMRefused, Message: "never"}
	for _, row := range []struct {
		name     string
		failures []*Error
		interval time.Duration // between two of them
		within   time.Duration // of the next attempt
		want     []string
	}{
		{"unanswered once", []*Error{errNoAnswer}, 0, minJobRetry, nil},
		{"unanswered twice", []*Error{errNoAnswer, errNoAnswer}, 0, 2 * minJobRetry, []string{errNoAnswer.Message}},
		{"refused", []*Error{no}, 0, syncInterval, []string{"no"}},
		{"refused twice", []*Error{no, no}, time.Hour, syncInterval, []string{"no"}},
		{"refused twice in other words", []*Error{no, never}, messageInterval - 1, syncInterval, []string{"no"}},
		{"refused in other words later", []*Error{no, never}, messageInterval, syncInterval, []string{"no", "never"}},
		{"refused, and then unanswered", []*Error{no, errNoAnswer}, 0, 2 * minJobRetry, []string{"no", errNoAnswer.Message}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			c.QueueRelease(group1, address1)
			r := c.releases[recordKey{group1, address1}]
			j := &job{kind: releaseJob, group: group1, state: c.groups[group1], release: r, address: address1}
			for i, failure := range row.failures {
				if i > 0 {
					c.now = c.now.Add(row.interval)
				}
				c.noteRecordFailure(j, &r.recordChange, Owner{}, "", failure)
			}
			if wait := r.dueAt.Sub(c.now); wait > row.within || wait < row.within*8/10 {
				t.Errorf("tried again after %s, want about %s", wait, row.within)
			}
			if !slices.Equal(c.found, row.want) {
				t.Errorf("reported %q, want %q", c.found, row.want)
			}
		})
	}
}
