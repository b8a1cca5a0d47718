package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const goodGroup = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: good, namespace: purelb-system}
spec: {local: {v4pools: [{pool: 192.168.1.240/28, subnet: 192.168.1.0/24}]}}
`

// Scripts trust the exit codes.
func TestExitCodes(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for _, test := range []struct {
		args        string
		in          string
		code        int
		out, errOut string
	}{
		{"validate -", goodGroup, 0, "1 object checked", ""},
		{"validate -", strings.Replace(goodGroup, "240/28", "241/28", 1), 0, "has host bits", ""},
		{"validate --strict -", strings.Replace(goodGroup, "240/28", "241/28", 1), 2, "has host bits", ""},
		{"validate -", strings.Replace(goodGroup, "240/28", "240-192.168.2.1", 1), 2, "spec.local.v4pools[0].pool", ""},
		{"validate -o json -", goodGroup, 0, `"errors": 0`, ""},
		{"validate -o yaml -", goodGroup, 0, "errors: 0", ""},
		{"validate -o xml -", goodGroup, 1, "", `--output is "xml"`},
		{"validate /nonexistent.yaml", "", 1, "", "no such file"},
		{"validate", "", 1, "", "kubectl purelb validate needs a FILE, a folder, or -"},
		{"drain", "", 1, "", "kubectl purelb drain needs one NODE: see kubectl purelb drain --help"},
		{"undrain a b", "", 1, "", "kubectl purelb undrain needs one NODE"},
		{"plan drain", "", 1, "", "kubectl purelb plan drain needs one NODE"},
		{"plan lose a b", "", 1, "", "kubectl purelb plan lose needs one NODE at most"},
		{"plan apply", "", 1, "", "kubectl purelb plan apply needs a FILE, a folder, or -"},
		{"where", "", 1, "", "kubectl purelb where needs one ADDRESS"},
		{"explain svc", "", 1, "", "kubectl purelb explain service needs the NAME of one Service"},
		{"explain web", "", 1, "", `unknown command "web" for "kubectl purelb explain": it has service`},
		{"completion", "", 1, "", "kubectl purelb completion needs a command: bash, fish, powershell, zsh"},
		{"completion tcsh", "", 1, "", `unknown command "tcsh" for "kubectl purelb completion"`},
		{"where here", "", 1, "", `"here" is not an address`},
		{"validate -", "# nothing\n", 1, "", "there is no object in standard input"},
		{"validate -", goodGroup + "---\n" + goodGroup, 2, "purelb-system/good: error: it is in standard input already", ""},
		{"validate -", "a: b\n---\n" + goodGroup, 2, "1 object checked", ""},
		{"version --client", "", 0, "kubectl-purelb dev", ""},
		{"wehre", "", 1, "", "unknown command"},
		{"plan drian node1", "", 1, "", `unknown command "drian" for "kubectl purelb plan": did you mean drain?`},
		{"plan", "", 1, "", "kubectl purelb plan needs a command: apply, drain, lose"},
		{"explain", "", 1, "", "kubectl purelb explain needs a command: service"},
		{"explain pod web", "", 1, "", `unknown command "pod" for "kubectl purelb explain"`},
		{"explain svc/", "", 1, "", `unknown command "svc/" for "kubectl purelb explain"`},
		{"explain service pod/web", "", 1, "", `"pod/web" is no name of a Service`},
		{"status -o name", "", 1, "", `--output is "name": it can be json, yaml or wide`},
		{"--help", "", 0, "The exit code is 0 if all is well", ""},
		{"completion bash", "", 0, "kubectl-purelb", ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run(t.Context(), strings.Fields(test.args), streams{in: strings.NewReader(test.in), out: &out, err: &errOut})
			if code != test.code || !strings.Contains(out.String(), test.out) ||
				!strings.Contains(errOut.String(), test.errOut) {
				t.Errorf("exit code %d, not %d\n%s\n%s", code, test.code, out.String(), errOut.String())
			}
			if strings.Contains(out.String(), "\x1b[") {
				t.Errorf("colours, but not on a terminal: %q", out.String())
			}
		})
	}
}

// The version of the plugin alone says nothing of a cluster, which nobody asked.
func TestVersionOfTheClient(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	var out bytes.Buffer
	code := run(t.Context(), []string{"version", "--client"}, streams{out: &out, err: &out})
	if code != 0 || out.String() != "kubectl-purelb dev\n" {
		t.Errorf("exit code %d: %q", code, out.String())
	}
}

// Of a folder the files are read, and it is said which folders in it are not.
func TestFolders(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	folder := t.TempDir()
	if err := os.Mkdir(folder+"/inner", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"good.yaml": goodGroup, "broken.yaml": "a: b\n", "inner/too.yaml": strings.Replace(goodGroup, "good", "too", 1),
	} {
		if err := os.WriteFile(folder+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ args, out, errOut string }{
		{"validate " + folder, "1 object checked", "Not read: folder " + folder + "/inner: use --recursive\n"},
		{"validate -R " + folder, "2 objects checked", ""},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), strings.Fields(test.args), streams{out: &out, err: &errOut})
		if code != exitProblems || !strings.Contains(out.String(), test.out) || errOut.String() != test.errOut ||
			!strings.Contains(out.String(), "broken.yaml: document 1: error: an object has no kind") {
			t.Errorf("%s: exit code %d\n%s\n%s", test.args, code, out.String(), errOut.String())
		}
	}
}

// The shell is offered names of the cluster.
func TestCompletion(t *testing.T) {
	server := serveAnswers(t, map[string]string{
		"/api": `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
			{"name": "nodes", "kind": "Node", "verbs": ["list"]},
			{"name": "services", "kind": "Service", "namespaced": true, "verbs": ["list"]}]}`,
		"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
		"/api/v1/nodes": `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
			"items": [{"metadata": {"name": "node2"}}, {"metadata": {"name": "node1"}}]}`,
		"/api/v1/namespaces/shop/services": `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
			"items": [{"metadata": {"name": "web", "namespace": "shop"}}]}`,
	})
	t.Setenv("KUBECONFIG", "/nonexistent")
	for args, want := range map[string]string{
		"drain":                   "node1\nnode2\n:4\n",
		"undrain":                 "node1\nnode2\n:4\n",
		"plan drain":              "node1\nnode2\n:4\n",
		"plan lose":               "node1\nnode2\n:4\n",
		"explain service -n shop": "web\n:4\n",
		"explain svc -n shop":     "web\n:4\n",
		"explain svc -n none":     ":4\n",
		"drain node1":             ":4\n",
		"status -o":               "json\nyaml\nwide\n:4\n",
	} {
		var out, errOut bytes.Buffer
		line := append([]string{"__complete", "--server", server.URL, "--cache-dir", t.TempDir()}, strings.Fields(args)...)
		code := run(t.Context(), append(line, ""), streams{out: &out, err: &errOut})
		if code != 0 || out.String() != want {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, out.String(), errOut.String())
		}
	}
}

// serveAnswers is an API server that answers each path by a JSON document, and others by 404, until the test ends.
func serveAnswers(t *testing.T, answers map[string]string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	return server
}

// A program reads of drain and undrain nothing but their outcome, and people read what these commands do.
func TestOutcomeForPrograms(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	const in = "/apis/purelb.io/v1/namespaces/purelb-system/"
	server := serveAnswers(t, map[string]string{
		"/api": `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
			{"name": "nodes", "kind": "Node", "verbs": ["get", "patch"]}]}`,
		"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "purelb.io",
			"versions": [{"groupVersion": "purelb.io/v1", "version": "v1"}]}]}`,
		"/apis/purelb.io/v1": `{"kind": "APIResourceList", "groupVersion": "purelb.io/v1", "resources": [
			{"name": "lbnodeagents", "kind": "LBNodeAgent", "namespaced": true, "verbs": ["list"]},
			{"name": "announcements", "kind": "Announcement", "namespaced": true, "verbs": ["list"]}]}`,
		"/api/v1/nodes/node1": `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1"}}`,
		in + "lbnodeagents": `{"kind": "LBNodeAgentList", "apiVersion": "purelb.io/v1",
			"items": [{"metadata": {"name": "default", "namespace": "purelb-system"}}]}`,
		in + "announcements": `{"kind": "AnnouncementList", "apiVersion": "purelb.io/v1", "items": []}`,
	})
	for args, want := range map[string]struct{ out, errOut string }{
		"drain node1 -o json":   {`{"node":"node1","left":[]}`, "node node1 announces nothing any more"},
		"drain node1 -o yaml":   {"left: []\nnode: node1\n", "node node1 is labelled"},
		"undrain node1 -o json": {`{"node":"node1","wasDrained":false}`, "node node1 is not labelled"},
		"drain node1":           {"announces nothing any more", ""},
	} {
		var out, errOut bytes.Buffer
		line := append(strings.Fields(args), "--server", server.URL, "--cache-dir", t.TempDir())
		code := run(t.Context(), line, streams{out: &out, err: &errOut})
		text := out.String()
		if strings.HasSuffix(args, "json") {
			var compact bytes.Buffer
			if err := json.Compact(&compact, out.Bytes()); err != nil {
				t.Errorf("%s: %v", args, err)
			}
			text = strings.TrimSpace(compact.String())
		}
		isOutcome := text == want.out || !strings.Contains(args, " -o ") && strings.Contains(text, want.out)
		if code != 0 || !isOutcome || !strings.Contains(errOut.String(), want.errOut) {
			t.Errorf("%s: exit code %d, %q, not %q\n%s", args, code, text, want.out, errOut.String())
		}
	}
}

// A file that is there already is not written over, and one that could not be written does not stay.
func TestSupportBundleFile(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	path := t.TempDir() + "/bundle.tar.gz"
	write := func() string {
		var out, errOut bytes.Buffer
		args := []string{"support-bundle", "--file", path, "--server", "http://127.0.0.1:1"}
		if code := run(t.Context(), args, streams{out: &out, err: &errOut}); code != exitError {
			t.Errorf("exit code %d", code)
		}
		return errOut.String()
	}
	if text := write(); !strings.Contains(text, "connection refused") {
		t.Error(text)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file stays: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := write(); !strings.Contains(text, "is there already: say by --file") {
		t.Error(text)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
}

// kubectl completes the plugin by a program of this name, which hands on what it is given.
func TestCompletionProgram(t *testing.T) {
	folder := t.TempDir()
	const program = "#!/bin/sh\nprintf '<%s>' \"$@\"\n"
	if err := os.WriteFile(folder+"/kubectl-purelb", []byte(program), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	command := exec.Command("/bin/sh", "./kubectl_complete-purelb", "explain", "service", "a b", "")
	command.Env = []string{"PATH=" + folder}
	out, err := command.CombinedOutput()
	if want := "<__complete><explain><service><a b><>"; err != nil || string(out) != want {
		t.Errorf("%q, %v", out, err)
	}
}

// Without an API server a command says so and ends.
func TestNoAPIServer(t *testing.T) {
	kubeconfig := t.TempDir() + "/kubeconfig"
	config := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"status", "pools", "where 10.0.0.1", "explain service web", "explain svc/web", "explain service/web",
		"explain services web", "explain service svc/web", "plan drain node1", "plan lose", "drain node1",
		"undrain node1", "rebalance", "rebalance --dry-run", "version",
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append(strings.Fields(args), "--kubeconfig", kubeconfig), streams{out: &out, err: &errOut})
		if code != exitError || !strings.Contains(errOut.String(), "connection refused") {
			t.Errorf("%s: exit code %d\n%s\n%s", args, code, out.String(), errOut.String())
		}
	}
}
