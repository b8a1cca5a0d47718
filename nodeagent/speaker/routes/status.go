package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxErrorText is the longest lastError of a session.
const maxErrorText = 512

// maxListText is the longest list of what is wrong in a condition's message.
const maxListText = 2048

// Session is what the BGP library knows of the session with one neighbour.
type Session struct {
	Neighbour netip.Addr
	State     purelbv1.SessionState
	// Since is when the session last came up or went down; zero if it has never been up.
	Since      time.Time
	PeerASN    uint32
	Families   []purelbv1.IPFamily
	Advertised int
	// Unsent are the routes that the library holds, of these families, and has not sent to the neighbour.
	Unsent []netip.Prefix
	// BFD is Up or Down; empty without BFD.
	BFD string
	// LastError is why the session is not up, or why it last was not.
	LastError string
	// HasSentAll is that the neighbour has been sent all routes since the session came up.
	HasSentAll bool
}

// Status returns the status that a NodeRouting is to have. problem says what keeps the node from doing what
// the NodeRouting says, sessions apart; empty if nothing does.
func Status(
	routing *purelbv1.NodeRouting, held Config, sessions []Session, isDrained bool, problem string,
) purelbv1.NodeRoutingStatus {
	status := purelbv1.NodeRoutingStatus{
		ObservedGeneration: routing.Generation, Desired: int32(len(routing.Spec.Peers)), Networks: int32(len(held.Paths)),
		//nolint:gosec // there are not that many
		Drained: isDrained, Conditions: slices.Clone(routing.Status.Conditions),
	}
	var down []string
	wanted, isHeld := wantedAddresses(&routing.Spec, held.Networks), prefixesOf(held.Paths)
	for _, p := range held.Peers {
		report := purelbv1.RoutingSession{Peer: p.Name, Neighbor: p.Neighbour.String(), State: "Idle"}
		if i := slices.IndexFunc(sessions, func(s Session) bool { return s.Neighbour == p.Neighbour }); i >= 0 {
			report = reportOf(p, &sessions[i])
			report.Unsent = unsentRanges(p.Name, &sessions[i], wanted, isHeld)
		}
		keepState(&report, routing.Status.Sessions)
		status.Sessions = append(status.Sessions, report)
	}
	for _, w := range held.Waiting {
		status.Sessions = append(status.Sessions, purelbv1.RoutingSession{
			Peer: w.Peer.Name, Neighbor: cmp.Or(w.Peer.Address, w.Peer.Interface), State: "Idle",
			LastError: textlimit.Shorten(w.Why, maxErrorText),
		})
	}
	for _, s := range status.Sessions {
		if s.State == purelbv1.SessionEstablished {
			status.Established++
			continue
		}
		down = append(
			down, fmt.Sprintf("%s is %s: %s", s.Neighbor, s.State, cmp.Or(s.LastError, "the session is being opened")),
		)
	}
	status.SessionsText = fmt.Sprintf("%d/%d", status.Established, status.Desired)
	ready := metav1.Condition{
		Type: purelbv1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: routing.Generation,
		Reason: purelbv1.ReasonEstablished,
		Message: fmt.Sprintf(
			"%d of %d sessions are up, %d networks are advertised", status.Established, status.Desired, status.Networks,
		),
	}
	switch {
	case problem != "":
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonDegraded
		ready.Message += "; " + textlimit.Shorten(problem, maxListText)
	case isDrained:
		ready.Reason, ready.Message = purelbv1.ReasonDrained, "all routes are withdrawn, as traffic is to leave the node"
	case status.Established < status.Desired:
		ready.Status, ready.Reason = metav1.ConditionFalse, purelbv1.ReasonSessionsDown
		ready.Message += "; " + textlimit.Shorten(strings.Join(down, "; "), maxListText)
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}

// keepState keeps the state of a session that is down as it was reported, unless it is down for another
// reason: the state changes several times with each attempt, and says no more than the error.
func keepState(report *purelbv1.RoutingSession, reported []purelbv1.RoutingSession) {
	i := slices.IndexFunc(reported, func(s purelbv1.RoutingSession) bool {
		return s.Peer == report.Peer && s.Neighbor == report.Neighbor
	})
	if i < 0 || report.State == purelbv1.SessionEstablished || reported[i].State == purelbv1.SessionEstablished ||
		report.LastError != reported[i].LastError {
		return
	}
	report.State, report.PeerASN = reported[i].State, cmp.Or(report.PeerASN, reported[i].PeerASN)
}

// EqualExceptFailures reports whether two statuses differ in nothing but why sessions are down that were
// down before: that may be written later, the longer the more often it changes.
func EqualExceptFailures(before, after purelbv1.NodeRoutingStatus) bool {
	return equality.Semantic.DeepEqual(withoutFailures(before), withoutFailures(after))
}

func withoutFailures(s purelbv1.NodeRoutingStatus) purelbv1.NodeRoutingStatus {
	s.Sessions, s.Conditions = slices.Clone(s.Sessions), slices.Clone(s.Conditions)
	for i := range s.Sessions {
		if one := &s.Sessions[i]; one.State != purelbv1.SessionEstablished {
			one.State, one.LastError, one.PeerASN = "Idle", "", 0
		}
	}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == purelbv1.ConditionReady && c.Status != metav1.ConditionTrue {
			c.Message = ""
		}
	}
	return s
}

func reportOf(p Peer, s *Session) purelbv1.RoutingSession {
	report := purelbv1.RoutingSession{
		Peer: p.Name, Neighbor: p.Neighbour.String(), State: s.State, PeerASN: int64(s.PeerASN), Families: s.Families,
		Advertised: int32(s.Advertised), BFD: s.BFD, //nolint:gosec // there are not that many
	}
	if !s.Since.IsZero() {
		report.Since = &metav1.Time{Time: s.Since.Truncate(time.Second)}
	}
	missing := slices.DeleteFunc(
		slices.Clone(p.Families), func(f purelbv1.IPFamily) bool { return slices.Contains(s.Families, f) },
	)
	switch {
	case s.State != purelbv1.SessionEstablished:
		report.LastError = textlimit.Shorten(s.LastError, maxErrorText)
	case len(missing) > 0:
		report.LastError = fmt.Sprintf(
			"the neighbour does not take %s in this session: enable the address family there", joinFamilies(missing),
		)
		if p.Neighbour.Is6() && p.Neighbour.IsLinkLocalUnicast() && slices.Contains(missing, "IPv4") {
			report.LastError += ", with next hops of IPv6 for routes of IPv4 (extended next hop, RFC 8950)"
		}
	}
	return report
}

func joinFamilies(families []purelbv1.IPFamily) string {
	var names []string
	for _, f := range families {
		names = append(names, string(f))
	}
	return strings.Join(names, " and ")
}
