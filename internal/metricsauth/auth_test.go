package metricsauth_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/internal/metricsauth"
	"github.com/purelb/purelb-operator/test/apiserver"
)

func TestFilter(t *testing.T) {
	apiserver.Mark(t)
	config, stop, err := apiserver.Start()
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	create := func(obj client.Object) {
		t.Helper()
		if err := c.Create(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	token := func(name string) string {
		t.Helper()
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		create(account)
		request := &authenticationv1.TokenRequest{}
		if err := c.SubResource("token").Create(ctx, account, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	reader, stranger := token("reader"), token("stranger")
	create(&rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
	create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader",
		},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "reader"}},
	})

	serve := func(config *rest.Config) *httptest.Server {
		t.Helper()
		httpClient, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		handler, err := metricsauth.Handler(
			config, httpClient, logr.Discard(),
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }),
		)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return server
	}
	get := func(server *httptest.Server, method, path, authorization string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			request.Header.Set("Authorization", authorization)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		challenge, isRefused := response.Header.Get("WWW-Authenticate"), response.StatusCode == http.StatusUnauthorized
		if (challenge == "Bearer") != isRefused {
			t.Errorf("%d with the challenge %q", response.StatusCode, challenge)
		}
		return response.StatusCode, string(body)
	}
	server := serve(config)
	for _, row := range []struct {
		name, method, path, authorization string
		want                              int
	}{
		{"no token", http.MethodGet, "/metrics", "", http.StatusUnauthorized},
		{"an empty token", http.MethodGet, "/metrics", "Bearer ", http.StatusUnauthorized},
		{"another authentication scheme", http.MethodGet, "/metrics", "Basic " + reader, http.StatusUnauthorized},
		{"an invalid token", http.MethodGet, "/metrics", "Bearer none", http.StatusUnauthorized},
		{"a user who may not read", http.MethodGet, "/metrics", "Bearer " + stranger, http.StatusForbidden},
		{"a user who may read", http.MethodGet, "/metrics", "Bearer " + reader, http.StatusOK},
		{"the same user again", http.MethodGet, "/metrics", "Bearer " + reader, http.StatusOK},
		{"another verb", http.MethodPost, "/metrics", "Bearer " + reader, http.StatusForbidden},
		{"another path", http.MethodGet, "/debug", "Bearer " + reader, http.StatusForbidden},
	} {
		status, body := get(server, row.method, row.path, row.authorization)
		if status != row.want || (body == "metrics") != (status == http.StatusOK) {
			t.Errorf("%s: %d, %q", row.name, status, body)
		}
	}
	unreachable := rest.CopyConfig(config)
	unreachable.Host = "http://127.0.0.1:1"
	if status, _ := get(serve(unreachable), http.MethodGet, "/metrics",
		"Bearer "+reader); status != http.StatusInternalServerError {
		t.Errorf("without an API server: %d", status)
	}
}
