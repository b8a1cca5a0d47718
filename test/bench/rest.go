package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// poll is between two looks at what is to become so.
const poll = 50 * time.Millisecond

// unkilled replaces the pods of PureLB that were killed before: a kubelet starts
// their containers again later each time.
func (b *bench) unkilled(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.client.List(ctx, pods, client.InNamespace(system)); err != nil {
		return fmt.Errorf("list the pods of PureLB: %w", err)
	}
	for i := range pods.Items {
		if slices.ContainsFunc(pods.Items[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 }) {
			if err := client.IgnoreNotFound(b.client.Delete(ctx, &pods.Items[i])); err != nil {
				return fmt.Errorf("replace a pod of PureLB: %w", err)
			}
		}
	}
	return nil
}

// kubeletPeriod is how often a kubelet renews its Lease, a quarter of the Lease's 40 s,
// and what it may be late.
const kubeletPeriod = 12 * time.Second

// atRest waits until all is as it should be, so that a trial begins with nothing
// left of the one before.
func (b *bench) atRest(ctx context.Context) error {
	for _, args := range [][]string{
		{"-n", system, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=180s"},
		{"-n", system, "rollout", "status", "deployment/purelb-manager", "--timeout=180s"},
		{"-n", namespace, "rollout", "status", "deployment/echo", "--timeout=180s"},
	} {
		if err := b.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return await(ctx, poll, "all to be at rest", func() error {
		for _, name := range b.nodes() {
			if err := b.nodeAtRest(ctx, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

func (b *bench) nodeAtRest(ctx context.Context, name string) error {
	node, lease := &corev1.Node{}, &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: v1.LeasePrefix + name}, lease); err != nil {
		return err
	}
	kubelets := &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, kubelets); err != nil {
		return err
	}
	a, err := b.announcement(ctx, name)
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return errors.New("it is not ready")
		}
	}
	switch {
	case len(node.Spec.Taints) > 0:
		return errors.New("it has taints")
	case a.Status.ObservedGeneration != a.Generation:
		return errors.New("its agent has not seen its Announcement")
	case slices.ContainsFunc(a.Spec.Addresses, func(e v1.AnnouncedAddress) bool { return e.Leaving }):
		return errors.New("an address is leaving")
	case slices.ContainsFunc(a.Status.Interfaces, func(i v1.NodeInterface) bool { return i.Down }):
		return errors.New("an interface is down")
	case kubelets.Spec.RenewTime == nil || time.Since(kubelets.Spec.RenewTime.Time) > kubeletPeriod:
		// Else the Node would count as cut off since the trial before.
		return errors.New("its kubelet has not renewed its Lease")
	case lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > 2*time.Second:
		return errors.New("its Lease is not renewed")
	}
	return nil
}

func (b *bench) announcement(ctx context.Context, node string) (*v1.Announcement, error) {
	a := &v1.Announcement{}
	err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: node}, a)
	return a, err
}

// place is a node that is to announce an address, and what it says of it.
type place struct {
	node  string
	state v1.AddressState
}

func (b *bench) places(ctx context.Context, address netip.Addr) ([]place, error) {
	var found []place
	for _, name := range b.nodes() {
		a, err := b.announcement(ctx, name)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		for _, e := range a.Spec.Addresses {
			if e.Address != address.String() {
				continue
			}
			p := place{node: name}
			for _, s := range a.Status.Addresses {
				if s.Address == e.Address && s.Epoch == e.Epoch {
					p.state = s.State
				}
			}
			found = append(found, p)
		}
	}
	return found, nil
}

// settled waits until exactly one node is to announce the address, and does, and
// returns it.
func (b *bench) settled(ctx context.Context, address netip.Addr, not ...string) (string, error) {
	var node string
	err := await(ctx, poll, address.String()+" to be announced by one node", func() error {
		found, err := b.places(ctx, address)
		if err != nil {
			return err
		}
		if len(found) != 1 || found[0].state != v1.StateAnnounced || slices.Contains(not, found[0].node) {
			return fmt.Errorf("it is at %v", found)
		}
		node = found[0].node
		return nil
	})
	return node, err
}

// leader is the node of the leading manager.
func (b *bench) leader(ctx context.Context) (node string, err error) {
	err = await(ctx, poll, "a manager that leads", func() error {
		lease, p := &coordinationv1.Lease{}, &corev1.Pod{}
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: "manager.purelb.io"}, lease); err != nil {
			return err
		}
		pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: pod}, p); err != nil {
			return err
		}
		node = p.Spec.NodeName
		return nil
	})
	return node, err
}

// kill ends a process of PureLB on a node, as kill -9 does; which is manager or
// agent.
func (b *bench) kill(ctx context.Context, node, which string) error {
	_, err := b.lab.NodeExec(ctx, node, "pkill", "-9", "-f", "^/purelb "+which)
	return err
}

// exclude labels nodes so that they announce nothing, or takes the label off.
func (b *bench) exclude(ctx context.Context, on bool, nodes ...string) error {
	label := corev1.LabelNodeExcludeBalancers + "-"
	if on {
		label = corev1.LabelNodeExcludeBalancers + "="
	}
	return b.kubectl(ctx, append(append([]string{"label", "--overwrite", "node"}, nodes...), label)...)
}

// away moves the address off some nodes.
func (b *bench) away(ctx context.Context, address netip.Addr, from ...string) error {
	if err := b.exclude(ctx, true, from...); err != nil {
		return err
	}
	_, err := b.settled(ctx, address, from...)
	return errors.Join(err, b.exclude(context.WithoutCancel(ctx), false, from...))
}
