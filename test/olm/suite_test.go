package olm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/operator-framework/api/crds"
	operatorsv1 "github.com/operator-framework/api/pkg/operators/v1"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
)

const (
	root            = "../../"
	prepared        = root + "dist/olm/" // where prepare.sh writes
	purelbNamespace = "purelb-system"    // where OLM installs PureLB
	testNamespace   = "olm-test"         // where the Services are
	pollInterval    = 100 * time.Millisecond
	// soon is for what PureLB does, and later for what takes OLM several rounds.
	soon  = time.Minute
	later = 4 * time.Minute
)

var (
	testLab    *lab.Lab
	kubeClient client.Client
)

func TestOLM(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyPollingInterval(pollInterval)
	RunSpecs(t, "PureLB with OLM in the lab")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	testLab, err = lab.Open(lab.DefaultStateDir)
	Expect(err).NotTo(HaveOccurred(), "the lab is not up: run make test-olm")
	Expect(testLab.Check(ctx)).To(Succeed())
	config, err := clientcmd.BuildConfigFromFlags("", testLab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1 // no limit but the API server's
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1.AddToScheme, v1alpha1.AddToScheme, operatorsv1.AddToScheme,
		apiextensionsv1.AddToScheme,
	} {
		Expect(add(scheme)).To(Succeed())
	}
	kubeClient, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	installOLM(ctx)
	kubectl(ctx, "apply", "-f", "testdata/echo.yaml")
	kubectl(ctx, "-n", testNamespace, "rollout", "status", "deployment/echo", "--timeout=120s")
}, NodeTimeout(10*time.Minute))

// installOLM installs OLM and its catalogue, and waits until OLM reads the catalogue.
func installOLM(ctx context.Context) {
	GinkgoHelper()
	began := time.Now()
	for _, crd := range []*apiextensionsv1.CustomResourceDefinition{
		crds.CatalogSource(), crds.ClusterServiceVersion(), crds.InstallPlan(), crds.OLMConfig(),
		crds.OperatorCondition(), crds.OperatorGroup(), crds.Operator(), crds.Subscription(),
	} {
		Expect(kubeClient.Create(ctx, crd)).To(Succeed())
		eventually(ctx, soon, func(g Gomega) { // kubectl wait fails while there are no conditions at all
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
			g.Expect(crd.Status.Conditions).
				To(ContainElement(And(
					HaveField("Type", apiextensionsv1.Established), HaveField("Status", apiextensionsv1.ConditionTrue),
				)))
		})
	}
	var images struct{ OLM, OPM string }
	readJSON(prepared+"images.json", &images)
	manifests, err := os.ReadFile("testdata/olm.yaml")
	Expect(err).NotTo(HaveOccurred())
	manifests = []byte(strings.NewReplacer("IMAGE_OLM", images.OLM, "IMAGE_OPM", images.OPM).Replace(string(manifests)))
	apply(ctx, string(manifests))
	kubectl(ctx, "-n", "olm", "create", "configmap", "catalog", "--from-file="+prepared+"catalog/purelb.yaml")
	for _, name := range []string{"olm-operator", "catalog-operator", "catalog"} {
		kubectl(ctx, "-n", "olm", "rollout", "status", "deployment/"+name, "--timeout=180s")
	}
	kubectl(ctx, "apply", "-f", "testdata/catalogsource.yaml")
	eventually(ctx, later, func(g Gomega) {
		catalog := &v1alpha1.CatalogSource{}
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: "olm", Name: "purelb"}, catalog)).To(Succeed())
		g.Expect(catalog.Status.GRPCConnectionState).NotTo(BeNil())
		g.Expect(catalog.Status.GRPCConnectionState.LastObservedState).To(Equal("READY"))
	})
	report("OLM %s reads its catalogue", images.OLM, began)
}

// report writes what took how long.
func report(format, what string, began time.Time) {
	fmt.Printf("== "+format+": %s\n", what, time.Since(began).Round(100*time.Millisecond))
}

func readJSON(path string, into any) {
	GinkgoHelper()
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred(), "make test-olm builds it")
	Expect(json.Unmarshal(data, into)).To(Succeed())
}

// eventually waits until check holds.
func eventually(ctx context.Context, within time.Duration, check func(Gomega), description ...any) {
	GinkgoHelper()
	Eventually(check).WithContext(ctx).WithTimeout(within).Should(Succeed(), description...)
}

// kubectl runs kubectl in the lab, and returns what it prints.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), "kubectl %s: %s", strings.Join(args, " "), out)
	return out
}

// tryKubectl runs kubectl as kubectl does, but lets the caller judge a failure.
func tryKubectl(ctx context.Context, args ...string) (string, error) {
	return runKubectl(ctx, "", args...)
}

func runKubectl(ctx context.Context, input string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, testLab.Kubectl(),
		append([]string{"--kubeconfig", testLab.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}

// apply applies manifests.
func apply(ctx context.Context, manifests string) {
	GinkgoHelper()
	out, err := runKubectl(ctx, manifests, "apply", "--server-side", "-f", "-")
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// After a failed test the state of the cluster is printed, before it is cleaned up.
var _ = JustAfterEach(func(ctx SpecContext) {
	if !CurrentSpecReport().Failed() {
		return
	}
	for _, args := range [][]string{
		{
			"get",
			"subscriptions,installplans,clusterserviceversions,jobs,pods,leases,lbnodeagents,announcements,serviceaccounts",
			"-n", purelbNamespace, "-o", "wide",
		},
		{"get", "pods,jobs,catalogsources", "-n", "olm", "-o", "wide"},
		{"describe", "services", "-n", testNamespace},
		{"describe", "clusterserviceversions,installplans", "-n", purelbNamespace},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"logs", "-n", purelbNamespace, "-l", "app.kubernetes.io/part-of=purelb", "--prefix", "--tail=60"},
		{"logs", "-n", "olm", "deployment/olm-operator", "--tail=40"},
		{"logs", "-n", "olm", "deployment/catalog-operator", "--tail=40"},
	} {
		out, _ := tryKubectl(ctx, args...)
		fmt.Printf("$ kubectl %s\n%s\n", strings.Join(args, " "), out)
	}
}, NodeTimeout(time.Minute))

// createService creates a Service of the echo servers with an address of each family.
func createService(ctx context.Context, name string) *corev1.Service {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: testNamespace, Annotations: map[string]string{v1.AnnotationServiceGroup: "localdual"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Selector: map[string]string{"app": "echo"}, Ports: []corev1.ServicePort{
				{Port: 80, TargetPort: intstr.FromInt32(8080)},
			},
		},
	}
	Expect(kubeClient.Create(ctx, svc)).To(Succeed())
	return svc
}

// waitForAnswers waits until a Service has two addresses, which its condition says are
// announced, and which answer the clients on and off the link. It returns the addresses.
func waitForAnswers(ctx context.Context, svc *corev1.Service) []netip.Addr {
	GinkgoHelper()
	var addresses []netip.Addr
	eventually(ctx, soon, func(g Gomega) {
		g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(svc), svc)).To(Succeed())
		addresses = nil
		for _, in := range svc.Status.LoadBalancer.Ingress {
			addresses = append(addresses, netip.MustParseAddr(in.IP))
		}
		g.Expect(addresses).To(HaveLen(2))
		g.Expect(svc.Status.Conditions).
			To(ContainElement(And(HaveField("Type", v1.ConditionAnnounced), HaveField("Status", metav1.ConditionTrue))))
	})
	expectAnswers(ctx, addresses)
	return addresses
}

// expectAnswers waits until addresses answer the clients on and off the link.
func expectAnswers(ctx context.Context, addresses []netip.Addr) {
	GinkgoHelper()
	for _, address := range addresses {
		for _, host := range []string{lab.Client, lab.Far} {
			Eventually(func() (string, error) { return fetch(ctx, host, address) }).
				WithContext(ctx).WithTimeout(soon).Should(ContainSubstring("pod="), "%s from %s", address, host)
		}
	}
}

// fetch gets the echo page of an address from a host of the lab.
func fetch(ctx context.Context, host string, address netip.Addr) (string, error) {
	request, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "http://"+netip.AddrPortFrom(address, 80).String()+"/", nil,
	)
	if err != nil {
		return "", err
	}
	response, err := testLab.HTTPClient(host, time.Second).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// holders returns which nodes have an address.
func holders(ctx context.Context, address netip.Addr) []string {
	GinkgoHelper()
	hosts, err := testLab.Holders(ctx, address)
	Expect(err).NotTo(HaveOccurred())
	return hosts
}

// underLoad does something while requests are made to addresses from the clients on and off
// the link, and expects that none fails and that the addresses stay where they are.
func underLoad(ctx context.Context, what string, addresses []netip.Addr, do func()) {
	GinkgoHelper()
	before := map[netip.Addr][]string{}
	var meters []*lab.Meter
	for _, address := range addresses {
		before[address] = holders(ctx, address)
		for _, host := range []string{lab.Client, lab.Far} {
			meter, err := testLab.Measure(ctx, host, address)
			Expect(err).NotTo(HaveOccurred())
			meters = append(meters, meter)
		}
	}
	began := time.Now()
	do()
	took := time.Since(began).Round(100 * time.Millisecond)
	requests, failed := 0, 0
	var first error
	for i, meter := range meters {
		record, err := meter.Stop()
		Expect(err).NotTo(HaveOccurred())
		f := record.Figures()
		requests, failed = requests+f.Requests, failed+f.Failed+f.InFlight
		if f.FirstError != nil {
			fmt.Printf("== %s: meter %d of %d: %d failed, the first after %s; longest time without an answer %s by HTTP, %s "+
				"by ARP or ND; %d changes of the node\n",
				what, i+1, len(meters), f.Failed+f.InFlight, f.FirstFailure, f.Outage, f.Silence, f.Changes)
		}
		if first == nil {
			first = f.FirstError
		}
	}
	fmt.Printf("== %s: %s, %d of %d requests failed\n", what, took, failed, requests)
	Expect(failed).To(BeZero(), "of %d requests; the first: %v", requests, first)
	for address, nodes := range before {
		Expect(holders(ctx, address)).To(Equal(nodes), "%s has moved", address)
	}
}
