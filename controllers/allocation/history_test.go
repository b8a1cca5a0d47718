package allocation_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// world plays a cluster: its Services as they are stored, and an index of them
// that is kept by small steps, as the manager keeps it.
type world struct {
	t       *testing.T
	seed    uint64
	step    int
	random  *rand.Rand
	groups  map[string]string
	catalog allocation.Catalog
	stored  map[string]*allocation.Request
	index   *allocation.InUse
	log     []string
	born    int64
}

// specs is what a group can be, of which one is nothing.
var specs = map[string][]string{
	"default": {
		"local: {v4pool: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::4', subnet: 'fd00::/64'}}",
		"local: {v4pool: {pool: 10.0.0.1-10.0.0.8, subnet: 10.0.0.0/24}, v6pool: {pool: 'fd00::1-fd00::8', subnet: 'fd00::/64'}}",
		"local: {v4pool: {pool: 10.0.0.3-10.0.0.4, subnet: 10.0.0.0/24}}",
		"local: {v4pool: {pool: 10.0.0.9, subnet: 10.9.0.0/24}}", // not valid
	},
	"other": {
		"{remote: {balancePools: true, v4pools: [{pool: 10.1.1.1-10.1.1.3, subnet: 10.1.1.0/24}, {pool: 10.1.2.1-10.1.2.3, subnet: 10.1.2.0/24}]}, shareAcrossNamespaces: true}",
		"{remote: {multiPool: true, v4pools: [{pool: 10.1.1.1-10.1.1.3, subnet: 10.1.1.0/24}, {pool: 10.1.2.1-10.1.2.3, subnet: 10.1.2.0/24}]}}",
		"remote: {v4pools: [{pool: 10.0.0.4-10.0.0.6, subnet: 10.0.0.0/24}]}", // may overlap
		"",
	},
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 2)), groups: map[string]string{}, stored: map[string]*allocation.Request{}, index: allocation.NewInUse()}
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
			groups = append(groups, aged(w.t, name, int64(len(name)), spec))
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
	w.t.Fatalf("seed %d (set HISTORY_SEED), step %d: %s", w.seed, w.step, fmt.Sprintf(format, args...))
}

func (w *world) pick(options ...string) string { return options[w.random.IntN(len(options))] }

// names is all Services, in an order that depends on nothing but the seed.
func (w *world) names() []string {
	var names []string
	for name := range w.stored {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// edit changes one wish of a Service, as its author may.
func (w *world) edit(req *allocation.Request) {
	switch w.random.IntN(8) {
	case 0:
		req.Group = w.pick("", "default", "other", "none")
	case 1:
		req.Named = w.pick("", "10.0.0.2", "10.1.1.2", "10.0.0.2, fd00::2", "ten", "10.7.7.7")
	case 2:
		req.SharingKey = w.pick("", "k", "k", "l")
	case 3:
		req.Ports = []corev1.ServicePort{{Port: int32(80 + w.random.IntN(4))}}
	case 4:
		req.MultiPool = w.pick("", "true", "false")
	case 5:
		req.Policy, req.Families = corev1.IPFamilyPolicySingleStack, []allocation.Family{allocation.IPv4}
	case 6:
		req.Policy, req.Families = corev1.IPFamilyPolicyPreferDualStack, []allocation.Family{allocation.IPv6, allocation.IPv4}
	case 7:
		req.Policy, req.Families = corev1.IPFamilyPolicyRequireDualStack, []allocation.Family{allocation.IPv4, allocation.IPv6}
	}
}

func (w *world) create() {
	w.born++
	req := &allocation.Request{Policy: corev1.IPFamilyPolicySingleStack, Families: []allocation.Family{allocation.IPv4}, NamedIn: "annotation"}
	req.Namespace, req.Name, req.Ours = w.pick("a", "a", "b"), fmt.Sprintf("s%d", w.born), true
	req.Created = time.Unix(w.born/2, 0) // two in each second
	req.Ports = []corev1.ServicePort{{Port: int32(80 + w.random.IntN(4))}}
	for range w.random.IntN(3) {
		w.edit(req)
	}
	if w.random.IntN(10) == 0 {
		req.Addresses = addresses(w.pick("10.0.0.1", "10.0.0.2", "10.7.7.7")) // to be adopted
	}
	w.note("create %s %+v", &req.Holder, req)
	w.stored[req.String()] = req
	w.see(req)
}

// see puts a Service into the index as it is stored.
func (w *world) see(req *allocation.Request) {
	h := req.Holder
	h.Addresses = slices.Clone(h.Addresses)
	w.index.Put(&h)
}

func (w *world) allocate(req *allocation.Request) allocation.Result {
	return allocation.Allocate(req, &allocation.Facts{Catalog: w.catalog, InUse: w.index})
}

// reconcile serves one Service. The write may fail, for certain or in doubt.
func (w *world) reconcile(name string) {
	req := w.stored[name]
	result := w.allocate(req)
	w.check(req, result)
	set := *req
	set.Addresses = append(slices.Clone(req.Addresses), result.Addresses...)
	switch w.random.IntN(12) {
	case 0: // refused: another has written it in between
		w.note("%s: conflict", name)
		return
	case 1: // not written, but nobody knows
		w.note("%s: in doubt", name)
		w.see(&set)
		return
	}
	w.note("%s: %v -> %v %s: %s (lost %v)", name, req.Addresses, result.Addresses, result.Reason, result.Message, result.Lost)
	w.write(req, result)
}

// write stores what was decided, and reports whether that changes anything.
func (w *world) write(req *allocation.Request, result allocation.Result) bool {
	before := req.Holder
	req.Addresses = result.Addresses
	if result.Group != "" {
		req.Branded, req.AllocatedFrom = true, result.Group
	}
	if req.Branded {
		req.AllocatedKey = result.Key
	}
	w.see(req)
	return !slices.Equal(before.Addresses, req.Addresses) || before.Branded != req.Branded ||
		before.AllocatedFrom != req.AllocatedFrom || before.AllocatedKey != req.AllocatedKey
}

// check judges one decision by what is stored, not by the index.
func (w *world) check(req *allocation.Request, result allocation.Result) {
	for _, a := range result.Addresses {
		had := slices.Contains(req.Addresses, a)
		for _, other := range w.stored {
			if other == req || !slices.Contains(other.Addresses, a) || had {
				continue
			}
			shared := req.SharingKey != "" && req.SharingKey == other.SharingKey && req.Ports[0].Port != other.Ports[0].Port
			if !shared {
				w.fail("%s gets %s, which %s has", req, a, other)
			}
		}
	}
	if len(result.Lost) > 0 {
		return // it says so
	}
	for _, a := range req.Addresses {
		if !slices.Contains(result.Addresses, a) && !w.mayGo(req, a, result) {
			w.fail("%s silently loses %s: %v -> %v (%s: %s)", req, a, req.Addresses, result.Addresses, result.Reason, result.Message)
		}
	}
}

// mayGo reports whether a Service has asked for something that takes a away.
func (w *world) mayGo(req *allocation.Request, a netip.Addr, result allocation.Result) bool {
	group, _, pooled := w.catalog.GroupOf(a)
	switch {
	case result.Reason != v1.ReasonAllocated && result.Group == "":
		return false
	case !slices.Contains(req.Families, allocation.FamilyOf(a)):
		return true
	case req.Named != "" || req.MultiPool == "false" && len(req.Addresses) > 1:
		return true
	case req.Group != "" && req.Group != req.AllocatedFrom && (!pooled || group.Name != req.Group):
		return true
	}
	return !req.Branded && !pooled
}

// settle reconciles all until nothing changes, without failures.
func (w *world) settle() {
	for range 20 {
		changed := false
		for _, name := range w.names() {
			req := w.stored[name]
			result := w.allocate(req)
			w.check(req, result)
			w.note("settle %s: %v -> %v %s: %s", name, req.Addresses, result.Addresses, result.Reason, result.Message)
			changed = w.write(req, result) || changed
		}
		if !changed {
			return
		}
	}
	w.fail("it does not settle")
}

// audit checks everything when all is settled.
func (w *world) audit() {
	w.compare()
	for _, req := range w.stored {
		result := w.allocate(req)
		for _, other := range w.stored {
			for _, a := range req.Addresses {
				if other == req || !slices.Contains(other.Addresses, a) {
					continue
				}
				if key := sharedBy(req); key == "" || key != sharedBy(other) {
					w.fail("%s is %s's by key %q and %s's by key %q", a, req, key, other, sharedBy(other))
				}
				if result.Reason == v1.ReasonAllocated && req.Ports[0].Port == other.Ports[0].Port {
					w.fail("%s and %s have one port of %s, and %s does not say so", req, other, a, req)
				}
			}
		}
		if len(req.Addresses) == 0 && result.Reason == v1.ReasonExhausted && req.Policy != corev1.IPFamilyPolicyRequireDualStack {
			usage := w.catalog[result.Asked].Group.Usage(w.index)
			if usage.AvailableIPv4 > 0 && slices.Contains(req.Families, allocation.IPv4) {
				w.fail("%s waits although there is a free address: %s", req, result.Message)
			}
		}
	}
}

// sharedBy is the key by which a Service was given what it has, or by which it
// offers to share what we did not give it.
func sharedBy(req *allocation.Request) string {
	if req.Branded {
		return req.AllocatedKey
	}
	return req.SharingKey
}

// compare checks that the index, kept by steps, is what a new one would be.
func (w *world) compare() {
	fresh := allocation.NewInUse()
	all := map[netip.Addr]bool{}
	for _, req := range w.stored {
		fresh.Put(&req.Holder)
		for _, a := range req.Addresses {
			all[a] = true
		}
	}
	if w.index.Len() != len(all) || fresh.Len() != len(all) {
		w.fail("%d addresses are in use, %d anew; %d are had", w.index.Len(), fresh.Len(), len(all))
	}
	for a := range all {
		var old, anew []string
		for _, h := range w.index.Holders(a) {
			old = append(old, h.String())
		}
		for _, h := range fresh.Holders(a) {
			anew = append(anew, h.String())
		}
		if !slices.Equal(old, anew) {
			w.fail("%s is had by %v, anew by %v", a, old, anew)
		}
	}
	for name, v := range w.catalog {
		if one, two := v.Group.Usage(w.index), v.Group.Usage(fresh); !slices.Equal(one.Ranges, two.Ranges) {
			w.fail("ServiceGroup %s: %v in use, %v anew", name, one.Ranges, two.Ranges)
		}
	}
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
		delete(w.stored, name)
		w.index.Delete(name)
	case n < 45:
		req := w.stored[one()]
		w.edit(req)
		w.note("edit %s: %+v", &req.Holder, req)
		// What is in doubt stays reserved until the Service is known anew.
		w.see(req)
	case n < 49:
		name := w.pick("default", "other")
		w.groups[name] = w.pick(specs[name]...)
		w.note("group %s: %s", name, w.groups[name])
		w.judge()
	case n < 52: // a new leader knows nothing but what is stored
		w.note("restart")
		w.index = allocation.NewInUse()
		for _, name := range names {
			w.see(w.stored[name])
		}
	case n < 53: // a second leader has given an address away again
		from, to := w.stored[one()], w.stored[one()]
		if from != to && len(from.Addresses) > 0 && from.Branded {
			w.note("%s is given %v of %s again", to, from.Addresses, from)
			to.Addresses, to.Branded, to.AllocatedFrom, to.AllocatedKey = slices.Clone(from.Addresses[:1]), true, from.AllocatedFrom, to.SharingKey
			if to.AllocatedKey == from.AllocatedKey {
				to.AllocatedKey = ""
			}
			w.see(to)
		}
	default:
		w.reconcile(one())
	}
}

// TestHistories plays random histories, and checks each decision and, after each
// has settled, that nothing is lost, leaked or had twice.
func TestHistories(t *testing.T) {
	histories, first := 3000, uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("HISTORY_SEED"), 10, 64); err == nil {
		histories, first = 1, s
	}
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
			delete(w.stored, name)
			w.index.Delete(name)
		}
		if w.compare(); w.index.Len() != 0 {
			w.fail("something is left")
		}
	}
}
