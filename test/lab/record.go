package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Request is one HTTP request. Times are since the measurement began.
type Request struct {
	Start, End time.Duration
	// Connected is when the host that asked for it had a connection; zero if it never had.
	Connected time.Duration
	Err       error
}

// wasRetransmitted reports whether a first SYN, or the answer to it, was lost: the client of a
// request has a connection only after it has sent the SYN again.
func (r Request) wasRetransmitted() bool {
	const firstRetransmission = time.Second
	return r.Connected > 0 && r.Connected-r.Start >= firstRetransmission
}

// Answer is a message by ARP or ND with which a station says that it has the address.
type Answer struct {
	At  time.Duration
	MAC string
}

// Record is what a Meter has seen.
type Record struct {
	Requests      []Request       // in the order in which they ended
	WireRequests  []time.Duration // when requests by ARP or ND were sent; none from a host that is not on the link
	WireAnswers   []Answer        // in the order in which they came
	UnaskedClaims []Answer        // claims to all, or to another station; in the order in which they came
	End           time.Duration
	wireError     error
}

// Figures summarise a Record.
type Figures struct {
	// Requests is how many HTTP requests were made.
	Requests int
	// InFlight is how many requests failed that were under way when another station than
	// before claimed the address towards the host that asks: connections cannot move to it.
	// From a host that is not on the link, which hears no claims, it is those whose
	// connections were reset: their packets came to a node that does not know them. Failed is
	// how many others failed.
	Failed, InFlight int
	// Retransmitted is how many requests succeeded, but only after their SYN had been sent
	// again.
	Retransmitted int
	// Outage is the longest time without a successful HTTP request.
	Outage time.Duration
	// Silence is the longest time from a request by ARP or ND to the next answer; zero
	// from a host that is not on the link. A time without requests, because the machine
	// was busy, does not count.
	Silence time.Duration
	// Duplicate is for how long, in total, two stations answered the same requests.
	Duplicate time.Duration
	// Changes is how often another station than before answered, alone.
	Changes int
	// Settled is since when only that station has answered which answered last. It is the end of
	// the measurement if no station answered, and zero from a host that is not on the link.
	Settled time.Duration
	// FirstError is the error of the failed request that ended first, and FirstFailure
	// when that request began.
	FirstError   error
	FirstFailure time.Duration
}

// Figures computes the figures of the record.
func (r Record) Figures() Figures {
	f := Figures{Requests: len(r.Requests)}
	switches := r.stationChanges()
	var good []time.Duration
	for _, q := range r.Requests {
		switch {
		case q.Err == nil:
			good = append(good, q.End)
			if q.wasRetransmitted() {
				f.Retransmitted++
			}
			continue
		case len(r.WireAnswers) == 0 && errors.Is(q.Err, syscall.ECONNRESET):
			f.InFlight++
		case slices.ContainsFunc(switches, q.wasUnderWay):
			f.InFlight++
		default:
			f.Failed++
		}
		if f.FirstError == nil {
			f.FirstError, f.FirstFailure = q.Err, q.Start
		}
	}
	f.Outage = longestGap(good, r.End)
	f.Silence = r.longestSilence()
	f.Duplicate, f.Changes = r.countStations()
	f.Settled = r.settled()
	return f
}

// claimIsNotedWithin is how much later than a claim comes the kernel of a busy machine acts on it.
const claimIsNotedWithin = 10 * time.Millisecond

// wasUnderWay reports whether the request was under way when the host turned to the station that
// claimed the address at a time. A connection that was made just afterwards, and then reset, was made
// to the station before.
func (r Request) wasUnderWay(claimed time.Duration) bool {
	begin := r.Start
	if r.Connected > 0 && errors.Is(r.Err, syscall.ECONNRESET) {
		begin -= claimIsNotedWithin
	}
	return begin <= claimed && claimed <= r.End
}

// stationChanges returns when another station than before claimed the address unasked. What stations
// answer to the Meter changes no neighbour table, and so comes before or after that.
func (r Record) stationChanges() []time.Duration {
	var times []time.Duration
	last := ""
	if len(r.WireAnswers) > 0 {
		last = r.WireAnswers[0].MAC
	}
	for _, a := range r.UnaskedClaims {
		if a.MAC != last {
			times = append(times, a.At)
		}
		last = a.MAC
	}
	return times
}

// longestGap returns the longest time between two of the times, before the first or after
// the last.
func longestGap(times []time.Duration, end time.Duration) time.Duration {
	slices.Sort(times)
	gap, last := time.Duration(0), time.Duration(0)
	for _, t := range append(times, end) {
		gap, last = max(gap, t-last), t
	}
	return gap
}

// longestSilence returns the longest time from the first request after an answer to the
// next answer.
func (r Record) longestSilence() time.Duration {
	longest, asked := time.Duration(0), r.WireRequests
	for _, a := range append(r.WireAnswers, Answer{At: r.End}) {
		if len(asked) > 0 && asked[0] < a.At {
			longest = max(longest, a.At-asked[0])
		}
		for len(asked) > 0 && asked[0] <= a.At {
			asked = asked[1:]
		}
	}
	return longest
}

// countStations returns for how long two stations answered, and how often the station
// changed. An answer does not say to which request it is, so one counts as an answer to
// the last request before it.
func (r Record) countStations() (duplicate time.Duration, changes int) {
	answers, last := r.WireAnswers, ""
	for i, asked := range r.WireRequests {
		next := r.End
		if i+1 < len(r.WireRequests) {
			next = r.WireRequests[i+1]
		}
		var macs []string
		for ; len(answers) > 0 && answers[0].At < next; answers = answers[1:] {
			if !slices.Contains(macs, answers[0].MAC) {
				macs = append(macs, answers[0].MAC)
			}
		}
		switch len(macs) {
		case 0:
		case 1:
			if last != "" && macs[0] != last {
				changes++
			}
			last = macs[0]
		default:
			duplicate += next - asked
		}
	}
	return duplicate, changes
}

// settled returns since when only the station that answered last has answered.
func (r Record) settled() time.Duration {
	if len(r.WireRequests) == 0 {
		return 0
	}
	at := r.End
	for _, a := range slices.Backward(r.WireAnswers) {
		if a.MAC != r.WireAnswers[len(r.WireAnswers)-1].MAC {
			break
		}
		at = a.At
	}
	return at
}

// Errors returns the error of each failed request, with the times of the request, in the order
// in which the requests ended.
func (r Record) Errors() []string {
	var all []string
	for _, q := range r.Requests {
		if q.Err != nil {
			all = append(
				all,
				fmt.Sprintf(
					"%s–%s: %s", q.Start.Round(time.Millisecond), q.End.Round(time.Millisecond), strings.TrimSpace(q.Err.Error()),
				),
			)
		}
	}
	return all
}

// String returns all figures in one line.
func (f Figures) String() string {
	text := fmt.Sprintf("%d requests, %d failed, %d failed in flight, %d with SYN retransmitted; HTTP outage %s, ARP "+
		"silence %s, two answering %s, %d changes of MAC",
		f.Requests, f.Failed, f.InFlight, f.Retransmitted, f.Outage.Round(time.Millisecond),
		f.Silence.Round(time.Millisecond), f.Duplicate.Round(time.Millisecond), f.Changes)
	if f.FirstError != nil {
		text += fmt.Sprintf(
			"; first error, of the request at %s: %s", f.FirstFailure.Round(time.Millisecond),
			strings.TrimSpace(f.FirstError.Error()),
		)
	}
	return text
}
