package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"

	"github.com/purelb/purelb-operator/test/measure"
)

// profileSeconds is for how long the API server and the manager are profiled.
const profileSeconds = 15

// startProfiles profiles the processors' use of the API server, the manager and the
// agents, if -profiles names a folder. The function that it returns waits until the
// profiles are written; the agents, which run in this process, are profiled until then.
func (r *run) startProfiles(ctx context.Context, step string) func() error {
	if r.profiles == "" {
		return func() error { return nil }
	}
	file := func(program string) string {
		return filepath.Join(r.profiles, fmt.Sprintf("%s-%s-%d-%d.pprof", program, step, len(r.agents.nodes), r.addresses))
	}
	wait := measure.StartAll(
		func() error {
			return measure.CPUOfAPIServer(r.cluster.clientset.RESTClient(), profileSeconds).Save(ctx, file("apiserver"))
		},
		func() error {
			return measure.CPUOf(http.DefaultClient, r.manager.pprof, profileSeconds).Save(ctx, file("manager"))
		},
	)
	own, err := os.Create(file("agents"))
	if err == nil {
		err = pprof.StartCPUProfile(own)
	}
	return func() error {
		errs := errors.Join(err, wait())
		pprof.StopCPUProfile()
		return errors.Join(errs, own.Close())
	}
}
