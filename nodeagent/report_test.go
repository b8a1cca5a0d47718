package nodeagent

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// TestReportOnce has a cache that is behind: what it does not show yet is not
// written again, and what it shows is put right if it is wrong.
func TestReportOnce(t *testing.T) {
	w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
	upToDate := w.Client.(client.WithWatch)
	var shown []purelbv1.Announcement
	w.Client = interceptor.NewClient(upToDate, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			list.(*purelbv1.AnnouncementList).Items = shown
			return nil
		},
	})
	catchUp := func() {
		var list purelbv1.AnnouncementList
		if err := upToDate.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		shown = list.Items
	}
	written := func(what string, want ...string) {
		t.Helper()
		w.reconcileOrFail()
		w.expect(what, want, w.made())
	}

	catchUp()
	written("the first report", "apply status")
	written("the cache does not show it")
	written("nor now")
	catchUp()
	written("it does")

	wrong := w.get("node1")
	wrong.Status.Addresses[0].State = purelbv1.StatePending
	if err := upToDate.Status().Update(t.Context(), wrong); err != nil {
		t.Fatal(err)
	}
	written("nobody knows that it is wrong")
	catchUp()
	written("it is wrong", "apply status")
	w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.2")) })
	written("the cache does not show either")
	catchUp()
	written("there is more to report", "apply status")
	w.expect("states", "198.51.100.1 Announced, 198.51.100.2 Announced", w.states("node1"))
}
