package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddressPool is one range of addresses of one family.
//
// +kubebuilder:validation:XValidation:rule="isCIDR(self.subnet)",message="must be a subnet in CIDR form, such as 192.168.1.0/24 or fd00:1::/64",fieldPath=".subnet"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || cidr(self.subnet) == cidr(self.subnet).masked()",messageExpression="'has bits set beyond its prefix length; did you mean %s/%d?'.format([string(cidr(self.subnet).masked().ip()), cidr(self.subnet).prefixLength()])",message="has bits set beyond its prefix length",fieldPath=".subnet"
type AddressPool struct {
	// pool holds the addresses that Services can get: a CIDR, a range
	// first-last, or one address. A CIDR with host bits begins at the address
	// as written and ends with the last of its prefix.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=96
	Pool string `json:"pool"`

	// subnet is the CIDR of the network that the pool is part of, without host
	// bits.
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=43
	Subnet string `json:"subnet"`

	// aggregation is the mask that a Virtual address gets: "default" or absent
	// for the subnet's, else /1 to /32 for IPv4 and /1 to /128 for IPv6.
	// +optional
	Aggregation Aggregation `json:"aggregation,omitempty"`
}

// Aggregation is "default" or a mask such as /32.
//
// +kubebuilder:validation:MaxLength=7
// +kubebuilder:validation:XValidation:rule="self.matches('^(|default|/([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))$')",message="must be \"default\" or a mask from /1 to /32 for IPv4 or /1 to /128 for IPv6, such as /32"
type Aggregation string

// PoolSet holds the ranges of a group, in every form that users have written
// them in since the first release. Within one family, the manager tries the
// ranges in the order of the list, then the single pool.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.multiPool) && self.multiPool && has(self.balancePools) && self.balancePools)",message="multiPool and balancePools exclude each other"
// +kubebuilder:validation:XValidation:rule="has(self.pool) == has(self.subnet)",message="pool and subnet go together"
// +kubebuilder:validation:XValidation:rule="!has(self.aggregation) || has(self.pool)",message="aggregation needs pool and subnet beside it"
// +kubebuilder:validation:XValidation:rule="has(self.v4pools) || has(self.v6pools) || has(self.v4pool) || has(self.v6pool) || has(self.pool)",message="at least one pool is needed: v4pools, v6pools, v4pool, v6pool, or pool with subnet"
type PoolSet struct {
	// v4pools are the IPv4 ranges.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(p, !isCIDR(p.subnet) || cidr(p.subnet).ip().family() == 4)",message="every subnet must be IPv4; IPv6 goes under v6pools"
	// +kubebuilder:validation:XValidation:rule="self.all(p, !has(p.aggregation) || p.aggregation.matches('^(|default|/([1-9]|[12][0-9]|3[0-2]))$'))",message="aggregation must be \"default\" or from /1 to /32"
	V4Pools []AddressPool `json:"v4pools,omitempty"`

	// v6pools are the IPv6 ranges.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(p, !isCIDR(p.subnet) || cidr(p.subnet).ip().family() == 6)",message="every subnet must be IPv6; IPv4 goes under v4pools"
	V6Pools []AddressPool `json:"v6pools,omitempty"`

	// v4pool is a single IPv4 range; it counts as appended to v4pools.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || cidr(self.subnet).ip().family() == 4",message="must be IPv4; IPv6 goes under v6pool",fieldPath=".subnet"
	// +kubebuilder:validation:XValidation:rule="!has(self.aggregation) || self.aggregation.matches('^(|default|/([1-9]|[12][0-9]|3[0-2]))$')",message="must be \"default\" or from /1 to /32",fieldPath=".aggregation"
	V4Pool *AddressPool `json:"v4pool,omitempty"`

	// v6pool is a single IPv6 range; it counts as appended to v6pools.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || cidr(self.subnet).ip().family() == 6",message="must be IPv6; IPv4 goes under v4pool",fieldPath=".subnet"
	V6Pool *AddressPool `json:"v6pool,omitempty"`

	// pool is the oldest form: one range of either family, which has an effect
	// only if its family has no other range.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=96
	Pool string `json:"pool,omitempty"`

	// subnet is the subnet of pool, without host bits.
	// +optional
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be a subnet in CIDR form, such as 192.168.1.0/24 or fd00:1::/64"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",messageExpression="'has bits set beyond its prefix length; did you mean %s/%d?'.format([string(cidr(self).masked().ip()), cidr(self).prefixLength()])",message="has bits set beyond its prefix length"
	Subnet string `json:"subnet,omitempty"`

	// aggregation is the mask that Virtual addresses of pool get.
	// +optional
	Aggregation Aggregation `json:"aggregation,omitempty"`

	// multiPool gives a Service one address from every range that some node can
	// announce, instead of one of each family.
	// +optional
	MultiPool bool `json:"multiPool,omitempty"`

	// balancePools takes each address from the range with the fewest addresses
	// in use, instead of the first range with a free one.
	// +optional
	BalancePools bool `json:"balancePools,omitempty"`
}

// LocalPools holds ranges that nodes announce by subnet: if some node has an
// interface in the subnet of an address, one node announces the address there.
// Otherwise every node announces it on its virtual interface.
type LocalPools struct {
	PoolSet `json:",inline"`

	// skipIPv6DAD lets a node claim an IPv6 address without first probing
	// whether another host has it.
	// +optional
	SkipIPv6DAD bool `json:"skipIPv6DAD,omitempty"`
}

// RemotePools holds ranges that every node announces on its virtual interface,
// for routers to reach.
type RemotePools struct {
	PoolSet `json:",inline"`
}

// NetboxPools says which NetBox the addresses come from, and which of its addresses
// Services can get. With tenant alone, these are the addresses that NetBox has for the
// tenant with status reserved: an address becomes active when a Service gets it, and
// reserved again when the Service releases it.
//
// +kubebuilder:validation:XValidation:rule="has(self.v4) || has(self.v6) || has(self.tenant)",message="say which addresses Services get: v4, v6, or tenant for the addresses that are reserved for a tenant"
type NetboxPools struct {
	// url of the NetBox instance, without /api.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'https' || url(self).getScheme() == 'http')",message="must be an http or https URL"
	URL string `json:"url"`

	// tokenSecretRef names the Secret with the API token, in the group's
	// namespace. Both versions of NetBox's tokens work. The key url of the
	// Secret has to be the url of this instance: the token is sent nowhere else.
	TokenSecretRef SecretKeyRef `json:"tokenSecretRef"`

	// caBundle holds the certificates, in PEM form, of the authorities that may
	// have signed NetBox's certificate; absent for those that the system trusts.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	CABundle string `json:"caBundle,omitempty"`

	// tenant is the slug of the tenant in NetBox that the addresses belong to.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Tenant string `json:"tenant,omitempty"`

	// v4 says where IPv4 addresses come from.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.prefixes) || self.prefixes.all(p, !isCIDR(p) || cidr(p).ip().family() == 4)",message="every prefix must be IPv4; IPv6 goes under v6"
	// +kubebuilder:validation:XValidation:rule="!has(self.aggregation) || self.aggregation.matches('^(|default|/([1-9]|[12][0-9]|3[0-2]))$')",message="must be \"default\" or from /1 to /32",fieldPath=".aggregation"
	V4 *NetboxSource `json:"v4,omitempty"`

	// v6 says where IPv6 addresses come from.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.prefixes) || self.prefixes.all(p, !isCIDR(p) || cidr(p).ip().family() == 6)",message="every prefix must be IPv6; IPv4 goes under v4"
	V6 *NetboxSource `json:"v6,omitempty"`

	// aggregation is the mask that Virtual addresses get: "default" or absent for
	// that of the prefix in NetBox, else /1 to /32 for IPv4 and /1 to /128 for
	// IPv6. Of a group that has both v4 and v6, or neither, a mask up to /32 is
	// for IPv4, and a longer one for IPv6: what is said under v4 and v6 counts
	// first.
	// +optional
	Aggregation Aggregation `json:"aggregation,omitempty"`

	// status that addresses of Services have in NetBox; absent for active.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=50
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9_-]+$')",message="must be a status of NetBox, such as active"
	Status string `json:"status,omitempty"`

	// role that addresses of Services have in NetBox; absent for vip.
	// +optional
	// +kubebuilder:validation:Enum=loopback;secondary;anycast;vip;vrrp;hsrp;glbp;carp
	Role string `json:"role,omitempty"`

	// tags are the slugs of the tags that addresses of Services have in NetBox;
	// absent for purelb. NetBox has to know them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=100
	Tags []string `json:"tags,omitempty"`

	// dnsName is the DNS name that addresses have in NetBox, where {{.Name}} and
	// {{.Namespace}} stand for those of the Service. Absent for none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	DNSName string `json:"dnsName,omitempty"`
}

// NetboxSource says from which prefixes and ranges of NetBox the addresses of one family
// come. The manager tries them in the order of the lists: prefixes, then ranges. What a selector finds is used only
// where there are neither.
//
// +kubebuilder:validation:XValidation:rule="has(self.prefixes) || has(self.ranges) || has(self.selector)",message="at least one of prefixes, ranges and selector is needed"
type NetboxSource struct {
	// prefixes are prefixes of NetBox, in CIDR form.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=4
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(p, isCIDR(p))",message="every prefix must be in CIDR form, such as 192.168.1.0/24 or fd00:1::/64"
	Prefixes []string `json:"prefixes,omitempty"`

	// ranges are IP ranges of NetBox, as first-last.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=5
	// +kubebuilder:validation:items:MaxLength=96
	Ranges []string `json:"ranges,omitempty"`

	// selector finds the active prefixes and ranges of which all that it says is
	// true. Beside prefixes or ranges it says which of several that are alike is
	// meant.
	// +optional
	Selector *NetboxSelector `json:"selector,omitempty"`

	// aggregation is the mask that Virtual addresses of the family get: "default"
	// for that of the prefix in NetBox, else /1 to /32 for IPv4 and /1 to /128 for
	// IPv6; absent for what the group's aggregation says.
	// +optional
	Aggregation Aggregation `json:"aggregation,omitempty"`
}

// NetboxSelector selects prefixes and IP ranges of NetBox.
//
// +kubebuilder:validation:XValidation:rule="has(self.tag) || has(self.role) || has(self.tenant) || has(self.vrf)",message="at least one of tag, role, tenant and vrf is needed"
type NetboxSelector struct {
	// tag is the slug of a tag.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Tag string `json:"tag,omitempty"`

	// role is the slug of a prefix role.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Role string `json:"role,omitempty"`

	// tenant is the slug of a tenant.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Tenant string `json:"tenant,omitempty"`

	// vrf is the name or the route distinguisher of a VRF, or "global" for
	// prefixes and ranges that are in none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	VRF string `json:"vrf,omitempty"`
}

// SecretKeyRef is one key of a Secret in the same namespace.
type SecretKeyRef struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// key within the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// ServiceGroupSpec says where the addresses of a group come from.
//
// +kubebuilder:validation:XValidation:rule="[has(self.local), has(self.remote), has(self.netbox)].filter(x, x).size() == 1",message="exactly one of local, remote and netbox must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) && !has(self.subnet) && !has(self.aggregation)",message="pool, subnet and aggregation do not go directly under spec: nest them under spec.local (or under spec.remote if they are always routed)"
// +kubebuilder:validation:XValidation:rule="!has(self.name)",message="name does not go under spec: the group's name is metadata.name"
// +kubebuilder:validation:XValidation:rule="!has(self.netbox) || !has(self.reservations)",message="NetBox allocates the addresses of the group: reserve them there",fieldPath=".reservations"
// +kubebuilder:validation:XValidation:rule="!has(self.netbox) || !has(self.stickyFor)",message="NetBox allocates the addresses of the group, and gets those of deleted Services back at once",fieldPath=".stickyFor"
// +kubebuilder:validation:XValidation:rule="!has(self.remote) || !has(self.preferredNodes)",message="addresses of remote pools are Virtual: all nodes have them",fieldPath=".preferredNodes"
// +kubebuilder:validation:XValidation:rule="!has(self.remote) || !has(self.topologyKey)",message="addresses of remote pools are Virtual: all nodes have them",fieldPath=".topologyKey"
type ServiceGroupSpec struct {
	// local holds ranges that nodes announce by subnet: on one node's
	// interface where some node has one in the subnet, else on every node's
	// virtual interface.
	// +optional
	Local *LocalPools `json:"local,omitempty"`

	// remote holds ranges that every node announces on its virtual interface.
	// +optional
	Remote *RemotePools `json:"remote,omitempty"`

	// netbox takes addresses, one at a time, from NetBox. Nodes announce them by
	// subnet, as those of local.
	// +optional
	Netbox *NetboxPools `json:"netbox,omitempty"`

	// allowedNamespaces selects the namespaces whose Services may use the group;
	// absent, all namespaces. A Service that has an address of the group keeps it when
	// its namespace is selected no more.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// autoAssign says whether Services that name neither a group nor an address may
	// get addresses of this one. Absent, it is true for the group named "default" and
	// false for all others. Of several such groups the one named "default" comes
	// first, then the first by name that the Service may use and that has a free address; a group of
	// NetBox is taken to have one.
	// +optional
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// reservations keep addresses of the group for particular Services, also while
	// these do not exist. No other Service gets such an address, and none shares it.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Reservations []Reservation `json:"reservations,omitempty"`

	// stickyFor is for how long a Service that is deleted and made again, with the same
	// namespace and name, gets its address back: until then other Services get that address
	// only if no other one is free. Absent, it is 5 minutes; 0s switches it off.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('24h')",message="must be from 0s to 24h"
	StickyFor *metav1.Duration `json:"stickyFor,omitempty"`

	// shareAcrossNamespaces lets Services of different namespaces share an
	// address by the same key.
	// +optional
	ShareAcrossNamespaces bool `json:"shareAcrossNamespaces,omitempty"`

	// policyLocal says what becomes of externalTrafficPolicy Local on a Local
	// address or one that Services share. Override, or absent: the manager sets
	// the policy to Cluster. Allow: the policy stays, and the address is on a
	// node with a ready endpoint. Annotation purelb.io/allow-local on a Service
	// says the same for that Service, and counts more.
	// +optional
	PolicyLocal PolicyLocal `json:"policyLocal,omitempty"`

	// preferredNodes are nodes that get Local addresses of the group rather than others do: of
	// all that may take one, those for which the weights of what selects them add up to the most.
	// Other nodes get an address when none of these may take it. They decide where an address
	// goes, and move none that a node has. Virtual addresses are on all nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	PreferredNodes []PreferredNodes `json:"preferredNodes,omitempty"`

	// topologyKey is a label of nodes, such as topology.kubernetes.io/zone, over whose values the
	// Local addresses of the group are spread: of nodes that are preferred alike, those get an
	// address whose value has the fewest of the group and family. Nodes without the label count as
	// those of one more value. It decides where an address goes, and moves none that a node has.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`

	// bgp is how nodes advertise the group's Virtual addresses to BGPPeers. Without,
	// they advertise them to all.
	// +optional
	BGP *ServiceGroupBGPSpec `json:"bgp,omitempty"`

	// advertisedBy says who makes routers know the group's Virtual addresses. Speakers, the
	// default, are PureLB's own: the condition purelb.io/Advertised of Services says what they
	// do. External is routing software of yours, or static routes: PureLB does not see what
	// these do, and the condition is Unknown.
	// +optional
	AdvertisedBy AdvertisedBy `json:"advertisedBy,omitempty"`

	MisplacedFields `json:",inline"`
}

// PreferredNodes are nodes that get Local addresses rather than others.
type PreferredNodes struct {
	// weight is how much it counts that a node is selected.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`

	// nodeSelector selects nodes by their labels.
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`
}

// AdvertisedBy is who makes routers know the Virtual addresses of a group.
//
// +kubebuilder:validation:Enum=Speakers;External
type AdvertisedBy string

// Who may make routers know Virtual addresses.
const (
	// AdvertisedBySpeakers means PureLB's speakers, for which BGPPeers select nodes.
	AdvertisedBySpeakers AdvertisedBy = "Speakers"
	// AdvertisedByExternal means routing software, or routes, that PureLB does not see.
	AdvertisedByExternal AdvertisedBy = "External"
)

// AllowedNamespaces selects the namespaces whose Services may use a group.
//
// +kubebuilder:validation:XValidation:rule="!has(self.from) || self.from != 'Selector' || has(self.selector)",message="from: Selector needs a selector; {} selects all namespaces",fieldPath=".selector"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || has(self.from) && self.from == 'Selector'",message="selector counts only with from: Selector",fieldPath=".from"
type AllowedNamespaces struct {
	// from is All, or absent, if all namespaces are selected, and Selector if those are
	// that selector selects.
	// +optional
	From NamespacesFrom `json:"from,omitempty"`

	// selector selects namespaces by their labels. The API server gives every namespace
	// the label kubernetes.io/metadata.name, with the namespace's name as its value.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// NamespacesFrom is the way in which a group selects the namespaces whose Services may use it.
//
// +kubebuilder:validation:Enum=All;Selector
type NamespacesFrom string

// The ways in which a group selects namespaces.
const (
	// NamespacesFromAll means all namespaces.
	NamespacesFromAll NamespacesFrom = "All"
	// NamespacesFromSelector means those that a selector selects.
	NamespacesFromSelector NamespacesFrom = "Selector"
)

// Reservation keeps one address for one Service.
type Reservation struct {
	// address is in one of the group's pools.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	Address string `json:"address"`

	// service is the Service that the address is kept for, as namespace/name. It need
	// not exist.
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be the namespace and the name of a Service, such as team-a/web"
	Service string `json:"service"`
}

// MisplacedFields are keys that manifests of earlier releases have directly under
// spec, where they are never valid. They stand in the schema because the API server
// drops a key that does not, before any rule or webhook sees it: it would answer
// "unknown field" without the cure or, where the client does not ask for strict
// validation, store the group without its pool (TestMisplacedFields).
type MisplacedFields struct {
	// name is never valid here: the group's name is metadata.name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MisplacedName string `json:"name,omitempty"`

	// pool is never valid here: nest it under spec.local or spec.remote.
	// +optional
	// +kubebuilder:validation:MaxLength=96
	MisplacedPool string `json:"pool,omitempty"`

	// subnet is never valid here: nest it under spec.local or spec.remote.
	// +optional
	// +kubebuilder:validation:MaxLength=43
	MisplacedSubnet string `json:"subnet,omitempty"`

	// aggregation is never valid here: nest it under spec.local or spec.remote.
	// +optional
	// +kubebuilder:validation:MaxLength=7
	MisplacedAggregation string `json:"aggregation,omitempty"`
}

// PolicyLocal says what becomes of externalTrafficPolicy Local on an address of which one
// node, or more than one Service, gets the traffic.
//
// +kubebuilder:validation:Enum=Override;Allow
type PolicyLocal string

// What may become of externalTrafficPolicy Local.
const (
	// PolicyLocalOverride means that the manager sets the policy to Cluster.
	PolicyLocalOverride PolicyLocal = "Override"
	// PolicyLocalAllow means that the policy stays, and that the address is on a node
	// with a ready endpoint.
	PolicyLocalAllow PolicyLocal = "Allow"
)

// PoolType says where the addresses of a group come from.
//
// +kubebuilder:validation:Enum=local;remote;netbox
type PoolType string

// The types of a group.
const (
	PoolTypeLocal  PoolType = "local"
	PoolTypeRemote PoolType = "remote"
	PoolTypeNetbox PoolType = "netbox"
)

// AnnounceType says how nodes announce an address.
//
// +kubebuilder:validation:Enum=Local;Virtual
type AnnounceType string

// The ways to announce an address.
const (
	// AnnounceLocal addresses are on one node's interface, which answers ARP and
	// ND for them.
	AnnounceLocal AnnounceType = "Local"
	// AnnounceVirtual addresses are on the virtual interface of every node that
	// may have their traffic.
	AnnounceVirtual AnnounceType = "Virtual"
)

// AnnouncedAs says how nodes announce the addresses of a group.
//
// +kubebuilder:validation:Enum=Local;Virtual;Mixed
type AnnouncedAs string

// AnnouncedAsMixed means that the addresses of some ranges are Local, and those of others Virtual.
const AnnouncedAsMixed AnnouncedAs = "Mixed"

// PoolStatus is the state of one range.
type PoolStatus struct {
	// range is the range in canonical form, first-last.
	// +kubebuilder:validation:MaxLength=96
	Range string `json:"range"`

	// subnet is the network that the range is part of.
	// +kubebuilder:validation:MaxLength=43
	Subnet string `json:"subnet"`

	// announce says how nodes announce addresses of the range. It is absent
	// while no node has reported its interfaces.
	// +optional
	Announce AnnounceType `json:"announce,omitempty"`

	// capacity is how many addresses Services can get; the largest 64-bit
	// integer if there are more.
	Capacity int64 `json:"capacity"`

	// allocated is how many addresses are in use.
	Allocated int64 `json:"allocated"`

	// reserved is how many addresses are kept for Services that do not have them.
	// +optional
	Reserved int64 `json:"reserved,omitempty"`

	// recorded is how many addresses of the range an external IPAM system has in its
	// records, those of Services included. It is absent for ranges of the group's own.
	// +optional
	Recorded *int64 `json:"recorded,omitempty"`
}

// ServiceGroupStatus says whether the manager allocates from the group, and how
// many of its addresses are in use.
type ServiceGroupStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// type says which of local, remote and netbox the group is.
	// +optional
	Type PoolType `json:"type,omitempty"`

	// announcedAs says whether nodes announce addresses of the group as Local or as Virtual
	// ones, or, with ranges in several subnets, some as these and some as those (Mixed). It is
	// absent while no node has reported its interfaces.
	// +optional
	AnnouncedAs AnnouncedAs `json:"announcedAs,omitempty"`

	// allocatedIPv4 is the number of IPv4 addresses in use.
	AllocatedIPv4 int64 `json:"allocatedIPv4"`

	// allocatedIPv6 is the number of IPv6 addresses in use.
	AllocatedIPv6 int64 `json:"allocatedIPv6"`

	// availableIPv4 is the number of free IPv4 addresses, without those that are
	// reserved.
	AvailableIPv4 int64 `json:"availableIPv4"`

	// availableIPv6 is the number of free IPv6 addresses, without those that are
	// reserved; the largest 64-bit integer if there are more.
	AvailableIPv6 int64 `json:"availableIPv6"`

	// availableIPv6Text is the same for the table, where more than 10^18 are ">10^18".
	// +optional
	// +kubebuilder:validation:MaxLength=20
	AvailableIPv6Text string `json:"availableIPv6Text,omitempty"`

	// reservedIPv4 is the number of IPv4 addresses that are kept for Services that do
	// not have them.
	// +optional
	ReservedIPv4 int64 `json:"reservedIPv4,omitempty"`

	// reservedIPv6 is the number of IPv6 addresses that are kept for Services that do
	// not have them.
	// +optional
	ReservedIPv6 int64 `json:"reservedIPv6,omitempty"`

	// pools are the ranges in the order in which the manager tries them, IPv4
	// first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=131
	Pools []PoolStatus `json:"pools,omitempty"`

	// lastIPAMSync is when the manager last compared the group with the external
	// IPAM system that its addresses come from.
	// +optional
	LastIPAMSync *metav1.Time `json:"lastIPAMSync,omitempty"`

	// ranges lists the ranges in one line, for the wide table.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Ranges string `json:"ranges,omitempty"`

	// conditions of the group. Ready says whether the manager allocates from it, and Stalled
	// that only a change of the group can help; Reachable whether the external IPAM system
	// answers, and Drift what differs there; SubnetNotFound which subnets no node is in;
	// Advertised, while that differs from spec.bgp, whether nodes advertise its Virtual
	// addresses; and NodeAddressesExceeded that a node reports more addresses as its own
	// than the manager reserves for it.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServiceGroup holds the addresses that Services of type LoadBalancer get.
// Only groups in the manager's own namespace have an effect. The one named
// "default" is for Services that name no other, unless its autoAssign says otherwise.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sg;sgs,categories=purelb
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Announced As",type=string,JSONPath=`.status.announcedAs`
// +kubebuilder:printcolumn:name="IPv4 Used",type=integer,JSONPath=`.status.allocatedIPv4`
// +kubebuilder:printcolumn:name="IPv4 Free",type=integer,JSONPath=`.status.availableIPv4`
// +kubebuilder:printcolumn:name="IPv6 Used",type=integer,JSONPath=`.status.allocatedIPv6`
// +kubebuilder:printcolumn:name="IPv6 Free",type=string,JSONPath=`.status.availableIPv6Text`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ranges",type=string,priority=1,JSONPath=`.status.ranges`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ServiceGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where the addresses come from.
	// +required
	Spec ServiceGroupSpec `json:"spec"`

	// status says whether the manager allocates from the group, and how many
	// of its addresses are in use.
	// +optional
	// +kubebuilder:default={allocatedIPv4: 0, allocatedIPv6: 0, availableIPv4: 0, availableIPv6: 0, conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Not looked at yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ServiceGroupStatus `json:"status,omitempty"`
}

// ServiceGroupList is a list of ServiceGroups.
//
// +kubebuilder:object:root=true
type ServiceGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServiceGroup `json:"items"`
}
