package nodeagent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/measure"
)

// cachedObjects are what a cache holds. It copies what it lists, unless it is told not to.
type cachedObjects struct {
	client.Client
	announcements []*purelbv1.Announcement
	commons       []*purelbv1.CommonAnnouncement
}

func (c *cachedObjects) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	settings().DeepCopyInto(obj.(*purelbv1.LBNodeAgent))
	return nil
}

func (c *cachedObjects) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	isShared := ptr.Deref((&client.ListOptions{}).ApplyOptions(opts).UnsafeDisableDeepCopy, false)
	switch list := list.(type) {
	case *purelbv1.AnnouncementList:
		for _, a := range c.announcements {
			if !isShared {
				a = a.DeepCopy()
			}
			list.Items = append(list.Items, *a)
		}
	case *purelbv1.CommonAnnouncementList:
		for _, common := range c.commons {
			if !isShared {
				common = common.DeepCopy()
			}
			list.Items = append(list.Items, *common)
		}
	}
	return nil
}

// BenchmarkSync measures what one address more or less costs the agent of one node that has others, without the
// kernel and the API server: of the shared entries, or of the node's own as Local ones. CPU-ns/op does not depend on
// what else the machine does.
func BenchmarkSync(b *testing.B) {
	const perObject = 25
	for _, isLocal := range []bool{false, true} {
		for _, addresses := range []int{100, 1000, 10000} {
			name := fmt.Sprintf("%d addresses", addresses)
			if isLocal {
				name = fmt.Sprintf("%d Local addresses", addresses)
			}
			b.Run(name, func(b *testing.B) {
				first := announcementOf("node1")
				first.Spec.IncludeCommonAnnouncements = true
				cache := &cachedObjects{announcements: []*purelbv1.Announcement{first}}
				for from := 0; from < addresses; from += perObject {
					var some []purelbv1.AnnouncedAddress
					for i := from; i < from+perObject; i++ {
						text := fmt.Sprintf("198.51.%d.%d", i/250, i%250)
						if isLocal {
							some = append(some, local(text, takeover))
						} else {
							some = append(some, virtual(text))
						}
					}
					if isLocal {
						cache.announcements = append(cache.announcements, announcementOf(fmt.Sprintf("node1-%d", from), some...))
					} else {
						cache.commons = append(cache.commons, commonAnnouncementOf(fmt.Sprintf("common-%d", from), 1, some...))
					}
				}
				w := newWorld(b, settings(), first)
				cache.Client = w.Client
				w.Client, w.CheckpointPath = cache, "noted, and not written"
				w.isCacheFilled.Store(true)
				w.freshness.renewedAt = time.Now().Add(24 * time.Hour)
				ctx := ctrllog.IntoContext(context.Background(), logr.Discard())
				look := func() {
					if _, err := w.syncWoken(ctx); err != nil {
						b.Fatal(err)
					}
				}
				look()
				// The cache replaces objects, and changes none.
				change := func(isMore bool) {
					if isLocal {
						changed := cache.announcements[1].DeepCopy()
						changed.Generation++
						changed.Spec.Addresses = changed.Spec.Addresses[:perObject]
						if isMore {
							changed.Spec.Addresses = append(slices.Clip(changed.Spec.Addresses), local("198.51.100.1", takeover))
						}
						cache.announcements[1] = changed
						return
					}
					changed := cache.commons[0].DeepCopy()
					changed.Generation++
					changed.Spec.Revision++
					changed.Spec.Addresses = changed.Spec.Addresses[:perObject]
					if isMore {
						changed.Spec.Addresses = append(slices.Clip(changed.Spec.Addresses), virtual("198.51.100.1"))
					}
					cache.commons[0] = changed
				}
				isMore := false
				began, err := measure.CPUTime(os.Getpid())
				for b.Loop() {
					isMore = !isMore
					change(isMore)
					look()
				}
				ended, err2 := measure.CPUTime(os.Getpid())
				if err != nil || err2 != nil {
					b.Fatal(err, err2)
				}
				b.ReportMetric(float64((ended-began).Nanoseconds())/float64(b.N), "CPU-ns/op")
			})
		}
	}
}
