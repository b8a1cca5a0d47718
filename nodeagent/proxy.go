package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Proxy is what the agent needs of the node's service proxy, kube-proxy or
// another.
type Proxy interface {
	// Serves reports whether the proxy says, at the health check port of a
	// Service, on one of the node's addresses, that it has an endpoint here.
	Serves(ctx context.Context, addrs []netip.Addr, port int32) bool
}

// HTTPProxy asks by HTTP, as load balancers do (healthCheckNodePort).
type HTTPProxy struct{}

// proxyTimeout is ample: it is the same machine.
const proxyTimeout = 200 * time.Millisecond

// Serves asks at all addresses at once: at which the proxy listens is its
// configuration's business.
func (HTTPProxy) Serves(ctx context.Context, addrs []netip.Addr, port int32) bool {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make(chan bool, len(addrs))
	var wait sync.WaitGroup
	for _, addr := range addrs {
		wait.Go(func() { answers <- healthy(ctx, client, netip.AddrPortFrom(addr, uint16(port))) })
	}
	wait.Wait()
	close(answers)
	serves := false
	for yes := range answers {
		serves = serves || yes
	}
	return serves
}

func healthy(ctx context.Context, client *http.Client, at netip.AddrPort) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", at), nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

const (
	// proxyRetry is how often the proxy is asked again, and proxyPatience for how
	// long before the address is announced all the same: it may know of no such
	// port.
	proxyRetry    = 50 * time.Millisecond
	proxyPatience = 5 * time.Second
	// maxOwn bounds at how many of the node's addresses the proxy is asked.
	maxOwn = 8
)

// waitsForProxy reports whether an address is not to be added yet: traffic for it
// stays on this node, and the proxy does not serve it yet.
func (r *applying) waitsForProxy(ctx context.Context, d *plan.Desired) bool {
	if d.Local || d.HealthPort == 0 || r.Proxy == nil {
		return false
	}
	since, waiting := r.waiting[d.Addr]
	if !waiting {
		since = time.Now()
		r.waiting[d.Addr] = since
	}
	return time.Since(since) < proxyPatience && !r.Proxy.Serves(ctx, r.own, d.HealthPort)
}

// ownAddresses is some of the node's own addresses, and its loopback ones.
func ownAddresses(observed plan.Observed) []netip.Addr {
	own := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, a := range observed.Addresses {
		addr := a.Prefix.Addr()
		if !a.Ours && !a.Temporary && addr.IsGlobalUnicast() && len(own) < maxOwn {
			own = append(own, addr)
		}
	}
	return own
}
