package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/lab"
)

// sample is one value of the metrics, as Prometheus writes them.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// parseMetrics parses the text format of Prometheus, without what it does not
// need: comments, and times.
func parseMetrics(text string) ([]sample, error) {
	var all []sample
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		s, err := parseSample(line)
		if err != nil {
			return nil, fmt.Errorf("parse the metrics: %q: %w", line, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func parseSample(line string) (sample, error) {
	end := strings.LastIndexByte(line, '}')
	s := sample{labels: map[string]string{}}
	var rest string
	if begin := strings.IndexByte(line, '{'); begin >= 0 && end > begin {
		s.name, rest = line[:begin], line[end+1:]
		for labels := line[begin+1 : end]; labels != ""; {
			key, after, ok := strings.Cut(labels, `="`)
			quoted, left, closed := cutQuoted(after)
			if !ok || !closed {
				return s, fmt.Errorf("its labels are not closed")
			}
			s.labels[key] = quoted
			labels = strings.TrimPrefix(left, ",")
		}
	} else {
		s.name, rest, _ = strings.Cut(line, " ")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return s, fmt.Errorf("it has no value")
	}
	var err error
	s.value, err = strconv.ParseFloat(fields[0], 64)
	return s, err
}

// cutQuoted cuts a value off at the quotation mark that is not escaped.
func cutQuoted(text string) (value, rest string, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}

// sum adds all samples of a name that have the labels, by a key made of each.
func sum(samples []sample, name string, key func(map[string]string) string) map[string]float64 {
	sums := map[string]float64{}
	for _, s := range samples {
		if s.name != name {
			continue
		}
		if k := key(s.labels); k != "" {
			sums[k] += s.value
		}
	}
	return sums
}

// grown is what has become more, by key.
func grown(before, after map[string]float64) map[string]float64 {
	more := map[string]float64{}
	for key, value := range after {
		if value > before[key] {
			more[key] = value - before[key]
		}
	}
	return more
}

// serverMetrics are the API server's.
func (b *bench) serverMetrics(ctx context.Context) ([]sample, error) {
	text, err := b.clientset.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return parseMetrics(string(text))
}

// writes counts requests that change something, by verb and resource.
func writes(labels map[string]string) string {
	switch labels["verb"] {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
	default:
		return ""
	}
	key := labels["verb"] + " " + labels["resource"]
	if labels["subresource"] != "" {
		key += "/" + labels["subresource"]
	}
	return key
}

// reader is the account that reads the metrics of PureLB.
const reader = "metrics-reader"

// metricsToken makes the account, and a token for it.
func (b *bench) metricsToken(ctx context.Context) (string, error) {
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: reader, Namespace: namespace}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "bench-" + reader},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "purelb-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: reader, Namespace: namespace}},
		},
	} {
		if err := client.IgnoreAlreadyExists(b.client.Create(ctx, object)); err != nil {
			return "", fmt.Errorf("let somebody read metrics: %w", err)
		}
	}
	token, err := b.clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, reader, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token to read metrics: %w", err)
	}
	return token.Status.Token, nil
}

// programMetrics are those of a process of PureLB.
func (b *bench) programMetrics(ctx context.Context, p program, token string) ([]sample, error) {
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
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the metrics of the %s: %s, %w", p.role, response.Status, err)
	}
	return parseMetrics(string(text))
}

func (b *bench) metricsAddress(ctx context.Context, p program) (netip.AddrPort, error) {
	if p.role == "agent" {
		return netip.AddrPortFrom(b.host(p.node).IPv4.Addr(), 7472), nil
	}
	pod := &corev1.Pod{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: p.pod}, pod); err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the %s: %w", p.role, err)
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the %s: %w", p.role, err)
	}
	return netip.AddrPortFrom(address, 8443), nil
}
