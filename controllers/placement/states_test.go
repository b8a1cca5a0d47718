package placement

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func TestCountStates(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	entry := func(node string, state v1.AddressState) Entry {
		return Entry{Node: node, Addr: addr, ReportedState: state}
	}
	for name, c := range map[string]struct {
		entries  []Entry
		lingers  bool
		serving  map[string]bool
		unplaced bool
		want     v1.AddressState
	}{
		"nothing is reported yet":                        {entries: []Entry{entry("a", "")}, want: v1.StatePending},
		"no entry yet":                                   {want: v1.StatePending},
		"announced":                                      {entries: []Entry{entry("a", v1.StateAnnounced)}, want: v1.StateAnnounced},
		"a handover, at first":                           {entries: []Entry{entry("a", v1.StateAnnounced), entry("b", "")}, want: v1.StateAnnounced},
		"a handover, at last":                            {entries: []Entry{entry("a", v1.StatePending), entry("b", v1.StateAnnounced)}, want: v1.StateAnnounced},
		"the previous holder answers":                    {entries: []Entry{entry("a", ""), entry("b", v1.StateStandby)}, want: v1.StateStandby},
		"another station answers":                        {entries: []Entry{entry("a", v1.StateConflict)}, want: v1.StateConflict},
		"one of two nodes has failed, the other waits":   {entries: []Entry{entry("a", v1.StateFailed), entry("b", v1.StatePending)}, want: v1.StatePending},
		"a node announces a shared entry":                {lingers: true, want: v1.StateAnnounced},
		"a failover, and the next node cannot add it":    {entries: []Entry{entry("dead", v1.StateAnnounced), entry("b", v1.StateFailed)}, want: v1.StateFailed},
		"a failover, and the next node has said nothing": {entries: []Entry{entry("dead", v1.StateAnnounced), entry("b", "")}, want: v1.StatePending},
		"no agent renews its Lease":                      {entries: []Entry{entry("dead", v1.StateAnnounced)}, want: v1.StateAnnounced},
		"no node is eligible":                            {unplaced: true, want: stateNoNode},
		"no node is eligible, and the last one is dead":  {entries: []Entry{entry("dead", v1.StateAnnounced)}, unplaced: true, want: stateNoNode},
		"no endpoint is ready":                           {serving: map[string]bool{}, unplaced: true, want: stateNoEndpoint},
		"nodes with endpoints are not eligible":          {serving: map[string]bool{"a": true}, unplaced: true, want: stateNoNode},
	} {
		t.Run(name, func(t *testing.T) {
			inputs := &Inputs{Nodes: []Node{{Name: "a", Liveness: Fresh}, {Name: "b", Liveness: Fresh}, {Name: "dead", Liveness: Expired}}, Addresses: []Address{{Addr: addr, ServingNodes: c.serving}}, Entries: c.entries}
			if c.lingers {
				inputs.LingeringReports = map[netip.Addr][]LingeringReport{addr: {{Node: "a"}}}
			}
			unplaced := map[netip.Addr]Explanation{}
			if c.unplaced {
				unplaced[addr] = Explanation{Reason: v1.ReasonNoEligibleNode}
			}
			if diff := cmp.Diff(map[v1.AddressState]int{c.want: 1}, CountStates(inputs, unplaced)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
