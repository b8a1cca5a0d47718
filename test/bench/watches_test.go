package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestReached(t *testing.T) {
	begun := time.Now()
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	a, other := netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("10.77.0.101")
	changes := []change{
		{"node1", a, true, at(-5)}, // of the trial before
		{"node1", other, true, at(1)},
		{"node1", a, true, at(2)},
		{"node1", a, true, at(3)}, // renewed
		{"node1", a, false, at(4)},
		{"node2", a, true, at(5)},
	}
	for _, row := range []struct {
		name  string
		added bool
		nodes int
		want  int // 0 if it is not reached
	}{
		{"the first node", true, 1, 2},
		{"the second, a renewal is not one", true, 2, 5},
		{"a third has none", true, 3, 0},
		{"taken off", false, 1, 4},
		{"taken off one only", false, 2, 0},
	} {
		got, ok := whenReached(changes, a, row.added, row.nodes, begun)
		if ok != (row.want != 0) || ok && !got.Equal(at(row.want)) {
			t.Errorf("%s: %s, %t", row.name, got.Sub(begun), ok)
		}
	}
}

func TestServicesSee(t *testing.T) {
	s := &serviceWatch{allocations: map[string]allocation{}}
	svc := func(ips ...string) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		for _, ip := range ips {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		return svc
	}
	first, begun := time.Now(), make(chan allocation)
	go func() {
		g, err := s.wait(context.Background(), "a")
		if err != nil {
			t.Error(err)
		}
		begun <- g
	}()
	s.recordEvent(watch.Event{Type: watch.Added, Object: svc()}, first.Add(-time.Second))
	s.recordEvent(watch.Event{Type: watch.Modified, Object: svc("10.77.0.100", "fd00:77::100")}, first)
	s.recordEvent(watch.Event{Type: watch.Modified, Object: svc("10.77.0.100", "fd00:77::100")}, first.Add(time.Second))
	if g := <-begun; !g.at.Equal(first) || len(g.addresses) != 2 {
		t.Errorf("%v", g)
	}
	s.recordEvent(watch.Event{Type: watch.Deleted, Object: svc("10.77.0.100")}, first)
	if len(s.allocations) != 0 {
		t.Errorf("after it was deleted: %v", s.allocations)
	}
}
