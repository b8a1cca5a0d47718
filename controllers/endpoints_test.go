package controllers

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// restricted is what policy Local makes of an address.
type restricted struct {
	Only, Ending map[string]bool
	HealthPort   int32
	OnlyVirtual  bool
}

// overriding is a cluster whose ServiceGroup, which the records of these Services name,
// has its policyLocal at the default.
var overriding = &cluster{
	catalog: allocation.Catalog{"": {Group: allocation.Group{PolicyLocal: v1.PolicyLocalOverride}}},
}

// TestInsistsOnLocal has Services whose addresses are of a ServiceGroup.
func TestInsistsOnLocal(t *testing.T) {
	for _, row := range []struct {
		name       string
		ofGroup    v1.PolicyLocal // empty: the group does not exist
		annotation string
		override   string
		want       bool
	}{
		{"by default", v1.PolicyLocalOverride, "", "", false},
		{"set back", v1.PolicyLocalOverride, "", "rejected/1", true},
		{"overridden", v1.PolicyLocalOverride, "", "1", false},
		{"the Service allows", v1.PolicyLocalOverride, "true", "", true},
		{"neither true nor false", v1.PolicyLocalOverride, "yes", "", false},
		{"the group allows", v1.PolicyLocalAllow, "", "", true},
		{"the group allows, what the Service says is neither", v1.PolicyLocalAllow, "yes", "", true},
		{"the group allows, the Service does not", v1.PolicyLocalAllow, "false", "", false},
		{"both allow", v1.PolicyLocalAllow, "true", "", true},
		{"no such group", "", "", "", true},
		{"no such group, the Service does not allow", "", "false", "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
			for name, value := range map[string]string{
				v1.AnnotationAllowLocal: row.annotation, v1.AnnotationLocalOverride: row.override,
			} {
				if value != "" {
					svc.Annotations[name] = value
				}
			}
			record := allocation.Record{
				Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Group: "lan", Type: v1.PoolTypeLocal,
			}
			svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocationRecord, Message: record.String()}}
			c := &cluster{catalog: allocation.Catalog{"other": {Group: allocation.Group{PolicyLocal: v1.PolicyLocalOverride}}}}
			if row.ofGroup != "" {
				c.catalog["lan"] = &allocation.Verdict{Group: allocation.Group{PolicyLocal: row.ofGroup}}
			}
			if got := c.insistsOnLocal(svc); got != row.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestAttackSharerWithoutEndpoints(t *testing.T) {
	const cluster, local, insisting = "Cluster", "Local", "insisting"
	type sharer struct {
		name, policy string
		namespace    string   // "test" if empty
		on           []string // nodes with ready endpoints
		ending       []string // nodes with endpoints about to end, beside ready ones
		isAnywhere   bool     // its endpoints are ready and on no node
	}
	nodes := func(names ...string) map[string]bool {
		set := map[string]bool{}
		for _, n := range names {
			set[n] = true
		}
		return set
	}
	for _, row := range []struct {
		name    string
		sharers []sharer
		want    restricted
	}{
		{"one, policy Cluster", []sharer{{name: "a", policy: cluster}}, restricted{}},
		{"one, policy Local", []sharer{{name: "a", policy: local, on: []string{"n1"}}},
			restricted{Only: nodes("n1"), Ending: nodes(), HealthPort: 30000, OnlyVirtual: true}},
		{"one, policy Local, no endpoint", []sharer{{name: "a", policy: local}},
			restricted{Only: nodes(), Ending: nodes(), HealthPort: 30000, OnlyVirtual: true}},
		{"one that insists", []sharer{{name: "a", policy: insisting, on: []string{"n1"}, ending: []string{"n2"}}},
			restricted{Only: nodes("n1"), Ending: nodes("n2"), HealthPort: 30000}},
		{"one that insists, no endpoint", []sharer{{name: "a", policy: insisting}},
			restricted{Only: nodes(), Ending: nodes(), HealthPort: 30000}},

		{"one, policy Local, endpoints anywhere", []sharer{{name: "a", policy: local, isAnywhere: true}}, restricted{}},
		{"one that insists, endpoints anywhere", []sharer{{name: "a", policy: insisting, isAnywhere: true}}, restricted{}},
		{"two insist, the endpoints of one are anywhere", []sharer{
			{name: "a", policy: insisting, isAnywhere: true}, {name: "b", policy: insisting, on: []string{"n1"}},
		},
			restricted{Only: nodes("n1"), Ending: nodes(), HealthPort: 30000}},

		{
			"policy Local is nothing to sharers",
			[]sharer{{name: "a", policy: cluster}, {name: "b", policy: local, on: []string{"n1"}}}, restricted{},
		},
		{"a sharer insists", []sharer{{name: "a", policy: cluster}, {name: "b", policy: insisting, on: []string{"n1"}}},
			restricted{Only: nodes("n1"), Ending: nodes(), HealthPort: 30000}},
		{
			"a sharer insists, no endpoint", []sharer{{name: "a", policy: cluster}, {name: "b", policy: insisting}},
			restricted{},
		},
		{
			"a sharer insists, no endpoint, beside one with policy Local",
			[]sharer{{name: "a", policy: local, on: []string{"n1"}}, {name: "b", policy: insisting}}, restricted{},
		},
		{"two insist, one without endpoint", []sharer{
			{name: "a", policy: insisting, on: []string{"n1"}, ending: []string{"n3"}}, {name: "b", policy: insisting},
		},
			restricted{Only: nodes("n1"), Ending: nodes("n3"), HealthPort: 30000}},
		{"two insist, one without endpoint, beside a third", []sharer{
			{name: "a", policy: insisting}, {name: "b", policy: insisting, on: []string{"n2"}}, {name: "c", policy: cluster},
		},
			restricted{Only: nodes("n2"), Ending: nodes(), HealthPort: 30000}},
		{"two insist, one node serves both", []sharer{
			{name: "a", policy: insisting, on: []string{"n1", "n2"}}, {name: "b", policy: insisting, on: []string{"n2"}},
			{name: "c", policy: insisting},
		},
			restricted{Only: nodes("n2"), Ending: nodes()}},
		{"two insist, no node serves both", []sharer{
			{name: "a", policy: insisting, on: []string{"n1"}}, {name: "b", policy: insisting, on: []string{"n2"}},
		},
			restricted{Only: nodes("n1", "n2"), Ending: nodes()}},
		{
			"a sharer of another namespace insists",
			[]sharer{{name: "a", policy: cluster}, {name: "b", namespace: "other", policy: insisting, on: []string{"n1"}}},
			restricted{},
		},
		{"sharers of all namespaces insist", []sharer{
			{name: "a", policy: insisting, on: []string{"n1", "n2"}},
			{name: "b", namespace: "other", policy: insisting, on: []string{"n1"}},
		},
			restricted{Only: nodes("n1"), Ending: nodes()}},
		{"all insist, no endpoint", []sharer{{name: "a", policy: insisting}, {name: "b", policy: insisting}},
			restricted{Only: nodes(), Ending: nodes()}},
	} {
		t.Run(row.name, func(t *testing.T) {
			all, services := endpointNodes{}, []*corev1.Service(nil)
			for _, s := range row.sharers {
				namespace := s.namespace
				if namespace == "" {
					namespace = "test"
				}
				svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name}}
				if s.policy != cluster {
					svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30000
				}
				if s.policy == insisting {
					svc.Annotations = map[string]string{v1.AnnotationAllowLocal: "true"}
				}
				services = append(services, svc)
				if len(s.on) > 0 {
					all[KeyOf(svc)] = serviceEndpoints{byFamily: map[discoveryv1.AddressType]*servingNodes{
						discoveryv1.AddressTypeIPv4: {ready: nodes(s.on...), terminating: nodes(s.ending...)},
					}}
				}
				if s.isAnywhere {
					all[KeyOf(svc)] = serviceEndpoints{areOnEveryNode: true}
				}
			}
			a := placement.Address{Addr: netip.MustParseAddr("10.0.0.9")}
			all.restrictAddress(&a, services, overriding.insistsOnLocal)
			got := restricted{
				Only: a.ServingNodes, Ending: a.TerminatingNodes, HealthPort: a.HealthPort, OnlyVirtual: a.IsUnrestrictedIfLocal,
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAttackSharerWithoutEndpointsPlaced shows by whole placement that the address of a
// Service stays announced when another one that shares it insists on policy Local and has
// no endpoint.
func TestAttackSharerWithoutEndpointsPlaced(t *testing.T) {
	for _, poolType := range []v1.PoolType{v1.PoolTypeRemote, v1.PoolTypeLocal} {
		t.Run(string(poolType), func(t *testing.T) {
			sharer := func(name string) corev1.Service {
				svc := corev1.Service{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "test", Name: name, Annotations: map[string]string{v1.AnnotationAllocatedBy: v1.Brand},
					},
				}
				record := allocation.Record{
					Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Group: "default", Type: poolType,
				}
				svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocationRecord, Message: record.String()}}
				svc.Spec.Type = corev1.ServiceTypeLoadBalancer
				svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.9"}}
				return svc
			}
			attacker := sharer("attacker")
			attacker.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			attacker.Annotations[v1.AnnotationAllowLocal] = "true"
			in := &cluster{services: []corev1.Service{sharer("victim"), attacker}, endpoints: endpointNodes{}}
			result := placement.Place(placement.Inputs{Addresses: in.placementAddresses(true), Nodes: []placement.Node{{
				Name: "n1", LBNodeAgent: "default", VirtualInterface: "kube-lb0", Liveness: placement.Fresh, HasReportedFacts: true,
				Interfaces: []placement.Interface{
					{Name: "eth0", MAC: "02:00:00:00:00:01", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
				},
			}}})
			if n := len(result.SharedEntries["default"]) + len(result.Entries["n1"]); n != 1 || len(result.Unplaced) != 0 {
				t.Errorf("the address is announced %d times, want once; unplaced %v", n, result.Unplaced)
			}
		})
	}
}

// TestEndpointsAnywhere has endpoints some of which say on which node they are.
func TestEndpointsAnywhere(t *testing.T) {
	on := func(node string, conditions discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Conditions: conditions}
		if node != "" {
			e.NodeName = &node
		}
		return e
	}
	yes, no := true, false
	ready, failing := discoveryv1.EndpointConditions{Ready: &yes}, discoveryv1.EndpointConditions{Ready: &no}
	ending := discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	for _, row := range []struct {
		name      string
		endpoints []discoveryv1.Endpoint
		want      bool
	}{
		{"none", nil, false},
		{"one that says nothing of itself", []discoveryv1.Endpoint{{}}, true},
		{"ready", []discoveryv1.Endpoint{on("", ready)}, true},
		{"failing", []discoveryv1.Endpoint{on("", failing)}, false},
		{"ending", []discoveryv1.Endpoint{on("", ending)}, true},
		{"beside one on a node", []discoveryv1.Endpoint{on("", ready), on("n1", ready)}, false},
		{"beside one that ends on a node", []discoveryv1.Endpoint{on("n1", ending), on("", ready)}, false},
		{"beside one that fails on a node", []discoveryv1.Endpoint{on("n1", failing), on("", ready)}, true},
		{"on a node", []discoveryv1.Endpoint{on("n1", ready)}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := endpointsOf([]discoveryv1.EndpointSlice{{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: row.endpoints}})
			if got.areOnEveryNode != row.want {
				t.Errorf("got %v", got.areOnEveryNode)
			}
		})
	}
}
