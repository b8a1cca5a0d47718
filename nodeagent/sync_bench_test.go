package nodeagent

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// BenchmarkSync measures what one more shared entry costs the agent of one node, without the kernel
// and the API server.
func BenchmarkSync(b *testing.B) {
	for _, addresses := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%d addresses", addresses), func(b *testing.B) {
			ann := announcementOf("node1")
			ann.Spec.IncludeCommonAnnouncements = true
			w := newWorld(b, settings(), ann)
			ctx := ctrllog.IntoContext(context.Background(), logr.Discard())
			g := apiObjects{lbNodeAgent: settings(), announcements: []purelbv1.Announcement{*ann}}
			for first := 0; first < addresses; first += 25 {
				var some []purelbv1.AnnouncedAddress
				for i := range 25 {
					some = append(some, virtual(fmt.Sprintf("198.51.%d.%d", (first+i)/250, (first+i)%250)))
				}
				g.commonAnnouncements = append(
					g.commonAnnouncements, *commonAnnouncementOf(fmt.Sprintf("common-%d", first), 1, some...),
				)
			}
			if _, err := w.sync(ctx, g, true); err != nil {
				b.Fatal(err)
			}
			one := &g.commonAnnouncements[0]
			for b.Loop() {
				one.Spec.Revision++
				if one.Spec.Revision%2 == 0 {
					one.Spec.Addresses = append(one.Spec.Addresses, virtual("198.51.100.1"))
				} else {
					one.Spec.Addresses = one.Spec.Addresses[:25]
				}
				if _, err := w.sync(ctx, g, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
