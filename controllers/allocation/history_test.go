package allocation_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/test/seeds"
)

// world plays a cluster: its Services as they are stored, and an index of them that
// follows in small steps, as the manager's does.
type world struct {
	t       *testing.T
	seed    uint64
	step    int
	random  *rand.Rand
	groups  map[string]string
	catalog allocation.Catalog
	stored  map[string]*corev1.Service
	// given is what the manager has written into each Service. No decision depends on it.
	given map[string][]netip.Addr
	// labels of the namespaces.
	labels map[string]map[string]string
	index  *allocation.InUse
	// formerOwners are the deleted Services that the manager remembers. No check depends on them.
	formerOwners allocation.FormerOwners
	deleted      []string
	log          []string
	born         int64
}

// reserved are the addresses of nodes.
var reserved = map[netip.Addr]string{netip.MustParseAddr("10.0.0.4"): "a node's"}

// specs are the specifications that each group takes in turn. An empty one deletes it.
var specs = map[string][]string{
	"default": {
		"local: {v4pool: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::4', subnet: " +
			"'fd00::/64'}}",
		"local: {v4pool: {pool: 10.0.0.1-10.0.0.8, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::8', subnet: " +
			"'fd00::/64'}}",
		"local: {v4pool: {pool: 10.0.0.3-10.0.0.4, subnet: 10.0.0.0/24}}",
		"local: {v4pool: {pool: 10.0.0.9, subnet: 10.9.0.0/24}}", // not valid
		"{local: {v4pool: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::4', subnet: " +
			"'fd00::/64'}}, " +
			"reservations: [{address: 10.0.0.2, service: a/s3}, {address: 10.0.0.3, service: b/s5}, {address: 'fd00::1', " +
			"service: a/s3}]}",
		"{local: {v4pool: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}}, autoAssign: false}",
	},
	"other": {
		"{remote: {balancePools: true, v4pools: [{pool: 10.1.1.1-10.1.1.3, subnet: 10.1.1.0/24}, {pool: 10.1.2.1-10.1.2.3, " +
			"subnet: 10.1.2.0/24}]}, shareAcrossNamespaces: true}",
		"{remote: {multiPool: true, v4pools: [{pool: 10.1.1.1-10.1.1.3, subnet: 10.1.1.0/24}, {pool: 10.1.2.1-10.1.2.3, " +
			"subnet: 10.1.2.0/24}]}}",
		"remote: {v4pools: [{pool: 10.0.0.4-10.0.0.6, subnet: 10.0.0.0/24}]}", // may overlap
		"{remote: {pool: 10.1.1.1-10.1.1.6, subnet: 10.1.1.0/24}, shareAcrossNamespaces: true, autoAssign: true, " +
			"reservations: [{address: 10.1.1.2, service: b/s7}], allowedNamespaces: {from: Selector, selector: {matchLabels: " +
			"{tier: gold}}}}",
		"",
	},
	"across": {"{remote: {pool: 10.2.0.1-10.2.0.2, subnet: 10.2.0.0/24}, shareAcrossNamespaces: true}"},
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 2)), groups: map[string]string{},
		stored: map[string]*corev1.Service{}, given: map[string][]netip.Addr{}, index: allocation.NewInUse(),
		formerOwners: allocation.FormerOwners{},
	}
	w.labels = map[string]map[string]string{"a": {"tier": "gold"}, "b": {}}
	for name, all := range specs {
		w.groups[name] = all[0]
	}
	w.judge()
	return w
}

func (w *world) judge() {
	var groups []v1.ServiceGroup
	for name, spec := range w.groups {
		if spec != "" {
			groups = append(groups, groupMadeAt(w.t, name, int64(len(name)), spec))
		}
	}
	w.catalog = allocation.NewCatalog(groups, namespace)
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d: ", w.step)+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-25):] {
		w.t.Log(line)
	}
	w.t.Fatalf("seed %d (set PURELB_TEST_SEED), step %d: %s", w.seed, w.step, fmt.Sprintf(format, args...))
}

func (w *world) pick(options ...string) string { return options[w.random.IntN(len(options))] }

// names lists all Services, in an order that depends on nothing but the seed.
func (w *world) names() []string {
	var names []string
	for name := range w.stored {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// edit changes one thing that a Service asks for, as its author may.
func (w *world) edit(svc *corev1.Service) {
	annotate := func(name, value string) {
		if svc.Annotations[name] = value; value == "" {
			delete(svc.Annotations, name)
		}
	}
	families := func(policy corev1.IPFamilyPolicy, families ...allocation.Family) {
		svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies = &policy, families
	}
	switch w.random.IntN(8) {
	case 0:
		annotate(
			v1.AnnotationServiceGroup,
			w.pick("", "default", "other", "across", "across", "across", "none", strings.Repeat("x", 254)),
		)
	case 1:
		annotate(
			v1.AnnotationAddresses, w.pick("", "", "10.0.0.2", "10.0.0.4", "10.1.1.2", "10.0.0.2, fd00::2", "ten", "10.7.7.7"),
		)
	case 2:
		annotate(v1.AnnotationAllowSharedIP, w.pick("", "k", "k", "k", "l", strings.Repeat("k", 254)))
	case 3:
		svc.Spec.Ports = []corev1.ServicePort{{Port: int32(80 + w.random.IntN(4))}}
	case 4:
		annotate(v1.AnnotationMultiPool, w.pick("", "true", "false"))
	case 5:
		families(corev1.IPFamilyPolicySingleStack, allocation.IPv4)
	case 6:
		families(corev1.IPFamilyPolicyPreferDualStack, allocation.IPv6, allocation.IPv4)
	case 7:
		families(corev1.IPFamilyPolicyRequireDualStack, allocation.IPv4, allocation.IPv6)
	}
}

// forge edits what the manager writes on a Service for people to read.
func (w *world) forge(svc *corev1.Service) {
	name := w.pick(v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationAllocatedKey, v1.AnnotationPoolType)
	if svc.Annotations[name] = w.pick("", "PureLB", "default", "other", "k", "l", "local",
		strings.Repeat("z", 300)); svc.Annotations[name] == "" {
		delete(svc.Annotations, name)
	}
}

// overwrite changes the addresses that a Service shows, as another controller may.
func (w *world) overwrite(svc *corev1.Service) {
	show(svc, addresses(w.pick(
		"", "8.8.8.8", "10.0.0.1", "10.0.0.2", "10.0.0.4", "10.1.1.2", "10.7.7.7 10.0.0.1", "fd00::1",
	))...)
}

func show(svc *corev1.Service, addrs ...netip.Addr) {
	svc.Status.LoadBalancer.Ingress = nil
	for _, a := range addrs {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
}

func (w *world) create() {
	w.born++
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.pick("a", "b"), Name: fmt.Sprintf("s%d", w.born), Annotations: map[string]string{},
		CreationTimestamp: metav1.Unix(w.born/2, 0), // two in each second
	}}
	if len(w.deleted) > 0 && w.random.IntN(2) == 0 {
		again := w.deleted[w.random.IntN(len(w.deleted))]
		if namespace, name, _ := strings.Cut(again, "/"); w.stored[again] == nil {
			svc.Namespace, svc.Name = namespace, name
		}
	}
	svc.Spec.IPFamilies = []allocation.Family{allocation.IPv4}
	svc.Spec.Ports = []corev1.ServicePort{{Port: int32(80 + w.random.IntN(4))}}
	for range w.random.IntN(6) {
		w.edit(svc)
	}
	if w.random.IntN(10) == 0 {
		show(svc, addresses(w.pick("10.0.0.1", "10.0.0.2", "10.0.0.4", "10.7.7.7"))...) // to be adopted
	}
	w.note("create %s", describeService(svc))
	w.stored[nameOf(svc)] = svc
	w.see(svc)
}

func nameOf(svc *corev1.Service) string { return svc.Namespace + "/" + svc.Name }

func describeService(svc *corev1.Service) string {
	return fmt.Sprintf("%s %v %v %v, shows %v, has %s", nameOf(svc), svc.Annotations, svc.Spec.IPFamilies,
		svc.Spec.Ports[0].Port,
		allocation.ShownAddresses(svc), allocation.RecordOf(svc))
}

// see puts a Service into the index, as it is stored.
func (w *world) see(svc *corev1.Service) { w.index.Put(allocation.ServiceOf(svc, true)) }

func (w *world) allocate(svc *corev1.Service) allocation.Result {
	inputs := w.inputs()
	return allocation.Allocate(allocation.RequestOf(svc), &inputs)
}

// now is the time. A group leaves addresses to deleted Services for some steps.
func (w *world) now() time.Time { return time.Unix(int64(w.step)*20, 0) }

func (w *world) inputs() allocation.Inputs {
	return allocation.Inputs{Catalog: w.catalog, InUse: w.index, NodeAddresses: reserved, NamespaceLabels: w.labels,
		FormerOwners: w.formerOwners, Now: w.now()}
}

// reconcile allocates to one Service. The write may fail, or it may not be known whether
// it failed.
func (w *world) reconcile(name string) {
	svc := w.stored[name]
	result := w.allocate(svc)
	w.check(svc, result)
	w.checkWithoutMemory(svc, result)
	w.checkAdvice(svc, result)
	switch w.random.IntN(12) {
	case 0: // refused: another has written it in between
		w.note("%s: conflict", name)
		return
	case 1: // not written, but nobody knows
		w.note("%s: in doubt", name)
		w.index.Put(allocation.ServiceOf(svc, true).WithPendingAddresses(result.Addresses))
		return
	}
	w.note(
		"%s: %v -> %v %s: %s (lost %v)", describeService(svc), w.given[name], result.Addresses, result.Reason, result.Message,
		result.LostAddresses,
	)
	w.write(svc, result)
}

// write stores a result, and reports whether that changes anything.
func (w *world) write(svc *corev1.Service, result allocation.Result) bool {
	before := svc.DeepCopy()
	record := result.Record()
	show(svc, result.AddressesToShow(svc)...)
	svc.Status.Conditions = []metav1.Condition{
		{Type: v1.ConditionAllocated, Message: result.Message},
		{Type: v1.ConditionAllocationRecord, Message: record.String()},
	}
	w.given[nameOf(svc)] = record.Addresses
	w.see(svc)
	return !equality.Semantic.DeepEqual(before.Status, svc.Status)
}

// checkAdvice checks that the author of a Service is warned of what the allocator decides.
func (w *world) checkAdvice(svc *corev1.Service, result allocation.Result) {
	a := allocation.Admission{Namespace: namespace, Inputs: w.inputs()}
	said := a.Advise(svc)
	isWarned := slices.ContainsFunc(said, func(text string) bool { return strings.HasPrefix(text, result.Message) })
	if refused := result.Reason != v1.ReasonAllocated && result.Reason != v1.ReasonExhausted; isWarned != refused {
		w.fail("%s: the advice %q does not go with %s: %s", describeService(svc), said, result.Reason, result.Message)
	}
	if result.Warning != "" && allocation.RequestOf(svc).TooLongMessage == "" && !slices.Contains(said, result.Warning) {
		w.fail("%s: the advice %q lacks %q", describeService(svc), said, result.Warning)
	}
}

// check compares one decision with what is stored and was given, and not with the index.
func (w *world) check(svc *corev1.Service, result allocation.Result) {
	name := nameOf(svc)
	for _, a := range result.Addresses {
		if slices.Contains(w.given[name], a) {
			continue
		}
		group, _, pooled := w.catalog.GroupContaining(a)
		shown, shared := slices.Contains(allocation.ShownAddresses(svc), a), false
		isKept := pooled && group.Reservations[a] == name // whatever others show
		for _, other := range w.stored {
			shared = shared || slices.Contains(w.given[nameOf(other)], a)
			has := slices.Contains(w.given[nameOf(other)], a) ||
				!shown && !isKept && slices.Contains(allocation.ShownAddresses(other), a)
			key := allocation.SharingKeyOf(svc)
			if other != svc && has &&
				(key == "" || key != allocation.SharingKeyOf(other) || svc.Spec.Ports[0].Port == other.Spec.Ports[0].Port) {
				w.fail("%s gets %s, which %s has", name, a, nameOf(other))
			}
		}
		if !shared && (!pooled || reserved[a] != "") {
			w.fail("%s gets %s, which nobody can be given", name, a)
		}
		if !pooled {
			continue
		}
		if owner := group.Reservations[a]; owner != "" && owner != name {
			w.fail("%s gets %s, which is reserved for %s", name, a, owner)
		}
		if group.NamespaceSelector != nil && w.labels[svc.Namespace]["tier"] != "gold" {
			w.fail("%s gets %s, and may not use ServiceGroup %s", name, a, group.Name)
		}
	}
	for _, l := range result.LostAddresses {
		if slices.Contains(w.given[name], l.Address) && !slices.Contains(w.given[l.Service], l.Address) {
			w.fail("%s loses %s to %s, which was not given it", describeService(svc), l.Address, l.Service)
		}
	}
	if len(result.LostAddresses) > 0 {
		return // it says so
	}
	for _, a := range w.given[name] {
		if !slices.Contains(result.Addresses, a) && !w.mayGo(svc, a, result) {
			w.fail(
				"%s silently loses %s: %v -> %v (%s: %s)", describeService(svc), a, w.given[name], result.Addresses, result.Reason,
				result.Message,
			)
		}
	}
}

// checkWithoutMemory checks that what is left to deleted Services is refused to nobody.
func (w *world) checkWithoutMemory(svc *corev1.Service, result allocation.Result) {
	inputs := w.inputs()
	inputs.FormerOwners = nil
	without := allocation.Allocate(allocation.RequestOf(svc), &inputs)
	if without.Reason != result.Reason ||
		without.Group == result.Group && len(without.Addresses) != len(result.Addresses) {
		w.fail("%s: %v %s: %s; without deleted Services %v %s: %s", describeService(svc), result.Addresses, result.Reason,
			result.Message, without.Addresses, without.Reason, without.Message)
	}
	if !slices.Equal(without.Addresses, result.Addresses) {
		w.note("%s gets %v, not %v", nameOf(svc), result.Addresses, without.Addresses)
	}
}

// mayGo reports whether a Service asks for something that takes address a away.
func (w *world) mayGo(svc *corev1.Service, a netip.Addr, result allocation.Result) bool {
	req := allocation.RequestOf(svc)
	group, _, pooled := w.catalog.GroupContaining(a)
	switch {
	case !slices.Contains(req.Families, allocation.FamilyOf(a)):
		return true
	case result.KeepsAllocation:
		return false
	case req.RequestedAddressesText != "" || req.MultiPool == "false" && len(w.given[nameOf(svc)]) > 1:
		return true
	}
	return req.RequestedGroup != "" && req.RequestedGroup != req.Allocated.Group &&
		(!pooled || group.Name != req.RequestedGroup)
}

// settle reconciles all Services until nothing changes. No write fails.
func (w *world) settle() {
	for range 20 {
		changed := false
		for _, name := range w.names() {
			svc := w.stored[name]
			result := w.allocate(svc)
			w.check(svc, result)
			w.note("settle %s: %v -> %v %s: %s", name, w.given[name], result.Addresses, result.Reason, result.Message)
			changed = w.write(svc, result) || changed
		}
		if !changed {
			return
		}
	}
	w.fail("it does not settle")
}

// audit checks all Services after they have settled.
func (w *world) audit() {
	w.compare()
	for name, svc := range w.stored {
		result, record := w.allocate(svc), allocation.RecordOf(svc)
		given := w.given[name]
		if !slices.Equal(record.Addresses, given) || len(given) > 0 && !slices.Equal(allocation.ShownAddresses(svc), given) {
			w.fail("%s was given %v", describeService(svc), given)
		}
		for _, other := range w.stored {
			for _, a := range given {
				if other == svc || !slices.Contains(w.given[nameOf(other)], a) {
					continue
				}
				if key := record.Key; key == "" || key != allocation.RecordOf(other).Key {
					w.fail("%s is %s's and %s's", a, describeService(svc), describeService(other))
				}
				if svc.Spec.Ports[0].Port == other.Spec.Ports[0].Port &&
					(result.Reason == v1.ReasonAllocated || svc.Namespace != other.Namespace) {
					w.fail("%s and %s have one port of %s, and %s does not say so", name, nameOf(other), a, name)
				}
			}
		}
		if len(given) == 0 && result.Reason == v1.ReasonExhausted &&
			allocation.RequestOf(svc).FamilyPolicy != corev1.IPFamilyPolicyRequireDualStack {
			free := w.catalog[result.RequestedGroup].Group.Usage(w.index).AvailableIPv4 - int64(len(reserved))
			if free > 0 && slices.Contains(svc.Spec.IPFamilies, allocation.IPv4) {
				w.fail("%s waits although there is a free address: %s", name, result.Message)
			}
		}
	}
}

// compare checks that the index, which has followed in steps, is what a new one would be.
func (w *world) compare() {
	fresh := allocation.NewInUse()
	all := map[netip.Addr]bool{}
	for _, svc := range w.stored {
		fresh.Put(allocation.ServiceOf(svc, true))
		for _, a := range allocation.AddressesAllocatedOrShown(svc) {
			all[a] = true
		}
	}
	if w.index.Len() != len(all) || fresh.Len() != len(all) {
		w.fail("%d addresses are in use, %d anew; %d are had", w.index.Len(), fresh.Len(), len(all))
	}
	for a := range all {
		var old, anew []string
		for _, h := range w.index.ServicesWith(a) {
			old = append(old, h.String())
		}
		for _, h := range fresh.ServicesWith(a) {
			anew = append(anew, h.String())
		}
		if !slices.Equal(old, anew) {
			w.fail("%s is had by %v, anew by %v", a, old, anew)
		}
	}
	for name, v := range w.catalog {
		one, two := v.Group.Usage(w.index), v.Group.Usage(fresh)
		if !slices.Equal(one.AllocatedByRange, two.AllocatedByRange) {
			w.fail("ServiceGroup %s: %v in use, %v anew", name, one.AllocatedByRange, two.AllocatedByRange)
		}
	}
}

func (w *world) remove(name string) {
	if addrs := w.given[name]; len(addrs) > 0 {
		w.formerOwners.Add(name, addrs, w.now())
		w.deleted = append(w.deleted, name)
	}
	delete(w.stored, name)
	delete(w.given, name)
	w.index.Delete(name)
}

func (w *world) act() {
	names := w.names()
	one := func() string { return names[w.random.IntN(len(names))] }
	switch n := w.random.IntN(100); {
	case n < 20 && len(names) < 14 || len(names) == 0:
		w.create()
	case n < 30:
		name := one()
		w.note("delete %s", name)
		w.remove(name)
	case n < 43:
		svc := w.stored[one()]
		w.edit(svc)
		w.note("edit %s", describeService(svc))
		// What is in doubt stays reserved until the Service is known anew.
		w.see(svc)
	case n < 49:
		svc := w.stored[one()]
		if n < 46 {
			w.forge(svc)
		} else {
			w.overwrite(svc)
		}
		w.note("attack %s", describeService(svc))
		w.see(svc)
	case n < 53:
		name := w.pick("default", "other")
		w.groups[name] = w.pick(specs[name]...)
		w.note("group %s: %s", name, w.groups[name])
		w.judge()
	case n == 53:
		w.labels["b"] = map[string]string{"tier": w.pick("gold", "free")}
		w.note("namespace b: %v", w.labels["b"])
	case n < 56: // a new leader knows nothing but what is stored
		w.note("restart")
		w.index, w.formerOwners = allocation.NewInUse(), allocation.FormerOwners{}
		for _, name := range names {
			w.see(w.stored[name])
		}
	case n < 57: // a second leader has given an address away again
		from, to := w.stored[one()], w.stored[one()]
		if record := allocation.RecordOf(from); from != to && len(record.Addresses) > 0 {
			w.note("%s is given %v of %s again", describeService(to), record.Addresses, nameOf(from))
			w.write(to, allocation.Result{Addresses: record.Addresses[:1], Group: record.Group, Type: record.Type})
		}
	default:
		w.reconcile(one())
	}
}

// TestHistories plays random histories, in which others edit what the manager has
// written, and checks each decision and, after each has settled, that nothing is lost,
// leaked or had twice, and that nothing is a Service's that it was not given.
func TestHistories(t *testing.T) {
	histories, first := 3000, seeds.First(t)
	if testing.Short() {
		histories = 100
	}
	for i := range histories {
		w := newWorld(t, first+uint64(i))
		for w.step = range 120 {
			w.act()
		}
		w.settle()
		w.audit()
		for _, name := range w.names() {
			w.remove(name)
		}
		if w.compare(); w.index.Len() != 0 {
			w.fail("something is left")
		}
	}
}
