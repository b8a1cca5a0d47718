package main

import (
	"cmp"
	"regexp"
	"slices"
	"time"
)

// A spec is one of Kubernetes' tests.
type spec struct {
	// name is what the table of results calls it.
	name string
	// text is the part of the test's full name that selects this one.
	text string
	// asksForLocal is whether it creates Services with externalTrafficPolicy Local.
	asksForLocal bool
	// limit is how long it may take. The limits of the tests themselves are for clouds.
	limit time.Duration
}

// A variant is a way of using PureLB.
type variant struct {
	name string
	// client is the host of the lab in which the tests run.
	client string
	// onlyLocal is whether the variant runs only the specs that ask for policy Local:
	// for the others it is the same as another variant.
	onlyLocal bool
	why       string
}

// Names of variants and families. ServiceGroups and policies of cluster.yaml have the same.
const (
	variantLocal      = "local"
	variantAllowLocal = "allow-local"
	variantVirtual    = "virtual"
	familyIPv4        = "ipv4"
	familyDual        = "dual"
)

var families = []string{familyIPv4, familyDual}

var variants = []variant{
	{
		name: variantLocal, client: "client",
		why: "Local addresses, as installed; the tests run in a client on the nodes' link",
	},
	{
		name: variantAllowLocal, client: "client", onlyLocal: true,
		why: "Local addresses, and the ServiceGroup allows policy Local; specs that do not ask for policy Local would be " +
			"the same as in local",
	},
	{
		name: variantVirtual, client: "far",
		why: "Virtual addresses, bird on the nodes, the tests run in a client behind the router",
	},
}

const (
	usualLimit = 4 * time.Minute
	// rollingLimit: a rolling update replaces three pods, which take 60 s each to end,
	// five times.
	rollingLimit = 25 * time.Minute
)

var specs = []spec{
	{
		name: "change type and ports, TCP", text: "should be able to change the type and ports of a TCP service",
		limit: usualLimit,
	},
	{
		name: "change type and ports, UDP", text: "should be able to change the type and ports of a UDP service",
		limit: usualLimit,
	},
	{name: "source ranges", text: "should only allow access from service loadbalancer source ranges", limit: usualLimit},
	{
		name: "affinity, Cluster",
		text: "should have session affinity work for LoadBalancer service with Cluster traffic policy", limit: usualLimit,
	},
	{
		name:  "switch affinity, Cluster",
		text:  "should be able to switch session affinity for LoadBalancer service with Cluster traffic policy",
		limit: usualLimit,
	},
	{
		name: "affinity, Local", text: "should have session affinity work for LoadBalancer service with Local traffic policy",
		asksForLocal: true, limit: usualLimit,
	},
	{
		name:         "switch affinity, Local",
		text:         "should be able to switch session affinity for LoadBalancer service with Local traffic policy",
		asksForLocal: true, limit: usualLimit,
	},
	{name: "cleanup finalizer", text: "should handle load balancer cleanup finalizer for service", limit: usualLimit},
	{
		name: "without NodePort", text: "should be able to create LoadBalancer Service without NodePort and change it",
		limit: usualLimit,
	},
	{
		name:  "UDP, server cycles, other node",
		text:  "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes",
		limit: usualLimit,
	},
	{
		name:  "UDP, server cycles, same node",
		text:  "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes",
		limit: usualLimit,
	},
	{
		name:  "rolling update, Cluster",
		text:  "should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster",
		limit: rollingLimit,
	},
	{
		name:         "rolling update, Local",
		text:         "should not have connectivity disruption during rolling update with externalTrafficPolicy=Local",
		asksForLocal: true, limit: rollingLimit,
	},
	{
		name:         "policy Local, work",
		text:         "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work for type=LoadBalancer",
		asksForLocal: true, limit: usualLimit,
	},
	{
		name: "policy Local, only nodes with endpoints",
		text: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should only target nodes with " +
			"endpoints",
		asksForLocal: true, limit: usualLimit,
	},
	{
		name: "policy Local, all nodes with endpoints",
		text: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should target all nodes with " +
			"endpoints",
		asksForLocal: true, limit: usualLimit,
	},
	{
		name: "policy Local, from pods",
		text: "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work from pods", asksForLocal: true,
		limit: usualLimit,
	},
	{
		name: "health check, terminating endpoints",
		text: "Services should fail health check node port if there are only terminating endpoints", asksForLocal: true,
		limit: usualLimit,
	},
	{
		name: "NodePort and health check, policy changes",
		text: "Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy " +
			"changes",
		asksForLocal: true, limit: usualLimit,
	},
	{
		name: "same port, two protocols",
		text: "Services should serve endpoints on same port and different protocol for internal traffic on Type " +
			"LoadBalancer",
		limit: usualLimit,
	},
}

// An exception is a spec that cannot pass in a variant, or only under conditions.
type exception struct {
	spec, variant string
	// family is "" for both.
	family string
	// message matches how the spec fails, in its report or its log. Another failure is
	// not expected. It is "" if the spec passes.
	message string
	// client is where the spec runs instead, if not "".
	client string
	// byAddress is whether the spec needs a router that spreads connections by address
	// only, so that those of one client go to one node.
	byAddress bool
	// limit is the spec's limit here, if not 0.
	limit time.Duration
	// isSlow is whether the spec is left out unless asked for.
	isSlow bool
	why    string
}

const (
	overridden = "policy Local is overridden for Local addresses unless the ServiceGroup or the Service allows it"
	perNode    = "each node's kube-proxy keeps affinity: with policy Local and a pod on each node, it follows from " +
		"which node gets the connection, whatever the Service says"
	otherFamily = "the spec asks every address of a node, but kube-proxy answers for the health of a single-stack " +
		"Service in its family only"
	countsEndpoints = "the spec expects one endpoint of a pod, but a dual-stack Service has one of each family"
	byAddress       = "each node's kube-proxy keeps affinity: the router has to send all connections of a client to one " +
		"node"
	sameSubnet = "the spec takes a client's address in the /16 of the nodes for one of a node"
	finalizer  = "the spec wants a cloud provider's finalizer on the Service; PureLB needs none. It waits 15 minutes " +
		"for it"
)

// How specs fail. The health check's port of a Service goes when policy Local is overridden,
// before or after the spec has read it.
const (
	noHealthCheck     = `HealthCheck NodePort was not allocated|status code from http://.*/healthz via test container: 0`
	noHealthCheckIPv6 = `status code from http://fd00:.*/healthz via test container: 0`
	twoSlices         = `Unexpected number of Endpoints on Slices, got 2, expected 1`
)

var exceptions = []exception{
	{
		spec: "cleanup finalizer", variant: variantLocal, isSlow: true, limit: 20 * time.Minute, message: "finalizer",
		why: finalizer,
	},
	{
		spec: "cleanup finalizer", variant: variantVirtual, isSlow: true, limit: 20 * time.Minute, message: "finalizer",
		why: finalizer,
	},

	{
		spec: "policy Local, work", variant: variantLocal, message: "HealthCheck NodePort was not allocated", why: overridden,
	},
	{spec: "policy Local, only nodes with endpoints", variant: variantLocal, message: noHealthCheck, why: overridden},
	{
		spec: "policy Local, from pods", variant: variantLocal, limit: 15 * time.Minute, message: "Source IP not preserved",
		why: overridden,
	},
	{
		spec: "health check, terminating endpoints", variant: variantLocal, family: familyIPv4,
		message: "unexpected error trying to connect to nodeport", why: overridden,
	},
	{
		spec: "health check, terminating endpoints", variant: variantLocal, family: familyDual, message: twoSlices,
		why: countsEndpoints,
	},
	{
		spec: "NodePort and health check, policy changes", variant: variantLocal,
		message: "expected response containing 200 OK", why: overridden,
	},

	{spec: "policy Local, work", variant: variantAllowLocal, client: "far", why: sameSubnet},
	{
		spec: "switch affinity, Local", variant: variantAllowLocal, limit: 15 * time.Minute,
		message: "Affinity shouldn't hold but did", why: perNode,
	},
	{
		spec: "switch affinity, Local", variant: variantVirtual, limit: 15 * time.Minute,
		message: "Affinity should hold but didn't", why: perNode,
	},
	{
		spec: "policy Local, only nodes with endpoints", variant: variantAllowLocal, family: familyIPv4,
		message: noHealthCheckIPv6, why: otherFamily,
	},
	{
		spec: "policy Local, only nodes with endpoints", variant: variantVirtual, family: familyIPv4,
		message: noHealthCheckIPv6, why: otherFamily,
	},
	{
		spec: "health check, terminating endpoints", variant: variantAllowLocal, family: familyDual, message: twoSlices,
		why: countsEndpoints,
	},
	{
		spec: "health check, terminating endpoints", variant: variantVirtual, family: familyDual, message: twoSlices,
		why: countsEndpoints,
	},

	{spec: "affinity, Cluster", variant: variantVirtual, byAddress: true, why: byAddress},
	{spec: "switch affinity, Cluster", variant: variantVirtual, byAddress: true, why: byAddress},
	{spec: "affinity, Local", variant: variantVirtual, byAddress: true, why: byAddress},
}

// findException returns what is expected of a spec other than that it passes.
func findException(s spec, v variant, family string) exception {
	i := slices.IndexFunc(exceptions, func(e exception) bool {
		return e.spec == s.name && e.variant == v.name && (e.family == "" || e.family == family)
	})
	if i < 0 {
		return exception{}
	}
	return exceptions[i]
}

// A job is one run of a spec.
type job struct {
	spec      spec
	variant   variant
	family    string
	exception exception
}

// client returns the host in which the job runs.
func (j job) client() string { return cmp.Or(j.exception.client, j.variant.client) }

// limit returns how long the job may take.
func (j job) limit() time.Duration { return cmp.Or(j.exception.limit, j.spec.limit) }

// column returns the heading of the job's column in the table of results.
func (j job) column() string { return j.variant.name + " " + j.family }

// A choice says which jobs are wanted.
type choice struct {
	variants, families []string
	focus              *regexp.Regexp
}

// chooseJobs returns the jobs that are wanted, the longest first, so that those that wait
// most begin at once.
func chooseJobs(c choice) []job {
	var jobs []job
	for _, v := range variants {
		for _, family := range families {
			if !slices.Contains(c.variants, v.name) || !slices.Contains(c.families, family) {
				continue
			}
			for _, s := range specs {
				if c.focus.MatchString(s.name) && (s.asksForLocal || !v.onlyLocal) {
					jobs = append(jobs, job{s, v, family, findException(s, v, family)})
				}
			}
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(b.limit(), a.limit()) })
	return jobs
}
