package plugin

import (
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// change is what is different from testdata/cluster.yaml.
type change = func(*Objects)

// changeService changes a Service in namespace shop.
func changeService(name string, do func(*corev1.Service)) change {
	return func(o *Objects) {
		for i := range o.Services {
			if o.Services[i].Name == name {
				do(&o.Services[i])
			}
		}
	}
}

// withCondition sets a condition of a Service in namespace shop.
func withCondition(name, conditionType string, status metav1.ConditionStatus, message string) change {
	return withReason(name, conditionType, status, "Because", message)
}

// withReason is withCondition with a reason.
func withReason(name, conditionType string, status metav1.ConditionStatus, reason, message string) change {
	return changeService(name, func(svc *corev1.Service) {
		meta.SetStatusCondition(&svc.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: reason, Message: message,
		})
	})
}

func managerRuns(args ...string) change {
	return func(o *Objects) { o.Deployments[0].Spec.Template.Spec.Containers[0].Args = args }
}

// reports has the agent of the first node report something else of its only address.
func reports(state v1.AddressState, message string) change {
	return func(o *Objects) {
		s := &o.Announcements[0].Status.Addresses[0]
		s.State, s.Message = state, message
	}
}

// endpointOn is an EndpointSlice of a Service in namespace shop, with one ready endpoint.
func endpointOn(service, node string) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: service, Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
		},
	}
}

// Explain says of a Service what it waits for, where each address is from, and what each node has to
// do with it. The whole text of the common cases is in testdata/golden.
func TestExplain(t *testing.T) {
	sharing := func(svc *corev1.Service) {
		svc.Annotations = map[string]string{v1.AnnotationAllowSharedIP: "key"}
		svc.Status.LoadBalancer.Ingress[0].IP = "192.168.1.240"
	}
	pools := func(do func(*v1.LocalPools)) change {
		return func(o *Objects) { do(o.ServiceGroups[0].Spec.Local) }
	}
	for name, row := range map[string]struct {
		service string
		changes []change
		// want are parts of the text.
		want []string
	}{
		"another type": {
			"internal", nil, []string{"is of type ClusterIP: PureLB serves Services of type LoadBalancer only"},
		},
		"another class": {
			"web",
			[]change{changeService("web", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/x") })},
			[]string{"has loadBalancerClass example.com/x: PureLB serves purelb.io/purelb"},
		},
		"not by default": {
			"web", []change{managerRuns("manager", "--default-load-balancer=false")},
			[]string{
				"has no loadBalancerClass, and the manager runs with --default-load-balancer=false: set loadBalancerClass: " +
					"purelb.io/purelb",
			},
		},
		"not looked at": {
			"late", []change{changeService("late", func(svc *corev1.Service) { svc.Status.Conditions = nil })},
			[]string{
				"Service shop/late has no address yet", "Waits: the manager has not looked at it yet: is a manager running?",
			},
		},
		"not allocated": {
			"late", nil, []string{"has no address yet", "Waits: AddressOutsidePools: 192.168.1.250 is in no pool"},
		},
		"not announced": {
			"web", []change{withCondition("web", v1.ConditionAnnounced, metav1.ConditionFalse, "0 of 1")},
			[]string{"has 192.168.1.240, but not all is done", "Waits: Because: 0 of 1"},
		},
		"not advertised": {
			"web", []change{withCondition("web", v1.ConditionAdvertised, metav1.ConditionFalse, "0 of 3 sessions are up")},
			[]string{"has 192.168.1.240, but not all is done", "Waits: Because: 0 of 3 sessions are up"},
		},
		"advertised by others": {
			"web", []change{withCondition("web", v1.ConditionAdvertised, metav1.ConditionUnknown, "by software of your own")},
			[]string{"has 192.168.1.240, announced"},
		},
		"all is done": {
			"web", nil,
			[]string{
				"has 192.168.1.240, announced", "Why this one: it was the first free address",
				"Local: a node has an interface in its subnet",
			},
		},
		"named by addresses": {
			"api", nil,
			[]string{
				"ServiceGroup default: the Service asks for addresses, and these are in it",
				"Why this one: annotation purelb.io/addresses asks for it",
			},
		},
		"the oldest field": {
			"web", []change{changeService("web", func(svc *corev1.Service) { svc.Spec.LoadBalancerIP = "192.168.1.240" })},
			[]string{"Why this one: spec.loadBalancerIP asks for it"},
		},
		"named group": {
			"edge", nil,
			[]string{"ServiceGroup routed: annotation purelb.io/service-group names it", "Virtual: its group is of type remote"},
		},
		"shared": {
			"web", []change{changeService("web", sharing), changeService("api", sharing)},
			[]string{`Why this one: Services with the sharing key "key" have it`, "Shared with: shop/api"},
		},
		"balanced": {
			"web", []change{pools(func(p *v1.LocalPools) { p.BalancePools = true })},
			[]string{"Why this one: it was free in the range with the fewest addresses in use"},
		},
		"one of every range": {
			"web", []change{pools(func(p *v1.LocalPools) { p.MultiPool = true })},
			[]string{"Why this one: the Service gets one address of every range"},
		},
		"its pool is gone": {
			"web", []change{func(o *Objects) { o.ServiceGroups[0].Spec.Local.V4Pools[0].Pool = "192.168.1.242" }},
			[]string{"Pool: of no pool any more: the Service keeps it"},
		},
		"no node on its subnet": {"edge", []change{func(o *Objects) {
			sg := &o.ServiceGroups[1].Spec
			sg.Local, sg.Remote = &v1.LocalPools{PoolSet: sg.Remote.PoolSet}, nil
		}}, []string{"Virtual: no node has an interface in its subnet"}},
		"policy Local": {"edge", []change{changeService("edge", func(svc *corev1.Service) {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}), func(o *Objects) {
			o.EndpointSlices = append(o.EndpointSlices, endpointOn("edge", "node2"), endpointOn("web", "node3"))
		}}, []string{
			"node1   Announced   kube-lb0            has no ready endpoint", "node2   Announced   kube-lb0\n",
			"node3   Announced   kube-lb0            has no ready endpoint",
		}},
		"facts are awaited": {"web", []change{func(o *Objects) {
			for i := range o.Announcements {
				o.Announcements[i].Spec.Addresses, o.Announcements[i].Status = nil, v1.AnnouncementStatus{}
			}
		}}, []string{"Not announced: waiting for the agent of node node1 to report its interfaces"}},
		"a node's own words": {
			"web", []change{reports(v1.StateConflict, "answered by 02:00:00:00:00:99")},
			[]string{"node1   Conflict   eth0        2026-01-02T03:04:05Z   answered by 02:00:00:00:00:99"},
		},
		"a node that is deleted": {
			"web", []change{func(o *Objects) { o.Nodes = o.Nodes[1:] }},
			[]string{"node1   Announced   eth0        2026-01-02T03:04:05Z   has no Node object any more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := textOf(t, must(ExplainService(clusterOf(t, row.changes...), "shop", row.service))(t))
			for _, want := range row.want {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q:\n%s", want, text)
				}
			}
		})
	}
	if _, err := ExplainService(clusterOf(t), "shop", "none"); err == nil ||
		err.Error() != "there is no Service shop/none" {
		t.Errorf("of no Service: %v", err)
	}
	unread := clusterOf(t, func(o *Objects) { forget(o, kindServices) })
	if _, err := ExplainService(unread, "shop", "web"); err == nil ||
		err.Error() != "cannot read Services: Services is forbidden" {
		t.Errorf("of Services that cannot be read: %v", err)
	}
}

// Status says what needs attention, and how bad it is: Critical is an address that no node announces,
// and that nothing is decided any more.
func TestStatus(t *testing.T) {
	notAnnounced := withCondition("web", v1.ConditionAnnounced, metav1.ConditionFalse, "not all announcements are made")
	for name, row := range map[string]struct {
		changes []change
		want    string // the problem, or what the status says of none
	}{
		"all is well": {nil, "Healthy: PureLB is healthy: 3 Services, 5 of 5 announcements on 3 nodes"},
		"a manager is missing": {
			[]change{func(o *Objects) { o.Deployments[0].Status.ReadyReplicas = 1 }},
			"Degraded deployment/purelb-manager: 1 of 2 managers are ready",
		},
		"the one manager is missing": {
			[]change{func(o *Objects) { o.Deployments[0].Spec.Replicas, o.Deployments[0].Status.ReadyReplicas = nil, 0 }},
			"Critical deployment/purelb-manager: no manager is ready: addresses go on answering, but nothing is allocated, " +
				"and nothing moves but off dead nodes: see kubectl -n purelb-system describe pods " +
				"-l app.kubernetes.io/name=purelb-manager and, if one has run, kubectl -n purelb-system logs " +
				"deployment/purelb-manager --all-pods",
		},
		"the one manager is there": {
			[]change{func(o *Objects) { o.Deployments[0].Spec.Replicas, o.Deployments[0].Status.ReadyReplicas = nil, 1 }},
			"Healthy: PureLB is healthy: 3 Services, 5 of 5 announcements on 3 nodes",
		},
		"there is no manager": {
			[]change{func(o *Objects) { o.Deployments = nil }},
			"Critical deployment/purelb-manager: there is none in namespace purelb-system: nothing is allocated, and nothing " +
				"moves but off dead nodes",
		},
		"there is no LBNodeAgent": {
			[]change{func(o *Objects) { o.LBNodeAgents = nil }},
			"Critical lbnodeagent: there is none: no node runs an agent, and nothing is announced",
		},
		"agents are missing": {[]change{func(o *Objects) {
			o.LBNodeAgents[0].Status.Conditions[0] = metav1.Condition{
				Type: v1.ConditionReady, Status: metav1.ConditionFalse, Message: "2 of 3 agents are ready",
			}
		}}, "Degraded lbnodeagent/default: 2 of 3 agents are ready"},
		"a node is not done": {[]change{func(o *Objects) {
			o.Announcements[1].Status.Conditions[0] = metav1.Condition{
				Type: v1.ConditionReady, Status: metav1.ConditionFalse, Message: "1 of 2",
			}
		}}, "Degraded announcement/node2: 1 of 2"},
		"a pool is full": {
			[]change{func(o *Objects) { o.ServiceGroups[0].Spec.Local.V4Pools[0].Pool = "192.168.1.240-192.168.1.241" }},
			"Degraded servicegroup/default: has no free address of IPv4: add a range to it, or delete Services",
		},
		"both families are full": {[]change{func(o *Objects) {
			local := o.ServiceGroups[0].Spec.Local
			local.V4Pools[0].Pool, local.V6Pools[0].Pool = "192.168.1.240-192.168.1.241", "fd00:1::f0"
			o.Services[0].Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}, changeService("web", func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = append(
				svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "fd00:1::f0"},
			)
		}), withCondition(
			"web", v1.ConditionAllocationRecord, metav1.ConditionTrue, "192.168.1.240,fd00:1::f0 group=default type=local key=",
		)}, "Degraded servicegroup/default: has no free address of IPv4 and IPv6: add a range to it, or delete Services"},
		"a group that is not Ready": {[]change{func(o *Objects) {
			o.ServiceGroups[1].Status.Conditions[0] = metav1.Condition{
				Type: v1.ConditionReady, Status: metav1.ConditionFalse, Message: "why",
			}
		}}, "Degraded servicegroup/routed: why"},
		"a group elsewhere": {[]change{func(o *Objects) {
			o.ServiceGroups = append(
				o.ServiceGroups, v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "shop"}},
			)
		}}, "Degraded servicegroup/shop/x: is not in namespace purelb-system: the manager ignores it"},
		"sessions are down": {
			[]change{func(o *Objects) { o.BGPPeers = readObjectsOf(t, "testdata/cluster.yaml").BGPPeers }},
			"Degraded bgppeer/router: 1/2 sessions are up; node2: 192.168.1.1: the neighbour does not answer on the link " +
				"(no route to host)",
		},
		"a Service is not looked at": {
			[]change{changeService("web", func(svc *corev1.Service) { svc.Status.Conditions = nil })},
			"Degraded service/shop/web: the manager has not looked at it yet",
		},
		"the only node of an address is silent": {
			[]change{
				withReason("web", v1.ConditionAnnounced, metav1.ConditionUnknown, v1.ReasonHolderSilent, "node1 is silent"),
			},
			"Degraded service/shop/web: node1 is silent",
		},
		"the only node of an address is down": {
			[]change{withReason("web", v1.ConditionAnnounced, metav1.ConditionFalse, v1.ReasonNotAnnounced, "node1 is down")},
			"Critical service/shop/web: node1 is down",
		},
		"no router knows an address": {
			[]change{withCondition("web", v1.ConditionAdvertised, metav1.ConditionFalse, "0 of 3 sessions are up")},
			"Critical service/shop/web: 0 of 3 sessions are up",
		},
		"no webhook is trusted": {[]change{func(o *Objects) {
			webhook := func(name, namespace, ca string, policy admissionv1.FailurePolicyType, resource string,
			) admissionv1.ValidatingWebhook {
				return admissionv1.ValidatingWebhook{
					Name: name, FailurePolicy: &policy, ClientConfig: admissionv1.WebhookClientConfig{
						CABundle: []byte(ca), Service: &admissionv1.ServiceReference{Namespace: namespace},
					},
					Rules: []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{Resources: []string{resource}}}},
				}
			}
			o.Webhooks = []admissionv1.ValidatingWebhookConfiguration{
				{ObjectMeta: metav1.ObjectMeta{Name: "of-others"}, Webhooks: []admissionv1.ValidatingWebhook{
					webhook("a.example.com", "purelb-system", "", admissionv1.Fail, "pods"),
					webhook("a.purelb.io", "elsewhere", "", admissionv1.Fail, "pods"),
				}},
				{ObjectMeta: metav1.ObjectMeta{Name: "purelb-validating"}, Webhooks: []admissionv1.ValidatingWebhook{
					webhook("a.purelb.io", "purelb-system", "", admissionv1.Fail, "bgppeers"),
					webhook("b.purelb.io", "purelb-system", "", admissionv1.Ignore, "services"),
					webhook("c.purelb.io", "purelb-system", "x", admissionv1.Fail, "servicegroups"),
				}},
			}
		}}, "Degraded validatingwebhookconfiguration/purelb-validating: has no caBundle, so the API server does not trust " +
			"the webhooks' certificate, and refuses all changes of bgppeers: the manager writes the caBundle, or " +
			"cert-manager or OLM where one of these makes the certificate: see kubectl -n purelb-system logs " +
			"deployment/purelb-manager, and kubectl -n purelb-system get certificates"},
		"no interface is selected": {[]change{func(o *Objects) {
			o.LBNodeAgents[0].Status.Conditions = append(o.LBNodeAgents[0].Status.Conditions, metav1.Condition{
				Type: v1.ConditionInterfaceNotFound, Status: metav1.ConditionTrue, Message: "1 of 3 nodes",
			})
		}}, "Degraded lbnodeagent/default: 1 of 3 nodes"},
		"a pod does not start": {[]change{waitingPod("CrashLoopBackOff")},
			"Degraded pod/purelb-agent-x: does not start on node1: CrashLoopBackOff: see kubectl -n purelb-system describe " +
				"pod purelb-agent-x and, if it has run, kubectl -n purelb-system logs --previous purelb-agent-x"},
		"a Service has to wait": {
			[]change{withCondition("web", v1.ConditionAllocated, metav1.ConditionFalse, "exhausted")},
			"Degraded service/shop/web: Because: exhausted",
		},
		"a node has yet to announce": {[]change{notAnnounced}, "Degraded service/shop/web: not all announcements are made"},
		"no node announces": {
			[]change{notAnnounced, reports(v1.StateFailed, "")}, "Critical service/shop/web: not all announcements are made",
		},
		"no node is to announce": {
			[]change{notAnnounced, func(o *Objects) { o.Announcements = o.Announcements[1:] }},
			"Critical service/shop/web: not all announcements are made",
		},
		"no node is to announce one": {[]change{notAnnounced, changeService("web", func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = append(
				svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "fd00:1::f0"},
			)
		}), withCondition(
			"web", v1.ConditionAllocationRecord, metav1.ConditionTrue, "192.168.1.240,fd00:1::f0 group=default type=local key=",
		)}, "Critical service/shop/web: not all announcements are made"},
	} {
		t.Run(name, func(t *testing.T) {
			well := func(o *Objects) { o.Services, o.BGPPeers = o.Services[:3], nil }
			s := StatusOf(clusterOf(t, append([]change{well}, row.changes...)...))
			got := string(s.Health) + ": " + s.Summary
			if len(s.Problems) > 0 {
				got = string(s.Health) + " " + s.Problems[0].Object + ": " + s.Problems[0].Message
			}
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// Where says of an address whose it is, and who announces it.
func TestWhere(t *testing.T) {
	for name, row := range map[string]struct {
		address string
		changes []change
		want    string
	}{
		"announced":    {"192.168.1.240", nil, "is of shop/web and announced by node1"},
		"on all nodes": {"172.30.0.1", nil, "is of shop/edge and announced by node1, node2, node3"},
		"announced by none": {
			"192.168.1.240", []change{reports(v1.StateFailed, "")}, "is of shop/web, and no node announces it",
		},
		"a node's own": {"192.168.1.101", nil, "is an address of node node1: no Service gets it"},
		"a gateway's":  {"192.168.1.1", nil, "is a gateway of node node1: no Service gets it"},
		"free":         {"192.168.1.242", nil, "is free"},
		"reserved":     {"192.168.1.242", []change{forTenants}, "is of no Service, and reserved for shop/later"},
		"in no pool":   {"203.0.113.1", nil, "is in no pool, and no Service has it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := LocateAddress(clusterOf(t, row.changes...), netip.MustParseAddr(row.address)).Summary; got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// Pools says that there are none, if that could be read.
func TestNoPools(t *testing.T) {
	none := func(o *Objects) { o.ServiceGroups = nil }
	unread := func(o *Objects) { forget(o, kindServiceGroups) }
	for want, change := range map[string]change{
		"There are no ServiceGroups.\n": none, "Not read: ServiceGroups: ServiceGroups is forbidden\n": unread,
	} {
		if got := textOf(t, PoolListOf(clusterOf(t, change))); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// An address counts as asked for however it is written, as it does for the manager, and the annotation counts alone
// where there is one.
func TestWhyAddress(t *testing.T) {
	const byAnnotation, byField = "annotation purelb.io/addresses asks for it", "spec.loadBalancerIP asks for it"
	const byNobody = "it was the first free address when it was allocated"
	for name, row := range map[string]struct{ annotation, field, want string }{
		"as it is":                  {"fd00:77::200", "", byAnnotation},
		"in capitals":               {"FD00:77::200", "", byAnnotation},
		"with a zero":               {"fd00:77:0::200", "", byAnnotation},
		"after a tab":               {"192.0.2.1,\tfd00:77::200", "", byAnnotation},
		"on a line of its own":      {"192.0.2.1,\nfd00:77::200\n", "", byAnnotation},
		"in the field":              {"", "FD00:77:0::200", byField},
		"another annotation":        {"fd00:77::201", "fd00:77::200", byNobody},
		"a blank annotation":        {" ", "fd00:77::200", byField},
		"beside what is no address": {"x,fd00:77::200", "", byAnnotation},
		"another":                   {"fd00:77::201", "", byNobody},
		"none":                      {"", "", byNobody},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.AnnotationAddresses: row.annotation}},
			Spec:       corev1.ServiceSpec{LoadBalancerIP: row.field},
		}
		got := whyAddress(svc, netip.MustParseAddr("fd00:77::200"), &allocation.Group{}, true, false)
		if got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// Usage is written as used/all, and a family without addresses as a dash.
func TestUsageText(t *testing.T) {
	for want, usage := range map[string]Usage{
		"-": {}, "0/3": {Free: 3}, "2/3": {Used: 2, Free: 1}, "3/3": {Used: 3}, "1/4": {Used: 1, Free: 1, Reserved: 2},
		"0/1":     {Reserved: 1},
		"0/2^63+": {Free: math.MaxInt64}, "5/2^63+": {Used: 5, Free: math.MaxInt64 - 4}, "4/9223372036854775807": {
			Used: 4, Free: math.MaxInt64 - 4,
		},
	} {
		if got := usage.String(); got != want {
			t.Errorf("%+v is %s, want %s", usage, got, want)
		}
	}
}

// The row of a range says as its group does how many addresses there are, if they are more than can be counted.
func TestRangeUsageText(t *testing.T) {
	for want, r := range map[string]PoolRange{
		" 0/2^63+": {Capacity: math.MaxInt64}, " 5/2^63+": {Used: 5, Capacity: math.MaxInt64},
		" 5/9223372036854775806": {Used: 5, Capacity: math.MaxInt64 - 1}, " 3/10": {Used: 3, Capacity: 10},
	} {
		r.Range = "the-range"
		got := textOf(t, &PoolList{Pools: []Pool{{Group: "g", Ranges: []PoolRange{r}}}})
		if !strings.Contains(got, "the-range") || !strings.Contains(got, want+"\n") {
			t.Errorf("%d of %d: want %s:\n%s", r.Used, r.Capacity, want, got)
		}
	}
}

// The manager's flag counts however it is written, and of several the last one, as package pflag reads them.
func TestDefaultLoadBalancerFlag(t *testing.T) {
	for _, row := range []struct {
		args []string
		want bool
	}{
		{nil, true},
		{[]string{"manager", "--default-load-balancer=false"}, false},
		{[]string{"manager", "--default-load-balancer=0"}, false},
		{[]string{"manager", "--default-load-balancer=f"}, false},
		{[]string{"manager", "--default-load-balancer=F"}, false},
		{[]string{"manager", "--default-load-balancer=False"}, false},
		{[]string{"manager", "--default-load-balancer=FALSE"}, false},
		{[]string{"manager", "--default-load-balancer=true"}, true},
		{[]string{"manager", "--default-load-balancer"}, true},
		{[]string{"manager", "--default-load-balancer=false", "--default-load-balancer"}, true},
		{[]string{"manager", "--default-load-balancer", "--default-load-balancer=0"}, false},
		{[]string{"manager", "--default-load-balancer=no"}, true}, // the manager does not start
		{[]string{"manager", "--default-load-balancers=false"}, true},
	} {
		if got := clusterOf(t, managerRuns(row.args...)).IsDefaultLoadBalancer; got != row.want {
			t.Errorf("%q: %t", row.args, got)
		}
	}
}

// waitingPod makes a container of a pod wait.
func waitingPod(reason string) change {
	return func(o *Objects) {
		o.Pods = append(o.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "purelb-agent-x"},
			Spec:       corev1.PodSpec{NodeName: "node1"},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
			}}},
		})
	}
}

// TestStatusOfStartingPods says nothing of pods that start.
func TestStatusOfStartingPods(t *testing.T) {
	want := len(StatusOf(clusterOf(t)).Problems)
	for _, reason := range []string{"", "ContainerCreating", "PodInitializing"} {
		if got := StatusOf(clusterOf(t, waitingPod(reason))).Problems; len(got) != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

// bgp says to which addresses no route was sent in a session that is up.
func TestBGPUnsent(t *testing.T) {
	c := clusterOf(t, func(o *Objects) {
		s := &o.NodeRoutings[0].Status.Sessions[0]
		s.LastError = "the neighbour does not take IPv6"
		s.Unsent = []string{"10.0.0.1-10.0.0.1", "10.0.0.3-10.0.0.9", "10.0.1.1-10.0.1.2", "10.0.2.1-10.0.2.1"}
	})
	const want = "the neighbour does not take IPv6; no route sent to 10.0.0.1-10.0.0.1, 10.0.0.3-10.0.0.9, " +
		"10.0.1.1-10.0.1.2, and 1 more\n"
	if text := textOf(t, BGPStateOf(c)); !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

// The exit code of bgp is that of sessions which are all up.
func TestAreAllUp(t *testing.T) {
	for name, row := range map[string]struct {
		peers []BGPPeer
		want  bool
	}{
		"none":              {nil, true},
		"all up":            {[]BGPPeer{{Established: 2, Desired: 2}}, true},
		"one down":          {[]BGPPeer{{Established: 2, Desired: 2}, {Established: 1, Desired: 2}}, false},
		"it is not ready":   {[]BGPPeer{{Message: "selects no node"}}, false},
		"more than desired": {[]BGPPeer{{Established: 3, Desired: 2}}, true},
	} {
		if got := (&BGPState{Peers: row.peers}).AreAllUp(); got != row.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	draining := clusterOf(t, func(o *Objects) { o.NodeRoutings[0].Spec.DrainSince = &metav1.Time{Time: time.Unix(0, 0)} })
	if text := textOf(t, BGPStateOf(draining)); !strings.Contains(text, "Established (draining)") {
		t.Errorf("of a node that drains:\n%s", text)
	}
}

// What is known of an agent follows from its Lease alone, and from whether it was seen to be renewed.
func TestLiveness(t *testing.T) {
	lease := func(node string) coordinationv1.Lease {
		return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1.LeasePrefix + node}}
	}
	for name, row := range map[string]struct {
		objects Objects
		want    placement.Liveness
	}{
		"it has a Lease": {Objects{Leases: []coordinationv1.Lease{lease("node1")}}, placement.Fresh},
		"it does not renew its Lease": {
			Objects{Leases: []coordinationv1.Lease{lease("node1")}, NotRenewing: map[string]bool{"node1": true}},
			placement.Expired,
		},
		"another does not renew": {
			Objects{Leases: []coordinationv1.Lease{lease("node1")}, NotRenewing: map[string]bool{"node2": true}},
			placement.Fresh,
		},
		"only others have one": {
			Objects{Leases: []coordinationv1.Lease{lease("node2"), {ObjectMeta: metav1.ObjectMeta{Name: "node1"}}}},
			placement.Expired,
		},
		"Leases could not be read":    {Objects{Unread: []Unread{{Kind: kindLeases}}}, placement.Fresh},
		"something else was not read": {Objects{Unread: []Unread{{Kind: kindPods}}}, placement.Expired},
		"Leases could not be observed": {
			Objects{Leases: []coordinationv1.Lease{lease("node1")}, NotRenewing: nil}, placement.Fresh,
		},
	} {
		if got := row.objects.livenessOf("node1"); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	odd := Objects{
		Leases: []coordinationv1.Lease{
			lease("node1"), {ObjectMeta: metav1.ObjectMeta{Name: "purelb-leader"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		},
	}
	api := apiOf(t, nil)
	if err := odd.ObserveLeases(t.Context(), api, "purelb-system"); err != nil || !odd.NotRenewing["node1"] ||
		odd.NotRenewing["other"] {
		t.Errorf("Leases that nobody has renewed: %v (%v)", odd.NotRenewing, err)
	}
	at := func(seconds int64) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Unix(seconds, 0)} }
	renewed := []coordinationv1.Lease{
		{Spec: coordinationv1.LeaseSpec{RenewTime: at(7)}}, {}, {Spec: coordinationv1.LeaseSpec{RenewTime: at(9)}},
		{Spec: coordinationv1.LeaseSpec{RenewTime: at(8)}},
	}
	if got := newestRenewal(renewed); !got.Equal(time.Unix(9, 0)) {
		t.Errorf("the newest renewal was at %v", got)
	}
	manager := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: controllers.LeaderLease}, Spec: coordinationv1.LeaseSpec{RenewTime: at(8)},
	}
	if got := newestRenewal(append(renewed, manager)); !got.Equal(time.Unix(8, 0)) {
		t.Errorf("beside an agent whose clock is ahead, the manager's renewal was at %v", got)
	}
}

// A plan says how many nodes have what, how addresses move, and which waiting Services get some.
func TestPlans(t *testing.T) {
	for want, nodes := range map[string][]string{
		"-": nil, "a": {"a"}, "a,b,c": {"a", "b", "c"}, "4 nodes": {"a", "b", "c", "d"},
	} {
		if got := nodeList(nodes, false); got != want {
			t.Errorf("%v are %q, want %q", nodes, got, want)
		}
	}
	if got := nodeList([]string{"a", "b", "c", "d"}, true); got != "a,b,c,d" {
		t.Errorf("wide, four nodes are %q", got)
	}
	for name, row := range map[string]struct {
		from, to string
		kind     placement.MoveKind
		want     string
	}{
		"no node takes it":        {"a", "", "", howUnplaced},
		"no node takes it, moved": {"a", "", placement.Failover, howUnplaced},
		"handed over":             {"a", "b", placement.Handover, "Handover"},
		"failed over":             {"a", "b", placement.Failover, "Failover"},
		"fewer nodes":             {"a b", "a", "", howWithdrawn},
		"more nodes":              {"a", "a b", "", howAnnounced},
		"other nodes":             {"a", "b", placement.FirstPlacement, howAnnounced},
	} {
		if got := howMoved(strings.Fields(row.from), strings.Fields(row.to), row.kind); got != row.want {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
	for want, plans := range map[string][]*Plan{"": {{}, {}}, "breaks": {{}, {Breaks: true}}} {
		if got := (&PlanList{Plans: plans}).BreaksAny(); got != (want == "breaks") {
			t.Errorf("of %d plans one breaks something: %t", len(plans), got)
		}
	}
	waiting := clusterOf(
		t, changeService("late", func(svc *corev1.Service) { svc.Annotations[v1.AnnotationAddresses] = "192.168.1.250" }),
	)
	served := must(PlanApply(t.Context(), waiting, filesOf(t, groupFile)))(t)
	if !slices.Equal(served.NewlyServed, []string{"shop/late"}) || served.Summary != "1 waiting Service served" {
		t.Errorf("%s: %v", served.Summary, served.NewlyServed)
	}
	none := clusterOf(t, func(o *Objects) {
		for i := range o.Nodes {
			delete(o.Nodes[i].Labels, v1.LabelAgent)
		}
	})
	if text := textOf(t, must(PlanLoseEach(none))(t)); text != "No node runs an agent.\n" {
		t.Errorf("without agents: %q", text)
	}
	if _, err := PlanDrain(clusterOf(t), "node9"); err == nil || err.Error() != "there is no Node node9" {
		t.Errorf("of no node: %v", err)
	}
	unread := clusterOf(t, func(o *Objects) { forget(o, kindNodes) })
	if _, err := PlanLose(unread, "node1"); err == nil || err.Error() != "cannot read Nodes: Nodes is forbidden" {
		t.Errorf("of nodes that cannot be read: %v", err)
	}
}

// Manifests are files, folders and lists, in YAML or JSON.
func TestReadFiles(t *testing.T) {
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "d.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"d.yaml/of-a-folder.yaml": "kind: D",
		"a.yaml": "kind: A\nmetadata: {name: one}\n---\n# nothing\n---\nkind: A\nmetadata: {name: two, " +
			"namespace: shop}\n",
		"b.json": `{"kind": "B", "metadata": {"name": "three"}, "spec": {"whole": 3, "half": 0.5, "list": [1, {"a": 2}]}}`,
		"c.yml": "kind: List\napiVersion: v1\nitems: [{kind: C, metadata: {name: four}}, {kind: C, metadata: {name: " +
			"five}}]\n",
		"e.txt": "a: [",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := must(ReadFiles([]string{folder}, nil, false))(t)
	var got []string
	for i := range files.Objects {
		got = append(got, files.Objects[i].String()+" of "+filepath.Base(files.Objects[i].File))
	}
	want := []string{"A one of a.yaml", "A shop/two of a.yaml", "B three of b.json", "C four of c.yml", "C five of c.yml"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	spec := files.Objects[2].Object.Object["spec"].(map[string]any)
	if spec["whole"] != int64(3) || spec["half"] != 0.5 || spec["list"].([]any)[0] != int64(1) ||
		spec["list"].([]any)[1].(map[string]any)["a"] != int64(2) {
		t.Errorf("numbers are %#v", spec)
	}
	if inner := filepath.Join(folder, "d.yaml"); !slices.Equal(files.SkippedFolders, []string{inner}) {
		t.Errorf("not looked into %q", files.SkippedFolders)
	}
	all := must(ReadFiles([]string{folder}, nil, true))(t)
	if len(all.Objects) != len(want)+1 || len(all.SkippedFolders) > 0 {
		t.Errorf("with the folders in it %d objects, not looked into %q", len(all.Objects), all.SkippedFolders)
	}
}

// What is no object is told, and what follows it in the file is read.
func TestReadFilesThatAreBroken(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"no kind":            {"a: b", "an object has no kind"},
		"an item of no kind": {"kind: List\nitems: [{a: b}]", "an object has no kind"},
		"an odd list":        {"kind: List\nitems: [1]", "items"},
		"it is no YAML":      {"a: [", "did not find expected"},
		"a list of nothing":  {"- a", "cannot unmarshal array"},
	} {
		files := must(ReadFiles([]string{"-"}, strings.NewReader(row.text+"\n---\nkind: A\n"), false))(t)
		if len(files.Broken) != 1 || len(files.Objects) != 1 || files.Broken[0].String() != "document 1" ||
			!strings.Contains(files.Broken[0].Why.Error(), row.want) {
			t.Errorf("%s: %d objects, %v", name, len(files.Objects), files.Broken)
		}
	}
}

// Files that cannot be read as a whole, or have nothing, are an error.
func TestReadFilesWithoutObjects(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, row := range map[string]struct{ text, want string }{
		"-":    {"kind: A\n" + strings.Repeat("#", maxFileSize), "it is larger than 16 MiB"},
		folder: {"", "there is no object in " + folder + " without the folders in it: use --recursive"},
	} {
		if _, err := ReadFiles([]string{path}, strings.NewReader(row.text), false); err == nil ||
			!strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error is %v", path, err)
		}
	}
	if _, err := ReadFiles([]string{folder, "-"}, strings.NewReader("---\n"), true); err == nil ||
		err.Error() != "there is no object in "+folder+", standard input" {
		t.Errorf("error is %v", err)
	}
}

// Version says which images run, each once.
func TestVersions(t *testing.T) {
	upgrade := func(o *Objects) {
		second := *o.Pods[0].DeepCopy()
		second.Spec.Containers[0].Image = "purelb.io/purelb:v0.3.0"
		o.Pods = append(o.Pods, second, second)
	}
	for want, change := range map[string]change{
		"kubectl-purelb v1\nrunning: nothing\n": func(o *Objects) {
			o.Pods = nil
		},
		"kubectl-purelb v1\nrunning: purelb.io/purelb:v0.2.0\n":                                   func(*Objects) {},
		"kubectl-purelb v1\nrunning: purelb.io/purelb:v0.2.0\nrunning: purelb.io/purelb:v0.3.0\n": upgrade,
	} {
		if got := textOf(t, VersionsOf(clusterOf(t, change), "v1")); got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
	}
}
