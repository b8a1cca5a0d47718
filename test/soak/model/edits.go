package model

import (
	"fmt"
	"slices"
)

// keys that Services share addresses by.
var keys = []string{"red", "blue"}

// addressOf returns an address of a group, by number from the beginning of its area.
func addressOf(group string, number int, v6 bool) string {
	a := areas[group]
	return AddressAt(group, a.first+number%a.size, v6)
}

// AddressAt returns the address of a group that has a number in its subnet.
func AddressAt(group string, number int, v6 bool) string {
	v4Prefix, v6Prefix := Prefixes(group)
	if v6 {
		return fmt.Sprintf("%s%x", v6Prefix, number)
	}
	return fmt.Sprintf("%s%d", v4Prefix, number)
}

// Prefixes returns what the addresses of a group begin with. Their subnets are /24 and /64.
func Prefixes(group string) (v4, v6 string) {
	switch group {
	case "other":
		return "172.30.1.", "fd00:30:1::"
	case "remote":
		return "172.30.2.", "fd00:30:2::"
	default:
		return "10.77.0.", "fd00:77::"
	}
}

// edits are what users and administrators may do now.
func (w *World) edits() []choice {
	return []choice{
		{14, w.createService},
		{6, w.deleteService},
		{2, w.recreateService},
		{12, w.updateService},
		{4, w.resizeGroup},
		{1, w.moveGroup},
		{3, w.editAgent},
		{2, w.toggleSecond},
		{2, w.labelSecond},
		{5, w.toggle(w.Excluded, Exclude, Include, 2)},
		{2, w.toggle(w.Cordoned, Cordon, Uncordon, 1)},
		{2, w.toggle(w.OutOfService, OutOfService, InService, 1)},
		{2, func() (Action, bool) { return Action{Kind: ScalePods, Value: fmt.Sprint(1 + w.random.IntN(4))}, true }},
		{2, func() (Action, bool) { return Action{Kind: RollPods}, true }},
		{2, func() (Action, bool) { return Action{Kind: RollAgents}, true }},
		{2, func() (Action, bool) { return Action{Kind: RollManagers}, true }},
		{2, func() (Action, bool) { return Action{Kind: DeleteAgentPod, Node: w.node()}, true }},
		{1, func() (Action, bool) { return Action{Kind: DeleteManagerPod, Node: w.node()}, true }},
		{1, func() (Action, bool) { return Action{Kind: Upgrade}, true }},
		{1, func() (Action, bool) { return Action{Kind: DeleteAnnouncement, Node: w.node()}, true }},
	}
}

func (w *World) createService() (Action, bool) {
	if len(w.Services) >= ServiceLimit {
		return Action{}, false
	}
	w.created++
	s := Service{
		Name: fmt.Sprintf("s%d", w.created), Type: "LoadBalancer", Group: GroupNames[w.random.IntN(len(GroupNames))],
		Port: 80,
	}
	w.setFamilies(&s)
	w.setPolicy(&s)
	w.setSharing(&s)
	if w.random.IntN(5) == 0 {
		w.setRequest(&s)
	}
	w.Services = append(w.Services, s)
	return Action{Kind: CreateService, Service: s}, true
}

func (w *World) setFamilies(s *Service) {
	s.Families = []string{"IPv4"}
	if w.random.IntN(2) == 0 {
		s.Families = []string{"IPv6"}
	}
	s.Policy = "SingleStack"
	if w.random.IntN(2) == 0 {
		s.Policy = []string{"PreferDualStack", "RequireDualStack"}[w.random.IntN(2)]
		// A Service's primary family cannot be changed, so it comes first.
		s.Families = append(s.Families, map[string]string{"IPv4": "IPv6", "IPv6": "IPv4"}[s.Families[0]])
	}
}

func (w *World) setPolicy(s *Service) { s.Local = w.random.IntN(5) == 0 }

func (w *World) setSharing(s *Service) {
	s.ShareKey, s.Port = "", 80
	if w.random.IntN(4) == 0 {
		s.ShareKey = keys[w.random.IntN(len(keys))]
		s.Port = int32(80 + w.random.IntN(6))
	}
}

// setRequest asks for one address, of the family that comes first.
func (w *World) setRequest(s *Service) {
	if s.Request != "" {
		s.Request = ""
		return
	}
	s.Request = addressOf(s.Group, w.random.IntN(areas[s.Group].size), s.Families[0] == "IPv6")
}

func (w *World) pickService() (int, bool) {
	if len(w.Services) == 0 {
		return 0, false
	}
	return w.random.IntN(len(w.Services)), true
}

func (w *World) deleteService() (Action, bool) {
	i, ok := w.pickService()
	if !ok || len(w.Services) < 6 {
		return Action{}, false
	}
	s := w.Services[i]
	w.Services = slices.Delete(w.Services, i, i+1)
	return Action{Kind: DeleteService, Service: s}, true
}

// recreateService deletes a Service and creates it again, by the same name, at once.
func (w *World) recreateService() (Action, bool) {
	i, ok := w.pickService()
	if !ok {
		return Action{}, false
	}
	return Action{Kind: RecreateService, Service: w.Services[i]}, true
}

func (w *World) updateService() (Action, bool) {
	i, ok := w.pickService()
	if !ok {
		return Action{}, false
	}
	s := w.Services[i]
	s.Families = slices.Clone(s.Families)
	what := ""
	switch w.random.IntN(7) {
	case 0:
		what, s.Group = "its group", GroupNames[w.random.IntN(len(GroupNames))]
		s.Request = ""
	case 1:
		what = "its type"
		s.Type = map[string]string{"LoadBalancer": "ClusterIP", "ClusterIP": "LoadBalancer"}[s.Type]
	case 2:
		what = "its families"
		if len(s.Families) == 2 {
			s.Families, s.Policy = s.Families[:1], "SingleStack"
		} else {
			s.Families = append(s.Families, map[string]string{"IPv4": "IPv6", "IPv6": "IPv4"}[s.Families[0]])
			s.Policy = "RequireDualStack"
		}
	case 3:
		what = "its traffic policy"
		s.Local = !s.Local
	case 4:
		what = "its sharing"
		w.setSharing(&s)
	case 5:
		what, s.Port = "its port", int32(80+w.random.IntN(6))
	default:
		what = "what it asks for"
		w.setRequest(&s)
	}
	w.Services[i] = s
	return Action{Kind: UpdateService, Service: s, Value: "changes " + what}, true
}

func (w *World) resizeGroup() (Action, bool) {
	name := GroupNames[w.random.IntN(len(GroupNames))]
	a, g := areas[name], w.Groups[name]
	g.First, g.Orphans = a.first, false
	g.Size = 1 + w.random.IntN(a.size)
	w.Groups[name] = g
	return Action{Kind: ResizeGroup, Group: g}, true
}

// moveGroup moves a range to the upper half of its area. Addresses in use stay as orphans.
func (w *World) moveGroup() (Action, bool) {
	name := GroupNames[w.random.IntN(len(GroupNames))]
	a, g := areas[name], w.Groups[name]
	g.First, g.Size, g.Orphans = a.first+a.size/2, a.size/2, true
	w.Groups[name] = g
	return Action{Kind: MoveGroup, Group: g}, true
}

// AgentSettings are changes of an LBNodeAgent's spec, as merge patches.
var AgentSettings = []string{
	`{"logLevel":"debug"}`,
	`{"logLevel":"info"}`,
	`{"local":{"localInterface":"eth.*"}}`,
	`{"local":{"localInterface":"default"}}`,
	`{"local":{"garpConfig":{"count":5,"interval":"200ms"}}}`,
	`{"local":{"garpConfig":{"count":3,"interval":"500ms"}}}`,
	`{"local":{"probeConfig":{"count":3,"interval":"50ms"}}}`,
	`{"local":{"probeConfig":{"count":2,"interval":"100ms"}}}`,
	`{"local":{"addressConfig":{"localInterface":{"validLifetime":120,"preferredLifetime":120,"noPrefixRoute":true}}}}`,
	`{"local":{"addressConfig":{"localInterface":{"validLifetime":300,"preferredLifetime":300,"noPrefixRoute":true}}}}`,
}

func (w *World) editAgent() (Action, bool) {
	return Action{Kind: EditAgent, Value: AgentSettings[w.random.IntN(len(AgentSettings))]}, true
}

func (w *World) toggleSecond() (Action, bool) {
	w.SecondExists = !w.SecondExists
	if w.SecondExists {
		return Action{Kind: SecondAgent}, true
	}
	return Action{Kind: NoSecondAgent}, true
}

func (w *World) labelSecond() (Action, bool) {
	node := w.node()
	w.Second[node] = !w.Second[node]
	return Action{Kind: SelectSecond, Node: node, Value: fmt.Sprint(w.Second[node])}, true
}

// toggle marks a node, or takes the mark away. At most limit nodes are marked.
func (w *World) toggle(marked map[string]bool, on, off Kind, limit int) func() (Action, bool) {
	return func() (Action, bool) {
		node := w.node()
		if marked[node] {
			delete(marked, node)
			return Action{Kind: off, Node: node}, true
		}
		if len(marked) >= limit {
			return Action{}, false
		}
		marked[node] = true
		return Action{Kind: on, Node: node}, true
	}
}
