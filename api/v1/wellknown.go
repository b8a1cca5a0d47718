package v1

// LoadBalancerClass is the spec.loadBalancerClass of Services that are always
// PureLB's, whether or not it runs as the cluster's default load balancer.
const LoadBalancerClass = "purelb.io/purelb"

// DefaultServiceGroup is the name of the ServiceGroup that serves Services
// that ask for none.
const DefaultServiceGroup = "default"

// Annotations that users set on Services.
const (
	// AnnotationServiceGroup names the ServiceGroup to allocate from.
	AnnotationServiceGroup = "purelb.io/service-group"
	// AnnotationAddresses asks for addresses by name: comma-separated, spaces
	// allowed, at most one of each family.
	AnnotationAddresses = "purelb.io/addresses"
	// AnnotationAllowSharedIP is the sharing key: Services of one namespace
	// with the same key and no (protocol, port) in common share an address.
	AnnotationAllowSharedIP = "purelb.io/allow-shared-ip"
	// AnnotationMultiPool ("true" or "false") overrides the group's multiPool.
	AnnotationMultiPool = "purelb.io/multi-pool"
	// AnnotationAllowLocal ("true") keeps externalTrafficPolicy Local on an
	// address that one node holds.
	AnnotationAllowLocal = "purelb.io/allow-local"
)

// Annotations that users set on ServiceGroups.
const (
	// AnnotationAllowOrphans ("true") lets a change or deletion through that
	// leaves addresses in use outside every pool.
	AnnotationAllowOrphans = "purelb.io/allow-orphans"
)

// Annotations that the manager writes on Services.
const (
	// AnnotationAllocatedBy marks a Service as allocated by us; its value is
	// Brand.
	AnnotationAllocatedBy = "purelb.io/allocated-by"
	// AnnotationAllocatedFrom names the ServiceGroup that the addresses are of.
	AnnotationAllocatedFrom = "purelb.io/allocated-from"
	// AnnotationAllocatedKey is the sharing key by which a Service that shares
	// was given its addresses.
	AnnotationAllocatedKey = "purelb.io/allocated-key"
	// AnnotationPoolType is the kind of that group: local, remote or netbox.
	AnnotationPoolType = "purelb.io/pool-type"
	// AnnotationLocalOverride says that externalTrafficPolicy was set to Cluster,
	// for which version of the Service's spec, and whether somebody has set it
	// back.
	AnnotationLocalOverride = "purelb.io/local-override"
	// AnnotationAnnouncingIPv4 lists the Local IPv4 addresses that are
	// announced, as node,interface,address entries separated by spaces.
	AnnotationAnnouncingIPv4 = "purelb.io/announcing-IPv4"
	// AnnotationAnnouncingIPv6 is AnnotationAnnouncingIPv4 for IPv6.
	AnnotationAnnouncingIPv6 = "purelb.io/announcing-IPv6"
	// AnnotationAddedTo lists, separated by spaces, the node/interface places
	// that hold Local addresses of the Service.
	AnnotationAddedTo = "purelb.io/added-to"
	// Brand is the value of AnnotationAllocatedBy.
	Brand = "PureLB"
)

// Labels.
const (
	// LabelAgent, on a Node, names the LBNodeAgent whose agent runs there. The
	// DaemonSet of that LBNodeAgent selects on it. Written by the manager.
	LabelAgent = "purelb.io/agent"
	// LabelNode, on an Announcement, names its node.
	LabelNode = "purelb.io/node"
)

// Condition types.
const (
	// ConditionReady is the summary of every kind of this API (kstatus).
	ConditionReady = "Ready"
	// ConditionStalled, only ever true, is on what is not ready and will not be
	// until somebody changes it (kstatus).
	ConditionStalled = "Stalled"
	// ConditionAllocated, on a Service, says whether it has its addresses and,
	// if not, why it waits.
	ConditionAllocated = "purelb.io/Allocated"
	// ConditionAnnounced, on a Service, says whether all nodes that are to
	// announce its addresses do.
	ConditionAnnounced = "purelb.io/Announced"
)

// Reasons of conditions and events.
const (
	ReasonAllocated          = "Allocated"
	ReasonNoSuchGroup        = "NoSuchGroup"
	ReasonGroupNotReady      = "GroupNotReady"
	ReasonExhausted          = "Exhausted"
	ReasonAddressInUse       = "AddressInUse"
	ReasonAddressOutsidePool = "AddressOutsidePools"
	ReasonPortConflict       = "PortConflict"
	ReasonSharingRefused     = "SharingRefused"
	ReasonInvalid            = "Invalid"

	ReasonAnnounced       = "Announced"
	ReasonAnnouncing      = "Announcing"
	ReasonNotAnnounced    = "NotAnnounced"
	ReasonWaitingForFacts = "WaitingForFacts"
	ReasonNoEligibleNode  = "NoEligibleNode"

	ReasonAccepted    = "Accepted"
	ReasonOverlap     = "Overlap"
	ReasonOutOfScope  = "OutOfScope"
	ReasonUnsupported = "Unsupported"
	ReasonProgressing = "Progressing"
	ReasonDegraded    = "Degraded"

	EventAddressAssigned      = "AddressAssigned"
	EventAddressReleased      = "AddressReleased"
	EventAllocationFailed     = "AllocationFailed"
	EventDuplicateAddress     = "DuplicateAddress"
	EventConfigurationWarning = "ConfigurationWarning"
	EventAnnouncingLocal      = "AnnouncingLocal"
	EventAnnouncingNonLocal   = "AnnouncingNonLocal"
	EventAddressConflict      = "AddressConflict"
	EventFailover             = "Failover"
	EventHandover             = "Handover"
	EventLocalOverride        = "LocalOverride"
	EventLocalRejected        = "LocalOverrideRejected"
	EventAgentLost            = "AgentLost"
	EventPolicyNotApplied     = "PolicyNotApplied"
)

// LeasePrefix and a node's name make the name of the Lease that the node's
// agent renews.
const LeasePrefix = "purelb-"
