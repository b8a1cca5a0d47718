package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// TestSessionDownAtServices has a router go away from two nodes with twelve Services: ten of these say so, each once,
// and that there are two more.
func TestSessionDownAtServices(t *testing.T) {
	var objects []client.Object
	common := &v1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "default"},
		Spec:       v1.CommonAnnouncementSpec{LBNodeAgent: "default"},
	}
	for i := range 12 {
		name := fmt.Sprintf("s%02d", i)
		objects = append(objects, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}})
		common.Spec.Addresses = append(common.Spec.Addresses, v1.AnnouncedAddress{
			Address: fmt.Sprintf("10.1.0.%d", i), Type: v1.AnnounceVirtual, Services: []string{"a/" + name},
		})
	}
	for _, node := range []string{"n1", "n2"} {
		objects = append(objects, &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: node},
			Spec:       v1.AnnouncementSpec{NodeName: node, LBNodeAgent: "default", IncludeCommonAnnouncements: true},
		})
	}
	b := newBench(t, append(objects, common)...)
	recorder := events.NewFakeRecorder(100)
	r := &RoutingReconciler{Client: b.api, Recorder: recorder, Namespace: benchNamespace}
	r.recordAtServices(t.Context(), nil)
	r.recordAtServices(t.Context(), []routing.SessionChange{
		{Node: "n1", Neighbor: "192.0.2.1", Cause: "x"}, {Node: "n2", Neighbor: "192.0.2.1", Cause: "x"},
	})
	if len(recorder.Events) != maxServicesWithEvent {
		t.Fatalf("%d events", len(recorder.Events))
	}
	if event := <-recorder.Events; !strings.HasSuffix(event, "SessionDown The session of node n1 with 192.0.2.1 is down: "+
		"x; and 1 more sessions are. It concerns 2 more Services, at which there is no event") {
		t.Error(event)
	}
}
