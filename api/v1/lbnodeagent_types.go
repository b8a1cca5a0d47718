package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Values of LBNodeAgentLocal that have a meaning of their own.
const (
	// InterfaceDefault, as localInterface, is for each family the interface of
	// the default route with the lowest metric.
	InterfaceDefault = "default"
	// DefaultDummyInterface is the usual name of the virtual interface.
	DefaultDummyInterface = "kube-lb0"
)

// GARPConfig says how a node announces on its link a Local address that the node has just
// added: by gratuitous ARP for IPv4, by unsolicited neighbour advertisement for IPv6.
type GARPConfig struct {
	// enabled switches the announcements on.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// initialDelay between adding the address and the first announcement.
	// +optional
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('10s')",message="must be from 0s to 10s"
	InitialDelay *metav1.Duration `json:"initialDelay,omitempty"`

	// count is how many announcements are sent for each address added.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Count *int32 `json:"count,omitempty"`

	// interval between announcements. Receivers may ignore one that comes
	// within a second of another (neighbour locktime), so repeats matter.
	// +optional
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('10s')",message="must be from 100ms to 10s"
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// ProbeConfig says how a node asks on its link, before it claims a Local address, whether
// another device has the address already (RFC 5227 ARP probe, neighbour solicitation).
type ProbeConfig struct {
	// enabled switches probing on. Without it a node does not notice that another
	// device, or a node whose agent does not run, still has the address.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// count is how many probes are sent before the address is claimed.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Count *int32 `json:"count,omitempty"`

	// interval is how long each probe waits for an answer.
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('5s')",message="must be from 10ms to 5s"
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// InterfaceAddressConfig says how addresses are put on one kind of interface.
//
// +kubebuilder:validation:XValidation:rule="!has(self.validLifetime) || self.validLifetime == 0 || self.validLifetime >= 60",message="must be 0 (forever) or at least 60 seconds",fieldPath=".validLifetime"
// +kubebuilder:validation:XValidation:rule="!has(self.preferredLifetime) || self.preferredLifetime == 0 || self.preferredLifetime >= 60",message="must be 0 (same as validLifetime) or at least 60 seconds",fieldPath=".preferredLifetime"
// +kubebuilder:validation:XValidation:rule="!has(self.validLifetime) || !has(self.preferredLifetime) || self.validLifetime == 0 || self.preferredLifetime <= self.validLifetime",message="must not be longer than validLifetime",fieldPath=".preferredLifetime"
type InterfaceAddressConfig struct {
	// validLifetime in seconds: 0 is forever, else at least 60. A finite
	// lifetime is renewed at a third of it; the kernel removes the address of an
	// agent that has died when the lifetime ends.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	ValidLifetime *int32 `json:"validLifetime,omitempty"`

	// preferredLifetime in seconds, at most validLifetime; 0 is the same as
	// validLifetime. It has no effect on IPv6 addresses on a node's own interface:
	// their preferred lifetime is always 0, so that the node never uses them as a
	// source address. It has no effect on IPv4 addresses whose validLifetime is 0,
	// either: the kernel prefers such an address for as long as it has it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PreferredLifetime *int32 `json:"preferredLifetime,omitempty"`

	// noPrefixRoute keeps the kernel from adding a route to the subnet with
	// the address.
	// +optional
	NoPrefixRoute *bool `json:"noPrefixRoute,omitempty"`
}

// AddressConfig says how addresses are put on interfaces.
type AddressConfig struct {
	// localInterface is for Local addresses.
	// +optional
	// +kubebuilder:default={validLifetime: 300, preferredLifetime: 300, noPrefixRoute: true}
	LocalInterface *InterfaceAddressConfig `json:"localInterface,omitempty"`

	// dummyInterface is for Virtual addresses.
	// +optional
	// +kubebuilder:default={validLifetime: 0, preferredLifetime: 0, noPrefixRoute: false}
	DummyInterface *InterfaceAddressConfig `json:"dummyInterface,omitempty"`
}

// FailoverTrust is which answers in the name of a node show that its kernel works.
//
// +kubebuilder:validation:Enum=All;Echo
type FailoverTrust string

// Kinds of FailoverTrust.
const (
	// TrustAll takes answers to ICMP echoes, and to ARP requests and neighbour solicitations
	// where echoes remain unanswered.
	TrustAll FailoverTrust = "All"
	// TrustEcho takes answers to ICMP echoes alone.
	TrustEcho FailoverTrust = "Echo"
)

// Failover is how the nodes of an LBNodeAgent watch the nodes that they are to follow. It has
// an effect only with the feature gate WireFailover.
type Failover struct {
	// enabled says whether the nodes watch others, and others watch them.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// interval between two questions to a watched node.
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('50ms') && duration(self) <= duration('10s')",message="must be from 50ms to 10s"
	Interval *metav1.Duration `json:"interval,omitempty"`

	// misses is how many questions in a row a node leaves unanswered until it counts as dead.
	// More of them fit virtual machines that are paused while they migrate.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=20
	Misses *int32 `json:"misses,omitempty"`

	// trust is which answers show that a node's kernel works: All, or Echo where switches
	// answer ARP requests and neighbour solicitations for nodes, even for dead ones.
	// +optional
	// +kubebuilder:default=All
	Trust FailoverTrust `json:"trust,omitempty"`
}

// UnschedulablePolicy is what becomes of the addresses of a node that is unschedulable.
//
// +kubebuilder:validation:Enum=Ignore;HandOver
type UnschedulablePolicy string

// Kinds of UnschedulablePolicy.
const (
	// UnschedulableIgnore leaves addresses where they are.
	UnschedulableIgnore UnschedulablePolicy = "Ignore"
	// UnschedulableHandOver has a node hand over its addresses.
	UnschedulableHandOver UnschedulablePolicy = "HandOver"
)

// ReachabilityConfig is whether nodes find out that Local addresses of other nodes can be reached.
type ReachabilityConfig struct {
	// enabled makes up to three other nodes ask for each Local address of the nodes, as any
	// station on the link would: by ARP or neighbour discovery, at once when a node gets the
	// address and once a minute after that. Nodes of all LBNodeAgents that have it enabled ask
	// for each other's addresses. Services then have the condition purelb.io/Reachable, which
	// changes nothing about where addresses are.
	// +optional
	// +kubebuilder:default=false
	Enabled bool `json:"enabled,omitempty"`
}

// InterfaceName is the name of a Linux network interface.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:Pattern=`^[^/\s:]+$`
type InterfaceName string

// LBNodeAgentLocal says how an agent uses its node's interfaces.
type LBNodeAgentLocal struct {
	// localInterface selects the interfaces for Local addresses: "default", for
	// each family the interface of the default route with the lowest metric, or
	// a regular expression (RE2) that matches the whole name.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	LocalInterface string `json:"localInterface,omitempty"`

	// interfaces selects further interfaces, by name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Interfaces []InterfaceName `json:"interfaces,omitempty"`

	// subnets are those of the links that the nodes of this LBNodeAgent are on: the
	// manager gives these nodes Local addresses of no other subnet. Without subnets the
	// addresses of the Node objects count: where some Node has an address in the subnet
	// of a pool, the manager gives addresses of the pool to no node whose own Node object
	// has addresses of that family elsewhere only.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be a subnet in CIDR form, such as 192.168.1.0/24 or fd00:1::/64"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="has bits set beyond its prefix length"
	Subnets []string `json:"subnets,omitempty"`

	// dummyInterface is the interface for Virtual addresses; the agent makes it
	// if it is missing.
	// +optional
	// +kubebuilder:default=kube-lb0
	DummyInterface InterfaceName `json:"dummyInterface,omitempty"`

	// garpConfig is how the agent announces on the link an address that it has added.
	// +optional
	// +kubebuilder:default={}
	GARPConfig *GARPConfig `json:"garpConfig,omitempty"`

	// probeConfig is how the agent asks on the link before it claims an address.
	// +optional
	// +kubebuilder:default={}
	ProbeConfig *ProbeConfig `json:"probeConfig,omitempty"`

	// addressConfig is lifetimes and routes of addresses.
	// +optional
	// +kubebuilder:default={}
	AddressConfig *AddressConfig `json:"addressConfig,omitempty"`

	// failover is how the nodes watch the nodes that they are to follow. It has an effect
	// only with the feature gate WireFailover.
	// +optional
	Failover *Failover `json:"failover,omitempty"`

	// reachability is whether the nodes find out that Local addresses of other nodes can be
	// reached.
	// +optional
	Reachability *ReachabilityConfig `json:"reachability,omitempty"`
}

// AsksForAddresses reports whether nodes of an LBNodeAgent ask for each other's Local addresses.
func (a *LBNodeAgent) AsksForAddresses() bool {
	return a.Spec.Local != nil && a.Spec.Local.Reachability != nil && a.Spec.Local.Reachability.Enabled
}

// LBNodeAgentSpec says which nodes run an agent and how it works.
type LBNodeAgentSpec struct {
	// nodeSelector selects nodes by their labels; empty selects all. Where
	// several LBNodeAgents select a node, one with a selector beats one
	// without, then the first by name.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// local is how the agent uses the node's interfaces.
	// +optional
	// +kubebuilder:default={}
	Local *LBNodeAgentLocal `json:"local,omitempty"`

	// onUnschedulable is what becomes of the addresses of a node that takes no new pods, as
	// after kubectl cordon or kubectl drain: Ignore, they stay; HandOver, the node hands its
	// Local addresses over, and withdraws Virtual ones, as long as another node may have them.
	// +optional
	// +kubebuilder:default=Ignore
	OnUnschedulable UnschedulablePolicy `json:"onUnschedulable,omitempty"`

	// image of the agent; the manager's own if absent.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// imagePullPolicy of the agent's pods.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// resources of the agent's container.
	// +optional
	// +kubebuilder:default={requests: {cpu: "10m", memory: "32Mi"}, limits: {memory: "128Mi"}}
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// tolerations of the agent's pods. Absent, they run on control plane nodes
	// too, and stay where a node is not ready or unreachable.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// priorityClassName of the agent's pods.
	// +optional
	// +kubebuilder:default=system-node-critical
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// logLevel of the agent.
	// +optional
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=error;info;debug
	LogLevel string `json:"logLevel,omitempty"`
}

// LBNodeAgentStatus is what the manager has realised of the LBNodeAgent.
type LBNodeAgentStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// desiredNodes is how many nodes are to run this agent.
	DesiredNodes int32 `json:"desiredNodes"`

	// readyNodes is on how many of them it is ready.
	ReadyNodes int32 `json:"readyNodes"`

	// nodes is both numbers in one text, for the table.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Nodes string `json:"nodes,omitempty"`

	// speakers is on how many of its nodes a speaker is ready, and on how many one is to run,
	// in one text for the table; absent where no BGPPeer selects a node.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Speakers string `json:"speakers,omitempty"`

	// conditions; Ready says whether all those agents run as specified.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LBNodeAgent says which nodes announce addresses and how their agent works.
// The manager runs one DaemonSet for each.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lbna;lbnas,categories=purelb
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Speakers",type=string,JSONPath=`.status.speakers`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.local.localInterface`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.spec.local.interfaces`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node Selector",type=string,priority=1,JSONPath=`.spec.nodeSelector`
// +kubebuilder:printcolumn:name="Subnets",type=string,priority=1,JSONPath=`.spec.local.subnets`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must be at most 63 characters: it becomes a label of Nodes"
type LBNodeAgent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is which nodes, and how.
	// +optional
	// +kubebuilder:default={}
	Spec LBNodeAgentSpec `json:"spec,omitempty"`

	// status is what the manager has realised of it.
	// +optional
	// +kubebuilder:default={desiredNodes: 0, readyNodes: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Not looked at yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status LBNodeAgentStatus `json:"status,omitempty"`
}

// LBNodeAgentList is a list of LBNodeAgents.
//
// +kubebuilder:object:root=true
type LBNodeAgentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBNodeAgent `json:"items"`
}
