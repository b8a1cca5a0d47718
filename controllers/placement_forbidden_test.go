package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// forbid has an admission plugin refuse writes, such as a ResourceQuota does.
func (b *placementBench) forbid(isForbidden func(obj client.Object, isCreate bool) bool) {
	b.Helper()
	api, ok := b.api.(client.WithWatch)
	if !ok {
		b.Fatal("the client cannot watch")
	}
	refuse := func(obj client.Object) error {
		b.writes.Add(1)
		return apierrors.NewForbidden(
			v1.GroupVersion.WithResource("announcements").GroupResource(), obj.GetName(), errors.New("exceeded quota: objects"),
		)
	}
	b.Client = interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
			if isForbidden(obj, true) {
				return refuse(obj)
			}
			return c.Create(ctx, obj, o...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
			if isForbidden(obj, false) {
				return refuse(obj)
			}
			return c.Update(ctx, obj, o...)
		},
	})
}

// TestFaultForbiddenObject has a quota refuse every CommonAnnouncement but the first, and the
// Announcement of one node. Others are written, and the Services of those that are not say why.
func TestFaultForbiddenObject(t *testing.T) {
	const services = 70
	objects := []client.Object{benchAgent(), benchNode("n1"), benchNode("n2")}
	for i := range services {
		objects = append(
			objects, benchService(fmt.Sprintf("a/s%02d", i), fmt.Sprintf("10.0.0.%d", i+1), "g", v1.PoolTypeRemote),
		)
	}
	b := newBench(t, objects...)
	b.forbid(func(obj client.Object, isCreate bool) bool {
		_, isCommon := obj.(*v1.CommonAnnouncement)
		return isCommon && isCreate && obj.GetName() != "default" || !isCommon && obj.GetName() == "n2"
	})
	for range 3 {
		b.renewLeases(b.PlacementReconciler, "n1", "n2")
		b.place(b.PlacementReconciler)
		b.report("n1")
		b.now = b.now.Add(time.Second)
	}
	count := func() (announced, explained, silent int) {
		isAnnounced := map[string]bool{}
		for _, e := range b.entries() {
			isAnnounced[e] = true
		}
		for i := range services {
			addr := netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i+1))
			switch why, _ := b.Explanations.ExplanationFor(addr); {
			case isAnnounced["all "+addr.String()]:
				announced++
			case why.Reason == v1.ReasonRefused && strings.Contains(why.Message, "exceeded quota: objects"):
				explained++
			default:
				silent++
			}
		}
		return announced, explained, silent
	}
	if announced, explained, silent := count(); announced == 0 || explained == 0 || silent > 0 {
		t.Errorf("%d are announced, %d say that they are refused, %d say nothing", announced, explained, silent)
	}
	// No part of what is refused as a whole is tried, and not at once again.
	b.writes.Store(0)
	b.now = b.now.Add(time.Minute)
	b.renewLeases(b.PlacementReconciler, "n1", "n2")
	b.place(b.PlacementReconciler)
	if n := b.writes.Load(); n == 0 || n > 8 {
		t.Errorf("%d writes in the next attempt", n)
	}
	b.writes.Store(0)
	b.place(b.PlacementReconciler)
	if n := b.writes.Load(); n > 2 { // those without an entry
		t.Errorf("%d writes at once", n)
	}
	b.Client = b.api
	b.now = b.now.Add(time.Hour)
	for range 3 {
		b.renewLeases(b.PlacementReconciler, "n1", "n2")
		b.place(b.PlacementReconciler)
		b.report("n1", "n2")
	}
	if announced, _, _ := count(); announced != services {
		t.Errorf("when nothing is refused %d of %d are announced", announced, services)
	}
}

// TestFaultForbiddenHolder refuses the write by which a dead holder's entry is to be marked as
// handed over: no other node is given the address, or two could defend it.
func TestFaultForbiddenHolder(t *testing.T) {
	all := []string{"n1", "n2"}
	b := newBench(
		t, benchAgent(), benchNode("n1"), benchNode("n2"), benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal),
	)
	for range 3 {
		b.renewLeases(b.PlacementReconciler, all...)
		b.place(b.PlacementReconciler)
		b.report(all...)
	}
	holder, other := strings.Fields(b.entries()[0])[0], "n1"
	if holder == other {
		other = "n2"
	}
	b.forbid(func(obj client.Object, _ bool) bool { return obj.GetName() == holder })
	b.setExcluded(holder, true)
	for range 5 {
		b.now = b.now.Add(4 * time.Second)
		b.renewLeases(b.PlacementReconciler, other)
		b.place(b.PlacementReconciler)
		b.expect("while it is refused", holder+" 10.1.0.9 1 Probe")
	}
	if why, _ := b.Explanations.ExplanationFor(netip.MustParseAddr("10.1.0.9")); why.Reason != v1.ReasonRefused {
		t.Errorf("it does not move: %+v", why)
	}
	b.Client = b.api
	b.now = b.now.Add(10 * time.Minute)
	for range 5 { // at first all agents count as alive, as none was seen to renew
		b.renewLeases(b.PlacementReconciler, other)
		b.place(b.PlacementReconciler)
		b.now = b.now.Add(4 * time.Second)
	}
	b.expect("when nothing is refused", holder+" 10.1.0.9 1 Probe leaving", other+" 10.1.0.9 2 Probe")
}
