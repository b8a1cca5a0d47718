package v1_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/apiserver"
)

const namespace = "purelb-system"

// config and api reach the API server that all tests of this package share.
var (
	config *rest.Config
	api    client.Client
	stop   = func() error { return nil }
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// connect makes sure that the API server runs. It is not started by TestMain:
// the go command would not know that the results depend on the CRDs, and show
// old ones.
func connect(t *testing.T) {
	t.Helper()
	apiserver.Mark(t)
	if err := start(); err != nil {
		t.Fatal(err)
	}
}

var start = sync.OnceValue(func() (err error) {
	if config, stop, err = apiserver.Start(); err != nil {
		return err
	}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	if api, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return err
	}
	for _, name := range []string{"purelb", namespace} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := api.Create(context.Background(), ns); err != nil {
			return err
		}
	}
	return nil
})

// object parses YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return u
}

// manifest is an object of this API, named x, with the YAML text as its spec.
func manifest(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	u := object(t, "spec:\n"+indent(spec))
	u.SetGroupVersionKind(v1.GroupVersion.WithKind(kind))
	u.SetNamespace(namespace)
	u.SetName("x")
	return u
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ") + "\n"
}

// cause is one reason why the API server refuses an object: the path of the
// field, and a part of the message.
type cause struct{ field, message string }

// checkRefused fails the test unless err gives exactly the causes wanted, in
// any order; none means that err is to be nil.
func checkRefused(t *testing.T, err error, wanted []cause) {
	t.Helper()
	if len(wanted) == 0 {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || !apierrors.IsInvalid(err) {
		t.Fatalf("want it refused for %v, got: %v", wanted, err)
	}
	var got []cause
	for _, c := range status.Status().Details.Causes {
		// Said in addition where the schema already refuses the object.
		if !strings.Contains(c.Message, "some validation rules were not checked") {
			got = append(got, cause{c.Field, c.Message})
		}
	}
	matches := len(got) == len(wanted)
	for _, w := range wanted {
		found := false
		for _, g := range got {
			found = found || (g.field == w.field && strings.Contains(g.message, w.message))
		}
		matches = matches && found
	}
	if !matches {
		t.Errorf("wrong causes\nwant %q\ngot  %q", wanted, got)
	}
}
