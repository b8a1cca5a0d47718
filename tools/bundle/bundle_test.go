package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	validator "github.com/operator-framework/api/pkg/validation/interfaces"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

const root = "../.."

// TestBundleIsGenerated fails when bundle/ is not what make bundle writes.
func TestBundleIsGenerated(t *testing.T) {
	csv := committed(t).CSV
	want, err := generate(options{
		root: root, version: csv.Spec.Version.String(), image: csv.Annotations["containerImage"], channel: "candidate",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	err = filepath.WalkDir(filepath.Join(root, bundleDir), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		got[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got[dockerfile], err = os.ReadFile(filepath.Join(root, dockerfile)); err != nil {
		t.Fatal(err)
	}
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("the bundle has the files %v; make bundle writes %v", g, w)
	}
	for name := range want {
		if string(got[name]) != string(want[name]) {
			t.Errorf("%s is not what make bundle writes", name)
		}
	}
}

// TestGenerateIsReproducible checks that the same input gives the same bundle.
func TestGenerateIsReproducible(t *testing.T) {
	o := options{root: root, version: "1.2.3", image: "registry.example.com/purelb:v1.2.3", channel: "stable"}
	files, err := generate(o)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := generate(o)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(files, again, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Fatal("two bundles of the same input differ")
		}
	}
	csv := string(files["bundle/manifests/"+csvFile])
	for _, s := range []string{
		"name: purelb.v1.2.3\n", "version: 1.2.3\n", "containerImage: registry.example.com/purelb:v1.2.3\n",
		"image: registry.example.com/purelb:v1.2.3\n",
	} {
		if !strings.Contains(csv, s) {
			t.Errorf("the ClusterServiceVersion does not say %q", s)
		}
	}
	if strings.Contains(csv, "purelb:dev") {
		t.Error("the ClusterServiceVersion still names the image of config/default")
	}
}

// committed returns the bundle in bundle/.
func committed(t *testing.T) *manifests.Bundle {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(filepath.Join(root, bundleDir))
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

// validators returns all validators of the operator framework for bundles, except those that
// pull images.
func validators() validator.Validators {
	return append(slices.Clone(validation.DefaultBundleValidators),
		validation.OperatorHubV2Validator, validation.StandardCategoriesValidator, validation.StandardCapabilitiesValidator,
		validation.CommunityOperatorValidator, validation.GoodPracticesValidator, validation.AlphaDeprecatedAPIsValidator,
		validation.ObjectValidator)
}

// complaints returns all errors and warnings of the validators.
func complaints(bundle *manifests.Bundle) []string {
	var all []string
	objects := append(bundle.ObjectsToValidate(), map[string]string{"k8s-version": "1.32"})
	for _, result := range validators().Validate(objects...) {
		for _, e := range slices.Concat(result.Errors, result.Warnings) {
			all = append(all, e.Error())
		}
	}
	return all
}

func TestValidators(t *testing.T) {
	bundle := committed(t)
	for _, c := range complaints(bundle) {
		t.Error(c)
	}
	if bundle.Package != packageName || bundle.DefaultChannel != "candidate" {
		t.Errorf("the bundle is of package %q, channel %q", bundle.Package, bundle.DefaultChannel)
	}
}

// TestValidatorsJudge breaks the bundle and checks that the validators complain.
func TestValidatorsJudge(t *testing.T) {
	tests := map[string]struct {
		breaks func(*manifests.Bundle)
		want   string
	}{
		"category": {
			func(b *manifests.Bundle) { b.CSV.Annotations["categories"] = "Load Balancing" }, "categories",
		},
		"capability": {
			func(b *manifests.Bundle) { b.CSV.Annotations["capabilities"] = "Everything" }, "capabilities level",
		},
		"example": {
			func(b *manifests.Bundle) { b.CSV.Annotations["alm-examples"] = "[]" }, "should have an example",
		},
		"kind":               {func(b *manifests.Bundle) { b.V1CRDs = b.V1CRDs[1:] }, "not found in bundle"},
		"icon":               {func(b *manifests.Bundle) { b.CSV.Spec.Icon = nil }, "Icon not specified"},
		"Kubernetes version": {func(b *manifests.Bundle) { b.CSV.Spec.MinKubeVersion = "1.32" }, "MinKubeVersion"},
		"description": {func(b *manifests.Bundle) {
			b.CSV.Spec.CustomResourceDefinitions.Owned[0].Description = ""
		}, "empty description"},
		"requests": {func(b *manifests.Bundle) {
			b.CSV.Spec.InstallStrategy.StrategySpec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0].Resources.Requests = nil
		}, "resource requests"},
		"channel": {func(b *manifests.Bundle) { b.Channels = []string{"nightly"} }, "naming convention"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			bundle := committed(t)
			test.breaks(bundle)
			got := strings.Join(complaints(bundle), "\n")
			if !strings.Contains(got, test.want) {
				t.Errorf("the validators complain %q, want %q", got, test.want)
			}
		})
	}
}

// TestRights checks that no right which the manager or the agents have in one namespace applies
// to the whole cluster, as the permissions in a ClusterServiceVersion would.
func TestRights(t *testing.T) {
	spec := committed(t).CSV.Spec.InstallStrategy.StrategySpec
	if len(spec.Permissions) > 0 {
		t.Errorf("permissions are for Roles of the bundle: %v", spec.Permissions)
	}
	accounts := map[string]bool{}
	for _, p := range spec.ClusterPermissions {
		accounts[p.ServiceAccountName] = true
		for _, r := range p.Rules {
			for _, forbidden := range []string{
				"secrets", "leases", "daemonsets", "pods", "announcements", "announcements/status",
			} {
				if slices.Contains(r.Resources, forbidden) {
					t.Errorf("%s may %v %s in the whole cluster", p.ServiceAccountName, r.Verbs, forbidden)
				}
			}
		}
	}
	if !accounts["purelb-manager"] || !accounts["purelb-agent"] {
		t.Errorf("OLM makes only the service accounts %v", accounts)
	}
}

// TestOwners checks that everything in the bundle that gives rights goes with the
// ClusterServiceVersion. OLM sets owners of the other kinds itself, and keeps CRDs.
func TestOwners(t *testing.T) {
	bundle := committed(t)
	labels := map[string]string{
		"olm.owner": bundle.CSV.Name, "olm.owner.kind": "ClusterServiceVersion", "olm.owner.namespace": "purelb-system",
	}
	checked := map[string]int{}
	for _, u := range bundle.Objects {
		kind := u.GetKind()
		switch kind {
		case "Role", "RoleBinding":
			owners := u.GetOwnerReferences()
			if len(owners) != 1 || owners[0].Kind != "ClusterServiceVersion" ||
				owners[0].APIVersion != "operators.coreos.com/v1alpha1" ||
				owners[0].Name != bundle.CSV.Name || owners[0].UID != "" {
				t.Errorf("%s %s has the owners %+v", kind, u.GetName(), owners)
			}
		case "ClusterRole":
			for name, value := range labels {
				if u.GetLabels()[name] != value {
					t.Errorf("%s %s has the labels %v", kind, u.GetName(), u.GetLabels())
				}
			}
		case "ClusterRoleBinding":
			t.Errorf("%s %s has no owner", kind, u.GetName())
		}
		checked[kind]++
	}
	if checked["Role"] == 0 || checked["RoleBinding"] == 0 || checked["ClusterRole"] == 0 {
		t.Errorf("the bundle has %v", checked)
	}
}

// TestWebhooks checks that the bundle contains all webhooks, and the Deployments that serve them.
func TestWebhooks(t *testing.T) {
	csv := committed(t).CSV
	var names []string
	askedAboutDeletions := []string{"vlbnodeagent.purelb.io", "vservicegroup.purelb.io"}
	for _, w := range csv.Spec.WebhookDefinitions {
		names = append(names, w.GenerateName)
		if asked := slices.Contains(w.Rules[0].Operations, admissionregistrationv1.Delete); asked != slices.Contains(
			askedAboutDeletions, w.GenerateName,
		) {
			t.Errorf("%s is asked about deletions: %t", w.GenerateName, asked)
		}
		if w.Type != v1alpha1.ValidatingAdmissionWebhook || w.ContainerPort != 443 || w.TargetPort == nil ||
			w.WebhookPath == nil {
			t.Errorf("%s: %+v", w.GenerateName, w)
		}
		deployments := csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs
		if !slices.ContainsFunc(
			deployments, func(d v1alpha1.StrategyDeploymentSpec) bool { return d.Name == w.DeploymentName },
		) {
			t.Errorf("%s is for Deployment %s, which the bundle does not contain", w.GenerateName, w.DeploymentName)
		}
	}
	slices.Sort(names)
	if want := []string{
		"vbgppeer.purelb.io", "vlbnodeagent.purelb.io", "vservice.purelb.io", "vservicegroup.purelb.io",
	}; !slices.Equal(names, want) {
		t.Errorf("webhooks %v, want %v", names, want)
	}
}
