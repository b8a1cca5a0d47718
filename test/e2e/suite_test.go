package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
)

const (
	purelbNamespace = "purelb-system" // where PureLB is installed
	testNamespace   = "e2e"           // where the tests' Services are
	waitLimit       = 20 * time.Second
	pollInterval    = 50 * time.Millisecond
)

// proxyLabel marks the specs that make test-proxies runs with kube-proxy in each mode: those
// in which traffic depends on what kube-proxy does.
const proxyLabel = "proxy"

var (
	testLab    *lab.Lab
	kubeClient client.Client
	// kubectlProgram is the kubectl that the tests run; if empty, that of the lab.
	kubectlProgram = flag.String("kubectl", "", "path of the kubectl to test with; by default that of the lab")
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "PureLB in the lab")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	testLab, err = lab.Open(lab.DefaultStateDir)
	Expect(err).NotTo(HaveOccurred(), "the lab is not up: run make test-e2e, or make lab-up first")
	Expect(testLab.Check(ctx)).To(Succeed())
	if *kubectlProgram == "" {
		*kubectlProgram = testLab.Kubectl()
	}

	config, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1 // no limit but the API server's
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	kubeClient, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	By("installing PureLB as its README says")
	deployPureLB(ctx)

	By("starting three echo servers")
	Expect(client.IgnoreAlreadyExists(kubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}))).To(Succeed())
	Expect(client.IgnoreAlreadyExists(kubeClient.Create(ctx, echo.Deployment(testNamespace, lab.EchoImage)))).To(Succeed())
	kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/echo", "--timeout=120s")
}, NodeTimeout(5*time.Minute))

// deployPureLB installs PureLB and its samples, and waits until its agents run.
func deployPureLB(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "apply", "-k", "../../config/default")
	kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
	kubectl(ctx, "apply", "-k", "../../config/samples")
	kubectl(ctx, "-n", purelbNamespace, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=120s")
}

// After a failed test the state of the cluster is printed, before it is cleaned up.
var _ = JustAfterEach(func(ctx SpecContext) {
	if !CurrentSpecReport().Failed() {
		return
	}
	for _, args := range [][]string{
		{"get", "servicegroups,lbnodeagents,announcements,commonannouncements,leases,pods", "-n", purelbNamespace, "-o", "wide"},
		{"get", "announcements", "-n", purelbNamespace, "-o", "yaml"},
		{"describe", "services", "-n", testNamespace},
		{"logs", "-n", purelbNamespace, "-l", "app.kubernetes.io/part-of=purelb", "--prefix", "--tail=60"},
	} {
		out, _ := tryKubectl(ctx, args...)
		GinkgoWriter.Printf("$ kubectl %s\n%s\n", strings.Join(args, " "), out)
	}
}, NodeTimeout(time.Minute))

// At the end all failures are printed once more, without the log around them.
var _ = ReportAfterSuite("what failed", func(report Report) {
	for _, spec := range report.SpecReports {
		if spec.Failed() {
			fmt.Printf("FAILED: %s\n    at %s\n    %s\n", spec.FullText(), spec.Failure.Location, strings.ReplaceAll(spec.Failure.Message, "\n", "\n    "))
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
	out, err := exec.CommandContext(ctx, *kubectlProgram, append([]string{"--kubeconfig", testLab.Kubeconfig()}, args...)...).CombinedOutput()
	return string(out), err
}

// createService creates a Service of the echo servers that asks for addresses of a
// ServiceGroup, and deletes it when the test ends.
func createService(ctx context.Context, name, group string, change ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: testNamespace,
			Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeLoadBalancer,
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Selector:       map[string]string{"app": "echo"},
			Ports:          []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	Expect(kubeClient.Create(ctx, svc)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(kubeClient.Delete(ctx, svc))).To(Succeed())
	}, NodeTimeout(waitLimit))
	return svc
}

// applyGroup applies a ServiceGroup, and deletes it when the test ends.
func applyGroup(ctx context.Context, file string) {
	GinkgoHelper()
	path := filepath.Join("testdata", file)
	retryKubectl(ctx, "apply", "-f", path)
	DeferCleanup(func(ctx SpecContext) { retryKubectl(ctx, "delete", "--ignore-not-found", "-f", path) }, NodeTimeout(2*waitLimit))
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

// fetchTimeout is much longer than an answer takes, and short enough for the next attempt
// to come soon after one that was sent to a pod of a dead node.
const fetchTimeout = 300 * time.Millisecond

// fetch gets the echo page of an address from a host of the lab.
func fetch(ctx context.Context, host string, address netip.Addr) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(address, 80).String()+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := testLab.HTTPClient(host, fetchTimeout).Do(request)
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

// waitForAnswer waits until an address answers a host.
func waitForAnswer(ctx context.Context, host string, address netip.Addr, within time.Duration) {
	GinkgoHelper()
	Eventually(func() (string, error) { return fetch(ctx, host, address) }).
		WithContext(ctx).WithTimeout(within).WithPolling(pollInterval).Should(ContainSubstring("pod="), "%s from %s", address, host)
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
