package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/writeerror"
	real "github.com/purelb/purelb-operator/test/apiserver"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// servers are the API servers that the contract is held against.
var servers = map[string]client.Client{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	memory, err := apiserver.NewCluster()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	servers["memory"] = memory.NewClient(nil, nil)
	config, stop, err := real.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = stop() }()
	if servers["real"], err = client.New(config, client.Options{Scheme: apiserver.Scheme()}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestContract plays the same requests to the API server in memory and to a real one, and compares all
// answers, errors included, but for names that each server chooses.
func TestContract(t *testing.T) {
	real.Mark(t)
	for name, play := range scenarios {
		t.Run(name, func(t *testing.T) {
			logs := map[string]*story{}
			for server, c := range servers {
				s := &story{t: t, Client: c, ctx: t.Context(), versions: map[string]int{}, uids: map[types.UID]int{}}
				play(s)
				logs[server] = s
			}
			if len(logs["real"].lines) == 0 {
				t.Fatal("the story is empty")
			}
			if diff := cmp.Diff(logs["real"].lines, logs["memory"].lines); diff != "" {
				t.Errorf("(-real +memory):\n%s", diff)
			}
		})
	}
}

// story is what a server answers, line by line.
type story struct {
	client.Client
	t        *testing.T
	ctx      context.Context
	lines    []string
	versions map[string]int
	uids     map[types.UID]int
}

// tell notes the outcome of a request: the error by its kind, or the object. Versions and UIDs are numbered
// in the order in which they are told.
func (s *story) tell(what string, obj client.Object, err error) {
	s.t.Helper()
	if err != nil {
		s.lines = append(s.lines, what+": "+kindOfError(err))
		return
	}
	if obj == nil {
		s.lines = append(s.lines, what+": done")
		return
	}
	copied := obj.DeepCopyObject().(client.Object)
	copied.SetManagedFields(nil)
	copied.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind().GroupKind().WithVersion(""))
	if v := copied.GetResourceVersion(); v != "" {
		copied.SetResourceVersion(fmt.Sprint("version ", number(s.versions, v)))
	}
	if uid := copied.GetUID(); uid != "" {
		copied.SetUID(types.UID(fmt.Sprint("uid ", number(s.uids, uid))))
	}
	copied.SetCreationTimestamp(metav1.Time{})
	if copied.GetDeletionTimestamp() != nil {
		copied.SetDeletionTimestamp(&metav1.Time{})
	}
	if svc, isService := copied.(*corev1.Service); isService {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
	}
	text, err := json.MarshalIndent(copied, "", " ")
	if err != nil {
		s.t.Fatal(err)
	}
	s.lines = append(s.lines, what+":")
	s.lines = append(s.lines, strings.Split(string(text), "\n")...)
}

func number[K comparable](numbers map[K]int, key K) int {
	if _, isKnown := numbers[key]; !isKnown {
		numbers[key] = len(numbers) + 1
	}
	return numbers[key]
}

func kindOfError(err error) string {
	return fmt.Sprintf(
		"%s, replaced %v, outdated %v", apierrors.ReasonForError(err), writeerror.IsReplaced(err), writeerror.IsOutdated(err),
	)
}

// stored tells what the server has of an object.
func (s *story) stored(what string, obj client.Object) {
	s.t.Helper()
	fresh := obj.DeepCopyObject().(client.Object)
	err := s.Get(s.ctx, client.ObjectKeyFromObject(obj), fresh)
	s.tell(what, fresh, err)
}

func (s *story) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func announcement(name string) *v1.Announcement {
	return &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"a": "b"}},
		Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "default", HeartbeatSeconds: 1},
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"user": "x"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, Selector: map[string]string{"a": "b"},
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{
				{Name: "web", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)},
			},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
		},
	}
}

// statusOf is a configuration of an object's status, for an apply.
func statusOf(kind string, obj client.Object, status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(v1.GroupVersion.WithKind(kind))
	u.SetName(obj.GetName())
	u.SetNamespace(obj.GetNamespace())
	return u
}

func condition(kind, status string) map[string]any {
	return map[string]any{
		"type": kind, "status": status, "reason": "Because", "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z",
	}
}

func (s *story) apply(what string, u *unstructured.Unstructured, owner string) {
	s.t.Helper()
	err := s.Status().Apply(
		s.ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner), client.ForceOwnership,
	)
	s.tell(what, nil, err)
}

var scenarios = map[string]func(s *story){
	"an object is made, changed and deleted": func(s *story) {
		a := announcement("made")
		a.Status.Services = "ignored"
		s.tell("create", a, s.Create(s.ctx, a))
		s.tell("once more", announcement("made"), s.Create(s.ctx, announcement("made")))
		stale := a.DeepCopy()
		a.Spec.Addresses = []v1.AnnouncedAddress{
			{
				Address: "192.0.2.1", PrefixLength: 24, Interface: "eth0", Type: v1.AnnounceLocal, ClaimPolicy: v1.ClaimProbe,
				Epoch: 1, Services: []string{"a/b"},
			},
		}
		s.tell("update", a, s.Update(s.ctx, a))
		s.tell("the same", a, s.Update(s.ctx, a))
		a.Labels["c"] = "d"
		s.tell("a label alone", a, s.Update(s.ctx, a))
		stale.Labels["e"] = "f"
		s.tell("an old version", stale, s.Update(s.ctx, stale))
		s.tell("delete", nil, s.Delete(s.ctx, a))
		s.tell("delete once more", nil, s.Delete(s.ctx, a))
		a.Labels["g"] = "h"
		s.tell("update what is gone", a, s.Update(s.ctx, a))
		s.stored("gone", a)
		again := announcement("made")
		s.must(s.Create(s.ctx, again))
		a.ResourceVersion = again.ResourceVersion
		s.tell("update another of the name", a, s.Update(s.ctx, a))
		s.must(s.Delete(s.ctx, again))
	},
	"conditions of a deletion": func(s *story) {
		a := announcement("conditions")
		s.must(s.Create(s.ctx, a))
		other, uid := types.UID("another"), a.UID
		s.tell("another UID", nil, s.Delete(s.ctx, a, client.Preconditions{UID: &other}))
		old := a.ResourceVersion
		a.Labels["c"] = "d"
		s.must(s.Update(s.ctx, a))
		s.tell("an old version", nil, s.Delete(s.ctx, a, client.Preconditions{UID: &uid, ResourceVersion: &old}))
		s.tell("as it is", nil, s.Delete(s.ctx, a, client.Preconditions{UID: &uid, ResourceVersion: &a.ResourceVersion}))
	},
	"finalizers": func(s *story) {
		a := announcement("finalizers")
		a.Finalizers = []string{"example.com/wait"}
		s.must(s.Create(s.ctx, a))
		s.tell("delete", nil, s.Delete(s.ctx, a))
		s.stored("marked", a)
		s.tell("delete once more", nil, s.Delete(s.ctx, a))
		s.must(s.Get(s.ctx, client.ObjectKeyFromObject(a), a))
		a.Finalizers = nil
		s.tell("without finalizers", nil, s.Update(s.ctx, a))
		s.stored("gone", a)
	},
	"a merge patch": func(s *story) {
		svc := service("patched")
		s.must(s.Create(s.ctx, svc))
		patch := func(what, body string) {
			written := service("patched")
			s.tell(what, written, s.Patch(s.ctx, written, client.RawPatch(types.MergePatchType, []byte(body))))
		}
		patch("one annotation", `{"metadata":{"annotations":{"purelb":"y"}}}`)
		patch("takes it off", `{"metadata":{"annotations":{"purelb":null}}}`)
		patch("an old version", `{"metadata":{"resourceVersion":"1","annotations":{"purelb":"y"}}}`)
		patch("another UID", `{"metadata":{"uid":"another","annotations":{"purelb":"y"}}}`)
		patch("the status is not written", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
		s.must(s.Get(s.ctx, client.ObjectKeyFromObject(svc), svc))
		before := svc.DeepCopy()
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		s.tell(
			"the status", svc,
			s.Status().Patch(s.ctx, svc, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})),
		)
		before.Labels = map[string]string{"new": "y"}
		s.tell(
			"from an old version", before,
			s.Status().Patch(s.ctx, before, client.MergeFromWithOptions(svc, client.MergeFromWithOptimisticLock{})),
		)
		s.must(s.Delete(s.ctx, svc))
		patch("of what is gone", `{"metadata":{"annotations":{"purelb":"y"}}}`)
	},
	"a status is applied": func(s *story) {
		a := announcement("applied")
		s.must(s.Create(s.ctx, a))
		address := func(addr, state string) map[string]any {
			return map[string]any{
				"address": addr, "state": state, "epoch": int64(1), "lastTransitionTime": "2026-01-02T03:04:05Z",
			}
		}
		full := map[string]any{
			"services":   "a/b",
			"announced":  int64(1),
			"desired":    int64(2),
			"macs":       []any{"02:00:00:00:00:02", "02:00:00:00:00:01"},
			"addresses":  []any{address("192.0.2.2", "Announced"), address("192.0.2.1", "Pending")},
			"conditions": []any{condition("Ready", "True")},
		}
		s.apply("first", statusOf("Announcement", a, full), "agent")
		s.stored("first", a)
		s.apply("the same", statusOf("Announcement", a, full), "agent")
		s.stored("the same", a)
		s.apply("in another order, one more, one changed", statusOf("Announcement", a, map[string]any{
			"services":  "a/b",
			"announced": int64(1),
			"desired":   int64(2),
			"macs":      []any{"02:00:00:00:00:02", "02:00:00:00:00:01"},
			"addresses": []any{
				address("192.0.2.1", "Announced"), address("192.0.2.3", "Pending"), address("192.0.2.2", "Announced"),
			},
			"conditions": []any{condition("Ready", "False")},
		}), "agent")
		s.stored("changed", a)
		s.apply(
			"another owner",
			statusOf(
				"Announcement", a,
				map[string]any{"announced": int64(1), "desired": int64(2), "conditions": []any{condition("Other", "True")}},
			),
			"manager",
		)
		s.stored("two owners", a)
		s.apply(
			"less",
			statusOf(
				"Announcement", a,
				map[string]any{
					"announced": int64(1), "desired": int64(2), "macs": []any{"02:00:00:00:00:01"},
					"addresses": []any{address("192.0.2.3", "Announced")},
				},
			),
			"agent",
		)
		s.stored("less", a)
		s.apply(
			"what the other has",
			statusOf(
				"Announcement", a,
				map[string]any{"announced": int64(1), "desired": int64(2), "conditions": []any{condition("Other", "False")}},
			),
			"agent",
		)
		s.stored("taken", a)
		s.apply("nothing, of whom it was taken", statusOf("Announcement", a, map[string]any{}), "manager")
		s.stored("stays", a)
		gone := statusOf(
			"Announcement", announcement("nowhere"),
			map[string]any{"services": "a/b", "announced": int64(1), "desired": int64(2)},
		)
		s.apply("of what is not there", gone, "agent")
		old := statusOf("Announcement", a, map[string]any{"services": "a/b", "announced": int64(1), "desired": int64(2)})
		old.SetResourceVersion(a.ResourceVersion)
		s.apply("over an old version", old, "agent")
		other := statusOf("Announcement", a, map[string]any{"services": "a/b", "announced": int64(1), "desired": int64(2)})
		other.SetUID("another")
		s.apply("over another UID", other, "agent")
		whole := statusOf("Announcement", a, nil)
		delete(whole.Object, "status")
		whole.SetUID("another")
		s.tell(
			"the whole over another UID", nil,
			s.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(whole), client.FieldOwner("agent"), client.ForceOwnership),
		)
		gone.SetUID("another")
		s.apply("over a UID that is gone", gone, "agent")
		s.must(s.Delete(s.ctx, a))
	},
	"of a Service, status and annotations": func(s *story) {
		svc := service("annotated")
		s.must(s.Create(s.ctx, svc))
		apply := func(what, owner, annotation string, conditions ...string) {
			ac := corev1ac.Service(svc.Name, svc.Namespace).WithStatus(corev1ac.ServiceStatus())
			if annotation != "" {
				ac.WithAnnotations(map[string]string{annotation: "x"})
			}
			for _, c := range conditions {
				ac.Status.WithConditions(metav1ac.Condition().WithType(c).WithStatus("True").WithReason("Because").WithMessage("m").
					WithLastTransitionTime(metav1.Unix(1_700_000_000, 0)))
			}
			err := s.Status().Apply(s.ctx, ac, client.FieldOwner(owner), client.ForceOwnership)
			s.tell(what, nil, err)
			s.lines = append(s.lines, fmt.Sprint(ac.Annotations))
			s.stored(what, svc)
		}
		apply("first", "allocator", "purelb", "Allocated", "Record")
		apply("second", "announced", "where", "Announced")
		apply("no annotation", "allocator", "", "Allocated", "Record")
		apply("one condition less", "allocator", "purelb", "Record")
		other := corev1ac.Service(svc.Name, svc.Namespace).WithUID("another").WithStatus(corev1ac.ServiceStatus())
		s.tell("over another UID", nil, s.Status().Apply(s.ctx, other, client.FieldOwner("allocator"), client.ForceOwnership))
		old := corev1ac.Service(svc.Name, svc.Namespace).WithResourceVersion(svc.ResourceVersion).
			WithStatus(corev1ac.ServiceStatus())
		s.tell(
			"over an old version", nil, s.Status().Apply(s.ctx, old, client.FieldOwner("allocator"), client.ForceOwnership),
		)
		s.must(s.Get(s.ctx, client.ObjectKeyFromObject(svc), svc))
		svc.Annotations["purelb"] = "edited"
		s.must(s.Update(s.ctx, svc))
		apply("no more, after a user's edit", "allocator", "", "Record")
		s.must(s.Delete(s.ctx, svc))
	},
	"the order of lists that several apply": func(s *story) {
		a := announcement("order")
		s.must(s.Create(s.ctx, a))
		names := map[string]string{"a": "A", "b": "B", "c": "C", "d": "D", "x": "X", "y": "Y"}
		apply := func(owner, order string) {
			conditions := []any{}
			for _, c := range order {
				conditions = append(conditions, condition(names[string(c)], "True"))
			}
			s.apply(
				owner+" "+order,
				statusOf("Announcement", a, map[string]any{"announced": int64(1), "desired": int64(2), "conditions": conditions}),
				owner,
			)
			s.must(s.Get(s.ctx, client.ObjectKeyFromObject(a), a))
			have := ""
			for _, c := range a.Status.Conditions {
				have += c.Type
			}
			s.lines = append(s.lines, have)
		}
		for _, step := range []string{
			"agent abc", "manager xb", "agent cab", "manager yx", "agent dc", "manager x", "agent abcd", "manager xdy",
			"agent dba", "manager yax", "agent c", "manager ", "agent ab", "manager bxa",
		} {
			owner, order, _ := strings.Cut(step, " ")
			apply(owner, order)
		}
		s.must(s.Delete(s.ctx, a))
	},
	"a list": func(s *story) {
		for _, name := range []string{"c", "a", "b"} {
			a := announcement("list-" + name)
			a.Spec.NodeName = "node-" + name
			s.must(s.Create(s.ctx, a))
		}
		list := func(what string, opts ...client.ListOption) {
			var found v1.AnnouncementList
			err := s.List(s.ctx, &found, opts...)
			var names []string
			for _, a := range found.Items {
				names = append(names, a.Name)
			}
			slices.Sort(names)
			s.lines = append(s.lines, fmt.Sprint(what, names, err != nil))
		}
		list("of the namespace", client.InNamespace("default"))
		list("of another", client.InNamespace("kube-system"))
		list("by label", client.InNamespace("default"), client.MatchingLabels{"a": "b"})
		list("by another label", client.InNamespace("default"), client.MatchingLabels{"a": "c"})
		list("by node", client.InNamespace("default"), client.MatchingFields{"spec.nodeName": "node-b"})
		list("by another field", client.InNamespace("default"), client.MatchingFields{"spec.other": "x"})
		for _, name := range []string{"c", "a", "b"} {
			s.must(s.Delete(s.ctx, announcement("list-"+name)))
		}
	},
}
