package plan

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Decision is what the agent is to do, in the order of its fields, and what it reports if
// all of that succeeds.
type Decision struct {
	// Settings are those of the LBNodeAgent, or the defaults.
	Settings Settings
	// IsNothingKnown means that the agent only keeps what the kernel has. It reports nothing
	// and leaves the checkpoint as it is.
	IsNothingKnown bool
	// VirtualToEnsure is the name of the virtual interface, which has to be there before the
	// operations; empty if no address needs it. IsVirtualMissing means that it is to be made.
	VirtualToEnsure  string
	IsVirtualMissing bool
	// Operations change the kernel.
	Operations []Operation
	// Questions are to be asked of links, all as one batch, while the agent goes on.
	Questions []ProbeQuestion
	// AsksForTakeover means that a question is about an address which is to be taken over, and only as the agent does not
	// know the objects to be up to date.
	AsksForTakeover bool
	// AnsweredYields are yielded addresses for which a station has answered a probe.
	AnsweredYields map[netip.Addr]ProbeState
	// VirtualsToRemove are the names of virtual interfaces that the agent made and does not need
	// any more. One that holds addresses of others stays. If one cannot be removed, the agent
	// reports nothing: the manager may remove an agent that has reported no address.
	VirtualsToRemove []string

	// ToReannounce are addresses that another node has claimed, and that stay here. The link is told of them
	// again: clients may still send to that node.
	ToReannounce []Desired

	// DecideIn is in how long to decide again; 0 is when something changes.
	DecideIn time.Duration
	// Err is what is wrong with single addresses or with the settings, so that the agent
	// decides again soon.
	Err error

	// desired and results are of the desired addresses, and invalid of entries that ask for
	// nothing usable; kept are addresses that stay although nothing asks for them.
	desired []Desired
	results map[netip.Addr]Result
	invalid map[netip.Addr]Result
	kept    []Address
	// interfaces, gateways and macs are the facts of the node.
	interfaces []purelbv1.NodeInterface
	gateways   []purelbv1.NodeGateway
	macs       []string
}

// Desired returns the addresses that the node is to have.
func (d *Decision) Desired() []Desired { return d.desired }

// decisionBuilder is a Decision that is being made: each step reads the inputs, and changes the
// rest.
type decisionBuilder struct {
	Decision
	in     *Inputs
	memory Memory
	plan   Plan
	// successionIndex is nil if there are no claims.
	successionIndex *successionIndex
	// withdrawNothingFor is for how long an Announcement may be missing yet; 0 if none is.
	withdrawNothingFor time.Duration
}

// decisionSteps are the rules of a decision, in their order. The comment on each step says why it stands
// where it stands.
var decisionSteps = []struct {
	name string
	do   func(*decisionBuilder)
}{
	// First, since the memory has to see every state of the API, also one with which nothing can be
	// done.
	{"remember which Announcements are missing", (*decisionBuilder).rememberMissing},
	// After the step before, since no claim ends while an Announcement is missing; before the
	// comparison, which would withdraw what is claimed.
	{"keep the claims that are not over", (*decisionBuilder).updateClaims},
	// Before the comparison, which would withdraw everything that nothing asks for.
	{"keep everything while nothing is known", (*decisionBuilder).keepEverything},
	// The base of all steps below: what to add, renew and remove if nothing else is known.
	{"compare what is desired with what the kernel holds", (*decisionBuilder).compare},
	// After the comparison, since this step takes away probes that the comparison asks for; before
	// the yields, since a yielded address is not put back.
	{"put back at once what was stripped", (*decisionBuilder).putBackStripped},
	// After both steps that add, since the agent adds a yielded address only after it has asked.
	{"respect yields", (*decisionBuilder).respectYields},
	// After the two steps before, since an address that is yielded, or for which the link is asked,
	// is not put back; before the step that asks the service proxy, which need not be asked for it.
	{"pace repairs of what is removed again and again", (*decisionBuilder).paceRepairs},
	// After all steps that remove addresses, since this step takes withdrawals away.
	{"withdraw nothing while an Announcement is missing, or by the checkpoint alone", (*decisionBuilder).withdrawNothing},
	// After all steps that decide which additions need a probe, since this step replaces those.
	{"add the addresses for which the link is silent", (*decisionBuilder).addByAnswers},
	// After all steps that add, since some of the additions that remain have to wait.
	{"wait for the service proxy", (*decisionBuilder).awaitProxy},
	// After all steps that change the operations, since nothing is to wait for a renewal.
	{"renew last, and first what ends first", (*decisionBuilder).renewLast},
	// Anywhere after the comparison, which finds out what is desired.
	{"tell the link again of what another node has claimed in vain", (*decisionBuilder).findEndedContests},
	// Anywhere after the comparison: the agent removes an interface only after the operations, and
	// only if the kernel then says that it is empty.
	{"remove virtual interfaces of no use", (*decisionBuilder).removeVirtualInterfaces},
	// Anywhere: the facts do not depend on what the node announces.
	{"gather the facts of the node", (*decisionBuilder).gatherFacts},
}

// Decide decides what the agent does. It changes none of its arguments, and its decision
// depends on nothing else.
func Decide(memory Memory, in Inputs) (Memory, Decision) {
	d := &decisionBuilder{in: &in, memory: memory, Decision: Decision{IsNothingKnown: in.isNothingKnown()}}
	agent := in.LBNodeAgent
	if agent == nil {
		agent = &purelbv1.LBNodeAgent{}
	}
	d.Settings = SettingsOf(agent)
	d.memory.noteAnswers(in.ProbeAnswers)
	for _, step := range decisionSteps {
		step.do(d)
	}
	d.Operations, d.results, d.kept = d.plan.Operations, d.plan.Results, d.plan.Kept
	d.decideIn(d.plan.RenewIn)
	return d.memory, d.Decision
}

// findEndedContests finds the addresses whose claim by another node was a Contest until now, and is none any more:
// the manager has ended the claim in favour of the holder, or the other node has given it up.
func (d *decisionBuilder) findEndedContests() {
	for i := range d.desired {
		want := &d.desired[i]
		h, isHeld := d.in.Held[want.Addr]
		hasEnded := h.Contest.Epoch > 0 && want.Contest.Epoch == 0
		if isHeld && hasEnded && !want.IsHandingOver && want.Interface == h.Interface {
			d.ToReannounce = append(d.ToReannounce, *want)
		}
	}
}

// decideIn notes that there is something to decide after a wait; 0 is never.
func (d *decisionBuilder) decideIn(wait time.Duration) { d.DecideIn = ShorterWait(d.DecideIn, wait) }

// rememberMissing notes which Announcements are missing. The checkpoint does not say so: it may be
// older than what the API server has.
func (d *decisionBuilder) rememberMissing() {
	if !d.in.IsFromCheckpoint {
		d.withdrawNothingFor = d.memory.noteMissingObjects(d.in)
	}
}

// keepEverything renews what the kernel has.
func (d *decisionBuilder) keepEverything() {
	if d.IsNothingKnown {
		d.plan = renewKept(d.Settings, d.in.Observed.Addresses)
		d.plan.Kept = d.in.Observed.Addresses
	}
}

// compare compares the kernel, as it is once the virtual interface is there, with what is
// desired.
func (d *decisionBuilder) compare() {
	if d.IsNothingKnown {
		return
	}
	d.desired, d.invalid = MergeDesired(d.in.Announcements, d.in.IncludedCommonAnnouncements())
	if d.in.IsFromCheckpoint { // since then the manager may have given an address to another node
		for i := range d.desired {
			d.desired[i].SkipsProbe = false
		}
	}
	d.desired = withClaims(d.desired, d.memory.Claims, d.successionIndex, d.in.Now)
	observed := d.in.Observed
	if virtual := d.Settings.Selection.VirtualInterface; hasVirtual(d.desired, virtual) {
		_, exists := observed.interfaceNamed(virtual)
		d.VirtualToEnsure, d.IsVirtualMissing = virtual, !exists
		if d.IsVirtualMissing {
			made := NetworkInterface{Name: virtual, IsOurs: true, IsUp: true}
			observed.Interfaces = append(slices.Clip(observed.Interfaces), made)
		}
	}
	d.plan = Diff(d.Settings, d.desired, observed, d.in.IsUpToDate && !d.in.IsFromCheckpoint)
	d.AsksForTakeover = slices.ContainsFunc(d.plan.Operations, func(op Operation) bool {
		return op.Kind == Add && op.Probe && op.Desired.IsTakeover
	})
}

// putBackStripped makes the agent put back without a probe what was taken off: a Local
// address that the agent held until now, under the same epoch, and at which it was
// listening. No other station can have the address without having been heard. An address whose
// lifetime has ended was not taken off by a program: the kernel removed it, since the agent did not
// run to renew it, and did not listen either.
func (d *decisionBuilder) putBackStripped() {
	for i := range d.plan.Operations {
		op := &d.plan.Operations[i]
		if !op.Probe {
			continue
		}
		h, isHeld := d.in.Held[op.Desired.Addr]
		wasHeld := isHeld && h.Epoch == op.Desired.Epoch && h.Interface == op.Desired.Interface
		if wasHeld && d.in.Now.Before(d.memory.ValidUntil[op.Desired.Addr]) {
			op.Probe = false
			d.plan.Results[op.Desired.Addr] = AnnouncedResult(op.Desired)
		}
	}
}

func (d *decisionBuilder) respectYields() {
	d.plan.respectYields(d.in.Yields, d.desired, d.in.Observed, d.in.Now)
}

// withdrawNothing keeps what is not desired while what is desired may be out of date, or may
// be less than it was by mistake.
func (d *decisionBuilder) withdrawNothing() {
	if d.IsNothingKnown || !d.in.IsFromCheckpoint && d.withdrawNothingFor == 0 {
		return
	}
	d.plan.keepUndesired(d.Settings)
	d.decideIn(d.withdrawNothingFor)
}

// awaitProxy makes Virtual addresses whose traffic stays on the node wait for the service
// proxy, for a while.
func (d *decisionBuilder) awaitProxy() {
	since := map[netip.Addr]time.Time{}
	for i := range d.plan.Operations {
		op := &d.plan.Operations[i]
		if op.Kind != Add || op.InPlace || op.Desired.IsLocal || op.Desired.HealthPort == 0 {
			continue
		}
		addr := op.Desired.Addr
		began, isWaiting := d.memory.ProxyWaitSince[addr]
		if !isWaiting {
			began = d.in.Now
		}
		since[addr] = began
		op.AwaitProxy = d.in.Now.Sub(began) < ProxyPatience
	}
	d.memory.ProxyWaitSince = since
}

// removeVirtualInterfaces removes the virtual interfaces that the agent made: those of
// another name than the settings have, and all if the agent is to go.
func (d *decisionBuilder) removeVirtualInterfaces() {
	if d.IsNothingKnown {
		return
	}
	isGoing := !slices.ContainsFunc(d.in.Announcements, func(ann purelbv1.Announcement) bool {
		return !ann.Spec.AgentLeaving || len(ann.Spec.Addresses) > 0
	})
	for _, l := range d.in.Observed.Interfaces {
		if l.IsOurs && (isGoing || l.Name != d.Settings.Selection.VirtualInterface) {
			d.VirtualsToRemove = append(d.VirtualsToRemove, l.Name)
		}
	}
}

// gatherFacts finds the interfaces that can hold Local addresses, and the node's MACs.
func (d *decisionBuilder) gatherFacts() {
	if d.IsNothingKnown || d.in.IsFromCheckpoint {
		return
	}
	interfaces, err := NodeInterfaces(d.Settings.Selection, d.in.Observed)
	d.interfaces, d.macs = interfaces, NodeMACs(d.Settings.Selection, d.in.Observed, interfaces)
	d.gateways = NodeGateways(d.Settings.Selection, d.in.Observed)
	d.Err = errors.Join(d.Err, err)
}
