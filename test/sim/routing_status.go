package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// findFalsehoods returns what conditions and statuses say that is false: of Services, NodeRoutings and BGPPeers.
func (r *routingLaws) findFalsehoods() []string {
	var all []string
	for _, s := range r.laws.services() {
		all = append(all, r.falsehoodsOfService(s)...)
	}
	c, ctx := r.laws.cluster, context.Background()
	routings := &v1.NodeRoutingList{}
	if err := c.Admin.List(ctx, routings, client.UnsafeDisableDeepCopy); err != nil {
		return append(all, err.Error())
	}
	up := map[string]int{}
	for i := range routings.Items {
		routing := &routings.Items[i]
		n := c.Nodes[slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == routing.Name })]
		for j := range routing.Status.Sessions {
			session := &routing.Status.Sessions[j]
			at := slices.IndexFunc(c.Routers, func(router *Router) bool { return router.Addr.String() == session.Neighbor })
			if at < 0 {
				continue
			}
			isUp := session.State == v1.SessionEstablished
			if c.Routers[at].IsUp(n) != isUp {
				all = append(all, fmt.Sprintf("NodeRouting %s says of the session with %s: up %v", n.Name, session.Neighbor, isUp))
			}
			if isUp {
				up[session.Peer]++
			}
		}
	}
	peers := &v1.BGPPeerList{}
	if err := c.Admin.List(ctx, peers, client.UnsafeDisableDeepCopy); err != nil {
		return append(all, err.Error())
	}
	for i := range peers.Items {
		if p := &peers.Items[i]; int(p.Status.EstablishedSessions) != up[p.Name] {
			all = append(all, fmt.Sprintf("BGPPeer %s says that %s sessions are up", p.Name, p.Status.Sessions))
		}
	}
	return all
}

// falsehoodsOfService returns what a Service with Virtual addresses says of its routes that is false: that routers
// have a route to each address, or that they have not.
func (r *routingLaws) falsehoodsOfService(s *service) []string {
	if !s.isHeldByAll() {
		return nil
	}
	svc := &corev1.Service{}
	key := client.ObjectKey{Namespace: Tenants, Name: s.Name}
	if err := r.laws.cluster.Admin.Get(context.Background(), key, svc); err != nil {
		return []string{err.Error()}
	}
	addrs, err := r.laws.cluster.Addresses(s.Name)
	if err != nil {
		return []string{err.Error()}
	}
	isRouted := len(addrs) > 0
	for _, addr := range addrs {
		isRouted = isRouted && slices.ContainsFunc(r.laws.cluster.Routers, func(router *Router) bool {
			return slices.ContainsFunc(router.SendsTo(addr), func(n *Node) bool { return r.serves(n, addr, s) })
		})
	}
	if isSaid := meta.IsStatusConditionTrue(svc.Status.Conditions, v1.ConditionAdvertised); isSaid != isRouted {
		return []string{fmt.Sprintf("%s says of its routes: advertised %v", s.Name, isSaid)}
	}
	return nil
}

// inspectStatuses is law 7, while nothing is wrong.
func (r *routingLaws) inspectStatuses() {
	var found []string
	if time.Since(r.calmSince) >= calmAfter {
		found = r.findFalsehoods()
	}
	r.falsehoods.note(r.laws, found)
}

// calmAfter is how long after the last trouble statuses are looked at.
const calmAfter = 10 * time.Second

// settled is law 7 once all is settled.
func (r *routingLaws) settled() {
	for _, what := range r.findFalsehoods() {
		r.laws.broken("settled: %s, which is false", what)
	}
	for _, s := range r.laws.services() {
		if !s.isHeldByAll() {
			continue
		}
		addrs, err := r.laws.cluster.Addresses(s.Name)
		if err != nil {
			r.laws.broken("settled: %v", err)
		}
		for _, addr := range addrs {
			r.settledAddress(addr, s)
		}
	}
}

func (r *routingLaws) settledAddress(addr netip.Addr, s *service) {
	for _, router := range r.laws.cluster.Routers {
		nodes := router.SendsTo(addr)
		for _, n := range r.laws.cluster.Nodes {
			serves, isSent := r.serves(n, addr, s), slices.Contains(nodes, n)
			if serves != isSent {
				r.laws.broken(
					"settled: %s serves %s: %v, and %s sends there: %v", n.Name, addr, serves, router.port.name, isSent,
				)
			}
		}
	}
}
