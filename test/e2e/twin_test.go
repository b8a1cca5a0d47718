package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/twin"
)

// twinLabel marks the specs that play the scenarios of test/twin, which the simulation plays, too.
const twinLabel = "twin"

var _ = Describe("The lab", func() {
	for _, scenario := range twin.Scenarios {
		It("agrees with the simulation: "+scenario.Name, Label(twinLabel), func(ctx SpecContext) {
			golden, err := twin.Golden(scenario)
			Expect(err).NotTo(HaveOccurred())
			l := newTwinLab(ctx, scenario)
			_, err = twin.Play(scenario, l, l.recorder, golden)
			Expect(err).NotTo(HaveOccurred())
		}, SpecTimeout(functionalLimit))
	}
})

// twinLab is the lab as scenarios of package twin see it.
type twinLab struct {
	*space
	ctx      context.Context
	recorder *twin.Recorder
	netbox   *netboxServer
	// groups are the ServiceGroups, by their names in package twin.
	groups map[string]string
	// nodeByMAC names the nodes.
	nodeByMAC map[string]string
	askers    map[bool]*lab.Asker // of IPv4, if true, and of IPv6
	isAPIAway bool

	mu sync.Mutex
	// answeredAt says when a node last answered for an address.
	answeredAt map[answer]time.Time
}

// answer is of a node, for an address.
type answer struct {
	addr netip.Addr
	node string
}

// newTwinLab prepares the lab for a scenario, and records what happens from now on until the spec ends.
func newTwinLab(ctx context.Context, scenario twin.Scenario) *twinLab {
	GinkgoHelper()
	replaceRestartedPods(ctx)
	waitUntilReady(ctx)
	l := &twinLab{
		ctx: ctx, groups: map[string]string{}, nodeByMAC: map[string]string{}, askers: map[bool]*lab.Asker{},
		answeredAt: map[answer]time.Time{},
	}
	if scenario.HasNetBox {
		l.netbox, l.space = startNetbox(ctx)
		l.groups[twin.GroupNetBox] = l.netbox.virtualGroup(ctx, l.space)
	} else {
		l.space = newSpace(ctx)
		l.groups[twin.GroupLocal] = l.localGroup(ctx)
		l.groups[twin.GroupSingle] = l.createLocalGroup(ctx, "single", v1.PoolSet{
			V4Pools: []v1.AddressPool{l.v4Range(singleAddress, singleAddress)},
		})
		l.groups[twin.GroupVirtual] = l.createGroup(ctx, "remote", v1.ServiceGroupSpec{Remote: &v1.RemotePools{
			PoolSet: v1.PoolSet{
				V4Pools: []v1.AddressPool{{Subnet: l.virtualV4().String(), Pool: l.virtualV4().String()}},
				V6Pools: []v1.AddressPool{{Subnet: l.virtualV6().String(), Pool: l.firstVirtualV6().String() + "/126"}},
			},
		}})
	}
	DeferCleanup(l.heal, NodeTimeout(functionalLimit))
	canonical := map[string]string{}
	for name, group := range l.groups {
		canonical[group] = name
	}
	if l.netbox != nil {
		canonical["http://"+l.netbox.address] = twin.URLOfNetBox
	}
	for _, n := range testLab.Nodes() {
		l.nodeByMAC[n.MAC] = n.Name
	}
	l.recorder = twin.NewRecorder(nodeNames(), l.namespace, canonical)
	l.watch(ctx)
	l.listen()
	return l
}

// singleAddress is the number of the address of twin.GroupSingle; the next one is for when it has grown.
const singleAddress = 4

// watch passes what changes in the API on to the recorder.
func (l *twinLab) watch(ctx context.Context) {
	GinkgoHelper()
	config, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	in := func(namespace string) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	}
	kinds := map[client.Object]cache.ByObject{
		&corev1.Service{}: in(l.namespace), &eventsv1.Event{}: in(l.namespace),
		&coordinationv1.Lease{}: in(purelbNamespace),
	}
	watched, err := cache.New(config, cache.Options{Scheme: kubeClient.Scheme(), ByObject: kinds})
	Expect(err).NotTo(HaveOccurred())
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: l.see, UpdateFunc: func(_, obj any) { l.see(obj) }, DeleteFunc: l.seeDeleted,
	}
	for kind := range kinds {
		informer, err := watched.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		Expect(err).NotTo(HaveOccurred())
		_, err = informer.AddEventHandler(handler)
		Expect(err).NotTo(HaveOccurred())
	}
	watching, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- watched.Start(watching) }()
	DeferCleanup(func() {
		stop()
		Expect(<-ended).To(Succeed())
	})
	Expect(watched.WaitForCacheSync(ctx)).To(BeTrue())
	l.watchAnnouncements(config)
}

// watchAnnouncements passes Announcements on to the recorder: what a list has as a whole, as its objects are of one
// moment and the record has the order, and what changes after it one by one. When the API server is back it lists
// before a manager does anything.
func (l *twinLab) watchAnnouncements(config *rest.Config) {
	GinkgoHelper()
	config = rest.CopyConfig(config)
	config.QPS = -1 // while the API server is away
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return hasty{next} })
	api, err := client.NewWithWatch(config, client.Options{Scheme: kubeClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	watching, stop := context.WithCancel(context.Background())
	isListed, ended := make(chan struct{}), make(chan struct{})
	noteListed := sync.OnceFunc(func() { close(isListed) })
	go func() {
		defer close(ended)
		for ; watching.Err() == nil; pause(watching, watchRetry) {
			list := &v1.AnnouncementList{}
			if api.List(watching, list, client.InNamespace(purelbNamespace)) != nil {
				continue
			}
			l.recorder.SawAnnouncements(list.Items)
			noteListed()
			options := &client.ListOptions{Namespace: purelbNamespace, Raw: &metav1.ListOptions{
				ResourceVersion: list.ResourceVersion,
			}}
			changes, err := api.Watch(watching, &v1.AnnouncementList{}, options)
			if err != nil {
				continue
			}
			for change := range changes.ResultChan() {
				ann, isAnnouncement := change.Object.(*v1.Announcement)
				switch {
				case !isAnnouncement: // an error ends the watch
				case change.Type == watch.Deleted:
					l.recorder.SawAnnouncementDeleted(ann.Name)
				default:
					l.recorder.SawAnnouncement(ann)
				}
			}
		}
	}()
	DeferCleanup(func() {
		stop()
		Eventually(ended).WithTimeout(waitLimit).Should(BeClosed())
	})
	Eventually(isListed).WithContext(l.ctx).WithTimeout(waitLimit).Should(BeClosed())
}

// hasty takes no advice to wait: client-go does for seconds what the answer of an API server that starts says of that.
type hasty struct{ http.RoundTripper }

// RoundTrip sends a request.
func (h hasty) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := h.RoundTripper.RoundTrip(request)
	if response != nil {
		response.Header.Del("Retry-After")
	}
	return response, err //nolint:wrapcheck // it is the other's
}

// watchRetry is after which time Announcements are listed again.
const watchRetry = 20 * time.Millisecond

func (l *twinLab) see(obj any) {
	switch o := obj.(type) {
	case *corev1.Service:
		l.recorder.SawService(o)
	case *coordinationv1.Lease:
		if slices.Contains(nodeNames(), strings.TrimPrefix(o.Name, v1.LeasePrefix)) {
			l.recorder.SawLease(o)
		}
	case *eventsv1.Event:
		// Kubernetes itself has something to say of Services, too: the repair of cluster IPs, for example.
		if o.Regarding.Kind != "Service" || !strings.HasPrefix(o.ReportingController, "purelb-") {
			return
		}
		e := twin.Event{
			Service: o.Regarding.Name, Type: o.Type, Reason: o.Reason, Action: o.Action, Note: o.Note, At: o.EventTime.Time,
		}
		if o.Related != nil {
			e.Related = o.Related.Name
		}
		l.recorder.SawEvent(e)
	}
}

func (l *twinLab) seeDeleted(obj any) {
	if last, isUnknown := obj.(toolscache.DeletedFinalStateUnknown); isUnknown {
		obj = last.Obj
	}
	if svc, isService := obj.(*corev1.Service); isService {
		l.recorder.SawServiceDeleted(svc.Name)
	}
}

// listen listens to the link at the client.
func (l *twinLab) listen() {
	GinkgoHelper()
	listening, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	for isV4, like := range map[bool]netip.Addr{true: l.v4(0), false: l.v6(0)} {
		asker, err := lab.OpenAsker(lab.Client, like)
		Expect(err).NotTo(HaveOccurred())
		l.askers[isV4] = asker
		wait.Go(func() {
			for listening.Err() == nil {
				if heard, ok := asker.Hear(); ok {
					l.hear(heard)
				}
			}
		})
	}
	DeferCleanup(func() {
		stop()
		wait.Wait()
		for _, asker := range l.askers {
			Expect(asker.Close()).To(Succeed())
		}
	})
}

func (l *twinLab) hear(heard lab.Heard) {
	node, isNode := l.nodeByMAC[heard.MAC]
	switch {
	case !isNode:
	case heard.IsAnswer:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.answeredAt[answer{heard.Address, node}] = time.Now()
	case heard.IsToAll:
		l.recorder.SawClaim(heard.Address, node)
	}
}

// Nodes returns the names of the nodes.
func (*twinLab) Nodes() []string { return nodeNames() }

// Kernels returns the nodes whose kernels have an address.
func (l *twinLab) Kernels(addr netip.Addr) ([]string, error) {
	holders, err := testLab.Holders(l.ctx, addr)
	return slices.DeleteFunc(holders, func(host string) bool { return !slices.Contains(nodeNames(), host) }), err
}

// Answers returns the nodes that answer the client for an address.
func (l *twinLab) Answers(addr netip.Addr) ([]string, error) {
	const patience = 100 * time.Millisecond
	asked := time.Now()
	if err := l.askers[addr.Is4()].Ask(addr); err != nil {
		return nil, err
	}
	pause(l.ctx, patience)
	l.mu.Lock()
	defer l.mu.Unlock()
	var nodes []string
	for _, node := range nodeNames() {
		if l.answeredAt[answer{addr, node}].After(asked) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// restLimit is how long the lab has to come to rest as the record says.
const restLimit = 90 * time.Second

// Rest waits until the record of the step is the wanted one, for a while.
func (l *twinLab) Rest(isAsBefore func() bool) {
	for end := time.Now().Add(restLimit); time.Now().Before(end) && l.ctx.Err() == nil && !isAsBefore(); {
		pause(l.ctx, pollInterval)
	}
}

// Do does a step, and waits until programs that it starts run.
func (l *twinLab) Do(step twin.Step) error {
	By(fmt.Sprint(step.Verb, " ", step.Service.Name, " ", strings.Join(step.Nodes, " ")))
	if step.Verb == twin.SetEndpoints {
		return l.setEndpoints(step.Service.Name, step.Nodes)
	}
	for _, node := range step.Nodes {
		if err := l.doOn(node, step); err != nil {
			return err
		}
	}
	if len(step.Nodes) > 0 {
		return nil
	}
	return l.do(step)
}

// do does a step that is about no node.
func (l *twinLab) do(step twin.Step) error {
	switch step.Verb {
	case twin.CreateService:
		return kubeClient.Create(l.ctx, l.serviceOf(step.Service))
	case twin.DeleteService:
		object := metav1.ObjectMeta{Namespace: l.namespace, Name: step.Service.Name}
		return errors.Join(
			kubeClient.Delete(l.ctx, &corev1.Service{ObjectMeta: object}),
			client.IgnoreNotFound(kubeClient.Delete(l.ctx, &discoveryv1.EndpointSlice{ObjectMeta: object})),
		)
	case twin.EditFamilies:
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: step.Service.Name}}
		policy := familyPolicyOf(step.Service.Families)
		return kubeClient.Patch(l.ctx, svc, client.RawPatch(
			"application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"ipFamilyPolicy":%q}}`, policy),
		))
	case twin.GrowGroup:
		group := &v1.ServiceGroup{}
		key := client.ObjectKey{Namespace: purelbNamespace, Name: l.groups[twin.GroupSingle]}
		if err := kubeClient.Get(l.ctx, key, group); err != nil {
			return err
		}
		group.Spec.Local.V4Pools = []v1.AddressPool{l.v4Range(singleAddress, singleAddress+1)}
		return kubeClient.Update(l.ctx, group)
	case twin.HandOverCordoned:
		setOnUnschedulable(l.ctx, v1.UnschedulableHandOver)
	case twin.IgnoreCordoned:
		setOnUnschedulable(l.ctx, v1.UnschedulableIgnore)
	case twin.StopAPI:
		l.isAPIAway = true
		return testLab.StopControlPlane(l.ctx)
	case twin.StartAPI:
		l.isAPIAway = false
		started := time.Now()
		if err := testLab.StartControlPlane(l.ctx); err != nil {
			return err
		}
		l.waitUntilLed(started)
	case twin.KillLeader:
		_, node := waitForLeader(l.ctx)
		Expect(killProgram(l.ctx, node, "manager")).To(BeTrue(), "a manager on %s", node)
	case twin.KillManagers:
		killed := 0
		for _, node := range nodeNames() {
			if killProgram(l.ctx, node, "manager") {
				killed++
			}
		}
		Expect(killed).To(BeNumerically(">", 0), "nodes with managers")
	case twin.StopNetBox:
		l.netbox.stop()
	case twin.StartNetBox:
		l.netbox.start()
	case twin.Stay:
		pause(l.ctx, step.While)
	default:
		return fmt.Errorf("the lab cannot do %q", step.Verb)
	}
	return nil
}

// doOn does a step that is about a node.
func (l *twinLab) doOn(node string, step twin.Step) error {
	switch step.Verb {
	case twin.Exclude, twin.Include:
		setExcluded(l.ctx, step.Verb == twin.Exclude, node)
	case twin.Drain, twin.Undrain:
		out, code := runPlugin(l.ctx, strings.Fields(string(step.Verb))[2], node)
		Expect(code).To(BeZero(), out)
	case twin.Cordon, twin.Uncordon:
		kubectl(l.ctx, string(step.Verb), node)
	case twin.AskForHandover:
		svc := &corev1.Service{}
		key := client.ObjectKey{Namespace: l.namespace, Name: step.Service.Name}
		if err := kubeClient.Get(l.ctx, key, svc); err != nil {
			return err
		}
		kubectl(l.ctx, "annotate", "node", node, v1.AnnotationHandover+"="+svc.Status.LoadBalancer.Ingress[0].IP)
	case twin.StopAskingForHandover:
		kubectl(l.ctx, "annotate", "node", node, v1.AnnotationHandover+"-")
	case twin.TaintOutOfService:
		kubectl(l.ctx, "taint", "node", node, outOfServiceTaint)
	case twin.Untaint:
		kubectl(l.ctx, "taint", "node", node, outOfServiceTaint+"-")
	case twin.PowerOff:
		return testLab.PowerOff(l.ctx, node)
	case twin.PowerOn:
		return l.andBack(testLab.PowerOn(l.ctx, node))
	case twin.LoseCarrier:
		return testLab.CutLink(l.ctx, node)
	case twin.RegainCarrier:
		return l.andBack(testLab.HealLink(l.ctx, node))
	case twin.Unplug:
		return testLab.UnplugPort(l.ctx, node)
	case twin.Plug:
		return l.andBack(testLab.PlugPort(l.ctx, node))
	case twin.CutAPI:
		return testLab.CutAPI(l.ctx, node)
	case twin.HealAPI:
		return l.andBack(testLab.HealAPI(l.ctx, node))
	case twin.KillAgent:
		l.killAgent(node)
	case twin.ReplaceAgent:
		l.replaceAgent(node)
	case twin.StopAgent:
		signalKubelet(l.ctx, node, "STOP")
		Expect(killProgram(l.ctx, node, "agent")).To(BeTrue(), "an agent on %s", node)
	case twin.StartAgent:
		signalKubelet(l.ctx, node, "CONT")
		return l.andBack(nil)
	default:
		return fmt.Errorf("the lab cannot do %q", step.Verb)
	}
	return nil
}

// outOfServiceTaint is what kubectl puts on a node that is out of service.
const outOfServiceTaint = corev1.TaintNodeOutOfService + "=nodeshutdown:NoExecute"

// andBack waits, unless there is an error, until all nodes and programs are ready.
func (l *twinLab) andBack(err error) error {
	GinkgoHelper()
	if err == nil {
		waitUntilReady(l.ctx)
	}
	return err
}

// waitUntilLed waits until a manager that leads has renewed its Lease after a time, a second after it began to lead at
// the earliest: one that has just begun does not know yet which Services there are.
func (l *twinLab) waitUntilLed(since time.Time) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		lease := &coordinationv1.Lease{}
		key := client.ObjectKey{Namespace: purelbNamespace, Name: managerLease}
		g.Expect(kubeClient.Get(l.ctx, key, lease)).To(Succeed())
		g.Expect(lease.Spec.RenewTime).NotTo(BeNil())
		g.Expect(lease.Spec.AcquireTime).NotTo(BeNil())
		g.Expect(lease.Spec.RenewTime.Time).To(BeTemporally(">", since))
		g.Expect(lease.Spec.RenewTime.Time).To(BeTemporally(">", lease.Spec.AcquireTime.Add(time.Second)))
		findLeader(l.ctx, g)
	}).WithContext(l.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// signalKubelet sends a signal to the kubelet of a node.
func signalKubelet(ctx context.Context, node, signal string) {
	GinkgoHelper()
	_, err := testLab.NodeExec(ctx, node, "pkill", "-"+signal, "-f", "kube kubelet")
	Expect(err).NotTo(HaveOccurred(), "the kubelet of %s", node)
}

// killAgent kills the agent of a node, and waits until another one runs.
func (l *twinLab) killAgent(node string) {
	GinkgoHelper()
	pidOf := func() string {
		pid, _ := testLab.NodeExec(l.ctx, node, "pgrep", "-f", "^/purelb agent")
		return strings.TrimSpace(pid)
	}
	old := pidOf()
	Expect(killProgram(l.ctx, node, "agent")).To(BeTrue(), "an agent on %s", node)
	Eventually(pidOf).WithContext(l.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
		Not(Or(BeEmpty(), Equal(old))), "the next agent of %s", node,
	)
	if !l.isAPIAway {
		waitUntilReady(l.ctx)
	}
}

// replaceAgent deletes the pod of a node's agent, and waits until the next one is ready.
func (l *twinLab) replaceAgent(node string) {
	GinkgoHelper()
	for _, pod := range listPods(l.ctx, Default, agentName) {
		if pod.Spec.NodeName != node {
			continue
		}
		Expect(kubeClient.Delete(l.ctx, &pod)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(listPods(l.ctx, g, agentName)).NotTo(ContainElement(HaveField("UID", pod.UID)))
		}).WithContext(l.ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	}
	waitUntilReady(l.ctx)
}

// familyPolicyOf is that of a Service with addresses of some families.
func familyPolicyOf(families []corev1.IPFamily) corev1.IPFamilyPolicy {
	if len(families) > 1 {
		return corev1.IPFamilyPolicyRequireDualStack
	}
	return corev1.IPFamilyPolicySingleStack
}

// serviceOf returns a Service as the API has it.
func (l *twinLab) serviceOf(s twin.Service) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: s.Name, Annotations: map[string]string{v1.AnnotationServiceGroup: l.groups[s.Group]},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: s.Families, IPFamilyPolicy: ptr.To(familyPolicyOf(s.Families)),
			Ports: []corev1.ServicePort{{Port: max(s.Port, 80)}},
		},
	}
	if s.IsPolicyLocal || s.WritesPolicyLocal {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.IsPolicyLocal {
		svc.Annotations[v1.AnnotationAllowLocal] = "true"
	}
	if s.SharingKey != "" {
		svc.Annotations[v1.AnnotationAllowSharedIP] = s.SharingKey
	}
	return svc
}

// setEndpoints gives a Service ready IPv4 endpoints on nodes, which do not answer, and no others.
func (l *twinLab) setEndpoints(service string, nodes []string) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](echoPort)}},
	}
	for i, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("192.0.2.%d", i+1)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	have := &discoveryv1.EndpointSlice{}
	err := kubeClient.Get(l.ctx, client.ObjectKeyFromObject(slice), have)
	if err == nil {
		slice.ResourceVersion = have.ResourceVersion
		return kubeClient.Update(l.ctx, slice)
	}
	return errors.Join(client.IgnoreNotFound(err), kubeClient.Create(l.ctx, slice))
}

// heal undoes, after a spec that has failed, what scenarios do.
func (l *twinLab) heal(ctx SpecContext) {
	if !CurrentSpecReport().Failed() {
		return
	}
	Expect(testLab.StartControlPlane(ctx)).To(Succeed())
	for _, node := range nodeNames() {
		Expect(testLab.PowerOn(ctx, node)).To(Succeed())
		Expect(testLab.PlugPort(ctx, node)).To(Succeed())
		_ = testLab.HealAPI(ctx, node)                                             // it may not be cut
		_, _ = testLab.NodeExec(ctx, node, "pkill", "-CONT", "-f", "kube kubelet") // it may be about to start
		setExcluded(ctx, false, node)
		kubectl(ctx, "uncordon", node)
		kubectl(ctx, "annotate", "node", node, v1.AnnotationHandover+"-")
		_, _ = tryKubectl(ctx, "taint", "node", node, outOfServiceTaint+"-") // it may have none
	}
}
