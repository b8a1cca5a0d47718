package plan

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Inputs are all that Decide looks at besides its Memory. The agent gathers them anew for
// each decision.
type Inputs struct {
	Now time.Time
	// LBNodeAgentName is the name of the LBNodeAgent that the agent runs for.
	LBNodeAgentName string
	// LBNodeAgent is that object; nil if it does not exist, or nothing has been read yet.
	LBNodeAgent *purelbv1.LBNodeAgent
	// Announcements are the node's, sorted by name, each with the status that the agent
	// last wanted to report: that may not have been written yet.
	Announcements []purelbv1.Announcement
	// CommonAnnouncements are those of the LBNodeAgent, sorted by name, whether or not
	// the node announces the shared entries.
	CommonAnnouncements []purelbv1.CommonAnnouncement
	// Standbys are the node's Announcements with standby, sorted by name, each with the
	// status that the agent last wanted to report.
	Standbys []purelbv1.Announcement
	// IsFirstAnnouncementReported means that the API server has a status of the first Announcement.
	IsFirstAnnouncementReported bool
	// IsUpToDate means that the agent knows the objects to be up to date: it has just
	// listed them at the API server, or its Lease is fresh.
	IsUpToDate bool
	// IsFromCheckpoint means that the objects come from the checkpoint, since the API server
	// has not answered since the agent started.
	IsFromCheckpoint bool

	// Observed is what the kernel holds.
	Observed Observed
	// Held are the Local addresses that the node has, defended or not, and Yields those that
	// it has yielded, as the listener knows them now (see Defence).
	Held   map[netip.Addr]Held
	Yields map[netip.Addr]YieldedAddress
	// CheckedContestEpochs are the epochs of the Contests that the listener has checked, by address.
	CheckedContestEpochs map[netip.Addr]int64
	// ProbeAnswers are the answers of links that have come since the last decision.
	ProbeAnswers []ProbeAnswer
	// Claims are those that watchers have made since the last decision.
	Claims map[netip.Addr]Claim
	// LivingNodes are the watched nodes that answer, or have answered anew since the last decision.
	LivingNodes map[WatchedNode]bool
}

// WatchedNode is a node that this one watches, and the interface of this one by which it does.
type WatchedNode struct{ Interface, Name string }

// IncludedCommonAnnouncements returns the CommonAnnouncements that the node is to announce: all of its
// LBNodeAgent, or none.
func (in *Inputs) IncludedCommonAnnouncements() []purelbv1.CommonAnnouncement {
	for i := range in.Announcements {
		if in.Announcements[i].Spec.IncludeCommonAnnouncements {
			return in.CommonAnnouncements
		}
	}
	return nil
}

// isNothingKnown reports whether nothing says what the node is to announce. That is so
// without an LBNodeAgent or an Announcement, and while an Announcement is for the agent of
// another LBNodeAgent, which comes when this one has gone. A missing Announcement is not an
// empty one.
func (in *Inputs) isNothingKnown() bool {
	if in.LBNodeAgent == nil || len(in.Announcements) == 0 {
		return true
	}
	for i := range in.Announcements {
		if in.Announcements[i].Spec.LBNodeAgent != in.LBNodeAgentName {
			return true
		}
	}
	return false
}

// Memory is all that Decide and Conclude remember from one decision to the next. It is
// lost when the agent's process ends; the zero Memory is that of an agent that has just
// started. What the listener remembers, which has to react within milliseconds, is in
// Defence.
type Memory struct {
	// NonEmptyObjects are the Announcements and CommonAnnouncements that asked for addresses
	// when they were last seen. After a restart no object counts as missing: the agent
	// withdraws what the objects that there are do not ask for. A policy of the API server
	// keeps users from deleting objects, and only a deletion while the agent was away is
	// forgotten so.
	NonEmptyObjects map[ObjectID]bool
	// MissingSince says since when objects that asked for addresses have been gone; zero while
	// the time does not count. Losing it is as harmless as losing NonEmptyObjects.
	MissingSince map[ObjectID]time.Time
	// ProbeStates are the questions that were asked about addresses that the node is to claim,
	// and what the links answered. After a restart the agent asks again, and claims the
	// addresses some 200 ms later.
	ProbeStates map[ProbeTarget]ProbeState
	// ProxyWaitSince says since when addresses wait for the service proxy. After a restart
	// they wait for up to another ProxyPatience.
	ProxyWaitSince map[netip.Addr]time.Time
	// Additions are those of desired addresses that were added lately. After a restart the
	// first repairs are immediate once more.
	Additions map[netip.Addr]Additions
	// ValidUntil says until when the kernel keeps the agent's Local addresses, unless they are renewed.
	// After a restart the agent asks the links for addresses that are gone.
	ValidUntil map[netip.Addr]time.Time
	// Claims are the addresses of silent nodes that this node has claimed, and that no entry asks
	// for yet. The checkpoint keeps them.
	Claims map[netip.Addr]Claim
}

// ObjectID tells an Announcement or a CommonAnnouncement from all others, also from a later
// one of the same name.
type ObjectID struct {
	Kind, Name string
	UID        types.UID
}
