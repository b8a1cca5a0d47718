package httpserver

import (
	"context"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Checks are the health checks of a program, by name. They have to be complete when AddTo
// is called.
type Checks struct {
	// Live fails if the kubelet should restart the program, Ready if the program cannot do its
	// work at present.
	Live, Ready map[string]healthz.Checker
}

// addHealth makes a manager serve checks at /healthz and /readyz on an address, from its start
// on; on "" and "0" there is nothing to serve.
func addHealth(ctx context.Context, mgr manager.Manager, address string, checks Checks) error {
	if address == "" || address == "0" {
		return nil
	}
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{"/healthz": checks.Live, "/readyz": checks.Ready} {
		handler := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		mux.Handle(path, handler)
		mux.Handle(path+"/", handler) // each check has a path of its own, too
	}
	server, err := New(ctx, "health checks", address, nil, mux)
	if err != nil {
		return err
	}
	return mgr.Add(server)
}
