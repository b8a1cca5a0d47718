package sim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
	"github.com/purelb/purelb-operator/test/twin"
)

// TestTwin plays the scenarios that the lab plays, too (make test-twin), by several seeds: the records have to be those
// of test/twin/testdata.
func TestTwin(t *testing.T) {
	const seeds = 2
	for _, s := range twin.Scenarios {
		t.Run(s.Name, func(t *testing.T) {
			for seed := range uint64(seeds) {
				if *update && seed == 0 {
					record, _ := playTwin(t, s, seed, "")
					writeRecord(t, s, record)
				}
				golden := readRecord(t, s)
				if record, story := playTwin(t, s, seed, golden); record != golden {
					t.Fatalf("seed %d:\n%s", seed, story)
				}
			}
		})
	}
}

func recordFile(s twin.Scenario) string {
	return filepath.Join("..", "twin", "testdata", s.Name+".txt")
}

func writeRecord(t *testing.T, s twin.Scenario, record string) {
	t.Helper()
	if err := os.WriteFile(recordFile(s), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
}

// readRecord reads a record that may just have been written, and so is not yet the one in the binary.
func readRecord(t *testing.T, s twin.Scenario) string {
	t.Helper()
	record, err := os.ReadFile(recordFile(s))
	if err != nil {
		t.Fatal(err)
	}
	return string(record)
}

// playTwin plays a scenario by a seed, and returns its record, and what else has happened.
func playTwin(t *testing.T, s twin.Scenario, seed uint64, golden string) (record, told string) {
	t.Helper()
	var story strings.Builder
	synctest.Test(t, func(t *testing.T) {
		c, err := newTwinCluster(NewWorld(seed, &story), s)
		if err != nil {
			t.Fatal(err)
		}
		defer c.End()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		c.Rest(nil)
		if record, err = twin.Play(s, c, c.recorder, golden); err != nil {
			t.Error(err)
		}
	})
	return record, story.String()
}

// twinCluster is a Cluster in which scenarios of package twin are played.
type twinCluster struct {
	*Cluster
	recorder *twin.Recorder
	services map[string]Service
	// observer is a station on the link, and answered are the nodes that have answered its question.
	observer *Port
	answered []string
}

// groupOf says which ServiceGroups are those of package twin.
var groupOf = map[string]string{
	twin.GroupLocal: GroupLocal, twin.GroupSingle: "single",
	twin.GroupVirtual: GroupVirtual, twin.GroupNetBox: GroupNetBox,
}

// singlePool is what GroupSingle has, and grownPool what it has when it has grown.
const singlePool, grownPool = "192.0.2.150/32", "192.0.2.150-192.0.2.151"

func newTwinCluster(w *World, s twin.Scenario) (*twinCluster, error) {
	const nodes = 3
	made, err := NewCluster(w, nodes)
	if s.HasNetBox {
		made, err = newNetBoxCluster(w, nodes)
	}
	if err != nil {
		return nil, err
	}
	c := &twinCluster{Cluster: made, services: map[string]Service{}}
	canonical := map[string]string{}
	for name, group := range groupOf {
		canonical[group] = name
	}
	c.recorder = twin.NewRecorder(c.Nodes(), Tenants, canonical)
	single := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: groupOf[twin.GroupSingle]}}
	single.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Pool: singlePool, Subnet: c.Segments[0].subnet.String()}},
	}}
	c.observer = c.Segments[0].Connect("observer", c.hear)
	c.OnEvent = c.noteEvent
	return c, errors.Join(c.Admin.Create(context.Background(), single), c.watch())
}

// watch passes what changes in the API on to the recorder.
func (c *twinCluster) watch() error {
	cache, err := c.Server.NewCache(apiserver.Selection{
		Of: &corev1.Service{}, Selects: func(obj client.Object) bool { return obj.GetNamespace() == Tenants },
	}, apiserver.Selection{Of: &v1.Announcement{}}, apiserver.Selection{
		Of: &coordinationv1.Lease{}, Selects: func(obj client.Object) bool {
			return strings.HasPrefix(obj.GetName(), v1.LeasePrefix+"node")
		},
	})
	if err != nil {
		return err
	}
	c.Server.OnChange = append(c.Server.OnChange, func() {
		for {
			change, isChange, err := cache.Next()
			if err != nil {
				c.Tell("recorder", "%v", err)
			}
			if !isChange {
				return
			}
			switch obj := change.New.(type) {
			case *corev1.Service:
				c.recorder.SawService(obj)
			case *v1.Announcement:
				c.recorder.SawAnnouncement(obj)
			case *coordinationv1.Lease:
				c.recorder.SawLease(obj)
			}
			if change.New == nil {
				switch obj := change.Old.(type) {
				case *corev1.Service:
					c.recorder.SawServiceDeleted(obj.Name)
				case *v1.Announcement:
					c.recorder.SawAnnouncementDeleted(obj.Name)
				}
			}
		}
	})
	return nil
}

func (c *twinCluster) noteEvent(e Event) {
	svc, isService := e.Regarding.(*corev1.Service)
	if !isService {
		return
	}
	seen := twin.Event{
		Service: svc.Name, Type: e.Type, Reason: e.Reason, Action: e.Action, Note: e.Note, At: time.Now(),
	}
	if related, isAnnouncement := e.Related.(*v1.Announcement); isAnnouncement && related != nil {
		seen.Related = related.Name
	}
	c.recorder.SawEvent(seen)
}

// observerMAC is that of the observer.
var observerMAC = neigh.MAC{2, 0, 0, 0, 2, 9}

// hear notes what a frame says that comes to the observer.
func (c *twinCluster) hear(frame []byte) {
	m, err := neigh.ParseMessage(frame)
	if err != nil {
		return
	}
	for _, n := range c.Cluster.Nodes {
		if n.nicThat(func(nic *NIC) bool { return nic.MAC == m.MAC }) == nil {
			continue
		}
		if neigh.MAC(frame[:6]) == observerMAC {
			c.answered = append(c.answered, n.Name)
		} else if !m.IsDirect {
			c.recorder.SawClaim(m.Addr, n.Name)
		}
	}
}

// Nodes returns the names of the nodes.
func (c *twinCluster) Nodes() []string { return namesOf(c.Cluster.Nodes) }

// Kernels returns the nodes whose kernels have an address.
func (c *twinCluster) Kernels(addr netip.Addr) ([]string, error) {
	var nodes []string
	for _, n := range c.Cluster.Nodes {
		if n.Kernel.Has("", addr) && !n.isOff {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes, nil
}

// Answers returns the nodes that answer the observer for an address.
func (c *twinCluster) Answers(addr netip.Addr) ([]string, error) {
	sender := addressOf(c.Segments[0].subnet, 3)
	if addr.Is6() {
		sender = addressOf(c.Segments[0].subnet6, 0xfe)
	}
	q := neigh.Question{Target: neigh.Target{Addr: addr}, Sender: sender}
	frame, err := q.FrameFor(observerMAC, neigh.MAC{255, 255, 255, 255, 255, 255})
	if err != nil {
		return nil, err
	}
	c.answered = nil
	c.observer.Send(frame)
	c.Run(10 * time.Millisecond)
	slices.Sort(c.answered)
	return slices.Compact(c.answered), nil
}

// Rest lets as much time pass as the cluster may take.
func (c *twinCluster) Rest(func() bool) { c.Run(30 * time.Second) }

// Do does a step.
func (c *twinCluster) Do(step twin.Step) error {
	var errs []error
	for _, n := range c.Cluster.Nodes {
		if slices.Contains(step.Nodes, n.Name) && step.Verb != twin.SetEndpoints {
			errs = append(errs, c.doOn(n, step))
		}
	}
	if len(step.Nodes) == 0 || step.Verb == twin.SetEndpoints {
		errs = append(errs, c.do(step))
	}
	return errors.Join(errs...)
}

// do does a step that is about no node.
func (c *twinCluster) do(step twin.Step) error {
	s := step.Service
	switch step.Verb {
	case twin.CreateService:
		made := Service{
			Name: s.Name, Group: groupOf[s.Group], Families: s.Families, IsPolicyLocal: s.IsPolicyLocal,
			WritesPolicyLocal: s.WritesPolicyLocal, SharingKey: s.SharingKey, Port: s.Port,
		}
		c.services[s.Name] = made
		_, err := c.CreateService(made)
		return err
	case twin.DeleteService:
		object := metav1.ObjectMeta{Namespace: Tenants, Name: s.Name}
		if err := c.Admin.Delete(context.Background(), &corev1.Service{ObjectMeta: object}); err != nil {
			return err
		}
		object.Name += "-ipv4"
		return client.IgnoreNotFound(c.Admin.Delete(context.Background(), &discoveryv1.EndpointSlice{ObjectMeta: object}))
	case twin.EditFamilies:
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Tenants, Name: s.Name}}
		return c.edit(svc, func() {
			policy := corev1.IPFamilyPolicySingleStack
			if len(s.Families) > 1 {
				policy = corev1.IPFamilyPolicyRequireDualStack
			}
			svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = s.Families, &policy
		})
	case twin.SetEndpoints:
		var nodes []*Node
		for _, n := range c.Cluster.Nodes {
			if slices.Contains(step.Nodes, n.Name) {
				nodes = append(nodes, n)
			}
		}
		return c.SetEndpoints(c.services[s.Name], nodes)
	case twin.GrowGroup:
		group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: groupOf[twin.GroupSingle]}}
		return c.edit(group, func() { group.Spec.Local.V4Pools[0].Pool = grownPool })
	case twin.HandOverCordoned, twin.IgnoreCordoned:
		agents := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Agents}}
		return c.edit(agents, func() {
			agents.Spec.OnUnschedulable = v1.UnschedulableIgnore
			if step.Verb == twin.HandOverCordoned {
				agents.Spec.OnUnschedulable = v1.UnschedulableHandOver
			}
		})
	case twin.StopAPI, twin.StartAPI:
		c.SetAway(step.Verb == twin.StopAPI)
	case twin.KillLeader, twin.KillManagers:
		for _, r := range c.Replicas {
			if !r.isKilled && (r.IsLeading() || step.Verb == twin.KillManagers) {
				r.Crash()
			}
		}
	case twin.StopNetBox, twin.StartNetBox:
		c.NetBox.IsDown = step.Verb == twin.StopNetBox
	case twin.Stay:
		c.Run(step.While)
	default:
		return fmt.Errorf("the simulation cannot do %q", step.Verb)
	}
	return nil
}

// doOn does a step that is about a node.
func (c *twinCluster) doOn(n *Node, step twin.Step) error {
	port := []*Port{n.portOn(c.Segments[0])}
	switch step.Verb {
	case twin.Exclude, twin.Include, twin.Drain, twin.Undrain:
		return c.SetExcluded(n, step.Verb == twin.Exclude || step.Verb == twin.Drain)
	case twin.Cordon, twin.Uncordon:
		return c.editNode(n, func(object *corev1.Node) { object.Spec.Unschedulable = step.Verb == twin.Cordon })
	case twin.AskForHandover:
		addrs, err := c.Addresses(step.Service.Name)
		if err != nil {
			return err
		}
		return c.editNode(n, func(object *corev1.Node) {
			object.Annotations = map[string]string{v1.AnnotationHandover: addrs[0].String()}
		})
	case twin.StopAskingForHandover:
		return c.editNode(n, func(object *corev1.Node) { delete(object.Annotations, v1.AnnotationHandover) })
	case twin.TaintOutOfService, twin.Untaint:
		return c.editNode(n, func(object *corev1.Node) {
			object.Spec.Taints = nil
			if step.Verb == twin.TaintOutOfService {
				object.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
			}
		})
	case twin.PowerOff:
		c.PowerOff(n)
	case twin.PowerOn:
		return c.PowerOn(n)
	case twin.LoseCarrier, twin.RegainCarrier:
		isUp := step.Verb == twin.RegainCarrier
		n.SetCarrier(n.NICs[0], isUp)
		c.SetCut(n, !isUp)
	case twin.Unplug, twin.Plug:
		isSplit := step.Verb == twin.Unplug
		c.Segments[0].Split(port, isSplit)
		c.SetCut(n, isSplit)
	case twin.CutAPI, twin.HealAPI:
		c.SetCut(n, step.Verb == twin.CutAPI)
	case twin.KillAgent:
		a := n.agent
		n.KillAgent()
		c.After(restartAfter, func() { n.startAgain(a) })
	case twin.ReplaceAgent:
		a := n.agent
		a.Stop()
		c.After(restartAfter/2, func() {
			n.KillAgent()
			c.After(restartAfter, func() { n.startAgain(a) })
		})
	case twin.StopAgent:
		n.KillAgent()
	case twin.StartAgent:
		return n.StartAgent()
	default:
		return fmt.Errorf("the simulation cannot do %q", step.Verb)
	}
	return nil
}

// edit changes an object.
func (c *twinCluster) edit(obj client.Object, change func()) error {
	if err := c.Admin.Get(context.Background(), client.ObjectKeyFromObject(obj), obj); err != nil {
		return err
	}
	change()
	return c.Admin.Update(context.Background(), obj)
}

func (c *twinCluster) editNode(n *Node, change func(*corev1.Node)) error {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	return c.edit(object, func() { change(object) })
}
