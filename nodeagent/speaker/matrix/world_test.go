//go:build routers

package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/apiserver"
	"github.com/purelb/purelb-operator/test/crds"
)

const (
	namespace = "purelb-system"
	// patience is how long something may take that has to happen.
	patience = 2 * time.Minute
)

// program is one of PureLB's, as a process.
type program struct {
	where string // the namespace's file, empty for that of the test
	args  []string
	env   []string
	log   string

	process *exec.Cmd
}

func (p *program) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := p.args
	if p.where != "" {
		args = append([]string{"nsenter", "--net=" + p.where, "--"}, args...)
	}
	p.process = exec.Command(args[0], args[1:]...)
	p.process.Env = append(os.Environ(), p.env...)
	p.process.Stdout, p.process.Stderr = log, log
	p.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.process.Start(); err != nil {
		t.Fatalf("start %s: %v", p.args[0], err)
	}
}

// end ends the process by a signal, and waits for that. A process that has ended stays so.
func (p *program) end(signal syscall.Signal) {
	if p.process == nil {
		return
	}
	_ = p.process.Process.Signal(signal)
	_ = p.process.Wait()
	p.process = nil
}

func (p *program) runs() bool { return p.process != nil }

// world is PureLB on a topology.
type world struct {
	*topology
	api     client.Client
	manager *program
	door    *door
	dir     string
	// failure is why the last cell was ended.
	failure string
}

// door is by which programs reach the API server; it can be shut.
type door struct {
	target   string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

const doorAddress = homeIPv4 + ":6443"

func (d *door) open(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", doorAddress)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.listener, d.conns = listener, map[net.Conn]bool{}
	d.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.forward(conn)
		}
	}()
}

func (d *door) forward(conn net.Conn) {
	server, err := net.Dial("tcp", d.target)
	if err != nil {
		_ = conn.Close()
		return
	}
	d.mu.Lock()
	d.conns[conn], d.conns[server] = true, true
	d.mu.Unlock()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{conn, server}, {server, conn}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = pair[0].Close(), pair[1].Close()
		})
	}
	both.Wait()
	d.mu.Lock()
	delete(d.conns, conn)
	delete(d.conns, server)
	d.mu.Unlock()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return
	}
	_ = d.listener.Close()
	d.listener = nil
	for conn := range d.conns {
		_ = conn.Close()
	}
}

// programPath returns the path of a program that was built before.
func programPath(t testing.TB, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: make proof-routers builds the program, and says where it is", variable)
	}
	return path
}

// newWorld starts the API server, the manager and the agents.
func newWorld(t *testing.T) *world {
	t.Helper()
	apiserver.Mark(t)
	w := &world{topology: newTopology(t), dir: t.TempDir()}
	config, stop, err := apiserver.Start()
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	if w.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	address, _, err := rest.DefaultServerURL(config.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		t.Fatal(err)
	}
	w.door = &door{target: address.Host}
	w.door.open(t)
	t.Cleanup(w.door.shut)
	w.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	w.install(t)
	w.create(t, &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	for _, n := range w.nodes {
		w.addNode(t, n, config)
	}
	w.manager = &program{
		args: []string{
			programPath(t, "PURELB"), "manager", "--namespace=" + namespace, "--agent-image=none", "--webhook-port=0",
			"--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false",
		},
		env: []string{"KUBECONFIG=" + w.kubeconfig(t, config, "manager", nil)}, log: w.dir + "/manager.log",
	}
	w.run(t, w.manager)
	for _, n := range w.nodes {
		w.run(t, n.agent)
	}
	w.eventually(t, "both nodes have agents", func() bool {
		nodes, count := &corev1.NodeList{}, 0
		if w.api.List(t.Context(), nodes) == nil {
			for i := range nodes.Items {
				if nodes.Items[i].Labels[v1.LabelAgent] != "" {
					count++
				}
			}
		}
		return count == len(w.nodes)
	})
	return w
}

// run starts a program, which ends with the test.
func (w *world) run(t testing.TB, p *program) {
	t.Helper()
	p.start(t)
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
}

// addNode makes the node, and prepares its programs, each with a token that is bound to its pod.
func (w *world) addNode(t testing.TB, n *node, config *rest.Config) {
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	w.create(t, object)
	object.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.ipv4}, {Type: corev1.NodeInternalIP, Address: n.ipv6},
	}
	object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := w.api.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"passwords", "units"} {
		if err := os.Mkdir(filepath.Join(n.dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n.startUnit(t)
	where := fmt.Sprintf("/proc/%d/ns/net", n.where.PID())
	n.agent = &program{
		where: where, log: w.dir + "/" + n.name + "-agent.log",
		args: []string{
			programPath(t, "PURELB"), "agent", "--node-name=" + n.name, "--namespace=" + namespace, "--lbnodeagent=default",
			"--checkpoint=" + n.dir + "/agent.json", "--metrics-bind-address=0",
		},
		env: []string{"KUBECONFIG=" + w.kubeconfig(t, config, "agent", n)},
	}
	n.speaker = &program{
		where: where, log: w.dir + "/" + n.name + "-speaker.log",
		args: []string{
			programPath(t, "PURELB_SPEAKER"), "--node-name=" + n.name, "--namespace=" + namespace, "--state-dir=" + n.dir,
			"--password-dir=" + n.dir + "/passwords", "--systemd-unit-dir=" + n.dir + "/units", "--metrics-bind-address=0",
		},
		env: []string{"KUBECONFIG=" + w.kubeconfig(t, config, "speaker", n)},
	}
}

// kubeconfig writes how a program reaches the API server, with the rights of its service account.
func (w *world) kubeconfig(t testing.TB, admin *rest.Config, name string, of *node) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-" + name}}
	hours := int64(7 * 24 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	file := filepath.Join(w.dir, name)
	if of != nil {
		file += "-" + of.name
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account.Name + "-" + of.name},
			Spec: corev1.PodSpec{
				NodeName: of.name, ServiceAccountName: account.Name, Containers: []corev1.Container{{Name: "x", Image: "none"}},
			},
		}
		w.create(t, pod)
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		}
	}
	if err := w.api.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://" + doorAddress, CertificateAuthorityData: admin.CAData, TLSServerName: "127.0.0.1",
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// install creates the service accounts and their rights.
func (w *world) install(t testing.TB) {
	t.Helper()
	folder, err := crds.Find()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "..", "..", "rbac", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			u := &unstructured.Unstructured{}
			if err := documents.Decode(&u.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if len(u.Object) > 0 {
				w.create(t, u)
			}
		}
	}
}

func (w *world) create(t testing.TB, object client.Object) {
	t.Helper()
	if err := w.api.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

// remove deletes an object, if it is there.
func (w *world) remove(t testing.TB, object client.Object) {
	t.Helper()
	if err := client.IgnoreNotFound(w.api.Delete(context.WithoutCancel(t.Context()), object)); err != nil {
		t.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
}

// change changes an object as the API server has it.
func change[T client.Object](t testing.TB, w *world, object T, change func(T)) {
	t.Helper()
	w.eventually(t, "an object is changed", func() bool {
		if w.api.Get(t.Context(), client.ObjectKeyFromObject(object), object) != nil {
			return false
		}
		change(object)
		return w.api.Update(t.Context(), object) == nil
	})
}

// eventually waits until something is so, and ends the test if that does not happen.
func (w *world) eventually(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	if !w.becomes(isSo) {
		w.failure = "not so: " + what
		t.Fatalf("%s\n%s", w.failure, w.logs())
	}
}

// becomes waits until something is so, and reports whether that happened.
func (w *world) becomes(isSo func() bool) bool {
	for end := time.Now().Add(patience); !isSo(); time.Sleep(lookInterval) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// logs returns the ends of all programs' logs.
func (w *world) logs() string {
	files, _ := filepath.Glob(w.dir + "/*.log")
	text := ""
	for _, file := range files {
		content, _ := os.ReadFile(file)
		text += "\n" + filepath.Base(file) + ":\n" + string(content[max(0, len(content)-1500):])
	}
	return text
}

// routings returns the nodes' NodeRoutings, by node; those that exist.
func (w *world) routings(t testing.TB) map[string]*v1.NodeRouting {
	t.Helper()
	list, found := &v1.NodeRoutingList{}, map[string]*v1.NodeRouting{}
	if err := w.api.List(context.WithoutCancel(t.Context()), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		found[list.Items[i].Spec.NodeName] = &list.Items[i]
	}
	return found
}
