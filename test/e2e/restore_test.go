package e2e

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/lab"
)

// restoreLimit is how long PureLB may take after etcd was restored.
const restoreLimit = time.Minute

// lostWrites is how many writes the backup does not have. Watches that go on from versions that
// are no more deliver nothing for as long as it takes to write as much again: minutes, as a lab
// at rest is written to some ten times a second.
const lostWrites = 5000

var _ = Describe("etcd that is restored from a backup", func() {
	It("costs no Service its address, and gives none to two", Label(restoreLabel), func(ctx SpecContext) {
		s := newSpace(ctx)
		group := s.localGroup(ctx)
		kept, deleted := s.createService(ctx, "kept", group), s.createService(ctx, "deleted", group)
		ofKept, ofDeleted := waitForAddresses(ctx, kept, 2), waitForAddresses(ctx, deleted, 2)
		waitUntilAnnounced(ctx, kept)
		waitUntilAnnounced(ctx, deleted)
		waitForServers(ctx, s.namespace)
		formerHolder := waitForHolder(ctx, ofKept[0])

		By("saving etcd")
		backup := filepath.Join(GinkgoT().TempDir(), "etcd")
		Expect(testLab.SaveEtcd(ctx, backup)).To(Succeed())
		waitForRest(ctx, kept)

		By("deleting a Service, creating others, and moving an address, all of which the backup does not know")
		Expect(kubeClient.Delete(ctx, deleted)).To(Succeed())
		for _, addr := range ofDeleted {
			waitForPlaces(ctx, addr, 0)
		}
		later, another := s.createService(ctx, "later", group), s.createService(ctx, "another", group)
		ofLater, ofAnother := waitForAddresses(ctx, later, 2), waitForAddresses(ctx, another, 2)
		Expect(ofLater).To(Equal(ofDeleted), "a Service of today has the addresses of one in the backup")
		waitUntilAnnounced(ctx, later)
		waitUntilAnnounced(ctx, another)
		DeferCleanup(func(ctx SpecContext) { setExcluded(ctx, false, formerHolder) }, NodeTimeout(waitLimit))
		setExcluded(ctx, true, formerHolder)
		Eventually(func(g Gomega) {
			places, err := findPlaces(ctx, ofKept[0])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(places).To(And(HaveLen(1), Not(ContainElement(HavePrefix(formerHolder+"/")))))
		}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())

		By("writing so much that the restored database does not catch up while the spec runs")
		busy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "busy"}}
		Expect(kubeClient.Create(ctx, busy)).To(Succeed())
		for i := range lostWrites {
			busy.Data = map[string]string{"i": strconv.Itoa(i)}
			Expect(kubeClient.Update(ctx, busy)).To(Succeed())
		}

		By("restoring etcd")
		meter := measureFrom(ctx, lab.Client, ofKept[0])
		Expect(testLab.RestoreEtcd(ctx, backup)).To(Succeed())
		restoredAt := time.Now()
		inUse := slices.Concat(ofKept, ofDeleted)
		Eventually(func(g Gomega) {
			services := &corev1.ServiceList{}
			g.Expect(kubeClient.List(ctx, services, client.InNamespace(s.namespace))).To(Succeed())
			has := map[string][]netip.Addr{}
			for i := range services.Items {
				for _, in := range services.Items[i].Status.LoadBalancer.Ingress {
					has[services.Items[i].Name] = append(has[services.Items[i].Name], netip.MustParseAddr(in.IP))
				}
			}
			g.Expect(has).To(Equal(map[string][]netip.Addr{"kept": ofKept, "deleted": ofDeleted}))
			for _, addr := range inUse {
				places, err := findPlaces(ctx, addr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(places).To(HaveLen(1), "places of %s", addr)
			}
			for _, addr := range ofAnother {
				places, err := findPlaces(ctx, addr)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(places).To(BeEmpty(), "places of %s, which no Service has any more", addr)
			}
		}).WithContext(ctx).WithTimeout(restoreLimit).WithPolling(pollInterval).Should(Succeed())
		AddReportEntry(
			"everything is in its place", time.Since(restoredAt).Round(100*time.Millisecond).String()+" after the restore",
		)

		By("creating a Service")
		fresh := s.createService(ctx, "fresh", group)
		for _, addr := range waitForAddresses(ctx, fresh, 2) {
			Expect(inUse).NotTo(ContainElement(addr))
		}
		waitUntilAnnounced(ctx, fresh)
		AddReportEntry(
			"a new Service is announced", time.Since(restoredAt).Round(100*time.Millisecond).String()+" after the restore",
		)
		record, err := meter.Stop()
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("requests to the Service that was there all the time", record.Figures().String())
		waitForAnswer(ctx, lab.Client, ofKept[0])
	}, SpecTimeout(15*time.Minute))
})
