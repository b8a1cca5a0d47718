package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// storedAnnouncements are the Announcements of each node as they are stored after a placement has
// written what it could.
type storedAnnouncements map[string][]*v1.Announcement

// has reports whether a node has an entry for an address that passes a test.
func (s storedAnnouncements) has(node string, addr netip.Addr, test func(*v1.AnnouncedAddress) bool) bool {
	text := addr.String() // the CRD lets no other text of an address through
	for _, a := range s[node] {
		for i := range a.Spec.Addresses {
			if e := &a.Spec.Addresses[i]; e.Address == text && test(e) {
				return true
			}
		}
	}
	return false
}

// hasMoveBegun reports whether a new move is stored: the next node has an entry, or that of
// the holder hands it over. Neither was so before the placement that decided on the move; a
// move that could not be written is new again in the next placement.
func (s storedAnnouncements) hasMoveBegun(addr netip.Addr, m placement.Move) bool {
	return s.has(m.To, addr, func(e *v1.AnnouncedAddress) bool { return !e.HandingOver }) ||
		s.has(m.From, addr, func(e *v1.AnnouncedAddress) bool { return e.HandingOver })
}

// isFailoverOver reports whether the end of a failover is stored: the last holder has no entry any more.
// A failover whose end could not be written is over in a later placement.
func (s storedAnnouncements) isFailoverOver(addr netip.Addr, m placement.Move) bool {
	return !s.has(m.From, addr, func(*v1.AnnouncedAddress) bool { return true })
}

// explanations says why addresses are not announced, or not as they are to be.
func (r *PlacementReconciler) explanations(
	inputs *placement.Inputs, result *placement.Result,
) map[netip.Addr]placement.Explanation {
	explanations := r.state.refusals.Explanations()
	for i := range inputs.Addresses {
		if a := &inputs.Addresses[i]; len(a.Services) > v1.MaxServicesPerAddress {
			explanations[a.Addr] = placement.Explanation{Reason: v1.ReasonSharingRefused,
				Message: fmt.Sprintf(
					"%d Services share it, and it is announced for the first %d of them", len(a.Services), v1.MaxServicesPerAddress,
				)}
		}
	}
	maps.Copy(explanations, result.Silent)
	maps.Copy(explanations, result.Unplaced)
	return explanations
}

// reportPlacement logs, counts and records the moves that have begun, and the failovers that are over, and sets the
// metrics that count addresses and nodes.
// That a move is new, or a failover over, follows from the Announcements as they were before: a
// restart of the manager repeats no event, and loses one only between the write and the event.
//
// A failover by election is recorded when it is over: an agent that is replaced may not renew its
// Lease for longer than that lasts, and then the address stays, because its node's kernel answers. A
// successor that has claimed an address has it when the claim is adopted.
func (r *PlacementReconciler) reportPlacement(
	ctx context.Context, inputs *placement.Inputs, result *placement.Result, stored storedAnnouncements,
) {
	logger := log.FromContext(ctx)
	for i := range inputs.Addresses {
		addr := &inputs.Addresses[i]
		if over, isOver := result.EndedFailovers[addr.Addr]; isOver && stored.isFailoverOver(addr.Addr, over) {
			r.recordFailover(ctx, addr, over)
		}
		m, moves := result.Moves[addr.Addr]
		if !moves || !m.IsNew || !stored.hasMoveBegun(addr.Addr, m) {
			continue
		}
		logger.Info(
			"Address gets a node", "address", addr.Addr, "kind", m.Kind, "from", m.From, "to", m.To, "because", m.Message,
		)
		logger.V(1).Info("Nodes passed over", "address", addr.Addr, "nodes", m.NotChosen)
		switch {
		case m.Kind == placement.Handover:
			r.recordMove(
				ctx, addr, v1.EventHandover,
				fmt.Sprintf("Handing %s over from node %s to %s: %s", addr.Addr, m.From, m.To, m.Message),
			)
		case m.Kind == placement.Failover && m.Cause != placement.CauseLease:
			r.recordFailover(ctx, addr, m)
		}
		r.Metrics.CountMove(m)
		r.state.moveStarts[addr.Addr] = moveStart{kind: m.Kind, since: r.Now()}
	}
	for addr, why := range result.Unplaced {
		logger.V(1).Info("Address has no node", "address", addr, "reason", why.Reason, "message", why.Message)
	}
	r.Metrics.SetAddresses(placement.CountStates(inputs, result.Unplaced))
	r.Metrics.SetWithoutOtherNode(placement.CountWithoutOtherNode(*inputs, result))
	r.measureMovesAndMembers(inputs, result)
}

// recordMove records an event on the Services of an address that moves.
func (r *PlacementReconciler) recordMove(ctx context.Context, addr *placement.Address, reason, note string) {
	for _, key := range addr.Services {
		svc := &corev1.Service{}
		if err := r.Client.Get(ctx, parseKey(key), svc); err == nil {
			r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, reason, "Place "+addr.Addr.String(), "%s", note)
		}
	}
}

// recordFailover records that an address has failed over.
func (r *PlacementReconciler) recordFailover(ctx context.Context, addr *placement.Address, m placement.Move) {
	r.recordMove(
		ctx, addr, v1.EventFailover, fmt.Sprintf("Moved %s from node %s to %s, as %s", addr.Addr, m.From, m.To, m.Message),
	)
}

// measureMovesAndMembers measures the moves that are over, and counts the nodes whose agent is alive.
func (r *PlacementReconciler) measureMovesAndMembers(inputs *placement.Inputs, result *placement.Result) {
	members := 0
	for i := range inputs.Nodes {
		if inputs.Nodes[i].LBNodeAgent != "" && inputs.Nodes[i].Liveness != placement.Expired {
			members++
		}
	}
	r.Metrics.SetMembers(members)
	isAnnounced := map[netip.Addr]bool{} // of those that moved and are known
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		if _, hasMoved := r.state.moveStarts[e.Addr]; hasMoved {
			isAnnounced[e.Addr] = isAnnounced[e.Addr] || e.ReportedState == v1.StateAnnounced
		}
	}
	for addr, started := range r.state.moveStarts {
		if _, isUnderWay := result.Moves[addr]; isUnderWay {
			continue
		}
		if isThere, isKnown := isAnnounced[addr]; isKnown && !isThere {
			continue // a first placement is under way for one round only, and may take longer
		}
		if isAnnounced[addr] {
			r.Metrics.ObserveMove(started.kind, r.Now().Sub(started.since))
		}
		delete(r.state.moveStarts, addr)
	}
}
