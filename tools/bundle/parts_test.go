package main

import (
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/tools/bundle/kustomize"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestRefused adds objects to config/ that the generator does not know how to put into a
// bundle.
func TestRefused(t *testing.T) {
	tests := map[string]struct{ added, want string }{
		"an unknown kind": {
			"{apiVersion: batch/v1, kind: CronJob, metadata: {name: tidy, namespace: purelb-system}}",
			"CronJob tidy: tools/bundle/parts.go does not decide what OLM does with this kind"},
		"another namespace": {
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: kube-system}}",
			"Role reader: is in namespace kube-system, and OLM would put it in purelb-system"},
		"a subject of another namespace": {
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, " +
				"metadata: {name: reader, namespace: purelb-system}, " +
				"subjects: [{kind: ServiceAccount, name: default, namespace: default}]}",
			"is not of namespace purelb-system"},
		"a service account that OLM would not create": {
			"{apiVersion: v1, kind: ServiceAccount, metadata: {name: idle, namespace: purelb-system}}",
			"ServiceAccount idle is bound to no ClusterRole"},
		"rights of another subject": {
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: all}, " +
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: purelb-view}, subjects: [{kind: Group, " +
				"name: everybody}]}",
			"ClusterRoleBinding all is for Group everybody, which is not a service account of PureLB"},
		"a kind that the base does not list": {
			"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.purelb.io}}",
			"config/crd defines 7 kinds, and config/manifests/bases lists 6"},
		"a webhook without a server": {
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: more}, " +
				"webhooks: [{name: a.purelb.io, clientConfig: {service: {name: nobody, namespace: purelb-system}}}]}",
			"webhook a.purelb.io: there is no Service nobody"},
		"a webhook for some namespaces": {
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: more}, " +
				"webhooks: [{name: a.purelb.io, namespaceSelector: {}, clientConfig: {service: {name: purelb-webhook, namespace: " +
				"purelb-system}}}]}",
			"webhook a.purelb.io: a bundle supports no namespace selector"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := kustomize.Build(root + "/config/manifests")
			if err != nil {
				t.Fatal(err)
			}
			examples, err := kustomize.Build(root + "/config/manifests/examples")
			if err != nil {
				t.Fatal(err)
			}
			p, err := sortObjects(append(append(objects, examples...), object(t, test.added)))
			if err == nil {
				_, err = p.buildServiceVersion(options{version: "0.1.0"}, []byte("<svg/>"))
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestKustomize checks that the bundle is made by the kustomize that make deploy uses.
func TestKustomize(t *testing.T) {
	version := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(data), "\tsigs.k8s.io/kustomize/api ")
		if !found {
			t.Fatalf("%s names no sigs.k8s.io/kustomize/api", file)
		}
		return strings.Fields(rest)[0]
	}
	if ours, theirs := version("go.mod"), version("../go.mod"); ours != theirs {
		t.Errorf("kustomize's library is %s here and %s in tools/go.mod", ours, theirs)
	}
}

// TestDestinations checks what becomes of objects by their kinds and uses.
func TestDestinations(t *testing.T) {
	references := references{
		boundClusterRoles: map[string]bool{"bound": true}, webhookServices: map[string]bool{"called": true},
	}
	tests := []struct {
		kind, name string
		want       destination
	}{
		{"Deployment", "a", inServiceVersion},
		{"ClusterRole", "bound", inServiceVersion},
		{"ClusterRole", "for-users", asManifest},
		{"Service", "called", inServiceVersion},
		{"Service", "metrics", asManifest},
		{"Role", "a", asManifest},
		{"PodDisruptionBudget", "a", asManifest},
		{"PriorityClass", "a", asManifest},
		{"LBNodeAgent", "default", asExample},
		{"ValidatingAdmissionPolicy", "a", leftOut},
		{"FlowSchema", "a", leftOut},
		{"DaemonSet", "a", leftOut},
		{"Job", "a", undecided},
	}
	for _, test := range tests {
		u := &unstructured.Unstructured{}
		u.SetKind(test.kind)
		u.SetName(test.name)
		if got := references.destinationOf(u); got != test.want {
			t.Errorf("%s %s: destination %d, want %d", test.kind, test.name, got, test.want)
		}
	}
}

func TestTitle(t *testing.T) {
	for field, want := range map[string]string{
		"url": "URL", "v4pools": "IPv4 Pools", "v6pool": "IPv6 Pool", "allocatedIPv4": "Allocated IPv4",
		"skipIPv6DAD":  "Skip IPv6 DAD",
		"previousMACs": "Previous MACs", "lbNodeAgent": "LB Node Agent", "garpConfig": "GARP Config",
		"noPrefixRoute": "No Prefix Route",
	} {
		if got := displayName(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	text := func(description string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "string", Description: description}
	}
	in := apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"pool":      text("pool is never valid\nhere; it exists for the error."),
		"resources": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"limits": text("")}},
		"ranges": {
			Type: "array", Description: "ranges of it.",
			Items: &apiextensionsv1.JSONSchemaPropsOrArray{
				Schema: &apiextensionsv1.JSONSchemaProps{
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"first": text("first\naddress.")},
				},
			},
		},
		"local": {
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"multiPool": {Type: "boolean"}},
		},
		"conditions": {
			Type: "array",
			Items: &apiextensionsv1.JSONSchemaPropsOrArray{
				Schema: &apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{"type": text("")}},
			},
		},
	}}
	var got []string
	for _, d := range describeFields("", in) {
		got = append(got, strings.Join(append([]string{d.Path, d.DisplayName, d.Description}, d.XDescriptors...), "|"))
	}
	want := []string{
		"conditions|Conditions||urn:alm:descriptor:io.kubernetes.conditions",
		"local|Local|",
		"local.multiPool|Multi Pool||urn:alm:descriptor:com.tectonic.ui:booleanSwitch",
		"ranges|Ranges|ranges of it.",
		"ranges[0].first|First|first address.",
		"resources|Resources||urn:alm:descriptor:com.tectonic.ui:resourceRequirements",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
