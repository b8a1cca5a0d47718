package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// passes is how many objects pass one after the other through the manager before what was written
// earlier counts as handled: the first one passes when what was written has been handled, and the
// second one when what followed from that has been, too.
const passes = 2

// barriers numbers the objects that only show that the manager has handled what was written earlier.
var barriers atomic.Int64

// waitUntilCached waits until the manager's cache has what the API server stores.
func waitUntilCached(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) { g.Expect(versions(g, cached)).To(Equal(versions(g, api))) }).Should(Succeed())
}

// versions returns the versions of all objects that the manager decides by.
func versions(g Gomega, reader client.Reader) map[string]string {
	all := map[string]string{}
	for _, list := range []client.ObjectList{
		&corev1.ServiceList{}, &corev1.NodeList{}, &discoveryv1.EndpointSliceList{},
		&v1.ServiceGroupList{}, &v1.LBNodeAgentList{}, &v1.AnnouncementList{}, &v1.CommonAnnouncementList{},
	} {
		g.Expect(reader.List(context.Background(), list)).To(Succeed())
		g.Expect(meta.EachListItem(list, func(item runtime.Object) error {
			obj, err := meta.Accessor(item)
			if err == nil {
				all[fmt.Sprintf("%T %s/%s", item, obj.GetNamespace(), obj.GetName())] = obj.GetResourceVersion()
			}
			return err
		})).To(Succeed())
	}
	return all
}

// waitUntilAllocated waits until the manager has decided on addresses by what was written before.
func waitUntilAllocated(t *testing.T) {
	t.Helper()
	for range passes {
		waitUntilCached(t)
		svc := service(t, fmt.Sprintf("barrier-%d", barriers.Add(1)), ofGroup("barrier"))
		NewWithT(t).Eventually(condition(svc, v1.ConditionAllocated)).
			Should(Equal("False NoSuchGroup: there is no ServiceGroup barrier"))
		NewWithT(t).Eventually(eventsOf(svc, v1.EventAllocationFailed)).Should(HaveLen(1))
		remove(t, svc)
	}
}

// waitUntilPlaced waits until the manager has allocated, placed, and reported, by what was written
// before. The agent of a node has to run.
func waitUntilPlaced(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	for range passes {
		waitUntilCached(t)
		name := fmt.Sprintf("barrier-%d", barriers.Add(1))
		sg := serviceGroup(t, name, "remote: {pool: 192.0.2.1, subnet: 192.0.2.0/24}")
		svc := service(t, name, ofGroup(name))
		g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
		g.Eventually(eventsOf(svc, v1.EventAnnouncingNonLocal)).ShouldNot(BeEmpty())
		remove(t, svc)
		g.Eventually(func(g Gomega) {
			var commons v1.CommonAnnouncementList
			g.Expect(api.List(context.Background(), &commons)).To(Succeed())
			for i := range commons.Items {
				g.Expect(commons.Items[i].Spec.Addresses).NotTo(ContainElement(HaveField("Address", "192.0.2.1")))
			}
		}).Should(Succeed())
		remove(t, sg)
	}
}

// waitUntilNodesHandled waits until the manager has decided by what was written before which agents
// nodes run. A node with the given labels has to get the agent of the named LBNodeAgent.
func waitUntilNodesHandled(t *testing.T, labels map[string]string, lbNodeAgent string) {
	t.Helper()
	g := NewWithT(t)
	for range passes {
		waitUntilCached(t)
		name := fmt.Sprintf("barrier-%d", barriers.Add(1))
		n := node(t, name, labels)
		g.Eventually(func(g Gomega) string { return fetch(g, n).Labels[v1.LabelAgent] }).Should(Equal(lbNodeAgent))
		g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, name) }).ShouldNot(BeNil())
		remove(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		g.Eventually(func(g Gomega) *v1.Announcement { return announcement(g, name) }).Should(BeNil())
	}
}

// writeLog is the paths of what the manager has written.
type writeLog struct {
	mu    sync.Mutex
	paths []string
}

// wrap notes the writes that a transport sends.
func (l *writeLog) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
			l.mu.Lock()
			l.paths = append(l.paths, r.Method+" "+r.URL.Path)
			l.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// take returns the writes since the last call of take.
func (l *writeLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.paths
	l.paths = nil
	return taken
}
