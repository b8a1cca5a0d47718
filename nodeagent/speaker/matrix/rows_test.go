//go:build routers

package matrix

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/proof/trial"
)

// What tests do in place of others takes so long.
const (
	podStart     = time.Second      // until the kubelet has started the next pod
	endpointEnd  = 5 * time.Second  // until a pod ends that Kubernetes has told to
	away         = 20 * time.Second // of the manager and of the API server
	notReadyTime = 10 * time.Second
	bfdLost      = 3 * time.Second
	deadTime     = time.Minute // of an agent at the most, while endpoints leave
	bootTime     = 2 * time.Second
	manyCount    = 1000
	settleTime   = 15 * time.Second // until what a speaker did last is over
	restTime     = 45 * time.Second // for which a speaker's cost at rest is measured
	lookAtNodes  = 100 * time.Millisecond
)

// Names of figures that only some rows have.
const (
	deadFigure       = "route to a node that does not answer stays, ms"
	manyFigure       = "all routes at the peer after, ms"
	announcedFigure  = "all routes at the peer after the nodes have the addresses, ms"
	refedFigure      = "all routes back after the peer's restart, ms"
	restTimeFigure   = "speaker at rest, ms of a processor per min"
	restMemoryFigure = "speaker at rest, MiB resident"
	flapsFigure      = "flaps"
)

// attempt is one trial: a row's function makes something happen, and returns when it has been undone.
type attempt struct {
	*cell
	t       testing.TB
	figures map[string]float64
	// node is the one that something happens to, and watch looks at the router.
	node  *node
	watch *routeWatch
	// number is that of the trial in its cell.
	number int
}

// functions are what happens in each row that has values here.
var functions = map[string]func(*attempt){
	"speakers updated":                         (*attempt).updateSpeakers,
	"speaker killed":                           (*attempt).killSpeaker,
	"agent killed":                             (*attempt).killAgent,
	"agent dead, endpoints leave":              (*attempt).loseEndpoints,
	"node without power, and back":             (*attempt).cutPower,
	"node rebooted in order":                   (*attempt).reboot,
	"node excluded, and back":                  (*attempt).exclude,
	"node NotReady for 10 s":                   (*attempt).becomeNotReady,
	"link cut, and back":                       (*attempt).cutLink,
	"router restarted":                         (*attempt).restartRouter,
	"session reset by the router":              (*attempt).resetSessions,
	"too many routes for the router":           (*attempt).exceedLimit,
	"password rotated":                         (*attempt).rotatePassword,
	"BFD lost for 3 s":                         (*attempt).loseBFD,
	"manager away for 20 s, speaker killed":    (*attempt).loseManager,
	"API server away for 20 s, speaker killed": (*attempt).loseAPI,
	"BGPPeer edited":                           (*attempt).editPeer,
	"BGPPeer renamed":                          (*attempt).renamePeer,
	"BGPPeer deleted, and created":             (*attempt).deletePeer,
	"ServiceGroup's communities edited":        (*attempt).editGroup,
	"aggregation changed":                      (*attempt).aggregate,
	"1,000 addresses":                          (*attempt).addMany,
	rangeRow:                                   (*attempt).waitLong,
}

// TestFunctions has a function for each row that has values here, and for no other.
func TestFunctions(t *testing.T) {
	for _, r := range Rows {
		if _, exists := functions[r.Name]; exists != (r.Elsewhere == "") {
			t.Errorf("%s: there is a function: %t", r.Name, exists)
		}
	}
	for name := range functions {
		if !slices.ContainsFunc(Rows, func(r Row) bool { return r.Name == name }) {
			t.Errorf("there is no row %s", name)
		}
	}
}

// isBackSince waits until sessions of nodes are up since a time, with all routes.
func (a *attempt) isBackSince(since time.Time, nodes ...*node) {
	a.t.Helper()
	a.agrees(a.t, since, a.networks(), nodes...)
}

// restartSpeaker ends the node's speaker by a signal, and starts the next one.
func (a *attempt) restartSpeaker(n *node, signal syscall.Signal) {
	a.t.Helper()
	n.speaker.end(signal)
	time.Sleep(podStart)
	n.speaker.start(a.t)
}

func (a *attempt) updateSpeakers() {
	for _, n := range a.nodes {
		since := time.Now()
		a.restartSpeaker(n, syscall.SIGTERM)
		a.isBackSince(since, n)
	}
}

func (a *attempt) killSpeaker() {
	since := time.Now()
	a.restartSpeaker(a.node, syscall.SIGKILL)
	a.isBackSince(since, a.node)
}

func (a *attempt) killAgent() {
	a.node.agent.end(syscall.SIGKILL)
	time.Sleep(podStart)
	a.node.agent.start(a.t)
	a.isFollowed()
}

// isFollowed waits until agents and speakers have done what was asked of them before: the routes to the addresses of a
// new Service are at the peer, and gone when that is deleted.
func (a *attempt) isFollowed() {
	a.t.Helper()
	a.addService(a.t, serviceCount)
	a.isBackSince(time.Time{}, a.nodes...)
	a.removeService(serviceCount)
	a.isBackSince(time.Time{}, a.nodes...)
}

func (a *attempt) removeService(number int) {
	a.t.Helper()
	a.remove(a.t, a.newService(fmt.Sprintf("service%d", number), a.group.Name))
	a.services--
}

// noteStay waits until the router has no route to the node, and notes how long that took; at most for a limit.
func (a *attempt) noteStay(since time.Time, limit time.Duration) {
	a.t.Helper()
	for end := since.Add(limit); time.Now().Before(end); time.Sleep(lookInterval) {
		if at, isGone := a.watch.goneSince(a.node); isGone {
			a.figures[deadFigure] = trial.Milliseconds(max(0, at.Sub(since)))
			return
		}
	}
	a.figures[deadFigure] = trial.Milliseconds(limit)
}

// isGone reports whether the router has no route to the node.
func (a *attempt) isGone() bool {
	_, isGone := a.watch.goneSince(a.node)
	return isGone
}

// loseEndpoints lets the node's agent die, and then the endpoint there end, after its time to end.
func (a *attempt) loseEndpoints() {
	a.node.agent.end(syscall.SIGKILL)
	rest := slices.DeleteFunc(slices.Clone(a.nodes), func(n *node) bool { return n == a.node })
	for i := range a.services {
		a.setEndpoints(a.t, a.newService(fmt.Sprintf("service%d", i), ""), rest...)
	}
	since := time.Now().Add(endpointEnd)
	ended := make(chan struct{})
	time.AfterFunc(endpointEnd, func() {
		a.node.refuses.Store(true)
		close(ended)
	})
	a.noteStay(since, deadTime)
	time.Sleep(time.Until(since))
	a.node.agent.start(a.t)
	a.eventually(a.t, "the routes follow the endpoints", a.isGone)
	<-ended // on a busy machine the routes may be seen to be gone first
	a.node.refuses.Store(false)
	for i := range a.services {
		a.setEndpoints(a.t, a.newService(fmt.Sprintf("service%d", i), ""), a.nodes...)
	}
}

// stayLimit is for how long a route may stay that nothing leads to: longer than any timer.
const stayLimit = 2 * time.Minute

func (a *attempt) cutPower() {
	since := time.Now()
	a.setPort(a.t, a.node, "down")
	a.node.speaker.end(syscall.SIGKILL)
	a.node.agent.end(syscall.SIGKILL)
	a.noteStay(since, stayLimit)
	a.boot()
}

// boot starts the node's programs after its boot.
func (a *attempt) boot() {
	a.t.Helper()
	time.Sleep(bootTime)
	a.node.bootAnew(a.t)
	since := time.Now()
	a.setPort(a.t, a.node, "up")
	a.node.agent.start(a.t)
	a.node.speaker.start(a.t)
	a.isBackSince(since, a.node)
}

// reboot does what systemd does: it stops pods and the service of logins at once, and then the network.
func (a *attempt) reboot() {
	since := time.Now()
	nstest.Run(a.t, "rm %s", a.node.unit())
	a.node.speaker.end(syscall.SIGTERM)
	a.node.agent.end(syscall.SIGTERM)
	a.setPort(a.t, a.node, "down")
	a.noteStay(since, stayLimit)
	a.boot()
}

func (a *attempt) exclude() {
	a.label(a.t, a.node, true)
	a.eventually(a.t, "the node's routes go", a.isGone)
	a.eventually(a.t, "the node is drained", func() bool { return a.routings(a.t)[a.node.name].Status.Drained })
	a.label(a.t, a.node, false)
}

func (a *attempt) becomeNotReady() {
	set := func(status corev1.ConditionStatus) {
		a.t.Helper()
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node.name}}
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
		err := a.api.Status().Patch(a.t.Context(), object, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
		if err != nil {
			a.t.Fatal(err)
		}
	}
	set(corev1.ConditionUnknown)
	time.Sleep(notReadyTime)
	set(corev1.ConditionTrue)
	a.isFollowed()
}

func (a *attempt) cutLink() {
	since := time.Now()
	a.setPort(a.t, a.node, "down")
	a.noteStay(since, stayLimit)
	// The node's side of the session has ended, too.
	time.Sleep(time.Until(since.Add(10 * time.Second)))
	back := time.Now()
	a.setPort(a.t, a.node, "up")
	a.isBackSince(back, a.node)
}

func (a *attempt) restartRouter() {
	since := time.Now()
	a.routers.restart(a.t)
	a.isBackSince(since, a.nodes...)
}

func (a *attempt) resetSessions() {
	since := time.Now()
	a.routers.reset(a.t)
	a.isBackSince(since, a.nodes...)
}

// exceedLimit has the router take fewer routes than there are, until there are fewer, and the operator resets the
// sessions.
func (a *attempt) exceedLimit() {
	a.routers.settings.limit = serviceCount + 2
	a.routers.configure(a.t)
	for i := range serviceCount {
		a.addService(a.t, serviceCount+i)
	}
	a.eventually(a.t, "the router ends the sessions", func() bool {
		sessions := a.routers.sessions()
		return !slices.ContainsFunc(a.nodes, func(n *node) bool { return sessions[a.column.sessionAddress(n)].IsUp() })
	})
	for i := range serviceCount {
		a.removeService(serviceCount + i)
	}
	a.eventually(a.t, "the nodes have fewer routes", func() bool {
		for _, r := range a.routings(a.t) {
			if int(r.Status.Networks) != a.networks() {
				return false
			}
		}
		return true
	})
	a.routers.settings.limit = 0
	a.routers.configure(a.t)
	since := time.Now()
	a.routers.reset(a.t)
	a.isBackSince(since, a.nodes...)
}

// rotatePassword changes the password at the router, in the Secret, and at last on the nodes, on each at its own time.
func (a *attempt) rotatePassword() {
	next := map[string]string{"first": "second", "second": "first"}[a.routers.settings.password]
	since := time.Now()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "router"}}
	change(a.t, a.world, secret, func(s *corev1.Secret) { s.Data["password"] = []byte(next) })
	a.routers.settings.password = next
	a.routers.configure(a.t)
	for _, n := range a.nodes {
		a.mountPasswords(a.t, n, next)
		time.Sleep(2 * time.Second)
	}
	a.isBackSince(since, a.nodes...)
}

func (a *attempt) loseBFD() {
	where := a.router
	if a.column.Kind == Reflected {
		where = a.reflector
	}
	where.Run(a.t, "nft add table inet lost")
	where.Run(a.t, "nft add chain inet lost in { type filter hook input priority 0 ; }")
	where.Run(a.t, "nft add rule inet lost in udp dport 3784 drop")
	since := time.Now()
	time.Sleep(bfdLost)
	where.Run(a.t, "nft delete table inet lost")
	a.isBackSince(since, a.nodes...)
}

func (a *attempt) loseManager() {
	a.manager.end(syscall.SIGKILL)
	since := time.Now()
	a.restartSpeaker(a.node, syscall.SIGKILL)
	a.isBackSince(since, a.node)
	time.Sleep(time.Until(since.Add(away)))
	a.manager.start(a.t)
	a.isFollowed()
}

func (a *attempt) loseAPI() {
	a.door.shut()
	since := time.Now()
	a.restartSpeaker(a.node, syscall.SIGKILL)
	time.Sleep(time.Until(since.Add(away)))
	a.door.open(a.t)
	a.isBackSince(since, a.node)
	a.isFollowed()
}

// editPeer changes what a session is opened with.
func (a *attempt) editPeer() {
	since := time.Now()
	hold := 12 * time.Second
	change(a.t, a.world, a.peer, func(p *v1.BGPPeer) {
		if p.Spec.HoldTime != nil && p.Spec.HoldTime.Duration == hold {
			hold = 9 * time.Second
		}
		p.Spec.HoldTime = &metav1.Duration{Duration: hold}
	})
	a.isBackSince(since, a.nodes...)
}

// renamePeer has another BGPPeer for the same neighbour, and deletes the first.
func (a *attempt) renamePeer() {
	before := a.peer
	a.peer = a.newPeer(fmt.Sprintf("router%d", a.number+1))
	a.create(a.t, a.peer)
	a.remove(a.t, before)
	a.eventually(a.t, "the sessions have the name", func() bool {
		for _, r := range a.routings(a.t) {
			if len(r.Status.Sessions) != 1 || r.Status.Sessions[0].Peer != a.peer.Name {
				return false
			}
		}
		return true
	})
}

// deletePeer deletes the BGPPeer, upon which Kubernetes ends the speakers, and creates it again.
func (a *attempt) deletePeer() {
	a.remove(a.t, a.peer)
	a.eventually(a.t, "the NodeRoutings go", func() bool { return len(a.routings(a.t)) == 0 })
	for _, n := range a.nodes {
		n.speaker.end(syscall.SIGTERM)
	}
	a.eventually(a.t, "the routes go", func() bool {
		return !slices.ContainsFunc(a.nodes, func(n *node) bool { _, isGone := a.watch.goneSince(n); return !isGone })
	})
	since := time.Now()
	a.peer = a.newPeer("router")
	a.create(a.t, a.peer)
	a.eventually(a.t, "both nodes have a NodeRouting", func() bool { return len(a.routings(a.t)) == len(a.nodes) })
	for _, n := range a.nodes {
		n.speaker.start(a.t)
	}
	a.isBackSince(since, a.nodes...)
}

// editGroup changes the communities of all routes.
func (a *attempt) editGroup() {
	community := v1.Community(fmt.Sprintf("65001:%d", a.number+1))
	change(a.t, a.world, a.group, func(g *v1.ServiceGroup) {
		g.Spec.BGP = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: v1.ServiceGroupBGP{Communities: []v1.Community{community}}}
	})
	a.eventually(a.t, "the nodes advertise the communities", func() bool {
		for _, r := range a.routings(a.t) {
			if len(r.Spec.Groups) != 1 || !slices.Contains(r.Spec.Groups[0].Communities, community) ||
				r.Status.ObservedGeneration != r.Generation {
				return false
			}
		}
		return true
	})
}

// aggregate makes one route of all, and then a route for each address again.
func (a *attempt) aggregate() {
	set := func(ipv4, ipv6 v1.Aggregation) {
		a.t.Helper()
		change(a.t, a.world, a.group, func(g *v1.ServiceGroup) {
			g.Spec.Remote.V4Pools[0].Aggregation, g.Spec.Remote.V6Pools[0].Aggregation = ipv4, ipv6
		})
	}
	set("/24", "/64")
	a.agrees(a.t, time.Time{}, len(a.ipFamilies()), a.nodes...)
	set("/32", "/128")
	a.isBackSince(time.Time{}, a.nodes...)
}

// addMany adds Services with so many addresses, restarts the peer, and deletes them.
func (a *attempt) addMany() {
	many := newGroup("many", "198.18.0", "2001:db8:2:")
	many.Spec.Remote.V4Pools[0].Subnet, many.Spec.Remote.V4Pools[0].Pool = "198.18.0.0/20", "198.18.0.1-198.18.15.254"
	a.create(a.t, many)
	count, before := manyCount/len(a.ipFamilies()), a.services
	names := make(chan string)
	var workers sync.WaitGroup
	each := func(do func(*corev1.Service) error) {
		a.t.Helper()
		for range 16 {
			workers.Go(func() {
				for name := range names {
					if err := do(a.newService(name, many.Name)); err != nil {
						a.t.Error(err)
					}
				}
			})
		}
		for i := range count {
			names <- fmt.Sprintf("many%d", i)
		}
		close(names)
		workers.Wait()
		names = make(chan string)
	}
	since := time.Now()
	each(func(s *corev1.Service) error { return a.api.Create(a.t.Context(), s) })
	a.services += count
	announced := a.announcedAt(a.services * len(a.ipFamilies()))
	a.isBackSince(time.Time{}, a.nodes...)
	a.figures[manyFigure] = trial.Milliseconds(time.Since(since))
	a.figures[announcedFigure] = trial.Milliseconds(time.Since(announced))
	since = time.Now()
	a.routers.restart(a.t)
	a.isBackSince(since, a.nodes...)
	a.figures[refedFigure] = trial.Milliseconds(time.Since(since))
	a.rest()
	each(func(s *corev1.Service) error { return a.api.Delete(a.t.Context(), s) })
	a.services = before
	a.isBackSince(time.Time{}, a.nodes...)
	a.remove(a.t, many)
}

// announcedAt waits until each node has so many addresses on its virtual interface, and returns when the nodes were
// looked at, at most each lookAtNodes, and had them.
func (a *attempt) announcedAt(count int) time.Time {
	a.t.Helper()
	ticker := time.NewTicker(lookAtNodes)
	defer ticker.Stop()
	var at time.Time
	lacking := ""
	haveAll := func() bool {
		<-ticker.C
		at = time.Now()
		for _, n := range a.nodes {
			has := strings.Count(n.where.Run(a.t, "ip -o address show dev kube-lb0 scope global"), " inet")
			if has < count {
				lacking = fmt.Sprintf("%s has %d of %d", n.name, has, count)
				return false
			}
		}
		return true
	}
	if !a.becomes(haveAll) {
		a.fail(a.t, "a node lacks addresses", lacking)
	}
	return at
}

// rest measures what a speaker costs while nothing happens: the most of all nodes' speakers.
func (a *attempt) rest() {
	a.t.Helper()
	time.Sleep(settleTime)
	began, before := time.Now(), map[*node]time.Duration{}
	for _, n := range a.nodes {
		before[n] = a.cpuTime(n.speaker)
	}
	time.Sleep(restTime)
	for _, n := range a.nodes {
		perMinute := trial.Milliseconds(a.cpuTime(n.speaker)-before[n]) / time.Since(began).Minutes()
		resident, err := measure.ResidentMiB(n.speaker.process.Process.Pid)
		if err != nil {
			a.t.Fatal(err)
		}
		a.figures[restTimeFigure] = max(a.figures[restTimeFigure], perMinute)
		a.figures[restMemoryFigure] = max(a.figures[restMemoryFigure], resident)
	}
}

func (a *attempt) cpuTime(p *program) time.Duration {
	a.t.Helper()
	spent, err := measure.CPUTime(p.process.Process.Pid)
	if err != nil {
		a.t.Fatal(err)
	}
	return spent
}

// waitLong counts how often a session or its BFD is not as before, while nothing happens.
func (a *attempt) waitLong() {
	a.figures[flapsFigure] = 0
	state := func() string {
		text := ""
		routings := a.routings(a.t)
		for _, n := range a.nodes {
			for _, s := range routings[n.name].Status.Sessions {
				text += fmt.Sprint(n.name, s.State, s.Since, s.BFD)
			}
		}
		return text
	}
	before := state()
	for end := time.Now().Add(duration(a.t)); time.Now().Before(end); time.Sleep(time.Second) {
		if now := state(); now != before {
			a.figures[flapsFigure]++
			before = now
		}
	}
}
