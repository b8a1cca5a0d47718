package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestProxyCheck asks kube-proxies, and what may be there instead.
func TestProxyCheck(t *testing.T) {
	const other = "kubeproxy_sync_proxy_rules_iptables_total 5\n"
	for _, row := range []struct {
		name    string
		health  int
		metrics string // empty: the metrics are elsewhere
		want    bool
	}{
		{"it forwards", 200, other + "kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.7e+09\n", true},
		{"it has not written the rules", 200,
			"# HELP kubeproxy_sync_proxy_rules_last_timestamp_seconds when\n" +
				"kubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n", false},
		{"it forwards both families", 200,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\n" +
				"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 1.7e+09\n", true},
		{"it forwards one of two families", 200,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\n" +
				"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 0\n", false},
		{"it has no metric of that before the first time", 200, other, false},
		{"it forwards, and is ill", 503, "kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.7e+09\n", false},
		{"its metrics are elsewhere", 200, "", true},
		{"another program has its metrics there", 200, "go_goroutines 5\n", true},
		{"it is ill, and its metrics are elsewhere", 503, "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			serve := func(code int, text string) *httptest.Server {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(code)
					_, _ = fmt.Fprint(w, text)
				}))
				t.Cleanup(server.Close)
				return server
			}
			metrics := serve(200, row.metrics)
			if row.metrics == "" {
				metrics.Close()
			}
			check := proxyCheck{health: serve(row.health, "").URL, metrics: metrics.URL}
			if got := check.forwards(t.Context()); got != row.want {
				t.Errorf("forwards: %t", got)
			}
		})
	}
}
