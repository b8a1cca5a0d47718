package nodeagent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// applying is one application of a Plan.
type applying struct {
	*Agent
	settings plan.Settings
	results  map[netip.Addr]plan.Result
	// stranded are addresses that are not desired and could not be removed, or
	// are not to be yet.
	stranded map[netip.Addr]plan.Result
	// failed are addresses with which something went wrong: no more is done
	// with them.
	failed map[netip.Addr]bool
	// again is when to look again; 0 is never.
	again time.Duration
	// own is addresses of the node's own.
	own []netip.Addr
}

// applying starts one, from the results that the Plan foresees.
func (a *Agent) applying(settings plan.Settings, results map[netip.Addr]plan.Result) *applying {
	return &applying{Agent: a, settings: settings, results: results, stranded: map[netip.Addr]plan.Result{}, failed: map[netip.Addr]bool{}}
}

// apply does all operations, the claims that need a probe last. An address that
// fails does not stop the others.
func (r *applying) apply(ctx context.Context, operations []plan.Operation) error {
	var errs error
	var claims []plan.Operation
	for _, op := range operations {
		switch {
		case op.Kind == plan.Remove:
			errs = errors.Join(errs, r.remove(ctx, op))
		case r.failed[op.Address.Prefix.Addr()]:
		case op.Kind == plan.Renew:
			errs = errors.Join(errs, r.renew(op))
		case op.Probe:
			claims = append(claims, op)
		default:
			errs = errors.Join(errs, r.add(ctx, op))
		}
	}
	return errors.Join(errs, r.claim(ctx, claims))
}

func (r *applying) remove(ctx context.Context, op plan.Operation) error {
	addr := op.Address.Prefix.Addr()
	r.announcer.Cancel(op.Address.Interface, addr)
	err := r.Kernel.Remove(op.Address)
	if err == nil {
		r.Metrics.withdrawals.Inc()
		log.FromContext(ctx).Info("Withdrew", "address", op.Address.Prefix, "interface", op.Address.Interface)
		return nil
	}
	if op.Desired != nil {
		r.failed[addr] = true
		r.results[addr] = plan.Failed(op.Desired, plan.ReasonWithdrawFailed, err)
		return err
	}
	r.stranded[addr] = plan.Kept(&plan.Desired{Interface: op.Address.Interface}, plan.ReasonWithdrawFailed, err)
	return err
}

func (r *applying) renew(op plan.Operation) error {
	done, err := r.guard.unlessYielded(op.Desired, r.results, func() error { return r.Kernel.Renew(op.Address) })
	if !done {
		return nil
	}
	if err != nil {
		if op.Desired != nil {
			r.results[op.Desired.Addr] = plan.Kept(op.Desired, plan.ReasonRenewFailed, err)
		}
		return err
	}
	r.Metrics.renewals.Inc()
	return nil
}

func (r *applying) add(ctx context.Context, op plan.Operation) error {
	d := op.Desired
	if r.waitsForProxy(ctx, d) {
		r.results[d.Addr] = plan.WaitingForProxy(d)
		r.again = earliest(r.again, proxyRetry)
		return nil
	}
	delete(r.waiting, d.Addr)
	done, err := r.guard.unlessYielded(d, r.results, func() error { return r.Kernel.Add(op.Address) })
	if !done {
		return nil
	}
	if err != nil {
		r.results[d.Addr] = plan.Failed(d, plan.ReasonAddFailed, err)
		return err
	}
	r.results[d.Addr] = plan.Announced(d)
	r.Metrics.additions.Inc()
	if op.Announce && r.settings.Announce.Enabled {
		r.announcer.Schedule(d.Interface, d.Addr, r.settings.Announce)
		r.guard.claimed(d)
	}
	log.FromContext(ctx).Info("Announcing", "address", op.Address.Prefix, "interface", d.Interface, "services", d.Services)
	return nil
}

// claim adds the addresses for which nobody answers. Those for which the link has
// to be asked first wait for a later sync, which comes when it has been.
func (r *applying) claim(ctx context.Context, claims []plan.Operation) error {
	targets := make([]neigh.Target, 0, len(claims))
	for _, op := range claims {
		targets = append(targets, target(op.Desired))
	}
	known := r.prober.look(ctx, targets, r.settings.Probe)
	var errs error
	for _, op := range claims {
		d, q := op.Desired, known[target(op.Desired)]
		if q.answer.Err != nil {
			r.results[d.Addr] = plan.Failed(d, plan.ReasonProbeFailed, q.answer.Err)
			errs = errors.Join(errs, q.answer.Err)
			continue
		}
		mac := r.stranger(d.Interface, q.answer.MAC)
		if q.asking && mac == "" {
			continue // its result says so
		}
		result, free := r.guard.claiming(d, mac, q.answered)
		if free {
			errs = errors.Join(errs, r.add(ctx, op))
		} else {
			r.results[d.Addr] = result
			r.again = earliest(r.again, reprobe)
		}
		if mac == "" && r.results[d.Addr].State != purelbv1.StateFailed {
			r.prober.forget(target(d)) // the next claim asks anew
		}
	}
	return errs
}

func target(d *plan.Desired) neigh.Target {
	return neigh.Target{Interface: d.Interface, Addr: d.Addr}
}

// stranger is who answered a probe, or empty for nobody. The default gateway is
// nobody: it may answer for every address, as a proxy (RFC 1027).
func (r *applying) stranger(iface string, mac neigh.MAC) string {
	if mac == (neigh.MAC{}) || slices.Contains(r.Kernel.GatewayMACs(iface), mac.String()) {
		return ""
	}
	return mac.String()
}
