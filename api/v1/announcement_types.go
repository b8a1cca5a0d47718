package v1

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxAddressesPerAnnouncement bounds spec.addresses; a node with more gets
// further Announcements.
const MaxAddressesPerAnnouncement = 100

// MaxServicesPerAddress bounds the services of an address.
const MaxServicesPerAddress = 100

// MaxPreviousMACs bounds the previousMACs of an address.
const MaxPreviousMACs = 64

// MaxSuccessorsPerAddress bounds the successors of an address.
const MaxSuccessorsPerAddress = 2

// MaxSuccessorsPerNode bounds the successors of a node.
const MaxSuccessorsPerNode = 16

// MaxAskersPerAddress bounds how many nodes ask for an address.
const MaxAskersPerAddress = 3

// ClaimPolicy is the condition under which a node may claim a Local address that it does not have
// yet.
//
// +kubebuilder:validation:Enum=Probe;Takeover
type ClaimPolicy string

// Values of ClaimPolicy.
const (
	// ClaimProbe: the node claims the address only if no device on the link answers for it.
	ClaimProbe ClaimPolicy = "Probe"
	// ClaimTakeover: the node claims the address even if a device answers for it.
	ClaimTakeover ClaimPolicy = "Takeover"
)

// AnnouncedAddress is one address that a node is to announce. It has one writer as a whole,
// so the API server need not record which field manager owns which of its fields: that
// record would be longer than the entry.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="isIP(self.address) && ip.isCanonical(self.address)",message="must be an IP address in canonical form",fieldPath=".address"
// +kubebuilder:validation:XValidation:rule="!isIP(self.address) || ip(self.address).family() == 6 || self.prefixLength <= 32",message="must be at most 32 for IPv4",fieldPath=".prefixLength"
// +kubebuilder:validation:XValidation:rule="self.type == 'Local' || (self.claimPolicy == 'Probe' && !self.handingOver)",message="claimPolicy and handingOver are for Local addresses only"
// +kubebuilder:validation:XValidation:rule="self.type == 'Local' || !has(self.successors)",message="successors are for Local addresses only",fieldPath=".successors"
// +kubebuilder:validation:XValidation:rule="self.type == 'Local' || !has(self.contestedBy)",message="contestedBy is for Local addresses only",fieldPath=".contestedBy"
type AnnouncedAddress struct {
	// address, IPv4 or IPv6.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// prefixLength is the mask that the address gets on the interface. A Local
	// address has that of a host: 32 or 128.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLength int32 `json:"prefixLength"`

	// interface that the node puts the address on.
	Interface InterfaceName `json:"interface"`

	// type is Local, on one node's interface and answered for by ARP or ND, or
	// Virtual, on the virtual interface of every node concerned.
	Type AnnounceType `json:"type"`

	// serviceGroup that the address was allocated from.
	// +kubebuilder:validation:MaxLength=253
	ServiceGroup string `json:"serviceGroup"`

	// services that share the address, as namespace/name, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	Services []string `json:"services,omitempty"`

	// claimPolicy says whether the node may claim a Local address that it does not have
	// yet only if no device answers for it (Probe), or even if one does (Takeover).
	// +optional
	// +kubebuilder:default=Probe
	ClaimPolicy ClaimPolicy `json:"claimPolicy,omitempty"`

	// handingOver means that a Local address is being handed over: the node still
	// answers for the address but does not defend it any more.
	// +optional
	// +kubebuilder:default=false
	HandingOver bool `json:"handingOver"`

	// previousMACs are the MAC addresses, lower case with colons, of the nodes that
	// may still hold the address: while one of them answers for it, this node waits
	// in state Waiting. An answer from any other MAC address is a conflict.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	PreviousMACs []string `json:"previousMACs,omitempty"`

	// skipProbe lets the node claim the address without probing for it
	// (skipIPv6DAD of the ServiceGroup).
	// +optional
	SkipProbe bool `json:"skipProbe,omitempty"`

	// healthCheckNodePort of the Service whose traffic stays on the node
	// (externalTrafficPolicy Local). The node announces the address when the
	// service proxy reports on this port that the node has an endpoint of the
	// Service.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`

	// epoch grows whenever a Local address is given to another node; no epoch is
	// given to two nodes. In a CommonAnnouncement it is the revision with which the
	// entry came, or with which its interface or mask changed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch,omitempty"`

	// highestEpoch is the highest epoch that another node was given for the Local
	// address, or that is reserved for a successor, while this entry existed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HighestEpoch int64 `json:"highestEpoch,omitempty"`

	// successors are the nodes that are to claim the Local address when its holder,
	// the node of this entry, dies: the first one at once, the second one if the first
	// does not. Only the holder's entry has them, and only with the feature gate
	// WireFailover.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Successors []Successor `json:"successors,omitempty"`

	// contestedBy is a successor that says it has claimed the Local address, while the
	// agent of this node, the holder, renews its Lease. This node asks that node's kernel
	// for the address, and yields the address if that kernel answers; otherwise this node
	// reports that it still announces the address. It reports observedGeneration when it has
	// asked. Only the holder's entry has it, and only with the feature gate WireFailover.
	// +optional
	ContestedBy *Successor `json:"contestedBy,omitempty"`
}

// Successor is a node that is to claim a Local address when the holder dies.
type Successor struct {
	// nodeName is the name of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// epoch that is reserved for the node's claim. It is never given to another node.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
}

// Standby is what a node is to do when another node, the watched one, dies: it then claims
// Local addresses that the watched node holds. Until then it only watches.
type Standby struct {
	// watched is the node that is watched, on one of its links.
	Watched StandbyNode `json:"watched"`

	// interface of this node, by which it reaches that link.
	Interface InterfaceName `json:"interface"`

	// witnesses are other nodes on the link, at most three. While none of them answers,
	// this node may be cut off itself, and does not count the silence of the watched node.
	// Without such nodes, the default gateways of this node on the link count.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=3
	Witnesses []StandbyNode `json:"witnesses,omitempty"`

	// otherSuccessors are the other successors of the addresses below.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=8
	OtherSuccessors []StandbyNode `json:"otherSuccessors,omitempty"`

	// addresses are the Local addresses that the watched node holds and this node is a
	// successor for.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Addresses []StandbyAddress `json:"addresses"`
}

// StandbyNode is a node as another node on the same link can reach it.
type StandbyNode struct {
	// nodeName is the name of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// addresses of the node itself, in subnets of the link.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=39
	Addresses []string `json:"addresses,omitempty"`

	// macs are the Ethernet addresses by which the node answers, lower case with colons,
	// those on the link first.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	MACs []string `json:"macs,omitempty"`
}

// StandbyAddress is a Local address that a node is a successor for.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="isIP(self.address) && ip.isCanonical(self.address)",message="must be an IP address in canonical form",fieldPath=".address"
type StandbyAddress struct {
	// address, IPv4 or IPv6.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// serviceGroup that the address was allocated from.
	// +kubebuilder:validation:MaxLength=253
	ServiceGroup string `json:"serviceGroup"`

	// epoch by which the watched node holds the address.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`

	// successors of the address by rank, this node among them, each with the epoch that is
	// reserved for it.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Successors []Successor `json:"successors"`
}

// Asking is what a node, the asker, is to find out: whether another node, the holder, answers
// for Local addresses on the link that both are on.
type Asking struct {
	// holder is the node that announces the addresses.
	Holder StandbyNode `json:"holder"`

	// interface of this node, by which it reaches that link.
	Interface InterfaceName `json:"interface"`

	// askers are the nodes that ask for the addresses, this one among them. They take turns.
	// While neither the holder nor another asker answers for its own addresses, this node may
	// be cut off itself, and does not count the silence.
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	Askers []StandbyNode `json:"askers"`

	// addresses that the node asks for.
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Addresses []AskedAddress `json:"addresses"`
}

// AskedAddress is a Local address that a node asks for.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="isIP(self.address) && ip.isCanonical(self.address)",message="must be an IP address in canonical form",fieldPath=".address"
type AskedAddress struct {
	// address, IPv4 or IPv6.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// epoch by which the holder has the address.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch,omitempty"`

	// services that share the address, as namespace/name, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	Services []string `json:"services,omitempty"`
}

// AnnouncementSpec is what one node is to announce.
//
// +kubebuilder:validation:XValidation:rule="!has(self.asking) || !has(self.standby) && (!has(self.addresses) || self.addresses.size() == 0)",message="an Announcement with asking announces no addresses, and has no standby",fieldPath=".addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.standby) || !has(self.addresses) || self.addresses.size() == 0",message="an Announcement with standby announces no addresses",fieldPath=".addresses"
type AnnouncementSpec struct {
	// nodeName is the name of the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName is immutable"
	NodeName string `json:"nodeName"`

	// lbNodeAgent is the LBNodeAgent whose settings the node's agent follows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	LBNodeAgent string `json:"lbNodeAgent"`

	// heartbeatSeconds is how often the node's agent renews its Lease: as often as any Announcement of the node
	// by which it announces addresses says.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`

	// agentLeaving means that the node's agent is about to go: it withdraws what it is not
	// to announce any more, and removes its virtual interface when that is empty.
	// +optional
	AgentLeaving bool `json:"agentLeaving,omitempty"`

	// includeCommonAnnouncements means that the node announces the addresses of the
	// CommonAnnouncements of its LBNodeAgent, too.
	// +optional
	IncludeCommonAnnouncements bool `json:"includeCommonAnnouncements,omitempty"`

	// sole means that the node has no other Announcement, so that its agent may watch this one by its name, which costs
	// the API server less. It is false before another one is created. Only the Announcement that is named after its node
	// has it, and only on nodes that no Local address can come to, and that have few addresses of their own.
	// +optional
	Sole bool `json:"sole,omitempty"`

	// addresses that the node is to announce, besides those of the
	// CommonAnnouncements.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	Addresses []AnnouncedAddress `json:"addresses,omitempty"`

	// successors are the nodes that may claim Local addresses of this node when it seems
	// dead, as this node can reach them: those that the entries name as successors, or as
	// contestedBy. This node yields an address to a claim of a successor of that address
	// whose kernel answers. Only the first Announcement of a node that announces addresses
	// has them, and only with the feature gate WireFailover.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=16
	Successors []StandbyNode `json:"successors,omitempty"`

	// standby is what the node is to do when another node dies. An Announcement that has
	// it is about that alone, and announces no addresses. It needs the feature gate
	// WireFailover.
	// +optional
	Standby *Standby `json:"standby,omitempty"`

	// asking is what the node is to find out about Local addresses of another node. An
	// Announcement that has it is about that alone, and announces no addresses. The manager
	// writes it if local.reachability of the LBNodeAgent is enabled.
	// +optional
	Asking *Asking `json:"asking,omitempty"`
}

// ReservedEpochOf returns the epoch that successors of an address reserve for a node's claim of it; 0 if they do not
// name the node.
func ReservedEpochOf(successors []Successor, nodeName string) int64 {
	for _, s := range successors {
		if s.NodeName == nodeName {
			return s.Epoch
		}
	}
	return 0
}

// IsForAnnouncing reports whether an Announcement tells its node what to announce, rather than to watch another
// node (standby) or to ask for its addresses (asking).
func (a *Announcement) IsForAnnouncing() bool { return a.Spec.Standby == nil && a.Spec.Asking == nil }

// AddressState is what a node does with an address.
//
// +kubebuilder:validation:Enum=Pending;Waiting;Announced;Yielded;Conflict;Failed
type AddressState string

// States of an address on a node.
const (
	// StatePending: the node does not have the address yet, as a probe is under way, the
	// interface is missing, or the node's service proxy does not serve the address yet.
	StatePending AddressState = "Pending"
	// StateWaiting: the node waits, as a previous holder still answers for the address.
	StateWaiting AddressState = "Waiting"
	// StateAnnounced: the address is on the interface.
	StateAnnounced AddressState = "Announced"
	// StateYielded: the node has yielded the address to a device that claimed it.
	StateYielded AddressState = "Yielded"
	// StateConflict: the node does not have the address, as another device answers for it.
	StateConflict AddressState = "Conflict"
	// StateFailed: the node does not have the address, as its kernel refused it.
	StateFailed AddressState = "Failed"
)

// AddressStates are all states of an address on a node, from the best to the worst.
var AddressStates = []AddressState{
	StateAnnounced, StateWaiting, StatePending, StateYielded, StateConflict, StateFailed,
}

// AddressStatus is what a node does with one address. Like an entry of spec it has one
// writer as a whole.
//
// +structType=atomic
type AddressStatus struct {
	// address as in spec.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// state of the address on the node.
	State AddressState `json:"state"`

	// epoch of the spec entry that this state is about.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// interface that holds the address, if it is announced.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`

	// mac, lower case with colons, of the other device that answers for the address or
	// claims it, if there is one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`

	// reason for the state in one word, where the state needs one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message for people.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`

	// lastTransitionTime is when state last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// Reachability is whether the holder of a Local address answers for it, as this node has
// found out. Like an entry of spec it has one writer as a whole.
//
// +structType=atomic
type Reachability struct {
	// address as in spec.asking.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// epoch of the spec entry that this is about.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// reachable is True if the holder has answered, False if it has left questions
	// unanswered that this node knows to have been asked, and Unknown otherwise.
	// +kubebuilder:validation:Enum=True;False;Unknown
	Reachable metav1.ConditionStatus `json:"reachable"`

	// reason for that in one word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// mac, lower case with colons, of the other station that answers for the address, if
	// there is one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`

	// lastReachable is when the holder last answered, to ten minutes. It is exact if
	// reachable is not True.
	// +optional
	LastReachable *metav1.Time `json:"lastReachable,omitempty"`

	// lastTransitionTime is when reachable last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// IPFamily is IPv4 or IPv6, spelt as in core/v1.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address is IPv6.
func FamilyOf(a netip.Addr) IPFamily {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// NodeInterface is one interface of a node that can hold Local addresses.
type NodeInterface struct {
	// name of the interface.
	Name InterfaceName `json:"name"`

	// mac address, lower case with colons.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`

	// down means that the interface has no carrier now.
	// +optional
	Down bool `json:"down,omitempty"`

	// subnets that the interface is in: the prefixes of its addresses, with the
	// node's own address (192.168.1.101/24), and its on-link routes
	// (fd00:1::/64).
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	Subnets []string `json:"subnets,omitempty"`

	// defaultRoute lists the families whose preferred default route leaves by
	// this interface.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	DefaultRoute []IPFamily `json:"defaultRoute,omitempty"`

	// gateways are the next hops of default routes by this interface.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=39
	Gateways []string `json:"gateways,omitempty"`
}

// NodeGateway is the next hop of a default route of a node.
type NodeGateway struct {
	// interface by which the route leaves.
	Interface InterfaceName `json:"interface"`

	// address of the next hop. It may be link-local.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
}

// AnnouncementStatus is what the node does, as its agent reports.
type AnnouncementStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// commonAnnouncementsRevision is up to which revision the node has realised the
	// CommonAnnouncements of its LBNodeAgent: it announces all of their addresses but
	// those that are listed in addresses with another state. Absent if the node
	// announces none of them.
	// +optional
	CommonAnnouncementsRevision *int64 `json:"commonAnnouncementsRevision,omitempty"`

	// announced is how many addresses the node announces, those of the
	// CommonAnnouncements included.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Announced int32 `json:"announced"`

	// desired is how many addresses the node is to announce, those of the
	// CommonAnnouncements included.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Desired int32 `json:"desired"`

	// failing is the first address that the node is to announce and does not, with its
	// state, and how many more there are, for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Failing string `json:"failing,omitempty"`

	// localAddresses are the Local addresses that the node announces, as one line for
	// the wide table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LocalAddresses string `json:"localAddresses,omitempty"`

	// virtualAddresses are the Virtual addresses that the node announces, as one line
	// for the wide table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	VirtualAddresses string `json:"virtualAddresses,omitempty"`

	// services are the Services whose addresses the node announces, as one line for
	// the wide table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Services string `json:"services,omitempty"`

	// addresses has the state of each address of spec, and of those addresses of the
	// CommonAnnouncements that the node does not announce. That of an Announcement with
	// standby has those addresses that the node has claimed, with the epoch of the claim.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	Addresses []AddressStatus `json:"addresses,omitempty"`

	// reachability of each address of spec.asking, as this node has found out.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	Reachability []Reachability `json:"reachability,omitempty"`

	// interfaces are the node's interfaces that its LBNodeAgent selects: the facts from
	// which the manager decides where Local addresses go. Absent until the agent has
	// listed them. Only the first Announcement of a node has them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Interfaces []NodeInterface `json:"interfaces,omitempty"`

	// gateways are the next hops of all default routes of the node, also of those that leave
	// by interfaces that its LBNodeAgent does not select. Only the first Announcement of a
	// node has them.
	// +optional
	// +listType=map
	// +listMapKey=interface
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=32
	Gateways []NodeGateway `json:"gateways,omitempty"`

	// macs are the Ethernet addresses of all interfaces of the node, lower case with
	// colons: the node's kernel may answer for an address by any of them. Those of the
	// interfaces above come first, then the others, ascending; at most 64. Only the
	// first Announcement of a node has them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=17
	MACs []string `json:"macs,omitempty"`

	// conditions; Ready says whether the node does all that spec asks for.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Announcement says what one node is to announce, which the manager writes, and what the
// node does, which that node's agent writes. Users only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ann;anns,categories=purelb
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Announced",type=integer,JSONPath=`.status.announced`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desired`
// +kubebuilder:printcolumn:name="Failing",type=string,JSONPath=`.status.failing`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Local",type=string,priority=1,JSONPath=`.status.localAddresses`
// +kubebuilder:printcolumn:name="Virtual",type=string,priority=1,JSONPath=`.status.virtualAddresses`
// +kubebuilder:printcolumn:name="Services",type=string,priority=1,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Watches",type=string,priority=1,JSONPath=`.spec.standby.watched.nodeName`
// +kubebuilder:printcolumn:name="Asks",type=string,priority=1,JSONPath=`.spec.asking.holder.nodeName`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Announcement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the node is to announce.
	// +required
	Spec AnnouncementSpec `json:"spec"`

	// status is what the node does.
	// +optional
	// +kubebuilder:default={announced: 0, desired: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "The agent has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status AnnouncementStatus `json:"status,omitempty"`
}

// AnnouncementList is a list of Announcements.
//
// +kubebuilder:object:root=true
type AnnouncementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Announcement `json:"items"`
}
