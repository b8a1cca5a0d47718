package placement

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func TestCountStates(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	nodes := []Node{
		{Name: "before", Liveness: Fresh, LBNodeAgent: "other", AnnouncesShared: true, SharedRevision: 9},
		{Name: "a", Liveness: Fresh, LBNodeAgent: "default", AnnouncesShared: true, SharedRevision: 2},
		{Name: "b", Liveness: Fresh, LBNodeAgent: "default", AnnouncesShared: true, SharedRevision: 1},
		{Name: "other", Liveness: Fresh, LBNodeAgent: "other", AnnouncesShared: true, SharedRevision: 9},
		{Name: "excluded", Liveness: Fresh, LBNodeAgent: "default", SharedRevision: 9},
		{Name: "dead", Liveness: Expired},
		{Name: "down", Liveness: Fresh, HasReportedFacts: true, Interfaces: []Interface{
			{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}, IsDown: true},
		}},
	}
	for name, c := range map[string]struct {
		entries  string // nodes, and what they report
		lingers  bool
		shared   int64  // revision of a shared entry; 0 if there is none
		except   string // state that node a reports of the shared entry
		serving  map[string]bool
		unplaced bool
		want     v1.AddressState
	}{
		"nothing is reported yet":                        {entries: "a", want: v1.StatePending},
		"no entry yet":                                   {want: v1.StatePending},
		"announced":                                      {entries: "a Announced", want: v1.StateAnnounced},
		"a handover, at first":                           {entries: "a Announced, b", want: v1.StateAnnounced},
		"a handover, at last":                            {entries: "a Pending, b Announced", want: v1.StateAnnounced},
		"the previous holder answers":                    {entries: "a, b Waiting", want: v1.StateWaiting},
		"another station answers":                        {entries: "a Conflict", want: v1.StateConflict},
		"one of two nodes has failed, the other waits":   {entries: "a Failed, b Pending", want: v1.StatePending},
		"a node announces an entry that is gone":         {lingers: true, want: v1.StateAnnounced},
		"a shared entry that no node has realised":       {shared: 3, want: v1.StatePending},
		"a shared entry that one node has realised":      {shared: 2, want: v1.StateAnnounced},
		"a shared entry that one node refuses":           {shared: 2, except: "Failed", want: v1.StatePending},
		"a shared entry that one of two nodes has":       {shared: 1, except: "Failed", want: v1.StateAnnounced},
		"a failover, and the next node cannot add it":    {entries: "dead Announced, b Failed", want: v1.StateFailed},
		"a failover, and the next node has said nothing": {entries: "dead Announced, b", want: v1.StatePending},
		"no agent renews its Lease":                      {entries: "dead Announced", want: v1.StateAnnounced},
		"no node is eligible":                            {unplaced: true, want: stateNoNode},
		"no node is eligible, and the last one is dead":  {entries: "dead Announced", unplaced: true, want: stateNoNode},
		"no other node is eligible":                      {entries: "a Announced", unplaced: true, want: v1.StateAnnounced},
		"no other node is eligible, and it has no carrier": {
			entries: "down Announced", unplaced: true, want: stateNoNode,
		},
		"no other node is eligible, and the last one has lost it": {entries: "a Pending", unplaced: true, want: stateNoNode},
		"no endpoint is ready": {serving: map[string]bool{}, unplaced: true, want: stateNoEndpoint},
		"nodes with endpoints are not eligible": {
			serving: map[string]bool{"a": true}, unplaced: true, want: stateNoNode,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inputs := &Inputs{Nodes: nodes, Addresses: []Address{{Addr: addr, ServingNodes: c.serving}}}
			for entry := range strings.SplitSeq(c.entries, ", ") {
				if node, state, _ := strings.Cut(entry, " "); node != "" {
					inputs.Entries = append(inputs.Entries, Entry{
						Node: node, Addr: addr, ReportedState: v1.AddressState(state),
						Spec: v1.AnnouncedAddress{Type: v1.AnnounceLocal},
					})
				}
			}
			if c.lingers {
				inputs.LingeringReports = map[netip.Addr][]LingeringReport{addr: {{Node: "a"}}}
			}
			if c.shared > 0 {
				inputs.SharedEntries = []SharedEntry{
					{LBNodeAgent: "default", Addr: addr, Spec: v1.AnnouncedAddress{Epoch: c.shared}},
				}
			}
			if c.except != "" {
				inputs.SharedExceptions = map[netip.Addr]map[string]v1.AddressState{addr: {"a": v1.AddressState(c.except)}}
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
