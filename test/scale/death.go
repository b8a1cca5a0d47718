package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// timeDeath kills a node that holds Local addresses. It returns how long it takes, from
// the node's last renewal of its Lease, until other nodes report all of them. Then it
// starts the node's agent again.
func (r *run) timeDeath(ctx context.Context) (time.Duration, error) {
	victim, addresses, err := r.findHolder(ctx)
	if err != nil {
		return 0, err
	}
	for _, a := range addresses {
		r.agents.tracker.watch(a)
	}
	if err := r.agents.kill(victim); err != nil {
		return 0, fmt.Errorf("kill %s: %w", nodeName(victim.number), err)
	}
	renewed, err := r.leaseRenewedAt(ctx, v1.LeasePrefix+nodeName(victim.number))
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, a := range addresses {
		err := waitUntil(ctx, "another node has "+a, func() (bool, error) {
			n, _ := r.agents.tracker.reports(a)
			return n > 0, nil
		})
		if err != nil {
			return 0, err
		}
		_, at := r.agents.tracker.reports(a)
		longest = max(longest, at.Sub(renewed))
	}
	if err := r.agents.start(ctx, victim); err != nil {
		return 0, err
	}
	return longest, waitUntil(ctx, "the node is back", func() (bool, error) {
		renewedAgain, err := r.leaseRenewedAt(ctx, v1.LeasePrefix+nodeName(victim.number))
		return renewedAgain.After(renewed), err
	})
}

// findHolder returns a node that holds Local addresses, and the addresses.
func (r *run) findHolder(ctx context.Context) (*node, []string, error) {
	for _, n := range r.agents.nodes {
		var list v1.AnnouncementList
		if err := r.cluster.admin.List(
			ctx, &list, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": nodeName(n.number)},
		); err != nil {
			return nil, nil, fmt.Errorf("list Announcements: %w", err)
		}
		var addresses []string
		for i := range list.Items {
			for _, a := range list.Items[i].Spec.Addresses {
				if a.Type == v1.AnnounceLocal && !a.HandingOver {
					addresses = append(addresses, a.Address)
				}
			}
		}
		if len(addresses) > 0 {
			return n, addresses, nil
		}
	}
	return nil, nil, errors.New("no node holds a local address")
}

// leaseRenewedAt returns when a Lease was renewed, by the clock of this machine, which
// all agents share.
func (r *run) leaseRenewedAt(ctx context.Context, lease string) (time.Time, error) {
	l := &coordinationv1.Lease{}
	if err := r.cluster.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: lease}, l); err != nil {
		return time.Time{}, fmt.Errorf("get Lease: %w", err)
	}
	if l.Spec.RenewTime == nil {
		return time.Time{}, nil
	}
	return l.Spec.RenewTime.Time, nil
}
