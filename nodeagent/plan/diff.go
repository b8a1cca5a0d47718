package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Reasons of address states.
const (
	ReasonProbing          = "Probing"
	ReasonInterfaceMissing = "InterfaceMissing"
	ReasonInterfaceDown    = "InterfaceDown"
	ReasonLeaving          = "Leaving"
	ReasonForeignAddress   = "ForeignAddress"
	ReasonInvalid          = purelbv1.ReasonInvalid
	ReasonPreviousHolder   = "PreviousHolder"
	ReasonAnswered         = "Answered"
	ReasonProbeFailed      = "ProbeFailed"
	ReasonYielded          = "Yielded"
	ReasonWaitingForProxy  = "WaitingForProxy"
	ReasonContested        = "Contested"
	ReasonAddFailed        = "AddFailed"
	ReasonRenewFailed      = "RenewFailed"
	ReasonWithdrawFailed   = "WithdrawFailed"
	// ReasonWithdrawing marks an address that is not desired and was not known
	// of: see Withhold.
	ReasonWithdrawing = "Withdrawing"
	// ReasonLost marks an address that was announced under this epoch and is
	// not any more, so that Takeover does not count a second time.
	ReasonLost = "Lost"
)

// Desired is one address that the node is to have.
type Desired struct {
	Addr      netip.Addr
	Prefix    netip.Prefix
	Interface string
	Local     bool
	// Takeover claims the address even though somebody else may answer for it:
	// its epoch has not been realised yet.
	Takeover bool
	// SkipProbe claims it without asking whether somebody does.
	SkipProbe bool
	// Leaving means that it is being handed over: kept, but not claimed.
	Leaving bool
	// PreviousMACs is the node that held it before.
	PreviousMACs []string
	// HealthPort is where the service proxy says whether it serves the address;
	// 0 if that does not matter.
	HealthPort int32
	Epoch      int64
	Services   []string
}

// Merge returns the addresses of all Announcements of a node and of what is common,
// ascending, and a Result for each that cannot be used. Of an address that is in
// several Announcements (which lasts for a moment at most, while it moves between
// slices) the entry with the highest epoch counts, then the first by the
// Announcement's name, and then what is common.
func Merge(announcements []purelbv1.Announcement, commons []purelbv1.CommonAnnouncement) ([]Desired, map[netip.Addr]Result) {
	announcements = slices.Clone(announcements)
	slices.SortFunc(announcements, func(a, b purelbv1.Announcement) int { return cmp.Compare(a.Name, b.Name) })
	entries := 0
	for _, ann := range announcements {
		entries += len(ann.Spec.Addresses)
	}
	for _, c := range commons {
		entries += len(c.Spec.Addresses)
	}
	desired, merged := make([]Desired, 0, entries), make(map[netip.Addr]int, entries) // and where in desired
	invalid := map[netip.Addr]Result{}
	for _, ann := range announcements {
		for _, entry := range ann.Spec.Addresses {
			addr, err := netip.ParseAddr(entry.Address)
			if err != nil {
				continue // not an address: Status reports it
			}
			i, has := merged[addr]
			if has && desired[i].Epoch >= entry.Epoch {
				continue
			}
			d, result := desiredBy(addr, entry)
			if result.State != "" {
				invalid[addr] = result
				continue
			}
			d.Takeover = d.Takeover && !realised(ann.Status, entry)
			if has {
				desired[i] = d
				continue
			}
			merged[addr] = len(desired)
			desired = append(desired, d)
		}
	}
	for _, c := range commons {
		for _, entry := range c.Spec.Addresses {
			addr, err := netip.ParseAddr(entry.Address)
			if _, has := merged[addr]; has || err != nil {
				continue
			}
			if d, result := desiredBy(addr, entry); result.State != "" {
				invalid[addr] = result
			} else {
				merged[addr] = len(desired)
				desired = append(desired, d)
			}
		}
	}
	maps.DeleteFunc(invalid, func(addr netip.Addr, _ Result) bool { _, has := merged[addr]; return has })
	slices.SortFunc(desired, func(a, b Desired) int { return a.Addr.Compare(b.Addr) })
	return desired, invalid
}

// desiredBy is what an entry asks for, or a Result if that is nothing.
func desiredBy(addr netip.Addr, entry purelbv1.AnnouncedAddress) (Desired, Result) {
	prefix, err := addr.Prefix(int(entry.PrefixLength))
	if err != nil || entry.PrefixLength < 1 {
		return Desired{}, Result{
			State: purelbv1.StateFailed, Epoch: entry.Epoch, Reason: ReasonInvalid,
			Message: fmt.Sprintf("prefix length %d is not one of this family", entry.PrefixLength),
		}
	}
	return Desired{
		Addr:         addr,
		Prefix:       netip.PrefixFrom(addr, prefix.Bits()),
		Interface:    string(entry.Interface),
		Local:        entry.Type == purelbv1.AnnounceLocal,
		Takeover:     entry.Claim == purelbv1.ClaimTakeover,
		SkipProbe:    entry.SkipProbe,
		Leaving:      entry.Leaving,
		PreviousMACs: entry.PreviousMACs,
		HealthPort:   entry.HealthCheckNodePort,
		Epoch:        entry.Epoch,
		Services:     entry.Services,
	}, Result{}
}

// realised reports whether the node has already had the address under the
// entry's epoch.
func realised(status purelbv1.AnnouncementStatus, entry purelbv1.AnnouncedAddress) bool {
	return slices.ContainsFunc(status.Addresses, func(s purelbv1.AddressStatus) bool {
		return s.Address == entry.Address && s.Epoch == entry.Epoch &&
			(s.State == purelbv1.StateAnnounced || s.State == purelbv1.StateYielded || s.Reason == ReasonLost)
	})
}

// Kind is what an Operation does.
type Kind int

// Kinds of operations.
const (
	Remove Kind = iota
	Renew
	Add
)

func (k Kind) String() string {
	return [...]string{"Remove", "Renew", "Add"}[k]
}

// Operation is one change to the kernel.
type Operation struct {
	Kind Kind
	// Address as the kernel is to hold it or, to be removed, as it holds it.
	Address Address
	// Probe means that the address may be added only if nobody answers for it.
	Probe bool
	// Announce means that the link is to be told, once the address is there.
	Announce bool
	// Desired is what the operation is for; nil if the address is not desired.
	Desired *Desired
}

// Result is what became of a desired address.
type Result struct {
	State     purelbv1.AddressState
	Epoch     int64
	Interface string
	MAC       string
	Reason    string
	Message   string
}

// Plan is what to do, and what that leads to.
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

// Diff compares. trusted says that the desired set is known to be up to date;
// if it is not, no address is taken over: it is probed for like any other.
func Diff(settings Settings, desired []Desired, observed Observed, trusted bool) Plan {
	p := Plan{Results: make(map[netip.Addr]Result, len(desired))}
	want := make(map[netip.Addr]*Desired, len(desired))
	for i := range desired {
		want[desired[i].Addr] = &desired[i]
	}

	held := make(map[netip.Addr]*Address, len(desired)) // ours, and where it is to be
	replaced := map[netip.Addr]bool{}                   // ours, on its interface, but to be added anew
	foreign := map[netip.Addr]Address{}                 // where ours is to be
	var renewals, adds []Operation
	for i := range observed.Addresses {
		a := &observed.Addresses[i]
		d := want[a.Prefix.Addr()]
		inPlace := d != nil && d.Interface == a.Interface
		switch {
		case !a.Ours:
			if inPlace {
				foreign[d.Addr] = *a
			}
		case inPlace && a.Prefix == d.Prefix && a.NoPrefixRoute == settings.address(d).NoPrefixRoute:
			held[d.Addr] = a
		default:
			p.Operations = append(p.Operations, Operation{Kind: Remove, Address: *a, Desired: d})
			if inPlace {
				replaced[d.Addr] = true
			}
		}
	}

	for i := range desired {
		d := &desired[i]
		target := settings.address(d)
		current, ok := held[d.Addr]
		if ok {
			p.Results[d.Addr] = Announced(d)
			due := renewalDue(target, *current)
			if due <= 0 {
				renewals = append(renewals, Operation{Kind: Renew, Address: target, Desired: d})
				due = interval(target)
			}
			p.renewIn(due)
			continue
		}
		if result, refused := refusal(d, observed, foreign, replaced[d.Addr]); refused {
			p.Results[d.Addr] = result
			continue
		}
		add := Operation{Kind: Add, Address: target, Desired: d}
		if d.Local && !replaced[d.Addr] {
			add.Announce = true
			add.Probe = settings.Probe.Enabled && !d.SkipProbe && (!d.Takeover || !trusted)
		}
		if add.Probe {
			p.Results[d.Addr] = Result{State: purelbv1.StatePending, Epoch: d.Epoch, Reason: ReasonProbing, Message: "asking the link whether somebody has it"}
		} else {
			p.Results[d.Addr] = Announced(d)
		}
		adds = append(adds, add)
		p.renewIn(interval(target))
	}
	slices.SortStableFunc(p.Operations, func(a, b Operation) int {
		return cmp.Or(a.Address.Prefix.Addr().Compare(b.Address.Prefix.Addr()), cmp.Compare(a.Address.Interface, b.Address.Interface))
	})
	p.Operations = append(append(p.Operations, renewals...), adds...)
	return p
}

// refusal says why a missing address cannot be added now.
func refusal(d *Desired, observed Observed, foreign map[netip.Addr]Address, replaced bool) (Result, bool) {
	pending := Result{State: purelbv1.StatePending, Epoch: d.Epoch}
	link, ok := observed.link(d.Interface)
	switch {
	case !ok:
		pending.Reason, pending.Message = ReasonInterfaceMissing, fmt.Sprintf("there is no interface %s", d.Interface)
		return pending, true
	case foreign[d.Addr].Prefix.IsValid():
		return Result{
			State: purelbv1.StateFailed, Epoch: d.Epoch, Reason: ReasonForeignAddress,
			Message: fmt.Sprintf("%s is on %s already, put there by something else; remove it there, or take it out of the pool", foreign[d.Addr].Prefix, d.Interface),
		}, true
	case d.Local && !link.Up && !replaced:
		// A probe that nobody can hear proves nothing.
		pending.Reason, pending.Message = ReasonInterfaceDown, fmt.Sprintf("interface %s is down or has no carrier", d.Interface)
		return pending, true
	case d.Leaving && !replaced:
		pending.Reason, pending.Message = ReasonLeaving, "being handed over to another node"
		return pending, true
	}
	return Result{}, false
}

// address is how a desired address is put on its interface.
func (s Settings) address(d *Desired) Address {
	with := s.Virtual
	if d.Local {
		with = s.Local
	}
	a := Address{
		Interface: d.Interface, Prefix: d.Prefix, Ours: true,
		Valid: with.Valid, Preferred: with.Preferred, NoPrefixRoute: with.NoPrefixRoute,
	}
	if d.Local && d.Addr.Is6() {
		// Else the node would choose it as a source address (RFC 6724 rule 3).
		a.Preferred = 0
	}
	return a
}

// interval is how long an address with these lifetimes can be left alone; 0 is
// forever.
func interval(target Address) time.Duration {
	shortest := target.Valid
	if target.Preferred > 0 {
		shortest = min(shortest, target.Preferred)
	}
	if shortest == Forever {
		return 0
	}
	return shortest / 3
}

// renewalDue is in how long the address is to be renewed: when less than two
// thirds of a lifetime remain. It is due at once, 0 or less, also if it has
// more left than it is to have, since then the settings changed. Forever means
// never.
func renewalDue(target, current Address) time.Duration {
	due := Forever
	for _, lifetime := range []struct{ target, current time.Duration }{
		{target.Valid, current.Valid},
		{target.Preferred, current.Preferred},
	} {
		switch {
		case lifetime.current == lifetime.target && (lifetime.target == Forever || lifetime.target == 0):
		case lifetime.current > lifetime.target:
			return 0
		default:
			// The kernel counts whole seconds and rounds up.
			due = min(due, lifetime.current-lifetime.target*2/3)
		}
	}
	return due
}

// renewIn notes that an address has to be renewed in d; 0 and Forever are
// never.
func (p *Plan) renewIn(d time.Duration) {
	if d <= 0 || d == Forever {
		return
	}
	if p.RenewIn == 0 || d < p.RenewIn {
		p.RenewIn = d
	}
}

// Announced is the Result of an address that is in place.
func Announced(d *Desired) Result {
	return Result{State: purelbv1.StateAnnounced, Epoch: d.Epoch, Interface: d.Interface}
}

// WaitingForProxy is the Result of an address whose traffic stays on the node,
// which does not serve it yet.
func WaitingForProxy(d *Desired) Result {
	return Result{
		State: purelbv1.StatePending, Epoch: d.Epoch, Reason: ReasonWaitingForProxy,
		Message: fmt.Sprintf("the service proxy does not say at port %d that it has an endpoint here", d.HealthPort),
	}
}

// Failed is the Result of an address that could not be added or probed for.
func Failed(d *Desired, reason string, err error) Result {
	return Result{State: purelbv1.StateFailed, Epoch: d.Epoch, Reason: reason, Message: err.Error()}
}

// Kept is the Result of an address that is still in place although an operation
// on it failed.
func Kept(d *Desired, reason string, err error) Result {
	r := Announced(d)
	r.Reason, r.Message = reason, err.Error()
	return r
}

// Answered is the Result of an address for which mac answers: its previous
// holder, whose kernel serves on although its agent is away, or a stranger.
func Answered(d *Desired, mac string) Result {
	if slices.ContainsFunc(d.PreviousMACs, func(m string) bool { return strings.EqualFold(m, mac) }) {
		return Result{
			State: purelbv1.StateStandby, Epoch: d.Epoch, MAC: mac, Reason: ReasonPreviousHolder,
			Message: fmt.Sprintf("its previous holder, %s, still answers for it; waiting until it stops", mac),
		}
	}
	return Result{
		State: purelbv1.StateConflict, Epoch: d.Epoch, MAC: mac, Reason: ReasonAnswered,
		Message: fmt.Sprintf("%s on %s answers for it; waiting until it stops", mac, d.Interface),
	}
}
