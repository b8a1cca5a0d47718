package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// routingWorld is a RoutingReconciler, and an API server in memory that counts what is written.
type routingWorld struct {
	*testing.T
	client.Client
	reconciler *controllers.RoutingReconciler
	events     *events.FakeRecorder
	// writes are those since the last call of takeWrites: verb, kind, and status if it is one.
	writes []string
	// refusedNode is the node whose NodeRouting the API server refuses.
	refusedNode string
}

// newRoutingWorld has some nodes n1, n2, … of the LBNodeAgent default.
func newRoutingWorld(t *testing.T, nodes int) *routingWorld {
	t.Helper()
	scheme := apiserver.Scheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	conditions := map[string][]string{"status.conditions": {"type"}}
	kinds := []apiserver.Kind{
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node"), HasStatus: true, ListKeys: conditions},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"), IsNamespaced: true},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), IsNamespaced: true},
		{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), IsNamespaced: true, HasStatus: true},
		{
			GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Service"), IsNamespaced: true, HasStatus: true,
			ListKeys: conditions,
		},
		{
			GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), IsNamespaced: true, HasStatus: true,
			CountsGenerations: true,
		},
	}
	for _, name := range []string{
		"ServiceGroup", "LBNodeAgent", "Announcement", "CommonAnnouncement", "BGPPeer", "NodeRouting",
	} {
		kinds = append(kinds, apiserver.Kind{
			GroupVersionKind: v1.GroupVersion.WithKind(name), IsNamespaced: true, HasStatus: name != "CommonAnnouncement",
			CountsGenerations: true, ListKeys: conditions,
		})
	}
	w := &routingWorld{T: t, events: events.NewFakeRecorder(1000)}
	server := apiserver.New(scheme, kinds...)
	var mu sync.Mutex
	w.Client = server.NewClient(func(_ context.Context, r apiserver.Request, do func() error) error {
		mu.Lock()
		defer mu.Unlock()
		if r.Verb != "get" && r.Verb != "list" {
			w.writes = append(w.writes, strings.TrimSpace(r.Verb+" "+r.Kind.Kind+" "+r.Subresource))
			if r.Kind.Kind == "NodeRouting" && r.Key.Name == w.refusedNode {
				return apierrors.NewInvalid(r.Kind.GroupKind(), r.Key.Name, nil)
			}
		}
		return do()
	}, nil)
	w.reconciler = &controllers.RoutingReconciler{
		Client: w.Client, Recorder: w.events, Namespace: namespace,
		Now:      func() time.Time { return time.Unix(1_800_000_000, 0) },
		Defaults: agents.Defaults{Image: "purelb.io/purelb:test", ServiceAccount: "purelb-speaker"},
	}
	w.create(&v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		w.create(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelAgent: "default"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i+11)},
			}},
		})
	}
	return w
}

func (w *routingWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// create makes an object, and what its status says.
func (w *routingWorld) create(obj client.Object) {
	w.Helper()
	withStatus := obj.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the same type
	w.must(w.Create(w.Context(), obj))
	switch obj.(type) {
	case *corev1.Secret, *v1.CommonAnnouncement:
	default:
		withStatus.SetResourceVersion(obj.GetResourceVersion())
		withStatus.SetUID(obj.GetUID())
		w.must(w.Status().Update(w.Context(), withStatus))
	}
}

// peer makes a BGPPeer with the YAML text as its spec.
func (w *routingWorld) peer(name, spec string) {
	w.Helper()
	p := &v1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.must(yaml.UnmarshalStrict([]byte(spec), &p.Spec))
	w.create(p)
}

// reconcile reconciles once.
func (w *routingWorld) reconcile() reconcile.Result {
	w.Helper()
	result, err := w.reconciler.Reconcile(w.Context(), reconcile.Request{})
	w.must(err)
	return result
}

// takeWrites returns what has been written since it was called last, sorted.
func (w *routingWorld) takeWrites() []string {
	writes := slices.Sorted(slices.Values(w.writes))
	w.writes = nil
	return writes
}

// takeEvents returns the events since it was called last.
func (w *routingWorld) takeEvents() []string {
	var out []string
	for len(w.events.Events) > 0 {
		out = append(out, <-w.events.Events)
	}
	return out
}

// routing reads the NodeRouting of a node.
func (w *routingWorld) routing(node string) *v1.NodeRouting {
	w.Helper()
	n := &v1.NodeRouting{}
	w.must(w.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: node}, n))
	return n
}

// group makes a ServiceGroup of a /28 with rules.
func (w *routingWorld) group(name, pool string, rules *v1.ServiceGroupBGP) *v1.ServiceGroup {
	w.Helper()
	var bgp *v1.ServiceGroupBGPSpec
	if rules != nil {
		bgp = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: *rules}
	}
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceGroupSpec{
		Remote: &v1.RemotePools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{
			{Pool: pool, Subnet: "203.0.113.0/24", Aggregation: "/32"},
		}}}, BGP: bgp,
	}}
	w.create(sg)
	return sg
}

// service makes a Service of policy Local with an address, and what its record says of the address.
func (w *routingWorld) service(address, record string) {
	w.Helper()
	w.create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "s" + strings.ReplaceAll(address, ".", "-")},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		},
		Status: corev1.ServiceStatus{Conditions: []metav1.Condition{
			{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: address + " " + record + " key="},
		}},
	})
}

// common makes a CommonAnnouncement with an address of a group, and an Announcement of n1 that includes it.
func (w *routingWorld) common(address, group string) {
	w.Helper()
	w.create(&v1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"},
		Spec: v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: 7, Addresses: []v1.AnnouncedAddress{{
			Address: address, PrefixLength: 32, Interface: "kube-lb0", Type: v1.AnnounceVirtual, ServiceGroup: group,
		}}},
	})
	w.create(&v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "n1"},
		Spec: v1.AnnouncementSpec{
			NodeName: "n1", LBNodeAgent: "default", IncludeCommonAnnouncements: true,
		},
		Status: v1.AnnouncementStatus{ObservedGeneration: 1, CommonAnnouncementsRevision: ptr.To[int64](7)},
	})
}

const anyPeer = "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1"

// TestRoutingKeepsRules deletes a group whose addresses are restricted while one of them is in use.
func TestRoutingKeepsRules(t *testing.T) {
	w := newRoutingWorld(t, 1)
	sg := w.group("internal", "203.0.113.0/28", &v1.ServiceGroupBGP{Advertise: ptr.To(false)})
	w.common("203.0.113.9", "internal")
	w.peer("p", anyPeer)
	rules := func() string {
		var out []string
		for _, g := range w.routing("n1").Spec.Groups {
			out = append(out, fmt.Sprint(g.Name, g.Ranges, *g.Advertise))
		}
		return strings.Join(append(out, w.routing("n1").Spec.Withheld...), " ")
	}
	w.reconcile()
	if got := rules(); got != "internal[203.0.113.0-203.0.113.15] false" {
		t.Fatalf("rules %s", got)
	}
	w.must(w.Delete(t.Context(), sg))
	w.reconcile()
	if got := rules(); got != "internal[203.0.113.9-203.0.113.9] false" {
		t.Errorf("rules of a deleted group: %s", got)
	}
	// The address goes, and n1 has yet to withdraw it.
	c := &v1.CommonAnnouncement{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, c))
	c.Spec.Addresses, c.Spec.Revision = nil, 8
	w.must(w.Update(t.Context(), c))
	if result := w.reconcile(); result.RequeueAfter == 0 || rules() != "internal[203.0.113.9-203.0.113.9] false" {
		t.Errorf("rules until the address is withdrawn: %s, %+v", rules(), result)
	}
	a := &v1.Announcement{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "n1"}, a))
	a.Status.CommonAnnouncementsRevision = ptr.To[int64](8)
	w.must(w.Status().Update(t.Context(), a))
	if result := w.reconcile(); result.RequeueAfter != 0 || rules() != "" {
		t.Errorf("rules afterwards: %s, %+v", rules(), result)
	}
}

// TestRoutingWithholds has the first BGPPeer when a group is gone already, and a Service still has an address of it.
func TestRoutingWithholds(t *testing.T) {
	w := newRoutingWorld(t, 1)
	w.common("203.0.113.9", "internal")
	w.service("203.0.113.9", "group=internal type=remote")
	w.peer("p", anyPeer)
	w.reconcile()
	if got := w.routing("n1").Spec.Withheld; !slices.Equal(got, []string{"203.0.113.9-203.0.113.9"}) {
		t.Errorf("withheld %v", got)
	}
	w.reconcile()
	want := "Warning RoutesWithheld not advertised: 203.0.113.9, as the ServiceGroup does not exist any more"
	if got := w.takeEvents(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("events %q", got)
	}
	w.group("internal", "203.0.113.0/28", nil)
	w.reconcile()
	if got := w.routing("n1").Spec.Withheld; len(got) > 0 {
		t.Errorf("withheld %v, although the group is back", got)
	}
}

// TestRoutingTooManyGroups says of the group that does not fit that its addresses are not advertised.
func TestRoutingTooManyGroups(t *testing.T) {
	w := newRoutingWorld(t, 1)
	var last *v1.ServiceGroup
	for i := range v1.MaxRoutingGroups + 1 {
		last = w.group(
			fmt.Sprintf("g%02d", i), fmt.Sprintf("203.0.113.%d-203.0.113.%d", 2*i+1, 2*i+1), &v1.ServiceGroupBGP{Prepend: 1},
		)
	}
	w.peer("p", anyPeer)
	w.takeWrites()
	w.reconcile()
	advertised := func(sg *v1.ServiceGroup) string {
		t.Helper()
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(sg), sg))
		if c := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionGroupAdvertised); c != nil {
			return fmt.Sprint(c.Status, " ", c.Reason)
		}
		return ""
	}
	if got := advertised(last); got != "False TooManyGroups" {
		t.Errorf("the last group is %q", got)
	}
	if got := w.takeEvents(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning TooManyGroups its addresses are not") {
		t.Errorf("events %q", got)
	}
	w.takeWrites()
	w.reconcile()
	if got := w.takeWrites(); slices.Contains(got, "apply ServiceGroup status") {
		t.Errorf("written although nothing has changed: %v", got)
	}
	w.must(w.Delete(t.Context(), &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "g00"}}))
	w.reconcile()
	if got := advertised(last); got != "" {
		t.Errorf("the last group is %q, although there is room", got)
	}
}

// TestRoutingNoSuchPeer says of a group that names BGPPeers which do not exist that its addresses are
// advertised to nobody, until one exists.
func TestRoutingNoSuchPeer(t *testing.T) {
	w := newRoutingWorld(t, 1)
	sg := w.group("routed", "203.0.113.0/28", &v1.ServiceGroupBGP{Peers: []string{"nobody", "none"}})
	w.peer("p", anyPeer)
	condition := func() *metav1.Condition {
		t.Helper()
		w.must(w.Get(t.Context(), client.ObjectKeyFromObject(sg), sg))
		return meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionGroupAdvertised)
	}
	w.reconcile()
	want := "its addresses are advertised to nobody: there is no BGPPeer nobody, none, which spec.bgp.peers names"
	if c := condition(); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonNoSuchPeer ||
		c.Message != want {
		t.Errorf("condition %+v", c)
	}
	if got := w.takeEvents(); !slices.Equal(got, []string{"Warning NoSuchPeer " + want}) {
		t.Errorf("events %q", got)
	}
	w.peer("none", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.2")
	w.reconcile()
	if c := condition(); c != nil {
		t.Errorf("condition %+v, although one exists", c)
	}
}

// TestRoutingHostRoutes wants host routes of groups of which Services with policy Local have Virtual
// addresses, where the group's routes lead to more addresses than one.
func TestRoutingHostRoutes(t *testing.T) {
	w := newRoutingWorld(t, 1)
	pools := func(pool, aggregation string) v1.PoolSet {
		return v1.PoolSet{V4Pools: []v1.AddressPool{
			{Pool: pool, Subnet: "203.0.113.0/24", Aggregation: v1.Aggregation(aggregation)},
		}}
	}
	for name, spec := range map[string]v1.ServiceGroupSpec{
		"shared": {Remote: &v1.RemotePools{PoolSet: pools("203.0.113.0/28", "/24")}},
		"single": {Remote: &v1.RemotePools{PoolSet: pools("203.0.113.16/28", "/32")}},
		"local":  {Local: &v1.LocalPools{PoolSet: pools("203.0.113.32/28", "/24")}},
		"unused": {Remote: &v1.RemotePools{PoolSet: pools("203.0.113.48/28", "/24")}},
	} {
		w.create(&v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec})
	}
	for address, record := range map[string]string{
		"203.0.113.1": "group=shared type=remote", "203.0.113.17": "group=single type=remote",
		"203.0.113.33": "group=local type=local",
	} {
		w.service(address, record)
	}
	w.peer("p", anyPeer)
	hosts := func() string {
		var names []string
		for _, g := range w.routing("n1").Spec.Groups {
			if g.HostRoutes {
				names = append(names, g.Name)
			}
		}
		return strings.Join(names, " ")
	}
	w.reconcile()
	if got := hosts(); got != "shared" {
		t.Errorf("host routes of %s", got)
	}
	w.common("203.0.113.33", "local") // it is Virtual, as no node is in its subnet
	w.reconcile()
	if got := hosts(); got != "local shared" {
		t.Errorf("host routes of %s, with a Virtual address of a local pool", got)
	}
}

// TestRoutingWrites counts what the manager writes: nothing if nothing has changed, and while sessions
// fail nothing but the reason, once for each.
func TestRoutingWrites(t *testing.T) {
	w := newRoutingWorld(t, 3)
	w.group("routed", "203.0.113.0/28", &v1.ServiceGroupBGP{Prepend: 1})
	w.peer("p", anyPeer)
	w.takeWrites()
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.takeWrites()); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", what, diff)
		}
	}
	w.reconcile()
	expect("the first time", "apply BGPPeer status", "apply DaemonSet", "apply NodeRouting", "apply NodeRouting",
		"apply NodeRouting")
	for range 10 {
		w.reconcile()
	}
	expect("nothing has changed")
	report := func(state v1.SessionState, why string) {
		t.Helper()
		n := w.routing("n1")
		n.Status.ObservedGeneration = n.Generation
		n.Status.Sessions = []v1.RoutingSession{{Peer: "p", Neighbor: "192.0.2.1", State: state, LastError: why}}
		w.must(w.Status().Update(t.Context(), n))
		w.takeWrites()
		w.reconcile()
	}
	report("Active", "it refuses the session")
	expect("a reason", "apply BGPPeer status")
	for i := range 20 {
		report([]v1.SessionState{"Idle", "Active", "OpenConfirm"}[i%3], "it refuses the session")
		expect("the same reason")
	}
	report(v1.SessionEstablished, "")
	expect("up", "apply BGPPeer status")

	// What another client does to the DaemonSet is undone, once.
	ds := &appsv1.DaemonSet{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "purelb-speaker-default"}, ds))
	ds.Spec.Template.Spec.Containers[0].Image = "another"
	w.must(w.Update(t.Context(), ds))
	w.takeWrites()
	w.reconcile()
	expect("another image", "apply DaemonSet")
	w.reconcile()
	expect("the image is back")
	w.must(w.Get(t.Context(), client.ObjectKeyFromObject(ds), ds))
	if got := ds.Spec.Template.Spec.Containers[0].Image; got != "purelb.io/purelb:test" {
		t.Errorf("the image is %s", got)
	}
	w.must(w.Delete(t.Context(), ds))
	w.takeWrites()
	w.reconcile()
	expect("deleted", "apply DaemonSet")
}

// TestRoutingKeepsPasswords deletes the Secret with a password, and makes the password too long: sessions
// keep what they have, and the BGPPeer says what is wrong.
func TestRoutingKeepsPasswords(t *testing.T) {
	w := newRoutingWorld(t, 1)
	w.peer("p", anyPeer+"\npasswordSecretRef: {name: router, key: password}")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "router"}}
	for _, step := range []struct{ password, kept, reason string }{
		{"", "", v1.ReasonSecretMissing},
		{"first", "first", v1.ReasonSessionsDown},
		{"", "first", v1.ReasonSecretMissing},
		{"second", "second", v1.ReasonSessionsDown},
		{strings.Repeat("x", 81), "second", v1.ReasonPasswordInvalid},
		{"third", "third", v1.ReasonSessionsDown},
	} {
		w.must(client.IgnoreNotFound(w.Delete(t.Context(), secret)))
		if step.password != "" {
			secret.ResourceVersion, secret.UID = "", ""
			secret.Data = map[string][]byte{"password": []byte(step.password)}
			w.must(w.Create(t.Context(), secret))
		}
		w.reconcile()
		given := &corev1.Secret{}
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "purelb-speaker-default"}, given))
		if got := string(given.Data["p"]); got != step.kept {
			t.Errorf("%+v: speakers have %q", step, got)
		}
		p := &v1.BGPPeer{}
		w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "p"}, p))
		if got := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady).Reason; got != step.reason {
			t.Errorf("%+v: the reason is %s", step, got)
		}
	}
}

// TestRoutingOfLongName has a node whose name is longer than the value of a label can be.
func TestRoutingOfLongName(t *testing.T) {
	w := newRoutingWorld(t, 1)
	name := strings.Repeat("long.", 12) + "name" // 64 characters
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelAgent: "default"}}})
	w.peer("p", anyPeer)
	w.reconcile()
	for node, want := range map[string]string{"n1": "n1", name: ""} {
		if got := w.routing(node).Labels[v1.LabelNode]; got != want {
			t.Errorf("the NodeRouting of %s has label %q, want %q", node, got, want)
		}
	}
}

// TestRoutingWithRefusedNode changes a setting of a BGPPeer while the API server refuses the NodeRouting of another
// node: the turn of the first node ends when it is over, and what is refused is tried again, less and less often.
func TestRoutingWithRefusedNode(t *testing.T) {
	w := newRoutingWorld(t, 3)
	w.reconciler.Component()
	w.peer("p", anyPeer)
	w.refusedNode = "n3"
	waits := []time.Duration{w.reconcile().RequeueAfter}
	for _, node := range []string{"n1", "n2"} {
		n := w.routing(node)
		n.Status = v1.NodeRoutingStatus{ObservedGeneration: n.Generation, Sessions: []v1.RoutingSession{
			{Peer: "p", Neighbor: "192.0.2.1", State: v1.SessionEstablished},
		}}
		w.must(w.Status().Update(t.Context(), n))
	}
	p := &v1.BGPPeer{}
	w.must(w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "p"}, p))
	p.Spec.HoldTime = &metav1.Duration{Duration: 90 * time.Second}
	w.must(w.Update(t.Context(), p))
	for range 15 {
		waits = append(waits, w.reconcile().RequeueAfter)
	}
	if waits[0] <= 0 || waits[1] <= waits[0] || slices.Max(waits) != waits[15] || waits[15] > 10*time.Second {
		t.Errorf("it is tried again after %v", waits)
	}
	now := time.Unix(1_800_000_000, 0).Add(31 * time.Second)
	w.reconciler.Now = func() time.Time { return now }
	w.reconcile()
	for _, node := range []string{"n1", "n2"} {
		if got := w.routing(node).Spec.Peers[0].HoldSeconds; got != 90 {
			t.Errorf("%s has a hold time of %d s", node, got)
		}
	}
	w.refusedNode = ""
	if wait := w.reconcile().RequeueAfter; wait > 30*time.Second {
		t.Errorf("after all is written the next look is in %s", wait)
	}
	w.routing("n3")
}
