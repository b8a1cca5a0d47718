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
	// falseSince is since when something that a condition says is false, by what it says.
	falseSince map[string]time.Time
	readAt     time.Time
}

// visibleTroubles begin the names of the troubles of which agents tell managers, or by which agents fall silent.
var visibleTroubles = []string{
	"no power ", "asleep ", "no carrier", "no agent ", "paused agent ", "excluded ", "the disk ", "echoes are dropped ",
	"cut off the API server n",
}

func newAnnouncedLaws(h *History) *announcedLaws {
	return &announcedLaws{
		laws: h.laws, troubles: h.troubles, falseSince: map[string]time.Time{},
		knownSince: time.Now(), calmSince: time.Now(),
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
	before := l.falseSince
	l.falseSince = map[string]time.Time{}
	if time.Since(l.knownSince) < calmAfter {
		return
	}
	for _, what := range l.falsehoods(time.Since(l.calmSince) >= calmAfter) {
		since, was := before[what]
		if !was {
			since = time.Now()
		}
		if l.falseSince[what] = since; time.Since(since) > statusWithin {
			l.laws.broken("%s, which is false since %s", what, time.Since(since))
			l.falseSince[what] = time.Now()
		}
	}
}

// settled is law 2 once all is settled.
func (l *announcedLaws) settled() {
	for _, what := range l.falsehoods(true) {
		l.laws.broken("settled: %s, which is false", what)
	}
}

// falsehoods returns what conditions say that is false: that addresses are announced and, if nothing is wrong, that
// they are not.
func (l *announcedLaws) falsehoods(isCalm bool) []string {
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
		if at < 0 || len(s.mayHold(l.laws.cluster)) == 0 { // of the latter nobody can say that it is reached
			continue
		}
		isSaid := meta.IsStatusConditionTrue(list.Items[at].Status.Conditions, v1.ConditionAnnounced)
		isReached := l.isReached(s)
		if isSaid && !isReached || !isSaid && isReached && isCalm {
			all = append(all, fmt.Sprintf("%s says of its addresses: announced %v", s.Name, isSaid))
		}
	}
	return all
}

// isReached reports whether each address of a Service can be reached: a Local one by a client of its link, and a
// Virtual one on some node that may have it.
func (l *announcedLaws) isReached(s *service) bool {
	addrs, err := l.laws.cluster.Addresses(s.Name)
	if err != nil || len(addrs) < len(s.Families) {
		return false
	}
	for _, addr := range addrs {
		holders := l.laws.cluster.HoldersOf(addr)
		mayHold := s.mayHold(l.laws.cluster)
		isHeld := slices.ContainsFunc(holders, func(n *Node) bool { return !n.isOff && slices.Contains(mayHold, n) })
		if !isHeld || !s.isHeldByAll() && !l.laws.cluster.SegmentOf(addr).client.reaches(addr, holders) {
			return false
		}
	}
	return true
}
