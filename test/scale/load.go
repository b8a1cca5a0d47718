package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// createService creates a Service that gets an address of a ServiceGroup, and this
// address unless it is empty.
func (r *run) createService(ctx context.Context, name, group, address string) error {
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
		return fmt.Errorf("create Service %s: %w", name, err)
	}
	return nil
}

// createLocalServices creates the Services with Local addresses, and waits until all
// are announced.
func (r *run) createLocalServices(ctx context.Context) error {
	for i := range r.locals {
		if err := r.createService(ctx, fmt.Sprintf("local%04d", i), localGroup, ""); err != nil {
			return err
		}
	}
	return waitUntil(
		ctx, "the local addresses are announced",
		r.refreshing(ctx, func() bool { return r.agents.tracker.announcedTotal() >= r.locals }),
	)
}

// createVirtualServices creates Services that wait for Virtual addresses, and then their
// ServiceGroup. So the addresses come as fast as the manager can allocate them, and not
// one by one as the Services are created.
func (r *run) createVirtualServices(ctx context.Context, count int) error {
	first := r.addresses
	r.addresses += count
	group := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("load%05d", first)},
		Spec:       loadPool(r.loadGroups),
	}
	r.loadGroups++
	if err := forEachParallel(
		count, func(i int) error { return r.createService(ctx, fmt.Sprintf("virtual%05d", first+i), group.Name, "") },
	); err != nil {
		return err
	}
	r.say("%d Services created", count)
	if err := r.cluster.admin.Create(ctx, group); err != nil {
		return fmt.Errorf("create %s: %w", group.Name, err)
	}
	return nil
}

// loadAddresses adds Services, all at once, until there are as many Virtual addresses
// as addresses says, and waits until all nodes report them.
func (r *run) loadAddresses(ctx context.Context, addresses int) error {
	begun, first, wanted := time.Now(), r.addresses, addresses*len(r.agents.nodes)+r.locals
	finish := r.startProfiles(ctx, fmt.Sprintf("load%d", addresses))
	if err := r.createVirtualServices(ctx, addresses-first); err != nil {
		return err
	}
	lastSaid := time.Now()
	err := waitUntil(ctx, fmt.Sprintf("%d addresses are announced by all", addresses), r.refreshing(ctx, func() bool {
		announced := r.agents.tracker.announcedTotal()
		if time.Since(lastSaid) > 10*time.Second {
			lastSaid = time.Now()
			r.say("  %d of %d announced", announced, wanted)
		}
		return announced >= wanted
	}))
	if err == nil {
		r.say("%d addresses are announced by all nodes after %s", addresses, time.Since(begun).Round(time.Millisecond))
	}
	return errors.Join(err, finish())
}
