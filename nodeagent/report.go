package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// reported is a status that was written when the Announcement was of a version.
type reported struct {
	version string
	status  purelbv1.AnnouncementStatus
}

// After a report that took long there is none for mutePerReport times as long, up to
// maxMute: when a lot happens, or the API server has a lot to do, several changes are
// reported as one.
const (
	mutePerReport = 5
	maxMute       = 250 * time.Millisecond
)

// reportAll writes what is to be reported, or returns how long to wait with it. What
// was inherited is in the status of the first Announcement.
func (a *Agent) reportAll(ctx context.Context, announcements []purelbv1.Announcement, report plan.Report) (time.Duration, error) {
	if wait := time.Until(a.mute); wait > 0 {
		return wait, nil
	}
	var errs error
	wait := time.Duration(0)
	for i := range announcements {
		left, err := a.report(ctx, &announcements[i], report)
		wait, errs = earliest(wait, left), errors.Join(errs, err)
		report.Inherited = nil
	}
	return wait, errs
}

// spread returns how long yet to wait with the report of a status: one that says no
// more than that what is common has been made has time, as so many say it at once.
func (a *Agent) spread(was, is *purelbv1.AnnouncementStatus, commons []purelbv1.CommonAnnouncement) time.Duration {
	revision, over := int64(0), time.Duration(0)
	for i := range commons { // the one that was written last knows how many nodes there are
		if c := &commons[i].Spec; c.Revision > revision {
			revision, over = c.Revision, time.Duration(c.ReportSpreadSeconds)*time.Second
		}
	}
	if over == 0 || was.CommonRevision == nil || was.ObservedGeneration != is.ObservedGeneration ||
		!equality.Semantic.DeepEqual(was.Addresses, is.Addresses) || !equality.Semantic.DeepEqual(was.Interfaces, is.Interfaces) {
		return 0
	}
	if a.reportAt.IsZero() {
		a.reportAt = time.Now().Add(rand.N(over))
	}
	return time.Until(a.reportAt)
}

// report writes the status of an Announcement, if it differs from what is there: the
// status as read or, if what was read is older than the agent's last write, as
// written. The kernel says that an address is there sooner than the cache shows
// that this was reported. It returns how long yet to wait with it; 0 is not at all.
func (a *Agent) report(ctx context.Context, ann *purelbv1.Announcement, report plan.Report) (time.Duration, error) {
	if last, known := a.reported[ann.Name]; known && last.version == ann.ResourceVersion {
		ann.Status = last.status
	} else {
		delete(a.reported, ann.Name)
	}
	status := plan.Status(ann, report)
	if equality.Semantic.DeepEqual(status, ann.Status) {
		if ann.Spec.Common {
			a.reportAt = time.Time{}
		}
		return 0, nil
	}
	if wait := a.spread(&ann.Status, &status, report.Commons); wait > 0 {
		return wait, nil
	}
	a.reportAt = time.Time{}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return 0, fmt.Errorf("convert the status of Announcement %s: %w", ann.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(purelbv1.GroupVersion.WithKind("Announcement"))
	u.SetNamespace(ann.Namespace)
	u.SetName(ann.Name)
	u.SetUID(ann.UID) // not that of another of the same name
	timeout := requestTimeout
	if !a.pulse.fresh() { // nobody may be there to tell
		timeout = time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begun := time.Now()
	err = a.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldOwner), client.ForceOwnership)
	a.mute = time.Now().Add(min(mutePerReport*time.Since(begun), maxMute))
	if err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		return 0, fmt.Errorf("write the status of Announcement %s: %w", ann.Name, err)
	}
	a.reported[ann.Name] = reported{version: ann.ResourceVersion, status: status}
	return 0, nil
}
