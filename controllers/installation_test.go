package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// A cluster is of the manager's installation only if its ConfigMap says so.
func TestCheckInstallation(t *testing.T) {
	const uid = "3b6f0b52-3b1c-4a0e-9a52-5d1a5f0c7a01"
	const noID = "has no id of an installation in its key id"
	type data = map[string]string
	for name, row := range map[string]struct {
		data     data
		own      types.UID
		contains []string // the message; nil if there is none
	}{
		"its own":         {data{"id": "staging"}, "staging", nil},
		"its own UID":     {data{"id": uid}, uid, nil},
		"written by hand": {data{"id": " staging\n", "note": "x"}, "staging", nil},
		"another one's": {data{"id": "production"}, "staging",
			[]string{"installation production", "id is staging", "--installation-id=production"}},
		"another cluster's":      {data{"id": uid}, "staging", []string{"--installation-id=" + uid}},
		"one that begins so":     {data{"id": "staging-2"}, "staging", []string{"installation staging-2"}},
		"in other letters":       {data{"id": "Staging"}, "staging", []string{noID}},
		"what is no id":          {data{"id": "a\x1b[2Jb"}, "staging", []string{noID}},
		"a long text":            {data{"id": strings.Repeat("x", 1<<20)}, "staging", []string{noID}},
		"nothing":                {nil, "staging", []string{noID, "right one, staging, delete the ConfigMap"}},
		"something in other key": {data{"ID": "staging"}, "staging", []string{noID}},
	} {
		record := newInstallationRecord("purelb-system", "")
		record.Data = row.data
		err := checkInstallation(record, row.own)
		var failure *ipam.Error
		switch {
		case err == nil && row.contains == nil:
		case err == nil:
			t.Errorf("%s: it is taken for the manager's", name)
		case row.contains == nil:
			t.Errorf("%s: %v", name, err)
		case !errors.As(err, &failure), failure.Reason != v1.ReasonOtherInstallation, failure.Scope != ipam.ScopeEndpoint:
			t.Errorf("%s: %#v", name, err)
		case len(failure.Message) > maxNote || strings.ContainsRune(failure.Message, '\x1b'):
			t.Errorf("%s: %q", name, failure.Message)
		default:
			for _, text := range append(row.contains, "ConfigMap purelb-installation in namespace purelb-system") {
				if !strings.Contains(failure.Message, text) {
					t.Errorf("%s: %q does not say %q", name, failure.Message, text)
				}
			}
		}
	}
	if err := checkInstallation(newInstallationRecord("purelb-system", uid), uid); err != nil {
		t.Errorf("what the manager has made itself: %v", err)
	}
}

// Two IPAM systems are asked for the first time at the same moment, and both find no record. Both
// go by the one that is made first, whoever has made it.
func TestInstallationRecordedTwice(t *testing.T) {
	for id, isOwn := range map[string]bool{"staging": true, "production": false} {
		made := newInstallationRecord("purelb-system", types.UID(id))
		c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if err := c.Create(ctx, made, opts...); err != nil {
					return err
				}
				return c.Create(ctx, obj, opts...)
			},
		}).Build()
		x := &ExternalIPAM{client: c, apiReader: c, namespace: "purelb-system", installationID: "staging"}
		id, err := x.EnsureInstallation(t.Context())
		var failure *ipam.Error
		if isOwn && (id != "staging" || err != nil) || !isOwn && !errors.As(err, &failure) {
			t.Errorf("beside %s: %s, %v", made.Data, id, err)
		}
	}
}
