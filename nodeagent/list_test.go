package nodeagent

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// An Announcement changes while the API server is being listed: the list does not have
// the change yet, the cache has it, and its event meets a worker that may not read the
// cache. The agent makes the change all the same. This test shows the row "it changes an object while
// the agent lists" of docs/trust.md.
func TestFaultChangeDuringList(t *testing.T) {
	w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
	w.reconcileOrFail()
	live := w.APIReader.(client.WithWatch)
	w.APIReader = interceptor.NewClient(live, interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := live.List(ctx, list, opts...); err != nil {
				return err
			}
			w.APIReader = live // once
			w.edit("node1", func(spec *purelbv1.AnnouncementSpec) {
				spec.Addresses = append(spec.Addresses, virtual("198.51.100.2"))
			})
			_, err := w.syncWoken(ctx)
			return err
		},
	})
	if err := w.listAndSync(false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.wake:
		w.reconcileOrFail()
	default:
		t.Error("nothing wakes the worker after the list")
	}
	w.expect(
		"kernel", []string{"EnsureVirtual kube-lb0", "Add 198.51.100.1/32 kube-lb0", "Add 198.51.100.2/32 kube-lb0"},
		w.kernel.TakeCalls(),
	)
}
