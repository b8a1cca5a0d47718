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
	system = "purelb-system"
	root   = "../.."
	// user is who applies what is in the repository.
	user = client.FieldOwner("gitops")

	soon  = 20 * time.Second
	often = 50 * time.Millisecond
)

var (
	config *rest.Config
	api    client.Client
	stop   []func() error
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(often)
	code := m.Run()
	for i := len(stop) - 1; i >= 0; i-- {
		if err := stop[i](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// begin starts the API server and the manager, once for all tests.
func begin(t *testing.T) *WithT {
	t.Helper()
	if err := start(); err != nil {
		t.Fatal(err)
	}
	return NewWithT(t)
}

var start = sync.OnceValue(func() error {
	log.SetLogger(logr.Discard())
	server, stopServer, err := apiserver.Start()
	stop = append(stop, stopServer)
	if err != nil {
		return err
	}
	config = server
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	if api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := installCertManager(); err != nil {
		return err
	}
	return errors.Join(install(), startManager())
})

// newScheme has all kinds that are installed, some of them of others.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1.AddToScheme(scheme),
		certmanagerv1.AddToScheme(scheme), monitoringv1.AddToScheme(scheme))
}

// installCertManager installs the CRDs that come with its module.
func installCertManager() error {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	if err != nil {
		return fmt.Errorf("find cert-manager's module: %w", err)
	}
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join(strings.TrimSpace(string(dir)), "deploy", "crds")}, ErrorIfPathMissing: true,
	})
	return err
}

// install applies config/default, but for what needs kubelets: nobody serves
// the webhooks.
func install() error {
	objects, err := build("config/default")
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
				if err := apply(ctx, u); err != nil {
					return err
				}
			}
		}
	}
	return api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "test"}})
}

// apply is what users do: the object has to have nothing that is not known.
func apply(ctx context.Context, u *unstructured.Unstructured, options ...client.ApplyOption) error {
	options = append(options, user, client.ForceOwnership)
	if err := client.WithFieldValidation(api, metav1.FieldValidationStrict).Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// startManager runs the program itself, with the rights of its service account.
func startManager() error {
	dir, err := os.MkdirTemp("", "purelb-gitops-")
	if err != nil {
		return err
	}
	stop = append(stop, func() error { return os.RemoveAll(dir) })
	binary, kubeconfig := filepath.Join(dir, "purelb"), filepath.Join(dir, "kubeconfig")
	build := exec.Command("go", "build", "-o", binary, "./cmd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the manager: %w: %s", err, out)
	}
	if err := writeKubeconfig(kubeconfig); err != nil {
		return err
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	manager := exec.Command(binary, "manager", "--namespace="+system, "--agent-image=purelb.io/purelb:dev",
		"--leader-elect=false", "--webhook-port=0", "--metrics-bind-address=0", "--health-probe-bind-address=0")
	manager.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	manager.Stdout, manager.Stderr = logs, logs
	if err := manager.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	stop = append(stop, func() error {
		err := errors.Join(manager.Process.Signal(os.Interrupt), manager.Wait())
		text, read := os.ReadFile(logs.Name())
		if err == nil && bytes.Contains(text, []byte("forbidden")) {
			err = errors.New("config/rbac does not let the manager do what it has to")
		}
		if err != nil {
			err = fmt.Errorf("the manager: %w\n%s", err, text)
		}
		return errors.Join(err, read)
	})
	return nil
}

// writeKubeconfig writes one for the manager's service account.
func writeKubeconfig(path string) error {
	const name = "envtest"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
			Impersonate:       "system:serviceaccount:" + system + ":purelb-manager",
			ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"},
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
}

// build is what kustomize, of the version that is pinned, makes of a folder.
func build(dir string) ([]*unstructured.Unstructured, error) {
	command := exec.Command("go", "tool", "-modfile=tools/go.mod", "kustomize", "build", dir)
	command.Dir = root
	var messages bytes.Buffer
	command.Stderr = &messages
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", dir, err, messages.Bytes())
	}
	if messages.Len() > 0 { // such as of what is deprecated
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
			return nil, fmt.Errorf("read what %s makes: %w", dir, err)
		}
		objects = append(objects, u)
	}
}
