//go:build proof

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	nodeagents "github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/test/seeds"
)

// The worst that may be done to the agent of a node.
const (
	nodeAddresses    = 10_000 // of Services, of which the node holds each one: a half is Local, a half Virtual
	addressesPerList = 100    // in an Announcement, and in a CommonAnnouncement
	nodeRoutes       = 100_000
	nodeLinkPairs    = 250 // of pods, or of a broken program
	addressesPerLink = 20  // on each of these links
	// of stations on the link: the kernel drops what exceeds 20,000 of each family
	claimsPerSecond = 40_000
	claimsFor       = time.Minute // is how long these stations go on
	metricsReaders  = 3           // of those who may read metrics
	// is followed by stalledBytes, which the server takes for a header
	stalledHeader = "GET / HTTP/1.1\r\nHost: a\r\nA: "
	stalledBytes  = 15 << 10
)

const (
	// trialsVariable is the environment variable that says how many trials to make of what may be done to
	// an agent and to a speaker; by default it is one.
	trialsVariable = "TRIALS"
	// insideVariable is the environment variable that is set in the test binary that makes a trial.
	insideVariable = "PURELB_MEMORY_TRIAL"
)

// TestProofMemoryAgent gives an agent as much to do as a node, its Services, the stations on its link and
// the clients of its servers can, and kills it meanwhile: it needs less than the memory of its container
// all the time, and goes on to announce.
func TestProofMemoryAgent(t *testing.T) { makeTrials(t, tryAgent) }

// makeTrials makes each trial in a network namespace of its own, with a seed of its own.
func makeTrials(t *testing.T, try func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	first := seeds.First(t)
	if os.Getenv(insideVariable) != "" {
		ctrl.SetLogger(logr.Discard())
		ip(t, "link set lo up")
		try(t, rand.New(rand.NewPCG(first, 0)))
		return
	}
	trials, err := strconv.Atoi(os.Getenv(trialsVariable))
	if err != nil {
		trials = 1
	}
	for seed := first; seed < first+uint64(trials); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			name, _, _ := strings.Cut(t.Name(), "/")
			command := exec.Command("/proc/self/exe", "-test.run=^"+name+"$", "-test.v", "-test.timeout=30m")
			command.Env = append(os.Environ(), insideVariable+"=1", fmt.Sprintf("PURELB_TEST_SEED=%d", seed))
			command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
			command.Stdout, command.Stderr = os.Stdout, os.Stderr
			runtime.LockOSThread() // the kernel kills the process when the thread ends that has started it
			defer runtime.UnlockOSThread()
			if err := command.Run(); err != nil {
				t.Errorf("in a network namespace of its own, which needs root: %v", err)
			}
		})
	}
}

// trialStep is something that is done to a program, which then needs less than the memory of its container.
type trialStep[T any] struct {
	name string
	do   func(t *testing.T, trial T, name string)
}

// agentTrial is an agent of which a node, its Services, stations and clients want more and more.
type agentTrial struct {
	*nodeProgram
	cluster *cluster
	random  *rand.Rand
	// held are the Local addresses that the node gets at once, and further those that it gets one by one.
	held, further []netip.Addr
	// desired is how many addresses the node is to announce, and lists how many objects say so.
	desired, lists int
	// stopReaders and stopClaims end what they are named after, and return how often it was done. stopStalls
	// ends the clients that stall.
	stopReaders, stopClaims func() int
	stopStalls              []func()
}

var agentSteps = []trialStep[*agentTrial]{
	{"one address", func(t *testing.T, a *agentTrial, name string) { a.announce(t, name, a.next()) }},
	{
		fmt.Sprintf("%d routes, %d further links with %d addresses each", nodeRoutes, 2*nodeLinkPairs, addressesPerLink),
		func(t *testing.T, a *agentTrial, name string) {
			crowdNode(t, a.random)
			a.announce(t, name, a.next())
		},
	},
	{
		fmt.Sprintf("%d addresses, each of a Service with names as long as may be", nodeAddresses),
		func(t *testing.T, a *agentTrial, name string) {
			a.share(t, virtualAddresses(nodeAddresses/2))
			a.announce(t, name, a.held...)
		},
	},
	{
		fmt.Sprintf("%d clients that stall at each server, and %d that read metrics", slowClients, metricsReaders),
		func(t *testing.T, a *agentTrial, name string) {
			a.stopReaders = a.readMetrics(t, a.cluster, "127.0.0.1:7472")
			a.stopStalls = []func(){
				stall(t.Context(), "127.0.0.1:7472", true, stalledRequest()),
				stall(t.Context(), "127.0.0.1:7473", false, stalledRequest()),
			}
			a.announce(t, name, a.next())
		},
	},
	{"stations that claim its addresses", func(t *testing.T, a *agentTrial, name string) {
		a.stopClaims = claimAll(t, a.random, a.held)
		a.announce(t, name, a.next())
		time.Sleep(claimsFor)
	}},
	{"killed, with all of that", func(t *testing.T, a *agentTrial, name string) {
		a.kill(t)
		a.start(t)
		a.announce(t, name, a.next())
	}},
	{"in the end", func(t *testing.T, a *agentTrial, name string) {
		t.Logf("%d claims were sent in all", a.stopClaims())
		for _, stop := range a.stopStalls {
			stop()
		}
		if read := a.stopReaders(); read == 0 {
			t.Error("nobody has read the metrics")
		}
		a.announce(t, name, a.next())
	}},
}

func tryAgent(t *testing.T, random *rand.Rand) {
	c, settings, folder := startNode(t)
	node := nodeName(0)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1.LeasePrefix + node}}
	first := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node}, Spec: v1.AnnouncementSpec{
		NodeName: node, LBNodeAgent: lbNodeAgent, HeartbeatSeconds: 1, IncludeCommonAnnouncements: true,
	}}
	create(t, c, lease, first)
	local := localAddresses(nodeAddresses/2 + 100)
	a := &agentTrial{
		nodeProgram: newNodeProgram(
			t, c, agentAccount, programPath(t), folder,
			nodeagents.DaemonSet(settings, nodeagents.Defaults{}, "").Spec.Template.Spec.Containers[0],
		),
		cluster: c, random: random, held: local[:nodeAddresses/2], further: local[nodeAddresses/2:],
	}
	a.start(t)
	for _, s := range agentSteps {
		s.do(t, a, s.name)
		a.check(t, s.name)
	}
}

// next returns a further Local address.
func (a *agentTrial) next() netip.Addr {
	addr := a.further[0]
	a.further = a.further[1:]
	return addr
}

// announce gives the node further Local addresses, and waits until it announces all that it was given.
func (a *agentTrial) announce(t *testing.T, when string, addresses ...netip.Addr) {
	t.Helper()
	for some := range slices.Chunk(addresses, addressesPerList) {
		a.lists++
		create(t, a.cluster, &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%04d", nodeName(0), a.lists)},
			Spec: v1.AnnouncementSpec{
				NodeName: nodeName(0), LBNodeAgent: lbNodeAgent, HeartbeatSeconds: 1,
				Addresses: entries(some, v1.AnnounceLocal, interfaceName, int64(a.lists)),
			},
		})
	}
	a.desired += len(addresses)
	wait(t, fmt.Sprintf("the agent announces %d addresses: %s", a.desired, when), func() (bool, error) {
		time.Sleep(time.Second / 2) // the list is long
		all, announced := &v1.AnnouncementList{}, 0
		err := a.cluster.admin.List(t.Context(), all)
		for i := range all.Items {
			announced += int(all.Items[i].Status.Announced)
		}
		return announced == a.desired, err
	})
}

// share gives Virtual addresses to all nodes.
func (a *agentTrial) share(t *testing.T, addresses []netip.Addr) {
	t.Helper()
	for some := range slices.Chunk(addresses, addressesPerList) {
		a.lists++
		create(t, a.cluster, &v1.CommonAnnouncement{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%04d", lbNodeAgent, a.lists)},
			Spec: v1.CommonAnnouncementSpec{
				LBNodeAgent: lbNodeAgent, Revision: int64(a.lists),
				Addresses: entries(some, v1.AnnounceVirtual, "kube-lb0", int64(a.lists)),
			},
		})
		a.desired += len(some)
	}
}

// startNode starts an API server that knows a node, which this network namespace is. It returns the
// LBNodeAgent as the API server has completed it, and a folder.
func startNode(t *testing.T) (*cluster, *v1.LBNodeAgent, string) {
	t.Helper()
	// The far end of the link is a port of a switch: no kernel answers there.
	ip(t, "link add %s type veth peer name far", interfaceName)
	ip(t, "link set far arp off")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/far/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	ip(t, "link set far up")
	ip(t, "link set %s up", interfaceName)
	ip(t, "addr add 10.80.0.1/16 dev %s", interfaceName)
	ip(t, "addr add 2001:db8::1/64 dev %s nodad", interfaceName)
	ip(t, "route add default via 10.80.0.254")
	// The API server advertises an address by which there is a default route.
	c, err := startCluster(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
	settings := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lbNodeAgent}}
	create(t, c, settings, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(0)}})
	return c, settings, t.TempDir()
}

// localAddresses returns addresses of the node's subnets, of both families.
func localAddresses(count int) []netip.Addr {
	addresses := make([]netip.Addr, 0, count)
	for i := range count / 2 {
		addresses = append(addresses,
			netip.AddrFrom4([4]byte{10, 80, byte(100 + i/250), byte(1 + i%250)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i+1)))
	}
	return addresses
}

// virtualAddresses returns addresses of other subnets, of both families.
func virtualAddresses(count int) []netip.Addr {
	addresses := make([]netip.Addr, 0, count)
	for i := range count / 2 {
		addresses = append(addresses,
			netip.AddrFrom4([4]byte{10, 200, byte(i / 250), byte(1 + i%250)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8:200::%x", i+1)))
	}
	return addresses
}

// entries returns the entries of an Announcement with these addresses, one Service each.
func entries(addresses []netip.Addr, kind v1.AnnounceType, iface string, epoch int64) []v1.AnnouncedAddress {
	var all []v1.AnnouncedAddress
	for i, addr := range addresses {
		service := fmt.Sprintf("%s/%s%06d%06d", strings.Repeat("n", 63), strings.Repeat("s", 51), epoch, i)
		all = append(all, v1.AnnouncedAddress{
			Address: addr.String(), PrefixLength: int32(addr.BitLen()), Interface: v1.InterfaceName(iface), Type: kind,
			ServiceGroup: "default", Services: []string{service}, ClaimPolicy: v1.ClaimProbe, Epoch: epoch,
		})
	}
	return all
}

// crowdNode gives the node routes, links and addresses of other programs.
func crowdNode(t *testing.T, random *rand.Rand) {
	t.Helper()
	var links, routes4, routes6, addresses strings.Builder
	for i := range nodeLinkPairs {
		fmt.Fprintf(&links, "link add pod%d type veth peer name end%d\nlink set pod%d up\nlink set end%d up\n", i, i, i, i)
		for j, name := range []string{"pod", "end"} {
			for k := range addressesPerLink {
				fmt.Fprintf(&addresses, "addr add 10.%d.%d.%d/32 dev %s%d\n", 100+2*k+j, i/250, 1+i%250, name, i)
			}
		}
	}
	seen := map[uint32]bool{}
	for i := 0; i < nodeRoutes/2; i++ {
		network := random.Uint32N(1 << 22)
		if seen[network] {
			i--
			continue
		}
		seen[network] = true
		fmt.Fprintf(
			&routes4, "route add %d.%d.%d.0/24 via 10.80.0.254 proto 12\n", 20+network>>16, network>>8&0xff, network&0xff,
		)
		fmt.Fprintf(
			&routes6, "route add 2001:%x:%x::/48 dev %s proto 12\n", 0x1000+network>>16, network&0xffff, interfaceName,
		)
	}
	ipBatch(t, "-4", links.String())
	ipBatch(t, "-4", addresses.String())
	ipBatch(t, "-4", routes4.String())
	ipBatch(t, "-6", routes6.String())
}

// claimAll has stations that do not exist claim the addresses and others of the same subnets, until
// stop is called, which returns how many claims were sent.
func claimAll(t *testing.T, random *rand.Rand, addresses []netip.Addr) (stop func() int) {
	t.Helper()
	far, err := net.InterfaceByName("far")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan int)
	go func() {
		defer syscall.Close(socket)
		const burst = claimsPerSecond / 100
		count := 0
		for tick := time.NewTicker(time.Second / 100); ctx.Err() == nil; <-tick.C {
			for range burst {
				addr := addresses[random.IntN(len(addresses))]
				if random.IntN(4) == 0 {
					addr = netip.AddrFrom4([4]byte{10, 80, 200 + byte(random.IntN(50)), byte(random.Uint32())})
				}
				mac := neigh.MAC{2, 1, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}
				build := neigh.GratuitousARP
				if addr.Is6() {
					build = neigh.UnsolicitedNA
				}
				frame, err := build(mac, addr)
				if err == nil && syscall.Sendto(socket, frame, 0, &syscall.SockaddrLinklayer{Ifindex: far.Index}) == nil {
					count++
				}
			}
		}
		sent <- count
	}()
	return func() int { cancel(); return <-sent }
}

// stalledRequest returns the beginning of a request whose headers are nearly as long as the servers of
// package httpserver take.
func stalledRequest() []byte { return []byte(stalledHeader + strings.Repeat("a", stalledBytes)) }

// nodeProgram is the agent or the speaker of the node as a process of its own, which has as much heap
// as in its container.
type nodeProgram struct {
	name      string // of its container
	path      string
	args, env []string
	logFile   string
	limitMiB  float64
	command   *exec.Cmd
	ended     chan struct{} // closed when the process has ended
}

// newNodeProgram prepares the program of a container, with the container's arguments and memory.
func newNodeProgram(t *testing.T, c *cluster, account, path, folder string, container corev1.Container) *nodeProgram {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: container.Name + "-" + nodeName(0)},
		Spec: corev1.PodSpec{
			NodeName: nodeName(0), ServiceAccountName: account, Containers: []corev1.Container{
				{Name: container.Name, Image: "none"},
			},
		}}
	create(t, c, pod)
	token, err := c.createToken(t.Context(), account, pod)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := c.writeKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	limit, heapLimit := memoryOf(t, container)
	p := &nodeProgram{
		name: container.Name, path: path, logFile: filepath.Join(folder, "log"), limitMiB: limit,
		env: append(os.Environ(), "KUBECONFIG="+kubeconfig, heapLimit),
	}
	inFolder := strings.NewReplacer("$(NODE_NAME)", nodeName(0), "/var/lib/purelb", folder)
	for _, arg := range container.Args {
		p.args = append(p.args, inFolder.Replace(arg))
	}
	t.Cleanup(func() {
		if p.command != nil {
			p.kill(t)
		}
		if t.Failed() {
			log := logOf(t, p.logFile)
			t.Logf("the log of the %s ends:\n%s", p.name, log[max(0, len(log)-4000):])
		}
	})
	return p
}

func (p *nodeProgram) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.command, p.ended = exec.Command(p.path, p.args...), make(chan struct{})
	p.command.Env, p.command.Stdout, p.command.Stderr = p.env, log, log
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func(command *exec.Cmd, ended chan struct{}) {
		_ = command.Wait() // how it ended does not matter
		close(ended)
	}(p.command, p.ended)
}

// kill kills the program, as the kernel does for want of memory.
func (p *nodeProgram) kill(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		t.Errorf("the %s has ended by itself", p.name)
	default:
	}
	_ = p.command.Process.Kill()
	<-p.ended
	p.command = nil
}

// check logs how much memory the program has needed so far, and fails if that is more than its
// container has, or if the program has ended.
func (p *nodeProgram) check(t *testing.T, when string) {
	t.Helper()
	select {
	case <-p.ended:
		t.Fatalf("%s: the %s has ended by itself", when, p.name)
	default:
		checkPeak(t, "the "+p.name, p.command.Process.Pid, p.limitMiB, when)
	}
}

// readMetrics has clients that may do so read the program's metrics all the time, until stop is called,
// which returns how often they did.
func (p *nodeProgram) readMetrics(t *testing.T, c *cluster, address string) (stop func() int) {
	t.Helper()
	const reader = "metrics-reader"
	create(t, c,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: reader}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: reader},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "purelb-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: reader}},
		})
	token, err := c.createToken(t.Context(), reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test
	var readers sync.WaitGroup
	counts := make([]int, metricsReaders)
	for i := range counts {
		readers.Go(func() {
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
				if err != nil {
					return
				}
				request.Header.Set("Authorization", "Bearer "+token)
				response, err := (&http.Client{Transport: transport}).Do(request)
				if err != nil {
					continue // clients that stall have taken the connection
				}
				_, err = io.Copy(io.Discard, response.Body)
				if response.Body.Close() == nil && err == nil && response.StatusCode == http.StatusOK {
					counts[i]++
				}
			}
		})
	}
	return func() (sum int) {
		cancel()
		readers.Wait()
		for _, count := range counts {
			sum += count
		}
		return sum
	}
}

// create creates objects.
func create(t *testing.T, c *cluster, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := c.admin.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// wait waits until something is so.
func wait(t *testing.T, what string, isSo func() (bool, error)) {
	t.Helper()
	if err := waitUntil(t.Context(), what, isSo); err != nil {
		t.Fatal(err)
	}
}

// ip runs ip with arguments that are separated by spaces.
func ip(t *testing.T, format string, args ...any) {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// ipBatch runs the commands of lines by ip, for one family.
func ipBatch(t *testing.T, family, lines string) {
	t.Helper()
	command := exec.Command("ip", family, "-batch", "-")
	command.Stdin = strings.NewReader(lines)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("ip %s -batch: %v\n%.2000s", family, err, out)
	}
}
