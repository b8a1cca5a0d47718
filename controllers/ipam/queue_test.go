package ipam

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// The queue of a system ends when no group uses the system any more, and what is under way there
// with it.
func TestQueueOfSystemThatNoGroupUses(t *testing.T) {
	for _, row := range []struct {
		name      string
		removed   []string
		isStarted bool
		want      bool
	}{
		{"another group uses it", []string{group1}, true, false},
		{"no group uses it", []string{group1, group2}, true, true},
		{"a group of another system goes", []string{groupElsewhere}, true, false},
		{"the Broker does not run", []string{group1, group2}, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1, group2, groupElsewhere)
			q, e := c.queueOf(group1)
			isStopped := false
			if row.isStarted {
				for _, started := range c.queues {
					started.stop = func() {}
				}
				q.stop = func() { isStopped = true }
			}
			for _, group := range row.removed {
				c.Configure(group, nil)
			}
			if isGone := c.queues[e] == nil; isGone != row.want || row.isStarted && isStopped != row.want {
				t.Errorf("gone: %v, stopped: %v", isGone, isStopped)
			}
		})
	}
}

// The question for the status of a system is asked as one of its groups, and always the same.
func TestGroupThatAsksForStatus(t *testing.T) {
	c := newClocked(group2, group1, groupElsewhere)
	for _, group := range []string{group1, group2} {
		_, e := c.queueOf(group)
		if check := c.checkOf(e); check.group != group1 || check.state != c.groups[group1] || check.kind != checkJob {
			t.Errorf("for %s: %+v", group, check)
		}
	}
}

// The turns of a thousand namespaces are remembered. When there are more, all begin anew.
func TestTurnsOfManyNamespaces(t *testing.T) {
	for namespaces, want := range map[int]int{2: 2, maxNamespacesAsked: maxNamespacesAsked, maxNamespacesAsked + 1: 1} {
		c := newClocked()
		for n := range namespaces {
			c.noteNamespaceAsked(fmt.Sprint("namespace", n), c.now)
		}
		if n := len(c.namespaceAskedAt); n != want {
			t.Errorf("%d of %d turns are remembered, want %d", n, namespaces, want)
		}
	}
}

// Of jobs that have waited for equally long the same one is next whenever it is asked which, and those who wait for a
// system that is away are told of it in the same order.
func TestSameOrder(t *testing.T) {
	next, told := map[string]bool{}, map[string]bool{}
	for range 20 {
		c := newClocked(group1)
		c.groups[group1].observation.Report = &Report{}
		for n := range 10 {
			c.requestOf(fmt.Sprint("service", n), group1)
		}
		q, e := c.queueOf(group1)
		q.lastTurn[compareJob] = 1
		j, _ := c.nextInTurn(e, q, c.now)
		next[j.requested.owner.Name] = true
		order := ""
		c.OnAnswersChanged = func(name types.NamespacedName) { order += name.Name + " " }
		c.noteAway(e, q, &Error{Reason: v1.ReasonIPAMUnavailable, Scope: ScopeEndpoint})
		told[order] = true
	}
	if len(next) != 1 || len(told) != 1 {
		t.Errorf("any of %v is next, and the order is any of %v", next, told)
	}
}
