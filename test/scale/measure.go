package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// run is one cluster with its agents and manager, to be measured with more and
// more addresses.
type run struct {
	options
	out     io.Writer
	shape   shape
	cluster *cluster
	agents  *agents
	manager *manager
	// addresses is how many Virtual ones there are, and loads is with how many
	// ServiceGroups they came, but for those that were measured.
	addresses, loads int
	// folder for files.
	folder string
}

// newRun starts it all, on so many nodes. What was started is to be ended by
// close, also after an error.
func newRun(ctx context.Context, o options, out io.Writer, s shape, nodes int) (r *run, err error) {
	r = &run{options: o, out: out, shape: s}
	if r.folder, err = os.MkdirTemp("", "purelb-scale-"); err != nil {
		return r, fmt.Errorf("make a folder: %w", err)
	}
	if r.cluster, err = startCluster(ctx, o.root); err != nil {
		return r, err
	}
	r.say("API server is up; making %d nodes", nodes)
	if r.agents, err = newAgents(ctx, r.cluster, s, nodes); err != nil {
		return r, err
	}
	if err := r.configure(ctx); err != nil {
		return r, err
	}
	if r.manager, err = newManager(ctx, r.cluster, o.program, r.folder, o.pprof); err != nil {
		return r, err
	}
	if err := r.manager.start(); err != nil {
		return r, err
	}
	begun := time.Now()
	if err := r.agents.startAll(ctx); err != nil {
		return r, err
	}
	if err := r.addLocals(ctx); err != nil {
		return r, err
	}
	r.say("%d agents started, and %d local addresses announced, in %s", nodes, o.locals, time.Since(begun).Round(time.Millisecond))
	return r, r.calmDown(ctx)
}

// calmDown waits until the API server has little to do: so many agents that start at
// once are no measure of anything.
func (r *run) calmDown(ctx context.Context) error {
	const window, calm = 3 * time.Second, 0.6 // of a processor
	begun, at := time.Now(), time.Now()
	before, err := cpuTime(r.cluster.apiServer)
	if err != nil {
		return err
	}
	err = await(ctx, "the API server has little to do", func() (bool, error) {
		if time.Since(at) < window {
			return false, nil
		}
		now, err := cpuTime(r.cluster.apiServer)
		share := (now - before).Seconds() / time.Since(at).Seconds()
		before, at = now, time.Now()
		return share < calm, err
	})
	r.say("the API server has little to do after %s", time.Since(begun).Round(time.Second))
	return err
}

// close ends all that was started.
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

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.out, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// configure makes the LBNodeAgent and the ServiceGroups.
func (r *run) configure(ctx context.Context) error {
	objects := []client.Object{&v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lbNodeAgent}}}
	for name, spec := range r.shape.pools() {
		objects = append(objects, &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec})
	}
	for _, o := range objects {
		if err := r.cluster.admin.Create(ctx, o); err != nil {
			return fmt.Errorf("make %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// serve makes a Service with an address of a group, this one if it says so.
func (r *run) serve(ctx context.Context, name, group, address string) error {
	annotations := map[string]string{v1.AnnotationServiceGroup: group}
	if address != "" {
		annotations[v1.AnnotationAddresses] = address
	}
	err := r.cluster.admin.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	})
	if err != nil {
		return fmt.Errorf("make Service %s: %w", name, err)
	}
	return nil
}

// addLocals adds the Services with Local addresses.
func (r *run) addLocals(ctx context.Context) error {
	for i := range r.locals {
		if err := r.serve(ctx, fmt.Sprintf("local%04d", i), localGroup, ""); err != nil {
			return err
		}
	}
	return await(ctx, "the local addresses are announced", r.looking(ctx, func() bool { return r.agents.tracker.sum() >= r.locals }))
}

// addVirtual adds so many Services with Virtual addresses, and then their
// ServiceGroup: so they come as fast as the manager can give them addresses, and not
// one by one as they are made.
func (r *run) addVirtual(ctx context.Context, count int) error {
	first := r.addresses
	r.addresses += count
	group := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("load%05d", first)}, Spec: loadPool(r.loads),
	}
	r.loads++
	if err := each(count, func(i int) error { return r.serve(ctx, fmt.Sprintf("virtual%05d", first+i), group.Name, "") }); err != nil {
		return err
	}
	r.say("%d Services made", count)
	if err := r.cluster.admin.Create(ctx, group); err != nil {
		return fmt.Errorf("make %s: %w", group.Name, err)
	}
	return nil
}

// load adds Services, all at once, until there are so many Virtual addresses,
// and waits until all nodes report them.
func (r *run) load(ctx context.Context, addresses int) error {
	begun, first, wanted := time.Now(), r.addresses, addresses*len(r.agents.nodes)+r.locals
	finish := r.startProfiles(ctx, fmt.Sprintf("load%d", addresses))
	if err := r.addVirtual(ctx, addresses-first); err != nil {
		return err
	}
	told := time.Now()
	err := await(ctx, fmt.Sprintf("%d addresses are announced by all", addresses), r.looking(ctx, func() bool {
		sum := r.agents.tracker.sum()
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			r.say("  %d of %d announced", sum, wanted)
		}
		return sum >= wanted
	}))
	if err == nil {
		r.say("%d addresses are announced by all nodes after %s", addresses, time.Since(begun).Round(time.Millisecond))
	}
	return errors.Join(err, finish())
}

// change adds one Service and returns how long it takes until every node has its
// address, and until every agent has reported it.
func (r *run) change(ctx context.Context) (onAll, reported time.Duration, err error) {
	address := nth(firstMeasured, r.addresses)
	r.agents.tracker.watch(address)
	begun := time.Now()
	if err := r.serve(ctx, fmt.Sprintf("virtual%05d", r.addresses), virtualGroup, address); err != nil {
		return 0, 0, err
	}
	r.addresses++
	err = await(ctx, "every node has "+address, func() (bool, error) {
		return len(r.agents.tracker.held(address)) >= len(r.agents.nodes), nil
	})
	if err != nil {
		return 0, 0, err
	}
	revision, err := r.revisionOf(ctx, address)
	if err != nil {
		return 0, 0, err
	}
	err = await(ctx, "every agent reports "+address, r.looking(ctx, func() bool {
		n, _ := r.agents.tracker.common(revision)
		return n >= len(r.agents.nodes)
	}))
	after := func(t time.Time) time.Duration { return t.Sub(begun).Round(time.Millisecond) }
	got := r.agents.tracker.held(address)
	_, last := r.agents.tracker.common(revision)
	r.say("one more address: on the first node after %s, on half of the nodes after %s, on nine of ten after %s, on every node after %s, reported by every agent after %s",
		after(got[0]), after(got[len(got)/2]), after(got[len(got)*9/10]), after(got[len(got)-1]), after(last))
	return after(got[len(got)-1]), after(last), err
}

// looking is a condition of what agents report, with a look now and then.
func (r *run) looking(ctx context.Context, done func() bool) func() (bool, error) {
	looked := time.Now()
	return func() (bool, error) {
		if time.Since(looked) > 10*time.Second {
			if err := r.look(ctx); err != nil {
				return false, err
			}
			looked = time.Now()
		}
		return done(), nil
	}
}

// look tells the tracker what the API server has: an agent whose report was taken
// too late for it to hear so reports no second time.
func (r *run) look(ctx context.Context) error {
	var list v1.AnnouncementList
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list Announcements: %w", err)
	}
	for i := range list.Items {
		a := &list.Items[i]
		r.agents.tracker.reported(a.Spec.NodeName, a.Name, &a.Status)
	}
	return nil
}

// revisionOf is the revision that an address came with.
func (r *run) revisionOf(ctx context.Context, address string) (int64, error) {
	var list v1.CommonAnnouncementList
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list CommonAnnouncements: %w", err)
	}
	for i := range list.Items {
		for _, e := range list.Items[i].Spec.Addresses {
			if e.Address == address {
				return e.Epoch, nil
			}
		}
	}
	return 0, fmt.Errorf("no CommonAnnouncement has %s", address)
}

// nth is the address n after another.
func nth(first netip.Addr, n int) string {
	a := first.As4()
	a[2], a[3] = a[2]-byte(n/256), a[3]+byte(n%256)
	return netip.AddrFrom4(a).String()
}

// death kills a node that holds a Local address and returns how long it takes,
// from its last renewal, until another reports each of them. Then the node comes
// back.
func (r *run) death(ctx context.Context) (time.Duration, error) {
	victim, addresses, err := r.holder(ctx)
	if err != nil {
		return 0, err
	}
	for _, a := range addresses {
		r.agents.tracker.watch(a)
	}
	if err := r.agents.kill(victim); err != nil {
		return 0, fmt.Errorf("kill %s: %w", nodeName(victim.number), err)
	}
	renewed, err := r.renewed(ctx, v1.LeasePrefix+nodeName(victim.number))
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, a := range addresses {
		err := await(ctx, "another node has "+a, func() (bool, error) {
			n, _ := r.agents.tracker.nodes(a)
			return n > 0, nil
		})
		if err != nil {
			return 0, err
		}
		_, at := r.agents.tracker.nodes(a)
		longest = max(longest, at.Sub(renewed))
	}
	if err := r.agents.start(ctx, victim); err != nil {
		return 0, err
	}
	return longest, await(ctx, "the node is back", func() (bool, error) {
		again, err := r.renewed(ctx, v1.LeasePrefix+nodeName(victim.number))
		return again.After(renewed), err
	})
}

// holder is a node that holds Local addresses, and which.
func (r *run) holder(ctx context.Context) (*node, []string, error) {
	for _, n := range r.agents.nodes {
		var list v1.AnnouncementList
		if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": nodeName(n.number)}); err != nil {
			return nil, nil, fmt.Errorf("list Announcements: %w", err)
		}
		var addresses []string
		for i := range list.Items {
			for _, a := range list.Items[i].Spec.Addresses {
				if a.Type == v1.AnnounceLocal && !a.Leaving {
					addresses = append(addresses, a.Address)
				}
			}
		}
		if len(addresses) > 0 {
			return n, addresses, nil
		}
	}
	return nil, nil, errors.New("no node holds a local address")
}

// renewed is when a Lease was, by the clock of this machine, which all share.
func (r *run) renewed(ctx context.Context, lease string) (time.Time, error) {
	l := &coordinationv1.Lease{}
	if err := r.cluster.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: lease}, l); err != nil {
		return time.Time{}, fmt.Errorf("get Lease: %w", err)
	}
	if l.Spec.RenewTime == nil {
		return time.Time{}, nil
	}
	return l.Spec.RenewTime.Time, nil
}

// restart kills the manager, starts it again, and adds a Service meanwhile. It
// returns how long it takes until every node has its address, and how many
// Announcements were written that had not to be.
func (r *run) restart(ctx context.Context) (took time.Duration, rewritten int64, err error) {
	before, err := r.generations(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := r.manager.kill(); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	if err := r.manager.start(); err != nil {
		return 0, 0, err
	}
	started := time.Since(begun)
	onAll, _, err := r.change(ctx)
	if err != nil {
		return 0, 0, err
	}
	after, err := r.generations(ctx)
	return started + onAll, after - before, err
}

// generations is how often the specs of all Announcements have been written.
func (r *run) generations(ctx context.Context) (int64, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1.GroupVersion.WithKind("AnnouncementList"))
	if err := r.cluster.admin.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list Announcements: %w", err)
	}
	sum := int64(0)
	for i := range list.Items {
		sum += list.Items[i].Generation
	}
	return sum, nil
}

// size is the number of Announcements and of CommonAnnouncements, and the bytes of
// the largest of all of one node, and of those that are common, in JSON as they are
// stored.
func (r *run) size(ctx context.Context) (count, commons, largest, largestCommon int, err error) {
	name := nodeName(len(r.agents.nodes) - 1)
	count, largest, err = r.sizeOf(ctx, "Announcement", func(m *metav1.PartialObjectMetadata) bool { return m.Labels[v1.LabelNode] == name })
	if err != nil {
		return 0, 0, 0, 0, err
	}
	commons, largestCommon, err = r.sizeOf(ctx, "CommonAnnouncement", func(*metav1.PartialObjectMetadata) bool { return true })
	return count, commons, largest, largestCommon, err
}

// sizeOf is the number of objects of a kind, and the bytes of the largest of some.
func (r *run) sizeOf(ctx context.Context, kind string, some func(*metav1.PartialObjectMetadata) bool) (count, largest int, err error) {
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(v1.GroupVersion.WithKind(kind + "List"))
	if err := r.cluster.admin.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return 0, 0, fmt.Errorf("list objects of kind %s: %w", kind, err)
	}
	for i := range all.Items {
		if !some(&all.Items[i]) {
			continue
		}
		body, err := r.cluster.clientset.RESTClient().Get().
			AbsPath("apis", v1.GroupVersion.Group, v1.GroupVersion.Version, "namespaces", namespace, strings.ToLower(kind)+"s", all.Items[i].Name).
			DoRaw(ctx)
		if err != nil {
			return 0, 0, fmt.Errorf("get %s %s: %w", kind, all.Items[i].Name, err)
		}
		largest = max(largest, len(body))
	}
	return len(all.Items), largest, nil
}

// median of some durations.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
