package twin

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

var (
	ipv4Only = []corev1.IPFamily{corev1.IPv4Protocol}
	ipv6Only = []corev1.IPFamily{corev1.IPv6Protocol}
	bothOf   = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

// web is a Service with a Local IPv4 address.
var web = Service{Name: "web", Group: GroupLocal, Families: ipv4Only}

// create creates a Service.
func create(s Service) Step { return Step{Verb: CreateService, Service: s} }

// on does something to nodes.
func on(verb Verb, nodes ...string) Step { return Step{Verb: verb, Nodes: nodes} }

// aboutWeb does something to the Service web, with some nodes.
func aboutWeb(verb Verb, nodes ...string) Step {
	return Step{Verb: verb, Service: Service{Name: web.Name}, Nodes: nodes}
}

// stay lets time pass.
func stay(while time.Duration) Step { return Step{Verb: Stay, While: while} }

// Scenarios are all scenarios.
var Scenarios = []Scenario{
	{Name: "power-cut", Steps: []Step{create(web), on(PowerOff, "A"), on(PowerOn, "A")}},
	{Name: "power-cut-ipv6", Steps: []Step{
		create(Service{Name: "web", Group: GroupLocal, Families: ipv6Only}), on(PowerOff, "A"), on(PowerOn, "A"),
	}},
	{Name: "cable-pulled", Steps: []Step{create(web), on(LoseCarrier, "A"), on(RegainCarrier, "A")}},
	{Name: "cut-inside-the-switch", Steps: []Step{create(web), on(Unplug, "A"), on(Plug, "A")}},
	{Name: "excluded", Steps: []Step{create(web), on(Exclude, "A"), on(Include, "A")}},
	{Name: "drained-by-plugin", Steps: []Step{create(web), on(Drain, "A"), on(Undrain, "A")}},
	{Name: "cordoned", Steps: []Step{create(web), on(Cordon, "A"), on(Uncordon, "A")}},
	{Name: "cordoned-hands-over", Steps: []Step{
		create(web), {Verb: HandOverCordoned}, on(Cordon, "A"), on(Uncordon, "A"), {Verb: IgnoreCordoned},
	}},
	{Name: "handover-asked-for", Steps: []Step{
		create(web), aboutWeb(AskForHandover, "A"), on(StopAskingForHandover, "A"),
	}},
	{Name: "out-of-service", Steps: []Step{create(web), on(TaintOutOfService, "A"), on(Untaint, "A")}},
	{Name: "excluded-both-families", Steps: []Step{
		on(Exclude, "B", "C"), create(Service{Name: "web", Group: GroupLocal, Families: bothOf}), on(Include, "B"),
		on(Exclude, "A"), on(Include, "A", "C"),
	}},
	{Name: "all-excluded", Steps: []Step{
		create(web), on(Exclude, "B", "C"), on(Exclude, "A"), on(Include, "A", "B", "C"),
	}},
	{Name: "agent-killed", Steps: []Step{create(web), on(KillAgent, "A")}},
	{Name: "agent-replaced", Steps: []Step{create(web), on(ReplaceAgent, "A")}},
	{Name: "agent-stopped", Steps: []Step{create(web), on(StopAgent, "A"), stay(10 * time.Second), on(StartAgent, "A")}},
	{Name: "agent-stopped-while-excluded", Steps: []Step{
		create(web), on(StopAgent, "A"), on(Exclude, "A"), on(StartAgent, "A"), on(Include, "A"),
	}},
	{Name: "agent-stopped-while-deleted", Steps: []Step{
		create(web), on(StopAgent, "A"), aboutWeb(DeleteService), on(StartAgent, "A"),
	}},
	{Name: "leader-killed", Steps: []Step{create(web), {Verb: KillLeader}, on(Exclude, "A"), on(Include, "A")}},
	{Name: "managers-killed", Steps: []Step{create(web), {Verb: KillManagers}, on(Exclude, "A"), on(Include, "A")}},
	{Name: "api-server-away", Steps: []Step{create(web), {Verb: StopAPI}, stay(10 * time.Second), {Verb: StartAPI}}},
	{Name: "holder-dies-without-api-server", Steps: []Step{
		create(web), {Verb: StopAPI}, on(PowerOff, "A"), stay(5 * time.Second), {Verb: StartAPI}, on(PowerOn, "A"),
	}},
	{Name: "agent-killed-without-api-server", Steps: []Step{
		create(web), {Verb: StopAPI}, on(KillAgent, "A"), {Verb: StartAPI},
	}},
	{Name: "holder-cut-off-the-api-server", Steps: []Step{
		create(web), on(CutAPI, "A"), stay(time.Minute), on(HealAPI, "A"),
	}},
	{Name: "service-deleted", Steps: []Step{create(web), aboutWeb(DeleteService), create(web)}},
	{Name: "family-added", Steps: []Step{
		on(Exclude, "B", "C"), create(web), {Verb: EditFamilies, Service: Service{Name: "web", Families: bothOf}},
		{Verb: EditFamilies, Service: Service{Name: "web", Families: ipv4Only}}, on(Include, "B", "C"),
	}},
	{Name: "policy-local", Steps: []Step{
		create(Service{Name: "web", Group: GroupLocal, Families: ipv4Only, IsPolicyLocal: true}),
		aboutWeb(SetEndpoints, "A"), aboutWeb(SetEndpoints, "B"), aboutWeb(SetEndpoints),
		aboutWeb(SetEndpoints, "A", "B"),
	}},
	{Name: "policy-local-not-meant", Steps: []Step{
		create(Service{Name: "web", Group: GroupLocal, Families: ipv4Only, WritesPolicyLocal: true}),
	}},
	{Name: "pool-exhausted", Steps: []Step{
		create(Service{Name: "web", Group: GroupSingle, Families: ipv4Only}),
		create(Service{Name: "api", Group: GroupSingle, Families: ipv4Only}), {Verb: GrowGroup},
	}},
	{Name: "pool-exhausted-until-release", Steps: []Step{
		create(Service{Name: "web", Group: GroupSingle, Families: ipv4Only}),
		create(Service{Name: "api", Group: GroupSingle, Families: ipv4Only}), aboutWeb(DeleteService),
	}},
	{Name: "shared-address", Steps: []Step{
		create(Service{Name: "web", Group: GroupLocal, Families: ipv4Only, SharingKey: "key", Port: 80}),
		create(Service{Name: "api", Group: GroupLocal, Families: ipv4Only, SharingKey: "key", Port: 81}),
		create(Service{Name: "late", Group: GroupLocal, Families: ipv4Only, SharingKey: "key", Port: 80}),
		on(Exclude, "A"), on(Include, "A"), aboutWeb(DeleteService),
	}},
	{Name: "virtual-excluded", Steps: []Step{
		create(Service{Name: "web", Group: GroupVirtual, Families: bothOf}), on(Exclude, "A"), on(Include, "A"),
	}},
	{Name: "virtual-policy-local", Steps: []Step{
		create(Service{Name: "web", Group: GroupVirtual, Families: ipv4Only, IsPolicyLocal: true}),
		aboutWeb(SetEndpoints, "A"), aboutWeb(SetEndpoints, "B", "C"),
	}},
	{Name: "netbox-away", HasNetBox: true, Steps: []Step{
		create(Service{Name: "web", Group: GroupNetBox, Families: ipv4Only}), {Verb: StopNetBox},
		create(Service{Name: "api", Group: GroupNetBox, Families: ipv4Only}), {Verb: StartNetBox},
	}},
}
