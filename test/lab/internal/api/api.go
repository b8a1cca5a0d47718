// Package api asks the lab's API server the few things that bringing it up
// needs: too few for a client library.
package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Client talks to one API server.
type Client struct {
	server string
	http   *http.Client
}

// Open reads a kubeconfig of the kind that package pki writes.
func Open(kubeconfig string) (*Client, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("parse %s: %w", kubeconfig, err)
	}
	if len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("parse %s: want one cluster and one user", kubeconfig)
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	pair, err := tls.X509KeyPair(user.Certificate, user.Key)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", kubeconfig, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cluster.CA)
	return &Client{cluster.Server, &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
			DisableKeepAlives: true,
		},
	}}, nil
}

// Ready returns nil if the API server is ready.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/readyz", "", nil, nil)
}

// ReadyNodes lists the nodes that are Ready.
func (c *Client) ReadyNodes(ctx context.Context) ([]string, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.do(ctx, http.MethodGet, "/api/v1/nodes", "", nil, &list); err != nil {
		return nil, err
	}
	var ready []string
	for _, item := range list.Items {
		for _, condition := range item.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" {
				ready = append(ready, item.Metadata.Name)
			}
		}
	}
	return ready, nil
}

// EnsureNode makes the Node object called name with the given pod CIDRs. If
// the kubelet was faster, it only sets these.
func (c *Client) EnsureNode(ctx context.Context, name string, podCIDRs []string) error {
	node := map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata": map[string]any{
			"name":   name,
			"labels": map[string]string{"kubernetes.io/hostname": name},
		},
		"spec": map[string]any{"podCIDR": podCIDRs[0], "podCIDRs": podCIDRs},
	}
	err := c.do(ctx, http.MethodPost, "/api/v1/nodes", "application/json", node, nil)
	if failure := (*statusError)(nil); errors.As(err, &failure) && failure.code == http.StatusConflict {
		return c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+name, "application/merge-patch+json", node, nil)
	}
	return err
}

// CanRunPods returns nil once pods can be made in the namespace default: not
// before it has its service account.
func (c *Client) CanRunPods(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil, nil)
}

// statusError is an answer that is not a success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.text) }

func (c *Client) do(ctx context.Context, method, path, kind string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode a request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, body)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %w", method, path, &statusError{response.StatusCode, string(text[:min(len(text), 300)])})
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}
