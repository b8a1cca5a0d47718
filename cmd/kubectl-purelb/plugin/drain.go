package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/mergepatch"
)

// drainedLabelValue is the value of the label that drain puts on a Node. Kubernetes looks at the key only.
const drainedLabelValue = "kubectl-purelb-drain"

// pollInterval is how often drain and rebalance look what a node still has.
const pollInterval = 250 * time.Millisecond

// DrainOutcome is what came of a drain.
type DrainOutcome struct {
	Node string `json:"node"`
	// Left is what the node still announces or is to announce.
	Left []string `json:"left"`
}

// Drain keeps a node out of load balancing, with the label that every load balancer of Kubernetes
// heeds, and waits until the node announces nothing any more. It writes what is left to w each time
// that it changes. Nothing is changed if that could not be seen; then the result is nil. The label stays when
// ctx ends first: then the error says what is still there.
func Drain(ctx context.Context, c client.Client, namespace, name string, w io.Writer) (*DrainOutcome, error) {
	if err := checkCanListAnnouncements(ctx, c, namespace, name); err != nil {
		return nil, fmt.Errorf("node %s is as it was: %w", name, err)
	}
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, err
	}
	if _, isExcluded := node.Labels[corev1.LabelNodeExcludeBalancers]; !isExcluded {
		if err := mergepatch.SetLabel(ctx, c, node, corev1.LabelNodeExcludeBalancers, drainedLabelValue); err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(w, "node %s is labelled %s\n", name, corev1.LabelNodeExcludeBalancers)
	} else {
		_, _ = fmt.Fprintf(w, "node %s is already labelled %s\n", name, corev1.LabelNodeExcludeBalancers)
	}
	last, result := "", &DrainOutcome{Node: name, Left: []string{}}
	for {
		left, err := leftOn(ctx, c, namespace, name)
		switch {
		case err == nil && len(left) == 0:
			_, _ = fmt.Fprintf(w, "node %s announces nothing any more\n", name)
			result.Left = []string{}
			return result, nil
		case err == nil:
			result.Left = left
			if text := printableLine(strings.Join(left, ", ")); text != last {
				last = text
				_, _ = fmt.Fprintf(w, "%s left on node %s: %s\n", addressCount(len(left)), name, text)
			}
		case apierrors.IsForbidden(err):
			return result, err
		}
		select {
		case <-ctx.Done():
			return result, errors.Join(fmt.Errorf("node %s still has %s; the label stays, so the manager goes on: kubectl "+
				"purelb explain service says why an address cannot leave, and kubectl purelb undrain %s takes it back",
				name, cmp.Or(last, "its addresses"), name), err)
		case <-time.After(pollInterval):
		}
	}
}

// checkCanListAnnouncements says why it could not be seen what a node announces.
func checkCanListAnnouncements(ctx context.Context, c client.Reader, namespace, node string) error {
	var agents v1.LBNodeAgentList
	switch err := c.List(ctx, &agents, client.InNamespace(namespace)); {
	case isUnknownKind(err):
		return ErrNotInstalled
	case err != nil:
		return fmt.Errorf("list LBNodeAgents: %w", err)
	}
	if len(agents.Items) == 0 {
		return fmt.Errorf("namespace %s has no LBNodeAgent: say by --purelb-namespace where PureLB is", namespace)
	}
	if _, err := leftOn(ctx, c, namespace, node); err != nil {
		return fmt.Errorf("list Announcements: %w", err)
	}
	return nil
}

// UndrainOutcome is what came of the end of a drain.
type UndrainOutcome struct {
	Node string `json:"node"`
	// WasDrained is that the node had the label.
	WasDrained bool `json:"wasDrained"`
}

// Undrain lets a node take part in load balancing again. It removes only a label that Drain has
// put there, unless force is set. Nothing moves back by itself.
func Undrain(ctx context.Context, c client.Client, name string, force bool, w io.Writer) (*UndrainOutcome, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, err
	}
	value, isExcluded := node.Labels[corev1.LabelNodeExcludeBalancers]
	switch {
	case !isExcluded:
		_, _ = fmt.Fprintf(w, "node %s is not labelled %s\n", name, corev1.LabelNodeExcludeBalancers)
		return &UndrainOutcome{Node: name}, nil
	case value != drainedLabelValue && !force:
		return nil, fmt.Errorf(
			"node %s has label %s=%s, which kubectl purelb drain has not put there: use --force to remove it", name,
			corev1.LabelNodeExcludeBalancers, value,
		)
	}
	if err := mergepatch.SetLabel(ctx, c, node, corev1.LabelNodeExcludeBalancers, ""); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(w, "node %s may be given addresses again; none moves back by itself\n", name)
	return &UndrainOutcome{Node: name, WasDrained: true}, nil
}

// leftOn lists the addresses that a node announces or is to announce.
func leftOn(ctx context.Context, c client.Reader, namespace, node string) ([]string, error) {
	var list v1.AnnouncementList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var left []string
	hasShared := false
	for i := range list.Items {
		a := &list.Items[i]
		if a.Spec.NodeName != node {
			continue
		}
		for _, e := range a.Spec.Addresses {
			left = append(left, e.Address)
		}
		for _, s := range a.Status.Addresses {
			if s.State == v1.StateAnnounced {
				left = append(left, s.Address)
			}
		}
		if a.Spec.IncludeCommonAnnouncements || a.Status.CommonAnnouncementsRevision != nil {
			hasShared = true
		}
	}
	slices.Sort(left)
	left = slices.Compact(left)
	if hasShared {
		left = append(left, "the Virtual addresses of all nodes")
	}
	return left, nil
}
