package sim

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/speaker/gobgp"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

var update = flag.Bool("update", false, "write what is printed to testdata/broken, to be read and judged")

// brokenCluster is one way to break a cluster of two nodes.
type brokenCluster struct {
	name string
	// group is the ServiceGroup of the Service web; the others are not there.
	group string
	// described are objects, kind/namespace/name, besides that Service.
	described []string
	// before breaks the cluster before the Service is made, and after does so while all is well.
	before, after func(*testing.T, *kubernetes)
}

const (
	describedGroup = "ServiceGroup/" + Namespace + "/" + GroupLocal
	describedAgent = "LBNodeAgent/" + Namespace + "/" + Agents
	describedPeer  = "BGPPeer/" + Namespace + "/router1"
)

var brokenClusters = []brokenCluster{
	{name: "healthy", group: GroupLocal},
	{
		name: "typo-in-the-subnet", group: GroupLocal, described: []string{describedGroup},
		before: func(t *testing.T, k *kubernetes) {
			k.editGroup(t, GroupLocal, func(spec *v1.ServiceGroupSpec) {
				spec.Local.V4Pools = []v1.AddressPool{{Pool: "192.0.20.100-192.0.20.119", Subnet: "192.0.20.0/24"}}
			})
		},
	},
	{name: "no-router", group: GroupVirtual},
	{
		name: "wrong-asn", group: GroupVirtual, described: []string{describedPeer},
		before: func(t *testing.T, k *kubernetes) {
			k.AddRouters(routerAddresses[0])
			k.Routers[0].refusal = k.errorOfWrongASN
			k.note(t, k.CreatePeer(0))
		},
	},
	{
		name: "missing-secret", group: GroupVirtual, described: []string{describedPeer},
		before: func(t *testing.T, k *kubernetes) {
			k.AddRouters(routerAddresses[0])
			k.note(t, k.CreatePeer(0))
			k.note(t, k.EditPeer(0, func(spec *v1.BGPPeerSpec) {
				spec.PasswordSecretRef = &v1.SecretKeyRef{Name: "router", Key: "password"}
			}))
		},
	},
	{
		name: "dead-speakers", group: GroupVirtual, described: []string{describedPeer},
		before: func(t *testing.T, k *kubernetes) {
			k.AddRouters(routerAddresses[0])
			k.note(t, k.CreatePeer(0))
		},
		after: func(t *testing.T, k *kubernetes) {
			for _, n := range k.Nodes {
				k.crashSpeaker(t, n)
			}
		},
	},
	{
		name: "node-without-the-interface", group: GroupLocal, described: []string{describedAgent, describedGroup},
		before: func(t *testing.T, k *kubernetes) { k.setLocalInterface(t, "eth9") },
	},
	{
		name: "pool-empty", group: GroupLocal, described: []string{describedGroup},
		before: func(t *testing.T, k *kubernetes) {
			k.editGroup(t, GroupLocal, func(spec *v1.ServiceGroupSpec) {
				spec.Local.V4Pools = []v1.AddressPool{{Pool: "192.0.2.100/32", Subnet: "192.0.2.0/24"}}
			})
			k.createService(t, Service{Name: "api", Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
			k.Run(time.Minute)
		},
	},
	{
		name: "netbox-away", group: GroupLocal, described: []string{describedGroup},
		before: func(t *testing.T, k *kubernetes) {
			// Nobody listens there.
			const url = "http://127.0.0.1:1"
			k.note(t, k.Admin.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "netbox"},
				Data:       map[string][]byte{"token": []byte("0123456789"), "url": []byte(url)},
			}))
			k.editGroup(t, GroupLocal, func(spec *v1.ServiceGroupSpec) {
				spec.Local, spec.Netbox = nil, &v1.NetboxPools{
					URL: url, TokenSecretRef: v1.SecretKeyRef{Name: "netbox", Key: "token"},
					V4: &v1.NetboxSource{Prefixes: []string{"192.0.2.0/24"}},
				}
			})
		},
	},
	{
		name: "webhook-without-certificate", group: GroupLocal,
		before: func(_ *testing.T, k *kubernetes) {
			k.manager.Status.ReadyReplicas = 0
			k.webhooks.Webhooks[0].ClientConfig.CABundle = nil
		},
	},
	{
		name: "agent-in-crashloop", group: GroupLocal, described: []string{describedAgent},
		after: func(_ *testing.T, k *kubernetes) { k.crash(k.Nodes[1]) },
	},
	{
		name: "policy-local-without-endpoints", group: GroupVirtual,
		before: func(_ *testing.T, k *kubernetes) { k.isPolicyLocal = true },
	},
	{
		name: "duplicate-on-the-lan", group: GroupLocal,
		before: func(_ *testing.T, k *kubernetes) { k.connectPrinter(netip.MustParseAddr("192.0.2.100")) },
	},
	{
		name: "old-kernel", group: GroupLocal,
		before: func(_ *testing.T, k *kubernetes) {
			for _, n := range k.Nodes {
				n.Kernel.Refuse(netip.MustParseAddr("192.0.2.100"), link.ErrUntagged)
			}
		},
	},
}

// TestBrokenClusters breaks clusters in the ways in which users do, and compares what kubectl and its plugin then print
// with files that were read and judged: one look has to say what is wrong, and what to do.
func TestBrokenClusters(t *testing.T) {
	wrongASN := errorOfWrongASN(t)
	for _, b := range brokenClusters {
		t.Run(b.name, func(t *testing.T) {
			var shown string
			synctest.Test(t, func(t *testing.T) { shown = b.play(t, wrongASN) })
			golden := filepath.Join("testdata", "broken", b.name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(shown), 0o600); err != nil {
					t.Error(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Error(err)
			}
			if shown != string(want) {
				t.Errorf("%s has\n%s\nand this is printed:\n%s", golden, want, shown)
			}
		})
	}
}

// play breaks a cluster, and returns what is printed of it after a while.
func (b *brokenCluster) play(t *testing.T, wrongASN string) string {
	const while = 3 * time.Minute
	k := newKubernetes(t, b.group)
	k.errorOfWrongASN = wrongASN
	defer k.End()
	if b.before != nil {
		b.before(t, k)
	}
	k.Run(10 * time.Second)
	k.createService(t, Service{
		Name: "web", Group: b.group, Families: []corev1.IPFamily{corev1.IPv4Protocol}, IsPolicyLocal: k.isPolicyLocal,
	})
	k.Run(while)
	if b.after != nil {
		b.after(t, k)
		k.Run(while)
	}
	shown, err := k.show(append([]string{"Service/" + Tenants + "/web"}, b.described...))
	if err != nil {
		t.Error(err)
	}
	return shown
}

// kubernetes is a Cluster with a manager that leads, and with what the simulated API server and the simulation of
// other tests leave out: the reconciler of LBNodeAgents, pods, webhooks, and events.
type kubernetes struct {
	*Cluster
	leader   *Manager
	manager  *appsv1.Deployment
	webhooks *admissionv1.ValidatingWebhookConfiguration
	pods     []corev1.Pod
	events   []Event
	agents   *controllers.LBNodeAgentReconciler
	// isCrashing are the nodes whose agents end whenever they start.
	isCrashing      map[string]bool
	isPolicyLocal   bool
	errorOfWrongASN string
}

// newKubernetes starts a cluster of two nodes with one of the ServiceGroups.
func newKubernetes(t *testing.T, group string) *kubernetes {
	t.Helper()
	c, err := NewCluster(NewWorld(1, io.Discard), 2)
	if err != nil {
		t.Fatal(err)
	}
	k := &kubernetes{Cluster: c, isCrashing: map[string]bool{}}
	c.OnEvent = func(e Event) { k.events = append(k.events, e) }
	k.manager = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "purelb-manager"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status:     appsv1.DeploymentStatus{ReadyReplicas: 2},
	}
	k.webhooks = &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "purelb-validating"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "vservicegroup.purelb.io", ClientConfig: admissionv1.WebhookClientConfig{
				Service:  &admissionv1.ServiceReference{Namespace: Namespace, Name: "purelb-webhook"},
				CABundle: []byte("an authority"),
			},
			Rules: []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{Resources: []string{"servicegroups"}}}},
		}},
	}
	k.note(t, k.Admin.Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem},
	}))
	for _, g := range []string{GroupLocal, GroupVirtual} {
		if g == group {
			continue
		}
		k.note(t, k.Admin.Delete(t.Context(), &v1.ServiceGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: g},
		}))
	}
	k.leader, err = k.StartManager("manager", k.Server, ManagerOptions{
		NamesSuccessors: true, HasRouters: true, NetBox: &NetBox{IsDown: true, world: c.World},
	})
	k.note(t, err)
	for _, n := range k.Nodes {
		k.note(t, n.StartAgent())
	}
	k.AddRouters()
	k.agents = &controllers.LBNodeAgentReconciler{
		Client: k.client(), Recorder: recorder{k.leader}, Liveness: k.leader.live, Namespace: Namespace,
		Defaults: agents.Defaults{Image: "purelb.io/purelb:dev", ServiceAccount: "purelb-agent"},
	}
	k.everySecond(t)
	return k
}

func (k *kubernetes) note(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// End ends everything that runs.
func (k *kubernetes) End() {
	k.leader.Kill()
	k.Cluster.End()
}

// everySecond does what kubelets and the reconciler of LBNodeAgents do.
func (k *kubernetes) everySecond(t *testing.T) {
	ctx := context.Background()
	if _, err := k.agents.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKey{
		Namespace: Namespace, Name: Agents,
	}}); err != nil && !apierrors.IsConflict(err) {
		t.Error(err)
	}
	var sets appsv1.DaemonSetList
	k.note(t, k.Admin.List(ctx, &sets))
	for i := range sets.Items {
		ds, nodes := &sets.Items[i], int32(len(k.Nodes)) //nolint:gosec // two
		ready := nodes - int32(len(k.isCrashing))        //nolint:gosec // two at most
		before := ds.Status
		ds.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: ds.Generation, DesiredNumberScheduled: nodes, CurrentNumberScheduled: nodes,
			UpdatedNumberScheduled: nodes, NumberReady: ready, NumberAvailable: ready, NumberUnavailable: nodes - ready,
		}
		if before.ObservedGeneration != ds.Generation || before.NumberReady != ready {
			k.note(t, k.Admin.Status().Update(ctx, ds))
		}
	}
	k.After(time.Second, func() { k.everySecond(t) })
}

func (k *kubernetes) createService(t *testing.T, s Service) {
	t.Helper()
	_, err := k.CreateService(s)
	k.note(t, err)
}

func (k *kubernetes) editGroup(t *testing.T, name string, edit func(*v1.ServiceGroupSpec)) {
	t.Helper()
	group := &v1.ServiceGroup{}
	k.note(t, k.Admin.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: name}, group))
	edit(&group.Spec)
	k.note(t, k.Admin.Update(t.Context(), group))
}

func (k *kubernetes) setLocalInterface(t *testing.T, name string) {
	t.Helper()
	agent := &v1.LBNodeAgent{}
	k.note(t, k.Admin.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: Agents}, agent))
	agent.Spec.Local.LocalInterface = name
	k.note(t, k.Admin.Update(t.Context(), agent))
}

// crash makes the agent of a node end whenever it starts, as the kubelet would say.
func (k *kubernetes) crash(n *Node) {
	n.KillAgent()
	k.isCrashing[n.Name] = true
	k.pods = append(k.pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: agents.DaemonSetName(Agents) + "-x7k2p"},
		Spec:       corev1.PodSpec{NodeName: n.Name},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		}}},
	})
}

// crashSpeaker makes the speaker of a node end whenever it starts, as the kubelet would say.
func (k *kubernetes) crashSpeaker(t *testing.T, n *Node) {
	t.Helper()
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: routing.SpeakerName(Agents) + "-" + n.Name, Labels: routing.SpeakerLabels(),
		},
		Spec: corev1.PodSpec{NodeName: n.Name},
	}
	k.note(t, k.Admin.Create(t.Context(), pod.DeepCopy()))
	n.isSpeakerKept = true
	n.killSpeakers()
	k.note(t, k.Admin.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod))
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "speaker", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	k.note(t, k.Admin.Status().Update(t.Context(), &pod))
	k.pods = append(k.pods, pod)
}

// connectPrinter connects a station that has an address to the link.
func (k *kubernetes) connectPrinter(addr netip.Addr) {
	var port *Port
	port = k.Segments[0].Connect("printer", func(frame []byte) {
		if target, isAsked := askedFor(frame); isAsked && target == addr {
			port.Send(claimTo(frame, neigh.MAC{2, 0, 0, 0, 0, 0x50}, addr))
		}
	})
}

// errorOfWrongASN returns what the BGP library says of a router that is in another autonomous system than a BGPPeer
// says.
func errorOfWrongASN(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			// OPEN (RFC 4271): of version 4, AS 65010, a hold time of 90 s, identifier 192.0.2.1, and no parameters.
			open := append(bytes.Repeat([]byte{0xff}, 16), 0, 29, 1, 4, 0xfd, 0xf2, 0, 90, 192, 0, 2, 1, 0)
			_, _ = connection.Write(open)
			_, _ = io.Copy(io.Discard, connection)
			_ = connection.Close()
		}
	}()
	library := gobgp.New(logr.Discard(), func() {})
	if err := library.Start(t.Context(), netip.MustParseAddr("192.0.2.11")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = library.Stop(context.Background(), false) })
	router := netip.MustParseAddr("127.0.0.1")
	refused := library.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{{
		Neighbour: router, RoutingPeer: v1.RoutingPeer{
			Name: "router", Address: router.String(), PeerASN: 65000, MyASN: 65001, HoldSeconds: 90, KeepaliveSeconds: 30,
			Port:           int32(listener.Addr().(*net.TCPAddr).Port), //nolint:gosec // it has 16 bits
			ConnectSeconds: 1, Families: []v1.IPFamily{"IPv4"},
		},
	}}})
	if refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	why := ""
	NewWithT(t).Eventually(func() (string, error) {
		sessions, err := library.TendSessions(t.Context())
		if err != nil || len(sessions) == 0 {
			return "", err
		}
		why = sessions[0].LastError
		return why, nil
	}).WithTimeout(2 * time.Minute).Should(ContainSubstring("autonomous system"))
	return why
}
