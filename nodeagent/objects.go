package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// apiObjects are the objects that say what the node is to announce.
type apiObjects struct {
	// lbNodeAgent is nil if it does not exist, or nothing has been read yet.
	lbNodeAgent *purelbv1.LBNodeAgent
	// announcements are those by which the node announces addresses, sorted by name.
	announcements []purelbv1.Announcement
	// standbys are the node's Announcements with standby, sorted by name.
	standbys []purelbv1.Announcement
	// askings are the node's Announcements with asking, sorted by name. They are not in the checkpoint:
	// what they ask for is of use only to an API server that answers.
	askings []purelbv1.Announcement
	// commonAnnouncements are those of the LBNodeAgent, sorted by name.
	commonAnnouncements []purelbv1.CommonAnnouncement
	// isFromCheckpoint means that the objects come from the checkpoint, so that there is no API
	// server to report to.
	isFromCheckpoint bool
}

// readObjects reads the objects from the API server if isFromAPIServer, else from the cache. The
// CommonAnnouncements are read from the cache as soon as there is one: they are large, all
// nodes have them, and to be behind with them does no harm.
func (a *Agent) readObjects(ctx context.Context, isFromAPIServer bool) (apiObjects, error) {
	// The agent only reads objects, so those of the cache need not be copied.
	reader, ofNode := client.Reader(a.Client), []client.ListOption{
		client.InNamespace(a.Namespace), client.UnsafeDisableDeepCopy,
	}
	if isFromAPIServer { // the cache holds no other nodes' Announcements, and has no index
		reader, ofNode = a.APIReader, append(ofNode, client.MatchingFields{"spec.nodeName": a.NodeName})
	}
	commonReader, ofAgent := client.Reader(a.Client), []client.ListOption{
		client.InNamespace(a.Namespace), client.UnsafeDisableDeepCopy,
	}
	if !a.isCacheFilled.Load() {
		commonReader, ofAgent = a.APIReader, append(ofAgent, client.MatchingFields{"spec.lbNodeAgent": a.LBNodeAgentName})
	}
	failed := func(action string, err error) (apiObjects, error) {
		return apiObjects{}, fmt.Errorf("%w: %s: %w", errWholeSyncFailed, action, err)
	}
	announcements := &purelbv1.AnnouncementList{}
	if err := reader.List(ctx, announcements, ofNode...); err != nil {
		return failed("list Announcements", err)
	}
	common := &purelbv1.CommonAnnouncementList{}
	if err := commonReader.List(ctx, common, ofAgent...); err != nil {
		return failed("list CommonAnnouncements", err)
	}
	var objects apiObjects
	slices.SortFunc(announcements.Items, func(a, b purelbv1.Announcement) int { return cmp.Compare(a.Name, b.Name) })
	for _, ann := range announcements.Items {
		switch {
		case ann.Spec.NodeName != a.NodeName:
		case ann.Spec.Standby != nil:
			objects.standbys = append(objects.standbys, ann)
		case ann.Spec.Asking != nil:
			objects.askings = append(objects.askings, ann)
		default:
			objects.announcements = append(objects.announcements, ann)
		}
	}
	for _, c := range common.Items {
		if c.Spec.LBNodeAgent == a.LBNodeAgentName {
			objects.commonAnnouncements = append(objects.commonAnnouncements, c)
		}
	}
	slices.SortFunc(objects.commonAnnouncements, func(a, b purelbv1.CommonAnnouncement) int {
		return cmp.Compare(a.Name, b.Name)
	})
	agent := &purelbv1.LBNodeAgent{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.LBNodeAgentName}, agent)
	if client.IgnoreNotFound(err) != nil {
		return failed("get LBNodeAgent "+a.LBNodeAgentName, err)
	}
	if err == nil {
		objects.lbNodeAgent = agent
	}
	a.freshness.setPeriod(objects.announcements)
	return objects, nil
}
