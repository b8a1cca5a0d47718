package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// proxyHealthURL is where kube-proxy says whether it works, and proxyMetricsURL where it serves its metrics, by
	// default.
	proxyHealthURL  = "http://127.0.0.1:10256/healthz"
	proxyMetricsURL = "http://127.0.0.1:10249/metrics"
	proxyTimeout    = 500 * time.Millisecond
	// maxProxyMetrics is how many bytes of metrics are read.
	maxProxyMetrics = 8 << 20
	// proxyMetricPrefix is what the names of all of kube-proxy's metrics begin with, and metricOfSync the metric
	// that is when it last wrote the node's rules: 0 or missing before the first time, one for each family of
	// addresses in later versions.
	proxyMetricPrefix = "kubeproxy_"
	metricOfSync      = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
)

// proxyCheck asks the node's kube-proxy whether it forwards.
type proxyCheck struct{ health, metrics string }

// forwards reports whether kube-proxy says that it works, and has written the node's rules. It says that it
// works before it has done so. Where kube-proxy's metrics are elsewhere, or none of them is there, what it
// says of its health decides alone.
func (c proxyCheck) forwards(ctx context.Context) bool {
	if _, isOK := askProxy(ctx, c.health, func(io.Reader) bool { return true }); !isOK {
		return false
	}
	hasSynced, isOK := askProxy(ctx, c.metrics, mayHaveSynced)
	return hasSynced || !isOK
}

// mayHaveSynced reports whether kube-proxy has written the node's rules, by its metrics. Metrics of another
// program say nothing against it.
func mayHaveSynced(metrics io.Reader) bool {
	isProxy, hasSynced := false, false
	lines := bufio.NewScanner(io.LimitReader(metrics, maxProxyMetrics))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		isProxy = isProxy || strings.HasPrefix(name, proxyMetricPrefix)
		if name, _, _ = strings.Cut(name, "{"); name != metricOfSync {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil || value <= 0 {
			return false
		}
		hasSynced = true
	}
	return hasSynced || !isProxy
}

// askProxy reads an address, if it answers that all is well.
func askProxy(ctx context.Context, url string, read func(io.Reader) bool) (result, isOK bool) {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, false
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, false
	}
	return read(response.Body), true
}
