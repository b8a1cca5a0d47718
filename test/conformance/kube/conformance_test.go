// Package kube has a test that runs those of Kubernetes' own end-to-end tests that are
// about networking. make test-conformance builds it into a program, and runs the program
// for each test and variant: see ../README.md.
package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	// The framework freezes the names of features in its first use of them.
	_ "k8s.io/kubernetes/test/e2e/feature"

	// The tests.
	_ "k8s.io/kubernetes/test/e2e/network"

	// What the framework does after failures, and its flags.
	_ "k8s.io/component-base/logs/testinit"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
)

// namespaceLabels are labels of every namespace that a test creates. Admission policies
// select the namespaces by these, and so know the variant.
var namespaceLabels = labelsFlag{}

func TestMain(m *testing.M) {
	flag.Var(
		namespaceLabels, "namespace-label", "label, as KEY=VALUE, of the namespaces that tests create (may be repeated)",
	)
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.CreateTestingNS = createNamespace
	os.Exit(m.Run())
}

// createNamespace creates a namespace as the framework does, with namespaceLabels.
func createNamespace(
	ctx context.Context, baseName string, client clientset.Interface, labels map[string]string,
) (*corev1.Namespace, error) {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, namespaceLabels)
	return framework.CreateTestingNS(ctx, baseName, client, all)
}

func TestConformance(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "Kubernetes' tests of Services", suite, reporter)
}

// The tests skip themselves unless they know how many nodes there are, and which family
// of addresses comes first.
var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	client, err := framework.LoadClientset()
	framework.ExpectNoError(err)
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	framework.ExpectNoError(err)
	framework.TestContext.CloudConfig.NumNodes = len(nodes.Items)
	service, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	framework.ExpectNoError(err)
	framework.TestContext.IPFamily = "ipv4"
	if strings.Contains(service.Spec.ClusterIP, ":") {
		framework.TestContext.IPFamily = "ipv6"
	}
})

// labelsFlag is the value of a flag that adds labels.
type labelsFlag map[string]string

func (l labelsFlag) String() string { return fmt.Sprint(map[string]string(l)) }

func (l labelsFlag) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return errors.New("want KEY=VALUE")
	}
	l[key] = value
	return nil
}
