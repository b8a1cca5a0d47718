package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
)

const (
	purelbNamespace = "purelb-system" // where PureLB is installed
	echoPort        = 8080            // of the echo servers
	// waitLimit is how long the tests wait for something that takes a moment on an idle machine.
	waitLimit    = time.Minute
	pollInterval = 100 * time.Millisecond
	// smokeLimit and functionalLimit bound a spec that waits for several things, one after
	// the other.
	smokeLimit      = 6 * time.Minute
	functionalLimit = 10 * time.Minute
)

// smokeLabel marks the specs of the gate. They say what happens, and never how fast.
const smokeLabel = "smoke"

// proofLabel marks the specs that measure, in trials. Each also has one of the topics.
const proofLabel = "proof"

// Topics of the specs that measure.
const (
	failoverTopic = "failover"
	handoverTopic = "handover"
	outageTopic   = "outage"
	rolloutTopic  = "rollout"
	upgradeTopic  = "upgrade"
	bgpTopic      = "bgp"
	ipamTopic     = "ipam"
	watchingTopic = "watching"
)

// restoreLabel marks the spec after which most of the cluster's programs go on from a state that
// is no more: make test-restore runs it in a lab of its own.
const restoreLabel = "restore"

// proxyLabel marks the specs that make test-proxies runs with kube-proxy in each mode: those
// in which traffic depends on what kube-proxy does.
const proxyLabel = "proxy"

// Specs with these priorities are the last. They take PureLB away, and install it anew.
const (
	reinstallPriority = SpecPriority(-10)
	removalPriority   = SpecPriority(-20)
)

// defaultSeed orders the containers of specs, the same way each time.
const defaultSeed = 1

var (
	testLab    *lab.Lab
	kubeClient client.Client
	// kubectlProgram is the kubectl that the tests run; if empty, that of the lab.
	kubectlProgram = flag.String("kubectl", "", "path of the kubectl to test with; by default that of the lab")
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	ctrllog.SetLogger(GinkgoLogr) // clients give warnings of admission to it
	suite, reporter := GinkgoConfiguration()
	isSet := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { isSet[f.Name] = true })
	if !isSet["ginkgo.seed"] {
		suite.RandomSeed = defaultSeed
		if text := os.Getenv("PURELB_TEST_SEED"); text != "" {
			seed, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatalf("PURELB_TEST_SEED is not a number: %v", err)
			}
			suite.RandomSeed = seed
		}
	}
	t.Logf("PURELB_TEST_SEED=%d orders the specs", suite.RandomSeed)
	// Ginkgo interrupts a spec, cleans up and reports; Go only panics when its time is over.
	if deadline, ok := t.Deadline(); ok {
		suite.Timeout = min(suite.Timeout, time.Until(deadline)-interruptLimit)
	}
	// Ginkgo matches a focus with the name of the suite and the text of a spec. Here a focus that
	// begins with ^ is about the text, so that one spec can be named exactly.
	for i, focus := range suite.FocusStrings {
		if text, isAnchored := strings.CutPrefix(focus, "^"); isAnchored && !strings.HasPrefix(text, suiteName) {
			suite.FocusStrings[i] = "^" + suiteName + " " + text
		}
	}
	suite.FailOnEmpty = true // a filter that fits no spec shows nothing
	RunSpecs(t, suiteName, suite, reporter)
}

const suiteName = "PureLB in the lab"

// interruptLimit is how long before Go's time limit Ginkgo interrupts the suite: cleanup and the
// collection of evidence of one spec take less.
const interruptLimit = 8 * time.Minute

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	testLab, err = lab.Open(lab.DefaultStateDir)
	Expect(err).NotTo(HaveOccurred(), "the lab is not up: run make test-e2e, or make lab-up first")
	if *kubectlProgram == "" {
		*kubectlProgram = testLab.Kubectl()
	}
	config, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1 // no limit but the API server's
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	Eventually(func() error { return testLab.Check(ctx) }).WithContext(ctx).WithTimeout(waitLimit).WithPolling(
		pollInterval,
	).Should(Succeed())
	kubeClient, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	stop, err := startCapture()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })
	isUp := false
	defer func() {
		if !isUp {
			collectEvidence(ctx, "BeforeSuite")
		}
	}()

	By("installing PureLB as its README says")
	deployPureLB(ctx)
	if gates := os.Getenv("E2E_FEATURE_GATES"); gates != "" {
		setFeatureGates(ctx, gates)
		waitUntilReady(ctx)
	}
	By("removing what an earlier run has left")
	removeSpaces(ctx)

	By("waiting until pods of all nodes answer by IPv4 and IPv6")
	s := &space{namespace: "e2e-begin"}
	Eventually(func() error {
		return kubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
		Succeed(), "an earlier run's namespace may be ending",
	)
	Expect(kubeClient.Create(ctx, echo.Deployment(s.namespace, lab.EchoImage))).To(Succeed())
	waitForServers(ctx, s.namespace)
	Expect(kubeClient.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})).To(Succeed())
	isUp = true
}, NodeTimeout(12*time.Minute))

// Before each spec PureLB is at rest, whatever the spec before has done.
var _ = BeforeEach(func(ctx SpecContext) { waitUntilReady(ctx) }, NodeTimeout(5*time.Minute))

// deployPureLB installs PureLB and its samples, and waits until it is at rest.
func deployPureLB(ctx context.Context) {
	GinkgoHelper()
	retryKubectl(ctx, "apply", "-k", "../../config/default")
	kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s")
	retryKubectl(ctx, "apply", "-k", "../../config/samples")
	retryKubectl(ctx, "apply", "-k", "../../config/samples/pool")
	kubectl(ctx, "-n", purelbNamespace, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=180s")
	waitUntilReady(ctx)
}

// waitUntilReady waits until PureLB is at rest: all nodes are Ready; both managers and all
// agents are, and no others end; a manager leads; the agents' Leases are fresh; and the webhooks
// answer.
func waitUntilReady(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, name := range nodeNames() {
			node := &corev1.Node{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			g.Expect(isNodeReady(node)).To(BeTrue(), "%s is NotReady", name)
			g.Expect(node.Spec.Taints).To(BeEmpty(), "taints of %s", name)
		}
		expectReadyPods(ctx, g, managerName, 2)
		expectReadyPods(ctx, g, agentName, len(nodeNames()))
		leader, _ := findLeader(ctx, g)
		g.Expect(leader).NotTo(BeEmpty(), "no manager leads")
		for _, name := range nodeNames() {
			lease := &coordinationv1.Lease{}
			g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + name}, lease)).
				To(Succeed())
			duration := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
			g.Expect(lease.Spec.RenewTime).NotTo(BeNil(), "Lease of %s", name)
			g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", duration), "Lease of %s", name)
		}
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	Eventually(func() error {
		return kubeClient.Create(ctx, newServiceGroup("asked", "198.51.100.1"), client.DryRunAll)
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(20 * time.Millisecond).MustPassRepeatedly(5).Should(Succeed())
}

// isNodeReady reports whether a Node says that it is Ready.
func isNodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Names by which pods of PureLB's programs are labelled.
const (
	managerName = "purelb-manager"
	agentName   = "purelb-agent"
	speakerName = "purelb-speaker"
)

// listPods returns the pods of a program of PureLB, also those that are ending.
func listPods(ctx context.Context, g Gomega, name string) []corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	g.Expect(kubeClient.List(
		ctx, pods, client.InNamespace(purelbNamespace), client.MatchingLabels{"app.kubernetes.io/name": name},
	)).To(Succeed())
	return pods.Items
}

// expectReadyPods checks that a program of PureLB has so many pods, which are ready, and that
// none of its pods is ending.
func expectReadyPods(ctx context.Context, g Gomega, name string, count int) {
	GinkgoHelper()
	pods := listPods(ctx, g, name)
	g.Expect(pods).To(HaveLen(count), "pods of %s", name)
	for _, p := range pods {
		g.Expect(p.DeletionTimestamp).To(BeNil(), "%s is ending", p.Name)
		g.Expect(slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})).To(BeTrue(), "%s is not ready", p.Name)
	}
}

// After a failed test evidence is collected, before anything is cleaned up.
var _ = JustAfterEach(func(ctx SpecContext) {
	if CurrentSpecReport().Failed() {
		collectEvidence(ctx, CurrentSpecReport().FullText())
	}
}, NodeTimeout(evidenceLimit+time.Minute))

// All failures of a spec are kept, also those of its cleanup.
var _ = ReportAfterEach(func(report SpecReport) {
	if report.Failed() {
		writeFailures(report)
	}
})

// At the end all failures are printed once more, without the log around them, and how long
// each spec took.
var _ = ReportAfterSuite("what failed", func(report Report) {
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType.Is(types.NodeTypeIt) && spec.State != types.SpecStateSkipped &&
			spec.State != types.SpecStatePending {
			fmt.Printf("%6.1f s  %s  %s\n", spec.RunTime.Seconds(), spec.State, spec.FullText())
		}
	}
	for _, spec := range report.SpecReports {
		if spec.State == types.SpecStateSkipped && spec.Failure.Message != "" { // not only left out by a filter
			fmt.Printf("SKIPPED: %s\n    %s\n", spec.FullText(), spec.Failure.Message)
		}
		if spec.Failed() {
			fmt.Print(describeFailures(spec))
		}
	}
})

// kubectl runs kubectl in the lab, and returns what it prints.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), "kubectl %s: %s", strings.Join(args, " "), out)
	return out
}

// tryKubectl runs kubectl as kubectl does, but lets the caller judge a failure.
func tryKubectl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, *kubectlProgram,
		append([]string{"--kubeconfig", testLab.Kubeconfig()}, args...)...).CombinedOutput()
	return string(out), err
}

// retryKubectl runs kubectl until it succeeds, for a while: after a test that cut a node or the
// API server off, that node's manager restarts, and the API server may still call its webhook.
func retryKubectl(ctx context.Context, args ...string) {
	GinkgoHelper()
	Eventually(func() error {
		out, err := tryKubectl(ctx, args...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// waitForAddresses waits until the Service has n addresses, and returns them.
func waitForAddresses(ctx context.Context, svc *corev1.Service, n int) []netip.Addr {
	GinkgoHelper()
	var addrs []netip.Addr
	Eventually(func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		addrs = nil
		for _, in := range svc.Status.LoadBalancer.Ingress {
			g.Expect(in.IPMode).To(HaveValue(Equal(corev1.LoadBalancerIPModeVIP)))
			addrs = append(addrs, netip.MustParseAddr(in.IP))
		}
		g.Expect(addrs).To(HaveLen(n))
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return addrs
}

// findPlaces returns which interfaces of nodes have an address, as "node/interface prefix".
func findPlaces(ctx context.Context, address netip.Addr) ([]string, error) {
	var found []string
	for _, node := range nodeNames() {
		addrs, err := testLab.Addresses(ctx, node)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if a.Prefix.Addr() == address {
				found = append(found, fmt.Sprintf("%s/%s %s", node, a.Link, a.Prefix))
			}
		}
	}
	return found, nil
}

// fetchTimeout is much longer than an answer takes, also on a busy machine, and when the first
// packet of a connection is lost and sent again after a second.
const fetchTimeout = 3 * time.Second

// fetch gets the echo page of an address from a host of the lab.
func fetch(ctx context.Context, host string, address netip.Addr) (string, error) {
	return fetchPort(ctx, host, netip.AddrPortFrom(address, 80))
}

// fetchPort gets the echo page as fetch does, from any port.
func fetchPort(ctx context.Context, host string, at netip.AddrPort) (string, error) {
	return fetchWithin(ctx, host, at, fetchTimeout)
}

// fetchWithin gets the echo page as fetchPort does, within a time.
func fetchWithin(ctx context.Context, host string, at netip.AddrPort, limit time.Duration) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := testLab.HTTPClient(host, limit).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// waitForAnswer waits until an address answers a host, and returns the page.
func waitForAnswer(ctx context.Context, host string, address netip.Addr) string {
	GinkgoHelper()
	return waitForAnswerOnPort(ctx, host, address, 80)
}

// waitForAnswerOnPort waits until a port of an address answers a host, and returns the page.
func waitForAnswerOnPort(ctx context.Context, host string, address netip.Addr, port int32) (page string) {
	GinkgoHelper()
	at := netip.AddrPortFrom(address, uint16(port))
	Eventually(func() (string, error) {
		var err error
		page, err = fetchPort(ctx, host, at)
		return page, err
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(
		ContainSubstring("pod="), "%s from %s", at, host,
	)
	return page
}

// getAnnouncement returns the Announcement of a node.
func getAnnouncement(ctx context.Context, node string) (*v1.Announcement, error) {
	a := &v1.Announcement{}
	err := kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: node}, a)
	return a, err
}

// nodeNames returns the names of the lab's nodes.
func nodeNames() []string {
	var names []string
	for _, n := range testLab.Nodes() {
		names = append(names, n.Name)
	}
	return names
}

// singleStack makes a Service ask for one address only.
func singleStack(svc *corev1.Service) {
	svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
}
