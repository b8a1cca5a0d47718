package ipam_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// brokerWorld is a Broker with systems in memory, and a cluster of Services. Its time is
// simulated.
type brokerWorld struct {
	t       *testing.T
	broker  *ipam.Broker
	mu      sync.Mutex
	systems map[string]*ipamtest.Memory // by URL
	// byTenant are the URLs of systems that groups with a tenant use instead of their own.
	byTenant map[string]string
	// delay is how long a system takes for a request, by URL, and asked counts requests.
	delay map[string]time.Duration
	asked map[string]int
	// questions counts requests by group and method, and fault, if set, may answer them.
	questions map[string]int
	fault     func(question) error
	// held are the addresses that Services hold, by group.
	held map[string]map[netip.Addr][]ipam.Owner
	// onIsInUse, if set, is called once when the Broker asks whether an address is in use.
	onIsInUse func()
	// token is what the Secret holds, or empty if reading it gives tokenError.
	token      string
	tokenError error
	changed    map[types.NamespacedName]int
	observed   map[string]int
	found      []string
	// parts is of how many parts an inspection is, by URL; 0 for one.
	parts map[string]int
	// foreign are records that systems have beside those that they remember, by URL.
	foreign map[string][]ipam.Record
	// installationError is why the cluster is not of the manager's installation, and
	// installationReads counts how often the Broker has asked.
	installationError error
	installationReads int
}

// question is a request to a system: the group's, and the method's.
type question struct {
	group, method string
	owner         ipam.Owner
	address       netip.Addr
}

var (
	errUnreadable = errors.New("the Secret cannot be read")
	errNoSecret   = &ipam.Error{
		Reason: v1.ReasonIPAMUnavailable, Message: "there is no Secret netbox", Scope: ipam.ScopeEndpoint,
	}
)

func (w *brokerWorld) EnsureInstallation(context.Context) (types.UID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.installationReads++
	return ipamtest.Installation, w.installationError
}

func (w *brokerWorld) Token(context.Context, *allocation.Netbox) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.token == "" {
		return "", w.tokenError
	}
	return w.token, nil
}

func (w *brokerWorld) Holders(_ context.Context, group string) (map[netip.Addr][]ipam.Owner, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.held[group]), nil
}

func (w *brokerWorld) IsInUse(a netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if do := w.onIsInUse; do != nil {
		w.onIsInUse = nil
		defer do()
	}
	for _, held := range w.held {
		if len(held[a]) > 0 {
			return true
		}
	}
	return false
}

func (w *brokerWorld) Objection(context.Context, ipam.Owner, string) (func(netip.Addr) string, error) {
	return func(netip.Addr) string { return "" }, nil
}

// lock runs a change of what the Broker's worker reads.
func (w *brokerWorld) lock(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// hold makes a Service hold an address of a group, or nobody.
func (w *brokerWorld) hold(group string, a netip.Addr, owners ...ipam.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held[group] == nil {
		w.held[group] = map[netip.Addr][]ipam.Owner{}
	}
	w.held[group][a] = owners
	if len(owners) == 0 {
		delete(w.held[group], a)
	}
}

// slow is a system that takes its time.
type slow struct {
	ipam.System
	world *brokerWorld
	url   string
	group string
}

func (s slow) wait(ctx context.Context, q question) error {
	q.group = s.group
	s.world.mu.Lock()
	s.world.asked[s.url]++
	s.world.questions[q.group+" "+q.method]++
	delay, fault := s.world.delay[s.url], s.world.fault
	s.world.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
	}
	if fault != nil {
		return fault(q)
	}
	return nil
}

func (s slow) Allocate(ctx context.Context, r ipam.Request) (netip.Addr, error) {
	if err := s.wait(ctx, question{method: "allocate", owner: r.Owner, address: r.Address}); err != nil {
		return netip.Addr{}, err
	}
	return s.System.Allocate(ctx, r)
}

func (s slow) Release(ctx context.Context, a netip.Addr) error {
	if err := s.wait(ctx, question{method: "release", address: a}); err != nil {
		return err
	}
	return s.System.Release(ctx, a)
}

func (s slow) BeginInspection() ipam.Inspection {
	inspect, part := s.System.BeginInspection(), 0
	return func(ctx context.Context) (*ipam.Report, error) {
		if err := s.wait(ctx, question{method: "inspect"}); err != nil {
			return nil, err
		}
		part++
		s.world.mu.Lock()
		isLast := part >= s.world.parts[s.url]
		s.world.mu.Unlock()
		if !isLast {
			return nil, nil //nolint:nilnil // there is more
		}
		report, err := inspect(ctx)
		if err == nil {
			s.world.lock(func() { report.MarkedRecords = append(report.MarkedRecords, s.world.foreign[s.url]...) })
		}
		return report, err
	}
}

func (s slow) Check(ctx context.Context) error {
	if err := s.wait(ctx, question{method: "check"}); err != nil {
		return err
	}
	return s.System.Check(ctx)
}

const groupA, groupB = "a", "b"

func urlOf(group string) string { return "https://" + group }

func configOf(group string) *allocation.Netbox {
	return &allocation.Netbox{URL: urlOf(group), TokenSecret: "netbox", TokenKey: "token", Status: "active"}
}

// inBrokerWorld runs a test in simulated time, with a running Broker and two groups, each
// with a system of nine addresses.
func inBrokerWorld(t *testing.T, test func(w *brokerWorld)) {
	synctest.Test(t, func(t *testing.T) {
		w := &brokerWorld{
			t: t, systems: map[string]*ipamtest.Memory{}, delay: map[string]time.Duration{}, asked: map[string]int{},
			held: map[string]map[netip.Addr][]ipam.Owner{}, token: "secret", tokenError: errUnreadable,
			changed:   map[types.NamespacedName]int{},
			questions: map[string]int{}, observed: map[string]int{}, parts: map[string]int{},
		}
		for n, group := range []string{groupA, groupB} {
			w.systems[urlOf(group)] = &ipamtest.Memory{
				Pool:   netipx.MustParseIPRange(fmt.Sprintf("10.0.%d.1-10.0.%d.9", n, n)),
				Subnet: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", n)),
			}
		}
		stop := w.start()
		test(w)
		stop()
	})
}

// start starts a Broker, as a new leader does.
func (w *brokerWorld) start() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.broker = ipam.NewBroker(ipam.Options{
		Cluster: w, Now: time.Now,
		NewSystem: func(
			group string, config *allocation.Netbox, token string, installationID types.UID,
		) (ipam.System, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if token != w.token {
				w.t.Errorf("connected with token %q, which is %q now", token, w.token)
			}
			url := cmp.Or(w.byTenant[config.Tenant], config.URL)
			return slow{w.systems[url].Of(installationID), w, url, group}, nil
		},
		OnAnswersChanged: func(name types.NamespacedName) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed[name]++
		},
		OnObservationChanged: func(group string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.observed[group]++
		},
		OnDifference: func(_ string, _ ipam.Owner, text string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.found = append(w.found, text)
		},
	})
	go func() { _ = w.broker.Start(ctx) }()
	for _, group := range []string{groupA, groupB} {
		w.broker.Configure(group, configOf(group))
	}
	synctest.Wait()
	return func() {
		cancel()
		synctest.Wait()
	}
}

func requestOf(group string) allocation.IPAMRequest {
	return allocation.IPAMRequest{Group: group, Family: allocation.IPv4}
}

// offer returns the answer to the one request of an owner.
func (w *brokerWorld) offer(o ipam.Owner) (allocation.Offer, bool) {
	for _, offer := range w.broker.Offers(o.UID) {
		return offer, true
	}
	return allocation.Offer{}, false
}

func (w *brokerWorld) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantAddress checks that the owner's request has an address, and returns it.
func (w *brokerWorld) wantAddress(o ipam.Owner) netip.Addr {
	w.t.Helper()
	offer, isAnswered := w.offer(o)
	if !isAnswered || offer.Reason != "" {
		w.t.Fatalf("%s: got %+v (%v), want an address", o, offer, isAnswered)
	}
	return offer.Address
}

// wantReason checks that the owner's request has been refused.
func (w *brokerWorld) wantReason(o ipam.Owner, reason, message string) {
	w.t.Helper()
	offer, _ := w.offer(o)
	if offer.Reason != reason || offer.Message != message {
		w.t.Fatalf("%s: got %+v, want %s: %s", o, offer, reason, message)
	}
}

func web(n byte) ipam.Owner { return ipamtest.NewOwner(fmt.Sprintf("web%d", n), n) }

func TestBrokerAllocatesAndReleases(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		a := w.wantAddress(web(0))
		if w.changed[types.NamespacedName{Namespace: "test", Name: "web0"}] != 1 {
			t.Errorf("changes: %v", w.changed)
		}
		// The Service has it: the request goes, and the address stays recorded.
		w.hold(groupA, a, web(0))
		w.broker.SetRequests(web(0), nil)
		w.pass(time.Second)
		if got := w.systems[urlOf(groupA)].Marks()[a]; got != web(0).Mark(ipamtest.Installation) {
			t.Errorf("recorded: %q", got)
		}
		// The Service is deleted.
		w.hold(groupA, a)
		w.broker.QueueRelease(groupA, a)
		w.pass(time.Second)
		if marks := w.systems[urlOf(groupA)].Marks(); len(marks) != 0 {
			t.Errorf("recorded: %v", marks)
		}
		if len(w.broker.Offers(web(0).UID)) != 0 {
			t.Error("offers are left")
		}
	})
}

// A request that has changed, or a Service that has gone, leaves nothing behind, whatever
// was under way.
func TestBrokerReleasesWhatIsNotWanted(t *testing.T) {
	for name, drop := range map[string]func(*brokerWorld){
		"another request": func(w *brokerWorld) { w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupB)}) },
		"no request":      func(w *brokerWorld) { w.broker.SetRequests(web(0), nil) },
		"deleted": func(w *brokerWorld) {
			w.broker.DropRequests(types.NamespacedName{Namespace: "test", Name: "web0"}, "")
		},
	} {
		for _, isUnderWay := range []bool{false, true} {
			t.Run(fmt.Sprint(name, isUnderWay), func(t *testing.T) {
				inBrokerWorld(t, func(w *brokerWorld) {
					w.lock(func() { w.delay[urlOf(groupA)] = time.Second })
					w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
					if isUnderWay {
						w.pass(500 * time.Millisecond)
					} else {
						w.pass(2 * time.Second)
						w.wantAddress(web(0))
					}
					drop(w)
					w.pass(10 * time.Second)
					if marks := w.systems[urlOf(groupA)].Marks(); len(marks) != 0 {
						t.Errorf("recorded: %v", marks)
					}
				})
			})
		}
	}
}

// A Service that is re-created does not meet its predecessor's release.
func TestBrokerRecreatedService(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		before, after := ipamtest.NewOwner("web", 0), ipamtest.NewOwner("web", 1)
		w.broker.SetRequests(before, []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		old := w.wantAddress(before)
		w.broker.SetRequests(after, []allocation.IPAMRequest{requestOf(groupA)})
		w.broker.DropRequests(types.NamespacedName{Namespace: "test", Name: "web"}, after.UID)
		w.pass(time.Second)
		if a := w.wantAddress(after); a == old {
			t.Errorf("got %s again", a)
		}
		marks := w.systems[urlOf(groupA)].Marks()
		if len(marks) != 1 || marks[w.wantAddress(after)] != after.Mark(ipamtest.Installation) {
			t.Errorf("recorded: %v", marks)
		}
	})
}

// The same address as before is asked for by name: the release that waits must not take it.
func TestBrokerRequestedAgain(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		before, after := ipamtest.NewOwner("web", 0), ipamtest.NewOwner("web", 1)
		w.broker.SetRequests(before, []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		request := requestOf(groupA)
		request.Address = w.wantAddress(before)
		w.systems[urlOf(groupA)].SetAway(true)
		w.broker.DropRequests(types.NamespacedName{Namespace: "test", Name: "web"}, "")
		w.broker.SetRequests(after, []allocation.IPAMRequest{request})
		w.pass(5 * time.Second)
		w.systems[urlOf(groupA)].SetAway(false)
		w.pass(30 * time.Second)
		if marks := w.systems[urlOf(groupA)].Marks(); w.wantAddress(after) != request.Address ||
			marks[request.Address] != after.Mark(ipamtest.Installation) {
			t.Errorf("recorded: %v", marks)
		}
	})
}

// A system that is away is asked often enough for a Service to be served within two
// seconds of its return, and rarely if nobody waits. The other group is not concerned. This test shows
// the row "it is away" of docs/trust.md.
func TestFaultBrokerSystemAway(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system := w.systems[urlOf(groupA)]
		system.SetAway(true)
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(10 * time.Minute)
		w.wantReason(web(0), v1.ReasonIPAMUnavailable, "the memory is away")
		if n := w.changed[types.NamespacedName{Namespace: "test", Name: "web0"}]; n != 1 {
			t.Errorf("%d changes of one answer", n)
		}
		if o := w.broker.Observation(groupA); o.Reason != v1.ReasonIPAMUnavailable || o.RequestsWithoutAddress != 1 {
			t.Errorf("observation: %+v", o)
		}
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf(groupB)})
		w.pass(0)
		w.wantAddress(web(1))

		system.SetAway(false)
		w.pass(1900 * time.Millisecond)
		w.wantAddress(web(0))
		if o := w.broker.Observation(groupA); o.Reason != v1.ReasonReachable || o.RequestsWithoutAddress != 0 {
			t.Errorf("observation: %+v", o)
		}
		// Nobody waits: half a minute between attempts.
		w.hold(groupA, w.wantAddress(web(0)), web(0))
		w.broker.SetRequests(web(0), nil)
		w.pass(time.Minute)
		system.SetAway(true)
		w.pass(15 * time.Minute)
		w.lock(func() { w.asked[urlOf(groupA)] = 0 })
		w.pass(10 * time.Minute)
		if n := w.asked[urlOf(groupA)]; n > 30 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		// A Service comes: it does not wait for half a minute.
		system.SetAway(false)
		w.broker.SetRequests(web(2), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(1900 * time.Millisecond)
		w.wantAddress(web(2))
	})
}

// A system that takes ten seconds serves its Services; they say that they wait, and those
// of other groups do not. This test shows the row "it is slow" of docs/trust.md.
func TestFaultBrokerSystemSlow(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() { w.delay[urlOf(groupA)] = 10 * time.Second })
		for n := range byte(3) {
			w.broker.SetRequests(web(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.broker.SetRequests(web(5), []allocation.IPAMRequest{requestOf(groupB)})
		w.pass(0)
		w.wantAddress(web(5))
		if _, isAnswered := w.offer(web(0)); isAnswered {
			t.Error("answered at once")
		}
		w.pass(3 * time.Second)
		for n := range byte(3) {
			w.wantReason(web(n), v1.ReasonIPAMUnavailable, "NetBox https://a is slow to answer: the Service goes on waiting")
		}
		w.pass(time.Minute)
		for n := range byte(3) {
			w.wantAddress(web(n))
		}
	})
}

// One that waits for its turn says so.
func TestBrokerLongQueue(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() { w.delay[urlOf(groupA)] = 1900 * time.Millisecond })
		for n := range byte(8) {
			w.broker.SetRequests(web(n), []allocation.IPAMRequest{requestOf(groupA)})
			w.pass(time.Millisecond)
		}
		w.pass(11 * time.Second)
		w.wantReason(
			web(7), v1.ReasonWaitingForIPAM,
			"others are asking NetBox https://a for addresses, too: the Service waits for its turn",
		)
		w.pass(time.Minute)
		w.wantAddress(web(7))
	})
}

func TestBrokerExhausted(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		for n := range byte(9) {
			w.broker.SetRequests(web(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.pass(0)
		w.broker.SetRequests(web(9), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(20 * time.Minute)
		w.wantReason(web(9), v1.ReasonExhausted, "the memory has no free IPv4 address")
		w.lock(func() { w.asked[urlOf(groupA)] = 0 })
		w.pass(10 * time.Minute)
		if n := w.asked[urlOf(groupA)]; n > 12 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		// One of them goes: the next gets its address at once.
		w.broker.SetRequests(web(3), nil)
		w.pass(time.Second)
		w.wantAddress(web(9))
	})
}

func TestBrokerNewLeader(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		a := w.wantAddress(web(0))
		stop := w.start() // another process, which knows nothing
		defer stop()
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		if again := w.wantAddress(web(0)); again != a {
			t.Errorf("got %s, want %s", again, a)
		}
	})
}

func TestBrokerToken(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() { w.token = "rotated" }) // Connect checks it
		w.pass(2 * time.Minute)
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		w.wantAddress(web(0))
		w.lock(func() { w.token = "" }) // the Secret cannot be read: the last token goes on being used
		w.pass(2 * time.Minute)
		w.broker.SetRequests(web(1), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		w.wantAddress(web(1))
		stop := w.start() // a new leader has none
		defer stop()
		w.broker.SetRequests(web(2), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.wantReason(web(2), v1.ReasonIPAMUnavailable, errUnreadable.Error())
		w.lock(func() { w.token = "back" })
		w.pass(1500 * time.Millisecond)
		w.wantAddress(web(2))
	})
}

// The Secret is deleted, to take the token away from the manager: within a minute the manager stops
// to ask with it, and it goes on when there is a Secret again. This test shows the row "the Secret
// with its token is deleted" of docs/trust.md.
func TestFaultBrokerSecretDeleted(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.pass(2 * time.Minute)
		w.lock(func() { w.token, w.tokenError = "", errNoSecret })
		w.pass(2 * time.Minute)
		asked := func() (n int) {
			w.lock(func() { n = w.asked[urlOf(groupA)] })
			return n
		}
		before := asked()
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.wantReason(web(0), v1.ReasonIPAMUnavailable, errNoSecret.Error())
		w.lock(func() { w.tokenError = errUnreadable }) // nothing is known of the Secret: the deleted token stays so
		w.pass(2 * time.Minute)
		if n := asked() - before; n != 0 {
			t.Errorf("%d questions with the deleted token", n)
		}
		w.lock(func() { w.token = "back" })
		w.pass(1500 * time.Millisecond)
		w.wantAddress(web(0))
	})
}

// What the system has recorded and Services do not hold is released after some time, and
// what they hold and it has not recorded is recorded again.
func TestBrokerComparison(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system, a, b, c := w.systems[urlOf(groupA)], netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"),
			netip.MustParseAddr("10.0.0.3")
		w.pass(time.Minute)
		w.hold(groupA, a, web(0))
		w.hold(groupA, b, web(1))
		system.SetMark(b, "keepalived")
		system.SetMark(c, web(2).Mark(ipamtest.Installation))
		w.pass(10 * time.Minute)
		marks := system.Marks()
		if marks[a] != web(0).Mark(ipamtest.Installation) || marks[b] != "keepalived" || marks[c] == "" {
			t.Errorf("recorded: %v", marks)
		}
		want := []string{"10.0.0.1 was not recorded as test/web0's: it is again", "10.0.0.2 is that of keepalived"}
		slices.Sort(w.found)
		if !slices.Equal(w.found, want) {
			t.Errorf("found %q, want %q", w.found, want)
		}
		if o := w.broker.Observation(groupA); len(o.Differences) != 1 ||
			o.Differences[b] != "10.0.0.2 is that of keepalived" {
			t.Errorf("observation: %+v", o)
		}
		w.pass(11 * time.Minute)
		if marks := system.Marks(); marks[c] != "" {
			t.Errorf("the unused one is left: %v", marks)
		}
		if len(w.found) != 2 {
			t.Errorf("found again: %q", w.found)
		}
		// Somebody mends it.
		system.SetMark(b, "")
		w.pass(11 * time.Minute)
		o := w.broker.Observation(groupA)
		if system.Marks()[b] != web(1).Mark(ipamtest.Installation) || len(o.Differences) != 0 {
			t.Errorf("recorded %v, observation %+v", system.Marks(), o)
		}
	})
}

// An unused record is left alone for the first ten minutes of a leader, too: the Service
// that it is for may be about to get it.
func TestBrokerGrace(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system, a := w.systems[urlOf(groupA)], netip.MustParseAddr("10.0.0.1")
		system.SetMark(a, web(0).Mark(ipamtest.Installation))
		stop := w.start()
		defer stop()
		w.pass(9 * time.Minute)
		if system.Marks()[a] == "" {
			t.Error("released at once")
		}
		w.hold(groupA, a, web(0))
		w.pass(30 * time.Minute)
		if system.Marks()[a] == "" {
			t.Error("released although a Service has it")
		}
	})
}

func TestBrokerTooManyUnused(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system := w.systems[urlOf(groupA)]
		for n := range byte(7) {
			system.SetMark(netip.AddrFrom4([4]byte{10, 0, 0, n + 1}), web(n).Mark(ipamtest.Installation))
		}
		w.pass(time.Hour)
		if n := len(system.Marks()); n != 7 {
			t.Errorf("%d records are left", n)
		}
		if o := w.broker.Observation(groupA); o.UnusedNotReleased != 7 {
			t.Errorf("observation: %+v", o)
		}
		for n := range byte(2) { // by hand
			system.SetMark(netip.AddrFrom4([4]byte{10, 0, 0, n + 1}), "")
		}
		w.pass(11 * time.Minute)
		if n := len(system.Marks()); n != 0 || w.broker.Observation(groupA).UnusedNotReleased != 0 {
			t.Errorf("%d records are left", n)
		}
	})
}

// A Service deleted while the system was away is released when it is back. This test shows the row "a
// Service is deleted while it is away" of docs/trust.md.
func TestFaultBrokerReleaseWhileAway(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		system := w.systems[urlOf(groupA)]
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		a := w.wantAddress(web(0))
		system.SetAway(true)
		w.broker.DropRequests(types.NamespacedName{Namespace: "test", Name: "web0"}, "")
		w.pass(time.Hour)
		system.SetAway(false)
		w.pass(31 * time.Second)
		if system.Marks()[a] != "" {
			t.Error("not released")
		}
	})
}

// A Service may give an address up while the Broker, asked to release it for another reason, finds that
// the Service has it.
func TestBrokerReleasedWhileLookedAt(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(0)
		a := w.wantAddress(web(0))
		w.hold(groupA, a, web(0))
		w.lock(func() {
			w.onIsInUse = func() { // it holds the lock
				delete(w.held[groupA], a)
				w.broker.QueueRelease(groupA, a)
			}
		})
		w.broker.DropRequests(types.NamespacedName{Namespace: "test", Name: "web0"}, "")
		w.pass(time.Second)
		if marks := w.systems[urlOf(groupA)].Marks(); len(marks) != 0 {
			t.Errorf("recorded: %v", marks)
		}
	})
}

func TestBrokerConfigure(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf("new")})
		w.pass(3 * time.Second)
		w.wantReason(web(0), v1.ReasonWaitingForIPAM, "ServiceGroup new has not been looked at yet")
		w.broker.Configure("new", configOf(groupA))
		w.pass(0)
		w.wantAddress(web(0))
		w.broker.Configure("new", configOf(groupA)) // the same: nothing happens
		w.lock(func() { w.asked[urlOf(groupA)] = 0 })
		w.pass(time.Minute)
		if w.asked[urlOf(groupA)] != 0 {
			t.Error("asked again")
		}
		w.broker.Configure("new", nil)
		if w.broker.Observation("new") != nil {
			t.Error("an observation is left")
		}
		w.broker.QueueRelease("new", netip.MustParseAddr("10.0.0.1"))
		w.pass(time.Minute)
	})
}

// When nothing happens, a system is asked once in ten minutes.
func TestBrokerIdle(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.pass(time.Minute)
		w.lock(func() { w.asked[urlOf(groupA)] = 0 })
		w.pass(time.Hour)
		if n := w.asked[urlOf(groupA)]; n != 6 {
			t.Errorf("asked %d times in an hour", n)
		}
	})
}

// A namespace with many requests does not keep those of others waiting. This test shows the row "keep
// Services of other namespaces waiting for NetBox, by many requests" of docs/trust.md.
func TestAttackManyRequests(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.lock(func() { w.delay[urlOf(groupA)] = time.Second })
		for n := range 300 {
			noisy := ipam.Owner{Namespace: "noisy", Name: fmt.Sprint("web", n), UID: types.UID(fmt.Sprint("noisy-", n))}
			w.broker.SetRequests(noisy, []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.pass(1500 * time.Millisecond)
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(2 * time.Second)
		w.wantAddress(web(0))
	})
}
