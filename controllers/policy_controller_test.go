package controllers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/config/policy"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/test/apiserver"
)

const accounts = "system:serviceaccount:" + namespace + ":"

// guarded is an API server for the tests of policies: what those refuse, other tests do.
type guarded struct {
	*WithT
	t      *testing.T
	config *rest.Config
	admin  client.Client
	// made is what is to be removed when the test ends.
	made []client.Object
}

// startGuarded starts the API server that the tests of policies share. Each of them leaves it as it
// was.
var startGuarded = sharedServer()

// guard makes sure that the API server runs, and gives it the roles of config/rbac until the test
// ends.
func guard(t *testing.T) *guarded {
	t.Helper()
	apiserver.Mark(t)
	config, err := startGuarded()
	if err != nil {
		t.Fatal(err)
	}
	g := guardServer(t, config)
	t.Cleanup(g.tidy)
	return g
}

// guardAlone is guard with an API server that no other test finds.
func guardAlone(t *testing.T) *guarded {
	t.Helper()
	apiserver.Mark(t)
	config, stop, err := apiserver.Start()
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return guardServer(t, config)
}

func guardServer(t *testing.T, config *rest.Config) *guarded {
	t.Helper()
	log.SetLogger(logr.Discard())
	g := &guarded{WithT: NewWithT(t), t: t, config: config}
	g.Expect(addToScheme()).To(Succeed())
	var err error
	g.admin, err = client.New(config, client.Options{Scheme: scheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(client.IgnoreAlreadyExists(g.admin.Create(
		t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
	))).To(Succeed())
	for _, file := range []string{"service_accounts", "role", "role_bindings", "agent_role", "speaker_role"} {
		g.apply("../config/rbac/" + file + ".yaml")
	}
	probe := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"},
		Spec:       v1.AnnouncementSpec{NodeName: "probe", LBNodeAgent: "default"},
	}
	manager := g.client(g.as("purelb-manager"))
	g.Eventually(func() error { return manager.Create(t.Context(), probe.DeepCopy(), client.DryRunAll) }).Should(
		Succeed(), "the manager's rights are known",
	)
	return g
}

// tidy removes the policies, waits until the API server knows them no more, and removes what the
// test has made.
func (g *guarded) tidy() {
	ctx, managed := context.Background(), client.MatchingLabels(controllers.PolicyLabels())
	for _, kind := range []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
		&flowcontrolv1.FlowSchema{},
	} {
		g.Expect(g.admin.DeleteAllOf(ctx, kind, managed)).To(Succeed())
	}
	inNamespace := client.InNamespace(namespace)
	g.Eventually(func(g2 Gomega) {
		for _, kind := range []client.Object{
			&v1.Announcement{}, &v1.CommonAnnouncement{}, &v1.NodeRouting{}, &coordinationv1.Lease{}, &eventsv1.Event{},
		} {
			g2.Expect(g.admin.DeleteAllOf(ctx, kind, inNamespace)).To(Succeed())
		}
		foreign := &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tidy"},
			Spec:       v1.AnnouncementSpec{NodeName: "tidy", LBNodeAgent: "default"},
		}
		g2.Expect(g.admin.Create(ctx, foreign, client.DryRunAll)).To(Succeed())
	}).Should(Succeed())
	for _, obj := range g.made {
		g.Expect(client.IgnoreNotFound(g.admin.Delete(ctx, obj, client.GracePeriodSeconds(0)))).To(Succeed())
	}
	for _, obj := range g.made {
		g.Eventually(func() bool { return apierrors.IsNotFound(g.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj)) }).
			Should(BeTrue(), "%T %s is not gone", obj, obj.GetName())
	}
}

func (g *guarded) create(objects ...client.Object) {
	g.t.Helper()
	for _, obj := range objects {
		g.Expect(g.admin.Create(g.t.Context(), obj)).To(Succeed())
		g.made = append(g.made, obj)
	}
}

// apply makes what a file has.
func (g *guarded) apply(path string) {
	g.t.Helper()
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return
		}
		g.Expect(err).NotTo(HaveOccurred())
		if u.Object != nil {
			g.create(u)
		}
	}
}

// as is a client of a service account of the manager's namespace.
func (g *guarded) as(account string) *rest.Config {
	as := rest.CopyConfig(g.config)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: accounts + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return as
}

func (g *guarded) client(config *rest.Config) client.Client {
	g.t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

// keep runs the reconciler with the rights of a service account, until the test
// ends.
func (g *guarded) keep(account string, as *rest.Config) {
	g.t.Helper()
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect((&controllers.PolicyReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: namespace, PodName: account,
		Recorder: controllers.BoundedRecorder{EventRecorder: mgr.GetEventRecorder("purelb-policy")},
		Users: policy.Users{
			Manager: accounts + "purelb-manager", Agent: accounts + "purelb-agent", Speaker: accounts + "purelb-speaker",
		},
	}).SetupWithManager(mgr)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	g.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			g.t.Error(err)
		}
	})
}

// agentOn is a client with the token that the agent's pod on a node gets.
func (g *guarded) agentOn(node string, seen *headers) client.Client {
	g.t.Helper()
	return g.podOn(node, "purelb-agent", seen)
}

// podOn is a client with the token that a pod on a node gets that runs as a service account.
func (g *guarded) podOn(node, serviceAccount string, seen *headers) client.Client {
	g.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceAccount + "-" + node},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: serviceAccount,
			Containers: []corev1.Container{{Name: "agent", Image: "purelb.io/purelb:test"}}},
	}
	g.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, pod)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceAccount}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	g.Expect(g.admin.SubResource("token").Create(g.t.Context(), account, request)).To(Succeed())
	config := rest.AnonymousClientConfig(g.config)
	config.BearerToken = request.Status.Token
	config.Wrap(seen.wrap)
	return g.client(config)
}

// headers keeps the headers of the last answer.
type headers struct {
	mu   sync.Mutex
	last http.Header
}

func (h *headers) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.last = answer.Header
		}
		return answer, err
	})
}

func (h *headers) get(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last.Get(name)
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPolicies runs the reconciler with no more rights than config/rbac gives
// the manager.
func TestPolicies(t *testing.T) {
	g, ctx := guard(t), context.Background()
	admin := g.admin
	var written atomic.Int32
	as := g.as("purelb-manager")
	as.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet {
				written.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	g.keep("purelb-manager", as)

	// Made, as the manifests are, and owned by the namespace.
	wanted, err := policy.Objects(policy.Users{
		Manager: accounts + "purelb-manager", Agent: accounts + "purelb-agent", Speaker: accounts + "purelb-speaker",
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(wanted).To(HaveLen(12))
	owner := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	g.Expect(g.admin.Get(ctx, client.ObjectKeyFromObject(owner), owner)).To(Succeed())
	kept := func(g Gomega, want *unstructured.Unstructured) *unstructured.Unstructured {
		got := &unstructured.Unstructured{}
		got.SetGroupVersionKind(want.GroupVersionKind())
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(want), got)).To(Succeed())
		g.Expect(got.GetOwnerReferences()).
			To(Equal([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: namespace, UID: owner.UID}}))
		g.Expect(got.GetLabels()).To(Equal(want.GetLabels()))
		return got
	}
	for _, want := range wanted {
		g.Eventually(func(g Gomega) { kept(g, want) }).Should(Succeed(), "%s %s", want.GetKind(), want.GetName())
	}

	// Put back, and then left alone.
	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	for _, want := range wanted {
		was := kept(g, want)
		edit := map[string]string{
			"ValidatingAdmissionPolicy": `{"spec":{"failurePolicy":"Ignore","matchConditions":[{"name":"never",` +
				`"expression":"false"}]}}`,
			"ValidatingAdmissionPolicyBinding": `{"spec":{"validationActions":["Audit"],` +
				`"matchResources":{"objectSelector":{"matchLabels":{"a":"b"}}}}}`,
			"FlowSchema": `{"spec":{"matchingPrecedence":9999}}`,
		}[want.GetKind()]
		g.Expect(edit).NotTo(BeEmpty(), want.GetKind())
		g.Expect(admin.Patch(ctx, was.DeepCopy(), merge(edit))).To(Succeed())
		g.Eventually(func(g Gomega) { g.Expect(kept(g, want).Object["spec"]).To(Equal(was.Object["spec"])) }).
			Should(Succeed())
		g.Expect(admin.Patch(ctx, was.DeepCopy(), merge(`{"metadata":{"labels":null}}`))).To(Succeed())
		g.Eventually(func(g Gomega) { kept(g, want) }).Should(Succeed())
		g.Expect(admin.Delete(ctx, was)).To(Succeed())
		g.Eventually(func(g Gomega) {
			made := kept(g, want)
			g.Expect(made.GetUID()).NotTo(Equal(was.GetUID()))
			g.Expect(made.Object["spec"]).To(Equal(was.Object["spec"]))
		}).Should(Succeed())
	}
	// Each look at the policies is one at all of them. The first one is edited, twice as what was
	// written before has been handled then, and twice more: nothing but that one is written.
	edited, others := wanted[0], wanted[1:]
	look := func() {
		for range 2 {
			was := kept(g, edited)
			g.Expect(admin.Patch(ctx, was, merge(`{"metadata":{"labels":null}}`))).To(Succeed())
			g.Eventually(func(g Gomega) { kept(g, edited) }).Should(Succeed())
		}
	}
	versions := func() (all []string) {
		for _, want := range others {
			all = append(all, kept(g, want).GetResourceVersion())
		}
		return all
	}
	look()
	settled, requests := versions(), written.Load()
	look()
	g.Expect(versions()).To(Equal(settled), "left alone")
	g.Expect(written.Load()).To(BeNumerically(">", requests), "the counted requests are the manager's")
}

// refusing writes until a write is refused as it should be: the API server takes a moment to know its
// roles and policies.
func (g *guarded) refusing(write func() error) AsyncAssertion {
	g.t.Helper()
	return g.Eventually(write)
}

// TestPoliciesRefuse tries what agents, users and the manager may not. This test shows the row "write
// another node's status or Lease, or anything else" of docs/trust.md.
func TestPoliciesRefuse(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	manager, admin := g.client(g.as("purelb-manager")), g.admin
	seen := &headers{}
	agent := g.agentOn("node1", seen)
	ann := func(node string) *v1.Announcement {
		return &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node}, Spec: v1.AnnouncementSpec{
				NodeName: node, LBNodeAgent: "default",
			},
		}
	}
	lease := func(node string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1.LeasePrefix + node}}
	}
	g.create(lease("node1"), lease("node2"))
	for _, node := range []string{"node1", "node2"} {
		g.Expect(manager.Create(ctx, ann(node))).To(Succeed())
	}
	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	const services, renewal = `{"status":{"services":"none"}}`, `{"spec":{"holderIdentity":"nobody"}}`

	g.refusing(func() error { return agent.Status().Patch(ctx, ann("node2"), merge(services)) }).
		Should(MatchError(ContainSubstring("the agent of node node1 may write the status of no other node's Announcement")))
	g.refusing(func() error { return agent.Patch(ctx, lease("node2"), merge(renewal)) }).
		Should(MatchError(ContainSubstring("the agent of node node1 may renew no other Lease")))
	g.Expect(agent.Status().Patch(ctx, ann("node1"), merge(services))).To(Succeed())

	// Nor may an agent claim addresses in the name of another node.
	standby := func(node string) *v1.Announcement {
		a := ann(node)
		a.Name = node + "-standby"
		a.Spec.Standby = &v1.Standby{Watched: v1.StandbyNode{NodeName: "node3"}, Interface: "eth0",
			Addresses: []v1.StandbyAddress{
				{Address: "10.0.0.1", ServiceGroup: "default", Epoch: 1, Successors: []v1.Successor{{NodeName: node, Epoch: 2}}},
			}}
		return a
	}
	const claim = `{"status":{"addresses":[{"address":"10.0.0.1","state":"Announced","epoch":2,` +
		`"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`
	for _, node := range []string{"node1", "node2"} {
		g.Expect(manager.Create(ctx, standby(node))).To(Succeed())
	}
	g.Expect(agent.Status().Patch(ctx, standby("node2"), merge(claim))).
		To(MatchError(ContainSubstring("the agent of node node1 may write the status of no other node's Announcement")))
	g.Expect(apierrors.IsForbidden(agent.Patch(ctx, standby("node1"), merge(`{"spec":{"standby":null}}`)))).To(
		BeTrue(), "what it is to claim is the manager's to say",
	)
	g.Expect(agent.Status().Patch(ctx, standby("node1"), merge(claim))).To(Succeed())

	const mine = "Announcements are written by PureLB's manager"
	foreign := func() error { return admin.Create(ctx, ann("node3"), client.DryRunAll) }
	g.refusing(foreign).Should(MatchError(ContainSubstring(mine)))
	g.Expect(admin.Patch(ctx, ann("node1"), merge(`{"spec":{"heartbeatSeconds":7}}`))).
		To(MatchError(ContainSubstring(mine)))
	for _, patch := range []string{
		`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["a.b/c"]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"u"}]}}`,
	} {
		g.Expect(admin.Patch(ctx, ann("node1"), merge(patch))).To(MatchError(ContainSubstring(mine)), patch)
	}
	g.Expect(admin.Patch(ctx, ann("node1"), merge(`{"metadata":{"labels":null}}`))).To(Succeed(), "nothing changes")
	changed := ann("node1")
	g.Expect(manager.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
	changed.Spec.HeartbeatSeconds = 7
	g.Expect(manager.Update(ctx, changed)).To(Succeed())
	g.Expect(manager.Create(ctx, ann("node3"), client.DryRunAll)).To(Succeed())
	common := func() *v1.CommonAnnouncement {
		return &v1.CommonAnnouncement{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"},
			Spec:       v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: 1},
		}
	}
	g.Expect(admin.Create(ctx, common(), client.DryRunAll)).To(MatchError(ContainSubstring(mine)))
	g.Expect(agent.Create(ctx, common(), client.DryRunAll)).
		To(MatchError(ContainSubstring(`cannot create resource "commonannouncements"`)))
	g.Expect(manager.Create(ctx, common(), client.DryRunAll)).To(Succeed())

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	const only = "may change nothing of a Node but the label purelb.io/agent"
	// A patch that was stored before the policy is known would change nothing when it is tried again.
	g.refusing(func() error {
		return manager.Patch(ctx, node, merge(`{"spec":{"unschedulable":true}}`), client.DryRunAll)
	}).Should(MatchError(ContainSubstring(only)))
	for _, patch := range []string{
		`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["a.b/c"]}}`,
	} {
		g.Expect(manager.Patch(ctx, node, merge(patch))).To(MatchError(ContainSubstring(only)), patch)
	}
	g.Expect(manager.Patch(ctx, node, merge(`{"metadata":{"labels":{"purelb.io/agent":"default"}}}`))).To(Succeed())
	g.Expect(admin.Patch(ctx, node, merge(`{"metadata":{"labels":{"a":"b"}}}`))).To(Succeed())

	// A renewal is served by the schema that is for it, a read is not.
	const by = "X-Kubernetes-PF-FlowSchema-UID"
	flow := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "purelb-agents"}}
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(flow), flow)).To(Succeed())
	g.Eventually(func() string {
		g.Expect(agent.Patch(ctx, lease("node1"), merge(renewal))).To(Succeed())
		return seen.get(by)
	}).Should(Equal(string(flow.UID)))
	g.Expect(agent.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "node1"}, &v1.Announcement{})).To(Succeed())
	g.Expect(seen.get(by)).To(And(Not(BeEmpty()), Not(Equal(string(flow.UID)))))
}

// TestAttackLease has an agent change more of its Lease than is for it to write.
func TestAttackLease(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	agent := g.agentOn("node1", &headers{})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1.LeasePrefix + "node1",
		Labels:          map[string]string{v1.LabelNode: "node1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "u"}}}}
	g.create(lease.DeepCopy())
	for _, patch := range []string{
		`{"metadata":{"finalizers":["a.b/c"]}}`, `{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node2","uid":"u"}]}}`,
		`{"metadata":{"ownerReferences":null}}`, `{"metadata":{"labels":null}}`,
		`{"spec":{"leaseTransitions":2147483647}}`, `{"spec":{"acquireTime":"2020-01-01T00:00:00.000000Z"}}`,
	} {
		lease := lease.DeepCopy()
		g.refusing(func() error {
			return agent.Patch(ctx, lease, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		}).
			Should(MatchError(ContainSubstring("may change nothing of its Lease but")), patch)
	}
	g.Expect(agent.Patch(ctx, lease.DeepCopy(), client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"holderIdentity":"node1","leaseDurationSeconds":3,"renewTime":"2020-01-01T00:00:00.000000Z"}}`)))).
		To(Succeed())
}

// TestAttackSpeaker has a speaker write more than the status of its own NodeRouting. This test shows
// the row "write another node's NodeRouting, its own spec, or anything else; read BGPPeers, Secrets or
// Announcements" of docs/trust.md.
func TestAttackSpeaker(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	speaker := g.podOn("node1", "purelb-speaker", &headers{})
	manager := g.client(g.as("purelb-manager"))
	routing := func(node string) *v1.NodeRouting {
		return &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node},
			Spec: v1.NodeRoutingSpec{NodeName: node, LBNodeAgent: "default", Interface: "kube-lb0", RouterID: "192.0.2.1"}}
	}
	for _, node := range []string{"node1", "node2"} {
		g.Expect(manager.Create(ctx, routing(node))).To(Succeed())
		t.Cleanup(func() { g.Expect(client.IgnoreNotFound(manager.Delete(ctx, routing(node)))).To(Succeed()) })
	}
	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"networks":7,"established":0,"desired":0}}`))
	g.refusing(func() error { return speaker.Status().Patch(ctx, routing("node2"), status) }).
		Should(MatchError(ContainSubstring("the speaker of node node1 may write the status of no other node's NodeRouting")))
	g.Expect(speaker.Status().Patch(ctx, routing("node1"), status)).To(Succeed())
	for what, err := range map[string]error{
		"its spec": speaker.Patch(
			ctx, routing("node1"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"routerID":"192.0.2.9"}}`)),
		),
		"an Announcement":      speaker.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "node1"}, &v1.Announcement{}),
		"a Secret":             speaker.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "router"}, &corev1.Secret{}),
		"the BGPPeers":         speaker.List(ctx, &v1.BGPPeerList{}, client.InNamespace(namespace)),
		"another NodeRouting":  speaker.Delete(ctx, routing("node2")),
		"a NodeRouting of old": speaker.Create(ctx, routing("node3")),
	} {
		g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
	}
}

// TestAttackUnreadableTime has an agent and a speaker write times that the API server takes and no client
// can read, and numbers that are out of range: a list of the kind would fail as a whole. This test shows
// the rows "write what no client can read, which ends every reader of the kind, the manager first" of
// docs/trust.md and "write, of its own NodeRouting, what no client can read, which ends every reader of the
// kind, the manager first" of docs/trust.md.
func TestAttackUnreadableTime(t *testing.T) {
	g, ctx := guard(t), context.Background()
	g.keep("purelb-manager", g.as("purelb-manager"))
	manager := g.client(g.as("purelb-manager"))
	agent, speaker := g.agentOn("node1", &headers{}), g.podOn("node2", "purelb-speaker", &headers{})
	ann := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"},
		Spec: v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default"}}
	routing := &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node2"},
		Spec: v1.NodeRoutingSpec{NodeName: "node2", LBNodeAgent: "default", Interface: "kube-lb0", RouterID: "192.0.2.1"}}
	for _, obj := range []client.Object{ann, routing} {
		g.Expect(manager.Create(ctx, obj)).To(Succeed())
		t.Cleanup(func() { g.Expect(client.IgnoreNotFound(manager.Delete(ctx, obj))).To(Succeed()) })
	}
	condition := func(at string) string {
		return `"conditions":[{"type":"Ready","status":"True","reason":"R","message":"","lastTransitionTime":"` + at + `"}]`
	}
	const changed = `"lastTransitionTime":"2026-01-02T03:04:05Z"`
	list := func(name string, count int, format string) string {
		items := make([]string, count)
		for i := range items {
			items[i] = fmt.Sprintf(format, i+1)
		}
		return fmt.Sprintf(`"%s":[%s]`, name, strings.Join(items, ","))
	}
	places := []struct {
		by      client.Client
		obj     client.Object
		counts  string
		times   map[string]func(at string) string
		numbers []string
		longest string
	}{
		{agent, ann, `"announced":1,"desired":1`, map[string]func(string) string{
			"an address": func(at string) string {
				return `"addresses":[{"address":"10.0.0.1","state":"Announced","lastTransitionTime":"` + at + `"}]`
			},
			"a change of what is reachable": func(at string) string {
				return `"reachability":[{"address":"10.0.0.1","reachable":"True","reason":"R","lastTransitionTime":"` + at + `"}]`
			},
			"an answer": func(at string) string {
				return `"reachability":[{"address":"10.0.0.1","reachable":"True","reason":"R",` +
					`"lastTransitionTime":"2026-01-02T03:04:05Z","lastReachable":"` + at + `"}]`
			},
			"a condition": condition,
		}, []string{
			`"announced":2147483648,"desired":1`, `"announced":1,"desired":-1`,
			`"announced":1,"desired":1,"observedGeneration":9223372036854775808`,
			`"announced":1,"desired":1,"observedGeneration":1e30`,
		}, list("addresses", v1.MaxAddressesPerAnnouncement, `{"address":"10.0.0.%[1]d","state":"Announced",`+
			changed+`}`) + "," +
			list("reachability", v1.MaxAddressesPerAnnouncement, `{"address":"10.0.0.%[1]d","reachable":"True","reason":"R",`+
				`"lastReachable":"2026-01-02T03:04:05Z",`+changed+`}`) + "," +
			list("conditions", 8, `{"type":"C%[1]d","status":"True","reason":"R","message":"",`+changed+`}`)},
		{speaker, routing, `"networks":1,"established":1,"desired":1`, map[string]func(string) string{
			"a session": func(at string) string {
				return `"sessions":[{"peer":"p","neighbor":"10.0.0.1","state":"Established","since":"` + at + `"}]`
			},
			"a condition": condition,
		}, []string{
			`"networks":2147483648,"established":1,"desired":1`, `"networks":1,"established":-1,"desired":1`,
			`"networks":1,"established":1,"desired":1,"sessions":[{"peer":"p","neighbor":"10.0.0.1",` +
				`"state":"Established","peerASN":1e30}]`,
		}, list("sessions", 32, `{"peer":"p%[1]d","neighbor":"10.0.0.%[1]d","state":"Established",`+
			`"since":"2026-01-02T03:04:05Z"}`) + "," +
			list("conditions", 8, `{"type":"C%[1]d","status":"True","reason":"R","message":"",`+changed+`}`)},
	}
	for _, p := range places {
		patch := func(status string) error {
			obj := p.obj.DeepCopyObject().(client.Object)
			raw := client.RawPatch(types.MergePatchType, []byte(`{"status":{`+status+`}}`))
			return p.by.Status().Patch(ctx, obj, raw, client.DryRunAll)
		}
		for what, at := range p.times {
			for _, bad := range []string{
				"2024-01-01t00:00:00z", "2024-01-01T00:00:00z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00",
				"2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00+01:00", "2024-01-01",
			} {
				g.refusing(func() error { return patch(p.counts + "," + at(bad)) }).Should(MatchError(Or(
					ContainSubstring("a time of the status is not written as 2006-01-02T15:04:05Z"),
					ContainSubstring("must be of type date-time"),
				)), "%s of %T: %s", what, p.obj, bad)
			}
			g.Expect(patch(p.counts+","+at("2024-01-01T00:00:00Z"))).To(Succeed(), "%s of %T", what, p.obj)
		}
		g.Expect(patch(p.counts+","+p.longest)).To(Succeed(), "%T: as many times as it takes", p.obj)
		for _, bad := range p.numbers {
			g.Expect(patch(bad)).To(Satisfy(apierrors.IsInvalid), "%T: %s", p.obj, bad)
		}
	}
	g.Expect(manager.List(ctx, &v1.AnnouncementList{}, client.InNamespace(namespace))).To(Succeed())
	g.Expect(manager.List(ctx, &v1.NodeRoutingList{}, client.InNamespace(namespace))).To(Succeed())
}

// TestPoliciesNotAllowed has a manager without the rights, which says so.
func TestPoliciesNotAllowed(t *testing.T) {
	g, ctx := guard(t), context.Background()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "poor"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}},
		{APIGroups: []string{"events.k8s.io", ""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{
			APIGroups: []string{"admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io"}, Resources: []string{"*"},
			Verbs: []string{"list", "watch"},
		},
	}}
	g.create(role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "poor"}, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "poor",
		},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "poor"}},
	})
	g.keep("poor", g.as("poor"))
	g.Eventually(func() string {
		var list eventsv1.EventList
		g.Expect(g.admin.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
		for _, e := range list.Items {
			if e.Reason == v1.EventPolicyNotApplied && e.Regarding.Name == "poor" {
				return e.Note
			}
		}
		return ""
	}).Should(And(ContainSubstring("apply ValidatingAdmissionPolicy purelb-agents"), ContainSubstring("is forbidden")))
}
