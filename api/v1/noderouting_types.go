package v1

import (
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxRoutingPeers bounds spec.peers of a NodeRouting.
const MaxRoutingPeers = 32

// MaxRoutingGroups bounds spec.groups of a NodeRouting.
const MaxRoutingGroups = 64

// MaxRoutingRanges bounds the ranges of a group of a NodeRouting.
const MaxRoutingRanges = 131

// MaxWithheldRanges bounds spec.withheld of a NodeRouting.
const MaxWithheldRanges = 256

// MaxIgnoredRanges bounds spec.ignored of a NodeRouting.
const MaxIgnoredRanges = 256

// MaxUnsentRanges bounds the ranges of addresses that a session reports as not sent.
const MaxUnsentRanges = 16

// MaxServiceCommunities bounds spec.serviceCommunities of a NodeRouting.
const MaxServiceCommunities = 64

// MaxServiceCommunityAddresses bounds the addresses in all of spec.serviceCommunities of a NodeRouting together.
const MaxServiceCommunityAddresses = 4096

// RoutingPeer is one neighbour of one node, resolved from a BGPPeer.
//
// +structType=atomic
type RoutingPeer struct {
	// name of the BGPPeer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// address of the neighbour; absent if interface alone names the neighbour.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address,omitempty"`

	// interface on which the neighbour is: with a link-local address, or without any.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`

	// peerASN is the neighbour's autonomous system; 0 is any but the node's own.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	PeerASN int64 `json:"peerASN"`

	// myASN is the node's autonomous system.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	MyASN int64 `json:"myASN"`

	// port of the neighbour.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// sourceAddress from which the node connects.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	SourceAddress string `json:"sourceAddress,omitempty"`

	// sourceInterface is an interface of the node. The node connects from its own address
	// there that is of the neighbour's family.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	SourceInterface string `json:"sourceInterface,omitempty"`

	// families of addresses that the node advertises in the session.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Families []IPFamily `json:"families"`

	// nextHop is the node's address for the family that is not the session's own.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	NextHop string `json:"nextHop,omitempty"`

	// passwordFile is the file with the password, in the folder that the manager's Secret
	// for speakers is mounted at.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PasswordFile string `json:"passwordFile,omitempty"`

	// bfdIntervalMilliseconds is the time between BFD packets; 0 is without BFD.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	BFDIntervalMilliseconds int32 `json:"bfdIntervalMilliseconds,omitempty"`

	// bfdMultiplier is how many BFD packets in a row may be lost.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	BFDMultiplier int32 `json:"bfdMultiplier,omitempty"`

	// restartSeconds is how long the neighbour keeps the routes of a speaker that restarts;
	// 0 is without graceful restart.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	RestartSeconds int32 `json:"restartSeconds,omitempty"`

	// holdSeconds is after how long without a message the session is over.
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=65535
	HoldSeconds int32 `json:"holdSeconds"`

	// keepaliveSeconds is how often the node sends a message.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	KeepaliveSeconds int32 `json:"keepaliveSeconds"`

	// connectSeconds is how long the node waits before it connects again.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	ConnectSeconds int32 `json:"connectSeconds"`

	// ebgpMultihop is the TTL of packets to the neighbour, if that is not on the node's link.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	EBGPMultihop int32 `json:"ebgpMultihop,omitempty"`

	// ttlSecurity drops packets that are not from the node's own link.
	// +optional
	TTLSecurity bool `json:"ttlSecurity,omitempty"`
}

// SessionSettings returns the neighbour with those of its settings alone that a session is opened with:
// neither the name of the BGPPeer, nor what changes while the session goes on. passwordFile is there if there
// is a password, whatever the file is called.
func (p RoutingPeer) SessionSettings() RoutingPeer {
	p.Name, p.NextHop = "", ""
	if p.PasswordFile != "" {
		p.PasswordFile = "*"
	}
	p.ConnectSeconds, p.BFDIntervalMilliseconds, p.BFDMultiplier = 0, 0, 0
	return p
}

// RoutingGroup is how the node advertises the Virtual addresses of one ServiceGroup that
// says so.
//
// +structType=atomic
type RoutingGroup struct {
	// name of the ServiceGroup.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// ranges of the group, first-last.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=131
	// +kubebuilder:validation:items:MaxLength=96
	Ranges []string `json:"ranges"`

	// hostRoutes means that the node advertises a route for each of its addresses, besides
	// that for the network: some of these addresses are not on all nodes
	// (externalTrafficPolicy Local), and the route for the network leads to any node.
	// +optional
	HostRoutes bool `json:"hostRoutes,omitempty"`

	ServiceGroupBGP `json:",inline"`
}

// ServiceCommunities are communities that the routes to some addresses have besides those of
// their ServiceGroup, as the Services of these addresses ask for.
//
// +structType=atomic
type ServiceCommunities struct {
	// addresses, each by itself or as a range, first-last.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=96
	Addresses []string `json:"addresses"`

	RouteCommunities `json:",inline"`
}

// NodeRoutingSpec is to which neighbours a node advertises what.
type NodeRoutingSpec struct {
	// nodeName is the name of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName is immutable"
	NodeName string `json:"nodeName"`

	// lbNodeAgent is the LBNodeAgent of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	LBNodeAgent string `json:"lbNodeAgent"`

	// interface whose addresses the node advertises: the virtual interface.
	Interface InterfaceName `json:"interface"`

	// routerID is the BGP identifier of the node, in the form of an IPv4 address.
	// +kubebuilder:validation:MinLength=7
	// +kubebuilder:validation:MaxLength=15
	RouterID string `json:"routerID"`

	// drainSince is since when traffic is to leave the node; absent, it is to stay. The
	// node asks its neighbours to prefer others (RFC 8326), and then withdraws its routes.
	// +optional
	DrainSince *metav1.Time `json:"drainSince,omitempty"`

	// peers are the node's neighbours.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Peers []RoutingPeer `json:"peers,omitempty"`

	// groups are the ServiceGroups that say how to advertise their addresses. The addresses
	// of all others the node advertises to all neighbours, without more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Groups []RoutingGroup `json:"groups,omitempty"`

	// serviceCommunities are what Services ask for in addition, for the routes to single
	// addresses of theirs: each address is in one entry at most, and each entry has other
	// communities.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ServiceCommunities []ServiceCommunities `json:"serviceCommunities,omitempty"`

	// withheld are ranges of addresses, first-last, that the node does not advertise: how to
	// advertise them is not known any more, or does not fit into groups.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	Withheld []string `json:"withheld,omitempty"`

	// ignored are ranges of addresses, first-last, that the node has and is not to announce any more: its
	// agent is dead and does not withdraw them, and other nodes announce them. The node's routes are
	// those that it would have without these addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	Ignored []string `json:"ignored,omitempty"`
}

// IsNeighbor reports whether the neighbour that a RoutingSession names is this peer.
func (p *RoutingPeer) IsNeighbor(name string) bool {
	if p.Address == "" {
		return strings.HasSuffix(name, "%"+p.Interface)
	}
	addr, err := netip.ParseAddr(p.Address)
	return err == nil && name == addr.WithZone(p.Interface).String()
}

// SessionState is the state of a BGP session (RFC 4271).
//
// +kubebuilder:validation:Enum=Idle;Connect;Active;OpenSent;OpenConfirm;Established
type SessionState string

// SessionEstablished is the state in which routes are exchanged.
const SessionEstablished SessionState = "Established"

// RoutingSession is the session with one neighbour.
//
// +structType=atomic
type RoutingSession struct {
	// peer is the name of the BGPPeer.
	// +kubebuilder:validation:MaxLength=63
	Peer string `json:"peer"`

	// neighbor is the address of the neighbour, or the interface on which it is.
	// +kubebuilder:validation:MaxLength=64
	Neighbor string `json:"neighbor"`

	// state of the session. Of one that is down it is the state in which the session was when
	// lastError was reported: it changes with each attempt to open the session.
	State SessionState `json:"state"`

	// since is when the session last came up or went down; absent if it has never been up.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// peerASN is the autonomous system that the neighbour is in, as far as known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	PeerASN int64 `json:"peerASN,omitempty"`

	// families that node and neighbour agreed on.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Families []IPFamily `json:"families,omitempty"`

	// advertised is how many routes the node has sent to the neighbour.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Advertised int32 `json:"advertised,omitempty"`

	// unsent are ranges of addresses, first-last, that the node is to advertise in the session, and to
	// which no route leads that it has sent: neither to the address, nor to a network that has it. A
	// session that is down, or does not carry a family, has sent nothing of it, and does not list it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=96
	Unsent []string `json:"unsent,omitempty"`

	// bfd is Up or Down where BFD is configured.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	BFD string `json:"bfd,omitempty"`

	// lastError is why the session is not up, or does not carry all families.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	LastError string `json:"lastError,omitempty"`
}

// NodeRoutingStatus is what the node's speaker does.
type NodeRoutingStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// established is how many sessions are up.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Established int32 `json:"established"`
	// desired is how many sessions there are to be.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Desired int32 `json:"desired"`

	// sessionsText is both numbers in one text, for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	SessionsText string `json:"sessionsText,omitempty"`

	// networks is how many networks the node advertises.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Networks int32 `json:"networks"`

	// drained means that the node has withdrawn all routes, as spec.drainSince asks, for so
	// long that its neighbours send no traffic any more.
	// +optional
	Drained bool `json:"drained,omitempty"`

	// sessions are the sessions with all neighbours.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Sessions []RoutingSession `json:"sessions,omitempty"`

	// conditions; Ready says whether all sessions are up.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeRouting says to which neighbours one node advertises its Virtual addresses by BGP, which
// the manager writes, and how its sessions are, which that node's speaker writes. Users only
// read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=nr;nrs,categories=purelb
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.sessionsText`
// +kubebuilder:printcolumn:name="Networks",type=integer,JSONPath=`.status.networks`
// +kubebuilder:printcolumn:name="Drained",type=boolean,JSONPath=`.status.drained`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type NodeRouting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is to which neighbours the node advertises what.
	// +required
	Spec NodeRoutingSpec `json:"spec"`

	// status is what the node's speaker does.
	// +optional
	// +kubebuilder:default={established: 0, desired: 0, networks: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "The speaker has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status NodeRoutingStatus `json:"status,omitempty"`
}

// NodeRoutingList is a list of NodeRoutings.
//
// +kubebuilder:object:root=true
type NodeRoutingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeRouting `json:"items"`
}
