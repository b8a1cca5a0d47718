package allocation_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// serviceAsking is the Service test/new, with annotations as "name=value".
func serviceAsking(annotations ...string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "new", Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, a := range annotations {
		name, value, _ := strings.Cut(a, "=")
		svc.Annotations[name] = value
	}
	return svc
}

// withExternalIPs sets a Service's externalIPs.
func withExternalIPs(svc *corev1.Service, addrs ...string) *corev1.Service {
	svc.Spec.ExternalIPs = addrs
	return svc
}

// sharer is a Service that has an address with a sharing key, for port 443.
func sharer(namespace, name, key string, addr string) *allocation.Service {
	svc := serviceAsking("purelb.io/allow-shared-ip=" + key)
	svc.Namespace, svc.Name = namespace, name
	svc.Spec.Ports[0].Port = 443
	s := allocation.ServiceOf(svc, true)
	s.Addresses = addresses(addr)
	s.Allocated = allocation.Record{Addresses: s.Addresses}
	return s
}

func TestAdvise(t *testing.T) {
	const (
		known = "known are purelb.io/service-group, purelb.io/addresses, purelb.io/allow-shared-ip, purelb.io/multi-pool, " +
			"purelb.io/allow-local"
		local = "spec.externalTrafficPolicy: Local is not supported on a Local address, such as those of range " +
			"10.0.0.1-10.0.0.9 of ServiceGroup default: " +
			"one node gets all traffic. It is set to Cluster; to keep Local, and the address on a node with an endpoint, set " +
			"annotation purelb.io/allow-local to \"true\""
	)
	policyLocal := func(svc *corev1.Service) *corev1.Service {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		return svc
	}
	var thirty, firstTen []string
	for i := range 30 {
		thirty = append(thirty, fmt.Sprintf("purelb.io/xxxxxxxxxxxx%02d=", i))
		firstTen = append(firstTen, fmt.Sprintf("%02d is", i))
	}
	firstTen = firstTen[:10]
	for _, row := range []struct {
		name string
		svc  *corev1.Service
		want []string // parts of the warnings, in order
	}{
		{"nothing to say", serviceAsking(), nil},
		{"annotations of others", serviceAsking("example.com/purelb=x"), nil},
		{
			"annotations that the manager writes", serviceAsking("purelb.io/allocated-by=PureLB", "purelb.io/local-override=x"),
			nil,
		},
		{
			"all that a user may write",
			serviceAsking(
				"purelb.io/service-group=default", "purelb.io/addresses=10.0.0.1", "purelb.io/allow-shared-ip=k",
				"purelb.io/multi-pool=true", "purelb.io/allow-local=false",
			),
			nil,
		},
		{
			"a slip", serviceAsking("purelb.io/adresses=10.0.0.1"),
			[]string{"annotation purelb.io/adresses is not known; did you mean purelb.io/addresses?"},
		},
		{"capital letters", serviceAsking("purelb.io/Multi-Pool=true"), []string{"did you mean purelb.io/multi-pool?"}},
		{"a part of the name", serviceAsking("purelb.io/shared-ip=k"), []string{"did you mean purelb.io/allow-shared-ip?"}},
		{
			"a part that is too short", serviceAsking("purelb.io/ip=k"),
			[]string{"annotation purelb.io/ip is not known; " + known},
		},
		{
			"nothing alike", serviceAsking("purelb.io/xxxxxxxxxxxx=k"),
			[]string{"annotation purelb.io/xxxxxxxxxxxx is not known; " + known},
		},
		{"ten unknown", serviceAsking(thirty[:10]...), firstTen},
		{
			"eleven unknown", serviceAsking(thirty[:11]...),
			append([]string{"1 more annotations purelb.io/… are not known"}, firstTen...),
		},
		{
			"thirty unknown", serviceAsking(thirty...),
			append([]string{"20 more annotations purelb.io/… are not known"}, firstTen...),
		},
		{"not true or false", serviceAsking("purelb.io/multi-pool=yes", "purelb.io/allow-local=1"), []string{
			`annotation purelb.io/multi-pool is "yes": it must be "true" or "false"`,
			`annotation purelb.io/allow-local is "1": it must be "true" or "false"`}},
		{"a deprecated field",
			func() *corev1.Service { s := serviceAsking(); s.Spec.LoadBalancerIP = "10.0.0.3"; return s }(),
			[]string{"spec.loadBalancerIP is deprecated; use annotation purelb.io/addresses"}},
		{"external addresses of no pool", withExternalIPs(serviceAsking(), "10.9.9.9", "10.0.0.10", "fd01::1"), nil},
		{"external addresses of a pool", withExternalIPs(serviceAsking(), "10.9.9.9", "10.0.1.3", "10.0.0.3"), []string{
			"spec.externalIPs: 10.0.1.3 is in ServiceGroup another, which does not give or announce it because of this field; " +
				"use annotation purelb.io/addresses"}},
		{
			"an external address that is asked for",
			withExternalIPs(serviceAsking("purelb.io/addresses= 10.0.0.3 "), "10.0.0.3"), nil,
		},
		{"an external address beside another that is asked for",
			withExternalIPs(serviceAsking("purelb.io/addresses=10.0.0.3"), "10.0.0.3", "10.0.0.5"),
			[]string{"spec.externalIPs: 10.0.0.5 is in ServiceGroup default"}},
		{
			"a group that is not there", serviceAsking("purelb.io/service-group=nowhere-near"),
			[]string{"the Service waits until there is"},
		},
		{
			"a group that is nearly there", serviceAsking("purelb.io/service-group=defalt"), []string{"; did you mean default?"},
		},
		{"an address of another group", serviceAsking("purelb.io/addresses=10.0.1.1"), nil},
		{"an address that is in use", serviceAsking("purelb.io/addresses=10.0.0.2"), []string{"test/s1"}},
		{"an address of no pool", serviceAsking("purelb.io/addresses=10.9.9.9"), []string{"10.9.9.9"}},
		{"the key of another namespace", serviceAsking("purelb.io/allow-shared-ip=theirs"), []string{
			"annotation purelb.io/allow-shared-ip: ServiceGroup default does not share across namespaces, and the key is used " +
				"in another namespace"}},
		{"the key of another group", serviceAsking("purelb.io/allow-shared-ip=far"), nil},
		{"a key of the namespace", serviceAsking("purelb.io/allow-shared-ip=ours"), nil},
		{"policy Local", policyLocal(serviceAsking()), []string{local}},
		{"policy Local that is to stay", policyLocal(serviceAsking("purelb.io/allow-local=true")), nil},
		{"policy Local, not to stay", policyLocal(serviceAsking("purelb.io/allow-local=false")), []string{local}},
		{
			"policy Local on Virtual addresses", policyLocal(serviceAsking("purelb.io/service-group=virtual")),
			[]string{
				"spec.externalTrafficPolicy: Local on an address of ServiceGroup virtual, whose routes lead to more addresses " +
					"than one (/24)",
			},
		},
		{
			"policy Local on Virtual addresses with a route each",
			policyLocal(serviceAsking("purelb.io/service-group=virtual-hosts")), nil,
		},
		{
			"policy Local, no such group", policyLocal(serviceAsking("purelb.io/service-group=nowhere-near")),
			[]string{"the Service waits until there is"},
		},
		{"policy Local of another family", func() *corev1.Service {
			s := policyLocal(serviceAsking("purelb.io/service-group=mixed"))
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
			return s
		}(), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := admissionOf("10.0.0.2",
				groupMadeAt(t, "default", 1, "local: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}"),
				groupMadeAt(t, "another", 2, "local: {pool: 10.0.1.1-10.0.1.9, subnet: 10.0.1.0/24}"),
				groupMadeAt(t, "virtual", 3, "remote: {pool: 10.0.2.1-10.0.2.9, subnet: 10.0.2.0/24}"),
				groupMadeAt(
					t, "virtual-hosts", 3, "remote: {pool: 10.0.9.1-10.0.9.9, subnet: 10.0.9.0/24, aggregation: /32}",
				),
				groupMadeAt(
					t, "mixed", 4,
					"local: {v4pools: [{pool: 10.0.3.1-10.0.3.9, subnet: 10.0.3.0/24}], v6pools: [{pool: 'fd00::1-fd00::9', subnet: "+
						"'fd00::/64'}]}",
				),
			)
			a.AnnounceType = func(r allocation.Range) v1.AnnounceType {
				if r.Family() == corev1.IPv6Protocol {
					return v1.AnnounceVirtual
				}
				return v1.AnnounceLocal
			}
			a.InUse.Put(sharer("other", "web", "theirs", "10.0.0.4"))
			a.InUse.Put(sharer("other", "far", "far", "10.0.1.4"))
			a.InUse.Put(sharer("test", "mine", "ours", "10.0.0.5"))
			got := a.Advise(row.svc)
			if len(got) != len(row.want) {
				t.Fatalf("%d warnings, want %d: %s", len(got), len(row.want), strings.Join(got, "\n"))
			}
			for i, part := range row.want {
				if !strings.Contains(got[i], part) {
					t.Errorf("warning %d is %q, want %q in it", i, got[i], part)
				}
			}
		})
	}
}

// TestRequestsAlike compares what users write, and nothing else.
func TestRequestsAlike(t *testing.T) {
	for _, row := range []struct {
		name          string
		before, after *corev1.Service
		want          bool
	}{
		{"the same", serviceAsking("purelb.io/multi-pool=true"), serviceAsking("purelb.io/multi-pool=true"), true},
		{"another value", serviceAsking("purelb.io/multi-pool=true"), serviceAsking("purelb.io/multi-pool=false"), false},
		{
			"another spec", serviceAsking(),
			func() *corev1.Service { s := serviceAsking(); s.Spec.Ports[0].Port = 81; return s }(), false,
		},
		{"what the manager writes", serviceAsking(), serviceAsking("purelb.io/allocated-by=PureLB"), true},
		{"what others write", serviceAsking(), serviceAsking("example.com/a=b"), true},
	} {
		if got := allocation.RequestsAlike(row.before, row.after); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

func TestDependsOnOtherServices(t *testing.T) {
	loadBalancerIP := serviceAsking()
	loadBalancerIP.Spec.LoadBalancerIP = "10.0.0.1"
	for _, row := range []struct {
		name             string
		svc              *corev1.Service
		depends, asksFor bool
	}{
		{"nothing", serviceAsking(), false, false},
		{"a group", serviceAsking("purelb.io/service-group=a"), false, false},
		{"addresses", serviceAsking("purelb.io/addresses=10.0.0.1"), true, true},
		{"to share", serviceAsking("purelb.io/allow-shared-ip=k"), true, false},
		{"the deprecated field", loadBalancerIP, true, true},
	} {
		if got := allocation.DependsOnOtherServices(row.svc); got != row.depends {
			t.Errorf("%s: depends %t", row.name, got)
		}
		if got := allocation.RequestsAddresses(row.svc); got != row.asksFor {
			t.Errorf("%s: asks for addresses %t", row.name, got)
		}
	}
}

// TestAllowedOrphans changes and deletes a ServiceGroup that has addresses in use and says
// that they may be left.
func TestAllowedOrphans(t *testing.T) {
	local := groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}")
	local.Annotations = map[string]string{v1.AnnotationAllowOrphans: "true"}
	shorter := groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.2-10.0.0.5, subnet: 10.0.0.0/24}")
	remote := groupMadeAt(t, "a", 1, "remote: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}")
	const stay = ": they stay as they are until their Services go"
	for _, row := range []struct {
		name    string
		inUse   string
		after   *v1.ServiceGroup // nil to delete it
		allowed bool
		want    string
	}{
		{"deleted", "10.0.0.1", nil, true, "leaves 1 address in use by 1 Service (test/s1) outside every pool" + stay},
		{
			"shortened", "10.0.0.1", &shorter, true,
			"spec: leaves 1 address in use by 1 Service (test/s1) outside every pool" + stay,
		},
		{"shortened where nothing is in use", "10.0.0.3", &shorter, true, ""},
		{
			"of another type", "10.0.0.1", &remote, true,
			"spec: changes the group from local to remote with 1 address in use by 1 Service (test/s1)" + stay,
		},
		{"of another type, nothing in use", "", &remote, true, ""},
		{
			"of another type, not allowed", "10.0.0.1", &remote, false,
			"changes the group from local to remote with 1 address in use by 1 Service (test/s1): make another ServiceGroup " +
				"instead, or " + orphanCure,
		},
		{"of another type, not allowed, nothing in use", "", &remote, false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := local.DeepCopy()
			if !row.allowed {
				before.Annotations = nil
			}
			a := admissionOf(row.inUse, *before)
			var got string
			if row.after == nil {
				warnings, refusal := a.AdmitDelete(before)
				got = strings.Join(append(warnings, refusal), "")
			} else {
				after := row.after.DeepCopy()
				after.Annotations = before.Annotations
				warnings, errs := a.AdmitUpdate(before, after)
				got = strings.Join(warnings, "; ")
				for _, err := range errs {
					got += err.Detail
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAbbreviatedServices names five Services and counts the others.
func TestAbbreviatedServices(t *testing.T) {
	for n, want := range map[int]string{
		5: "(test/s1, test/s2, test/s3, test/s4, test/s5)", 6: "(test/s1, test/s2, test/s3, test/s4, test/s5 and 1 more)",
	} {
		var addrs []string
		for i := range n {
			addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}).String())
		}
		sg := groupMadeAt(t, "a", 1, "local: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}")
		if _, refusal := admissionOf(strings.Join(addrs, " "), sg).AdmitDelete(&sg); !strings.Contains(refusal, want) {
			t.Errorf("%d: %s", n, refusal)
		}
	}
}
