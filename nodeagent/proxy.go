package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Proxy is what the agent needs of the node's service proxy, kube-proxy or
// another.
type Proxy interface {
	// Serves reports whether the proxy says, at the health check port of a
	// Service, on one of the node's addresses, that the node has an endpoint for
	// what comes to a Virtual address.
	Serves(ctx context.Context, addrs []netip.Addr, virtual netip.Addr, port int32) bool
}

// ProxyHealthCheck asks by HTTP, as load balancers do (healthCheckNodePort).
type ProxyHealthCheck struct{}

// proxyAnswer is what came of one question to the proxy.
type proxyAnswer struct {
	from netip.Addr
	// isThere is that somebody listens, and serves that the answer was good.
	isThere, serves bool
}

// Serves asks at all addresses at once, since the proxy's configuration says at which of them
// it listens. kube-proxy has a part for each family, which learns of endpoints at a time of its
// own: what answers at an address of the other family counts only if nothing listens in the
// Virtual address's family.
func (ProxyHealthCheck) Serves(ctx context.Context, addrs []netip.Addr, virtual netip.Addr, port int32) bool {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make(chan proxyAnswer, len(addrs))
	var wait sync.WaitGroup
	for _, addr := range addrs {
		wait.Go(func() {
			at := netip.AddrPortFrom(addr, uint16(port)) //nolint:gosec // the CRD takes no others
			answers <- askProxy(ctx, client, at)
		})
	}
	wait.Wait()
	close(answers)
	isThere, serves, servesOther := false, false, false
	for a := range answers {
		if a.from.Is4() == virtual.Is4() {
			isThere, serves = isThere || a.isThere, serves || a.serves
		} else {
			servesOther = servesOther || a.serves
		}
	}
	return serves || !isThere && servesOther
}

func askProxy(ctx context.Context, client *http.Client, at netip.AddrPort) proxyAnswer {
	answer := proxyAnswer{from: at.Addr()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", at), nil)
	if err != nil {
		return answer
	}
	response, err := client.Do(request)
	if err != nil {
		answer.isThere = ctx.Err() != nil // the proxy is slow
		return answer
	}
	answer.isThere, answer.serves = true, response.StatusCode == http.StatusOK
	_ = response.Body.Close()
	return answer
}

// isProxyBehind reports whether the service proxy does not serve an address yet whose traffic
// stays on this node. A proxy that has been asked for long in this sync counts as behind.
func (a *decisionApplier) isProxyBehind(ctx context.Context, d *plan.Desired) bool {
	if a.Proxy == nil {
		return false
	}
	began := a.Tasks.Now()
	defer func() { a.proxyTimeSpent += a.Tasks.Now().Sub(began) }()
	return a.proxyTimeSpent >= proxyBudget || !a.Proxy.Serves(ctx, a.proxyAddrs, d.Addr, d.HealthPort)
}

// proxyAddrs returns the node's loopback addresses and some others of its own.
func proxyAddrs(observed plan.Observed) []netip.Addr {
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, a := range observed.Addresses {
		addr := a.Prefix.Addr()
		if !a.IsOurs && !a.IsTemporary && addr.IsGlobalUnicast() && len(addrs) < maxProxyAddrs {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
