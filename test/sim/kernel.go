package sim

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// kernel is the kernel of a node as its agent sees it: what the agent adds stays when the agent has ended,
// and an agent that has been killed changes nothing any more.
type kernel struct {
	*linktest.Kernel
	agent *agent
}

var errKilled = errors.New("the program has been killed")

// Watch makes changed be called soon after each change.
func (k kernel) Watch(ctx context.Context, changed func()) error {
	a := k.agent
	defer k.Subscribe(func() { a.after(a.world.Between(minSlice, maxSlice), changed) })()
	a.Wait(ctx, tasks.Forever)
	return nil
}

// WatchLinks makes changed be called with all links.
func (k kernel) WatchLinks(ctx context.Context, changed func([]plan.NetworkInterface)) error {
	changed(k.Links())
	return k.Watch(ctx, func() { changed(k.Links()) })
}

// retryKernel is how often it is looked whether a kernel that hid its addresses shows them.
const retryKernel = 50 * time.Millisecond

// Observe lists what the kernel has. It hangs while the kernel hides that.
func (k kernel) Observe() (plan.Observed, error) {
	for k.agent.node.HidesAddresses && !k.agent.isKilled {
		k.agent.Wait(context.Background(), retryKernel)
	}
	return k.Kernel.Observe()
}

// unlessKilled makes a change and tells of it.
func (k kernel) unlessKilled(what string, addr netip.Addr, change func() error) error {
	if k.agent.isKilled {
		return errKilled
	}
	err := change()
	k.agent.world.version++
	if err != nil {
		k.agent.world.Tell(k.agent.node.Name, "cannot %s %s: %v", what, addr, err)
	} else if what != "renew" {
		k.agent.world.Tell(k.agent.node.Name, "%s %s", what, addr)
	}
	return err
}

func (k kernel) EnsureVirtual(name string) (string, error) {
	if k.agent.isKilled {
		return "", errKilled
	}
	return k.Kernel.EnsureVirtual(name)
}

func (k kernel) RemoveVirtual(name string) error {
	if k.agent.isKilled {
		return errKilled
	}
	return k.Kernel.RemoveVirtual(name)
}

func (k kernel) Add(a plan.Address) error {
	return k.unlessKilled("add", a.Prefix.Addr(), func() error { return k.Kernel.Add(a) })
}

func (k kernel) Renew(a plan.Address) error {
	return k.unlessKilled("renew", a.Prefix.Addr(), func() error { return k.Kernel.Renew(a) })
}

func (k kernel) Replace(old, by plan.Address) error {
	return k.unlessKilled("replace", by.Prefix.Addr(), func() error { return k.Kernel.Replace(old, by) })
}

func (k kernel) Remove(a plan.Address) error {
	return k.unlessKilled("remove", a.Prefix.Addr(), func() error { return k.Kernel.Remove(a) })
}
