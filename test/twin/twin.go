// Package twin has scenarios that are told once, as data, and played in two clusters: in the simulation
// (test/sim), and in the lab (test/e2e, make test-twin). Both have to give the same record, which is in testdata.
//
// A record says, for each step, in which order what happened, without times, and how the cluster is when it is at
// rest. What is not in an order by design is put into one by the Recorder, whose comment has the rules; a scenario
// has none of its own.
package twin

import (
	"embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Scenario is a story of a cluster of three nodes with two managers.
type Scenario struct {
	// Name is that of the file with its record.
	Name string
	// HasNetBox means that the cluster has a NetBox, and a ServiceGroup of it.
	HasNetBox bool
	// Steps are done one after the other, each when the cluster is at rest. After them all Services are deleted.
	Steps []Step
}

// Step is what users, machines, the link or the control plane do.
type Step struct {
	Verb Verb
	// Nodes are letters: A is the first node that the record names, and so on. A letter that is new is any node that
	// has none. For a Cluster they are names of its nodes.
	Nodes []string
	// Service is the Service that it is about. Steps that only name one have only its name.
	Service Service
	// While is how long it goes on, of a step of the verb Stay.
	While time.Duration
}

// Verb is what is done in a Step.
type Verb string

// Verbs. Of two without a line between them the second one undoes the first one, or is like it.
const (
	CreateService Verb = "create Service"
	DeleteService Verb = "delete Service"
	// EditFamilies makes a Service ask for addresses of its Families.
	EditFamilies Verb = "edit the families of Service"
	// SetEndpoints gives a Service ready endpoints on the nodes, and on no others.
	SetEndpoints Verb = "give endpoints to Service"
	// GrowGroup adds an address to GroupSingle.
	GrowGroup Verb = "add an address to ServiceGroup " + GroupSingle

	Exclude Verb = "exclude"
	Include Verb = "include"
	// Drain excludes a node by the plugin of kubectl.
	Drain    Verb = "kubectl purelb drain"
	Undrain  Verb = "kubectl purelb undrain"
	Cordon   Verb = "cordon"
	Uncordon Verb = "uncordon"
	// HandOverCordoned makes the LBNodeAgent say that nodes that are cordoned hand their addresses over.
	HandOverCordoned Verb = "set onUnschedulable: HandOver"
	IgnoreCordoned   Verb = "set onUnschedulable: Ignore"
	// AskForHandover annotates a node to hand over the address of a Service.
	AskForHandover        Verb = "ask for a handover"
	StopAskingForHandover Verb = "stop asking for a handover"
	TaintOutOfService     Verb = "taint as out of service"
	Untaint               Verb = "remove the taint"

	PowerOff Verb = "power off"
	PowerOn  Verb = "power on"
	// LoseCarrier pulls the cable of a node, and Unplug cuts it off inside the switch: it keeps its carrier.
	LoseCarrier   Verb = "pull the cable of"
	RegainCarrier Verb = "plug the cable in of"
	Unplug        Verb = "cut off inside the switch"
	Plug          Verb = "connect inside the switch"
	// CutAPI keeps a node from the API server, and StopAPI everybody.
	CutAPI   Verb = "cut off the API server"
	HealAPI  Verb = "connect to the API server"
	StopAPI  Verb = "stop the API server"
	StartAPI Verb = "start the API server"

	// KillAgent kills a node's agent, which the kubelet starts again, and ReplaceAgent ends it with its pod. StopAgent
	// kills it, and nobody starts it again.
	KillAgent    Verb = "kill the agent of"
	ReplaceAgent Verb = "replace the agent of"
	StopAgent    Verb = "stop the agent of"
	StartAgent   Verb = "start the agent of"
	// KillLeader kills the manager that leads, and KillManagers both. They start again.
	KillLeader   Verb = "kill the manager that leads"
	KillManagers Verb = "kill both managers"

	StopNetBox  Verb = "stop NetBox"
	StartNetBox Verb = "start NetBox"

	// Stay lets time pass.
	Stay Verb = "stay"
)

// ServiceGroups of each cluster.
const (
	GroupLocal   = "local"   // Local addresses of both families
	GroupSingle  = "single"  // one Local IPv4 address
	GroupVirtual = "virtual" // Virtual addresses of both families
	GroupNetBox  = "netbox"  // Virtual IPv4 addresses of NetBox, in scenarios that have one
)

// URLOfNetBox is the URL that NetBox has in the record, as in the simulation.
const URLOfNetBox = "http://netbox.test"

// Service is a Service of type LoadBalancer, without endpoints unless it is given some.
type Service struct {
	Name, Group string
	Families    []corev1.IPFamily
	// IsPolicyLocal means policy Local, which is kept for Local addresses. WritesPolicyLocal means policy Local of a
	// user who does not say that.
	IsPolicyLocal, WritesPolicyLocal bool
	// SharingKey is by which it shares its address; "" if it does not.
	SharingKey string
	// Port is 80 if it is 0.
	Port int32
}

// Cluster is where scenarios are played.
type Cluster interface {
	// Nodes returns the names of the nodes, ascending.
	Nodes() []string
	// Do does a step. What that brings may come later.
	Do(step Step) error
	// Kernels returns the nodes whose kernels have an address.
	Kernels(addr netip.Addr) ([]string, error)
	// Answers returns the nodes that answer a client on their link for an address.
	Answers(addr netip.Addr) ([]string, error)
	// Rest returns when the cluster is at rest. isAsBefore reports whether the record of the step is that of testdata: a
	// cluster that cannot know by itself goes by that, for as long as it likes.
	Rest(isAsBefore func() bool)
}

//go:embed testdata
var records embed.FS

// Golden returns the record of a scenario that is in testdata.
func Golden(s Scenario) (string, error) {
	text, err := records.ReadFile("testdata/" + s.Name + ".txt")
	return string(text), err
}

// Play plays a scenario in a cluster, of which the Recorder sees all that happens, and returns its record. It ends
// after the first step whose record is another one than in golden, unless that is empty.
func Play(s Scenario, c Cluster, r *Recorder, golden string) (string, error) {
	wanted := sections(golden)
	var text strings.Builder
	for i, step := range append(s.Steps, deletions(s)...) {
		want := ""
		if i < len(wanted) {
			want = wanted[i]
		}
		title := step.title()
		step.Nodes = r.namesOf(step.Nodes)
		r.beginStep(title)
		if err := c.Do(step); err != nil {
			return text.String(), fmt.Errorf("%s: %w", title, err)
		}
		var have string
		var err error
		isOver := false
		c.Rest(func() bool {
			have, isOver, err = r.section(c, want, false)
			return isOver
		})
		if !isOver {
			if have, _, err = r.section(c, want, true); err != nil {
				return text.String(), fmt.Errorf("look at the cluster after %s: %w", title, err)
			}
		}
		text.WriteString(have)
		if golden != "" && have != want {
			return text.String(), errors.New("the record has\n" + want + "and this has happened:\n" + have)
		}
	}
	return text.String(), nil
}

// deletions are the steps that delete what Services a scenario leaves.
func deletions(s Scenario) []Step {
	var left []Step
	for _, step := range s.Steps {
		switch step.Verb {
		case CreateService:
			left = append(left, Step{Verb: DeleteService, Service: Service{Name: step.Service.Name}})
		case DeleteService:
			for i := range left {
				if left[i].Service.Name == step.Service.Name {
					left = append(left[:i:i], left[i+1:]...)
					break
				}
			}
		}
	}
	return left
}

const titlePrefix = "# "

// sections cuts a record into those of its steps.
func sections(record string) []string {
	var all []string
	for line := range strings.Lines(record) {
		if strings.HasPrefix(line, titlePrefix) {
			all = append(all, "")
		}
		if len(all) > 0 {
			all[len(all)-1] += line
		}
	}
	return all
}

// title says what is done.
func (s *Step) title() string {
	words := []string{string(s.Verb)}
	if s.Service.Name != "" {
		words = append(words, s.Service.Name)
	}
	if s.Service.Group != "" {
		words = append(words, "of "+s.Service.Group)
	}
	for _, family := range s.Service.Families {
		words = append(words, string(family))
	}
	switch {
	case s.Service.IsPolicyLocal:
		words = append(words, "with policy Local, allowed")
	case s.Service.WritesPolicyLocal:
		words = append(words, "with policy Local")
	}
	if s.Service.SharingKey != "" {
		words = append(words, fmt.Sprintf("port %d, shared by %s", s.Service.Port, s.Service.SharingKey))
	}
	words = append(words, s.Nodes...)
	if s.While > 0 {
		words = append(words, "for "+s.While.String())
	}
	return strings.Join(words, " ")
}
