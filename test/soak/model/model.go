// Package model chooses what a soak does next: faults of the lab and edits that users make.
//
// The choice depends on nothing but the seed and on what was chosen before, so a seed
// repeats the sequence. The World is what users have asked for so far, whether or not the
// cluster has done it.
package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Nodes of the lab.
var Nodes = []string{"node1", "node2", "node3"}

// Kind is what an Action does.
type Kind string

// Faults. Each lasts for the Hold of its Action; those without a Hold are over at once.
const (
	CutLink        Kind = "cut-link"
	UnplugPort     Kind = "unplug-port"
	CutAPI         Kind = "cut-api"
	PowerOff       Kind = "power-off"
	StopAPI        Kind = "stop-control-plane"
	FreezeAgent    Kind = "freeze-agent"
	FreezeManager  Kind = "freeze-manager"
	FreezeKubelet  Kind = "freeze-kubelet"
	ReadOnlyDisk   Kind = "read-only-disk"
	Load           Kind = "load"
	KillAgent      Kind = "kill-agent"
	KillManager    Kind = "kill-manager"
	KillLeader     Kind = "kill-leader"
	KillKubelet    Kind = "kill-kubelet"
	KillContainerd Kind = "kill-containerd"
	StripAddress   Kind = "strip-address"
	DeleteDummy    Kind = "delete-kube-lb0"
)

// Edits of users and administrators.
const (
	CreateService      Kind = "create-service"
	DeleteService      Kind = "delete-service"
	UpdateService      Kind = "update-service"
	RecreateService    Kind = "recreate-service"
	ResizeGroup        Kind = "resize-group"
	MoveGroup          Kind = "move-group"
	EditAgent          Kind = "edit-lbnodeagent"
	SecondAgent        Kind = "second-lbnodeagent"
	NoSecondAgent      Kind = "delete-second-lbnodeagent"
	SelectSecond       Kind = "label-second"
	Exclude            Kind = "exclude"
	Include            Kind = "include"
	Cordon             Kind = "drain"
	Uncordon           Kind = "uncordon"
	OutOfService       Kind = "taint-out-of-service"
	InService          Kind = "untaint-out-of-service"
	ScalePods          Kind = "scale-pods"
	RollPods           Kind = "roll-pods"
	RollAgents         Kind = "roll-agents"
	RollManagers       Kind = "roll-managers"
	DeleteAgentPod     Kind = "delete-agent-pod"
	DeleteManagerPod   Kind = "delete-manager-pod"
	Upgrade            Kind = "upgrade"
	DeleteAnnouncement Kind = "delete-announcement"
)

// LeavesWatchers says that a successor of a node's addresses can claim them at any time during actions of
// this kind: they disturb neither a link nor an agent, and do not change which nodes may have addresses.
func (k Kind) LeavesWatchers() bool {
	return slices.Contains([]Kind{
		StopAPI, FreezeManager, FreezeKubelet, Load, KillManager, KillLeader, KillKubelet, RollManagers, DeleteManagerPod,
		CreateService, DeleteService, UpdateService, RecreateService, ResizeGroup, MoveGroup, DeleteAnnouncement,
	}, k)
}

// CutsNodeOff says that an action of this kind cuts a node off the link.
func (k Kind) CutsNodeOff() bool { return slices.Contains([]Kind{CutLink, UnplugPort, PowerOff}, k) }

// Action is one step of a soak.
type Action struct {
	Kind Kind
	// Node that the action is about; empty for those of the whole cluster.
	Node string
	// Service is the Service after the action; of DeleteService only the name counts.
	Service Service
	// Group that the action is about, after the action.
	Group Group
	// Value is what else the action needs: a number of pods, a setting.
	Value string
	// Hold is for how long a fault lasts.
	Hold time.Duration
	// Pause is how long the soak waits after the action has begun, until the next one.
	Pause time.Duration
}

// String returns the action as a line of the log.
func (a Action) String() string {
	text := string(a.Kind)
	if a.Node != "" {
		text += " " + a.Node
	}
	if a.Service.Name != "" {
		text += " " + a.Service.String()
	}
	if a.Group.Name != "" {
		text += " " + a.Group.String()
	}
	if a.Value != "" {
		text += " " + a.Value
	}
	if a.Hold > 0 {
		text += " for " + a.Hold.String()
	}
	return text
}

// Service is a Service as its user wants it.
type Service struct {
	Name string
	// Group is the ServiceGroup that the annotation names.
	Group string
	// Type is LoadBalancer or ClusterIP.
	Type string
	// Families are IPv4 and IPv6, the primary one first; Policy is ipFamilyPolicy.
	Families []string
	Policy   string
	// Local is externalTrafficPolicy Local, with the annotation that keeps it.
	Local bool
	// ShareKey is the sharing key; empty to share with none.
	ShareKey string
	// Port of the Service; the checker asks there.
	Port int32
	// Request is the value of the annotation that asks for addresses; empty for any.
	Request string
}

// String returns the Service as part of a line of the log.
func (s Service) String() string {
	text := fmt.Sprintf("%s (%s of %s, %s %v, port %d", s.Name, s.Type, s.Group, s.Policy, s.Families, s.Port)
	if s.Local {
		text += ", policy Local"
	}
	if s.ShareKey != "" {
		text += ", key " + s.ShareKey
	}
	if s.Request != "" {
		text += ", asks for " + s.Request
	}
	return text + ")"
}

// Group is a ServiceGroup as its administrator wants it.
type Group struct {
	Name string
	// Remote is the kind: remote, or local.
	Remote bool
	// First is the number of the first address in its subnets, Size how many there are.
	First, Size int
	// Orphans lets a change through that leaves addresses in use outside of the pool.
	Orphans bool
}

// String returns the group as part of a line of the log.
func (g Group) String() string {
	text := fmt.Sprintf("%s from %d, %d addresses", g.Name, g.First, g.Size)
	if g.Orphans {
		text += ", orphans allowed"
	}
	return text
}

// area is where the range of a group may be: the first number, and how many there are. The
// areas do not overlap. The largest and the smallest size differ, so that pools run out.
type area struct {
	first, size int
	remote      bool
}

// areas of the groups. Numbers are those of the last bytes of the addresses.
var areas = map[string]area{
	"lan":    {first: 100, size: 40},
	"narrow": {first: 150, size: 6},
	"other":  {first: 16, size: 32},               // of a subnet that no node has, so Virtual
	"remote": {first: 16, size: 32, remote: true}, // always Virtual
}

// GroupNames are the names of all groups, in order.
var GroupNames = []string{"lan", "narrow", "other", "remote"}

// ServiceLimit is how many Services there are at most.
const ServiceLimit = 24

// firstServices is how many Services there are before anything else happens.
const firstServices = 8

// fault is a fault that lasts, in the model's time: the sum of all pauses.
type fault struct {
	kind Kind
	node string
	end  time.Duration
}

// World is what users have asked for so far.
type World struct {
	Services []Service // in the order of their creation
	Groups   map[string]Group
	// SecondExists says whether there is an LBNodeAgent for labelled nodes.
	SecondExists bool
	// Second, Excluded, Cordoned and OutOfService are marks of nodes.
	Second, Excluded, Cordoned, OutOfService map[string]bool

	random  *rand.Rand
	created int
	now     time.Duration
	faults  []fault
}

// New returns the world at the beginning of a soak with a seed.
func New(seed uint64) *World {
	w := &World{
		Groups: map[string]Group{}, Second: map[string]bool{}, Excluded: map[string]bool{}, Cordoned: map[string]bool{},
		OutOfService: map[string]bool{},
		random:       rand.New(rand.NewPCG(seed, 0x50a4)),
	}
	for name, a := range areas {
		w.Groups[name] = Group{Name: name, Remote: a.remote, First: a.first, Size: a.size / 2}
	}
	return w
}

// choice is an action that can be made now, with its weight.
type choice struct {
	weight int
	make   func() (Action, bool) // false: not now
}

// Next chooses the next action and changes the world as it will be after it. The first
// actions create the Services that the others disturb.
func (w *World) Next() Action {
	if w.created < firstServices {
		a, _ := w.createService()
		a.Pause = 100 * time.Millisecond
		return a
	}
	choices := append(w.edits(), w.faultChoices()...)
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	for {
		pick := w.random.IntN(total)
		for _, c := range choices {
			if pick -= c.weight; pick >= 0 {
				continue
			}
			a, possible := c.make()
			if !possible {
				break
			}
			if a.Pause == 0 {
				a.Pause = w.pause()
			}
			w.now += a.Pause
			return a
		}
	}
}

// Rest says that all faults have been ended.
func (w *World) Rest() { w.faults = nil }

// pause is short as a rule, so that actions meet; at times it is long enough for what the
// manager waits for (a Node that is NotReady, say).
func (w *World) pause() time.Duration {
	if w.random.IntN(6) == 0 {
		return time.Duration(5+w.random.IntN(15)) * time.Second
	}
	return time.Duration(100+w.random.IntN(3000)) * time.Millisecond
}

func (w *World) node() string { return Nodes[w.random.IntN(len(Nodes))] }

// activeFaults returns the faults that have not ended.
func (w *World) activeFaults() []fault {
	w.faults = slices.DeleteFunc(w.faults, func(f fault) bool { return f.end <= w.now })
	return w.faults
}

// nodeFaults are those that cut a whole node off. At most one node at a time has one, so
// that a majority of nodes, and a replica of the manager, work.
var nodeFaults = []Kind{CutLink, UnplugPort, CutAPI, PowerOff}

func (w *World) faultChoices() []choice {
	begin := func(kind Kind, node string, minSeconds, maxSeconds int) (Action, bool) {
		for _, f := range w.activeFaults() {
			bothCutOff := slices.Contains(nodeFaults, kind) && slices.Contains(nodeFaults, f.kind)
			// A node without power has no processes, and forgets what was done to its kernel.
			noPower := f.node == node && (kind == PowerOff || f.kind == PowerOff)
			if f.kind == kind && f.node == node || bothCutOff || noPower {
				return Action{}, false
			}
		}
		hold := time.Duration(minSeconds*1000+w.random.IntN((maxSeconds-minSeconds)*1000)) * time.Millisecond
		w.faults = append(w.faults, fault{kind, node, w.now + hold})
		return Action{Kind: kind, Node: node, Hold: hold}, true
	}
	lasting := func(kind Kind, minSeconds, maxSeconds int) func() (Action, bool) {
		return func() (Action, bool) { return begin(kind, w.node(), minSeconds, maxSeconds) }
	}
	once := func(kind Kind) func() (Action, bool) {
		return func() (Action, bool) {
			node := w.node()
			for _, f := range w.activeFaults() {
				if f.node == node && f.kind == PowerOff {
					return Action{}, false
				}
			}
			return Action{Kind: kind, Node: node}, true
		}
	}
	return []choice{
		{3, lasting(CutLink, 1, 45)},
		{3, lasting(UnplugPort, 1, 45)},
		{3, lasting(CutAPI, 2, 60)},
		{2, lasting(PowerOff, 3, 40)},
		{2, func() (Action, bool) { return begin(StopAPI, "", 1, 40) }},
		{2, lasting(FreezeAgent, 1, 20)},
		{2, lasting(FreezeManager, 1, 20)},
		{1, lasting(FreezeKubelet, 5, 40)},
		{1, lasting(ReadOnlyDisk, 5, 30)},
		{1, lasting(Load, 3, 10)},
		{3, once(KillAgent)},
		{2, once(KillManager)},
		{2, func() (Action, bool) { return Action{Kind: KillLeader}, true }},
		{1, once(KillKubelet)},
		{1, once(KillContainerd)},
		{2, func() (Action, bool) { return Action{Kind: StripAddress, Value: fmt.Sprint(w.random.IntN(1000))}, true }},
		{1, once(DeleteDummy)},
	}
}
