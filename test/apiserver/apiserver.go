// Package apiserver starts a real API server, with the CRDs of this project,
// for tests.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/purelb/purelb-operator/test/crds"
)

// timeLimit is how long the start of etcd and kube-apiserver may take, and their end. Either takes a
// few seconds on a machine that has nothing else to do. A busy one may need much longer.
const timeLimit = 2 * time.Minute

// Mark notes with a test that it needs an API server: go test -json tells so by an event of the
// action "attr". What such a test waits for depends on other processes, so that one that fails may
// be run once more, alone. A test without the mark is not.
func Mark(t testing.TB) { t.Attr("needs", "apiserver") }

// Start starts etcd and kube-apiserver from the folder that the environment
// variable KUBEBUILDER_ASSETS names, and installs the CRDs. The cluster has no
// nodes, no controllers and two IP families. The returned function, never nil,
// stops it. Each test that uses the API server calls Mark.
func Start() (*rest.Config, func() error, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, noStop, errors.New(
			"this test needs a real API server: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, such as `go " +
				"-C test/lab run ./cmd/lab assets` prints",
		)
	}
	config, stop, err := start()
	if errors.Is(err, context.DeadlineExceeded) {
		// envtest waits for the namespace default for 5 s, which is too short on a busy machine.
		config, stop, err = start()
	}
	return config, stop, err
}

func start() (*rest.Config, func() error, error) {
	folder, err := crds.Find()
	if err != nil {
		return nil, noStop, err
	}
	env := &envtest.Environment{
		CRDDirectoryPaths:        []string{folder},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: timeLimit,
		ControlPlaneStopTimeout:  timeLimit,
		CRDInstallOptions:        envtest.CRDInstallOptions{MaxTime: timeLimit},
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
