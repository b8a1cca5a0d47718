package controllers_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// installation is what a cluster says of its installation: the ConfigMap's id, or "none".
func (w *externalWorld) installation() string {
	record := newInstallation()
	err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(record), record)
	if apierrors.IsNotFound(err) {
		return "none"
	}
	w.Expect(err).NotTo(HaveOccurred())
	return record.Data["id"]
}

func newInstallation() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-installation"}}
}

// marked returns the records in NetBox that the installation with an id has marked as its own.
func (w *externalWorld) marked(with string) []fake.Address {
	return slices.DeleteFunc(w.netbox.Addresses(), func(record fake.Address) bool {
		return !strings.HasPrefix(record.Description, "purelb "+with+"/")
	})
}

// becauseOfProduction is how a condition begins in a cluster whose ConfigMap has the id production, and
// whose manager has another one.
func becauseOfProduction(own string) string {
	return "False OtherInstallation: ConfigMap purelb-installation in namespace purelb-system says that this cluster is " +
		"installation production, and the manager's id is " + own + ": "
}

// wake lets time pass for the manager, and then gives it something to do in a group.
func (w *externalWorld) wake(group string) *corev1.Service {
	w.t.Helper()
	ahead := w.ahead.Add(int64(2 * time.Minute))
	return w.service(fmt.Sprintf("wake-%d", ahead/int64(time.Second)), group)
}

// The manager records its installation when a ServiceGroup first needs that, and again when
// somebody has deleted the record. While the record says something else, the manager asks NetBox
// for nothing. This test shows the row "the ConfigMap with the id is deleted, or changed by
// mistake" of docs/trust.md.
func TestFaultInstallationRecord(t *testing.T) {
	w := newExternalWorld(t)
	w.prefix("10.63.0.0/24")
	cluster := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	w.get(w, cluster)
	own := string(cluster.UID)
	w.start()
	const spec = "local: {pool: 10.52.0.1-10.52.0.9, subnet: 10.52.0.0/24}"
	local := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "local"}}
	w.Expect(yaml.UnmarshalStrict([]byte(spec), &local.Spec)).To(Succeed())
	w.Expect(w.api.Create(t.Context(), local)).To(Succeed())
	w.Eventually(w.addresses(w.service("local", "local"))).Should(HaveLen(1))
	w.Expect(w.installation()).To(Equal("none"), "while no ServiceGroup is external")

	sg := w.group("record", "v4: {prefixes: [10.63.0.0/24]}")
	svc := w.service("web", "record")
	w.Eventually(w.addresses(svc)).Should(Equal([]string{"10.63.0.1"}))
	w.Expect(w.installation()).To(Equal(own))
	w.Expect(w.at("10.63.0.1").Description).To(HavePrefix("purelb " + own + "/test/web/"))

	w.Expect(w.api.Delete(t.Context(), newInstallation())).To(Succeed())
	w.Eventually(w.addresses(w.wake("record"))).Should(HaveLen(1))
	w.Expect(w.installation()).To(Equal(own), "recorded again")

	w.patch(newInstallation(), `{"data":{"id":"production"}}`)
	// A minute later the first request reads the record.
	waits := w.wake("record")
	because := becauseOfProduction(own)
	w.Eventually(w.condition(waits, v1.ConditionAllocated)).Should(HavePrefix(because))
	w.Eventually(w.condition(sg, v1.ConditionReachable)).Should(HavePrefix(because))
	w.Eventually(w.events(sg, v1.ReasonOtherInstallation)).Should(HaveLen(1))
	before := w.netbox.Requests()
	w.remove(svc)
	late := w.wake("record")
	w.Eventually(w.condition(late, v1.ConditionAllocated)).Should(HavePrefix(because))
	w.Expect(w.netbox.Requests()).To(Equal(before))
	w.Expect(w.recorded()).To(HaveKeyWithValue("10.63.0.1", "web"), "not released")

	w.patch(newInstallation(), `{"data":{"id":"`+own+`"}}`)
	w.Eventually(w.addresses(w.wake("record"))).Should(HaveLen(1))
	for _, waited := range []*corev1.Service{waits, late} {
		w.Eventually(w.addresses(waited)).Should(HaveLen(1))
	}
	w.Eventually(w.condition(sg, v1.ConditionReachable)).Should(Equal("True Reachable: NetBox URL answers"))
}

// TestFaultCopiedCluster copies a cluster, production, whose manager has recorded addresses in
// NetBox. The copy's manager has an id of its own. It asks NetBox for nothing until somebody
// deletes the ConfigMap, and changes none of production's records then: Services keep the addresses
// that they brought along, which is reported, and others get addresses of their own. This test
// shows the row "the cluster is a copy of another one, and its manager has an id of its own" of
// docs/trust.md.
func TestFaultCopiedCluster(t *testing.T) {
	w := newExternalWorld(t)
	w.prefix("10.64.0.0/24")
	for n := 5; n < 8; n++ {
		w.netbox.Create("ip-addresses", map[string]any{
			"address": fmt.Sprintf("10.65.0.%d/24", n), "status": "reserved", "tenant": map[string]any{"slug": "pool"},
		})
	}
	w.installationID = "production"
	w.start()
	sg := w.group("prefix", "v4: {prefixes: [10.64.0.0/24]}")
	w.group("tenant", "tenant: pool, aggregation: default")
	web, gone, reserved := w.service("web", "prefix"), w.service("gone", "prefix"), w.service("reserved", "tenant")
	var had []string
	for _, svc := range []*corev1.Service{web, gone, reserved} {
		w.Eventually(w.addresses(svc)).Should(HaveLen(1))
		had = append(had, svc.Status.LoadBalancer.Ingress[0].IP)
	}
	w.Eventually(w.condition(sg, v1.ConditionReady)).Should(HavePrefix("True"))
	w.Expect(w.installation()).To(Equal("production"))
	w.kill()
	ofProduction := w.marked("production")
	w.Expect(ofProduction).To(HaveLen(3))

	w.installationID = "staging"
	requests := w.netbox.Requests()
	w.start()
	because := becauseOfProduction("staging")
	w.Eventually(w.condition(sg, v1.ConditionReachable)).Should(HavePrefix(because))
	w.remove(gone)
	late := w.service("late", "prefix")
	w.Eventually(w.condition(late, v1.ConditionAllocated)).Should(HavePrefix(because))
	another := w.group("another", "v4: {prefixes: [10.64.0.0/24]}")
	w.Eventually(w.condition(another, v1.ConditionReady)).Should(HavePrefix(because))
	first := w.service("first", "another")
	w.Eventually(w.condition(first, v1.ConditionAllocated)).Should(HavePrefix(because))
	w.Expect(w.addresses(web)(w)).To(Equal(had[:1]))
	w.Expect(w.netbox.Requests()).To(Equal(requests), "requests of a copy")

	w.Expect(w.api.Delete(t.Context(), newInstallation())).To(Succeed())
	w.Eventually(w.addresses(w.wake("prefix"))).Should(HaveLen(1))
	w.Expect(w.installation()).To(Equal("staging"))
	w.Eventually(w.addresses(late)).Should(HaveLen(1))
	for range 3 { // as often as the comparisons that would release what nobody has
		w.pass(11*time.Minute, "prefix")
	}
	w.remove(reserved)
	w.pass(11*time.Minute, "prefix")
	w.pass(11*time.Minute, "tenant")
	w.Eventually(w.condition(sg, v1.ConditionDrift)).Should(And(HavePrefix("True RecordsDiffer: "),
		ContainSubstring(had[0]+" is recorded in NetBox URL already: id "), Not(ContainSubstring(had[1]))))
	w.Expect(w.addresses(web)(w)).To(Equal(had[:1]))
	// The Service gives up what it has brought along.
	w.patch(web, `{"spec":{"type":"ClusterIP"}}`)
	w.Eventually(func(g Gomega) []netip.Addr {
		w.get(g, web)
		return allocation.RecordOf(web).Addresses
	}).Should(BeEmpty())
	w.patch(web, `{"spec":{"type":"LoadBalancer"}}`)
	w.Eventually(w.addresses(web)).Should(And(HaveLen(1), Not(Equal(had[:1]))))
	w.remove(web)
	w.remove(late) // the records of both are released
	w.Eventually(func() []fake.Address { return w.marked("staging/test/web") }).Should(BeEmpty())
	w.Eventually(func() []fake.Address { return w.marked("staging/test/late") }).Should(BeEmpty())
	w.Expect(w.marked("production")).To(Equal(ofProduction))
}
