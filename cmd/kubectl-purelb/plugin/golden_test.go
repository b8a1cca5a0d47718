package plugin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

var update = flag.Bool("update", false, "write the golden files")

// readObjectsOf reads objects from a file.
func readObjectsOf(t *testing.T, path string) *Objects {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o := &Objects{}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		switch x := object.(type) {
		case *corev1.Node:
			o.Nodes = append(o.Nodes, *x)
		case *corev1.Namespace:
			o.Namespaces = append(o.Namespaces, metav1.PartialObjectMetadata{ObjectMeta: x.ObjectMeta})
		case *corev1.Service:
			o.Services = append(o.Services, *x)
		case *corev1.Pod:
			o.Pods = append(o.Pods, *x)
		case *coordinationv1.Lease:
			o.Leases = append(o.Leases, *x)
		case *appsv1.Deployment:
			o.Deployments = append(o.Deployments, *x)
		case *v1.ServiceGroup:
			o.ServiceGroups = append(o.ServiceGroups, *x)
		case *v1.LBNodeAgent:
			o.LBNodeAgents = append(o.LBNodeAgents, *x)
		case *v1.Announcement:
			o.Announcements = append(o.Announcements, *x)
		case *v1.CommonAnnouncement:
			o.Commons = append(o.Commons, *x)
		case *v1.BGPPeer:
			o.BGPPeers = append(o.BGPPeers, *x)
		case *v1.NodeRouting:
			o.NodeRoutings = append(o.NodeRoutings, *x)
		default:
			t.Fatalf("what is %T?", object)
		}
	}
	return o
}

// clusterOf derives a cluster from testdata/cluster.yaml, after a change.
func clusterOf(t *testing.T, change ...func(*Objects)) *Cluster {
	t.Helper()
	o := readObjectsOf(t, "testdata/cluster.yaml")
	for _, do := range change {
		do(o)
	}
	c, err := NewCluster(t.Context(), o, "purelb-system")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// expire has the agent of a node not renew its Lease.
func expire(node string) func(*Objects) {
	return func(o *Objects) {
		if o.NotRenewing == nil {
			o.NotRenewing = map[string]bool{}
		}
		o.NotRenewing[node] = true
	}
}

// followedBy has node1's address name successors, the first one first.
func followedBy(nodes ...string) func(*Objects) {
	return func(o *Objects) {
		for i, node := range nodes {
			o.Announcements[0].Spec.Addresses[0].Successors = append(
				o.Announcements[0].Spec.Addresses[0].Successors, v1.Successor{NodeName: node, Epoch: int64(3 + i)},
			)
		}
	}
}

// watchedBy has nodes watch node1: the first one does, the others have no witness.
func watchedBy(nodes ...string) func(*Objects) {
	return func(o *Objects) {
		for i, node := range nodes {
			ready := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Watching"}
			if i > 0 {
				ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NoWitness", "no third node answers"
			}
			a := v1.Announcement{Spec: v1.AnnouncementSpec{
				NodeName: node, Standby: &v1.Standby{Watched: v1.StandbyNode{NodeName: "node1"}},
			}}
			a.Namespace, a.Status.Conditions = "purelb-system", []metav1.Condition{ready}
			o.Standbys = append(o.Standbys, a)
		}
	}
}

// claimed has node3, a successor of node1, claim the address of that node, which still renews its Lease.
func claimed(o *Objects) {
	followedBy("node3")(o)
	successors := o.Announcements[0].Spec.Addresses[0].Successors
	standby := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: "node3", Standby: &v1.Standby{
		Watched:   v1.StandbyNode{NodeName: "node1"},
		Addresses: []v1.StandbyAddress{{Address: "192.168.1.240", Epoch: 2, Successors: successors}},
	}}}
	standby.Status.Addresses = []v1.AddressStatus{{Address: "192.168.1.240", State: v1.StateAnnounced, Epoch: 3}}
	standby.Namespace = "purelb-system"
	o.Standbys = append(o.Standbys, standby)
}

// ofTenant leaves what somebody reads who may read one namespace only.
func ofTenant(o *Objects) {
	services := slices.DeleteFunc(o.Services, func(svc corev1.Service) bool { return svc.Namespace != "shop" })
	*o = Objects{Services: services}
	for _, kind := range placementKinds {
		o.Unread = append(o.Unread, Unread{kind, "forbidden"})
	}
}

// noSuccessor has no other node that could take the address of node1.
func noSuccessor(o *Objects) {
	o.Services = slices.DeleteFunc(o.Services, func(svc corev1.Service) bool { return svc.Name != "web" })
	for i := range o.Nodes {
		if o.Nodes[i].Name == "node2" {
			o.Nodes[i].Labels[corev1.LabelNodeExcludeBalancers] = ""
		}
	}
	for i := range o.Announcements {
		if o.Announcements[i].Spec.NodeName == "node3" {
			o.Announcements[i].Status.Interfaces = nil
		}
	}
}

// unreachable has node2 and node3 ask node1 for its address, and get no answer.
func unreachable(o *Objects) {
	o.LBNodeAgents[0].Spec.Local.Reachability = &v1.ReachabilityConfig{Enabled: true}
	last := metav1.NewTime(time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC))
	for _, name := range []string{"node2", "node3"} {
		asking := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: name, Asking: &v1.Asking{
			Holder:    v1.StandbyNode{NodeName: "node1"},
			Addresses: []v1.AskedAddress{{Address: "192.168.1.240", Epoch: 2, Services: []string{"shop/web"}}},
		}}}
		asking.Status.Reachability = []v1.Reachability{{
			Address: "192.168.1.240", Epoch: 2, Reachable: metav1.ConditionFalse, Reason: v1.ReasonNoAnswer,
			LastReachable: &last,
		}}
		o.Askings = append(o.Askings, asking)
	}
	web := &o.Services[slices.IndexFunc(o.Services, func(s corev1.Service) bool { return s.Name == "web" })]
	web.Status.Conditions = append(web.Status.Conditions, metav1.Condition{
		Type: v1.ConditionServiceReachable, Status: metav1.ConditionFalse, Reason: v1.ReasonUnreachable,
		Message: "node1 announces 192.168.1.240, and node2 and node3 cannot reach it",
	})
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func filesOf(t *testing.T, text string) *Files {
	t.Helper()
	return must(ReadFiles([]string{"-"}, strings.NewReader(text), false))(t)
}

const groupFile = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: more, namespace: purelb-system}
spec: {local: {v4pools: [{pool: 192.168.1.250, subnet: 192.168.1.0/24}]}}
`

const shrunkGroupFile = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: default, namespace: purelb-system}
spec: {local: {v4pools: [{pool: 192.168.1.242, subnet: 192.168.1.0/24}]}}
`

const smallAgentFile = `
apiVersion: purelb.io/v1
kind: LBNodeAgent
metadata: {name: default, namespace: purelb-system}
spec: {nodeSelector: {kubernetes.io/hostname: node9}}
`

// forTenants has ServiceGroups that are not for everybody: the default one for some namespaces, among
// them that of its Services, with two reservations, and the other one for Services that name none.
func forTenants(o *Objects) {
	o.Namespaces = []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"tier": "gold"}}},
	}
	one, two := o.ServiceGroups[0].DeepCopy(), o.ServiceGroups[1].DeepCopy()
	one.Spec.AllowedNamespaces = &v1.AllowedNamespaces{
		From: v1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}},
	}
	one.Spec.AutoAssign, two.Spec.AutoAssign = ptr.To(false), ptr.To(true)
	one.Spec.Reservations = []v1.Reservation{
		{Address: "192.168.1.240", Service: "shop/web"}, {Address: "192.168.1.242", Service: "shop/later"},
	}
	o.ServiceGroups = []v1.ServiceGroup{*one, *two}
	for i := range o.Services {
		delete(o.Services[i].Annotations, v1.AnnotationServiceGroup)
	}
}

// Each command prints what its golden file says, as text and as JSON.
func TestGolden(t *testing.T) {
	type result interface {
		WriteText(w io.Writer, style Style) error
	}
	for _, test := range []struct {
		name   string
		result func(t *testing.T) result
	}{
		{"status", func(t *testing.T) result { return StatusOf(clusterOf(t)) }},
		{"status-healthy", func(t *testing.T) result {
			return StatusOf(clusterOf(t, func(o *Objects) { o.Services, o.BGPPeers = o.Services[:3], nil }))
		}},
		{"status-nothing-readable", func(t *testing.T) result {
			return StatusOf(must(NewCluster(t.Context(), &Objects{Unread: []Unread{
				{"ServiceGroups", "servicegroups.purelb.io is forbidden"},
				{"LBNodeAgents", "lbnodeagents.purelb.io is forbidden"}}}, "purelb-system"))(t))
		}},
		{"status-manager-away", func(t *testing.T) result {
			return StatusOf(clusterOf(t, func(o *Objects) { o.Deployments[0].Status.ReadyReplicas = 0 }))
		}},
		{"explain-web", func(t *testing.T) result { return must(ExplainService(clusterOf(t), "shop", "web"))(t) }},
		{"explain-web-node-expired", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, expire("node3")), "shop", "web"))(t)
		}},
		{"explain-web-failing-over", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, expire("node1")), "shop", "web"))(t)
		}},
		{"explain-web-of-a-tenant", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, ofTenant), "shop", "web"))(t)
		}},
		{"explain-web-unreachable", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, unreachable), "shop", "web"))(t)
		}},
		{"status-unreachable", func(t *testing.T) result { return StatusOf(clusterOf(t, unreachable)) }},
		{"explain-web-successors", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, followedBy("node3", "node2")), "shop", "web"))(t)
		}},
		{"status-watches", func(t *testing.T) result {
			return StatusOf(clusterOf(t, watchedBy("node3", "node2")))
		}},
		{"explain-web-claimed", func(t *testing.T) result {
			return must(ExplainService(clusterOf(t, claimed), "shop", "web"))(t)
		}},
		{"explain-api", func(t *testing.T) result { return must(ExplainService(clusterOf(t), "shop", "api"))(t) }},
		{"explain-edge", func(t *testing.T) result { return must(ExplainService(clusterOf(t), "shop", "edge"))(t) }},
		{"explain-late", func(t *testing.T) result { return must(ExplainService(clusterOf(t), "shop", "late"))(t) }},
		{"explain-internal", func(t *testing.T) result { return must(ExplainService(clusterOf(t), "shop", "internal"))(t) }},
		{"where-local", func(t *testing.T) result {
			return LocateAddress(clusterOf(t), netip.MustParseAddr("192.168.1.240"))
		}},
		{"where-virtual", func(t *testing.T) result {
			return LocateAddress(clusterOf(t), netip.MustParseAddr("172.30.0.1"))
		}},
		{"where-free", func(t *testing.T) result {
			return LocateAddress(clusterOf(t), netip.MustParseAddr("192.168.1.242"))
		}},
		{"where-nowhere", func(t *testing.T) result {
			return LocateAddress(clusterOf(t), netip.MustParseAddr("203.0.113.1"))
		}},
		{"where-reserved", func(t *testing.T) result {
			return LocateAddress(clusterOf(t, forTenants), netip.MustParseAddr("192.168.1.242"))
		}},
		{
			"explain-web-reserved",
			func(t *testing.T) result { return must(ExplainService(clusterOf(t, forTenants), "shop", "web"))(t) },
		},
		{
			"explain-edge-auto",
			func(t *testing.T) result { return must(ExplainService(clusterOf(t, forTenants), "shop", "edge"))(t) },
		},
		{"pools-tenants", func(t *testing.T) result { return PoolListOf(clusterOf(t, forTenants)) }},
		{"pools", func(t *testing.T) result { return PoolListOf(clusterOf(t)) }},
		{"bgp", func(t *testing.T) result { return BGPStateOf(clusterOf(t)) }},
		{"bgp-none", func(t *testing.T) result {
			return BGPStateOf(clusterOf(t, func(o *Objects) { o.BGPPeers, o.NodeRoutings = nil, nil }))
		}},
		{"plan-drain", func(t *testing.T) result { return must(OnePlan(PlanDrain(clusterOf(t), "node1")))(t) }},
		{"plan-lose", func(t *testing.T) result { return must(PlanLoseEach(clusterOf(t)))(t) }},
		{"plan-lose-followed", func(t *testing.T) result {
			return must(OnePlan(PlanLose(clusterOf(t, followedBy("node2", "node3")), "node1")))(t)
		}},
		{"plan-lose-second-follows", func(t *testing.T) result {
			return must(OnePlan(PlanLose(clusterOf(t, followedBy("node3", "node2"), expire("node3")), "node1")))(t)
		}},
		{"plan-lose-last", func(t *testing.T) result {
			return must(OnePlan(PlanLose(clusterOf(t, expire("node2"), expire("node3")), "node1")))(t)
		}},
		{"plan-lose-no-successor", func(t *testing.T) result {
			return must(OnePlan(PlanLose(clusterOf(t, noSuccessor), "node1")))(t)
		}},
		{"plan-apply-group", func(t *testing.T) result {
			return must(OnePlan(PlanApply(t.Context(), clusterOf(t), filesOf(t, groupFile))))(t)
		}},
		{"plan-apply-shrunk-group", func(t *testing.T) result {
			return must(OnePlan(PlanApply(t.Context(), clusterOf(t), filesOf(t, shrunkGroupFile))))(t)
		}},
		{"plan-apply-agent-of-no-node", func(t *testing.T) result {
			return must(OnePlan(PlanApply(t.Context(), clusterOf(t), filesOf(t, smallAgentFile))))(t)
		}},
		{"plan-apply-withdrawal", func(t *testing.T) result {
			file := strings.Replace(
				smallAgentFile, "namespace: purelb-system",
				`namespace: purelb-system, annotations: {purelb.io/allow-withdrawal: "true"}`, 1,
			)
			return must(OnePlan(PlanApply(t.Context(), clusterOf(t), filesOf(t, file))))(t)
		}},
		{"version", func(t *testing.T) result { return VersionsOf(clusterOf(t), "v0.2.0") }},
		{"validate", func(t *testing.T) result {
			files := must(ReadFiles([]string{"testdata/manifests.yaml"}, nil, false))(t)
			return must(Validate(t.Context(), files, "purelb-system"))(t)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.result(t)
			var out bytes.Buffer
			for _, style := range []Style{{}, {Wide: true}} {
				if err := got.WriteText(&out, style); err != nil {
					t.Fatal(err)
				}
				out.WriteString("----\n")
			}
			encoder := json.NewEncoder(&out)
			encoder.SetIndent("", "  ")
			if err := encoder.Encode(got); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, filepath.Join("testdata", "golden", test.name+".txt"), out.Bytes())
		})
	}
}

// Commands that write say what they do, and to programs what came of it, as their golden files say.
func TestGoldenOfWriting(t *testing.T) {
	compare := func(t *testing.T, name string, progress []byte, outcome any) {
		t.Helper()
		out := bytes.NewBuffer(progress)
		out.WriteString("----\n")
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(outcome); err != nil {
			t.Fatal(err)
		}
		compareGolden(t, filepath.Join("testdata", "golden", name+".txt"), out.Bytes())
	}
	const label = corev1.LabelNodeExcludeBalancers
	t.Run("drain", func(t *testing.T) {
		var out bytes.Buffer
		drained := must(Drain(t.Context(), apiOf(t, nil), "purelb-system", "node1", &out))(t)
		compare(t, "drain", out.Bytes(), drained)
	})
	t.Run("drain-interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out bytes.Buffer
		drained, err := Drain(ctx, apiOf(t, nil, onNode("node1", "10.0.0.1 shared")), "purelb-system", "node1", &out)
		if err == nil {
			t.Error("no error, and addresses are left")
		}
		compare(t, "drain-interrupted", out.Bytes(), drained)
	})
	t.Run("undrain", func(t *testing.T) {
		var out bytes.Buffer
		api := apiOf(t, map[string]string{label: drainedLabelValue})
		undrained := must(Undrain(t.Context(), api, "node1", false, &out))(t)
		compare(t, "undrain", out.Bytes(), undrained)
	})
	t.Run("rebalance", func(t *testing.T) {
		m := newManaged(t, balance(4, 0))
		var out bytes.Buffer
		rebalanced := must(Rebalance(t.Context(), m.api, "purelb-system", m.read, time.Minute, &out))(t)
		compare(t, "rebalance", out.Bytes(), rebalanced)
	})
	t.Run("rebalance-dry-run", func(t *testing.T) {
		plan := PlanRebalance(clusterWith(balance(4, 0)))
		compare(t, "rebalance-dry-run", []byte(textOf(t, plan)), plan)
	})
	t.Run("support-bundle", func(t *testing.T) {
		var bundle, out bytes.Buffer
		if err := WriteSupportBundle(t.Context(), &bundle, clusterOf(t), nil, nil, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		contents := unpacked(t, &bundle)
		for _, name := range slices.Sorted(maps.Keys(contents)) {
			out.WriteString(name + "\n")
		}
		out.WriteString(contents["purelb-support/status.yaml"])
		compare(t, "support-bundle", out.Bytes(), &BundleOutcome{File: "purelb-support.tar.gz"})
	})
}

func compareGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test ./cmd/kubectl-purelb/plugin -update writes it. Got:\n%s", path, got)
	}
}

// unpacked returns the files of a support bundle, by name.
func unpacked(t *testing.T, bundle io.Reader) map[string]string {
	t.Helper()
	unzipped, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return contents
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		contents[header.Name] = string(data)
	}
}

// No secret of a pod, and no annotation of others, is in a support bundle.
func TestSupportBundleIsRedacted(t *testing.T) {
	var out bytes.Buffer
	events := []corev1.Event{{Reason: "AddressAssigned"}}
	c := clusterOf(t, watchedBy("node3", "node2"))
	if err := WriteSupportBundle(t.Context(), &out, c, events, nil, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	contents := unpacked(t, &out)
	for name, text := range contents {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, text := range map[string]string{
		"services.yaml": "name: web", "announcements.yaml": "192.168.1.240", "pods.yaml": "value: redacted",
		"deployments.yaml": "value: redacted",
		"events.yaml":      "AddressAssigned", "leases.yaml": "purelb-node1", "status.yaml": "health: Degraded",
	} {
		if !strings.Contains(contents["purelb-support/"+name], text) {
			t.Errorf("%s has no %q:\n%s", name, text, contents["purelb-support/"+name])
		}
	}
	if text := contents["purelb-support/announcements.yaml"]; !strings.Contains(text, "no third node answers") {
		t.Errorf("announcements.yaml does not say why a node does not watch:\n%s", text)
	}
	if strings.Contains(contents["purelb-support/services.yaml"], "name: internal") {
		t.Error("a Service that is not PureLB's is in the bundle")
	}
}

func TestReadFilesRefuses(t *testing.T) {
	if _, err := ReadFiles([]string{"testdata/none.yaml"}, nil, false); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
