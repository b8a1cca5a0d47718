// Package apiserver starts a real API server, with the CRDs of this project,
// for tests.
package apiserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// limit is how long the programs may take to start, and to stop: a machine may be busy.
const limit = 2 * time.Minute

// Start starts etcd and kube-apiserver from the folder that the environment
// variable KUBEBUILDER_ASSETS names, and installs the CRDs. The cluster has no
// nodes, no controllers and two IP families. The returned function, never nil,
// stops it.
func Start() (*rest.Config, func() error, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, noStop, errors.New("this test needs a real API server: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, such as `go -C test/lab run ./cmd/lab assets` prints")
	}
	_, file, _, _ := runtime.Caller(0)
	env := &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join(filepath.Dir(file), "..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: limit,
		ControlPlaneStopTimeout:  limit,
	}
	args := env.ControlPlane.GetAPIServer().Configure()
	args.Set("service-cluster-ip-range", "10.96.0.0/16,fd00:96::/108")
	config, err := env.Start()
	if err != nil {
		return nil, noStop, errors.Join(fmt.Errorf("start the API server: %w", err), env.Stop())
	}
	config.QPS, config.Burst = 1000, 2000
	return config, env.Stop, nil
}

func noStop() error { return nil }
