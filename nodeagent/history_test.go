package nodeagent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const (
	histories = 60
	// soon is the time in which a stripped address is back.
	soon = 100 * time.Millisecond
	// unsettled is how long a history waits at its end: as long as a deleted Announcement
	// counts, and the longest pauses between attempts.
	unsettled = 40 * time.Second
)

// history is a random one of an agent and its world.
type history struct {
	*process
	random *rand.Rand
	log    []string
	// desired is by the name of the Announcement.
	desired map[string][]purelbv1.AnnouncedAddress
	// since is from when on an address has been desired, and nobody else has had it.
	since map[string]time.Time
	epoch int64
	// foreign is what others have put on interfaces.
	foreign map[plan.Address]bool
	// mend ends each fault that there is, by its name.
	mend map[string]func()
	// kernelWell, linkWell and allWell are since when the kernel, the kernel and the link,
	// and all that renewals depend on, have no fault; zero while they have.
	kernelWell, linkWell, allWell time.Time
}

// TestHistories lets steps of the table happen to an agent, in any order. What must hold at all times is listed in
// history_invariants_test.go; what is stripped is back soon, whatever the API server and the disk do. When nothing more
// happens the kernel has what is asked for, and the statuses say so.
func TestHistories(t *testing.T) {
	ctrllog.SetLogger(logr.Discard())
	first, n := uint64(1), histories
	if testing.Short() { // with the race detector: the gate plays all of them without it, too
		n /= 10
	}
	if seed, err := strconv.ParseUint(os.Getenv("PURELB_TEST_SEED"), 10, 64); err == nil { // play that history once more
		first, n = seed, 1
	}
	for i := range n {
		seed := first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runHistory(t, seed) })
		})
	}
}

func runHistory(t *testing.T, seed uint64) {
	h := &history{
		process: newProcess(t, settings(), announcementOf("node1"), announcementOf("node1-b")),
		random:  rand.New(rand.NewPCG(seed, 0)), desired: map[string][]purelbv1.AnnouncedAddress{
			"node1": nil, "node1-b": nil,
		},
		since: map[string]time.Time{}, foreign: map[plan.Address]bool{}, mend: map[string]func(){},
	}
	h.CheckpointPath = "agent.json"
	h.faulty.onlyObserve = true // what holds a mutex meanwhile would stop the clock of this test
	for _, own := range []string{"192.0.2.11/24", "192.0.2.12/24"} {
		h.putForeign("eth0", own)
	}
	defer func() {
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(h.log, "\n"))
		}
	}()
	h.start()
	defer func() {
		h.endFaults()
		h.stop()
	}()
	h.noteWell()
	for range 60 {
		if t.Failed() {
			return
		}
		h.takeStep()
		for end := time.Now().Add(time.Duration(h.random.IntN(3000)) * time.Millisecond); time.Now().Before(end) &&
			!t.Failed(); {
			time.Sleep(100 * time.Millisecond)
			h.check()
		}
	}
	h.settle()
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

// step is something that happens to the agent or to its world.
type step struct {
	name   string
	weight int
	do     func(*history)
}

// Faults by which others are judged.
const (
	linkDown      = "the link is down"
	apiHangs      = "the API server hangs"
	apiRefuses    = "the API server refuses"
	apiSlow       = "the API server is slow"
	kernelHangs   = "the kernel hangs"
	agentBlind    = "the agent cannot observe the kernel"
	kernelRefuses = "the kernel refuses "
	answered      = "another station answers for "
)

// steps are what happens to the agent. A fault lasts until its step comes again.
var steps = []step{
	{"an Announcement asks for something else", 4, (*history).ask},
	{"an address of the agent is stripped", 2, (*history).strip},
	{"the node's own address goes and comes", 1, (*history).ownGoesAndComes},
	{"another program adds or removes an address", 1, (*history).foreignComesOrGoes},
	{"an Announcement is deleted, and made anew", 1, (*history).deleteAnnouncement},
	{"the agent restarts", 1, (*history).restart},
	fault(linkDown, func(h *history) (end func()) {
		h.kernel.SetLinkUp("eth0", false)
		return func() { h.kernel.SetLinkUp("eth0", true) }
	}),
	fault(apiHangs, func(h *history) (end func()) {
		h.apiHangs.Store(true)
		return func() { h.apiHangs.Store(false) }
	}),
	fault(apiRefuses, func(h *history) (end func()) {
		h.fail(errors.New("away"))
		return func() { h.fail(nil) }
	}),
	fault(apiSlow, func(h *history) (end func()) {
		h.apiDelay.Store(int64(300 * time.Millisecond))
		return func() { h.apiDelay.Store(0) }
	}),
	fault("the disk hangs", func(h *history) (end func()) { return h.disk.hang() }),
	fault("the disk is full", func(h *history) (end func()) {
		h.disk.fill(errors.New("full"))
		return func() { h.disk.fill(nil) }
	}),
	fault(kernelHangs, func(h *history) (end func()) { return h.faulty.hang() }),
	fault(agentBlind, func(h *history) (end func()) {
		h.faulty.setBlind(errors.New("interrupted"))
		return func() { h.faulty.setBlind(nil) }
	}),
	faultOf(kernelRefuses, 12, func(h *history, address string) (end func()) {
		h.kernel.Refuse(addrOf(address), errors.New("refused"))
		return func() { h.kernel.Refuse(addrOf(address), nil) }
	}),
	faultOf(answered, 8, func(h *history, address string) (end func()) {
		h.neighbours.set(address, stranger) // an agent that is not fresh yields
		delete(h.since, address)
		return func() { h.neighbours.unset(address) }
	}),
}

// fault is a step that begins a fault, or ends it.
func fault(name string, begin func(*history) (end func())) step {
	return step{name, 1, func(h *history) { h.toggle(name, func() func() { return begin(h) }) }}
}

// faultOf is a step that begins a fault of one of the first addresses of the pool, or ends it.
func faultOf(name string, addresses int, begin func(h *history, address string) (end func())) step {
	return step{name + "an address", 1, func(h *history) {
		address := h.pool()[h.random.IntN(addresses)]
		h.toggle(name+address, func() func() { return begin(h, address) })
	}}
}

// takeStep takes a step of the table.
func (h *history) takeStep() {
	var possible []step
	for _, s := range steps {
		possible = append(possible, slices.Repeat([]step{s}, s.weight)...)
	}
	s := possible[h.random.IntN(len(possible))]
	h.note("%s", s.name)
	s.do(h)
}

// toggle begins a fault, or ends it.
func (h *history) toggle(fault string, begin func() (end func())) {
	if end, is := h.mend[fault]; is {
		h.note("  no more: %s", fault)
		end()
		delete(h.mend, fault)
	} else {
		h.note("  now: %s", fault)
		h.mend[fault] = begin()
	}
	h.noteWell()
}

// noteWell notes since when there are no faults.
func (h *history) noteWell() {
	now := time.Now()
	well := func(since *time.Time, faults ...string) {
		is := !slices.ContainsFunc(faults, func(f string) bool { return h.mend[f] != nil })
		switch {
		case !is:
			*since = time.Time{}
		case since.IsZero():
			*since = now
		}
	}
	well(&h.kernelWell, kernelHangs, agentBlind)
	well(&h.linkWell, kernelHangs, agentBlind, linkDown)
	well(&h.allWell, kernelHangs, agentBlind, apiHangs, apiRefuses, apiSlow)
}

// pool is the addresses that may be asked for: eight Local, four Virtual.
func (h *history) pool() []string {
	var pool []string
	for i := range 8 {
		pool = append(pool, fmt.Sprintf("192.0.2.%d", 100+i))
	}
	for i := range 4 {
		pool = append(pool, fmt.Sprintf("198.51.100.%d", 1+i))
	}
	return pool
}

// ask changes what an Announcement asks for.
func (h *history) ask() {
	name, address := []string{"node1", "node1-b"}[h.random.IntN(2)], ""
	entries := slices.Clone(h.desired[name])
	address = h.pool()[h.random.IntN(len(h.pool()))]
	for _, other := range []string{"node1", "node1-b"} { // in one of them at a time
		if other != name && slices.ContainsFunc(
			h.desired[other], func(a purelbv1.AnnouncedAddress) bool { return a.Address == address },
		) {
			return
		}
	}
	h.epoch++
	i := slices.IndexFunc(entries, func(a purelbv1.AnnouncedAddress) bool { return a.Address == address })
	switch {
	case i < 0:
		entry := virtual(address)
		if strings.HasPrefix(address, "192") {
			entry = local(address, func(a *purelbv1.AnnouncedAddress) {
				a.Epoch = h.epoch
				if h.random.IntN(3) == 0 {
					a.ClaimPolicy = purelbv1.ClaimTakeover
				}
			})
		}
		entries = append(entries, entry)
		if h.mend[answered+address] == nil {
			h.since[address] = time.Now()
		}
		h.note("  %s asks for %s (%s)", name, address, entry.ClaimPolicy)
	case h.random.IntN(4) == 0 && entries[i].Type == purelbv1.AnnounceLocal:
		entries[i].Epoch, entries[i].HandingOver = h.epoch, false
		h.note("  %s asks for %s under epoch %d", name, address, h.epoch)
	default:
		entries = slices.Delete(entries, i, i+1)
		delete(h.since, address)
		h.note("  %s asks for %s no more", name, address)
	}
	h.desired[name] = entries
	h.change(name, func(s *purelbv1.AnnouncementSpec) { s.Addresses = entries })
}

// strip removes an address of ours, sometimes just when there is something else to do.
func (h *history) strip() {
	if h.random.IntN(2) == 0 {
		h.ask()
		time.Sleep(time.Millisecond)
	}
	o, _ := h.kernel.Observe()
	var ours []plan.Address
	for _, a := range o.Addresses {
		if a.IsOurs {
			ours = append(ours, a)
		}
	}
	if len(ours) > 0 {
		a := ours[h.random.IntN(len(ours))]
		address := a.Prefix.Addr().String()
		isCalm := h.isCalm(address)
		h.note("  strip %s", a.Prefix)
		h.kernel.Strip(a.Interface, a.Prefix)
		time.Sleep(soon)
		synctest.Wait()
		if isCalm && !h.holds(address) {
			h.t.Errorf("%s: %s was stripped, and is not back after %s", time.Now().Format("04:05.000"), address, soon)
		}
	}
}

// isCalm reports whether an address has been asked for for a while, and nothing else of
// the node has been wrong that keeps it from being there. The API server and the disk are
// no part of that.
func (h *history) isCalm(address string) bool {
	const while = 10 * time.Second
	since, asked := h.since[address]
	return asked && time.Since(since) > while && !h.linkWell.IsZero() && time.Since(h.linkWell) > while &&
		h.mend[kernelRefuses+address] == nil && !h.isForeign(address)
}

func (h *history) putForeign(iface, prefix string) {
	a := plan.Address{Interface: iface, Prefix: prefixOf(prefix), Valid: plan.Forever, Preferred: plan.Forever}
	h.kernel.Put(a)
	h.foreign[a] = true
}

func (h *history) stripForeign(iface, prefix string) {
	delete(
		h.foreign, plan.Address{Interface: iface, Prefix: prefixOf(prefix), Valid: plan.Forever, Preferred: plan.Forever},
	)
	h.kernel.Strip(iface, prefixOf(prefix))
}

func (h *history) ownGoesAndComes() {
	h.stripForeign("eth0", "192.0.2.11/24")
	time.Sleep(time.Duration(h.random.IntN(100)) * time.Millisecond)
	h.putForeign("eth0", "192.0.2.11/24")
}

// foreignComesOrGoes lets another program add an address that the agent may be asked for, with
// another mask, or remove it.
func (h *history) foreignComesOrGoes() {
	prefix := h.pool()[h.random.IntN(8)] + "/24"
	h.toggle("foreign "+prefix, func() func() {
		h.putForeign("eth0", prefix)
		return func() { h.stripForeign("eth0", prefix) }
	})
}

// deleteAnnouncement deletes one, and makes it anew a little later, as the manager does.
func (h *history) deleteAnnouncement() {
	name := []string{"node1", "node1-b"}[h.random.IntN(2)]
	h.note("  delete %s", name)
	if err := h.Client.Delete(h.t.Context(), announcementOf(name)); err != nil {
		h.t.Fatal(err)
	}
	pacing.Signal(h.wake)
	time.Sleep(time.Duration(h.random.IntN(2000)) * time.Millisecond)
	again := announcementOf(name, h.desired[name]...)
	if err := h.Client.Create(h.t.Context(), again); err != nil {
		h.t.Fatal(err)
	}
	for _, entry := range h.desired[name] {
		if _, is := h.since[entry.Address]; is {
			h.since[entry.Address] = time.Now()
		}
	}
	pacing.Signal(h.wake)
}

// restart ends the process and starts another.
func (h *history) restart() {
	if end, hangs := h.mend[kernelHangs]; hangs { // it would not end
		end()
		delete(h.mend, kernelHangs)
	}
	h.stop()
	time.Sleep(time.Duration(h.random.IntN(3000)) * time.Millisecond)
	h.faulty.forget()
	h.start()
	h.allWell, h.linkWell, h.kernelWell = time.Time{}, time.Time{}, time.Time{}
	h.noteWell()
}

// settle ends all faults and fails unless all is as it is to be a little later.
func (h *history) settle() {
	h.note("all faults end")
	h.endFaults()
	for end := time.Now().Add(unsettled); time.Now().Before(end) && !h.t.Failed(); {
		time.Sleep(100 * time.Millisecond)
		h.check()
	}
	if h.t.Failed() {
		return
	}
	var want, got []string
	for name, entries := range h.desired {
		for _, entry := range entries {
			want = append(want, entry.Address+"/32 "+string(entry.Interface))
		}
		h.checkStatus(name, entries)
	}
	o, _ := h.kernel.Observe()
	for _, a := range o.Addresses {
		if a.IsOurs {
			got = append(got, a.Prefix.String()+" "+a.Interface)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	h.expect("the kernel has", want, got)
}

func (h *history) endFaults() {
	for fault, end := range h.mend {
		end()
		delete(h.mend, fault)
	}
	h.noteWell()
}

func (h *history) checkStatus(name string, entries []purelbv1.AnnouncedAddress) {
	ann := h.get(name)
	var want, got []string
	for _, entry := range entries {
		want = append(want, fmt.Sprintf("%s Announced %d", entry.Address, entry.Epoch))
	}
	for _, s := range ann.Status.Addresses {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", s.Address, s.State, s.Epoch, s.Reason)))
	}
	slices.Sort(want)
	slices.Sort(got)
	h.expect("the status of "+name, want, got)
	h.expect("the generation of "+name, ann.Generation, ann.Status.ObservedGeneration)
	h.expect("Ready of "+name, metav1.ConditionTrue, ann.Status.Conditions[0].Status)
	h.expect("facts of "+name, name == "node1", len(ann.Status.Interfaces) == 1 && len(ann.Status.MACs) == 1)
	if err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(ann), ann); err != nil {
		h.t.Error(err)
	}
}
