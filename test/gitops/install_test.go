package gitops

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// componentNames are the folders of config/components.
func componentNames(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "config", "components"))
	if err != nil || len(entries) < 2 {
		t.Fatalf("components: %v, %v", entries, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// buildWith returns the objects of config/default with components, as a user's own kustomization has them.
func buildWith(t *testing.T, components ...string) []*unstructured.Unstructured {
	t.Helper()
	c := newClone(t, "")
	c.run(t, append([]string{"purelb.io/purelb:dev"}, components...)...)
	return c.build(t)
}

// clone is a copy of config/, with a cluster of which kubectl tells one text.
type clone struct{ dir, kubectl, managerFlags string }

func newClone(t *testing.T, cluster string) *clone {
	t.Helper()
	c := &clone{dir: t.TempDir()}
	c.kubectl = filepath.Join(c.dir, "kubectl")
	if err := os.CopyFS(filepath.Join(c.dir, "config"), os.DirFS(filepath.Join(root, "config"))); err != nil {
		t.Fatal(err)
	}
	program := "#!/bin/sh\ncat <<'END'\n" + cluster + "\nEND\n"
	if err := os.WriteFile(c.kubectl, []byte(program), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	return c
}

// try runs config/install.sh with an image and components, as make deploy does, and returns what it says.
func (c *clone) try(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	kustomize, err := programPath("KUSTOMIZE")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(c.dir, "config", "install.sh")
	command := exec.Command("/bin/sh", append([]string{script, kustomize}, arguments...)...)
	command.Env = append(os.Environ(), "KUBECTL="+c.kubectl, "MANAGER_ARGS="+c.managerFlags)
	text, err := command.CombinedOutput()
	return string(text), err
}

func (c *clone) run(t *testing.T, arguments ...string) {
	t.Helper()
	if text, err := c.try(t, arguments...); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func (c *clone) build(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := buildFolder(filepath.Join(c.dir, "install"))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// managerArgs are the arguments of the manager as the file has them.
func (c *clone) managerArgs(t *testing.T) []string {
	t.Helper()
	manager := findObject[appsv1.Deployment](NewWithT(t), c.build(t), "Deployment", "purelb-manager")
	return manager.Spec.Template.Spec.Containers[0].Args
}

// textsOf returns the objects as sorted texts.
func textsOf(g *WithT, objects []*unstructured.Unstructured) []string {
	var texts []string
	for _, u := range objects {
		text, err := json.Marshal(u.Object)
		g.Expect(err).NotTo(HaveOccurred())
		texts = append(texts, string(text))
	}
	slices.Sort(texts)
	return texts
}

// permutations returns all orders of names.
func permutations(names []string) [][]string {
	if len(names) == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for i, name := range names {
		for _, rest := range permutations(slices.Delete(slices.Clone(names), i, i+1)) {
			all = append(all, append([]string{name}, rest...))
		}
	}
	return all
}

// TestInstallInAnyOrder adds components one after the other, in each order, and upgrades at the end: nothing
// undoes what was chosen before.
func TestInstallInAnyOrder(t *testing.T) {
	g := NewWithT(t)
	const before, after = "registry.example.com:5000/purelb:v0", "registry.example.com:5000/purelb@sha256:" +
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	at := newClone(t, "")
	at.run(t, append([]string{after}, componentNames(t)...)...)
	all := at.build(t)
	want := textsOf(g, all)
	image := findObject[appsv1.Deployment](g, all, "Deployment", "purelb-manager").Spec.Template.Spec.Containers[0].Image
	g.Expect(image).To(Equal(after))
	for _, order := range permutations(componentNames(t)) {
		c := newClone(t, "")
		c.run(t, before)
		for _, component := range order {
			c.run(t, "", component)
			manager := findObject[appsv1.Deployment](g, c.build(t), "Deployment", "purelb-manager")
			g.Expect(manager.Spec.Template.Spec.Containers[0].Image).To(Equal(before), "%v", order)
		}
		c.run(t, "", order[0]) // what is there already
		c.run(t, after)
		g.Expect(textsOf(g, c.build(t))).To(Equal(want), "%v", order)
		c.run(t, "")
		g.Expect(textsOf(g, c.build(t))).To(Equal(want), "%v", order)
	}
}

// TestInstallKeepsEdits lets users add patches to the file.
func TestInstallKeepsEdits(t *testing.T) {
	g := NewWithT(t)
	c := newClone(t, "")
	c.run(t, "purelb.io/purelb:v0")
	path := filepath.Join(c.dir, "install", "kustomization.yaml")
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	patch := `
patches:
- target: {kind: Deployment, name: purelb-manager}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --default-load-balancer=false}
`
	g.Expect(os.WriteFile(path, append(bytes.TrimSpace(text), patch...), 0o600)).To(Succeed())
	c.run(t, "purelb.io/purelb:v1", "prometheus")
	manager := findObject[appsv1.Deployment](g, c.build(t), "Deployment", "purelb-manager")
	container := manager.Spec.Template.Spec.Containers[0]
	g.Expect(container.Image).To(Equal("purelb.io/purelb:v1"))
	g.Expect(container.Args).To(ContainElement("--default-load-balancer=false"))
}

// TestInstallFromAnotherClone finds in the cluster what was chosen in another clone.
func TestInstallFromAnotherClone(t *testing.T) {
	g := NewWithT(t)
	c := newClone(t, "image registry.example.com/purelb:v0\nvolume tmp\nvolume purelb-webhook-tls\n"+
		"networkpolicy.networking.k8s.io/purelb-manager\nconfigmap/purelb-dashboard\nconfigmap/kube-root-ca.crt")
	c.run(t, "")
	want := newClone(t, "")
	want.run(t, append([]string{"registry.example.com/purelb:v0"}, componentNames(t)...)...)
	g.Expect(textsOf(g, c.build(t))).To(Equal(textsOf(g, want.build(t))))

	c = newClone(t, "image registry.example.com/purelb:v0\nvolume tmp")
	c.run(t, "registry.example.com/purelb:v1")
	want = newClone(t, "")
	want.run(t, "registry.example.com/purelb:v1")
	g.Expect(textsOf(g, c.build(t))).To(Equal(textsOf(g, want.build(t))))
}

// TestInstallFlags adds flags of the manager, once each, and in another clone finds those that the cluster has.
func TestInstallFlags(t *testing.T) {
	g := NewWithT(t)
	own := []string{"manager", "--namespace=$(NAMESPACE)", "--pod-name=$(POD_NAME)"}
	c := newClone(t, "")
	c.managerFlags = `--default-load-balancer=false  --log-level=debug`
	c.run(t, "purelb.io/purelb:v0")
	want := append(slices.Clone(own), "--default-load-balancer=false", "--log-level=debug")
	g.Expect(c.managerArgs(t)).To(Equal(want))
	c.run(t, "purelb.io/purelb:v1")
	c.managerFlags = ""
	c.run(t, "", "prometheus")
	g.Expect(c.managerArgs(t)).To(Equal(want))

	running := "image purelb.io/purelb:v1"
	for _, arg := range append(want, `--installation-id=a"\b`) {
		running += "\narg " + arg
	}
	c = newClone(t, running+"\nvolume tmp")
	c.managerFlags = "--feature-gates=A=true"
	c.run(t, "")
	want = append(want, `--installation-id=a"\b`, "--feature-gates=A=true")
	g.Expect(c.managerArgs(t)).To(Equal(want))
	c.run(t, "")
	g.Expect(c.managerArgs(t)).To(Equal(want))
}

// TestInstallRefuses wants an image, and components that there are.
func TestInstallRefuses(t *testing.T) {
	g := NewWithT(t)
	c := newClone(t, "")
	text, err := c.try(t, "")
	g.Expect(err).To(HaveOccurred())
	g.Expect(text).To(ContainSubstring("IMG="))
	g.Expect(filepath.Join(c.dir, "install", "kustomization.yaml")).NotTo(BeAnExistingFile())
	c.managerFlags = "log-level=debug"
	text, err = c.try(t, "purelb.io/purelb:v0")
	g.Expect(err).To(HaveOccurred())
	g.Expect(text).To(HavePrefix("log-level=debug\nis no flag of the manager"))
	g.Expect(filepath.Join(c.dir, "install", "kustomization.yaml")).NotTo(BeAnExistingFile())
	c.managerFlags = ""
	text, err = c.try(t, "purelb.io/purelb:v0", "promtheus")
	g.Expect(err).To(HaveOccurred())
	g.Expect(text).To(ContainSubstring("there is no component promtheus: cert-manager network-policy prometheus"))
	g.Expect(filepath.Join(c.dir, "install", "kustomization.yaml")).NotTo(BeAnExistingFile())
}
