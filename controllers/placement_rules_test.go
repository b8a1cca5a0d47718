package controllers

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestWaitsForRules has a ServiceGroup that keeps its addresses from routers. The manager places its first address only
// when the NodeRouting of each node has what the group says. It waits neither with an address of another group, nor
// with a Local one, nor with one that nodes announce when the group says something else.
func TestWaitsForRules(t *testing.T) {
	ctx := context.Background()
	group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "internal"}}
	group.Spec.Remote = &v1.RemotePools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Pool: "10.9.0.0-10.9.0.255", Subnet: "10.9.0.0/24"}},
	}}
	group.Spec.BGP = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: v1.ServiceGroupBGP{Advertise: ptr.To(false)}}
	routing := func(node string) *v1.NodeRouting {
		r := &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: node}}
		r.Spec.NodeName = node
		return r
	}
	lan := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "lan"}}
	lan.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Pool: "10.1.0.9", Subnet: "10.1.0.0/24"}},
	}}
	lan.Spec.BGP = group.Spec.BGP
	b := newBench(t, benchAgent(), benchNode("n1"), group, lan, routing("n1"), routing("n2"),
		benchService("a/local", "10.1.0.9", "lan", v1.PoolTypeLocal),
		benchService("a/internal", "10.9.0.9", "internal", v1.PoolTypeRemote),
		benchService("a/plain", "10.8.0.8", "plain", v1.PoolTypeRemote))
	tell := func(node string, bgp v1.ServiceGroupBGP) {
		t.Helper()
		r := routing(node)
		if err := b.api.Get(ctx, client.ObjectKeyFromObject(r), r); err != nil {
			t.Fatal(err)
		}
		r.Spec.Groups = []v1.RoutingGroup{
			{Name: "internal", Ranges: []string{"10.9.0.0-10.9.0.255"}, ServiceGroupBGP: bgp},
		}
		if err := b.api.Update(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	waitsFor := func(node string) {
		t.Helper()
		b.settle(b.PlacementReconciler)
		b.expect("waits for "+node, "all 10.8.0.8", "n1 10.1.0.9 1 Probe")
		why, _ := b.Explanations.ExplanationFor(netip.MustParseAddr("10.9.0.9"))
		if why.Reason != v1.ReasonWaitingForRouting || !strings.Contains(why.Message, "node "+node+" ") {
			t.Errorf("why: %+v", why)
		}
	}
	waitsFor("n1")
	tell("n1", group.Spec.BGP.ServiceGroupBGP)
	waitsFor("n2")
	tell("n2", v1.ServiceGroupBGP{Prepend: 1}) // as the group said before
	waitsFor("n2")
	tell("n2", group.Spec.BGP.ServiceGroupBGP)
	b.settle(b.PlacementReconciler)
	b.expect("both know", "all 10.8.0.8", "all 10.9.0.9", "n1 10.1.0.9 1 Probe")
	tell("n2", v1.ServiceGroupBGP{Prepend: 1})
	b.settle(b.PlacementReconciler)
	b.expect("it stays", "all 10.8.0.8", "all 10.9.0.9", "n1 10.1.0.9 1 Probe")
}
