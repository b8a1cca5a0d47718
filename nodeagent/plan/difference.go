package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Kind is what an Operation does.
type Kind int

// Kinds of operations.
const (
	Remove Kind = iota
	Renew
	Add
	// Replace removes an address of ours and at once adds it again: with another mask
	// or other flags, where the kernel cannot hold both, or behind the node's own address.
	Replace
)

func (k Kind) String() string {
	return [...]string{"Remove", "Renew", "Add", "Replace"}[k]
}

// Operation is one change to the kernel.
type Operation struct {
	Kind Kind
	// Address as the kernel is to hold it or, to be removed, as it holds it.
	Address Address
	// Replaced is what a Replace removes, as the kernel holds it.
	Replaced Address
	// InPlace means that the node has the address already, with another mask or other
	// flags: nothing is waited for before it is added.
	InPlace bool
	// Probe means that the address may be added only if no station answers for it. Decide
	// replaces such an operation by a question, or by an Add without Probe.
	Probe bool
	// Announce means that the link is told of the address once it is added.
	Announce bool
	// AwaitProxy means that the address is added only if the service proxy serves it.
	AwaitProxy bool
	// Reclaim means that the address was yielded, and is claimed again if the station that
	// had it is still silent.
	Reclaim bool
	// Desired is what the operation is for; nil if the address is not desired.
	Desired *Desired
}

// Plan is what to do to the kernel, and what that leads to.
type Plan struct {
	Operations []Operation
	// Results has an entry for each desired address, as if the operations that
	// need no probe had succeeded and the others were still to come.
	Results map[netip.Addr]Result
	// RenewIn is in how long an address has to be renewed next; 0 is never.
	RenewIn time.Duration
	// Kept are addresses that are not desired, and stay all the same.
	Kept []Address
}

// Diff compares what is desired with what the kernel holds. While the desired addresses
// are not known to be up to date, no address is taken over: the link is asked for it as for
// any other.
func Diff(settings Settings, desired []Desired, observed Observed, isUpToDate bool) Plan {
	p := Plan{Results: make(map[netip.Addr]Result, len(desired))}
	byAddr := make(map[netip.Addr]*Desired, len(desired))
	for i := range desired {
		byAddr[desired[i].Addr] = &desired[i]
	}
	found := findOurs(settings, byAddr, observed)
	ordered := orderedOperations{removals: found.removals}
	for i := range desired {
		d := &desired[i]
		target, outdated := settings.kernelAddress(d), found.outdated[d.Addr]
		if current := found.inPlace[d.Addr]; current != nil {
			ordered.remove(d, outdated)
			p.Results[d.Addr] = AnnouncedResult(d)
			if found.beforeOwn[d.Addr] {
				ordered.renewals = append(
					ordered.renewals, Operation{Kind: Replace, Address: target, Replaced: *current, InPlace: true, Desired: d},
				)
				p.renewIn(renewalInterval(target))
				continue
			}
			due := untilRenewal(target, *current)
			if due <= 0 {
				ordered.renewals = append(ordered.renewals, Operation{Kind: Renew, Address: target, Desired: d})
				due = renewalInterval(target)
			}
			p.renewIn(due)
			continue
		}
		if result, isRefused := whyNotAddable(d, observed, found.foreign, len(outdated) > 0); isRefused {
			ordered.remove(d, outdated)
			p.Results[d.Addr] = result
			continue
		}
		add := addition(settings, d, len(outdated) > 0, isUpToDate)
		p.Results[d.Addr] = AnnouncedResult(d)
		if add.Probe {
			p.Results[d.Addr] = probingResult(d)
		}
		p.renewIn(renewalInterval(target))
		ordered.add(add, outdated)
	}
	p.Operations = ordered.all()
	return p
}

// addition returns the operation that adds a desired address.
func addition(settings Settings, d *Desired, isInPlace, isUpToDate bool) Operation {
	add := Operation{Kind: Add, Address: settings.kernelAddress(d), Desired: d, InPlace: isInPlace}
	if d.IsLocal && !isInPlace {
		add.Announce = true
		add.Probe = settings.Probe.IsEnabled && !d.SkipsProbe && (!d.IsTakeover || !isUpToDate)
	}
	return add
}

// orderedOperations are the operations of a Plan by when they are applied.
type orderedOperations struct{ claims, additionsBeside, removals, renewals, additions []Operation }

func (o *orderedOperations) remove(d *Desired, addresses []Address) {
	for _, a := range addresses {
		o.removals = append(o.removals, Operation{Kind: Remove, Address: a, Desired: d})
	}
}

// add adds an address, which the node may have with another mask or other flags.
func (o *orderedOperations) add(add Operation, outdated []Address) {
	switch {
	case !add.InPlace && add.Desired.IsProvisional:
		o.claims = append(o.claims, add)
	case !add.InPlace:
		o.additions = append(o.additions, add)
	case canHoldBoth(add.Address, outdated):
		o.additionsBeside = append(o.additionsBeside, add)
		o.remove(add.Desired, outdated)
	default:
		add.Kind, add.Replaced = Replace, outdated[0]
		o.remove(add.Desired, outdated[1:])
		o.renewals = append(o.renewals, add)
	}
}

// all returns the operations in the order in which they are applied.
func (o *orderedOperations) all() []Operation {
	slices.SortStableFunc(o.removals, func(a, b Operation) int {
		return cmp.Or(
			a.Address.Prefix.Addr().Compare(b.Address.Prefix.Addr()), cmp.Compare(a.Address.Interface, b.Address.Interface),
		)
	})
	return slices.Concat(o.claims, o.additionsBeside, o.removals, o.renewals, o.additions)
}

// oursInKernel is what the kernel has of ours.
type oursInKernel struct {
	inPlace   map[netip.Addr]*Address  // ours, where and as desired
	outdated  map[netip.Addr][]Address // ours, on the desired interface, with another mask or other flags
	foreign   map[netip.Addr]Address   // not ours, on the desired interface
	removals  []Operation              // removals of ours that is not desired, or is desired on another interface
	beforeOwn map[netip.Addr]bool      // those of inPlace that stand before the node's own: see beforeOwn
}

// findOurs compares the addresses that the kernel holds with those that are desired: what is ours and not
// desired where it is, is to be removed.
func findOurs(settings Settings, desired map[netip.Addr]*Desired, observed Observed) oursInKernel {
	k := oursInKernel{
		inPlace: make(map[netip.Addr]*Address, len(desired)), outdated: map[netip.Addr][]Address{},
		foreign: map[netip.Addr]Address{},
	}
	for i := range observed.Addresses {
		a := &observed.Addresses[i]
		d := desired[a.Prefix.Addr()]
		isOnInterface := d != nil && d.Interface == a.Interface
		switch {
		case !a.IsOurs:
			if isOnInterface {
				k.foreign[d.Addr] = *a
			}
		case isOnInterface && a.Prefix == d.Prefix && a.NoPrefixRoute == settings.kernelAddress(d).NoPrefixRoute:
			k.inPlace[d.Addr] = a
		case isOnInterface:
			k.outdated[d.Addr] = append(k.outdated[d.Addr], *a)
		default:
			k.removals = append(k.removals, Operation{Kind: Remove, Address: *a, Desired: d})
		}
	}
	k.beforeOwn = beforeOwn(desired, observed.Addresses)
	return k
}

// beforeOwn returns the desired Local IPv4 addresses that stand on their interface before the
// first of the node's own, as they do after another program has removed the node's address and
// added it again.
//
// The kernel lists IPv4 addresses in the order in which they were added. It sends from the first
// one where no address is in the gateway's subnet (inet_select_addr), and the kubelet and flannel
// take the first one for the node's (see docs/how-to/network-managers.md). So the first must be
// the node's own. The kernel lists IPv6 addresses the other way round, the last one first, but
// never sends from one with a preferred lifetime of 0.
//
// An address of another scope than global does not count: ours always stand before it.
func beforeOwn(desired map[netip.Addr]*Desired, addresses []Address) map[netip.Addr]bool {
	first, beforeByInterface, hasOwn := map[netip.Addr]bool{}, map[string][]netip.Addr{}, map[string]bool{}
	for i := range addresses {
		a := &addresses[i]
		addr := a.Prefix.Addr()
		switch {
		case !addr.Is4() || a.HasNarrowScope || hasOwn[a.Interface]:
		case !a.IsOurs:
			hasOwn[a.Interface] = true
			for _, before := range beforeByInterface[a.Interface] {
				first[before] = true
			}
		case desired[addr] != nil && desired[addr].IsLocal && desired[addr].Interface == a.Interface:
			beforeByInterface[a.Interface] = append(beforeByInterface[a.Interface], addr)
		}
	}
	return first
}

// canHoldBoth reports whether an interface can hold an address beside those that it
// replaces: the kernel tells IPv4 addresses apart by their masks, too, and IPv6 addresses
// not.
func canHoldBoth(target Address, outdated []Address) bool {
	return target.Prefix.Addr().Is4() &&
		!slices.ContainsFunc(outdated, func(a Address) bool { return a.Prefix == target.Prefix })
}

// whyNotAddable says why a missing address cannot be added now.
func whyNotAddable(d *Desired, observed Observed, foreign map[netip.Addr]Address, isInPlace bool) (Result, bool) {
	pending := Result{State: purelbv1.StatePending, Epoch: d.Epoch}
	link, ok := observed.interfaceNamed(d.Interface)
	switch {
	case !ok:
		return InterfaceMissingResult(d), true
	case foreign[d.Addr].Prefix.IsValid():
		return Result{
			State: purelbv1.StateFailed, Epoch: d.Epoch, Reason: ReasonForeignAddress,
			Message: fmt.Sprintf(
				"%s is already on %s, and PureLB did not put it there; remove it there, or take it out of the pool",
				foreign[d.Addr].Prefix, d.Interface,
			),
		}, true
	case d.IsLocal && !link.IsUp && !isInPlace:
		// A probe that no station can hear proves nothing.
		pending.Reason, pending.Message = ReasonInterfaceDown,
			fmt.Sprintf("interface %s is down or has no carrier", d.Interface)
		return pending, true
	case d.IsLocal && d.Addr.Is4() && !isInPlace && !Sender(observed.Addresses, d.Interface, d.Addr).IsValid():
		// The node could not answer the clients that the address attracts, and other programs
		// would take the address for the node's.
		pending.Reason, pending.Message = ReasonNoNodeAddress,
			fmt.Sprintf("interface %s has no IPv4 address of the node's own", d.Interface)
		return pending, true
	case d.IsHandingOver && !isInPlace:
		pending.Reason, pending.Message = ReasonHandingOver, "is being handed over to another node"
		return pending, true
	}
	return Result{}, false
}

// renewIn notes that an address has to be renewed after a wait; 0 and Forever mean never.
func (p *Plan) renewIn(wait time.Duration) {
	if wait != Forever {
		p.RenewIn = ShorterWait(p.RenewIn, wait)
	}
}
