package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// TestNetbox plays the life of ServiceGroups and Services that take their addresses from
// NetBox, against a real API server.
func TestNetbox(t *testing.T) {
	w := newExternalWorld(t)
	w.start()
	for _, row := range []struct {
		name string
		test func(w *externalWorld)
	}{
		{"dual stack", testNetboxDualStack},
		{"edits", testNetboxEdits},
		{"sharing", testNetboxSharing},
		{"requested addresses", testNetboxRequested},
		{"one family is exhausted", testNetboxLoneFamily},
		{"reserved for a tenant", testNetboxTenant},
		{"differences", testNetboxDifferences},
		{"prefix deleted", testNetboxPrefixDeleted},
		{"token", testNetboxToken},
	} {
		t.Run(row.name, func(t *testing.T) {
			inner := &externalWorld{WithT: NewWithT(t), t: t, config: w.config, api: w.api, netbox: w.netbox, url: w.url}
			row.test(inner)
		})
	}
}

func requireDual(svc *corev1.Service) {
	svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		ptr.To(corev1.IPFamilyPolicyRequireDualStack)
}

func preferDual(svc *corev1.Service) {
	svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		ptr.To(corev1.IPFamilyPolicyPreferDualStack)
}

func testNetboxDualStack(w *externalWorld) {
	w.prefix("10.50.0.0/24")
	w.prefix("fd00:50::/64")
	sg := w.group(
		"dual",
		"v4: {prefixes: [10.50.0.0/24]}, v6: {prefixes: ['fd00:50::/64']}, tenant: lab, dnsName: "+
			"'{{.Name}}.{{.Namespace}}.lb.example'",
	)
	svc := w.service("web", "dual", requireDual)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.50.0.1", "fd00:50::1"}))
	w.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationPoolType, "netbox"))
	w.Expect(w.condition(svc, v1.ConditionAllocated)(w)).To(Equal("True Allocated: 10.50.0.1, fd00:50::1 from pool dual"))
	w.Eventually(w.events(svc, v1.EventAddressAssigned)).
		Should(Equal([]string{"Assigned 10.50.0.1, fd00:50::1 from pool dual"}))
	record := w.at("fd00:50::1")
	w.Expect(*record).To(And(
		HaveField("Status", "active"), HaveField("Role", "vip"), HaveField("Tenant", "lab"),
		HaveField("Tags", []string{"purelb"}), HaveField("DNSName", "web.test.lb.example"),
	))

	w.Expect(w.condition(sg, v1.ConditionReady)(w)).To(Equal("True Accepted: 2 ranges"))
	w.Expect(w.condition(sg, v1.ConditionReachable)(w)).To(Equal("True Reachable: NetBox URL answers"))
	w.Expect(w.condition(sg, v1.ConditionDrift)(w)).To(BeEmpty())
	w.Expect(w.condition(sg, v1.ConditionStalled)(w)).To(BeEmpty())
	w.Eventually(func(g Gomega) int64 { w.get(g, sg); return sg.Status.AllocatedIPv6 }).Should(BeEquivalentTo(1))
	w.Expect(sg.Status.Type).To(Equal(v1.PoolTypeNetbox))
	w.Expect(sg.Status.Pools).To(HaveLen(2))
	w.Expect(sg.Status.Pools[0]).
		To(And(
			HaveField("Range", "10.50.0.0-10.50.0.255"), HaveField("Subnet", "10.50.0.0/24"),
			HaveField("Capacity", BeEquivalentTo(254)), HaveField("Allocated", BeEquivalentTo(1)),
		))
	w.Expect(sg.Status.AvailableIPv4).To(BeEquivalentTo(253))
	w.Expect(sg.Status.LastIPAMSync).NotTo(BeNil())

	w.remove(svc)
	w.Eventually(func() *fake.Address { return w.at("fd00:50::1") }).Should(BeNil())
	w.Eventually(func() *fake.Address { return w.at("10.50.0.1") }).Should(BeNil())
	// Another Service of that name gets an address of its own record.
	again := w.service("web", "dual")
	w.Eventually(w.addresses(again)).Should(HaveLen(1))
	w.remove(again)
}

func testNetboxEdits(w *externalWorld) {
	w.prefix("10.51.0.0/24")
	w.prefix("fd00:51::/64")
	w.group("edits", "v4: {prefixes: [10.51.0.0/24]}, v6: {prefixes: ['fd00:51::/64']}")
	local := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "local"}}
	w.Expect(yaml.UnmarshalStrict([]byte("local: {pool: 10.52.0.1-10.52.0.9, subnet: 10.52.0.0/24}"), &local.Spec)).
		To(Succeed())
	w.Expect(w.api.Create(w.t.Context(), local)).To(Succeed())
	svc := w.service("edited", "local")
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.52.0.1"}))
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/service-group":"edits"}}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.51.0.1"}))
	w.patch(svc, `{"spec":{"ipFamilyPolicy":"RequireDualStack","ipFamilies":["IPv4","IPv6"]}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.51.0.1", "fd00:51::1"}))
	w.patch(svc, `{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"]}}`)
	w.Eventually(func() *fake.Address { return w.at("fd00:51::1") }).Should(BeNil())
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/service-group":"local"}}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.52.0.1"}))
	w.Eventually(func() *fake.Address { return w.at("10.51.0.1") }).Should(BeNil())
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/service-group":"edits"}}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.51.0.1"}))
	w.patch(svc, `{"spec":{"type":"ClusterIP"}}`)
	w.Eventually(func() *fake.Address { return w.at("10.51.0.1") }).Should(BeNil())
	w.remove(svc)
	w.remove(local)
}

func port(n int32) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Ports[0].Port = n }
}

func testNetboxSharing(w *externalWorld) {
	w.prefix("10.53.0.0/24")
	w.group("sharing", "v4: {prefixes: [10.53.0.0/24]}")
	key := annotation(v1.AnnotationAllowSharedIP, "k")
	first := w.service("first", "sharing", key)
	w.Eventually(w.addresses(first)).Should(Equal([]string{"10.53.0.1"}))
	second := w.service("second", "sharing", key, port(81))
	w.Eventually(w.addresses(second)).Should(Equal([]string{"10.53.0.1"}))
	w.remove(first) // whose record it is
	later := w.service("later", "sharing")
	w.Eventually(w.addresses(later)).Should(Equal([]string{"10.53.0.2"}))
	w.remove(later)
	w.Eventually(func() *fake.Address { return w.at("10.53.0.2") }).Should(BeNil(), "what goes later is released")
	w.Expect(w.recorded()).To(HaveKey("10.53.0.1"))
	w.remove(second)
	w.Eventually(func() *fake.Address { return w.at("10.53.0.1") }).Should(BeNil())
}

func testNetboxRequested(w *externalWorld) {
	w.prefix("10.54.0.0/24")
	w.netbox.Create("ip-addresses", map[string]any{"address": "10.54.0.9/24", "description": "the printer"})
	w.group("requested", "v4: {prefixes: [10.54.0.0/24]}")
	svc := w.service("asks", "requested", annotation(v1.AnnotationAddresses, "10.54.0.7"))
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.54.0.7"}))
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/addresses":"10.54.0.9"}}}`)
	w.Eventually(w.condition(svc, v1.ConditionAllocated)).
		Should(MatchRegexp(`^False AddressInUse: 10.54.0.9 is recorded in NetBox URL already: id \d+$`))
	w.Expect(w.addresses(svc)(w)).To(Equal([]string{"10.54.0.7"}), "it keeps what it has")
	w.Expect(w.at("10.54.0.7")).NotTo(BeNil())
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/addresses":"10.99.0.9"}}}`)
	w.Eventually(w.condition(svc, v1.ConditionAllocated)).Should(HavePrefix("False AddressOutsidePools"))
	w.patch(svc, `{"metadata":{"annotations":{"purelb.io/addresses":"10.54.0.8"}}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.54.0.8"}))
	w.Eventually(func() *fake.Address { return w.at("10.54.0.7") }).Should(BeNil())
	w.remove(svc)
}

func testNetboxLoneFamily(w *externalWorld) {
	w.prefix("10.55.0.0/24")
	w.prefix("fd00:55::/127")
	for _, a := range []string{"fd00:55::", "fd00:55::1"} {
		w.netbox.Create("ip-addresses", map[string]any{"address": a + "/127", "description": "router"})
	}
	w.group("lone", "v4: {prefixes: [10.55.0.0/24]}, v6: {prefixes: ['fd00:55::/127']}")
	lone := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lone"}}
	w.Eventually(w.condition(lone, v1.ConditionReady)).Should(HavePrefix("True"))
	required := w.service("requires", "lone", requireDual)
	w.Eventually(w.condition(required, v1.ConditionAllocated)).
		Should(Equal("False Exhausted: NetBox URL has no free address for IPv6 of the group"))
	w.Expect(w.addresses(required)(w)).To(BeEmpty())
	w.Eventually(func() *fake.Address { return w.at("10.55.0.1") }).Should(BeNil(), "the lone IPv4 address is released")
	preferred := w.service("prefers", "lone", preferDual)
	w.Eventually(w.addresses(preferred)).Should(HaveLen(1))
	w.Expect(w.events(required, v1.EventAllocationFailed)(w)).
		To(Equal([]string{"Exhausted: NetBox URL has no free address for IPv6 of the group"}))
	w.remove(required)
	w.remove(preferred)
}

func testNetboxTenant(w *externalWorld) {
	for n := 5; n < 8; n++ {
		w.netbox.Create(
			"ip-addresses",
			map[string]any{
				"address": fmt.Sprintf("10.57.0.%d/24", n), "status": "reserved", "tenant": map[string]any{"slug": "pool"},
				"description": "for the lab",
			},
		)
	}
	sg := w.group("tenant", "tenant: pool, aggregation: default")
	svc := w.service("original", "tenant")
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.57.0.5"}))
	w.Expect(w.at("10.57.0.5")).To(HaveField("Status", "active"))
	w.Eventually(w.condition(sg, v1.ConditionReady)).Should(Equal("True Accepted: 1 range"))
	w.Expect(sg.Status.Ranges).To(Equal("10.57.0.5-10.57.0.7"))
	w.remove(svc)
	w.Eventually(func() *fake.Address { return w.at("10.57.0.5") }).
		Should(And(HaveField("Status", "reserved"), HaveField("Description", "for the lab")))
}

func testNetboxDifferences(w *externalWorld) {
	w.prefix("10.58.0.0/24")
	sg := w.group("drift", "v4: {prefixes: [10.58.0.0/24]}")
	svc, other, third := w.service("drifts", "drift"), w.service("drifts-too", "drift"),
		w.service("drifts-as-well", "drift")
	for _, s := range []*corev1.Service{svc, other, third} {
		w.Eventually(w.addresses(s)).Should(HaveLen(1))
	}
	edited, deleted, taken := svc.Status.LoadBalancer.Ingress[0].IP, other.Status.LoadBalancer.Ingress[0].IP,
		third.Status.LoadBalancer.Ingress[0].IP
	w.netbox.Edit(w.at(edited).ID, map[string]any{"status": "deprecated", "tags": []any{}})
	w.netbox.Delete(w.at(deleted).ID)
	w.netbox.Delete(w.at(taken).ID)
	w.netbox.Create("ip-addresses", map[string]any{"address": taken + "/24", "description": "keepalived", "role": "vip"})
	w.patch(sg, `{"spec":{"netbox":{"dnsName":"a.example"}}}`) // compared at once
	w.Eventually(w.condition(sg, v1.ConditionDrift)).Should(And(HavePrefix("True RecordsDiffer: "),
		ContainSubstring(edited+": its status is deprecated, and not active, it has no tag purelb"),
		MatchRegexp(taken+`: `+taken+` is recorded in NetBox URL already: id \d+`)))
	w.Eventually(func() *fake.Address { return w.at(deleted) }).ShouldNot(BeNil(), "recorded again")
	w.Eventually(w.events(other, v1.EventIPAMDrift)).
		Should(Equal([]string{deleted + " was not recorded as test/drifts-too's: it is again"}))
	w.Eventually(w.events(svc, v1.EventIPAMDrift)).
		Should(Equal([]string{"its status is deprecated, and not active, it has no tag purelb"}))
	w.Eventually(w.events(third, v1.EventIPAMDrift)).Should(HaveLen(1))
	w.Expect(w.addresses(third)(w)).To(Equal([]string{taken}), "nothing takes an address from a Service")
	w.Expect(w.at(edited)).To(HaveField("Status", "deprecated"), "what somebody has edited stays")
	// Somebody mends it.
	w.netbox.Edit(w.at(edited).ID, map[string]any{"status": "active", "tags": []any{map[string]any{"slug": "purelb"}}})
	w.netbox.Delete(w.at(taken).ID)
	w.patch(sg, `{"spec":{"netbox":{"dnsName":"b.example"}}}`)
	w.Eventually(w.condition(sg, v1.ConditionDrift)).Should(BeEmpty())
	w.Eventually(func() string { return w.recorded()[taken] }).Should(Equal("drifts-as-well"))
	for _, s := range []*corev1.Service{svc, other, third} {
		w.remove(s)
	}
}

func testNetboxPrefixDeleted(w *externalWorld) {
	id := w.prefix("10.59.0.0/24")
	sg := w.group("gone", "v4: {prefixes: [10.59.0.0/24]}")
	svc := w.service("stays", "gone")
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.59.0.1"}))
	w.netbox.Delete(id)
	late := w.service("late", "gone")
	w.Eventually(w.condition(late, v1.ConditionAllocated)).
		Should(Equal("False IPAMRefused: NetBox URL has no 10.59.0.0/24 any more, or the token may not view it"))
	w.patch(sg, `{"spec":{"netbox":{"dnsName":"a.example"}}}`)
	w.Eventually(w.condition(sg, v1.ConditionReady)).
		Should(HavePrefix("False IPAMRefused: NetBox has no prefix 10.59.0.0/24, or the token may not view it"))
	w.Expect(w.addresses(svc)(w)).To(Equal([]string{"10.59.0.1"}))
	w.prefix("10.59.0.0/24")
	w.patch(sg, `{"spec":{"netbox":{"dnsName":"b.example"}}}`)
	w.Eventually(w.addresses(late)).Should(Equal([]string{"10.59.0.2"}))
	w.remove(svc)
	w.remove(late)
}

// TestAttackSecretByProxy plays a user who may write ServiceGroups and may not read Secrets. The user's
// ServiceGroups have the URL of the user's own server and name Secrets that are not for that URL: the
// manager sends nothing to the server. This test shows the row "somebody who may write ServiceGroups
// names a Secret that is for something else, or another URL for the token" of docs/trust.md.
func TestAttackSecretByProxy(t *testing.T) {
	w := newExternalWorld(t)
	w.start()
	var asked atomic.Int32
	w.netbox.SetFaults(func(http.ResponseWriter, *http.Request) bool {
		asked.Add(1)
		return false
	}, nil)
	for name, row := range map[string]struct {
		url, because string
	}{
		"of-something-else": {"", "has no key url with the URL that its token may be sent to: it is sent nowhere"},
		"of-another-netbox": {
			"https://netbox.example", "has another URL in its key url than URL: its token is not sent there",
		},
		"of-a-longer-name": {w.url + "0", "has another URL in its key url than URL: its token is not sent there"},
		"of-a-user": {
			strings.Replace(w.url, "http://", "http://user@", 1),
			"has another URL in its key url than URL: its token is not sent there",
		},
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			StringData: map[string]string{"token": fake.TokenV2},
		}
		if row.url != "" {
			secret.StringData["url"] = row.url
		}
		w.Expect(w.api.Create(t.Context(), secret)).To(Succeed())
		sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		w.Expect(yaml.UnmarshalStrict(
			[]byte("netbox: {url: '"+w.url+"', tokenSecretRef: {name: "+name+", key: token}, v4: {prefixes: [10.61.0.0/24]}}"),
			&sg.Spec,
		)).To(Succeed())
		w.Expect(w.api.Create(t.Context(), sg)).To(Succeed())
		w.Eventually(w.condition(sg, v1.ConditionReady)).
			Should(Equal("False IPAMUnavailable: Secret " + name + " in namespace purelb-system " + row.because))
	}
	w.Expect(asked.Load()).To(BeZero(), "requests to a server that no Secret is for")

	w.prefix("10.62.0.0/24")
	w.Expect(w.api.Create(
		t.Context(),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "right"},
			StringData: map[string]string{"token": fake.TokenV2, "url": w.url + "/api/"},
		},
	)).To(Succeed())
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "right"}}
	w.Expect(yaml.UnmarshalStrict(
		[]byte("netbox: {url: '"+w.url+"', tokenSecretRef: {name: right, key: token}, v4: {prefixes: [10.62.0.0/24]}}"),
		&sg.Spec,
	)).To(Succeed())
	w.Expect(w.api.Create(t.Context(), sg)).To(Succeed())
	w.Eventually(w.condition(sg, v1.ConditionReady)).Should(HavePrefix("True"))
}

// The token is read again when NetBox refuses it, and stands in no object but its Secret.
func testNetboxToken(w *externalWorld) {
	w.prefix("10.60.0.0/24")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rotated"}}
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "token"}}
	w.Expect(yaml.UnmarshalStrict(
		[]byte("netbox: {url: '"+w.url+"', tokenSecretRef: {name: rotated, key: token}, v4: {prefixes: [10.60.0.0/24]}}"),
		&sg.Spec,
	)).To(Succeed())
	w.Expect(w.api.Create(w.t.Context(), sg)).To(Succeed())
	w.Eventually(w.condition(sg, v1.ConditionReady)).
		Should(Equal(
			"False IPAMUnavailable: there is no Secret rotated in namespace purelb-system: the token for NetBox is missing",
		))
	const stolen, fresh = "nbt_KKKKKKKKKKKK.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"nbt_LLLLLLLLLLLL.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	secret.StringData = map[string]string{"token": stolen, "url": w.url}
	w.Expect(w.api.Create(w.t.Context(), secret)).To(Succeed())
	w.Eventually(w.condition(sg, v1.ConditionReachable)).
		Should(Equal("False IPAMRefused: NetBox URL refuses the token (403): Invalid v2 token"))
	svc := w.service("token", "token")
	w.Eventually(w.condition(svc, v1.ConditionAllocated)).
		Should(Equal("False IPAMRefused: NetBox URL refuses the token (403): Invalid v2 token"))
	w.netbox.SetTokens(map[string]fake.Token{fake.TokenV1: {}, fake.TokenV2: {}, fresh: {}})
	w.patch(secret, `{"stringData":{"token":"`+fresh+`"}}`)
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.60.0.1"}))

	var events eventsv1.EventList
	w.Expect(w.api.List(w.t.Context(), &events)).To(Succeed())
	w.get(w, sg)
	w.get(w, svc)
	for _, text := range []string{fmt.Sprintf("%+v", events), fmt.Sprintf("%+v", sg), fmt.Sprintf("%+v", svc)} {
		for _, token := range []string{stolen, fresh, fake.TokenV1, fake.TokenV2} {
			_, secretPart, _ := strings.Cut(token, ".")
			w.Expect(strings.Contains(text, token) || secretPart != "" && strings.Contains(text, secretPart)).To(
				BeFalse(), "the token is in %.200s…", text,
			)
		}
	}
	w.remove(svc)
}

// TestFaultNetboxAway takes NetBox away: Services keep what they have, also when the
// manager restarts meanwhile; new ones wait, and are served after its return; those of other
// groups do not notice.
func TestFaultNetboxAway(t *testing.T) { playNetboxAway(newExternalWorld(t)) }

// playNetboxAway returns how long after the return of NetBox those that waited were served.
func playNetboxAway(w *externalWorld) (took time.Duration) {
	w.prefix("10.50.0.0/24")
	w.start()
	sg := w.group("away", "v4: {prefixes: [10.50.0.0/24]}")
	kept, deleted := w.service("kept", "away"), w.service("deleted", "away")
	w.Eventually(w.addresses(kept)).Should(HaveLen(1))
	w.Eventually(w.addresses(deleted)).Should(HaveLen(1))
	had, gone := kept.Status.LoadBalancer.Ingress[0].IP, deleted.Status.LoadBalancer.Ingress[0].IP

	w.netbox.SetFaults(func(rw http.ResponseWriter, _ *http.Request) bool {
		http.Error(rw, "upgrading", http.StatusServiceUnavailable)
		return true
	}, nil)
	waits := w.service("waits", "away")
	const away = "NetBox URL cannot be asked: it answers 503"
	w.Eventually(w.condition(waits, v1.ConditionAllocated)).Should(Equal("False IPAMUnavailable: " + away))
	w.Eventually(w.events(waits, v1.EventAllocationFailed)).Should(Equal([]string{"IPAMUnavailable: " + away}))
	w.Eventually(w.condition(sg, v1.ConditionReachable)).Should(Equal("False IPAMUnavailable: " + away))
	w.Expect(w.condition(sg, v1.ConditionReady)(w)).To(HavePrefix("True"))
	w.remove(deleted) // nothing holds it up

	w.kill()
	w.start()
	again := w.service("waits-too", "away")
	w.Eventually(w.condition(again, v1.ConditionAllocated)).Should(Equal("False IPAMUnavailable: " + away))
	w.Expect(w.condition(sg, v1.ConditionReady)(w)).To(HavePrefix("True"), "its ranges are known from its status")

	local := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "local"}}
	w.Expect(yaml.UnmarshalStrict([]byte("local: {pool: 10.52.0.1-10.52.0.9, subnet: 10.52.0.0/24}"), &local.Spec)).
		To(Succeed())
	w.Expect(w.api.Create(w.t.Context(), local)).To(Succeed())
	w.Eventually(w.addresses(w.service("local", "local"))).Should(Equal([]string{"10.52.0.1"}))
	w.Expect(w.addresses(kept)(w)).To(Equal([]string{had}), "the new manager has looked at all of them")

	w.netbox.SetFaults(nil, nil)
	begin := time.Now()
	w.Eventually(w.addresses(waits)).WithPolling(10 * time.Millisecond).Should(HaveLen(1))
	w.Eventually(w.addresses(again)).WithPolling(10 * time.Millisecond).Should(HaveLen(1))
	took = time.Since(begin)
	w.t.Logf("both Services that waited were served %s after NetBox was back", took.Round(time.Millisecond))
	w.Eventually(w.condition(sg, v1.ConditionReachable)).Should(Equal("True Reachable: NetBox URL answers"))
	// The one deleted meanwhile, of which this manager heard nothing, goes by comparison.
	w.Expect(w.recorded()).To(HaveKey(gone))
	w.pass(11*time.Minute, "away")
	w.pass(11*time.Minute, "away")
	w.Eventually(w.recorded).ShouldNot(HaveKey(gone))
	w.Eventually(func(g Gomega) { g.Expect(w.recorded()).To(HaveLen(3)) }).Should(Succeed())

	// A Service that another load balancer gave an address of the prefix keeps it.
	w.kill()
	adopted := w.service("adopted", "away")
	adopted.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.50.0.77"}}
	w.Expect(w.api.Status().Update(w.t.Context(), adopted)).To(Succeed())
	w.start()
	w.Eventually(w.condition(adopted, v1.ConditionAllocated)).Should(Equal("True Allocated: 10.50.0.77 from pool away"))
	w.Expect(w.recorded()).To(HaveKeyWithValue("10.50.0.77", "adopted"))
	return took
}

// TestFaultNetboxSlow lets NetBox take ten seconds for each answer. Services of other groups
// get their addresses meanwhile.
func TestFaultNetboxSlow(t *testing.T) { playNetboxSlow(newExternalWorld(t)) }

// playNetboxSlow returns how long Services of another group took before NetBox was slow, and while
// it was.
func playNetboxSlow(w *externalWorld) (before, during time.Duration) {
	w.prefix("10.50.0.0/24")
	w.start()
	w.group("slow", "v4: {prefixes: [10.50.0.0/24]}")
	w.Eventually(w.addresses(w.service("first", "slow"))).Should(HaveLen(1))
	local := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "local"}}
	w.Expect(yaml.UnmarshalStrict([]byte("local: {pool: 10.52.0.0/16, subnet: 10.52.0.0/16}"), &local.Spec)).To(Succeed())
	w.Expect(w.api.Create(w.t.Context(), local)).To(Succeed())
	many := func(name string, count int) time.Duration {
		begin := time.Now()
		services := make([]*corev1.Service, count)
		for n := range count {
			services[n] = w.service(fmt.Sprintf("%s-%d", name, n), "local")
		}
		for _, svc := range services {
			w.Eventually(w.addresses(svc)).WithPolling(5 * time.Millisecond).Should(HaveLen(1))
		}
		return time.Since(begin)
	}
	many("warm", 20)
	const count = 100
	before = many("before", count)
	release := make(chan struct{})
	var isOver atomic.Bool
	w.netbox.SetFaults(func(http.ResponseWriter, *http.Request) bool {
		if !isOver.Load() {
			select {
			case <-release:
			case <-time.After(10 * time.Second):
			}
		}
		return false
	}, nil)
	var waiting []*corev1.Service
	for n := range 30 {
		waiting = append(waiting, w.service(fmt.Sprintf("slow-%d", n), "slow"))
	}
	during = many("during", count)
	w.Expect(w.addresses(waiting[29])(w)).To(BeEmpty(), "NetBox has yet to answer for it")
	w.t.Logf(
		"%d Services of another group took %s, and %s while NetBox was slow and 30 Services waited for it", count,
		before.Round(time.Millisecond), during.Round(time.Millisecond),
	)
	w.Eventually(w.condition(waiting[29], v1.ConditionAllocated)).
		Should(Equal("False IPAMUnavailable: NetBox URL is slow to answer: the Service goes on waiting"))
	isOver.Store(true)
	close(release)
	for _, svc := range waiting {
		w.Eventually(w.addresses(svc)).Should(HaveLen(1))
	}
	w.Eventually(func(g Gomega) { g.Expect(w.recorded()).To(HaveLen(31)) }).Should(Succeed())
	return before, during
}

// A burst of Services of one group.
func TestNetboxBurst(t *testing.T) {
	w := newExternalWorld(t)
	w.prefix("10.50.0.0/24")
	w.start()
	w.group("burst", "v4: {prefixes: [10.50.0.0/24]}")
	for n := range 60 {
		w.service(fmt.Sprintf("burst-%d", n), "burst")
	}
	begin := time.Now()
	w.Eventually(func(g Gomega) { g.Expect(w.holders(g)).To(HaveLen(60)) }).Should(Succeed())
	t.Logf("60 Services took %s", time.Since(begin).Round(time.Millisecond))
	w.Expect(w.recorded()).To(HaveLen(60))
	var list corev1.ServiceList
	w.Expect(w.api.List(context.Background(), &list)).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Namespace == user {
			w.Expect(w.api.Delete(context.Background(), &list.Items[i])).To(Succeed())
		}
	}
	w.Eventually(w.recorded).Should(BeEmpty())
}
