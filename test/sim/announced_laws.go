package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// announcedLaws are what holds of the condition Announced of Services. It reads as the specification.
//
//  1. While nothing is wrong that hides from managers whether addresses can be reached, the condition is not true for
//     longer than statusWithin of a Service of which an address cannot be reached.
//  2. While nothing is wrong at all, it is not anything but true for longer than statusWithin of a Service whose
//     addresses can all be reached. Once all is settled, it is true of each of these.
type announcedLaws struct {
	laws     *laws
	troubles map[string]func() error
	// knownSince is since when managers can know what is reached, and calmSince since when nothing is wrong.
	knownSince, calmSince time.Time
	falsehoods            lastingFalsehoods
	readAt                time.Time
}

// lastingFalsehoods are since when something that a status says is false, by what it says.
type lastingFalsehoods map[string]time.Time

// note notes what is false now, and what of that was false for longer than statusWithin as a broken law.
func (f *lastingFalsehoods) note(l *laws, now []string) {
	before := *f
	*f = lastingFalsehoods{}
	for _, what := range now {
		since, was := before[what]
		if !was {
			since = time.Now()
		}
		if (*f)[what] = since; time.Since(since) > statusWithin {
			l.broken("%s, which is false since %s", what, time.Since(since))
			(*f)[what] = time.Now()
		}
	}
}

// visibleTroubles begin the names of the troubles of which agents tell managers, or by which agents fall silent.
var visibleTroubles = []string{
	"no power ", "asleep ", "no carrier", "no agent ", "paused agent ", "excluded ", "the disk ", "echoes are dropped ",
	"cut off the API server n",
}

func newAnnouncedLaws(h *History) *announcedLaws {
	return &announcedLaws{
		laws: h.laws, troubles: h.troubles, knownSince: time.Now(), calmSince: time.Now(),
	}
}

// inspect looks whether the laws hold.
func (l *announcedLaws) inspect() {
	if time.Since(l.readAt) < time.Second {
		return
	}
	l.readAt = time.Now()
	for name := range l.troubles {
		l.calmSince = time.Now()
		if !slices.ContainsFunc(visibleTroubles, func(begin string) bool { return strings.HasPrefix(name, begin) }) {
			l.knownSince = time.Now()
		}
	}
	var found []string
	if time.Since(l.knownSince) >= calmAfter {
		found = l.findFalsehoods(time.Since(l.calmSince) >= calmAfter)
	}
	l.falsehoods.note(l.laws, found)
}

// settled is law 2 once all is settled.
func (l *announcedLaws) settled() {
	for _, what := range l.findFalsehoods(true) {
		l.laws.broken("settled: %s, which is false", what)
	}
}

// findFalsehoods returns what conditions say that is false: that addresses are announced and, if nothing is wrong,
// that they are not.
func (l *announcedLaws) findFalsehoods(isCalm bool) []string {
	list := &corev1.ServiceList{}
	err := l.laws.cluster.Admin.List(
		context.Background(), list, client.InNamespace(Tenants), client.UnsafeDisableDeepCopy,
	)
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, s := range l.laws.services() {
		at := slices.IndexFunc(list.Items, func(svc corev1.Service) bool { return svc.Name == s.Name })
		mayHold := s.mayHold(l.laws.cluster)
		if at < 0 || len(mayHold) == 0 { // of a Service that no node may hold nobody can say that it is reached
			continue
		}
		isSaid := meta.IsStatusConditionTrue(list.Items[at].Status.Conditions, v1.ConditionAnnounced)
		isReached := l.isReached(s, &list.Items[at], mayHold)
		if isSaid && !isReached || !isSaid && isReached && isCalm {
			all = append(all, fmt.Sprintf("%s says of its addresses: announced %v", s.Name, isSaid))
		}
	}
	return all
}

// isReached reports whether each address of a Service can be reached: a Local one by a client of its link, and a
// Virtual one on some of the nodes that may have it.
func (l *announcedLaws) isReached(s *service, svc *corev1.Service, mayHold []*Node) bool {
	addrs, err := addressesOf(svc)
	if err != nil || len(addrs) < len(s.Families) {
		return false
	}
	for _, addr := range addrs {
		holders := l.laws.cluster.HoldersOf(addr)
		isHeld := slices.ContainsFunc(holders, func(n *Node) bool { return !n.isOff && slices.Contains(mayHold, n) })
		if !isHeld || !s.isHeldByAll() && !l.laws.cluster.SegmentOf(addr).client.reaches(addr, holders) {
			return false
		}
	}
	return true
}
