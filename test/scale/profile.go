package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profileSeconds is how long the processes are profiled.
const profileSeconds = "15"

// startProfiles profiles the processors' use of the API server, the manager and
// the agents for a while, if a folder for that is given. The function that it
// returns waits for the end.
func (r *run) startProfiles(ctx context.Context, of string) func() error {
	if r.profiles == "" {
		return func() error { return nil }
	}
	file := func(name string) string {
		return filepath.Join(r.profiles, fmt.Sprintf("%s-%s-%d-%d.pprof", name, of, len(r.agents.nodes), r.addresses))
	}
	ended := make(chan error, 2)
	go func() {
		body, err := r.cluster.clientset.RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", profileSeconds).Stream(ctx)
		ended <- save(file("apiserver"), body, err)
	}()
	go func() {
		body, err := r.manager.profile(ctx)
		ended <- save(file("manager"), body, err)
	}()
	own, err := os.Create(file("agents"))
	if err == nil {
		err = pprof.StartCPUProfile(own)
	}
	return func() error {
		errs := errors.Join(err, <-ended, <-ended)
		pprof.StopCPUProfile()
		return errors.Join(errs, own.Close())
	}
}

// profile is the manager's.
func (m *manager) profile(ctx context.Context) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.pprof+"/debug/pprof/profile?seconds="+profileSeconds, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// save writes what is read from body.
func save(path string, body io.ReadCloser, err error) error {
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer body.Close()
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save a profile: %w", err)
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}
