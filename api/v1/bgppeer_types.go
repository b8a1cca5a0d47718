package v1

import (
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeerASN is the number of an autonomous system, or one of the words External and Internal.
//
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:MaxLength=10
// +kubebuilder:validation:XValidation:rule="type(self) == int ? (self >= 1 && self <= 4294967295) : string(self) in ['External', 'Internal']",message="must be a number from 1 to 4294967295, External or Internal"
// +kubebuilder:validation:XValidation:rule="type(self) != int || !(self in [23456, 65535, 4294967295])",message="is reserved, and no router can be in it (RFC 6793, RFC 7300)"
type PeerASN string

// Words that stand for a PeerASN.
const (
	// PeerASNExternal is whichever autonomous system the neighbour says it is in, except
	// the node's own.
	PeerASNExternal PeerASN = "External"
	// PeerASNInternal is the node's own autonomous system.
	PeerASNInternal PeerASN = "Internal"
)

// Number returns the number of the autonomous system; 0 for a word.
func (a PeerASN) Number() uint32 {
	n, err := strconv.ParseUint(string(a), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// UnmarshalJSON reads a number or a string.
func (a *PeerASN) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		var word string
		if err := json.Unmarshal(text, &word); err != nil {
			return err
		}
		*a = PeerASN(word)
		return nil
	}
	var number int64
	if err := json.Unmarshal(text, &number); err != nil {
		return fmt.Errorf("must be a number, External or Internal: %w", err)
	}
	*a = PeerASN(strconv.FormatInt(number, 10))
	return nil
}

// MarshalJSON writes a number as a number, and a word as a string.
func (a PeerASN) MarshalJSON() ([]byte, error) {
	if n := a.Number(); n != 0 {
		return []byte(strconv.FormatUint(uint64(n), 10)), nil
	}
	return json.Marshal(string(a))
}

// BGPDiscovery says how a node finds its neighbours.
//
// +kubebuilder:validation:Enum=DefaultGateway
type BGPDiscovery string

// DiscoverDefaultGateway means that the next hops of a node's default routes are its
// neighbours.
const DiscoverDefaultGateway BGPDiscovery = "DefaultGateway"

// BGPBFD is how node and neighbour watch each other by BFD (RFC 5880, RFC 5881).
type BGPBFD struct {
	// interval between packets that the node wants to send, and that it can receive. For each
	// direction the slower side counts.
	// +optional
	// +kubebuilder:default="300ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('50ms') && duration(self) <= duration('10s')",message="must be from 50ms to 10s"
	Interval *metav1.Duration `json:"interval,omitempty"`

	// multiplier is after how many of the node's intervals without a packet the neighbour takes the
	// node for dead. The neighbour's own multiplier counts for the node.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=50
	Multiplier *int32 `json:"multiplier,omitempty"`
}

// DefaultRestartSeconds is restartTime of a BGPPeer without gracefulRestart, and the default below.
const DefaultRestartSeconds = 30

// BGPGracefulRestart says how long the neighbour keeps the routes of a speaker that
// restarts (RFC 4724).
type BGPGracefulRestart struct {
	// restartTime is how long; 0s switches graceful restart off.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) == duration('0s') || (duration(self) >= duration('1s') && duration(self) <= duration('1h'))",message="must be 0s (off), or from 1s to 1h"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// BGPPeerSpec is one neighbour of the nodes that nodeSelector selects.
//
// +kubebuilder:validation:XValidation:rule="[has(self.peerAddress), has(self.interface), has(self.discover)].filter(x, x).size() == 1",message="exactly one of peerAddress, interface and discover must be set"
// +kubebuilder:validation:XValidation:rule="has(self.myASN) != has(self.myASNLabel)",message="exactly one of myASN and myASNLabel must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.bfd) || !has(self.ebgpMultihop)",message="bfd is for neighbours on the node's own link: it cannot be used with ebgpMultihop",fieldPath=".bfd"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurity) || !self.ttlSecurity || !has(self.ebgpMultihop)",message="ttlSecurity and ebgpMultihop exclude each other",fieldPath=".ttlSecurity"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.interface)",message="a neighbour that interface names is reached from the interface's own link-local address",fieldPath=".sourceAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.ebgpMultihop) || !has(self.interface)",message="a neighbour that interface names is on the node's own link",fieldPath=".ebgpMultihop"
// +kubebuilder:validation:XValidation:rule="!has(self.ebgpMultihop) || type(self.peerASN) == int || self.peerASN != 'Internal'",message="is for external neighbours: an internal one may be any number of hops away",fieldPath=".ebgpMultihop"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurity) || !self.ttlSecurity || type(self.peerASN) == int || self.peerASN != 'Internal'",message="is for external neighbours: an internal one may be any number of hops away",fieldPath=".ttlSecurity"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceInterface) || !has(self.sourceAddress)",message="sourceInterface and sourceAddress exclude each other",fieldPath=".sourceInterface"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceInterface) || !has(self.interface)",message="a neighbour that interface names is reached from the interface's own link-local address",fieldPath=".sourceInterface"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.peerAddress) || !isIP(self.sourceAddress) || !isIP(self.peerAddress) || ip(self.sourceAddress).family() == ip(self.peerAddress).family()",message="must be of the family of peerAddress",fieldPath=".sourceAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.passwordSecretRef) || !has(self.interface)",message="a neighbour that interface names cannot have a password",fieldPath=".passwordSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || !has(self.holdTime) || duration(self.keepaliveTime) + duration(self.keepaliveTime) <= duration(self.holdTime)",message="must be at most half of holdTime",fieldPath=".keepaliveTime"
type BGPPeerSpec struct {
	// peerASN is the neighbour's autonomous system: a number, Internal for the node's
	// own, or External for any other, as the neighbour says.
	PeerASN PeerASN `json:"peerASN"`

	// myASN is the nodes' autonomous system.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="!(self in [23456, 65535, 4294967295])",message="is reserved, and no router can be in it (RFC 6793, RFC 7300)"
	MyASN *int64 `json:"myASN,omitempty"`

	// myASNLabel is the label of Nodes whose value is the node's autonomous system.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	MyASNLabel string `json:"myASNLabel,omitempty"`

	// peerAddress is the neighbour's address.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).family() == 4 && ip(self).isLinkLocalUnicast()",message="must be the address of one host on the network; of a neighbour with an IPv6 link-local address, name the interface, or use discover"
	PeerAddress string `json:"peerAddress,omitempty"`

	// interface of the node on which the one router is the neighbour, by its IPv6
	// link-local address (unnumbered, RFC 8950).
	// +optional
	Interface InterfaceName `json:"interface,omitempty"`

	// discover finds the neighbours: with DefaultGateway they are the next hops of the
	// node's default routes, of both families.
	// +optional
	Discover BGPDiscovery `json:"discover,omitempty"`

	// nodeSelector selects the nodes; absent, all that run an agent.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// passwordSecretRef is where the password of the sessions is (TCP MD5, RFC 2385).
	// +optional
	PasswordSecretRef *SecretKeyRef `json:"passwordSecretRef,omitempty"`

	// bfd finds out soon that the link to the neighbour is dead; absent, it is off.
	// +optional
	BFD *BGPBFD `json:"bfd,omitempty"`

	// gracefulRestart keeps routes while a speaker restarts.
	// +optional
	// +kubebuilder:default={}
	GracefulRestart *BGPGracefulRestart `json:"gracefulRestart,omitempty"`

	// holdTime is after how long without a message a session is over.
	// +optional
	// +kubebuilder:default="9s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('18h')",message="must be from 3s to 18h"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// keepaliveTime is how often to send a message; absent, a third of holdTime.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('6h')",message="must be from 1s to 6h"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// connectTime is how long to wait before connecting again; the speaker waits for 2s at
	// the least.
	// +optional
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('10m')",message="must be from 2s to 10m"
	ConnectTime *metav1.Duration `json:"connectTime,omitempty"`

	// port of the neighbour.
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// sourceAddress from which nodes connect; absent, the kernel chooses. It is one address
	// for all nodes that nodeSelector selects: see sourceInterface.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// sourceInterface is an interface of the nodes, such as lo. Each node connects from the
	// lowest of its own addresses there that is of the neighbour's family.
	// +optional
	SourceInterface InterfaceName `json:"sourceInterface,omitempty"`

	// ebgpMultihop is the TTL of packets to an external neighbour that is not on the
	// node's link.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=255
	EBGPMultihop *int32 `json:"ebgpMultihop,omitempty"`

	// ttlSecurity drops packets that are not from the node's own link (RFC 5082). The
	// neighbour has to have it, too.
	// +optional
	TTLSecurity bool `json:"ttlSecurity,omitempty"`

	// families of addresses that nodes advertise in the session; absent, the one of the
	// session's own addresses, or both where interface names the neighbour.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Families []IPFamily `json:"families,omitempty"`
}

// BGPPeerStatus is how the sessions of all nodes with the neighbour are.
type BGPPeerStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// desiredSessions is how many sessions there are to be.
	DesiredSessions int32 `json:"desiredSessions"`

	// establishedSessions is how many of them are up.
	EstablishedSessions int32 `json:"establishedSessions"`

	// sessions is both numbers in one text, for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Sessions string `json:"sessions,omitempty"`

	// neighbor is the address, the interface or the discovery of spec by which nodes find the
	// neighbour, for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Neighbor string `json:"neighbor,omitempty"`

	// conditions; Ready says whether all sessions are up.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BGPPeer is a router to which nodes advertise their Virtual addresses by BGP. One object is
// one neighbour, or with discover each node's gateways, for all nodes that nodeSelector selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=bgpp,categories=purelb
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Sessions",type=string,JSONPath=`.status.sessions`
// +kubebuilder:printcolumn:name="Peer ASN",type=string,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="Neighbor",type=string,JSONPath=`.status.neighbor`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must be at most 63 characters"
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the neighbour.
	// +required
	Spec BGPPeerSpec `json:"spec"`

	// status is how its sessions are.
	// +optional
	// +kubebuilder:default={desiredSessions: 0, establishedSessions: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Not looked at yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status BGPPeerStatus `json:"status,omitempty"`
}

// BGPPeerList is a list of BGPPeers.
//
// +kubebuilder:object:root=true
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BGPPeer `json:"items"`
}
