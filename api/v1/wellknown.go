package v1

// LoadBalancerClass is the spec.loadBalancerClass of Services that are always
// PureLB's, whether or not it runs as the cluster's default load balancer.
const LoadBalancerClass = "purelb.io/purelb"

// DefaultServiceGroup is the name of the ServiceGroup for Services that ask for
// none, unless its autoAssign is false.
const DefaultServiceGroup = "default"

// Annotations that users set on Services.
const (
	// AnnotationServiceGroup names the ServiceGroup to allocate from.
	AnnotationServiceGroup = "purelb.io/service-group"
	// AnnotationAddresses asks for particular addresses: comma-separated, spaces
	// allowed, at most one of each family.
	AnnotationAddresses = "purelb.io/addresses"
	// AnnotationAllowSharedIP is the sharing key: Services of one namespace
	// with the same key and no (protocol, port) in common share an address, and
	// Services of several namespaces where the ServiceGroup has shareAcrossNamespaces.
	AnnotationAllowSharedIP = "purelb.io/allow-shared-ip"
	// AnnotationMultiPool ("true" or "false") overrides the group's multiPool.
	AnnotationMultiPool = "purelb.io/multi-pool"
	// AnnotationAllowLocal ("true" or "false") overrides the group's policyLocal:
	// "true" keeps externalTrafficPolicy Local on a Local or shared address.
	AnnotationAllowLocal = "purelb.io/allow-local"
	// AnnotationBGPCommunities asks for communities and large communities of the routes to the
	// Service's Virtual addresses: comma-separated, of those that the ServiceGroup allows.
	AnnotationBGPCommunities = "purelb.io/bgp-communities"
)

// Annotations that users set on ServiceGroups.
const (
	// AnnotationAllowOrphans ("true") lets a change or deletion through that
	// leaves addresses in use outside every pool.
	AnnotationAllowOrphans = "purelb.io/allow-orphans"
)

// Annotations that users set on LBNodeAgents.
const (
	// AnnotationAllowWithdrawal ("true") lets a change or deletion through that leaves
	// addresses of Services without a node to announce them.
	AnnotationAllowWithdrawal = "purelb.io/allow-withdrawal"
)

// Annotations that users set on PureLB's CustomResourceDefinitions.
const (
	// AnnotationAllowDeletion ("true") lets the deletion through, with which all objects of
	// the kind go.
	AnnotationAllowDeletion = "purelb.io/allow-deletion"
)

// Annotations that users set on Nodes.
const (
	// AnnotationHandover is a Local address that the node is to hand over to another one,
	// and not to take. kubectl purelb rebalance sets it, and removes it afterwards.
	AnnotationHandover = "purelb.io/handover"
)

// Annotations that the manager writes on Services, for people to read. The manager does
// not read again what they say about allocations, because users can edit them.
const (
	// AnnotationAllocatedBy says that PureLB has allocated the addresses; its value
	// is Brand.
	AnnotationAllocatedBy = "purelb.io/allocated-by"
	// AnnotationAllocatedFrom names the ServiceGroup that the addresses are of.
	AnnotationAllocatedFrom = "purelb.io/allocated-from"
	// AnnotationAllocatedKey is the sharing key by which a Service that shares
	// was given its addresses.
	AnnotationAllocatedKey = "purelb.io/allocated-key"
	// AnnotationPoolType is the kind of that group: local, remote or netbox.
	AnnotationPoolType = "purelb.io/pool-type"
	// AnnotationLocalOverride says that externalTrafficPolicy was set to Cluster,
	// for which version of the Service's spec, and whether another client has set it
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

// Annotations that the manager writes on pods of agents.
const (
	// AnnotationServiceAccountUID is the UID of the service account that the pods run as.
	AnnotationServiceAccountUID = "purelb.io/service-account-uid"
)

// Labels.
const (
	// LabelAgent, on a Node, names the LBNodeAgent whose agent runs there. The
	// DaemonSet of that LBNodeAgent selects on it. Written by the manager.
	LabelAgent = "purelb.io/agent"
	// LabelNode, on an Announcement that announces addresses, a NodeRouting or a Lease, names its node.
	LabelNode = "purelb.io/node"
)

// Condition types.
const (
	// ConditionReady is the summary of every kind of this API (kstatus).
	ConditionReady = "Ready"
	// ConditionStalled, only ever True, is on an object that is not ready and will not
	// be until a person changes it (kstatus).
	ConditionStalled = "Stalled"
	// ConditionNodeAddressesExceeded, only ever True, is on a ServiceGroup of which a node
	// reports more addresses as its own than the manager reserves for the node.
	ConditionNodeAddressesExceeded = "NodeAddressesExceeded"
	// ConditionSubnetNotFound is on a ServiceGroup of kind local if no node has an interface
	// in the subnet of one of its ranges: the addresses of that range are Virtual. It is True,
	// or absent.
	ConditionSubnetNotFound = "SubnetNotFound"
	// ConditionInterfaceNotFound is on an LBNodeAgent if it selects no interface of one of its
	// nodes, which therefore announces no Local address. It is True, or absent.
	ConditionInterfaceNotFound = "InterfaceNotFound"
	// ConditionReachable, on a ServiceGroup, says whether the external IPAM system that
	// its addresses come from answers.
	ConditionReachable = "Reachable"
	// ConditionDrift, only ever True, is on a ServiceGroup of which the external IPAM
	// system records something else than what Services have.
	ConditionDrift = "Drift"
	// ConditionGroupAdvertised is on a ServiceGroup if the speakers do something else than its
	// spec.bgp says: False if they do not advertise its addresses, True if they advertise host
	// routes besides.
	ConditionGroupAdvertised = "Advertised"
	// ConditionAllocated, on a Service, says whether the Service has what it asks for
	// and, if not, why it waits.
	ConditionAllocated = "purelb.io/Allocated"
	// ConditionAllocationRecord, on a Service, is what the manager has allocated to it: True,
	// with the addresses, their ServiceGroup, its type, the ports and the sharing key as
	// message, or False, with "none". The manager relies on nothing else, because users cannot
	// write the status of a Service.
	ConditionAllocationRecord = "purelb.io/AllocationRecord"
	// ConditionAnnounced, on a Service, says whether all nodes that are to
	// announce its addresses do. It is Unknown if the agent of one of them is silent,
	// and no other node may take the address.
	ConditionAnnounced = "purelb.io/Announced"
	// ConditionAdvertised, on a Service that has Virtual addresses, says whether speakers
	// have sent routers a route to each of them.
	ConditionAdvertised = "purelb.io/Advertised"
	// ConditionServiceReachable, on a Service that has Local addresses, says whether other nodes
	// on the link get answers from the nodes that announce them. It is there if
	// local.reachability of their LBNodeAgent is enabled.
	ConditionServiceReachable = "purelb.io/Reachable"
)

// Reasons of conditions and events.
const (
	ReasonAllocated           = "Allocated"
	ReasonNoSuchGroup         = "NoSuchGroup"
	ReasonGroupNotReady       = "GroupNotReady"
	ReasonNotAllowed          = "NotAllowed"
	ReasonExhausted           = "Exhausted"
	ReasonAddressInUse        = "AddressInUse"
	ReasonAddressOutsidePools = "AddressOutsidePools"
	ReasonPortConflict        = "PortConflict"
	ReasonSharingRefused      = "SharingRefused"
	ReasonInvalid             = "Invalid"
	ReasonIPAMUnavailable     = "IPAMUnavailable"
	ReasonIPAMRefused         = "IPAMRefused"
	ReasonOtherInstallation   = "OtherInstallation"
	ReasonWaitingForIPAM      = "WaitingForIPAM"
	ReasonRecorded            = "Recorded"

	ReasonAnnounced         = "Announced"
	ReasonAnnouncing        = "Announcing"
	ReasonNotAnnounced      = "NotAnnounced"
	ReasonWaitingForFacts   = "WaitingForFacts"
	ReasonWaitingForRouting = "WaitingForRouting"
	ReasonNoEligibleNode    = "NoEligibleNode"
	ReasonRefused           = "Refused"

	ReasonAdvertised    = "Advertised"
	ReasonNoRouter      = "NoRouter"
	ReasonNoSession     = "NoSession"
	ReasonNotAdvertised = "NotAdvertised"
	ReasonExternal      = "External"

	ReasonUnreachable  = "Unreachable"
	ReasonNoAsker      = "NoAsker"
	ReasonNotAsked     = "NotAsked"
	ReasonAnswered     = "Answered"
	ReasonNoAnswer     = "NoAnswer"
	ReasonHolderSilent = "HolderSilent"
	ReasonOtherStation = "OtherStation"
	ReasonNoWitness    = "NoWitness"

	ReasonAccepted    = "Accepted"
	ReasonOverlap     = "Overlap"
	ReasonOutOfScope  = "OutOfScope"
	ReasonProgressing = "Progressing"
	ReasonDegraded    = "Degraded"

	ReasonTooManyNodeAddresses = "TooManyNodeAddresses"
	ReasonSubnetNotFound       = "SubnetNotFound"
	ReasonInterfaceNotFound    = "InterfaceNotFound"
	ReasonReachable            = "Reachable"
	ReasonRecordsDiffer        = "RecordsDiffer"

	ReasonEstablished   = "Established"
	ReasonNoNodes       = "NoNodes"
	ReasonNoNeighbor    = "NoNeighbor"
	ReasonSecretMissing = "SecretMissing"
	ReasonPeerConflict  = "PeerConflict"
	ReasonSessionsDown  = "SessionsDown"
	ReasonDrained       = "Drained"
	// ReasonPasswordInvalid is of a BGPPeer whose password TCP MD5 cannot have.
	ReasonPasswordInvalid = "PasswordInvalid"
	ReasonTooManyGroups   = "TooManyGroups"
	ReasonNoSuchPeer      = "NoSuchPeer"
	ReasonHostRoutes      = "HostRoutes"
	// ReasonTooManyCommunities is that the Services of a ServiceGroup ask for more different sets of
	// communities than nodes can follow, or for more addresses.
	ReasonTooManyCommunities = "TooManyCommunities"

	EventAddressAssigned       = "AddressAssigned"
	EventAddressReleased       = "AddressReleased"
	EventAllocationFailed      = "AllocationFailed"
	EventDuplicateAddress      = "DuplicateAddress"
	EventAddressOverwritten    = "AddressOverwritten"
	EventConfigurationWarning  = "ConfigurationWarning"
	EventAnnouncingLocal       = "AnnouncingLocal"
	EventAnnouncingNonLocal    = "AnnouncingNonLocal"
	EventAddressConflict       = "AddressConflict"
	EventAnnouncementFailed    = "AnnouncementFailed"
	EventAddressUnreachable    = "AddressUnreachable"
	EventAddressReachable      = "AddressReachable"
	EventFailover              = "Failover"
	EventHandover              = "Handover"
	EventLocalOverride         = "LocalOverride"
	EventLocalOverrideRejected = "LocalOverrideRejected"
	EventIPAMDrift             = "IPAMDrift"
	EventAgentLost             = "AgentLost"
	EventPolicyNotApplied      = "PolicyNotApplied"
	EventSessionUp             = "SessionUp"
	EventSessionDown           = "SessionDown"
	EventRoutesWithheld        = "RoutesWithheld"
)

// LeasePrefix and a node's name make the name of the Lease that the node's
// agent renews.
const LeasePrefix = "purelb-"

// HeartbeatsPerLease is how many heartbeats such a Lease lasts: spec.heartbeatSeconds of the
// node's Announcements each.
const HeartbeatsPerLease = 3
