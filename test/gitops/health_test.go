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

// object is one of this API, with the YAML text as its spec.
func object(t *testing.T, namespace, kind, name, spec string) *unstructured.Unstructured {
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

// script is the health check of Argo CD that the documentation gives.
func script(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```lua\n(.*?)```").FindAllSubmatch(page, -1)
	if len(found) != 1 {
		t.Fatalf("%d scripts in docs/install.md", len(found))
	}
	return string(found[0][1])
}

// argo is what Argo CD makes of an object: its status and message.
func argo(script string, u *unstructured.Unstructured) (string, error) {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", table(state, u.Object))
	if err := state.DoString(script); err != nil {
		return "", err
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", fmt.Errorf("the script returns %s", state.Get(-1).Type())
	}
	if health.RawGetString("message").String() == "" {
		return "", fmt.Errorf("the script has nothing to say")
	}
	return health.RawGetString("status").String(), nil
}

// table is a value of an object in Lua.
func table(state *lua.LState, value any) lua.LValue {
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
			list.Append(table(state, e))
		}
		return list
	case map[string]any:
		object := state.NewTable()
		for key, e := range v {
			object.RawSetString(key, table(state, e))
		}
		return object
	}
	return lua.LNil
}

// judged waits until an object, as it is stored, is taken for the same by kstatus
// and by Argo CD's script.
func judged(t *testing.T, u *unstructured.Unstructured, want status.Status, message string) {
	t.Helper()
	byArgo := map[status.Status]string{
		status.CurrentStatus: "Healthy", status.InProgressStatus: "Progressing", status.FailedStatus: "Degraded", status.TerminatingStatus: "Progressing",
	}[want]
	lua, g := script(t), NewWithT(t)
	g.Eventually(func(g Gomega) {
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(u.GroupVersionKind())
		g.Expect(api.Get(context.Background(), client.ObjectKeyFromObject(u), now)).To(Succeed())
		result, err := status.Compute(now)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Status).To(Equal(want), "%s: %v", result.Message, now.Object["status"])
		g.Expect(result.Message).To(ContainSubstring(message))
		health, err := argo(lua, now)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(health).To(Equal(byArgo))
	}).Should(Succeed(), "%s %s", u.GetKind(), u.GetName())
}

// TestServiceGroupHealth follows ServiceGroups, with the webhooks out of the way.
func TestServiceGroupHealth(t *testing.T) {
	g, ctx := begin(t), t.Context()
	const good = "{local: {subnet: 192.0.2.0/24, pool: 192.0.2.10-192.0.2.20}}"
	sg := object(t, system, "ServiceGroup", "health", good)
	// As it is before the manager has looked at it.
	dry := sg.DeepCopy()
	g.Expect(apply(ctx, dry, client.DryRunAll)).To(Succeed())
	result, err := status.Compute(dry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.Status).To(Equal(status.InProgressStatus))
	health, err := argo(script(t), dry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(health).To(Equal("Progressing"))

	g.Expect(apply(ctx, sg)).To(Succeed())
	judged(t, sg, status.CurrentStatus, "")
	bad := object(t, system, "ServiceGroup", "health", "{local: {subnet: 192.0.2.0/24, pool: 198.51.100.10-198.51.100.20}}")
	g.Expect(apply(ctx, bad.DeepCopy())).To(Succeed())
	judged(t, bad, status.FailedStatus, "spec.local.pool")
	g.Expect(apply(ctx, object(t, system, "ServiceGroup", "health", good))).To(Succeed())
	judged(t, sg, status.CurrentStatus, "")
	outside := object(t, "test", "ServiceGroup", "health", good)
	g.Expect(apply(ctx, outside.DeepCopy())).To(Succeed())
	judged(t, outside, status.FailedStatus, system)
	g.Expect(api.Delete(ctx, sg)).To(Succeed())
}

// TestAgentHealth follows an LBNodeAgent and the Announcement of its node. The
// agent is the real one, on a kernel that is not; what the DaemonSet controller
// would report the test does.
func TestAgentHealth(t *testing.T) {
	g, ctx := begin(t), t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	g.Expect(api.Create(ctx, node)).To(Succeed())
	agent := object(t, system, "LBNodeAgent", "health", "{}")
	g.Expect(apply(ctx, agent.DeepCopy())).To(Succeed())
	judged(t, agent, status.InProgressStatus, "0 of 0 agents are ready")
	daemonSet(g, 0)
	judged(t, agent, status.InProgressStatus, "0 of 1 agents are ready")
	ann := object(t, system, "Announcement", "node1", "{}")
	judged(t, ann, status.InProgressStatus, "not reported")

	runAgent(t, "node1", "health")
	judged(t, ann, status.CurrentStatus, "")
	daemonSet(g, 1)
	judged(t, agent, status.CurrentStatus, "")
	g.Expect(apply(ctx, object(t, system, "LBNodeAgent", "health", "{local: {localInterface: 'en['}}"))).To(Succeed())
	judged(t, agent, status.FailedStatus, "spec.local.localInterface")
	g.Expect(apply(ctx, object(t, system, "LBNodeAgent", "health", "{}"))).To(Succeed())
	judged(t, agent, status.CurrentStatus, "")

	// Something that holds it up, so that it can be looked at while it goes.
	g.Expect(api.Patch(ctx, agent, client.RawPatch("application/json-patch+json",
		[]byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/test"}]`)))).To(Succeed())
	g.Expect(api.Delete(ctx, agent)).To(Succeed())
	judged(t, agent, status.TerminatingStatus, "")
	g.Eventually(func(g Gomega) []string { // the manager has let it go
		g.Expect(api.Get(ctx, client.ObjectKeyFromObject(agent), agent)).To(Succeed())
		return agent.GetFinalizers()
	}).Should(Equal([]string{"example.com/test"}))
	g.Expect(api.Patch(ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	g.Expect(api.Delete(ctx, node)).To(Succeed())
}

// daemonSet reports that one pod is wanted, and how many are ready.
func daemonSet(g *WithT, ready int32) {
	ctx := context.Background()
	g.Eventually(func() error {
		ds := &appsv1.DaemonSet{}
		if err := api.Get(ctx, client.ObjectKey{Namespace: system, Name: "purelb-agent-health"}, ds); err != nil {
			return err
		}
		ds.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: ds.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: ready,
		}
		return api.Status().Update(ctx, ds)
	}).Should(Succeed())
}

// quiet is a link where nobody else is.
type quiet struct{}

// Announce reaches nobody.
func (quiet) Announce(string, netip.Addr) error { return nil }

// Probe gets no answer.
func (quiet) Probe(context.Context, []neigh.Target, int, time.Duration) map[netip.Addr]neigh.Answer {
	return nil
}

// Ask reaches nobody.
func (quiet) Ask(string, netip.Addr) error { return nil }

// Listen hears nothing.
func (quiet) Listen(ctx context.Context, _ string, _ func(netip.Addr) bool, _ func(neigh.Message)) error {
	<-ctx.Done()
	return nil
}

// runAgent runs the agent of a node until the test ends.
func runAgent(t *testing.T, node, lbNodeAgent string) {
	t.Helper()
	g := NewWithT(t)
	options, err := nodeagent.ManagerOptions(node, system, lbNodeAgent)
	g.Expect(err).NotTo(HaveOccurred())
	options.Metrics.BindAddress = "0"
	options.Controller.SkipNameValidation = new(true)
	mgr, err := ctrl.NewManager(config, options)
	g.Expect(err).NotTo(HaveOccurred())
	kernel := linktest.New(plan.Link{Name: "eth0", MAC: "02:00:00:00:00:0a", Up: true})
	kernel.Put(plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever})
	kernel.Route(plan.Route{Interface: "eth0", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.254")})
	agent := &nodeagent.Agent{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Kernel: kernel, Neighbours: quiet{},
		Metrics: nodeagent.NewMetrics(prometheus.NewRegistry()), NodeName: node, Namespace: system, LBNodeAgent: lbNodeAgent,
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
