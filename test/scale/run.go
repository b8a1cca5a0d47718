package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/measure"
)

// run is one cluster with its agents and manager. It is measured with more and more
// addresses.
type run struct {
	options
	out        io.Writer
	shape      shape
	cluster    *cluster
	agents     *agents
	manager    *manager
	addresses  int    // Virtual addresses so far
	loadGroups int    // ServiceGroups that createVirtualServices has created so far
	folder     string // for files
}

// newRun starts a cluster with a number of nodes. The caller ends what was started by
// close, also after an error.
func newRun(ctx context.Context, o options, out io.Writer, s shape, nodes int) (r *run, err error) {
	r = &run{options: o, out: out, shape: s}
	if r.folder, err = os.MkdirTemp("", "purelb-scale-"); err != nil {
		return r, fmt.Errorf("make a folder: %w", err)
	}
	if r.cluster, err = startCluster(ctx, o.root); err != nil {
		return r, err
	}
	r.say("the API server is up; creating %d nodes", nodes)
	if r.agents, err = newAgents(ctx, r.cluster, s, nodes); err != nil {
		return r, err
	}
	if err := r.configure(ctx); err != nil {
		return r, err
	}
	if r.manager, err = newManager(ctx, r.cluster, o, r.folder); err != nil {
		return r, err
	}
	if err := r.manager.start(); err != nil {
		return r, err
	}
	begun := time.Now()
	if err := r.agents.startAll(ctx); err != nil {
		return r, err
	}
	if err := r.createLocalServices(ctx); err != nil {
		return r, err
	}
	r.say(
		"%d agents started, and %d local addresses announced, in %s", nodes, o.locals,
		time.Since(begun).Round(time.Millisecond),
	)
	return r, r.waitUntilCalm(ctx)
}

// waitUntilCalm waits until the API server has little to do: all agents start at the
// same time here, which no real cluster's agents do.
func (r *run) waitUntilCalm(ctx context.Context) error {
	const window, calm = 3 * time.Second, 0.6 // of a processor
	begun, at := time.Now(), time.Now()
	before, err := measure.CPUTime(r.cluster.apiServer)
	if err != nil {
		return err
	}
	err = waitUntil(ctx, "the API server has little to do", func() (bool, error) {
		if time.Since(at) < window {
			return false, nil
		}
		now, err := measure.CPUTime(r.cluster.apiServer)
		share := (now - before).Seconds() / time.Since(at).Seconds()
		before, at = now, time.Now()
		return share < calm, err
	})
	r.say("the API server has little to do after %s", time.Since(begun).Round(time.Second))
	return err
}

// close ends everything that was started.
func (r *run) close() error {
	var errs []error
	if r.manager != nil {
		errs = append(errs, r.manager.kill())
	}
	if r.agents != nil {
		errs = append(errs, r.agents.stopAll())
	}
	if r.cluster != nil {
		errs = append(errs, r.cluster.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(r.folder))...)
}

// say prints a line of progress.
func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.out, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// configure creates the LBNodeAgent and the ServiceGroups.
func (r *run) configure(ctx context.Context) error {
	objects := []client.Object{&v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lbNodeAgent}}}
	for name, spec := range r.shape.pools() {
		objects = append(
			objects, &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec},
		)
	}
	for _, o := range objects {
		if err := r.cluster.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s: %w", o.GetName(), err)
		}
	}
	return nil
}
