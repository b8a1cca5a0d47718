package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/purelb/purelb-operator/test/lab/internal/dns"
)

func TestFindName(t *testing.T) {
	answers := map[string]string{
		"/api/v1/namespaces/shop/services/web":   `{"spec":{"type":"LoadBalancer","clusterIPs":["10.96.0.7","fd00:96::7"]}}`,
		"/api/v1/namespaces/shop/services/peers": `{"spec":{"clusterIPs":["None"]}}`,
		"/api/v1/namespaces/shop/services/alias": `{"spec":{"type":"ExternalName","externalName":"db.example.com"}}`,
		"/api/v1/namespaces/shop/services/odd":   `{"spec":{"clusterIPs":["x"]}}`,
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices" +
			"?labelSelector=kubernetes.io%2Fservice-name%3Dpeers": `{"items":[
			{"endpoints":[{"addresses":["10.244.1.9"],"hostname":"peers-0","conditions":{"ready":true}},
				{"addresses":["10.244.2.9"],"conditions":{"ready":false}}]},
			{"endpoints":[{"addresses":["fd00:244::9"],"conditions":{}}]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces/shop/services/broken" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		answer, ok := answers[r.URL.RequestURI()]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	client := &Client{server: server.URL, http: server.Client()}
	for _, test := range []struct {
		host, service, want string
	}{
		{"", "web", "{true [10.96.0.7 fd00:96::7] }"},
		{"x", "web", "{false [] }"},
		{"", "peers", "{true [10.244.1.9 fd00:244::9] }"},
		{"peers-0", "peers", "{true [10.244.1.9] }"},
		{"peers-1", "peers", "{false [] }"},
		{"", "alias", "{true [] db.example.com}"},
		{"", "none", "{false [] }"},
		{"", "no/such", "{false [] }"},
	} {
		found, err := client.FindName(t.Context(), dns.Key{Host: test.host, Service: test.service, Namespace: "shop"})
		if got := fmt.Sprint(found); err != nil || got != test.want {
			t.Errorf("%s.%s: %s, %v; want %s", test.host, test.service, got, err, test.want)
		}
	}
	for _, service := range []string{"broken", "odd"} {
		if found, err := client.FindName(t.Context(), dns.Key{Service: service, Namespace: "shop"}); err == nil {
			t.Errorf("%s: %v and no error", service, found)
		}
	}
}
