package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// NoteYield notes that the agent yields a held address to a station.
func (d *Defence) NoteYield(h Held, mac string, now time.Time) {
	addr := h.Prefix.Addr()
	y := YieldedAddress{Epoch: h.Epoch, MAC: mac, Announcement: h.Announcement, AnsweredAt: now}
	if !h.IsUndefended {
		y.Interface = h.Interface
	}
	d.Yields[addr] = y
	delete(d.Held, addr)
	delete(d.HeldStates, addr)
}

// RestoreYields takes over what an earlier process of the agent had yielded, according to the
// checkpoint. When the stations last answered is not known.
func (d *Defence) RestoreYields(yields map[netip.Addr]YieldedAddress, now time.Time) {
	for addr, y := range yields {
		y.AnsweredAt = now
		d.Yields[addr] = y
	}
}

// UpdateYields forgets yields of addresses that are not desired any more, or are under a
// higher epoch, and brings the others up to date. An address that is handed over is not claimed again.
func (d *Defence) UpdateYields(desired []Desired) {
	if len(d.Yields) == 0 {
		return
	}
	local := map[netip.Addr]*Desired{}
	for i := range desired {
		if desired[i].IsLocal {
			local[desired[i].Addr] = &desired[i]
		}
	}
	for addr, y := range d.Yields {
		want := local[addr]
		if want == nil || !y.covers(want) {
			delete(d.Yields, addr)
			continue
		}
		y.Announcement, y.Interface = cmp.Or(want.Announcement, y.Announcement), ""
		if !want.IsHandingOver {
			y.Interface = want.Interface
		}
		d.Yields[addr] = y
	}
}

// ForgetYieldsAboveListedEpochs forgets yields of addresses whose entries have a lower epoch than they in
// Announcements that the API server has just listed. The list is later than the yields, and the
// epoch of an entry only grows: such an entry was made anew while the agent did not look, and
// the manager knows nothing of the yield.
func (d *Defence) ForgetYieldsAboveListedEpochs(listed []purelbv1.Announcement) {
	if len(d.Yields) == 0 {
		return
	}
	desired, _ := MergeDesired(listed, nil)
	for i := range desired {
		if y, isYielded := d.Yields[desired[i].Addr]; isYielded && desired[i].Epoch < y.Epoch {
			delete(d.Yields, desired[i].Addr)
		}
	}
}

// AllowChange decides whether the node may add, renew or replace a desired address now, as the rule of
// yields says, and returns, if not, its Result. An operation that claims the address again ends the yield.
func (d *Defence) AllowChange(desired *Desired, isReclaim bool, now time.Time) (Result, bool) {
	y, isYielded, isSilent := yieldOf(d.Yields, desired, now)
	if isYielded && (!isReclaim || !isSilent) {
		return y.Result(), false
	}
	if isYielded {
		delete(d.Yields, desired.Addr)
	}
	return Result{}, true
}

// NoteProbeAnswer notes that a station has answered for a yielded address.
func (d *Defence) NoteProbeAnswer(addr netip.Addr, p ProbeState) {
	if y, isYielded := d.Yields[addr]; isYielded {
		d.Yields[addr] = y.answeredBy(p.MAC, p.AnsweredAt)
	}
}

// hearOfYielded notes that a station answers for a yielded address. A mere claim does not
// count: it does not show that a station has the address.
func (d *Defence) hearOfYielded(iface string, f Frame, now time.Time) {
	y, isYielded := d.Yields[f.Addr]
	if isYielded && y.Interface == iface && d.statementOf(iface, f, y.AskedAt, now) == StatementAnswer {
		d.Yields[f.Addr] = y.answeredBy(f.MAC, now)
	}
}

// ReclaimQuestion is a question to the station to which an address was yielded.
type ReclaimQuestion struct {
	Addr           netip.Addr
	Interface, MAC string
}

// BeginReclaimQuestions returns which stations to ask now whether they still have the addresses that
// were yielded to them, first those that were not asked for longest, and notes that they are
// asked. The agent asks nobody by an interface that isUp says is down: silence would prove
// nothing. newlySilent means that a station has fallen silent, so that the worker has to
// claim its address.
func (d *Defence) BeginReclaimQuestions(
	isUp func(iface string) bool, now time.Time,
) (questions []ReclaimQuestion, newlySilent bool) {
	var due []netip.Addr
	for addr, y := range d.Yields {
		if y.Interface == "" || !isUp(y.Interface) {
			continue
		}
		due = append(due, addr)
		if y.IsSilent(now) && !y.IsSilenceReported {
			y.IsSilenceReported, newlySilent = true, true
			d.Yields[addr] = y
		}
	}
	slices.SortFunc(due, func(a, b netip.Addr) int {
		return cmp.Or(d.Yields[a].AskedAt.Compare(d.Yields[b].AskedAt), a.Compare(b))
	})
	const atOnce = int(yieldAskRate * YieldAskInterval / time.Second)
	for _, addr := range due[:min(len(due), atOnce)] {
		y := d.Yields[addr]
		questions = append(questions, ReclaimQuestion{addr, y.Interface, y.MAC})
		y.AskedAt = now
		y.Unanswered++
		d.Yields[addr] = y
	}
	return questions, newlySilent
}

// NoteReclaimQuestionNotSent notes that the question for a yielded address could not be sent.
func (d *Defence) NoteReclaimQuestionNotSent(addr netip.Addr) {
	if y, isYielded := d.Yields[addr]; isYielded && y.Unanswered > 0 {
		y.Unanswered--
		d.Yields[addr] = y
	}
}
