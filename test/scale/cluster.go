package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	namespace       = "purelb-system"
	lbNodeAgent     = "default"
	managerAccount  = "purelb-manager"
	agentAccount    = "purelb-agent"
	etcdQuota       = "8589934592" // bytes; etcd's documentation suggests no more
	controlPlaneMax = 2 * time.Minute
)

// cluster is a real API server and etcd, with PureLB's CRDs and rights. It has no
// webhooks, and no controllers but PureLB's.
type cluster struct {
	env       *envtest.Environment
	admin     client.Client
	clientset *kubernetes.Clientset
	config    *rest.Config // the administrator's, whose requests the API server never queues
	apiServer int          // process id
	etcd      int          // process id
}

// startCluster starts a cluster with the programs in the folder that KUBEBUILDER_ASSETS
// names. root is the folder of this repository. After an error nothing is left running.
func startCluster(ctx context.Context, root string) (*cluster, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errors.New(
			"KUBEBUILDER_ASSETS is not set: name a folder with etcd and kube-apiserver, such as `bin/lab assets` prints",
		)
	}
	c := &cluster{env: &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: controlPlaneMax,
		ControlPlaneStopTimeout:  controlPlaneMax,
	}}
	c.env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.96.0.0/14")
	c.env.ControlPlane.Etcd = &envtest.Etcd{}
	c.env.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", etcdQuota)
	var err error
	if c.config, err = c.env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server: %w", err), c.env.Stop())
	}
	if err := c.connect(ctx, root); err != nil {
		return nil, errors.Join(err, c.env.Stop())
	}
	return c, nil
}

// stop ends the API server and etcd, and removes their data.
func (c *cluster) stop() error { return c.env.Stop() }

// connect makes the administrator's clients, and installs what the manager needs.
func (c *cluster) connect(ctx context.Context, root string) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make the scheme: %w", err)
	}
	c.config.QPS = -1
	var err error
	if c.admin, err = client.New(c.config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.clientset, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.apiServer, err = findChild("kube-apiserver"); err != nil {
		return err
	}
	if c.etcd, err = findChild("etcd"); err != nil {
		return err
	}
	if err := c.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	// The manager itself installs the policies and FlowSchemas.
	return c.install(ctx, filepath.Join(root, "config", "rbac"))
}

// install creates the objects in the YAML files of a folder.
func (c *cluster) install(ctx context.Context, folder string) error {
	files, err := fs.Glob(os.DirFS(folder), "*.yaml")
	if err != nil {
		return fmt.Errorf("list %s: %w", folder, err)
	}
	for _, name := range files {
		if name == "kustomization.yaml" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return fmt.Errorf("read a manifest: %w", err)
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			u := &unstructured.Unstructured{}
			err := documents.Decode(&u.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("parse %s: %w", name, err)
			}
			if len(u.Object) == 0 {
				continue
			}
			if strings.HasPrefix(u.GetNamespace(), "purelb") || u.GetKind() == "ServiceAccount" {
				u.SetNamespace(namespace)
			}
			if err := c.admin.Create(ctx, u); err != nil {
				return fmt.Errorf("install %s of %s: %w", u.GetKind(), name, err)
			}
		}
	}
	return nil
}

// createToken creates a token of a service account. With a pod the token is bound to
// that pod, and so to its node, as the tokens that the kubelet mounts are.
func (c *cluster) createToken(ctx context.Context, account string, pod *corev1.Pod) (string, error) {
	hours := int64(24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		}
	}
	created, err := c.clientset.CoreV1().ServiceAccounts(namespace).CreateToken(
		ctx, account, request, metav1.CreateOptions{},
	)
	if err != nil {
		return "", fmt.Errorf("create a token of %s: %w", account, err)
	}
	return created.Status.Token, nil
}

// configWith returns the configuration of a client that has a token.
func (c *cluster) configWith(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	config.QPS = -1
	return config
}

// writeKubeconfig writes the file by which a program with a token finds the API server.
func (c *cluster) writeKubeconfig(file, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}
