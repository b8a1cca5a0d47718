package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxAddressesPerAnnouncement bounds spec.addresses; a node with more gets
// further Announcements.
const MaxAddressesPerAnnouncement = 100

// MaxPreviousMACs bounds previousMACs of an address.
const MaxPreviousMACs = 64

// Claim is on what terms a node may take a Local address that it does not have
// yet.
//
// +kubebuilder:validation:Enum=Probe;Takeover
type Claim string

// Terms of a claim.
const (
	// ClaimProbe is only if nobody on the link answers for the address.
	ClaimProbe Claim = "Probe"
	// ClaimTakeover is even if somebody does.
	ClaimTakeover Claim = "Takeover"
)

// AnnouncedAddress is one address that a node is to announce. It has one writer
// as a whole, so the API server need not keep account of who owns which field of
// it: that account would be longer than the entry.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="isIP(self.address) && ip.isCanonical(self.address)",message="must be an IP address in canonical form",fieldPath=".address"
// +kubebuilder:validation:XValidation:rule="!isIP(self.address) || ip(self.address).family() == 6 || self.prefixLength <= 32",message="must be at most 32 for IPv4",fieldPath=".prefixLength"
// +kubebuilder:validation:XValidation:rule="self.type == 'Local' || (self.claim == 'Probe' && !self.leaving)",message="claim and leaving are for Local addresses only"
type AnnouncedAddress struct {
	// address, IPv4 or IPv6.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`

	// prefixLength is the mask that the address gets on the interface.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLength int32 `json:"prefixLength"`

	// interface that the address goes on.
	Interface InterfaceName `json:"interface"`

	// type is Local, on one node's interface and answered for by ARP or ND, or
	// Virtual, on the virtual interface of every node concerned.
	Type AnnounceType `json:"type"`

	// serviceGroup that the address is of.
	// +kubebuilder:validation:MaxLength=253
	ServiceGroup string `json:"serviceGroup"`

	// services that share the address, as namespace/name, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=317
	Services []string `json:"services,omitempty"`

	// claim is on what terms the node may take a Local address that it does not
	// have yet.
	// +optional
	// +kubebuilder:default=Probe
	Claim Claim `json:"claim,omitempty"`

	// leaving means that a Local address is being handed over: the node still
	// answers for it but no longer defends it.
	// +optional
	// +kubebuilder:default=false
	Leaving bool `json:"leaving"`

	// previousMACs is the MAC addresses, lower case with colons, of the node
	// that held the address before: while one of them answers for it, the node
	// waits in Standby. Any other that answers is a conflict.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	PreviousMACs []string `json:"previousMACs,omitempty"`

	// skipProbe lets the node claim the address without probing for it
	// (skipIPv6DAD of its ServiceGroup).
	// +optional
	SkipProbe bool `json:"skipProbe,omitempty"`

	// healthCheckNodePort of the Service whose traffic stays on the node
	// (externalTrafficPolicy Local). The node announces the address when the
	// service proxy says there that it has an endpoint of the Service.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`

	// epoch grows by one at each change of owner of a Local address. In a
	// CommonAnnouncement it is the revision that the entry came with.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch,omitempty"`
}

// AnnouncementSpec is what one node is to announce.
type AnnouncementSpec struct {
	// nodeName is the node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName is immutable"
	NodeName string `json:"nodeName"`

	// lbNodeAgent whose settings the node's agent follows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	LBNodeAgent string `json:"lbNodeAgent"`

	// heartbeatSeconds is how often the node's agent renews its Lease.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	HeartbeatSeconds int32 `json:"heartbeatSeconds,omitempty"`

	// leaving means that the node's agent is about to go: it gives up what it is
	// not to announce any more, and its virtual interface when that is empty.
	// +optional
	Leaving bool `json:"leaving,omitempty"`

	// common means that the node announces, too, what the CommonAnnouncements of
	// its LBNodeAgent ask for.
	// +optional
	Common bool `json:"common,omitempty"`

	// addresses to announce, besides those of the CommonAnnouncements.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	Addresses []AnnouncedAddress `json:"addresses,omitempty"`
}

// AddressState is what a node does with an address.
//
// +kubebuilder:validation:Enum=Pending;Standby;Announced;Yielded;Conflict;Failed
type AddressState string

// States of an address on a node.
const (
	// StatePending is not there yet: a probe is under way, or the interface is
	// missing.
	StatePending AddressState = "Pending"
	// StateStandby is waiting: its previous holder still answers for it.
	StateStandby AddressState = "Standby"
	// StateAnnounced is on the interface.
	StateAnnounced AddressState = "Announced"
	// StateYielded is given up to another that claimed it.
	StateYielded AddressState = "Yielded"
	// StateConflict is not there because another device answers for it.
	StateConflict AddressState = "Conflict"
	// StateFailed is not there because the kernel refused.
	StateFailed AddressState = "Failed"
)

// AddressStatus is what a node does with one address. As in spec, it has one
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

	// mac, lower case with colons, of the device that answers for the address,
	// if that is not this node.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`

	// reason for the state in one word, where it needs one.
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

// IPFamily is IPv4 or IPv6, spelt as in core/v1.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

// NodeInterface is one interface of a node that can hold Local addresses.
type NodeInterface struct {
	// name of the interface.
	Name InterfaceName `json:"name"`

	// mac address, lower case with colons.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`

	// down is that the interface has no carrier now.
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

	// gateways is the next hops of default routes by this interface.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=39
	Gateways []string `json:"gateways,omitempty"`
}

// AnnouncementStatus is what the node does, written by its agent.
type AnnouncementStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// commonRevision is up to which revision the node has made what the
	// CommonAnnouncements of its LBNodeAgent ask for: all of their addresses are
	// announced but those that are listed in addresses with another state. Absent
	// if the node announces none of them.
	// +optional
	CommonRevision *int64 `json:"commonRevision,omitempty"`

	// announced is how many of the addresses are announced, those of the
	// CommonAnnouncements included.
	Announced int32 `json:"announced"`

	// desired is how many addresses are to be announced, those of the
	// CommonAnnouncements included.
	Desired int32 `json:"desired"`

	// localAddresses is the Local addresses that are announced, as one line for
	// the table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LocalAddresses string `json:"localAddresses,omitempty"`

	// virtualAddresses is the Virtual addresses that are announced, as one line
	// for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	VirtualAddresses string `json:"virtualAddresses,omitempty"`

	// services is the Services whose addresses are announced, as one line for
	// the wide table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Services string `json:"services,omitempty"`

	// addresses is the state of each that spec asks for, and of those of the
	// CommonAnnouncements that are not announced.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	Addresses []AddressStatus `json:"addresses,omitempty"`

	// interfaces is the node's interfaces that its LBNodeAgent selects, from
	// which placement decides. Absent until the agent has looked.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Interfaces []NodeInterface `json:"interfaces,omitempty"`

	// conditions; Ready says whether the node does all that spec asks.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Announcement is what one node is to announce, written by the manager, and
// what it does, written by that node's agent. Users read it; nobody else
// writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ann;anns,categories=purelb
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Announced",type=integer,JSONPath=`.status.announced`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desired`
// +kubebuilder:printcolumn:name="Local",type=string,JSONPath=`.status.localAddresses`
// +kubebuilder:printcolumn:name="Virtual",type=string,JSONPath=`.status.virtualAddresses`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Services",type=string,priority=1,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type Announcement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the node is to announce.
	// +required
	Spec AnnouncementSpec `json:"spec"`

	// status is what it does.
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
