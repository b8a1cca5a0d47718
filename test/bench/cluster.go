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

// pollInterval is the time between two looks at the cluster.
const pollInterval = 50 * time.Millisecond

// replaceRestartedPods replaces the pods of PureLB whose containers were killed before. The
// kubelet's back-off would restart them later each time.
func (b *bench) replaceRestartedPods(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.client.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
		return fmt.Errorf("list the pods of PureLB: %w", err)
	}
	for i := range pods.Items {
		if slices.ContainsFunc(
			pods.Items[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 },
		) {
			if err := client.IgnoreNotFound(b.client.Delete(ctx, &pods.Items[i])); err != nil {
				return fmt.Errorf("replace a pod of PureLB: %w", err)
			}
		}
	}
	return nil
}

// kubeletPeriod is how long after the last renewal a kubelet's Lease still counts as
// renewed: a kubelet renews each quarter of the Lease's 40 s, and may be 2 s late.
const kubeletPeriod = 12 * time.Second

// waitForRest waits until nothing of the trial before is left: all pods and nodes are
// ready, all Leases are renewed, and no address is being handed over.
func (b *bench) waitForRest(ctx context.Context) error {
	for _, args := range [][]string{
		{"-n", systemNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=180s"},
		{"-n", systemNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s"},
		{"-n", benchNamespace, "rollout", "status", "deployment/echo", "--timeout=180s"},
	} {
		if err := b.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return waitUntil(ctx, pollInterval, "the cluster to be at rest", func() error {
		for _, name := range b.nodeNames() {
			if err := b.checkNodeAtRest(ctx, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// checkNodeAtRest returns why a node is not at rest, or nil.
func (b *bench) checkNodeAtRest(ctx context.Context, name string) error {
	node, lease := &corev1.Node{}, &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: v1.LeasePrefix + name},
		lease); err != nil {
		return err
	}
	kubeletLease := &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name},
		kubeletLease); err != nil {
		return err
	}
	a, err := b.getAnnouncement(ctx, name)
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return errors.New("it is NotReady")
		}
	}
	switch {
	case len(node.Spec.Taints) > 0:
		return errors.New("it has taints")
	case a.Status.ObservedGeneration != a.Generation:
		return errors.New("its agent has not seen its Announcement")
	case slices.ContainsFunc(a.Spec.Addresses, func(e v1.AnnouncedAddress) bool { return e.HandingOver }):
		return errors.New("an address is being handed over")
	case slices.ContainsFunc(a.Status.Interfaces, func(i v1.NodeInterface) bool { return i.Down }):
		return errors.New("an interface is down")
	case kubeletLease.Spec.RenewTime == nil || time.Since(kubeletLease.Spec.RenewTime.Time) > kubeletPeriod:
		// Otherwise the Node would count as cut off since the trial before.
		return errors.New("its kubelet has not renewed its Lease")
	case lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > 2*time.Second:
		return errors.New("its Lease is not renewed")
	}
	return nil
}

func (b *bench) getAnnouncement(ctx context.Context, node string) (*v1.Announcement, error) {
	a := &v1.Announcement{}
	err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: node}, a)
	return a, err
}

// placement is a node that is to announce an address, and the state that its agent reports
// for the address.
type placement struct {
	node  string
	state v1.AddressState
}

// findPlacements returns all nodes that are to announce an address.
func (b *bench) findPlacements(ctx context.Context, address netip.Addr) ([]placement, error) {
	var found []placement
	for _, name := range b.nodeNames() {
		a, err := b.getAnnouncement(ctx, name)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		for _, e := range a.Spec.Addresses {
			if e.Address != address.String() {
				continue
			}
			p := placement{node: name}
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

// waitForHolder waits until exactly one node is to announce the address, announces it, and
// is none of not. It returns that node.
func (b *bench) waitForHolder(ctx context.Context, address netip.Addr, not ...string) (string, error) {
	var node string
	err := waitUntil(ctx, pollInterval, address.String()+" to be announced by one node", func() error {
		found, err := b.findPlacements(ctx, address)
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

// findLeaderNode returns the node of the leading manager.
func (b *bench) findLeaderNode(ctx context.Context) (node string, err error) {
	err = waitUntil(ctx, pollInterval, "a manager that leads", func() error {
		lease, p := &coordinationv1.Lease{}, &corev1.Pod{}
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "manager.purelb.io"},
			lease); err != nil {
			return err
		}
		pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: pod}, p); err != nil {
			return err
		}
		node = p.Spec.NodeName
		return nil
	})
	return node, err
}

// killProgram ends the manager or the agent on a node, as kill -9 does.
func (b *bench) killProgram(ctx context.Context, node, command string) error {
	_, err := b.lab.NodeExec(ctx, node, "pkill", "-9", "-f", "^/purelb "+command)
	return err
}

// setExcluded labels nodes so that they announce nothing, or removes the label.
func (b *bench) setExcluded(ctx context.Context, on bool, nodes ...string) error {
	label := corev1.LabelNodeExcludeBalancers + "-"
	if on {
		label = corev1.LabelNodeExcludeBalancers + "="
	}
	return b.kubectl(ctx, append(append([]string{"label", "--overwrite", "node"}, nodes...), label)...)
}

// moveAddressAway excludes nodes until another node has the address.
func (b *bench) moveAddressAway(ctx context.Context, address netip.Addr, from ...string) error {
	if err := b.setExcluded(ctx, true, from...); err != nil {
		return err
	}
	_, err := b.waitForHolder(ctx, address, from...)
	return errors.Join(err, b.setExcluded(context.WithoutCancel(ctx), false, from...))
}
