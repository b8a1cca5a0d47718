package lab

import (
	"cmp"
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
	Err        error
}

// Answer is one answer by ARP or ND: who says that it has the address.
type Answer struct {
	At  time.Duration
	MAC string
}

// Record is what a Meter has seen.
type Record struct {
	Requests  []Request       // as they ended
	Asked     []time.Duration // when it was asked by ARP or ND; never if the host is not on the link
	Answers   []Answer        // as they came
	Unasked   []Answer        // what was said to all, or to another station; as it came
	End       time.Duration
	wireError error
}

// Figures is what a Record comes to.
type Figures struct {
	// Requests is how many were made.
	Requests int
	// Failed is those that failed, but for those InFlight: under way when another
	// station was heard than before, which their connections cannot move to. Of a host that
	// is not on the link, where that cannot be seen, it is those that were reset: they
	// have come to a node that does not know them.
	Failed, InFlight int
	// Outage is the longest time without a good HTTP answer.
	Outage time.Duration
	// Silence is the longest time from a question by ARP or ND to the next answer;
	// zero if the host is not on the link. A time in which nothing was asked, because
	// the machine was busy, is none.
	Silence time.Duration
	// Duplicate is for how long, in all, two stations answered the same question.
	Duplicate time.Duration
	// Changes is how often another station answered, alone, than before.
	Changes int
	// FirstError is of the failed request that ended first, and FirstFailure is when
	// that began.
	FirstError   error
	FirstFailure time.Duration
}

// Figures computes them.
func (r Record) Figures() Figures {
	f := Figures{Requests: len(r.Requests)}
	switches := r.switches()
	var good []time.Duration
	for _, q := range r.Requests {
		switch {
		case q.Err == nil:
			good = append(good, q.End)
			continue
		case len(r.Answers) == 0 && errors.Is(q.Err, syscall.ECONNRESET):
			f.InFlight++
		case slices.ContainsFunc(switches, func(t time.Duration) bool { return q.Start <= t && q.End >= t }):
			f.InFlight++
		default:
			f.Failed++
		}
		if f.FirstError == nil {
			f.FirstError, f.FirstFailure = q.Err, q.Start
		}
	}
	f.Outage = longestGap(good, r.End)
	f.Silence = r.longestWait()
	f.Duplicate, f.Changes = r.stations()
	return f
}

// switches is when another station was heard than before, asked or not.
func (r Record) switches() []time.Duration {
	heard := slices.SortedFunc(slices.Values(slices.Concat(r.Answers, r.Unasked)), func(a, b Answer) int { return cmp.Compare(a.At, b.At) })
	var times []time.Duration
	for i, a := range heard {
		if i > 0 && a.MAC != heard[i-1].MAC {
			times = append(times, a.At)
		}
	}
	return times
}

// longestGap is the longest time between two of the times, before the first or
// after the last.
func longestGap(times []time.Duration, end time.Duration) time.Duration {
	slices.Sort(times)
	gap, last := time.Duration(0), time.Duration(0)
	for _, t := range append(times, end) {
		gap, last = max(gap, t-last), t
	}
	return gap
}

// longestWait is the longest time from a question, the first since the answer
// before, to an answer.
func (r Record) longestWait() time.Duration {
	longest, asked := time.Duration(0), r.Asked
	for _, a := range append(r.Answers, Answer{At: r.End}) {
		if len(asked) > 0 && asked[0] < a.At {
			longest = max(longest, a.At-asked[0])
		}
		for len(asked) > 0 && asked[0] <= a.At {
			asked = asked[1:]
		}
	}
	return longest
}

// stations takes what comes before the next question for an answer to the last:
// answers do not say which they are to.
func (r Record) stations() (duplicate time.Duration, changes int) {
	answers, last := r.Answers, ""
	for i, asked := range r.Asked {
		next := r.End
		if i+1 < len(r.Asked) {
			next = r.Asked[i+1]
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

// String is all figures in one line.
func (f Figures) String() string {
	text := fmt.Sprintf("%d requests, %d failed, %d failed in flight; HTTP outage %s, ARP silence %s, two answering %s, %d changes of MAC",
		f.Requests, f.Failed, f.InFlight, f.Outage.Round(time.Millisecond), f.Silence.Round(time.Millisecond), f.Duplicate.Round(time.Millisecond), f.Changes)
	if f.FirstError != nil {
		text += fmt.Sprintf("; first error, of the request at %s: %s", f.FirstFailure.Round(time.Millisecond), strings.TrimSpace(f.FirstError.Error()))
	}
	return text
}
