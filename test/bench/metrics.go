package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/measure"
)

// increases returns by how much values have grown, by key, without those that have not.
func increases(before, after map[string]float64) map[string]float64 {
	more := map[string]float64{}
	for key, value := range after {
		if value > before[key] {
			more[key] = value - before[key]
		}
	}
	return more
}

// readServerMetrics reads the API server's metrics.
func (b *bench) readServerMetrics(ctx context.Context) (measure.Metrics, error) {
	body, err := b.clientset.RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer body.Close()
	return measure.ParseMetrics(body)
}

// writeKey names the verb and the resource of a request that changes something. It
// returns nothing for others.
func writeKey(labels map[string]string) string {
	if !measure.IsWrite(labels["verb"]) {
		return ""
	}
	key := labels["verb"] + " " + labels["resource"]
	if labels["subresource"] != "" {
		key += "/" + labels["subresource"]
	}
	return key
}

// metricsReader is the service account that reads the metrics of PureLB.
const metricsReader = "metrics-reader"

// createMetricsToken creates the account, and a token for it.
func (b *bench) createMetricsToken(ctx context.Context) (string, error) {
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: metricsReader, Namespace: benchNamespace}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-" + metricsReader},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "purelb-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: metricsReader, Namespace: benchNamespace}},
		},
	} {
		if err := client.IgnoreAlreadyExists(b.client.Create(ctx, object)); err != nil {
			return "", fmt.Errorf("allow an account to read metrics: %w", err)
		}
	}
	token, err := b.clientset.CoreV1().ServiceAccounts(benchNamespace).CreateToken(
		ctx, metricsReader, &authenticationv1.TokenRequest{}, metav1.CreateOptions{},
	)
	if err != nil {
		return "", fmt.Errorf("make a token to read metrics: %w", err)
	}
	return token.Status.Token, nil
}

// readProgramMetrics reads the metrics of a process of PureLB.
func (b *bench) readProgramMetrics(ctx context.Context, p program, token string) (measure.Metrics, error) {
	address, err := b.metricsAddress(ctx, p)
	if err != nil {
		return nil, err
	}
	web := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.lab.Dial(ctx, lab.ControlPlane, network, address)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // its certificate is its own
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address.String()+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := web.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the %s: %w", p.role, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the metrics of the %s: %s", p.role, response.Status)
	}
	return measure.ParseMetrics(response.Body)
}

// metricsAddress returns where a process of PureLB serves its metrics.
func (b *bench) metricsAddress(ctx context.Context, p program) (netip.AddrPort, error) {
	if p.role == "agent" {
		return netip.AddrPortFrom(b.findHost(p.node).IPv4.Addr(), 7472), nil
	}
	pod := &corev1.Pod{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: p.pod}, pod); err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the %s: %w", p.role, err)
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the %s: %w", p.role, err)
	}
	return netip.AddrPortFrom(address, 8443), nil
}
