package nodeagent

import (
	"net/netip"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// gatewayCache remembers the MACs of the gateways for gatewayCacheTTL. It is lost with the
// process, and filled again by the next frame.
type gatewayCache struct {
	kernel Kernel
	now    func() time.Time

	mu       sync.Mutex
	gateways map[string][]netip.Addr // the next hops of default routes that the agent saw last, by interface
	macs     map[string]cachedMACs   // by interface
}

type cachedMACs struct {
	macs   []neigh.MAC
	readAt time.Time
}

func newGatewayCache(kernel Kernel, now func() time.Time) gatewayCache {
	return gatewayCache{kernel: kernel, now: now, macs: map[string]cachedMACs{}}
}

// setGateways makes the cache ask the kernel for these gateways from now on. The MACs that it has it uses until
// they are gatewayCacheTTL old.
func (g *gatewayCache) setGateways(gateways map[string][]netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gateways = gateways
}

// gatewaysByInterface returns the gateways by interface.
func (g *gatewayCache) gatewaysByInterface() map[string][]netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gateways
}

// macsOf returns the MACs of the gateways by an interface.
func (g *gatewayCache) macsOf(iface string) []neigh.MAC {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	cached, isCached := g.macs[iface]
	if !isCached || now.Sub(cached.readAt) > gatewayCacheTTL {
		cached = cachedMACs{neigh.ParseMACs(g.kernel.NeighbourMACs(iface, g.gateways[iface])), now}
		g.macs[iface] = cached
	}
	return cached.macs
}
