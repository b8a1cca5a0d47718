package nodeagent

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// TestReportOnce has a cache that is behind: what it does not show yet is not
// written again, and what it shows is put right if it is wrong.
func TestReportOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		upToDate := w.Client.(client.WithWatch)
		var shown []purelbv1.Announcement
		w.Client = interceptor.NewClient(upToDate, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if err := c.List(ctx, list, opts...); err != nil {
					return err
				}
				if announcements, ok := list.(*purelbv1.AnnouncementList); ok {
					announcements.Items = shown
				}
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
	})
}

// TestReportsTogether has an API server that takes its time.
func TestReportsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", virtual("198.51.100.1")))
		took := 20 * time.Millisecond
		w.Client = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
			SubResourceApply: func(
				ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration,
				opts ...client.SubResourceApplyOption,
			) error {
				time.Sleep(took)
				return c.SubResource(sub).Apply(ctx, obj, opts...)
			},
		})
		w.reconcileOrFail()
		w.expect("the first", []string{"apply status"}, w.made())
		for n := range 3 {
			w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
				s.Addresses = append(s.Addresses, virtual(fmt.Sprintf("198.51.100.%d", n+2)))
			})
			again, err := w.reconcile()
			w.expect("error", nil, err)
			w.expect("again in", time.Duration(100-10*n)*time.Millisecond, again)
			time.Sleep(10 * time.Millisecond)
		}
		w.expect(
			"what is added, at once", 4,
			len(slices.DeleteFunc(w.kernel.TakeCalls(), func(c string) bool { return !strings.HasPrefix(c, "Add ") })),
		)
		w.expect("reports meanwhile", []string(nil), w.made())
		took = time.Minute
		time.Sleep(70 * time.Millisecond)
		w.reconcileOrFail()
		w.expect("one for all", []string{"apply status"}, w.made())
		w.expect(
			"states", "198.51.100.1 Announced, 198.51.100.2 Announced, 198.51.100.3 Announced, 198.51.100.4 Announced",
			w.states("node1"),
		)
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = s.Addresses[:1] })
		again, err := w.reconcile()
		w.expect("error", nil, err)
		w.expect("again in, at the most", maxReportRest, again)
	})
}

// TestReportsOfNewAddress counts the writes for a Local address that the node is to have, too: the agent does
// not report that it asks the link, unless that takes long, or the manager waits for another thing that the
// same status says.
func TestReportsOfNewAddress(t *testing.T) {
	handOver := func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].HandingOver = true }
	for _, c := range []struct {
		what   string
		probes int32
		also   func(*purelbv1.AnnouncementSpec)
		want   []string
	}{
		{"with the default of probes", 2, nil, []string{"apply status"}},
		{"with many probes", 10, nil, []string{"apply status", "apply status"}},
		{"while another is handed over", 2, handOver, []string{"apply status", "apply status"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := settings()
				agent.Spec.Local = &purelbv1.LBNodeAgentLocal{ProbeConfig: &purelbv1.ProbeConfig{Count: &c.probes}}
				w := newWorld(t, agent, announcementOf("node1", local("192.0.2.1"), virtual("198.51.100.1")))
				w.started = true
				go func() { _ = w.reporter.Start(t.Context()) }()
				w.reconcileOrFail()
				time.Sleep(time.Minute)
				w.made()
				w.edit("node1", func(s *purelbv1.AnnouncementSpec) {
					s.Addresses = append(s.Addresses, local("192.0.2.2"))
					if c.also != nil {
						c.also(s)
					}
				})
				w.reconcileOrFail()
				time.Sleep(time.Minute)
				w.expect("requests", c.want, w.made())
				w.expect("states", "192.0.2.1 Announced, 192.0.2.2 Announced, 198.51.100.1 Announced", w.states("node1"))
			})
		})
	}
}

// TestReportsOfSuccessors counts the writes when successors of a new address are named: one of the holder's agent, and
// one of the agent of each node that watches the holder already.
func TestReportsOfSuccessors(t *testing.T) {
	successors := []purelbv1.Successor{{NodeName: "node2", Epoch: 2}, {NodeName: "node3", Epoch: 3}}
	for what, c := range map[string]struct {
		name string
		edit func(*purelbv1.AnnouncementSpec)
	}{
		"the holder": {"node1", func(s *purelbv1.AnnouncementSpec) {
			s.Addresses[1].Successors, s.Addresses[1].HighestEpoch = successors, 3
			s.Successors = []purelbv1.StandbyNode{nodeNamed(2), nodeNamed(3)}
		}},
		"a watcher": {"node1-standby", func(s *purelbv1.AnnouncementSpec) {
			another := s.Standby.Addresses[0]
			another.Address = "192.0.2.9"
			s.Standby.Addresses = append(s.Standby.Addresses, another)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &memoryExchange{stations: map[netip.Addr]neigh.MAC{}}
				for addr, mac := range map[string]neigh.MAC{
					"192.0.2.12": oldHolder, "192.0.2.1": oldHolder, "192.0.2.9": oldHolder, "192.0.2.13": stranger,
				} {
					x.set(addr, mac)
				}
				w := newWorld(
					t, settings(), announcementOf("node1", local("192.0.2.2"), local("192.0.2.3")),
					standbyFor("eth0", oldHolder, stranger),
				)
				w.OpenExchange = func(string) (Exchange, error) { return x, nil }
				w.prepare()
				w.started = true
				go func() { _ = w.watching.Start(t.Context()) }()
				go func() { _ = w.reporter.Start(t.Context()) }()
				reconcileForAMinute := func() {
					for range 60 {
						w.reconcileOrFail()
						time.Sleep(time.Second)
					}
				}
				reconcileForAMinute()
				w.expect("watched", "True Watching", w.readyOf("node1-standby"))
				w.expect("states", "192.0.2.2 Announced, 192.0.2.3 Announced", w.states("node1"))
				w.made()
				w.edit(c.name, c.edit)
				reconcileForAMinute()
				w.expect("requests", []string{"apply status"}, w.made())
				w.expect("generation", w.get(c.name).Generation, w.get(c.name).Status.ObservedGeneration)
				w.expect("still watched", "True Watching", w.readyOf("node1-standby"))
			})
		})
	}
}

// longestRandom waits as long as a random duration may be.
type longestRandom struct{ tasks.Goroutines }

func (longestRandom) Random(below time.Duration) time.Duration { return below }

// TestFactsDoNotWait changes one field of a status after the other, beside what may wait. The report waits only
// if the field is a summary of others.
func TestFactsDoNotWait(t *testing.T) {
	isSummary := map[string]bool{
		"Announced": true, "Desired": true, "Failing": true, "LocalAddresses": true, "VirtualAddresses": true,
		"Services": true, "Conditions": true,
	}
	common := commonAnnouncementOf("default", 2, virtual("198.51.100.1"))
	common.Spec.ReportSpreadSeconds = 5
	agent := &Agent{Tasks: longestRandom{}}
	before, realised := int64(1), int64(2)
	probed := purelbv1.AddressStatus{
		Address: "192.0.2.1", State: purelbv1.StatePending, Reason: plan.ReasonProbing, Message: "asking",
	}
	for _, waits := range []struct {
		name string
		// own are the fields that such a report is about.
		own    map[string]bool
		change func(*purelbv1.AnnouncementStatus)
		delay  func(before, after *purelbv1.AnnouncementStatus) time.Duration
	}{
		{
			name: "shared entries are realised", own: map[string]bool{"CommonAnnouncementsRevision": true},
			change: func(s *purelbv1.AnnouncementStatus) { s.CommonAnnouncementsRevision = &realised },
			delay: func(before, after *purelbv1.AnnouncementStatus) time.Duration {
				return newReporter(agent).sharedReportDelay(before, after, []purelbv1.CommonAnnouncement{*common})
			},
		},
		{
			name: "an address is asked for", own: map[string]bool{"Addresses": true, "ObservedGeneration": true},
			change: func(s *purelbv1.AnnouncementStatus) {
				s.ObservedGeneration, s.Addresses = 2, []purelbv1.AddressStatus{probed}
			},
			delay: func(before, after *purelbv1.AnnouncementStatus) time.Duration {
				return untilProbed(&purelbv1.AnnouncementSpec{}, before, after)
			},
		},
	} {
		status := purelbv1.AnnouncementStatus{ObservedGeneration: 1, CommonAnnouncementsRevision: &before}
		only := status
		waits.change(&only)
		if waits.delay(&status, &only) == 0 {
			t.Errorf("%s: the report does not wait", waits.name)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeFor[purelbv1.AnnouncementStatus]()) {
			if waits.own[field.Name] {
				continue
			}
			after := only
			setAnything(t, reflect.ValueOf(&after).Elem().FieldByIndex(field.Index))
			if isWaiting := waits.delay(&status, &after) > 0; isWaiting != isSummary[field.Name] {
				t.Errorf("%s, and %s is another: waits is %t", waits.name, field.Name, isWaiting)
			}
		}
	}
}

// setAnything sets a field of a status to a value that is not the one before.
func setAnything(t *testing.T, field reflect.Value) {
	t.Helper()
	switch field.Kind() {
	case reflect.Int32, reflect.Int64:
		field.SetInt(field.Int() + 7)
	case reflect.String:
		field.SetString("another")
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	default:
		t.Fatalf("a field of kind %s", field.Kind())
	}
}
