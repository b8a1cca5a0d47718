package sim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/sim"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// cluster is a world with an API server.
type cluster struct {
	*sim.World
	t      *testing.T
	server *apiserver.Server
	client *apiserver.Client
}

// playCluster plays something in a cluster of a seed that has a ServiceGroup of Virtual addresses, and
// returns its story.
func playCluster(t *testing.T, seed uint64, do func(c *cluster)) string {
	t.Helper()
	var story strings.Builder
	synctest.Test(t, func(t *testing.T) {
		server, err := apiserver.NewCluster()
		if err != nil {
			t.Fatal(err)
		}
		c := &cluster{sim.NewWorld(seed, &story), t, server, server.NewClient(nil, nil)}
		group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: sim.Namespace, Name: "default"}}
		group.Spec.Remote = &v1.RemotePools{
			PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: "192.0.2.1-192.0.2.9", Subnet: "192.0.2.0/24"}}},
		}
		c.create(group)
		do(c)
	})
	return story.String()
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, obj := range objects {
		if err := c.client.Create(c.t.Context(), obj); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) start(name string, intercept apiserver.Intercept) *sim.Manager {
	c.t.Helper()
	m, err := c.StartManager(name, c.server, sim.ManagerOptions{Intercept: intercept})
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// addressOf returns the address that a Service shows.
func (c *cluster) addressOf(name string) string {
	c.t.Helper()
	svc := &corev1.Service{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "test", Name: name}, svc); err != nil {
		c.t.Fatal(err)
	}
	if ingress := svc.Status.LoadBalancer.Ingress; len(ingress) > 0 {
		return ingress[0].IP
	}
	return ""
}

func serviceNamed(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// A manager gives Services their addresses, whatever request fails or loses its answer, and the next
// manager leaves them as they are.
func TestManagerAllocates(t *testing.T) {
	for seed := range uint64(20) {
		story := playCluster(t, seed, func(c *cluster) {
			flaky := func(_ context.Context, r apiserver.Request, do func() error) error {
				switch {
				case c.Chance(0.1):
					return errors.New("no connection")
				case c.Chance(0.1):
					return errors.Join(do(), errors.New("the answer is lost"))
				}
				return do()
			}
			first := c.startAnyhow("manager1", flaky)
			for i := range 5 {
				c.create(serviceNamed(fmt.Sprint("s", i)))
				c.Run(c.Between(0, 50*time.Millisecond))
			}
			c.Run(time.Minute)
			had := map[string]string{}
			for i := range 5 {
				name := fmt.Sprint("s", i)
				addr := c.addressOf(name)
				if other, isTaken := had[addr]; addr == "" || isTaken {
					t.Errorf("seed %d: %s has %q, which is %q's", seed, name, addr, other)
				}
				had[addr] = name
			}
			first.Kill()
			c.startAnyhow("manager2", flaky)
			c.Run(time.Minute)
			for addr, name := range had {
				if now := c.addressOf(name); now != addr {
					t.Errorf("seed %d: %s had %s, and has %s after another manager has started", seed, name, addr, now)
				}
			}
		})
		if t.Failed() {
			t.Fatalf("the story:\n%s", story)
		}
	}
}

// startAnyhow starts a manager as often as it takes.
func (c *cluster) startAnyhow(name string, intercept apiserver.Intercept) *sim.Manager {
	for {
		m, err := c.StartManager(name, c.server, sim.ManagerOptions{Intercept: intercept})
		if err == nil {
			return m
		}
		c.Tell(name, "does not start: %v", err)
		c.Run(time.Second)
	}
}

// The story of a cluster is the same for the same seed, byte for byte.
func TestManagerTellsTheSameStory(t *testing.T) {
	do := func(c *cluster) {
		m := c.start("manager", nil)
		for i := range 12 { // more than there are addresses
			c.create(serviceNamed(fmt.Sprint("s", i)))
			c.Run(c.Between(0, 5*time.Millisecond))
		}
		c.Run(10 * time.Second)
		c.Tell("end", "%s", c.addressOf("s3"))
		m.Kill()
	}
	first := playCluster(t, 3, do)
	if again := playCluster(t, 3, do); again != first {
		t.Errorf("one seed tells\n%sand\n%s", first, again)
	}
	if strings.Count(first, "\n") < 10 {
		t.Errorf("a short story:\n%s", first)
	}
}

// A manager that is late to step down, whose cache is behind, and which may have been paused before that,
// leaves no address with two Services. Users make and delete Services all the while. This test shows the
// row "a leader that is late to step down allocates an address" of docs/trust.md.
func TestFaultLateManager(t *testing.T) {
	for seed := range uint64(50) {
		story := playCluster(t, seed, func(c *cluster) {
			number, alive := 0, map[string]bool{}
			edit := func() {
				if name := fmt.Sprint("s", c.Pick(number+1)); alive[name] && c.Chance(0.5) {
					if err := c.client.Delete(c.t.Context(), serviceNamed(name)); err != nil {
						t.Fatal(err)
					}
					c.Tell("user", "deletes %s", name)
					delete(alive, name)
					return
				}
				name := fmt.Sprint("s", number)
				number++
				alive[name] = true
				c.Tell("user", "makes %s", name)
				c.create(serviceNamed(name))
			}
			edits := func(count int) {
				for range count {
					edit()
					c.Run(c.Between(0, 30*time.Millisecond))
				}
			}
			old := c.start("manager0", nil)
			for round := range 5 {
				edits(8)
				if c.Chance(0.5) {
					old.Pause()
					edits(8)
				}
				old.MaxLag = 500 * time.Millisecond
				next := c.start(fmt.Sprint("manager", round+1), nil)
				old.Resume()
				edits(8)
				old.Kill()
				edits(8)
				old = next
			}
			c.Run(time.Minute)
			had := map[string]string{}
			for name := range alive {
				addr := c.addressOf(name)
				if addr == "" {
					continue // the pool is empty
				}
				if other, isTaken := had[addr]; isTaken {
					t.Errorf("seed %d: %s and %s have %s", seed, name, other, addr)
				}
				had[addr] = name
			}
			if free := 9 - len(had); free > 0 && len(alive) > len(had) {
				t.Errorf("seed %d: %d of %d Services wait, and %d addresses are free", seed, len(alive)-len(had), len(alive), free)
			}
		})
		if t.Failed() {
			t.Fatalf("the story:\n%s", story)
		}
	}
}
