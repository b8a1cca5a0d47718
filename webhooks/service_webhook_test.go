package webhooks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/webhooks"
)

// serviceRow is a Service that is created, beside those of createCluster: dns (TCP 53) and
// holder (TCP 80), which share 10.9.0.10 by the sharing key "key", and far (TCP 53) of
// another namespace, which has 10.10.0.1 by a key of the same name.
type serviceRow struct {
	name     string
	change   func(*corev1.Service)
	warnings []string
}

func annotated(pairs ...string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		for i := 0; i < len(pairs); i += 2 {
			svc.Annotations["purelb.io/"+pairs[i]] = pairs[i+1]
		}
	}
}

func both(changes ...func(*corev1.Service)) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		for _, c := range changes {
			c(svc)
		}
	}
}

// unknown returns the warnings about ten annotations of a thousand.
func unknown(known string) []string {
	var said []string
	for i := range 10 {
		said = append(said, fmt.Sprintf("annotation purelb.io/zzzzzzzzzzzzzzz-%d is not known%s", i+1000, known))
	}
	return said
}

func serviceRows() []serviceRow {
	local := func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	ipv6 := func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }
	port := func(number int32) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.Ports[0].Port = number }
	}
	ip := func(addr string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.LoadBalancerIP = addr }
	}
	const (
		addresses   = "annotation purelb.io/addresses"
		communities = "annotation purelb.io/bgp-communities: "
		deprecated  = "spec.loadBalancerIP is deprecated; use annotation purelb.io/addresses"
		known       = "; known are purelb.io/service-group, purelb.io/addresses, purelb.io/allow-shared-ip, " +
			"purelb.io/multi-pool, purelb.io/allow-local, purelb.io/bgp-communities"
		notForTest = "ServiceGroup gold is not for namespace test: ask for another one, or have its administrator select " +
			"the namespace in spec.allowedNamespaces"
		notSupported = "spec.externalTrafficPolicy: Local is not supported on a Local address, such as those of range "
		sharedRoute  = "spec.externalTrafficPolicy: Local on an address of ServiceGroup taken, whose routes lead to more " +
			"addresses than one (/24): nodes without an endpoint attract traffic, too, and drop it, unless routers follow the " +
			"routes to single addresses that a BGPPeer adds; a group with aggregation /32 has only such routes"
		useCluster = ": one node gets all traffic. It is set to Cluster; to keep Local, and the address on a node with " +
			"an endpoint, set annotation purelb.io/allow-local to \"true\""
	)
	return []serviceRow{
		{"nothing to say", nil, nil},
		{"annotations of others", func(svc *corev1.Service) { svc.Annotations["example.com/a"] = "b" }, nil},
		{"annotations that the manager writes",
			annotated("allocated-by", "PureLB", "allocated-from", "taken", "pool-type", "remote",
				"announcing-IPv4", "x", "announcing-IPv6", "x", "added-to", "x"), nil},

		// Groups.
		{
			"unknown group", annotated("service-group", "nowhere"),
			[]string{"there is no ServiceGroup nowhere in namespace purelb-system: the Service waits until there is"},
		},
		{
			"misspelt group", annotated("service-group", "tkaen"),
			[]string{"there is no ServiceGroup tkaen in namespace purelb-system: the Service waits until there is"},
		},
		{
			"nearly a group", annotated("service-group", "Taken"),
			[]string{"there is no ServiceGroup Taken; did you mean taken?"},
		},
		{
			"default group", func(svc *corev1.Service) { svc.Annotations = nil },
			[]string{"there is no ServiceGroup default in namespace purelb-system: the Service waits until there is"},
		},
		{
			"group that is not ready", annotated("service-group", "netbox"),
			[]string{"ServiceGroup netbox is not ready: what NetBox has of the group is not known yet"},
		},

		// Groups and addresses of others.
		{"a group for other namespaces", annotated("service-group", "gold"), []string{notForTest}},
		{"an address of a group for other namespaces", annotated("addresses", "10.11.0.1"), []string{notForTest}},
		{
			"reserved for another namespace", annotated("addresses", "10.12.0.1"),
			[]string{"10.12.0.1 is reserved for a Service of another namespace: no other Service gets it, and none shares it"},
		},
		{
			"reserved for another Service of the namespace", annotated("addresses", "10.12.0.2"),
			[]string{"10.12.0.2 is reserved for Service test/web: no other Service gets it, and none shares it"},
		},
		{
			"reserved for it",
			both(
				annotated("service-group", "reserving", "addresses", "10.12.0.2"), func(svc *corev1.Service) { svc.Name = "web" },
			),
			nil,
		},

		// Names of annotations.
		{
			"nearly an annotation", annotated("servicegroup", "a"),
			[]string{"annotation purelb.io/servicegroup is not known; did you mean purelb.io/service-group?"},
		},
		{
			"capitals", annotated("Addresses", "a"),
			[]string{"annotation purelb.io/Addresses is not known; did you mean purelb.io/addresses?"},
		},
		{
			"half an annotation", annotated("shared-ip", "a"),
			[]string{"annotation purelb.io/shared-ip is not known; did you mean purelb.io/allow-shared-ip?"},
		},
		{"unknown annotation", annotated("color", "a"), []string{"annotation purelb.io/color is not known" + known}},
		{
			"that of a ServiceGroup", annotated("allow-orphans", "true"),
			[]string{"annotation purelb.io/allow-orphans is not known" + known},
		},
		{
			"that of an LBNodeAgent", annotated("allow-withdrawal", "true"),
			[]string{"annotation purelb.io/allow-withdrawal is not known" + known},
		},
		{"multi-pool", annotated("multi-pool", "true"), nil},
		{
			"multi-pool of no value", annotated("multi-pool", "yes"),
			[]string{`annotation purelb.io/multi-pool is "yes": it must be "true" or "false"`},
		},
		{"too many unknown annotations", func(svc *corev1.Service) {
			for i := range 1000 {
				svc.Annotations[fmt.Sprintf("purelb.io/zzzzzzzzzzzzzzz-%d", i+1000)] = ""
			}
		}, append([]string{"990 more annotations purelb.io/… are not known"}, unknown(known)...)},
		{"allow-local of no value", annotated("allow-local", "True"), []string{
			`annotation purelb.io/allow-local is "True": it must be "true" or "false"`}},

		// More than a value can be.
		{
			"a group longer than a name", annotated("service-group", strings.Repeat("a", 254)),
			[]string{"annotation purelb.io/service-group is too long: it may have 253 bytes"},
		},
		{
			"a long key", annotated("allow-shared-ip", strings.Repeat("a", 254)),
			[]string{"annotation purelb.io/allow-shared-ip is too long: it may have 253 bytes"},
		},
		{
			"long addresses", annotated("addresses", strings.Repeat("a,", 600)),
			[]string{addresses + " is too long: it may have 1024 bytes"},
		},
		{
			"a long loadBalancerIP", ip(strings.Repeat("a", 1025)),
			[]string{"spec.loadBalancerIP is too long: it may have 1024 bytes"},
		},

		// Addresses asked for.
		{"a free address", annotated("addresses", "10.9.0.20"), nil},
		{"an external address", func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"10.8.0.1", "10.9.0.20"} },
			[]string{
				"spec.externalIPs: 10.9.0.20 is in ServiceGroup taken, which does not give or announce it because of this field; " +
					"use annotation purelb.io/addresses"}},
		{
			"an external address that is asked for",
			both(
				annotated("addresses", "10.9.0.20"), func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"10.9.0.20"} },
			),
			nil,
		},
		{"no address", annotated("addresses", "10.9.0"), []string{addresses + `: "10.9.0" is not an address`}},
		{"an empty one", annotated("addresses", "10.9.0.20,"), []string{addresses + `: "" is not an address`}},
		{
			"a mapped one", annotated("addresses", "::ffff:10.9.0.20"),
			[]string{addresses + `: "::ffff:10.9.0.20" is an IPv4-mapped IPv6 address; write it as 10.9.0.20`},
		},
		{"a zone", annotated("addresses", "fe80::1%eth0"), []string{addresses + `: "fe80::1%eth0" has a zone`}},
		{
			"outside every pool", annotated("addresses", "10.8.0.1"),
			[]string{addresses + ": 10.8.0.1 is in no pool of a ServiceGroup that is ready"},
		},
		{"in use", annotated("addresses", "10.9.0.10"), []string{"10.9.0.10 is in use by Service test/dns"}},
		{
			"two of one family", annotated("addresses", "10.9.0.19, 10.9.0.20"),
			[]string{addresses + ": 10.9.0.19 and 10.9.0.20 are both IPv4: ask for one of each family at most"},
		},
		{
			"the other family", annotated("addresses", "fd09::11"),
			[]string{addresses + ": fd09::11 is IPv6, which is not in spec.ipFamilies"},
		},
		{
			"of another group", annotated("addresses", "10.10.0.9"),
			[]string{
				"annotation purelb.io/service-group asks for ServiceGroup taken, but 10.10.0.9 is of shared, and that decides",
			},
		},
		{"of two groups", both(annotated("addresses", "10.9.0.19, fd07::101"), func(svc *corev1.Service) {
			svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		}), []string{addresses + ": 10.9.0.19 is of ServiceGroup taken, and fd07::101 of local: ask for addresses of one"}},
		{
			"the network address", both(annotated("service-group", "shared"), annotated("addresses", "10.10.0.0")),
			[]string{addresses + ": 10.10.0.0 is the first or last address of subnet 10.10.0.0/24: it is never allocated"},
		},
		{"loadBalancerIP", ip("10.9.0.20"), []string{deprecated}},
		{"loadBalancerIP in use", ip("10.9.0.10"), []string{deprecated, "10.9.0.10 is in use by Service test/dns"}},
		{"both", both(ip("10.9.0.11"), annotated("addresses", "10.9.0.20")), []string{deprecated}},

		// Sharing.
		{"a key of nobody", annotated("allow-shared-ip", "alone"), nil},
		{"a port of its own", both(annotated("allow-shared-ip", "key"), port(443)), nil},
		{
			"the same port by another protocol",
			both(
				annotated("allow-shared-ip", "key"), func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
			),
			nil,
		},
		{
			"a port in common", annotated("allow-shared-ip", "key"),
			[]string{"10.9.0.10 cannot be shared with Service test/holder: both have port TCP/80"},
		},
		{"the key in another group", annotated("allow-shared-ip", "key", "service-group", "allowing"), nil},
		{"another family", both(annotated("allow-shared-ip", "key"), ipv6), nil},
		{
			"another namespace",
			both(
				annotated("allow-shared-ip", "key"),
				func(svc *corev1.Service) { svc.Namespace = other; svc.Spec.Ports[0].Port = 443 },
			),
			[]string{
				"annotation purelb.io/allow-shared-ip: ServiceGroup taken does not share across namespaces, and the key is used " +
					"in another namespace",
			},
		},
		{"the address of the key", both(annotated("allow-shared-ip", "key", "addresses", "10.9.0.10"), port(443)), nil},
		{"another address than that of the key",
			both(annotated("allow-shared-ip", "key", "addresses", "10.9.0.11"), port(443)),
			[]string{
				addresses + `: 10.9.0.11 is not what the sharing key "key" stands for, which is 10.9.0.10 of Service test/dns`,
			}},
		{"the address of another key", both(annotated("allow-shared-ip", "mine", "addresses", "10.9.0.10"), port(443)),
			[]string{`10.9.0.10 is in use by Service test/dns, which shares it by the key "key", not "mine"`}},
		{"the address of another namespace",
			both(
				annotated("allow-shared-ip", "key", "addresses", "10.9.0.10"), port(443),
				func(svc *corev1.Service) { svc.Namespace = other },
			),
			[]string{
				"10.9.0.10 is in use by a Service of another namespace, and its ServiceGroup does not share across namespaces",
			}},
		{
			"a key that another namespace uses, where its group shares",
			annotated("service-group", "shared", "allow-shared-ip", "key"), nil,
		},
		{"the address of another key of another namespace",
			both(annotated("service-group", "shared", "allow-shared-ip", "mine", "addresses", "10.10.0.1"), port(443)),
			[]string{"10.10.0.1 is in use by a Service of another namespace, which does not share it by the key of this one"}},
		{"more ports than another namespace may have",
			both(annotated("service-group", "shared", "allow-shared-ip", "key"), func(svc *corev1.Service) {
				svc.Spec.Ports = nil
				for i := range int32(allocation.MaxRecordedPorts + 1) {
					svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: 1000 + i})
				}
			}), []string{
				"10.10.0.1 cannot be shared with a Service of another namespace: one of the two has more than 256 ports",
			}},
		{"policy Local beside a Service of another namespace",
			both(local, annotated("service-group", "shared", "allow-shared-ip", "key")),
			[]string{
				"10.10.0.1 cannot be shared with a Service of another namespace: one of the two has externalTrafficPolicy Local",
				strings.Replace(sharedRoute, "taken", "shared", 1),
			}},

		// Communities.
		{"communities of a group that allows none", annotated("service-group", "reserving", "bgp-communities", "no-export"),
			[]string{communities + "ServiceGroup reserving allows Services no communities: it has no spec.bgp.allowServices"}},
		{"communities that are not allowed, or none", annotated("bgp-communities", "blackhole, 1:2:3:4"), []string{
			communities + `blackhole is not allowed, "1:2:3:4" is not a community: spec.bgp.allowServices of ServiceGroup ` +
				"taken says which the routes may have"}},
		{"communities of a shared route", annotated("bgp-communities", "no-export"), []string{
			communities + "has no effect on a route to more addresses than one, as ServiceGroup taken has them (/24)"}},
		{"communities of an older Service's address",
			both(annotated("allow-shared-ip", "key", "bgp-communities", "no-export"), port(443)), []string{
				communities + "has no effect on 10.9.0.10: of the Services that share it, the oldest decides: Service test/dns"}},

		// Policy Local.
		{"Local on a remote group", local, []string{sharedRoute}},
		{"Local on a local group", both(local, annotated("service-group", "local")), []string{
			notSupported + "10.7.0.100-10.7.0.120 of ServiceGroup local" + useCluster}},
		{"Local on a local group, IPv6", both(local, ipv6, annotated("service-group", "local")), []string{
			notSupported + "fd07::100-fd07::120 of ServiceGroup local" + useCluster}},
		{"policy Local, where the group allows it", both(local, annotated("service-group", "allowing")), nil},
		{"policy Local, where the group allows it and the Service does not",
			both(local, annotated("service-group", "allowing", "allow-local", "false")), []string{
				notSupported + "10.7.0.130-10.7.0.140 of ServiceGroup allowing" + useCluster}},
		{"Local with allow-local", both(local, annotated("service-group", "local", "allow-local", "true")), nil},

		// Not ours.
		{
			"another class",
			both(
				annotated("servicegroup", "a"), func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/lb") },
			),
			nil,
		},
		{"our class", both(
			annotated("service-group", "Taken"),
			func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To(v1.LoadBalancerClass) },
		),
			[]string{"there is no ServiceGroup Taken; did you mean taken?"}},
		{"ClusterIP", both(annotated("servicegroup", "a"), func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil
		}), nil},
	}
}

func TestService(t *testing.T) {
	begin(t)
	for _, row := range serviceRows() {
		t.Run(row.name, func(t *testing.T) {
			svc := service("x", "taken", 80)
			if row.change != nil {
				row.change(svc)
			}
			checkCreate(t, svc, answer{warnings: row.warnings})
		})
	}
}

const unnamed = "ServiceGroup default is only for Services that name it (autoAssign: false): name it, or another " +
	"one, by annotation purelb.io/service-group"

// TestServiceOfNoGroup has a group named default that is not for Services that name none.
func TestServiceOfNoGroup(t *testing.T) {
	begin(t)
	sg := group("default", "{remote: {pool: 10.13.0.1-10.13.0.9, subnet: 10.13.0.0/24}, autoAssign: false}")
	create(t, sg)
	waitUntilCached(t, sg)
	svc := service("x", "", 80)
	svc.Annotations = nil
	checkCreate(t, svc, warns(unnamed))
	checkCreate(t, service("x", "default", 80), answer{})
}

func TestServiceUpdate(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	svc := service("x", "Taken", 80)
	create(t, svc)
	said := []string{"there is no ServiceGroup Taken; did you mean taken?"}
	for _, row := range []struct {
		name   string
		change func(*corev1.Service)
		want   []string
	}{
		{"a label", func(svc *corev1.Service) { svc.Labels = map[string]string{"a": "b"} }, nil},
		{"what the manager writes", annotated("allocated-by", "PureLB"), nil},
		{"a port", func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 }, said},
		{"a wish", annotated("color", "a"), append([]string{
			"annotation purelb.io/color is not known; known are purelb.io/service-group, purelb.io/addresses, " +
				"purelb.io/allow-shared-ip, purelb.io/multi-pool, purelb.io/allow-local, purelb.io/bgp-communities",
		}, said...)},
		{"another type", func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil
		}, nil},
		{"a LoadBalancer again", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer },
			append([]string{
				"annotation purelb.io/color is not known; known are purelb.io/service-group, purelb.io/addresses, " +
					"purelb.io/allow-shared-ip, purelb.io/multi-pool, purelb.io/allow-local, purelb.io/bgp-communities",
			}, said...)},
	} {
		t.Run(row.name, func(t *testing.T) {
			NewWithT(t).Eventually(func() error {
				if err := api.Get(ctx, client.ObjectKeyFromObject(svc), svc); err != nil {
					return err
				}
				row.change(svc)
				recorded.take()
				return api.Update(ctx, svc)
			}).Should(Succeed())
			check(t, nil, answer{warnings: row.want})
		})
	}
	g.Expect(api.Delete(ctx, svc)).To(Succeed())
	g.Expect(recorded.take()).To(BeEmpty())
}

// failingReader cannot read anything.
type failingReader struct{ client.Reader }

func (failingReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no cache")
}

// panickingReader panics when it is asked to read.
type panickingReader struct{ client.Reader }

func (panickingReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	panic("no cache")
}

// TestServicesAreNeverRefused breaks the webhook in every way.
func TestServicesAreNeverRefused(t *testing.T) {
	const good = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "y"}, "spec": {"type": ` +
		`"LoadBalancer"}}`
	for name, row := range map[string]struct {
		reader    client.Reader
		operation admissionv1.Operation
		object    string
	}{
		"no cache":         {failingReader{}, admissionv1.Create, good},
		"no cache, update": {failingReader{}, admissionv1.Update, good},
		"a panic":          {panickingReader{}, admissionv1.Create, good},
		"not JSON":         {failingReader{}, admissionv1.Create, "{"},
		"another type": {
			failingReader{}, admissionv1.Create, `{"apiVersion": "v1", "kind": "Service", "spec": {"ports": "no list"}}`,
		},
		"unknown operation": {failingReader{}, "BREAK", good},
	} {
		t.Run(name, func(t *testing.T) {
			handler := webhooks.ServiceHandler(
				row.reader, scheme.Scheme, webhooks.Options{Namespace: namespace, IsDefaultLoadBalancer: true},
			)
			response := handler.Handle(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: row.operation, Object: runtime.RawExtension{Raw: []byte(row.object)},
				OldObject: runtime.RawExtension{Raw: []byte(`{"apiVersion": "v1", "kind": "Service"}`)},
			}})
			if !response.Allowed {
				t.Errorf("refused: %v", response.Result)
			}
		})
	}
}
