package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/informer"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/internal/watchdog"
)

// ManagerOptions returns the options of the controller manager that runs a node's agent. It
// knows the agent's few kinds without asking the API server, so that it starts while that is
// away, and watches only objects that concern the node.
func ManagerOptions(nodeName, namespace, lbNodeAgent string) (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(coordinationv1.AddToScheme(scheme), purelbv1.AddToScheme(scheme)); err != nil {
		return ctrl.Options{}, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	// The cache looks up the kinds of lists by themselves.
	for _, kind := range []string{
		"Announcement", "AnnouncementList", "CommonAnnouncement", "CommonAnnouncementList", "LBNodeAgent", "LBNodeAgentList",
	} {
		mapper.Add(purelbv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	inNamespace := map[string]cache.Config{namespace: {}}
	return ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      newInformerFor(nodeName),
			ByObject: map[client.Object]cache.ByObject{
				&purelbv1.Announcement{}: {Namespaces: inNamespace}, // of these newInformerFor chooses the node's
				&purelbv1.CommonAnnouncement{}: {
					Namespaces: inNamespace, Field: fields.OneTermEqualSelector("spec.lbNodeAgent", lbNodeAgent),
				},
				&purelbv1.LBNodeAgent{}: {
					Namespaces: inNamespace, Field: fields.OneTermEqualSelector("metadata.name", lbNodeAgent),
				},
			},
		},
	}, nil
}

// newInformerFor returns what makes informers for the agent of a node. That of Announcements knows the node's. While
// the node has only one, it watches that by its name: an API server hands a change of any node's Announcement to all
// watches by spec.nodeName.
func newInformerFor(
	nodeName string,
) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	ofNode := informer.Narrowing{
		Wide:   fields.OneTermEqualSelector("spec.nodeName", nodeName).String(),
		Narrow: fields.OneTermEqualSelector("metadata.name", nodeName).String(),
		IsSole: func(object runtime.Object) bool {
			ann, isAnnouncement := object.(*purelbv1.Announcement)
			return isAnnouncement && ann.Name == nodeName && ann.Spec.Sole
		},
	}
	return func(
		lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
	) toolscache.SharedIndexInformer {
		if _, isAnnouncement := kind.(*purelbv1.Announcement); isAnnouncement {
			return informer.NewNarrowing(lw, ofNode, kind, resync, indexers)
		}
		return informer.NewPersistent(lw, kind, resync, indexers)
	}
}

// prepare makes the agent's components.
func (a *Agent) prepare() {
	a.wake, a.statusChanged, a.emptyItem = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	if a.Tasks == nil {
		a.Tasks = tasks.Goroutines{}
	}
	if a.SuspendedFor == nil {
		a.SuspendedFor = suspendedSinceBoot
	}
	if a.Disk == nil {
		a.Disk = nodeDisk{}
	}
	a.heartbeatLists, a.listResults = make(chan listRequest, 1), make(chan listResult, 1)
	a.listsChanged = make(chan struct{}, 1)
	a.workerEnded, a.state = make(chan struct{}, 1), workerState{}
	a.freshness = newFreshness(a.Tasks.Now, a.SuspendedFor)
	a.watchdog = watchdog.New(watchdog.Options{
		Program: "agent", Round: "sync", StuckAfter: stuckAfter, StartTimeout: startTimeout, Now: a.Tasks.Now,
	})
	a.announcer = newAnnouncer(a.Neighbours, a.Metrics, a.Tasks)
	a.prober = newProber(a.Neighbours, a.wake, a.Tasks)
	a.defender = newDefender(a)
	a.watching = newWatching(a)
	a.reachability = newReachability(a)
	a.reporter = newReporter(a)
	a.checkpointSaver = newCheckpointSaver(a)
	if a.Ownership != nil {
		a.ownershipSaver = newOwnershipSaver(a)
	}
}

// SetupWithManager adds the agent's components to mgr, and what tells them of changes in its cache.
func (a *Agent) SetupWithManager(mgr ctrl.Manager) error {
	components := append(a.MakeComponents(), manager.RunnableFunc(func(ctx context.Context) error {
		return a.watchAPI(ctx, mgr.GetCache())
	}))
	var errs error
	for _, r := range components {
		errs = errors.Join(errs, mgr.Add(r))
	}
	return errs
}

// MakeComponents prepares the agent and returns its worker, announcer, defender, watching, reachability, reporter,
// savers and heartbeat, and what tells them of changes in the kernel. They have to be started. Who starts them tells
// the agent of changes in the cache by way of CacheHandler and NoteCacheFilled.
func (a *Agent) MakeComponents() []manager.Runnable {
	a.prepare()
	a.loadCheckpoint()
	components := []manager.Runnable{
		a, manager.RunnableFunc(a.watchKernel), a.announcer, a.defender, a.watching, a.reachability, a.reporter,
		newHeartbeat(a),
	}
	for _, s := range a.savers() {
		components = append(components, s)
	}
	return components
}
