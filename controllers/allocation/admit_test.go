package allocation_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// admissionOf returns what objects are checked against beside groups, and Services
// test/s1 and so on to which the addresses are allocated.
func admissionOf(addrs string, groups ...v1.ServiceGroup) *allocation.Admission {
	a := &allocation.Admission{Namespace: namespace, Groups: groups}
	a.Catalog, a.InUse = allocation.NewCatalog(groups, namespace), allocation.NewInUse()
	for i, addr := range addresses(addrs) {
		a.InUse.Put(allocatedService(fmt.Sprintf("s%d", i+1), addr))
	}
	return a
}

// allocatedService is a Service test/name to which an address is allocated.
func allocatedService(name string, addr netip.Addr) *allocation.Service {
	all := []netip.Addr{addr}
	return &allocation.Service{
		Namespace: "test", Name: name, IsOurs: true, Addresses: all, Allocated: allocation.Record{Addresses: all},
	}
}

const orphanCure = "annotate the ServiceGroup with purelb.io/allow-orphans=true, and they stay as they are until " +
	"their Services go"

// TestAdmitDelete has cases that the table with the API server lacks: several groups with
// one address, and groups that are not ready.
func TestAdmitDelete(t *testing.T) {
	one := "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}"
	older, younger := groupMadeAt(t, "a", 1, one), groupMadeAt(t, "b", 2, one)
	refusal := func(what string) string {
		return "leaves " + what + " outside every pool: keep them in one, or " + orphanCure
	}
	foreign := admissionOf("", older)
	foreign.InUse.Put(&allocation.Service{Namespace: "test", Name: "s1", Addresses: addresses("10.0.0.1")})
	invalid := groupMadeAt(
		t, "a", 1, "local: {v4pools: [{pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}, {pool: x, subnet: 10.0.0.0/24}]}",
	)
	external := netboxGroup(t, "a", "tenant: lab")
	allocatedFrom := func(group string, kind v1.PoolType) *allocation.Admission {
		a := admissionOf("", older, external)
		svc := allocatedService("s1", netip.MustParseAddr("10.9.9.9"))
		svc.Allocated.Group, svc.Allocated.Type = group, kind
		a.InUse.Put(svc)
		return a
	}
	going := older.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}

	for _, row := range []struct {
		name string
		s    *allocation.Admission
		sg   *v1.ServiceGroup
		want string
	}{
		{
			"in use", admissionOf("10.0.0.1 10.0.0.2", older), &older,
			refusal("2 addresses in use by 2 Services (test/s1, test/s2)"),
		},
		{
			"one address of two Services", admissionOf("10.0.0.1 10.0.0.1", older), &older,
			refusal("1 address in use by 2 Services (test/s1, test/s2)"),
		},
		{"not in use", admissionOf("10.0.0.6", older), &older, ""},
		{"in use by others' Services", foreign, &older, ""},
		{
			"of two that overlap the older: the younger has its addresses then", admissionOf("10.0.0.1", older, younger), &older,
			"",
		},
		{
			"of two that overlap the younger: the older has its addresses", admissionOf("10.0.0.1", older, younger), &younger,
			"",
		},
		{
			"not valid, but in use from before", admissionOf("10.0.0.1", invalid), &invalid,
			refusal("1 address in use by 1 Service (test/s1)"),
		},
		{"being deleted already", admissionOf("10.0.0.1", older), going, ""},
		{
			"of NetBox, in use wherever NetBox has it now", allocatedFrom("a", v1.PoolTypeNetbox), &external,
			refusal("1 address in use by 1 Service (test/s1)"),
		},
		{"of NetBox, in use from another group", allocatedFrom("b", v1.PoolTypeNetbox), &external, ""},
		{"of NetBox, in use from the pool that the group was", allocatedFrom("a", v1.PoolTypeLocal), &external, ""},
		{"a pool, in use from what it had before", allocatedFrom("a", v1.PoolTypeLocal), &older, ""},
		{"not seen yet", admissionOf("10.0.0.1"), &older, refusal("1 address in use by 1 Service (test/s1)")},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, got := row.s.AdmitDelete(row.sg); got != row.want {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
}

func TestAdmitUpdate(t *testing.T) {
	sg := groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}")
	neighbour := groupMadeAt(t, "b", 2, "local: {pool: 10.0.0.6-10.0.0.9, subnet: 10.0.0.0/24}")
	invalid := groupMadeAt(t, "a", 1, "local: {pool: x, subnet: 10.0.0.0/24}")
	change := func(sg v1.ServiceGroup, spec string) *v1.ServiceGroup {
		out := sg.DeepCopy()
		out.Spec = group(t, "a", spec).Spec
		return out
	}
	labelled := invalid.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}

	for _, row := range []struct {
		name          string
		s             *allocation.Admission
		before, after *v1.ServiceGroup
		want          string
	}{
		{"a label on one that is not valid", admissionOf("", invalid), &invalid, labelled, ""},
		{"put right", admissionOf("10.0.0.1", invalid), &invalid, &sg, ""},
		{"an older one into a younger one", admissionOf("", sg, neighbour), &sg,
			change(sg, "local: {pool: 10.0.0.1-10.0.0.6, subnet: 10.0.0.0/24}"),
			`spec.local.pool: Invalid value: "10.0.0.1-10.0.0.6": range 10.0.0.1-10.0.0.6 overlaps range 10.0.0.6-10.0.0.9 of ` +
				`ServiceGroup b, which has these addresses already`},
		{
			"the cache still has it otherwise", admissionOf("", *change(sg, "local: {pool: 10.0.0.6, subnet: 10.0.0.0/24}")),
			&sg, change(sg, "local: {pool: 10.0.0.6-10.0.0.7, subnet: 10.0.0.0/24}"), "",
		},
		{"a free kind", admissionOf("10.0.0.9", sg), &sg, change(sg, "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}"), ""},
		{"a kind in use", admissionOf("10.0.0.1", sg), &sg, change(sg, "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}"),
			"spec: Forbidden: changes the group from local to remote with 1 address in use by 1 Service (test/s1): make " +
				"another ServiceGroup instead, or " + orphanCure},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, errs := row.s.AdmitUpdate(row.before, row.after)
			got := ""
			if len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != row.want {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
}

// TestAdmitUpdateOfOverlapping refuses what a change makes worse of an overlap that is there already, and
// warns of what it leaves.
func TestAdmitUpdateOfOverlapping(t *testing.T) {
	const overlap = "range %s overlaps range 10.0.0.4-10.0.0.9 of ServiceGroup b, which has these addresses already"
	neighbour := groupMadeAt(t, "b", 2, "local: {pool: 10.0.0.4-10.0.0.9, subnet: 10.0.0.0/24}")
	spec := func(ranges string) string { return "local: {pool: " + ranges + ", subnet: 10.0.0.0/24}" }
	before := groupMadeAt(t, "a", 1, spec("10.0.0.1-10.0.0.5"))
	for _, row := range []struct{ name, spec, warning, want string }{
		{"another policy", spec("10.0.0.1-10.0.0.5") + "\npolicyLocal: Allow",
			"spec.local.pool: " + fmt.Sprintf(overlap, "10.0.0.1-10.0.0.5") + ": the group had them too before this change", ""},
		{"part of the overlap", spec("10.0.0.1-10.0.0.4"),
			"spec.local.pool: " + fmt.Sprintf(overlap, "10.0.0.1-10.0.0.4") + ": the group had them too before this change", ""},
		{"addresses of nobody", spec("10.0.0.0-10.0.0.5"),
			"spec.local.pool: " + fmt.Sprintf(overlap, "10.0.0.0-10.0.0.5") + ": the group had them too before this change", ""},
		{"no overlap", spec("10.0.0.1-10.0.0.3"), "", ""},
		{"one address more", spec("10.0.0.1-10.0.0.6"), "",
			`spec.local.pool: Invalid value: "10.0.0.1-10.0.0.6": ` + fmt.Sprintf(overlap, "10.0.0.1-10.0.0.6")},
		{"others instead", spec("10.0.0.7-10.0.0.8"), "",
			`spec.local.pool: Invalid value: "10.0.0.7-10.0.0.8": ` + fmt.Sprintf(overlap, "10.0.0.7-10.0.0.8")},
	} {
		t.Run(row.name, func(t *testing.T) {
			after := before.DeepCopy()
			after.Spec = group(t, "a", row.spec).Spec
			warnings, errs := admissionOf("", before, neighbour).AdmitUpdate(&before, after)
			got := ""
			if len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if warning := strings.Join(warnings, "\n"); got != row.want || warning != row.warning {
				t.Errorf("got  %q, warnings %q\nwant %q, warnings %q", got, warning, row.want, row.warning)
			}
		})
	}
}

// TestAdmitPolicyLocal warns the author of a ServiceGroup of what becomes of Services.
func TestAdmitPolicyLocal(t *testing.T) {
	const pool = "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}"
	none, override, allow := groupMadeAt(t, "a", 1, pool), groupMadeAt(t, "a", 1, pool+"\npolicyLocal: Override"),
		groupMadeAt(t, "a", 1, pool+"\npolicyLocal: Allow")
	s := admissionOf("", none)
	for i, addr := range addresses("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4") {
		svc := allocatedService(fmt.Sprintf("s%d", i+1), addr)
		svc.Allocated.Group, svc.IsPolicyLocalUpToGroup = "a", i < 3
		if i == 2 {
			svc.Allocated.Group = "b"
		}
		s.InUse.Put(svc)
	}
	const want = "spec.policyLocal: externalTrafficPolicy Local of 2 Services (test/s1, test/s2) is set to Cluster " +
		"where an address is Local or shared"
	for _, row := range []struct {
		name          string
		before, after *v1.ServiceGroup
		want          []string
	}{
		{"no more", &allow, &none, []string{want}},
		{"no more, explicitly", &allow, &override, []string{want}},
		{"allowed", &none, &allow, nil},
		{"the default, explicitly", &none, &override, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, errs := s.AdmitUpdate(row.before, row.after)
			if diff := cmp.Diff(row.want, got); diff != "" || len(errs) > 0 {
				t.Errorf("errors %v, warnings (-want +got):\n%s", errs, diff)
			}
		})
	}
	if got, _ := admissionOf("10.0.0.1", allow).AdmitUpdate(&allow, &none); len(got) > 0 {
		t.Errorf("no Service has policy Local: %q", got)
	}
}

// TestAdmitLarge keeps answers within what the API server shows.
func TestAdmitLarge(t *testing.T) {
	s, mine := large(t)
	half := mine.DeepCopy()
	half.Spec.Remote.V4Pools = half.Spec.Remote.V4Pools[:25]
	_, errs := s.AdmitUpdate(mine, half)
	const want = "5000 addresses in use by 5000 Services (test/service5000, test/service5001, test/service5002, " +
		"test/service5003, test/service5004 and 4995 more)"
	if len(errs) != 1 || !strings.Contains(errs[0].Detail, want) {
		t.Errorf("got %v", errs)
	}
	everywhere := group(t, "x", "remote: {pool: 172.16.0.0/12, subnet: 172.16.0.0/12}")
	warnings, errs := s.AdmitCreate(everywhere)
	if len(errs) > 0 || len(warnings) != 1 || len(warnings[0]) > 512 || !strings.HasSuffix(warnings[0], "and 9995 more") {
		t.Errorf("got %v, %v", warnings, errs)
	}
}

// TestOverlapsAreFound compares verdicts on many groups with those of a comparison of each
// group with each other one.
func TestOverlapsAreFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 200 {
		var groups []v1.ServiceGroup
		for g := range 6 {
			var spec strings.Builder
			for i := range 1 + random.IntN(3) { // apart from each other
				first := i*80 + random.IntN(40)
				fmt.Fprintf(&spec, "{pool: 10.0.0.%d-10.0.0.%d, subnet: 10.0.0.0/24}, ", first, first+random.IntN(30))
			}
			groups = append(
				groups, groupMadeAt(t, string(rune('a'+g)), int64(random.IntN(3)), "remote: {v4pools: ["+spec.String()+"]}"),
			)
		}
		catalog := allocation.NewCatalog(groups, namespace)
		slices.SortStableFunc(
			groups, func(a, b v1.ServiceGroup) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
		)
		var accepted []allocation.Range
		for i := range groups {
			group, _, _ := allocation.ParseGroup(&groups[i])
			free := true
			for _, r := range group.Ranges {
				free = free && !slices.ContainsFunc(accepted, func(o allocation.Range) bool { return o.Addrs.Overlaps(r.Addrs) })
			}
			if catalog[group.Name].IsReady() != free {
				t.Fatalf("%s: %s: %s", group.Name, catalog[group.Name].Reason, catalog[group.Name].Message)
			}
			if free {
				accepted = append(accepted, group.Ranges...)
			} else {
				refused++
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d groups overlapped", refused)
	}
}

// TestReservedIsAdvised asks for a reserved address, for which the table with the API
// server has no group.
func TestReservedIsAdvised(t *testing.T) {
	s := admissionOf("", groupMadeAt(t, "default", 1, "local: {pool: 10.0.0.0/24, subnet: 10.0.0.0/24}"))
	s.NodeAddresses = map[netip.Addr]string{netip.MustParseAddr("10.0.0.7"): "a gateway of node n"}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.AnnotationAddresses: "10.0.0.7"}},
	}
	svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	if got := s.Advise(svc); !slices.Contains(
		got, "annotation purelb.io/addresses: 10.0.0.7 is a gateway of node n: it is never allocated",
	) {
		t.Errorf("got %q", got)
	}
}

// TestOrphansStay shrinks a group below what is in use.
func TestOrphansStay(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}"),
		groupMadeAt(t, "b", 2, "local: {pool: 10.0.0.6-10.0.0.9, subnet: 10.0.0.0/24}"),
	}, namespace)
	for _, row := range []struct{ current, from, group, want string }{
		{"10.0.0.200", "a", "a", "10.0.0.200"}, // a had it
		{"10.0.0.200", "b", "a", "10.0.0.1"},   // the Service asks for another group now
		{"10.0.0.200", "", "a", "10.0.0.1"},
		{"10.0.0.6", "a", "a", "10.0.0.6"}, // b has the range now, the Service the address
		{"10.0.0.2", "a", "a", "10.0.0.2"},
	} {
		req := &allocation.Request{
			RequestedGroup: row.group, Families: []allocation.Family{allocation.IPv4},
			FamilyPolicy: corev1.IPFamilyPolicySingleStack,
		}
		req.Service = allocation.Service{
			Namespace: "test", Name: "s", Addresses: addresses(row.current),
			Allocated: allocation.Record{Addresses: addresses(row.current), Group: row.from},
		}
		result := allocation.Allocate(req, &allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse()})
		if diff := cmp.Diff(row.want, allocation.JoinAddresses(result.Addresses)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", row, diff)
		}
	}
}

// TestTypeOfOrphans changes the kind of a group. What has left the pools of the group stays what it was, such as Local.
func TestTypeOfOrphans(t *testing.T) {
	for _, row := range []struct {
		name, spec, current, from, request string
		was, want                          v1.PoolType
	}{
		{"moved, and remote", "remote: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1", "a", "", "local", "local"},
		{"moved, and local", "local: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1", "a", "", "remote", "remote"},
		{"moved", "local: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1", "a", "", "local", "local"},
		{"remote, where it was", "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}", "10.0.0.1", "a", "", "local", "remote"},
		{
			"one of two stays", "remote: {v4pool: {pool: 10.0.0.1, subnet: 10.0.0.0/24}}", "10.0.0.1 fd00::1", "a", "", "local",
			"remote",
		},
		{"both leave", "remote: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1 fd00::1", "a", "", "local", "local"},
		{"moved, and asks for another", "remote: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1", "a", "10.0.1.1", "local",
			"remote"},
		{"of another group before", "remote: {pool: 10.0.1.1, subnet: 10.0.1.0/24}", "10.0.0.1", "b", "", "local", "remote"},
	} {
		t.Run(row.name, func(t *testing.T) {
			current := addresses(row.current)
			req := &allocation.Request{
				RequestedGroup: "a", Families: []allocation.Family{allocation.IPv4}, RequestedAddressesText: row.request,
				FamilyPolicy: corev1.IPFamilyPolicySingleStack,
			}
			if len(current) > 1 {
				req.Families, req.FamilyPolicy = append(req.Families, allocation.IPv6), corev1.IPFamilyPolicyPreferDualStack
			}
			req.Service = allocation.Service{
				Namespace: "test", Name: "s", IsOurs: true, Addresses: current,
				Allocated: allocation.Record{Addresses: current, Group: row.from, Type: row.was},
			}
			catalog := allocation.NewCatalog([]v1.ServiceGroup{groupMadeAt(t, "a", 1, row.spec)}, namespace)
			result := allocation.Allocate(req, &allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse()})
			if result.Reason != v1.ReasonAllocated || result.Group != "a" || result.Type != row.want {
				t.Errorf("%s of %s, %s: %s", result.Type, result.Group, result.Reason, result.Message)
			}
		})
	}
}
