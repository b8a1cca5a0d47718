package controllers

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/condition"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// ServiceGroupReconciler reports on ServiceGroups: whether the manager allocates from
// them, and how many of their addresses are in use.
type ServiceGroupReconciler struct {
	Client                client.Client
	Recorder              events.EventRecorder
	Namespace             string // the manager's, where ServiceGroups have an effect
	IsDefaultLoadBalancer bool   // PureLB serves Services without a loadBalancerClass
	Metrics               *Metrics
	IPAM                  *ExternalIPAM
}

// +kubebuilder:rbac:groups=purelb.io,resources=servicegroups/status,verbs=patch

// SetupWithManager registers the reconciler.
func (r *ServiceGroupReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c := r.Component()
	return c.setupWithManager(mgr)
}

// Component returns the reconciler and what wakes it.
func (r *ServiceGroupReconciler) Component() Component {
	return Component{
		Name: "servicegroup", Reconciler: r, For: &v1.ServiceGroup{}, ForChanged: predicate.GenerationChangedPredicate{},
		Watches: []Watch{
			// The verdict on a group depends on the other groups.
			{Object: &v1.ServiceGroup{}, Handler: batched(r.requestsForAllGroups), Changed: specOrRangesChanged},
			// Another client may have written the status.
			{Object: &v1.ServiceGroup{}, Handler: batchedFor(countDelay, requestForObject)},
			{
				Object: &corev1.Service{}, Handler: batchedFor(countDelay, r.requestsForAllGroups),
				Changed: servicePlacementChanged,
			},
			{Object: &v1.Announcement{}, Handler: batched(r.requestsForAllGroups), Changed: localSubnetsChanged},
			{Object: &v1.LBNodeAgent{}, Handler: batched(r.requestsForAllGroups), Changed: allowedSubnetsChanged},
			{
				Object: &corev1.Namespace{}, Handler: batched(r.requestsForAllGroups), Changed: namespaceLabelsChanged,
				IsMetadata: true,
			},
			{
				Object: &corev1.Node{}, Handler: batched(r.requestsForAllGroups),
				Changed: predicate.Or[client.Object](nodeAddressesChanged, nodeReadinessChanged),
			},
		},
		Sources: []source.Source{queueSource(&r.IPAM.groupQueue)},
	}
}

// requestForObject maps an object to its own request.
func requestForObject(_ context.Context, obj client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(obj)}}
}

// requestsForAllGroups maps any object to all ServiceGroups.
func (r *ServiceGroupReconciler) requestsForAllGroups(ctx context.Context, _ client.Object) []reconcile.Request {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Cannot list ServiceGroups")
		return nil
	}
	return requestsOf(groups.Items, func(*v1.ServiceGroup) bool { return true })
}

// Reconcile writes the status of one ServiceGroup.
func (r *ServiceGroupReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	sg := &v1.ServiceGroup{}
	if err := r.Client.Get(ctx, req.NamespacedName, sg); err != nil {
		if client.IgnoreNotFound(err) == nil && req.Namespace == r.Namespace {
			r.Metrics.DeletePool(req.Name)
			r.IPAM.broker.Configure(req.Name, nil) //nolint:contextcheck // what it starts outlives the request
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	inputs, err := r.gather(ctx, sg)
	if err != nil || inputs.verdict == nil {
		return reconcile.Result{}, err // a group without a verdict has just been deleted
	}
	status := groupStatus(inputs.group, inputs)
	if sg.Namespace == r.Namespace {
		r.Metrics.SetPool(sg.Name, &status)
		r.Metrics.SetIPAM(sg.Name, inputs.observation)
	}
	// The routing controller writes the condition Advertised.
	meta.RemoveStatusCondition(&sg.Status.Conditions, v1.ConditionGroupAdvertised)
	if equality.Semantic.DeepEqual(status, sg.Status) {
		return reconcile.Result{}, nil
	}
	before := sg.Status
	sg.Status = status
	if err := applyStatusOver(ctx, r.Client, sg, ownerServiceGroup, sg.ResourceVersion); err != nil {
		return resultOfWrite(err)
	}
	r.recordBadConditions(sg, before.Conditions, status.Conditions)
	return reconcile.Result{}, nil
}

// recordBadConditions records an event for each condition that has turned bad, or is bad for
// another reason than before.
func (r *ServiceGroupReconciler) recordBadConditions(sg *v1.ServiceGroup, before, after []metav1.Condition) {
	for _, c := range []struct {
		conditionType string
		bad           metav1.ConditionStatus
	}{
		{v1.ConditionReady, metav1.ConditionFalse}, {v1.ConditionNodeAddressesExceeded, metav1.ConditionTrue},
		{v1.ConditionReachable, metav1.ConditionFalse}, {v1.ConditionSubnetNotFound, metav1.ConditionTrue},
	} {
		was, is := meta.FindStatusCondition(before, c.conditionType), meta.FindStatusCondition(after, c.conditionType)
		if is != nil && is.Status == c.bad && (was == nil || was.Reason != is.Reason || was.Message != is.Message) {
			r.Recorder.Eventf(
				sg, nil, corev1.EventTypeWarning, is.Reason, "Validate", "%s", textlimit.Shorten(is.Message, maxNote),
			)
		}
	}
}

// groupInputs are what the status of a ServiceGroup is made from.
type groupInputs struct {
	// group has in its status what is known of its external system, and observation is
	// that, or nil.
	group       *v1.ServiceGroup
	observation *ipam.Observation
	verdict     *allocation.Verdict // nil if there is no such group
	// used is nil for a group that is not in the manager's namespace. What follows is not set either.
	used *allocation.InUse
	// excess is what nodes report of all pools beyond what is reserved for them.
	excess       []allocation.ExcessAddresses
	announceType func(allocation.Range) v1.AnnounceType
	// subnetsNotFound are those of the group that no node is in, as far as agents have reported.
	// areFactsComplete is that all have.
	subnetsNotFound  []netip.Prefix
	areFactsComplete bool
}

func (r *ServiceGroupReconciler) gather(ctx context.Context, sg *v1.ServiceGroup) (*groupInputs, error) {
	if sg.Namespace != r.Namespace {
		return &groupInputs{group: sg, verdict: allocation.OutOfScopeVerdict(sg, r.Namespace)}, nil
	}
	inputs, groups, err := allocationInputs(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, err
	}
	parsed, _, errs := allocation.ParseGroup(sg)
	if len(errs) > 0 {
		parsed.Netbox = nil
	}
	r.IPAM.broker.Configure(sg.Name, parsed.Netbox) //nolint:contextcheck // what it starts outlives the request
	observation := r.IPAM.broker.Observation(sg.Name)
	group := withObservation(sg, observation)
	if parsed.IsExternal() {
		groups = slices.Clone(groups)
		for i := range groups {
			if groups[i].Name == sg.Name {
				groups[i] = *group
			}
		}
		inputs.Catalog = allocation.NewCatalog(groups, r.Namespace)
	}
	used, err := GatherInUse(ctx, r.Client, r.IsDefaultLoadBalancer)
	if err != nil {
		return nil, err
	}
	inputs.InUse = used
	gathered := &groupInputs{
		group: group, observation: observation, verdict: inputs.Catalog[sg.Name], used: used,
		excess:       inputs.ExcessNodeAddresses,
		announceType: inputs.AnnounceType, areFactsComplete: inputs.AreFactsComplete(),
	}
	if verdict := gathered.verdict; verdict != nil {
		verdict.Warnings = append(verdict.Warnings, inputs.GroupWarnings(&verdict.Group)...)
		gathered.subnetsNotFound = inputs.SubnetsNotFound(&verdict.Group)
	}
	return gathered, nil
}

// groupStatus returns the status that a ServiceGroup is to have.
func groupStatus(sg *v1.ServiceGroup, inputs *groupInputs) v1.ServiceGroupStatus {
	verdict, group := inputs.verdict, &inputs.verdict.Group
	status := v1.ServiceGroupStatus{
		ObservedGeneration: sg.Generation,
		Type:               group.Type,
		Conditions:         append([]metav1.Condition(nil), sg.Status.Conditions...),
	}
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: condition.StatusOf(verdict.IsReady()), ObservedGeneration: sg.Generation,
		Reason:  verdict.Reason,
		Message: textlimit.Shorten(strings.Join(append([]string{verdict.Message}, verdict.Warnings...), "; "), maxMessage),
	}
	meta.RemoveStatusCondition(&status.Conditions, v1.ConditionGroupAdvertised)
	condition.SetReady(&status.Conditions, ready, !verdict.IsReady() && !verdict.IsWaitingForIPAM())
	setWhileTrue(&status.Conditions, sg.Generation, v1.ConditionNodeAddressesExceeded, v1.ReasonTooManyNodeAddresses,
		allocation.DescribeExcess(group, inputs.excess))
	// While a node joins, a condition that is there stays, and none comes.
	if inputs.areFactsComplete || len(inputs.subnetsNotFound) == 0 ||
		meta.IsStatusConditionTrue(status.Conditions, v1.ConditionSubnetNotFound) {
		setWhileTrue(&status.Conditions, sg.Generation, v1.ConditionSubnetNotFound, v1.ReasonSubnetNotFound,
			allocation.DescribeSubnetsNotFound(inputs.subnetsNotFound))
	}
	status.LastIPAMSync = sg.Status.LastIPAMSync
	if inputs.used == nil || !verdict.IsReady() && !group.IsExternal() {
		return status
	}
	usage := group.Usage(inputs.used)
	status.AllocatedIPv4, status.AllocatedIPv6 = usage.AllocatedIPv4, usage.AllocatedIPv6
	status.AvailableIPv4, status.AvailableIPv6 = usage.AvailableIPv4, usage.AvailableIPv6
	status.ReservedIPv4, status.ReservedIPv6 = usage.ReservedIPv4, usage.ReservedIPv6
	var ranges []string
	for i, rg := range group.Ranges {
		pool := v1.PoolStatus{
			Range: rg.String(), Subnet: rg.Subnet.String(), Announce: v1.AnnounceVirtual,
			Capacity: rg.Capacity(), Allocated: usage.AllocatedByRange[i], Reserved: usage.ReservedByRange[i],
		}
		if group.IsExternal() {
			pool.Recorded = &group.Ranges[i].Recorded
		}
		if group.Type != v1.PoolTypeRemote {
			pool.Announce = inputs.announceType(rg)
		}
		status.Pools = append(status.Pools, pool)
		ranges = append(ranges, pool.Range)
	}
	status.AnnouncedAs = allocation.AnnouncedAs(status.Pools)
	status.AvailableIPv6Text = countText(status.AvailableIPv6)
	status.Ranges = textlimit.Shorten(strings.Join(ranges, ","), maxRangesText)
	return status
}

// countText writes a number for the table, where one that nobody needs to know is ">10^18".
func countText(n int64) string {
	if n > 1e18 {
		return ">10^18"
	}
	return strconv.FormatInt(n, 10)
}
