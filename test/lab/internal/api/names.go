package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/purelb/purelb-operator/test/lab/internal/dns"
)

// headless is the ClusterIP of Services that have none.
const headless = "None"

type service struct {
	Spec struct {
		Type         string
		ClusterIPs   []string
		ExternalName string
	}
}

type endpointSlices struct {
	Items []struct {
		Endpoints []struct {
			Addresses  []string
			Hostname   string
			Conditions struct{ Ready *bool }
		}
	}
}

// FindName finds what the name of a Service, or of an endpoint of a headless Service,
// stands for. It is a [dns.Lookup].
func (c *Client) FindName(ctx context.Context, key dns.Key) (dns.Found, error) {
	namespace := url.PathEscape(key.Namespace)
	var s service
	err := c.do(ctx, http.MethodGet, "/api/v1/namespaces/"+namespace+"/services/"+url.PathEscape(key.Service), "", nil, &s)
	if failure := (*statusError)(nil); errors.As(err, &failure) && failure.code == http.StatusNotFound {
		return dns.Found{}, nil
	}
	if err != nil {
		return dns.Found{}, err
	}
	isHeadless := len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == headless
	if !isHeadless {
		if key.Host != "" {
			return dns.Found{}, nil
		}
		addresses, err := parseAddresses(s.Spec.ClusterIPs)
		return dns.Found{Exists: true, Addresses: addresses, Alias: s.Spec.ExternalName}, err
	}
	var slices endpointSlices
	selector := url.Values{"labelSelector": {"kubernetes.io/service-name=" + key.Service}}
	if err := c.do(
		ctx, http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices?"+selector.Encode(), "", nil,
		&slices,
	); err != nil {
		return dns.Found{}, err
	}
	addresses, err := slices.ready(key.Host)
	return dns.Found{Exists: key.Host == "" || len(addresses) > 0, Addresses: addresses}, err
}

// ready returns the addresses of the endpoints that are ready and have a host name, or of
// all that are ready if the host name is "".
func (s endpointSlices) ready(host string) ([]netip.Addr, error) {
	var texts []string
	for _, slice := range s.Items {
		for _, endpoint := range slice.Endpoints {
			// No statement means ready, as the API says.
			isReady := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			if isReady && (host == "" || endpoint.Hostname == host) {
				texts = append(texts, endpoint.Addresses...)
			}
		}
	}
	return parseAddresses(texts)
}

func parseAddresses(texts []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("parse an address of a Service: %w", err)
		}
		all = append(all, address)
	}
	return all, nil
}
