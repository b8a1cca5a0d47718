//go:build lab

package lab

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// These tests need a lab that is up, without workloads of its own:
//
//	go run ./cmd/lab up && go test -tags lab -count 1 .

const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: lab-test}
spec:
  replicas: 3
  selector: {matchLabels: {app: lab-test}}
  template:
    metadata: {labels: {app: lab-test}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
          labelSelector: {matchLabels: {app: lab-test}}}
      containers:
      - name: echo
        image: ` + EchoImage + `
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: lab-test}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: lab-test}
  ports: [{port: 80, targetPort: 8080}]
`

func attach(t *testing.T) *Lab {
	t.Helper()
	l, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func kubectl(t *testing.T, l *Lab, stdin string, args ...string) string {
	t.Helper()
	command := exec.Command(l.Kubectl(), append([]string{"--kubeconfig=" + l.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	text, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, text)
	}
	return string(text)
}

// must fails the test if err is one.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, l *Lab, host, url string) (string, error) {
	t.Helper()
	response, err := l.HTTPClient(host, 2*time.Second).Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func eventually(t *testing.T, what string, try func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !try(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestLiveService(t *testing.T) {
	l, ctx := attach(t), t.Context()
	kubectl(t, l, workload, "apply", "-f", "-")
	t.Cleanup(func() { kubectl(t, l, workload, "delete", "--wait", "-f", "-") })
	kubectl(t, l, "", "rollout", "status", "deployment/lab-test", "--timeout=60s")
	kubectl(t, l, "", "patch", "service", "lab-test", "--subresource=status", "--type=merge",
		"-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.77.0.100"},{"ip":"fd00:77::100"}]}}}`)

	v4, v6 := netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")
	must(
		t,
		l.ip(
			ctx, "node1", "address", "add", "10.77.0.100/24", "dev", link, "valid_lft", "300", "preferred_lft", "300",
			"noprefixroute",
		),
	)
	must(
		t,
		l.ip(
			ctx, "node1", "address", "add", "fd00:77::100/64", "dev", link, "nodad", "valid_lft", "300", "preferred_lft", "0",
		),
	)
	t.Cleanup(func() {
		for _, a := range []string{"10.77.0.100/24", "fd00:77::100/64"} {
			must(t, l.ip(context.Background(), "node1", "address", "delete", a, "dev", link))
		}
	})

	nodes := map[string]bool{}
	eventually(t, "answers from pods on all nodes, by both families, to both clients", func() bool {
		for _, host := range []string{Client, Far} {
			for _, url := range []string{"http://10.77.0.100/", "http://[fd00:77::100]/"} {
				body, err := get(t, l, host, url)
				if err != nil {
					t.Log(host, err)
					return false
				}
				_, rest, _ := strings.Cut(body, "node=")
				node, _, _ := strings.Cut(rest, " ")
				nodes[node] = true
			}
		}
		return len(nodes) == 3
	})
	pod := strings.Fields(kubectl(t, l, "", "get", "pods", "-l", "app=lab-test", "-o", "name"))[0]
	for _, name := range []string{"10.77.0.100", "lab-test:80", "lab-test.default.svc.cluster.local"} {
		if body := kubectl(t, l, "", "exec", pod, "--", "/echo", "get", "http://"+name+"/"); !strings.HasPrefix(body,
			"pod=") {
			t.Errorf("%s from a pod: %q", name, body)
		}
	}
	kubectl(t, l, "", "logs", pod)

	wantMAC, err := l.MAC(ctx, "node1")
	must(t, err)
	for _, address := range []netip.Addr{v4, v6} {
		mac, state, err := l.Neighbour(ctx, Client, address)
		must(t, err)
		if mac != wantMAC {
			t.Errorf("the client's neighbour %s is %s (%s), want %s", address, mac, state, wantMAC)
		}
		holders, err := l.Holders(ctx, address)
		must(t, err)
		if len(holders) != 1 || holders[0] != "node1" {
			t.Errorf("%s is on %v", address, holders)
		}
	}
}

func TestLiveARPing(t *testing.T) {
	l, ctx := attach(t), t.Context()
	node := l.Nodes()[1]
	for _, address := range node.addresses() {
		capture, err := l.StartCapture(ctx, node.Name, "(arp and arp[6:2] == 1) or icmp6[icmp6type] == 135")
		must(t, err)
		macs, err := l.ARPing(ctx, Client, address)
		must(t, err)
		if len(macs) != 1 || macs[0] != node.MAC {
			t.Errorf("%s: %v, want %s", address, macs, node.MAC)
		}
		eventually(t, "the request is captured", func() bool { return len(capture.Lines()) > 0 })
		lines, err := capture.Stop()
		must(t, err)
		if !strings.Contains(lines[0], address.String()) {
			t.Errorf("captured %q", lines)
		}
	}
	for _, nobody := range []string{"10.77.0.99", "fd00:77::99"} {
		macs, err := l.ARPing(ctx, Client, netip.MustParseAddr(nobody))
		if err != nil || len(macs) > 0 {
			t.Errorf("%s: %v, %v", nobody, macs, err)
		}
	}
	if _, err := l.ARPing(ctx, "nobody", netip.MustParseAddr("10.77.0.99")); err == nil {
		t.Error("a host that does not exist can ask")
	}
	if _, err := l.StartCapture(ctx, Client, "no such filter"); err == nil {
		t.Error("a wrong filter was accepted")
	}
}

func TestLiveLinks(t *testing.T) {
	l, ctx := attach(t), t.Context()
	reachable := func() bool {
		macs, err := l.ARPing(ctx, Client, l.Nodes()[2].IPv4.Addr())
		must(t, err)
		return len(macs) > 0
	}
	carrier := func() bool {
		text, err := l.Exec(ctx, "node3", "cat", "/sys/class/net/eth0/carrier")
		must(t, err)
		return strings.TrimSpace(text) == "1"
	}
	must(t, l.CutLink(ctx, "node3"))
	if carrier() || reachable() {
		t.Error("the link is cut, yet there")
	}
	must(t, l.HealLink(ctx, "node3"))
	eventually(t, "the link is back", func() bool { return carrier() && reachable() })

	must(t, l.UnplugPort(ctx, "node3"))
	if !carrier() || reachable() {
		t.Error("an unplugged port must keep carrier and pass nothing")
	}
	must(t, l.PlugPort(ctx, "node3"))
	eventually(t, "the port is back", reachable)

	router := routerTowardsFar().IPv6.Addr()
	must(t, l.CutLink(ctx, Far))
	must(t, l.HealLink(ctx, Far))
	eventually(t, "far reaches its router", func() bool {
		macs, err := l.ARPing(ctx, Far, router)
		must(t, err)
		return len(macs) == 1
	})
}

func TestLiveCutAPI(t *testing.T) {
	l, ctx := attach(t), t.Context()
	dial := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := l.Dial(ctx, "node2", "tcp", "10.96.0.1:443")
		if err == nil {
			conn.Close()
		}
		return err
	}
	must(t, dial())
	must(t, l.CutAPI(ctx, "node2"))
	err := dial()
	must(t, l.HealAPI(ctx, "node2"))
	if err == nil {
		t.Error("the API is reached although it is cut off")
	}
	must(t, dial())
}

func TestLiveControlPlane(t *testing.T) {
	l, ctx := attach(t), t.Context()
	kubectl(t, l, "", "create", "configmap", "lab-test")
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return l.Dial(ctx, Client, network, netip.AddrPortFrom(nameServers()[1], dnsPort).String())
	}}
	resolve := func() {
		t.Helper()
		found, err := resolver.LookupNetIP(ctx, "ip", "kubernetes.default.svc.cluster.local.")
		if err != nil || len(found) != 1 || found[0] != serviceCIDRs()[0].Addr().Next() {
			t.Errorf("the name server says %v, %v", found, err)
		}
	}
	resolve()
	must(t, l.StopControlPlane(ctx))
	if err := l.Check(ctx); err == nil {
		t.Error("the lab is well without its control plane")
	}
	resolve()
	must(t, l.StartControlPlane(ctx))
	kubectl(t, l, "", "delete", "configmap", "lab-test") // etcd has kept it
	eventually(t, "all is well again", func() bool { return l.Check(ctx) == nil })
}

// A node without power has no process, no link and no address but its own. It comes back.
func TestLivePower(t *testing.T) {
	l := attach(t)
	ctx, node := t.Context(), "node3"
	for _, argv := range [][]string{
		{"ip", "address", "add", "10.77.0.120/32", "dev", "eth0"},
		{"ip", "link", "add", "lab-test", "type", "bridge"},
	} {
		_, err := l.Exec(ctx, node, argv...)
		must(t, err)
	}
	must(t, l.PowerOff(ctx, node))
	defer func() {
		if err := l.PowerOn(context.WithoutCancel(ctx), node); err != nil {
			t.Error(err)
		}
	}()
	if _, err := l.NodeExec(ctx, node, "true"); err == nil {
		t.Error("the node still runs")
	}
	addresses, err := l.Addresses(ctx, node)
	must(t, err)
	for _, a := range addresses {
		if a.Link != "lo" && a.Link != "eth0" || a.Prefix.Addr() == netip.MustParseAddr("10.77.0.120") {
			t.Errorf("%s is still on %s", a.Prefix, a.Link)
		}
	}
	if err := l.Check(ctx); err == nil {
		t.Error("the lab works without the node")
	}
	must(t, l.PowerOn(ctx, node))
	_, err = l.NodeExec(ctx, node, "true")
	must(t, err)
	eventually(t, "all is well again", func() bool { return l.Check(ctx) == nil })
}

// A kubelet ends the pods of a node that shuts down, and says so, before the node is off.
func TestLiveShutDown(t *testing.T) {
	l := attach(t)
	ctx, node := t.Context(), "node3"
	kubectl(t, l, workload, "apply", "-f", "-")
	t.Cleanup(func() {
		kubectl(t, l, workload, "delete", "--wait", "-f", "-")
		eventually(t, "all is well again", func() bool { return l.Check(context.Background()) == nil })
	})
	kubectl(t, l, "", "rollout", "status", "deployment/lab-test", "--timeout=60s")
	must(t, l.ShutDown(ctx, node))
	defer func() { must(t, l.PowerOn(context.WithoutCancel(ctx), node)) }()
	pods := kubectl(t, l, "", "get", "pods", "-l", "app=lab-test", "--field-selector=spec.nodeName="+node, "-o",
		"jsonpath={.items[*].status.reason}")
	if pods != "Terminated" {
		t.Errorf("the pod that was there is %q", pods)
	}
	ready := kubectl(t, l, "", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	if !strings.Contains(ready, "node is shutting down") {
		t.Errorf("the kubelet has said %q", ready)
	}
}

// The kernel of a frozen node goes on, its processes do not.
func TestLiveFreeze(t *testing.T) {
	l := attach(t)
	ctx, node := t.Context(), l.Nodes()[2]
	defer func() { must(t, l.Thaw(context.WithoutCancel(ctx), node.Name)) }()
	isServed := func() bool { // by containerd, by the kubelet
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := l.NodeExec(ctx, node.Name, "ctr", "version")
		return err == nil
	}
	if !isServed() {
		t.Error("containerd does not answer")
	}
	must(t, l.Freeze(ctx, node.Name))
	if isServed() {
		t.Error("containerd answers, although it is frozen")
	}
	if macs, err := l.ARPing(ctx, Client, node.IPv4.Addr()); err != nil || len(macs) != 1 {
		t.Errorf("the kernel says %v, %v", macs, err)
	}
	must(t, l.Thaw(ctx, node.Name))
	eventually(t, "all is well again", func() bool { return isServed() && l.Check(ctx) == nil })
}

func TestLiveSplit(t *testing.T) {
	l, ctx := attach(t), t.Context()
	nodes := l.Nodes()
	reaches := func(from string, to Node) bool {
		macs, err := l.ARPing(ctx, from, to.IPv4.Addr())
		must(t, err)
		return len(macs) > 0
	}
	defer func() { must(t, l.JoinLink(context.WithoutCancel(ctx), nodes[1].Name, nodes[2].Name)) }()
	must(t, l.SplitLink(ctx, nodes[1].Name, nodes[2].Name))
	if reaches(Client, nodes[1]) || reaches(nodes[2].Name, nodes[0]) {
		t.Error("the two sides are not parted")
	}
	if !reaches(Client, nodes[0]) || !reaches(nodes[2].Name, nodes[1]) {
		t.Error("those of a side are parted")
	}
	must(t, l.JoinLink(ctx, nodes[1].Name, nodes[2].Name))
	eventually(
		t, "the link is whole", func() bool { return reaches(Client, nodes[1]) && reaches(nodes[2].Name, nodes[0]) },
	)
}

func TestLiveWatchAddresses(t *testing.T) {
	l, ctx := attach(t), t.Context()
	watch, err := l.WatchAddresses(ctx, Client)
	must(t, err)
	prefix := netip.MustParsePrefix("10.77.0.121/32")
	// The watch may begin a moment later.
	eventually(t, "an address comes and goes", func() bool {
		must(t, l.ip(ctx, Client, "address", "add", prefix.String(), "dev", link))
		must(t, l.ip(ctx, Client, "address", "delete", prefix.String(), "dev", link))
		watch.mu.Lock()
		defer watch.mu.Unlock()
		return len(watch.changes) >= 2
	})
	changes := watch.Stop()
	last := changes[len(changes)-1]
	if last != (AddressChange{Link: link, Prefix: prefix, IsDeleted: true}) {
		t.Errorf("%+v", last)
	}
}

func TestLiveForge(t *testing.T) {
	l, ctx := attach(t), t.Context()
	victim := l.Nodes()[2]
	for _, address := range []netip.Addr{netip.MustParseAddr("10.77.0.122"), netip.MustParseAddr("fd00:77::122")} {
		forger, err := l.Forge(ctx, Client, victim.MAC, address)
		must(t, err)
		macs, err := l.ARPing(ctx, Router, address)
		if err != nil || len(macs) != 1 || macs[0] != victim.MAC {
			t.Errorf("%s is at %v, %v", address, macs, err)
		}
		must(t, forger.Stop())
		if macs, err := l.ARPing(ctx, Router, address); err != nil || len(macs) > 0 {
			t.Errorf("%s is still at %v, %v", address, macs, err)
		}
	}
}

func TestLiveNodeExec(t *testing.T) {
	l, ctx := attach(t), t.Context()
	for _, node := range l.Nodes() {
		text, err := l.NodeExec(ctx, node.Name, "ctr", "images", "list", "-q")
		must(t, err)
		if !strings.Contains(text, EchoImage) {
			t.Errorf("%s has %q", node.Name, text)
		}
	}
	for _, address := range []string{"10.80.0.0/24", "fd00:80::/64"} {
		prefix := netip.MustParsePrefix(address)
		i := 0
		if prefix.Addr().Is6() {
			i = 1
		}
		must(t, l.AddRoute(ctx, Router, prefix, l.Nodes()[0].addresses()[i], l.Nodes()[1].addresses()[i]))
		must(t, l.DeleteRoute(ctx, Router, prefix))
	}
}
