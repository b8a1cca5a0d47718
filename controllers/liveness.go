package controllers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// defaultLeaseDuration is assumed of a Lease that does not say.
const defaultLeaseDuration = 3 * time.Second

// Liveness judges agents by when this process last saw their Leases change, on
// its own clock: the clocks of other machines do not matter. Every replica runs
// it, so that a new leader knows at once who is alive.
type Liveness struct {
	now func() time.Time

	mu    sync.Mutex
	nodes map[string]*pulse

	changes chan event.GenericEvent
}

// pulse is the last sign of life of one node's agent.
type pulse struct {
	renewed  time.Time // what the Lease said; only compared for equality
	seen     time.Time // when, on our clock
	duration time.Duration
	told     placement.Liveness // last told to Changes
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=purelb-system,verbs=get;list;watch;create;update

// NewLiveness makes a Liveness that reads the clock now.
func NewLiveness(now func() time.Time) *Liveness {
	return &Liveness{now: now, nodes: map[string]*pulse{}, changes: make(chan event.GenericEvent, 1)}
}

// Changes receives something when the answer for some node has changed.
func (l *Liveness) Changes() <-chan event.GenericEvent { return l.changes }

// Watch makes l follow the Leases in a cache.
func (l *Liveness) Watch(ctx context.Context, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch Leases: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { l.observe(obj) },
		UpdateFunc: func(_, obj any) { l.observe(obj) },
		DeleteFunc: func(obj any) { l.forget(obj) },
	})
	if err != nil {
		return fmt.Errorf("watch Leases: %w", err)
	}
	return nil
}

func (l *Liveness) observe(obj any) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || lease.Spec.RenewTime == nil {
		return
	}
	node, ofAgent := strings.CutPrefix(lease.Name, v1.LeasePrefix)
	if !ofAgent {
		return
	}
	duration := defaultLeaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, known := l.nodes[node]
	if !known {
		p = &pulse{}
		l.nodes[node] = p
	}
	p.duration = duration
	if !p.renewed.Equal(lease.Spec.RenewTime.Time) {
		now := l.now()
		if l.silent() {
			l.restart(now)
		}
		p.renewed, p.seen = lease.Spec.RenewTime.Time, now
	}
	l.tell(p)
}

// silent reports whether every agent there was has expired.
func (l *Liveness) silent() bool {
	for _, p := range l.nodes {
		if l.judge(p) != placement.Expired {
			return false
		}
	}
	return true
}

// restart gives all agents time again, when the first of them is heard of after
// all had expired: it was the watch that had stopped, more likely than they.
func (l *Liveness) restart(now time.Time) {
	for _, p := range l.nodes {
		p.seen = now
		l.tell(p)
	}
}

// forget drops a Lease that is gone, as its Node is.
func (l *Liveness) forget(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.nodes, strings.TrimPrefix(lease.Name, v1.LeasePrefix))
	}
}

// Of returns the liveness of a node's agent.
func (l *Liveness) Of(node string) placement.Liveness {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, known := l.nodes[node]
	if !known {
		return placement.Expired
	}
	return l.judge(p)
}

// Silent is for how long a node's agent has not renewed its Lease, as far as this
// process has seen.
func (l *Liveness) Silent(node string) time.Duration {
	const always = 1<<63 - 1
	l.mu.Lock()
	defer l.mu.Unlock()
	p, known := l.nodes[node]
	if !known {
		return always
	}
	return l.now().Sub(p.seen)
}

func (l *Liveness) judge(p *pulse) placement.Liveness {
	switch age := l.now().Sub(p.seen); {
	case age >= p.duration:
		return placement.Expired
	case age >= p.duration*2/3:
		return placement.Late
	}
	return placement.Fresh
}

// tell signals a change of the answer for a node, once.
func (l *Liveness) tell(p *pulse) {
	now := l.judge(p)
	if now == p.told {
		return
	}
	p.told = now
	select {
	case l.changes <- event.GenericEvent{Object: &v1.Announcement{}}:
	default: // there is one to be read
	}
}

// Start signals Leases that expire, until ctx ends.
func (l *Liveness) Start(ctx context.Context) error {
	const every = 100 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.mu.Lock()
			for _, p := range l.nodes {
				l.tell(p)
			}
			l.mu.Unlock()
		}
	}
}

// NeedLeaderElection is false: a standby replica's clocks are to be warm.
func (l *Liveness) NeedLeaderElection() bool { return false }
