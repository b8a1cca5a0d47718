package gitops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/apiserver"
)

const (
	purelbNamespace = "purelb-system"
	root            = "../.."
	// fieldOwner is the field manager that applies what is in the repository.
	fieldOwner = client.FieldOwner("gitops")

	waitLimit    = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
)

var (
	restConfig    *rest.Config
	kubeClient    client.Client
	stopFunctions []func() error
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(waitLimit)
	SetDefaultEventuallyPollingInterval(pollInterval)
	code := m.Run()
	for i := len(stopFunctions) - 1; i >= 0; i-- {
		if err := stopFunctions[i](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// startOnce starts the API server and the manager, once for all tests.
func startOnce(t *testing.T) *WithT {
	t.Helper()
	apiserver.Mark(t)
	if err := start(); err != nil {
		t.Fatal(err)
	}
	return NewWithT(t)
}

var start = sync.OnceValue(func() error {
	log.SetLogger(logr.Discard())
	server, stopServer, err := apiserver.Start()
	stopFunctions = append(stopFunctions, stopServer)
	if err != nil {
		return err
	}
	restConfig = server
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	if kubeClient, err = client.New(restConfig, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := installCertManager(); err != nil {
		return err
	}
	return errors.Join(installPureLB(), startManager())
})

// newScheme returns a scheme with all kinds that are installed, also those of other projects.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme),
		v1.AddToScheme(scheme),
		certmanagerv1.AddToScheme(scheme), monitoringv1.AddToScheme(scheme))
}

// installCertManager installs cert-manager's CRDs, which are in its Go module.
func installCertManager() error {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	if err != nil {
		return fmt.Errorf("find cert-manager's module: %w", err)
	}
	_, err = envtest.InstallCRDs(restConfig, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join(strings.TrimSpace(string(dir)), "deploy", "crds")}, ErrorIfPathMissing: true,
	})
	return err
}

// installPureLB applies config/default without what needs kubelets: the Deployment, and so
// the webhooks that it would serve.
func installPureLB() error {
	objects, err := buildFolder("config/default")
	if err != nil {
		return err
	}
	ctx := context.Background()
	for _, first := range []bool{true, false} { // the namespace
		for _, u := range objects {
			switch kind := u.GetKind(); kind {
			case "CustomResourceDefinition", "ValidatingWebhookConfiguration", "Deployment":
			default:
				if (kind == "Namespace") != first {
					continue
				}
				if err := applyStrictly(ctx, u); err != nil {
					return err
				}
			}
		}
	}
	return kubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "test"}})
}

// applyStrictly applies an object as users do, and fails if it has unknown fields.
func applyStrictly(ctx context.Context, u *unstructured.Unstructured, options ...client.ApplyOption) error {
	options = append(options, fieldOwner, client.ForceOwnership)
	if err := client.WithFieldValidation(kubeClient, metav1.FieldValidationStrict).
		Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// startManager runs PureLB's manager with the rights of its service account.
func startManager() error {
	dir, err := os.MkdirTemp("", "purelb-gitops-")
	if err != nil {
		return err
	}
	stopFunctions = append(stopFunctions, func() error { return os.RemoveAll(dir) })
	binary, err := programPath("PURELB")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig); err != nil {
		return err
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	manager := exec.Command(binary, "manager", "--namespace="+purelbNamespace, "--agent-image=purelb.io/purelb:dev",
		"--leader-elect=false", "--webhook-port=0", "--metrics-bind-address=0", "--health-probe-bind-address=0")
	manager.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	manager.Stdout, manager.Stderr = logs, logs
	if err := manager.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	stopFunctions = append(stopFunctions, func() error {
		err := errors.Join(manager.Process.Signal(os.Interrupt), manager.Wait())
		text, read := os.ReadFile(logs.Name())
		if err == nil && bytes.Contains(text, []byte("forbidden")) {
			err = errors.New("config/rbac does not allow the manager what it needs")
		}
		if err != nil {
			err = fmt.Errorf("the manager: %w\n%s", err, text)
		}
		return errors.Join(err, read)
	})
	return nil
}

// writeKubeconfig writes a kubeconfig that acts as the manager's service account.
func writeKubeconfig(path string) error {
	const name = "envtest"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			name: {Server: restConfig.Host, CertificateAuthorityData: restConfig.CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: restConfig.CertData, ClientKeyData: restConfig.KeyData,
			Impersonate: "system:serviceaccount:" + purelbNamespace + ":purelb-manager",
			ImpersonateGroups: []string{
				"system:serviceaccounts", "system:serviceaccounts:" + purelbNamespace, "system:authenticated",
			},
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
}

// programPath returns the path of a program that was built before the tests, from the
// environment. A test that built or downloaded programs itself would depend on caches, in
// its duration and in what the programs print.
func programPath(variable string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		return "", fmt.Errorf("%s is not set: run make test-unit, which builds the program and says where it is", variable)
	}
	return path, nil
}

// buildFolder returns the objects that the pinned version of kustomize makes of a folder.
func buildFolder(dir string) ([]*unstructured.Unstructured, error) {
	kustomize, err := programPath("KUSTOMIZE")
	if err != nil {
		return nil, err
	}
	command := exec.Command(kustomize, "build", dir)
	command.Dir = root
	var messages bytes.Buffer
	command.Stderr = &messages
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", dir, err, messages.Bytes())
	}
	if messages.Len() > 0 { // such as warnings of deprecated fields
		return nil, fmt.Errorf("build %s: %s", dir, messages.Bytes())
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var objects []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the objects of %s: %w", dir, err)
		}
		objects = append(objects, u)
	}
}
