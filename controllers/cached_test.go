package controllers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// slimmed returns what the cache keeps of an object, and checks that a second look changes
// nothing more.
func slimmed[T any](t *testing.T, slim func(any) (any, error), obj *T) *T {
	t.Helper()
	once, err := slim(obj)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := slim(once)
	if err != nil || !reflect.DeepEqual(once, twice) {
		t.Errorf("what is kept of what is kept: %v %+v, not %+v", err, twice, once)
	}
	kept, ok := once.(*T)
	if !ok {
		t.Fatalf("it keeps a %T", once)
	}
	return kept
}

func sizeOf(t *testing.T, obj any) int {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// TestAttackLargeService makes a Service, of a type that no quota for load balancers counts
// and of type LoadBalancer, as large as the API server takes, in one field after the other. This test
// shows the row "make the manager work or remember without bound" of docs/trust.md.
func TestAttackLargeService(t *testing.T) {
	many := func(n int, text string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("%s%d", text, i)
		}
		return list
	}
	byName := func(n int) map[string]string {
		all := map[string]string{}
		for _, name := range many(n, "example.com/"+strings.Repeat("n", 40)) {
			all[name] = strings.Repeat("v", 63)
		}
		return all
	}
	for name, grow := range map[string]func(*corev1.Service){
		"an annotation": func(svc *corev1.Service) { svc.Annotations["example.com/a"] = strings.Repeat("x", 255<<10) },
		"an unknown annotation of PureLB": func(svc *corev1.Service) {
			svc.Annotations["purelb.io/a"] = strings.Repeat("x", 255<<10)
		},
		"annotations that users write": func(svc *corev1.Service) {
			for _, name := range allocation.UserAnnotations {
				svc.Annotations[name] = strings.Repeat("x", 50<<10)
			}
		},
		"annotations that the manager writes": func(svc *corev1.Service) {
			for _, name := range allocation.ManagerAnnotations {
				svc.Annotations[name] = strings.Repeat("x", 250<<10)
			}
		},
		"labels":         func(svc *corev1.Service) { svc.Labels = byName(5000) },
		"finalizers":     func(svc *corev1.Service) { svc.Finalizers = many(10000, "example.com/") },
		"owners":         func(svc *corev1.Service) { svc.OwnerReferences = make([]metav1.OwnerReference, 10000) },
		"field managers": func(svc *corev1.Service) { svc.ManagedFields = make([]metav1.ManagedFieldsEntry, 10000) },
		"the selector":   func(svc *corev1.Service) { svc.Spec.Selector = byName(5000) },
		"external addresses": func(svc *corev1.Service) {
			svc.Spec.ExternalIPs = many(20000, "2001:db8:0000:0000:0000:0000:0000:")
		},
		"source ranges":  func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = many(20000, "10.0.0.0/") },
		"the address":    func(svc *corev1.Service) { svc.Spec.LoadBalancerIP = strings.Repeat("1", 1<<20) },
		"the name":       func(svc *corev1.Service) { svc.Spec.ExternalName = strings.Repeat("a", 1<<20) },
		"ports":          func(svc *corev1.Service) { svc.Spec.Ports = make([]corev1.ServicePort, 60000) },
		"foreign status": func(svc *corev1.Service) { svc.Status.Conditions = make([]metav1.Condition, 10000) },
		"names in the status": func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = make([]corev1.LoadBalancerIngress, 10000)
			svc.Status.LoadBalancer.Ingress[0].Hostname = strings.Repeat("a", 1<<20)
			svc.Status.LoadBalancer.Ingress[0].Ports = make([]corev1.PortStatus, 10000)
		},
	} {
		for kind, most := range map[corev1.ServiceType]int{
			corev1.ServiceTypeClusterIP: 16 << 10, corev1.ServiceTypeLoadBalancer: 160 << 10,
		} {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "large", Annotations: map[string]string{}},
			}
			svc.Spec.Type = kind
			grow(svc)
			if size := sizeOf(t, slimmed(t, SlimService, svc)); size > most {
				t.Errorf("%s: of %d bytes of a Service of type %s %d are kept", name, sizeOf(t, svc), kind, size)
			}
		}
	}
}

// TestSlimServiceKeepsWhatIsRead compares what the manager makes of a Service with what the
// manager makes of that which the cache keeps.
func TestSlimServiceKeepsWhatIsRead(t *testing.T) {
	record := allocation.Record{
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Group: "lan", Type: v1.PoolTypeLocal, Key: "k",
	}
	full := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "b", UID: "u", ResourceVersion: "7", Generation: 3, CreationTimestamp: metav1.Unix(5, 0),
			DeletionTimestamp: ptr.To(metav1.Unix(6, 0)), Annotations: map[string]string{"example.com/a": "b"},
			Labels: map[string]string{"app": "b"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1.LoadBalancerClass), LoadBalancerIP: "10.0.0.1",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30001,
			Selector: map[string]string{"app": "b"},
			Ports: []corev1.ServicePort{
				{Name: "web", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: ptr.To("http")},
			},
			ExternalIPs: []string{"192.0.2.1"}, LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
		},
	}
	for _, name := range append(allocation.UserAnnotations, allocation.ManagerAnnotations...) {
		full.Annotations[name] = "true"
	}
	full.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "10.0.0.1", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP), Ports: []corev1.PortStatus{{Port: 80}}}, {
			Hostname: "other.example",
		},
	}
	full.Status.Conditions = []metav1.Condition{
		{Type: "example.com/Foreign", Message: "x"}, {Type: v1.ConditionAllocationRecord, Message: record.String()},
		{Type: v1.ConditionAllocated, Message: "y"}, {Type: v1.ConditionAnnounced, Message: "z"},
		{Type: v1.ConditionAdvertised}, {Type: v1.ConditionServiceReachable},
	}
	kept := slimmed(t, SlimService, full)
	places := []announced.Place{{Address: "10.0.0.1", Type: v1.AnnounceLocal}}
	for what, read := range map[string]func(*corev1.Service) any{
		"the request":   func(svc *corev1.Service) any { return allocation.RequestOf(svc) },
		"the addresses": func(svc *corev1.Service) any { return allocation.AddressesToAnnounce(svc) },
		"the override": func(svc *corev1.Service) any {
			return announced.DecideOverride(svc, true, v1.PolicyLocalOverride, places)
		},
		"the spec":             func(svc *corev1.Service) any { return svc.Spec },
		"PureLB's annotations": func(svc *corev1.Service) any { return annotationsExceptReport(svc) },
		"the owner":            func(svc *corev1.Service) any { return ownerOf(svc) },
		"version and deletion": func(svc *corev1.Service) any { return slimMeta(&svc.ObjectMeta) },
		"that it is to be shown": func(svc *corev1.Service) any {
			return showsAddressesOf(svc, &allocation.Result{Addresses: record.Addresses})
		},
	} {
		if got, want := read(kept), read(full); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v of what is kept, %+v of the whole", what, got, want)
		}
	}
	if got, want := KeyOf(kept)+kept.Annotations[v1.AnnotationAddedTo],
		"a/btrue"; got != want || len(kept.Status.Conditions) != 5 {
		t.Errorf("%s, %d conditions", got, len(kept.Status.Conditions))
	}

	// Texts that are too long are known as such, and what is not PureLB's keeps its addresses.
	full.Annotations[v1.AnnotationAddresses] = strings.Repeat("1", 5000)
	if got, want := allocation.RequestOf(slimmed(t, SlimService, full)),
		allocation.RequestOf(full); !reflect.DeepEqual(got, want) || got.TooLongMessage == "" {
		t.Errorf("a long list: %+v, not %+v", got, want)
	}
	full.Spec.LoadBalancerClass = ptr.To("example.com/other")
	if got := allocation.AddressesAllocatedOrShown(slimmed(t, SlimService, full)); !reflect.DeepEqual(
		got, allocation.AddressesAllocatedOrShown(full),
	) || len(got) != 1 {
		t.Errorf("of another class: %v is in use", got)
	}
}

// TestAttackManyEndpoints has a Service with long labels, which its EndpointSlices copy, and
// with many endpoints on few nodes.
func TestAttackManyEndpoints(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "b-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "b", "x": strings.Repeat("x", 1<<20)},
		},
		Ports: make([]discoveryv1.EndpointPort, 1000), AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range 1000 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, NodeName: ptr.To(fmt.Sprintf("n%d", i%3)),
			TargetRef:  &corev1.ObjectReference{Name: strings.Repeat("p", 200)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(i%2 == 0), Serving: ptr.To(i%5 < 3)},
		})
	}
	kept := slimmed(t, SlimEndpointSlice, slice)
	if size := sizeOf(t, kept); size > 4<<10 {
		t.Errorf("%d bytes are kept", size)
	}
	if got, want := endpointsOf([]discoveryv1.EndpointSlice{*kept}),
		endpointsOf([]discoveryv1.EndpointSlice{*slice}); !reflect.DeepEqual(got, want) ||
		kept.Labels[discoveryv1.LabelServiceName] != "b" {
		t.Errorf("%+v, not %+v", got, want)
	}
	for name, conditions := range map[string]discoveryv1.EndpointConditions{
		"unknown": {}, "ready": {Ready: ptr.To(true)}, "failing": {Ready: ptr.To(false)}, "ending": {
			Ready: ptr.To(false), Serving: ptr.To(true),
		},
	} {
		for _, node := range []*string{ptr.To("n1"), nil} {
			one := &discoveryv1.EndpointSlice{
				AddressType: discoveryv1.AddressTypeIPv6,
				Endpoints:   []discoveryv1.Endpoint{{NodeName: node, Conditions: conditions}, {}},
			}
			if got, want := endpointsOf([]discoveryv1.EndpointSlice{*slimmed(t, SlimEndpointSlice, one)}),
				endpointsOf([]discoveryv1.EndpointSlice{*one}); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, not %+v", name, got, want)
			}
		}
	}
}

// TestSlimNodeAndLease checks what is kept of a Node and of a Lease that their authors have
// made large.
func TestSlimNodeAndLease(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "u", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"x": strings.Repeat("x", 1<<20), v1.AnnotationHandover: "10.0.0.1"},
		},
	}
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
	n.Spec.Unschedulable = true
	n.Labels[v1.LabelAgent] = "default"
	handsOver := []v1.LBNodeAgent{
		{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1.LBNodeAgentSpec{OnUnschedulable: v1.UnschedulableHandOver}},
	}
	n.Status = corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.11"}},
		Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure},
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "node is shutting down"},
		},
		Images: make([]corev1.ContainerImage, 1000),
	}
	now := time.Unix(100, 0)
	whole := &cluster{lbNodeAgents: handsOver, nodes: []corev1.Node{*n}}
	kept := &cluster{lbNodeAgents: handsOver, nodes: []corev1.Node{*slimmed(t, SlimNode, n)}}
	if got, want := kept.placementNode(&kept.nodes[0], nil, 0, now),
		whole.placementNode(n, nil, 0, now); !reflect.DeepEqual(got, want) || !got.IsShuttingDown ||
		!got.HandsOverAsCordoned || got.AddressToHandOver != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("%+v, not %+v", got, want)
	}
	before, after := slimmed(t, SlimNode, n), n.DeepCopy()
	after.Annotations[v1.AnnotationHandover] = strings.Repeat("1", 1<<20)
	if got := slimmed(t, SlimNode, after); sizeOf(t, got) > 1000 || addressToHandOver(got).IsValid() ||
		!nodePlacementChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: got}) {
		t.Errorf("%+v is kept, or wakes nobody", got)
	}
	if got := kept.nodes[0]; len(nodeAddresses(kept.nodes, nil)[0].Confirmed) != 1 || got.Labels["a"] != "b" ||
		got.UID != "u" || sizeOf(t, got) > 1000 {
		t.Errorf("%+v is kept", got)
	}

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "purelb-n1"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(strings.Repeat("x", 1<<20)), RenewTime: ptr.To(metav1.NewMicroTime(now)),
		LeaseDurationSeconds: ptr.To[int32](3)}}
	if got := slimmed(t, SlimLease, lease); sizeOf(t, got) > 1000 || got.Name != lease.Name ||
		!got.Spec.RenewTime.Equal(lease.Spec.RenewTime) || *got.Spec.LeaseDurationSeconds != 3 {
		t.Errorf("%+v is kept", got)
	}
}
