package gitops

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	lua "github.com/yuin/gopher-lua"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// newObject returns an object of this API group, with YAML text as its spec.
func newObject(t *testing.T, namespace, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("{spec: "+spec+"}"), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetGroupVersionKind(v1.GroupVersion.WithKind(kind))
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// readArgoScript returns the health check for Argo CD that is in the documentation.
func readArgoScript(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/how-to/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```lua\n(.*?)```").FindAllSubmatch(page, -1)
	if len(found) != 1 {
		t.Fatalf("%d scripts in docs/how-to/gitops.md", len(found))
	}
	return string(found[0][1])
}

// argoHealth returns the status that Argo CD gives to an object with the script.
func argoHealth(script string, u *unstructured.Unstructured) (string, error) {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", luaValue(state, u.Object))
	if err := state.DoString(script); err != nil {
		return "", err
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", fmt.Errorf("the script returns %s", state.Get(-1).Type())
	}
	if health.RawGetString("message").String() == "" {
		return "", fmt.Errorf("the script returns no message")
	}
	return health.RawGetString("status").String(), nil
}

// luaValue returns a value of an object as a value of Lua.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		list := state.NewTable()
		for _, e := range v {
			list.Append(luaValue(state, e))
		}
		return list
	case map[string]any:
		object := state.NewTable()
		for key, e := range v {
			object.RawSetString(key, luaValue(state, e))
		}
		return object
	}
	return lua.LNil
}

// waitForHealth waits until kstatus and Argo CD's script give an object, as it is stored,
// the same status, which has to be want.
func waitForHealth(t *testing.T, u *unstructured.Unstructured, want status.Status, message string) {
	t.Helper()
	byArgo := map[status.Status]string{
		status.CurrentStatus: "Healthy", status.InProgressStatus: "Progressing", status.FailedStatus: "Degraded",
		status.TerminatingStatus: "Progressing",
	}[want]
	lua, g := readArgoScript(t), NewWithT(t)
	g.Eventually(func(g Gomega) {
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(u.GroupVersionKind())
		g.Expect(kubeClient.Get(context.Background(), client.ObjectKeyFromObject(u), now)).To(Succeed())
		result, err := status.Compute(now)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Status).To(Equal(want), "%s: %v", result.Message, now.Object["status"])
		g.Expect(result.Message).To(ContainSubstring(message))
		health, err := argoHealth(lua, now)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(health).To(Equal(byArgo))
	}).Should(Succeed(), "%s %s", u.GetKind(), u.GetName())
}

// TestServiceGroupHealth follows ServiceGroups through their states. There are no webhooks,
// so that faulty ones are stored.
func TestServiceGroupHealth(t *testing.T) {
	g, ctx := startOnce(t), t.Context()
	const good = "{local: {subnet: 192.0.2.0/24, pool: 192.0.2.10-192.0.2.20}}"
	sg := newObject(t, purelbNamespace, "ServiceGroup", "health", good)
	// The state before the manager has reconciled the ServiceGroup.
	dry := sg.DeepCopy()
	g.Expect(applyStrictly(ctx, dry, client.DryRunAll)).To(Succeed())
	result, err := status.Compute(dry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.Status).To(Equal(status.InProgressStatus))
	health, err := argoHealth(readArgoScript(t), dry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(health).To(Equal("Progressing"))

	g.Expect(applyStrictly(ctx, sg)).To(Succeed())
	waitForHealth(t, sg, status.CurrentStatus, "")
	bad := newObject(
		t, purelbNamespace, "ServiceGroup", "health", "{local: {subnet: 192.0.2.0/24, pool: 198.51.100.10-198.51.100.20}}",
	)
	g.Expect(applyStrictly(ctx, bad.DeepCopy())).To(Succeed())
	waitForHealth(t, bad, status.FailedStatus, "spec.local.pool")
	g.Expect(applyStrictly(ctx, newObject(t, purelbNamespace, "ServiceGroup", "health", good))).To(Succeed())
	waitForHealth(t, sg, status.CurrentStatus, "")
	outside := newObject(t, "test", "ServiceGroup", "health", good)
	g.Expect(applyStrictly(ctx, outside.DeepCopy())).To(Succeed())
	waitForHealth(t, outside, status.FailedStatus, purelbNamespace)
	g.Expect(kubeClient.Delete(ctx, sg)).To(Succeed())
}

// TestAgentHealth follows an LBNodeAgent and the Announcement of its node. The agent is
// PureLB's, with a kernel in memory. The test reports in place of the DaemonSet controller.
func TestAgentHealth(t *testing.T) {
	g, ctx := startOnce(t), t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	g.Expect(kubeClient.Create(ctx, node)).To(Succeed())
	agent := newObject(t, purelbNamespace, "LBNodeAgent", "health", "{}")
	g.Expect(applyStrictly(ctx, agent.DeepCopy())).To(Succeed())
	waitForHealth(t, agent, status.InProgressStatus, "0 of 0 agents are ready")
	reportDaemonSet(g, 0)
	waitForHealth(t, agent, status.InProgressStatus, "0 of 1 agents are ready")
	ann := newObject(t, purelbNamespace, "Announcement", "node1", "{}")
	waitForHealth(t, ann, status.InProgressStatus, "not reported")

	runAgent(t, "node1", "health")
	waitForHealth(t, ann, status.CurrentStatus, "")
	reportDaemonSet(g, 1)
	waitForHealth(t, agent, status.CurrentStatus, "")
	g.Expect(applyStrictly(
		ctx, newObject(t, purelbNamespace, "LBNodeAgent", "health", "{local: {localInterface: 'en['}}"),
	)).To(Succeed())
	waitForHealth(t, agent, status.FailedStatus, "spec.local.localInterface")
	g.Expect(applyStrictly(ctx, newObject(t, purelbNamespace, "LBNodeAgent", "health", "{}"))).To(Succeed())
	waitForHealth(t, agent, status.CurrentStatus, "")

	// A finalizer keeps the LBNodeAgent while it is being deleted.
	g.Expect(kubeClient.Patch(ctx, agent, client.RawPatch("application/json-patch+json",
		[]byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/test"}]`)))).To(Succeed())
	g.Expect(kubeClient.Delete(ctx, agent)).To(Succeed())
	waitForHealth(t, agent, status.TerminatingStatus, "")
	g.Eventually(func(g Gomega) []string { // the manager removes its finalizer
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(agent), agent)).To(Succeed())
		return agent.GetFinalizers()
	}).Should(Equal([]string{"example.com/test"}))
	g.Expect(kubeClient.Patch(
		ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)),
	)).To(Succeed())
	g.Expect(kubeClient.Delete(ctx, node)).To(Succeed())
}

// TestBGPPeerHealth follows BGPPeers that wait for nodes, and that no speaker could follow.
func TestBGPPeerHealth(t *testing.T) {
	g, ctx := startOnce(t), t.Context()
	const good = "{peerASN: 65000, myASN: 65001, peerAddress: 192.0.2.1, nodeSelector: {matchLabels: {no: node}}}"
	peer := newObject(t, purelbNamespace, "BGPPeer", "health", good)
	g.Expect(applyStrictly(ctx, peer.DeepCopy())).To(Succeed())
	waitForHealth(t, peer, status.InProgressStatus, "selects no node")
	const unselectable = "{peerASN: 65000, myASN: 65001, peerAddress: 192.0.2.1, " +
		"nodeSelector: {matchExpressions: [{key: zone, operator: Inn}]}}"
	bad := newObject(t, purelbNamespace, "BGPPeer", "health", unselectable)
	g.Expect(applyStrictly(ctx, bad.DeepCopy())).To(Succeed())
	waitForHealth(t, bad, status.FailedStatus, "spec.nodeSelector")
	g.Expect(kubeClient.Delete(ctx, peer)).To(Succeed())
}

// reportDaemonSet reports that one pod is desired, and how many are ready.
func reportDaemonSet(g *WithT, ready int32) {
	ctx := context.Background()
	g.Eventually(func() error {
		ds := &appsv1.DaemonSet{}
		if err := kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-agent-health"},
			ds); err != nil {
			return err
		}
		ds.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: ds.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1,
			NumberReady: ready,
		}
		return kubeClient.Status().Update(ctx, ds)
	}).Should(Succeed())
}

// silentLink is a link without other stations.
type silentLink struct{}

// Announce does nothing: no station hears it.
func (silentLink) Announce(string, netip.Addr) error { return nil }

// Probe gets no answer.
func (silentLink) Probe(context.Context, []neigh.Question, int, time.Duration) map[netip.Addr]neigh.ProbeResult {
	return nil
}

// Ask gets no answer.
func (silentLink) Ask(neigh.Question) error { return nil }

// SetPodMACs does nothing: no station is heard.
func (silentLink) SetPodMACs([]string) {}

// AskStation gets no answer.
func (silentLink) AskStation(neigh.Question, neigh.MAC) error { return nil }

// Listen hears nothing.
func (silentLink) Listen(ctx context.Context, _ string, _ func(netip.Addr) bool, _ func(neigh.Message)) error {
	<-ctx.Done()
	return nil
}

// runAgent runs the agent of a node until the test ends.
func runAgent(t *testing.T, node, lbNodeAgent string) {
	t.Helper()
	g := NewWithT(t)
	options, err := nodeagent.ManagerOptions(node, purelbNamespace, lbNodeAgent)
	g.Expect(err).NotTo(HaveOccurred())
	options.Metrics.BindAddress = "0"
	mgr, err := ctrl.NewManager(restConfig, options)
	g.Expect(err).NotTo(HaveOccurred())
	kernel := linktest.New(plan.NetworkInterface{Name: "eth0", MAC: "02:00:00:00:00:0a", IsUp: true})
	kernel.Put(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever,
	})
	kernel.AddRoute(plan.Route{
		Interface: "eth0", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.254"),
	})
	agent := &nodeagent.Agent{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Kernel: kernel, Neighbours: silentLink{},
		Metrics: nodeagent.NewMetrics(prometheus.NewRegistry()), NodeName: node, Namespace: purelbNamespace,
		LBNodeAgentName: lbNodeAgent,
	}
	g.Expect(agent.SetupWithManager(mgr)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
