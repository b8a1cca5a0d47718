package routing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/condition"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxNamedInMessage is how many of several things a message names.
const maxNamedInMessage = 8

// maxMessage is the longest message of a condition.
const maxMessage = 4096

// PeerStatus returns the status that a BGPPeer is to have: what became of it, and what the
// speakers report of its sessions. routings are all NodeRoutings.
func PeerStatus(p *v1.BGPPeer, result *PeerResult, routings map[string]*v1.NodeRouting) v1.BGPPeerStatus {
	status := v1.BGPPeerStatus{ObservedGeneration: p.Generation, Conditions: slices.Clone(p.Status.Conditions)}
	var down []string
	for _, node := range result.SelectedNodes {
		status.DesiredSessions += int32(result.SessionsByNode[node]) //nolint:gosec // at most 32
		established, why := countEstablished(p.Name, routings[node], result.SessionsByNode[node])
		status.EstablishedSessions += established
		if why != "" {
			down = append(down, node+": "+why)
		}
	}
	status.Sessions = fmt.Sprintf("%d/%d", status.EstablishedSessions, status.DesiredSessions)
	status.Neighbor = cmp.Or(p.Spec.PeerAddress, string(p.Spec.Interface), string(p.Spec.Discover))
	reason, message := verdictOf(p, &status, result, down)
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: condition.StatusOf(reason == v1.ReasonEstablished), ObservedGeneration: p.Generation,
		Reason: reason, Message: textlimit.Shorten(message, maxMessage),
	}
	condition.SetReady(&status.Conditions, ready, slices.Contains(stallingReasons, reason))
	return status
}

// stallingReasons are those for which a BGPPeer is not Ready that somebody has to change something for.
var stallingReasons = []string{
	v1.ReasonInvalid, v1.ReasonPeerConflict, v1.ReasonSecretMissing, v1.ReasonPasswordInvalid,
}

func verdictOf(
	p *v1.BGPPeer, status *v1.BGPPeerStatus, result *PeerResult, down []string,
) (reason, message string) {
	also := ""
	if len(result.Problems) > 0 {
		also = "; " + strings.Join(textlimit.First(result.Problems, maxNamedInMessage), "; ")
	}
	switch {
	case len(result.Errors) > 0:
		return v1.ReasonInvalid, result.Errors.ToAggregate().Error()
	case len(result.SelectedNodes) == 0:
		return v1.ReasonNoNodes, "spec.nodeSelector selects no node that runs an agent"
	case len(result.ConflictNodes) > 0:
		return v1.ReasonPeerConflict,
			fmt.Sprintf(
				"an older BGPPeer has the same neighbour on %s: select other nodes, or delete one of the two%s",
				textlimit.List(result.ConflictNodes, maxNamedInMessage, ", "), also,
			)
	case result.LacksSecret:
		return v1.ReasonSecretMissing, fmt.Sprintf(
			"Secret %s, which spec.passwordSecretRef names, does not exist in this namespace, or has no key %s: create it; "+
				"without the password no session is opened, and sessions that are up go on as they are",
			p.Spec.PasswordSecretRef.Name, p.Spec.PasswordSecretRef.Key,
		)
	case result.PasswordProblem != "":
		return v1.ReasonPasswordInvalid, fmt.Sprintf(
			"the password that spec.passwordSecretRef names %s; sessions that had another one keep that", result.PasswordProblem,
		)
	case status.DesiredSessions == 0:
		return v1.ReasonNoNeighbor, "no node has this neighbour" + also
	case status.EstablishedSessions < status.DesiredSessions:
		return v1.ReasonSessionsDown,
			fmt.Sprintf(
				"%s sessions are up; %s%s", status.Sessions, strings.Join(textlimit.First(down, maxNamedInMessage), "; "), also,
			)
	case len(result.Problems) > 0:
		return v1.ReasonDegraded, fmt.Sprintf("%s sessions are up%s", status.Sessions, also)
	}
	return v1.ReasonEstablished, fmt.Sprintf("%s sessions are up", status.Sessions)
}

// countEstablished counts the sessions of a BGPPeer that a node's speaker reports as up, and says why
// not all are.
func countEstablished(peer string, routing *v1.NodeRouting, desired int) (established int32, why string) {
	if desired == 0 {
		return 0, ""
	}
	if routing == nil || routing.Status.ObservedGeneration == 0 {
		return 0, "the speaker has not reported yet"
	}
	for _, s := range routing.Status.Sessions {
		switch {
		case s.Peer != peer:
		case s.State == v1.SessionEstablished:
			established++
		default:
			// The state changes with each attempt, and says no more than the error.
			why = fmt.Sprintf("%s: %s", s.Neighbor, cmp.Or(s.LastError, "the session is being opened"))
		}
	}
	if int(established) < desired && why == "" {
		why = "the speaker has yet to open the session"
	}
	return min(established, int32(desired)), why //nolint:gosec // at most 32
}

// SessionChange is a session that has come up or gone down.
type SessionChange struct {
	Peer, Node, Neighbor string
	IsUp                 bool
	// Cause of a session that has gone down.
	Cause string
}

// SessionChanges compares two reports of one node's speaker: the sessions that came up, or went
// down. A session that has never been up, and is not, has not changed.
func SessionChanges(node string, before, after []v1.RoutingSession) []SessionChange {
	key := func(s v1.RoutingSession) string { return s.Peer + " " + s.Neighbor }
	wasUp := map[string]bool{}
	for _, s := range before {
		wasUp[key(s)] = s.State == v1.SessionEstablished
	}
	var changes []SessionChange
	for _, s := range after {
		isUp := s.State == v1.SessionEstablished
		if isUp != wasUp[key(s)] {
			changes = append(
				changes,
				SessionChange{
					Peer: s.Peer, Node: node, Neighbor: s.Neighbor, IsUp: isUp, Cause: cmp.Or(s.LastError, "the session is gone"),
				},
			)
		}
	}
	return changes
}
