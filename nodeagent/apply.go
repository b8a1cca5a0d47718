package nodeagent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// decisionApplier applies one Decision.
type decisionApplier struct {
	*Agent
	decision plan.Decision
	outcomes plan.Outcomes
	// added are addresses that were added.
	added map[netip.Addr]bool
	// failed are addresses with which something went wrong: no more is done with them.
	failed map[netip.Addr]bool
	// proxyAddrs are addresses of the node's own at which the proxy may listen, and proxyTimeSpent
	// is how long the proxy has been asked in all.
	proxyAddrs     []netip.Addr
	proxyTimeSpent time.Duration
	// renewalsBegan is when the first address was renewed; zero before.
	renewalsBegan time.Time
}

// apply makes the kernel as decided, and asks links. An address that fails does not stop the
// others. It returns what became of all that, and the errors.
func (a *Agent) apply(ctx context.Context, decision plan.Decision, observed plan.Observed) (plan.Outcomes, error) {
	r := &decisionApplier{
		Agent: a, decision: decision, added: map[netip.Addr]bool{}, failed: map[netip.Addr]bool{},
		outcomes:   plan.Outcomes{Results: map[netip.Addr]plan.Result{}, NotWithdrawn: map[netip.Addr]plan.Result{}},
		proxyAddrs: proxyAddrs(observed),
	}
	if decision.VirtualToEnsure != "" {
		r.outcomes.VirtualKind, r.outcomes.VirtualErr = a.Kernel.EnsureVirtual(decision.VirtualToEnsure)
	}
	errs := r.outcomes.VirtualErr
	for i, op := range decision.Operations {
		if op.Kind == plan.Renew && r.isRenewalTimeOver() {
			r.outcomes.Unrenewed = len(decision.Operations) - i
			break
		}
		errs = errors.Join(errs, r.applyOperation(ctx, op))
	}
	for i := range decision.ToReannounce {
		if d := &decision.ToReannounce[i]; decision.Settings.Announce.IsEnabled && !r.failed[d.Addr] {
			a.announcer.schedule(d.Interface, d.Addr, decision.Settings.Announce)
		}
	}
	a.defender.noteProbeAnswers(decision.AnsweredYields)
	questions := make([]neigh.Question, 0, len(decision.Questions))
	for _, q := range decision.Questions {
		questions = append(questions, a.defender.questionIgnoringGateways(q.Target.Interface, q.Target.Addr, q.PreviousMACs))
	}
	a.prober.ask(ctx, questions, decision.Settings.Probe)
	return r.outcomes, errs
}

// applyOperation changes one address in the kernel.
func (a *decisionApplier) applyOperation(ctx context.Context, op plan.Operation) error {
	switch {
	case op.Kind == plan.Remove && op.Desired == nil:
		return a.withdraw(ctx, op)
	case a.failed[op.Address.Prefix.Addr()]:
		return nil
	case op.Kind == plan.Remove:
		return a.removeOutdated(ctx, op)
	case op.Kind == plan.Renew:
		return a.renew(op)
	case op.Kind == plan.Replace:
		return a.replace(op)
	}
	return a.add(ctx, op)
}

// remove removes an address from its interface.
func (a *decisionApplier) remove(ctx context.Context, op plan.Operation) error {
	a.announcer.cancel(op.Address.Interface, op.Address.Prefix.Addr())
	if err := a.Kernel.Remove(op.Address); err != nil {
		return err
	}
	a.Metrics.withdrawals.Inc()
	log.FromContext(ctx).Info("Withdrew", "address", op.Address.Prefix, "interface", op.Address.Interface)
	return nil
}

// withdraw removes an address that is not desired.
func (a *decisionApplier) withdraw(ctx context.Context, op plan.Operation) error {
	err := a.remove(ctx, op)
	if err != nil {
		a.outcomes.NotWithdrawn[op.Address.Prefix.Addr()] = plan.StillAnnouncedResult(
			&plan.Desired{Interface: op.Address.Interface}, plan.ReasonWithdrawFailed, err,
		)
	}
	return err
}

// removeOutdated removes an address that is desired elsewhere, with another mask, or not
// before it is claimed again.
func (a *decisionApplier) removeOutdated(ctx context.Context, op plan.Operation) error {
	err := a.remove(ctx, op)
	if err == nil {
		return nil
	}
	addr := op.Desired.Addr
	a.failed[addr] = true
	a.outcomes.Results[addr] = plan.FailedResult(op.Desired, plan.ReasonWithdrawFailed, err)
	if a.added[addr] { // the node has the address as desired, and as it was
		a.outcomes.Results[addr] = plan.StillAnnouncedResult(op.Desired, plan.ReasonWithdrawFailed, err)
	}
	return err
}

// changeUnlessYielded changes an address that the node is to have or keeps, unless the agent has yielded it:
// then it notes the Result of one that the node is to have. Nothing yields the address meanwhile.
func (a *decisionApplier) changeUnlessYielded(op plan.Operation, change func() error) (isAllowed bool, err error) {
	desired := op.Desired
	if desired == nil { // nothing asks for the address: any yield counts
		desired = &plan.Desired{Addr: op.Address.Prefix.Addr(), Interface: op.Address.Interface}
	}
	result, isAllowed, err := a.defender.changeUnlessYielded(desired, op.Reclaim, change)
	if !isAllowed && op.Desired != nil {
		a.outcomes.Results[op.Desired.Addr] = result
	}
	return isAllowed, err
}

// isRenewalTimeOver reports whether the renewals that are left, the last operations, are for the next
// sync. At least one address is renewed.
func (a *decisionApplier) isRenewalTimeOver() bool {
	if a.renewalsBegan.IsZero() {
		a.renewalsBegan = a.Tasks.Now()
	}
	return a.Tasks.Now().Sub(a.renewalsBegan) >= renewalBudget
}

func (a *decisionApplier) renew(op plan.Operation) error {
	isAllowed, err := a.changeUnlessYielded(op, func() error { return a.Kernel.Renew(op.Address) })
	switch {
	case !isAllowed:
		return nil
	case err == nil:
		a.Metrics.renewals.Inc()
	case op.Desired != nil:
		a.outcomes.Results[op.Desired.Addr] = plan.StillAnnouncedResult(op.Desired, plan.ReasonRenewFailed, err)
	}
	return err
}

func (a *decisionApplier) replace(op plan.Operation) error {
	isAllowed, err := a.changeUnlessYielded(op, func() error { return a.Kernel.Replace(op.Replaced, op.Address) })
	if isAllowed && err != nil {
		a.outcomes.Results[op.Desired.Addr] = plan.FailedResult(op.Desired, plan.ReasonAddFailed, err)
	}
	return err
}

// add adds an address, and announces it to the link.
func (a *decisionApplier) add(ctx context.Context, op plan.Operation) error {
	d := op.Desired
	switch {
	case a.outcomes.VirtualErr != nil && a.decision.IsVirtualMissing && d.Interface == a.decision.VirtualToEnsure:
		a.outcomes.Results[d.Addr] = plan.InterfaceMissingResult(d)
		return nil
	case op.AwaitProxy && a.isProxyBehind(ctx, d):
		a.outcomes.Results[d.Addr] = plan.WaitingForProxyResult(d)
		return nil
	}
	isAllowed, err := a.changeUnlessYielded(op, func() error { return a.Kernel.Add(op.Address) })
	if !isAllowed {
		return nil
	}
	if err != nil {
		a.failed[d.Addr] = true // the outdated address stays
		a.outcomes.Results[d.Addr] = plan.FailedResult(d, plan.ReasonAddFailed, err)
		return err
	}
	a.added[d.Addr] = true
	a.Metrics.additions.Inc()
	if settings := a.decision.Settings.Announce; op.Announce && settings.IsEnabled {
		a.announcer.schedule(d.Interface, d.Addr, settings)
		a.defender.noteAdded(d)
	}
	log.FromContext(ctx).Info("Announcing", "address", op.Address.Prefix, "interface", d.Interface, "services", d.Services)
	if !d.SilentSince.IsZero() {
		a.Metrics.failover.Observe(a.Tasks.Now().Sub(d.SilentSince).Seconds())
	}
	return nil
}
