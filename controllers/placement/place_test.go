package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// seePods is what is advised where a node lacks nothing but a ready endpoint.
const seePods = "; policy Local needs a pod that is ready on a node that may have the address: " +
	"see the pods of the Service"

// healthy is node a, b, c, … with an interface in 10.0.0.0/24 and fd00::/64.
func healthy(name string) placement.Node {
	i := name[0] - 'a'
	return placement.Node{
		Name: name, LBNodeAgent: "default", VirtualInterface: "kube-lb0", Liveness: placement.Fresh, HasReportedFacts: true,
		Interfaces: []placement.Interface{{Name: "eth0", MAC: "mac-" + name, Subnets: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 200 + i}), 24), netip.MustParsePrefix("fd00::/64")}}},
	}
}

// nodes parses "a b:expired,notready c:excluded".
func nodes(t *testing.T, s string) []placement.Node {
	t.Helper()
	var out []placement.Node
	for _, word := range strings.Fields(s) {
		name, flags, _ := strings.Cut(word, ":")
		n := healthy(name)
		for _, f := range strings.FieldsFunc(flags, func(r rune) bool { return r == ',' }) {
			switch f {
			case "expired":
				n.Liveness = placement.Expired
			case "dead":
				n.Liveness, n.ExpiredFor, n.IsExpiredForLong = placement.Expired, placement.ReplacementPatience, true
			case "late":
				n.Liveness = placement.Late
			case "notready":
				n.IsNotReadyForLong, n.IsNotReady = true, true
			case "gone":
				n.IsDeleted, n.IsNotReadyForLong, n.LBNodeAgent, n.Liveness = true, true, "", placement.Expired
			case "slowprobe":
				n.ProbeTime = 10 * time.Second
			case "overdue":
				n.HasReportedFacts, n.Interfaces, n.AreFactsOverdue = false, nil, true
			case "disabled":
				n.IsFailoverDisabled = true
			case "excluded":
				n.IsExcluded = true
			case "cordoned":
				n.HandsOverAsCordoned = true
			case "withdrawing":
				n.MayHaveRoutes = true
			case "shares":
				n.AnnouncesShared = true
			case "out":
				n.IsOutOfService = true
			case "shutdown":
				n.IsShuttingDown = true
			case "leaving":
				n.IsLeaving = true
			case "down":
				n.Interfaces[0].IsDown = true
			case "noagent":
				n.LBNodeAgent = ""
			case "elsewhere":
				n.Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.9.9.9/24")}
			case "silent":
				n.HasReportedFacts, n.Interfaces = false, nil
			case "awaited":
				n.HasReportedFacts, n.Interfaces, n.AreFactsAwaited = false, nil, true
			default:
				t.Fatalf("what is %s?", f)
			}
		}
		out = append(out, n)
	}
	return out
}

// entry parses "a 3 Takeover leaving Announced observed waiting", in any order after
// the node and the epoch.
func entry(t *testing.T, addr netip.Addr, s string) placement.Entry {
	t.Helper()
	e := placement.Entry{Addr: addr, Spec: v1.AnnouncedAddress{
		Address: addr.String(), PrefixLength: 32, Interface: "eth0", Type: v1.AnnounceLocal, ServiceGroup: "g",
		Services: []string{"a/b"}, ClaimPolicy: v1.ClaimProbe}}
	words := strings.Fields(s)
	e.Node = words[0]
	if _, err := fmt.Sscan(words[1], &e.Spec.Epoch); err != nil {
		t.Fatal(err)
	}
	for _, w := range words[2:] {
		switch w {
		case "Takeover":
			e.Spec.ClaimPolicy = v1.ClaimTakeover
		case "leaving":
			e.Spec.HandingOver = true
		case "observed":
			e.IsObserved = true
		case "waiting":
			e.UnchangedFor = placement.ReactionTime
		case "Virtual":
			e.Spec.Type, e.Spec.Interface = v1.AnnounceVirtual, "kube-lb0"
		default:
			e.ReportedState = v1.AddressState(w)
		}
	}
	return e
}

// show is the entries of a result as node epoch claimPolicy, and leaving; a shared entry
// counts for each node that announces it.
func show(r placement.Result) string {
	var out []string
	for name, entries := range r.Entries {
		for _, e := range entries {
			s := fmt.Sprintf("%s %d %s", name, e.Epoch, e.ClaimPolicy)
			if e.Type == v1.AnnounceVirtual {
				s = name + " Virtual"
			}
			if e.HandingOver {
				s += " leaving"
			}
			out = append(out, s)
		}
	}
	for range r.SharedEntries["default"] {
		for name := range r.AnnouncesShared {
			out = append(out, name+" Virtual")
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

// nextDeadline is in how long placement is to be done again; 0 is never.
func nextDeadline(inputs placement.Inputs) time.Duration { return placement.Place(inputs).NextDeadline }

// entriesTwice names an address for which a node has two entries, or returns an empty text.
func entriesTwice(r placement.Result) string {
	for name, entries := range r.Entries {
		seen := map[string]bool{}
		for _, e := range entries {
			if seen[e.Address] {
				return e.Address + " on " + name
			}
			seen[e.Address] = true
		}
	}
	return ""
}

// TestTransitions compares the entries that follow from those before, and from what agents report. Of
// a holder that is dead and answered for, the next node waits, until the holder's Node is NotReady.
// This test shows the row "a fabric that answers for the dead" of docs/trust.md.
func TestTransitions(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct {
		name      string
		nodes     string
		entries   []string
		lingering string
		remote    bool
		serves    string // the nodes with endpoints, "-" for none, "virtually" if only for Virtual; any node without
		ending    string // the nodes whose endpoints are about to end
		want      string
		unplaced  string
	}{
		// The holder stays.
		{name: "settled", nodes: "a b", entries: []string{"a 1 Announced"}, want: "a 1 Probe"},
		{
			name: "settled, claimed by takeover once", nodes: "a b", entries: []string{"b 4 Takeover Announced"},
			want: "b 4 Takeover",
		},
		{name: "being late moves nothing", nodes: "a:late b", entries: []string{"a 1 Announced"}, want: "a 1 Probe"},
		{name: "not being ready moves nothing", nodes: "a:notready b", entries: []string{"a 1 Announced"}, want: "a 1 Probe"},
		{
			name: "of two that have it, the higher epoch", nodes: "a b", entries: []string{"a 1 Announced", "b 2 Announced"},
			want: "b 2 Probe",
		},
		{
			name: "a node that comes back pulls nothing back", nodes: "a b", entries: []string{"a 1", "b 2 Announced"},
			want: "b 2 Probe",
		},
		{
			name: "a claim under way is not given to another", nodes: "a b c", entries: []string{"b 1 Pending"},
			want: "b 1 Probe",
		},
		{name: "nor one that met a conflict", nodes: "a b c", entries: []string{"b 1 Conflict"}, want: "b 1 Probe"},
		{name: "nor one that yielded", nodes: "a b c", entries: []string{"b 1 Yielded"}, want: "b 1 Probe"},

		// Nobody has it.
		{name: "new", nodes: "b", want: "b 1 Probe"},
		{name: "new, to a fresh node only", nodes: "a:late b", want: "b 1 Probe"},
		{name: "no node", unplaced: "WaitingForFacts: no agent has reported its node's interfaces yet"},
		{name: "no fresh node", nodes: "a:late", unplaced: "NoEligibleNode: a has an agent that is late to renew its Lease"},
		{name: "every reason", nodes: "a:expired b:excluded c:out d:shutdown e:noagent f:elsewhere",
			unplaced: "NoEligibleNode: " +
				"a has an agent that does not renew its Lease; b is labelled " +
				"node.kubernetes.io/exclude-from-external-load-balancers; " +
				"c is tainted node.kubernetes.io/out-of-service; d is shutting down; e runs no agent; f has no interface in the " +
				"subnet of 10.0.0.1"},
		{
			name: "claimant gone before it claimed", nodes: "a:expired b", entries: []string{"a 1"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "claimant gone before it reported, and it answers", nodes: "a:expired b",
			entries: []string{"a 1 leaving", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "claimant gone before it reported, and it answers, and is not ready", nodes: "a:expired,notready b",
			entries: []string{"a 1 leaving", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "claimant that is silent answers", nodes: "a b", entries: []string{"a 1 leaving", "b 2 Waiting"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "claimant that is silent answers for long", nodes: "a b",
			entries: []string{"a 1 leaving waiting", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "claimant that is gone answers, and nobody knows whose entry it was", nodes: "b",
			entries: []string{"a 1 leaving", "b 2 Waiting"}, want: "b 2 Probe",
		},
		{
			name: "claimant whose entry is not revoked yet answers for long", nodes: "a b",
			entries: []string{"a 1 waiting", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Probe",
		},
		{name: "claimant failed", nodes: "a b", entries: []string{"a 1 Failed"}, want: "a 1 Probe, b 2 Probe"},
		{name: "all failed: none is asked again", nodes: "a b", entries: []string{"a 1 Failed", "b 2 Failed"},
			want:     "a 1 Probe, b 2 Probe",
			unplaced: "NoEligibleNode: a has failed to take it; b has failed to take it"},
		{
			name: "one that failed has it after all", nodes: "a b", entries: []string{"a 1 Announced", "b 2"}, want: "a 1 Probe",
		},
		{name: "given up, and asked again", nodes: "a", entries: []string{"a 1 Yielded leaving observed"}, want: "a 2 Probe"},
		{
			name: "lingering on a node", nodes: "a b c", lingering: "c",
			unplaced: "Announcing: waiting for node c to withdraw it",
		},
		{
			name: "lingering on a node that may not have it", nodes: "a:excluded b", lingering: "a",
			unplaced: "Announcing: waiting for node a to withdraw it",
		},
		{name: "lingering for long is no preference", nodes: "a b c", lingering: "a:long", want: "c 1 Probe"},
		{
			name: "one of two lingers for long", nodes: "a b c", lingering: "c:long b",
			unplaced: "Announcing: waiting for node b to withdraw it",
		},
		{
			name: "lingering holds up nothing that was given to a node", nodes: "a b", lingering: "b",
			entries: []string{"a 1 Yielded leaving observed"}, want: "a 2 Probe",
		},
		{name: "lingering on a node that is away", nodes: "a:expired b", lingering: "a", want: "b 1 Probe"},
		{name: "lingering on a node that is gone", nodes: "b", lingering: "a", want: "b 1 Probe"},
		{name: "lingering on two", nodes: "a b", lingering: "b a", unplaced: "Announcing: waiting for node a to withdraw it"},

		// Failover.
		{name: "failover", nodes: "a:expired b", entries: []string{"a 1 Announced"}, want: "a 1 Probe, b 2 Probe"},
		{
			name: "failover, claim pending", nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Pending"},
			want: "a 1 Probe, b 2 Probe",
		},
		{
			name: "failover, the old kernel serves on", nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Waiting"},
			want: "a 1 Probe, b 2 Probe",
		},
		{
			name: "failover, and its node is not ready either", nodes: "a:expired,notready b",
			entries: []string{"a 1 Announced", "b 2 Waiting"}, want: "a 1 Probe, b 2 Takeover",
		},
		{
			name: "not ready alone is no reason to take over", nodes: "a:expired,notready b",
			entries: []string{"a 1 Announced", "b 2 Pending"}, want: "a 1 Probe, b 2 Probe",
		},
		{name: "failover done", nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Announced"}, want: "b 2 Probe"},
		{name: "failover called off", nodes: "a b", entries: []string{"a 1 Announced", "b 2 Waiting"}, want: "a 1 Probe"},
		{
			name: "failover, and the next dies too", nodes: "a:expired b:expired c",
			entries: []string{"a 1 Announced", "b 2 Waiting"}, want: "a 1 Probe, c 3 Probe",
		},
		{
			name: "failover, and the next fails", nodes: "a:expired b c", entries: []string{"a 1 Announced", "b 2 Failed"},
			want: "a 1 Probe, b 2 Probe, c 3 Probe",
		},
		{name: "failover, and there is no candidate", nodes: "a:expired b:excluded", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
			unplaced: "NoEligibleNode: a has an agent that does not renew its Lease; b is labelled " +
				"node.kubernetes.io/exclude-from-external-load-balancers"},
		{name: "failover of a node that left nothing", nodes: "b", entries: []string{"a 1 Announced"}, want: "b 2 Probe"},
		{
			name: "failover of a node that is gone", nodes: "a:gone b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "failover of a node that is gone, whose kernel serves on", nodes: "a:gone b",
			entries: []string{"a 1 Announced leaving", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "failover of a node that is gone, done", nodes: "a:gone b",
			entries: []string{"a 1 Announced leaving", "b 2 Announced"}, want: "b 2 Probe",
		},
		{name: "a claimant that is gone", nodes: "a:gone b", entries: []string{"a 1"}, want: "a 1 Probe leaving, b 2 Probe"},
		{
			name: "failover of a node that is excluded, whose kernel serves on", nodes: "a:excluded,expired b",
			entries: []string{"a 1 Announced leaving", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "failover of a node that is excluded, whose kernel serves on for long", nodes: "a:excluded,expired b",
			entries: []string{"a 1 Announced leaving waiting", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "not while most Leases have expired", nodes: "a:excluded,expired b c:expired",
			entries: []string{"a 1 Announced leaving waiting", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "failover, and most Leases have expired", nodes: "a:expired,notready b c:expired",
			entries: []string{"a 1 Announced", "b 2 Waiting"}, want: "a 1 Probe, b 2 Probe",
		},
		{name: "failover, and most of the others are known to be out of service",
			nodes:   "a:expired,notready b c:expired,out d:expired,out",
			entries: []string{"a 1 Announced", "b 2 Waiting"}, want: "a 1 Probe, b 2 Takeover"},

		// Handover.
		{name: "handover begins", nodes: "a:excluded b", entries: []string{"a 1 Announced"}, want: "a 1 Probe leaving"},
		{
			name: "handover of a node that leaves its selector", nodes: "a:noagent b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{
			name: "handover at shutdown", nodes: "a:shutdown,notready b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{name: "handover by taint", nodes: "a:out b", entries: []string{"a 1 Announced"}, want: "a 1 Probe leaving"},
		{
			name: "handover after renumbering", nodes: "a:elsewhere b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{
			name: "handover, not yet seen", nodes: "a:excluded b", entries: []string{"a 1 Announced leaving"},
			want: "a 1 Probe leaving",
		},
		{
			name: "handover, seen", nodes: "a:excluded b", entries: []string{"a 1 Announced leaving observed"},
			want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "handover, taken over", nodes: "a:excluded b",
			entries: []string{"a 1 Announced leaving observed", "b 2 Takeover Announced"}, want: "b 2 Takeover",
		},
		{
			name: "handover, the old one has given way first", nodes: "a:excluded b",
			entries: []string{"a 1 Yielded leaving observed", "b 2 Takeover"}, want: "b 2 Takeover",
		},
		{
			name: "handover is not called back", nodes: "a b",
			entries: []string{"a 1 Announced leaving observed", "b 2 Takeover"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "handover called back in time", nodes: "a b", entries: []string{"a 1 Announced leaving observed"},
			want: "a 1 Probe",
		},
		{
			name: "handover, and the next dies", nodes: "a:excluded b:expired c",
			entries: []string{"a 1 Announced leaving observed", "b 2 Takeover"},
			want:    "a 1 Probe leaving, b 2 Takeover leaving, c 3 Takeover",
		},
		{name: "handover, and the only other dies", nodes: "a:excluded b:expired", entries: []string{
			"a 1 Announced leaving observed", "b 2 Takeover",
		}, want: "a 1 Probe",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers; b has an agent " +
				"that does not renew its Lease"},
		{name: "handover, and the only other fails", nodes: "a:excluded b", entries: []string{
			"a 1 Announced leaving observed", "b 2 Takeover Failed",
		},
			want: "a 1 Probe leaving, b 2 Takeover",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers; b has failed to " +
				"take it"},
		{
			name: "handover becomes failover", nodes: "a:excluded,expired b", entries: []string{"a 1 Announced leaving"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "failover becomes handover", nodes: "a:excluded b", entries: []string{"a 1 Announced", "b 2 Waiting"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{name: "handover, and there is no candidate", nodes: "a:excluded", entries: []string{"a 1 Announced"},
			want:     "a 1 Probe",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers"},
		{
			name: "handover of a node that leaves its LBNodeAgent", nodes: "a:leaving b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{name: "a node that leaves its LBNodeAgent, and there is no candidate", nodes: "a:leaving b:excluded",
			entries: []string{"a 1 Announced"},
			unplaced: "NoEligibleNode: a is leaving LBNodeAgent default; b is labelled " +
				"node.kubernetes.io/exclude-from-external-load-balancers"},
		{name: "a claim of a node that leaves its LBNodeAgent", nodes: "a:leaving", entries: []string{"a 1 Conflict"},
			unplaced: "NoEligibleNode: a is leaving LBNodeAgent default"},
		{
			name: "a failure of a node that leaves its LBNodeAgent", nodes: "a:leaving b",
			entries: []string{"a 1 Failed", "b 2 Announced"}, want: "b 2 Probe",
		},
		{
			name: "handover when the carrier goes", nodes: "a:down b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{name: "no carrier anywhere", nodes: "a:down b:down", entries: []string{"a 1 Announced"}, want: "a 1 Probe",
			unplaced: "NoEligibleNode: a has no carrier on eth0; b has no carrier on eth0"},

		{
			name: "failover by takeover, and the holder is back", nodes: "a b",
			entries: []string{"a 1 Announced", "b 2 Takeover"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{name: "handover, and the only other has failed to take over before the holder is told", nodes: "a:excluded b",
			entries: []string{"a 1 Announced", "b 2 Takeover Failed"},
			want:    "a 1 Probe leaving, b 2 Takeover",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers; b has failed to " +
				"take it"},
		{name: "handover, and the only other has failed to claim it", nodes: "a:excluded b", entries: []string{
			"a 1 Announced", "b 2 Failed",
		},
			want: "a 1 Probe, b 2 Probe",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers; b has failed to " +
				"take it"},
		{name: "handover of what was taken over once, and the only other has failed to claim it", nodes: "a:excluded b",
			entries: []string{"a 1 Takeover Announced", "b 2 Failed"},
			want:    "a 1 Takeover, b 2 Probe",
			unplaced: "NoEligibleNode: a is labelled node.kubernetes.io/exclude-from-external-load-balancers; b has failed to " +
				"take it"},
		{name: "a node that leaves its LBNodeAgent, and the only claimant dies", nodes: "a:leaving b:expired",
			entries: []string{"a 1 Announced leaving", "b 2"}, want: "b 2 Probe",
			unplaced: "NoEligibleNode: a is leaving LBNodeAgent default; b has an agent that does not renew its Lease"},
		{name: "a claimant that dies is all there is", nodes: "a:expired", entries: []string{"a 1"}, want: "a 1 Probe",
			unplaced: "NoEligibleNode: a has an agent that does not renew its Lease"},
		{
			name: "the claimant is unknown, and there is no other", nodes: "b:excluded", entries: []string{"a 1"},
			unplaced: "NoEligibleNode: b is labelled node.kubernetes.io/exclude-from-external-load-balancers",
		},

		// Agents that do nothing.
		{name: "a claimant that has not reported yet", nodes: "a b", entries: []string{"a 1"}, want: "a 1 Probe"},
		{
			name: "a claimant that is silent", nodes: "a b", entries: []string{"a 1 waiting"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "a claimant that is Pending for ever", nodes: "a b", entries: []string{"a 1 Pending observed waiting"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "a claimant that probes for long", nodes: "a:slowprobe b", entries: []string{"a 1 Pending observed waiting"},
			want: "a 1 Probe",
		},
		{
			name: "a claimant that waits for another to be silent", nodes: "a b",
			entries: []string{"a 1 Waiting observed waiting"}, want: "a 1 Probe",
		},
		{name: "a silent claimant is all there is", nodes: "a", entries: []string{"a 1 waiting"}, want: "a 1 Probe",
			unplaced: "NoEligibleNode: a has an agent that does not act on its entry"},
		{
			name: "a silent claimant has lost its claim", nodes: "a b", entries: []string{"a 1 leaving", "b 2 Pending"},
			want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "a silent claimant had it after all", nodes: "a b", entries: []string{"a 1 Announced leaving", "b 2"},
			want: "a 1 Probe",
		},
		{
			name: "a silent claimant is back, and the other is silent", nodes: "a b",
			entries: []string{"a 1 Pending leaving observed", "b 2 waiting"}, want: "a 3 Probe, b 2 Probe leaving",
		},
		{
			name: "failover, and the claimant is silent", nodes: "a:expired b c",
			entries: []string{"a 1 Announced", "b 2 waiting"}, want: "a 1 Probe, b 2 Probe leaving, c 3 Probe",
		},
		{name: "handover, and the claimant is silent: it may take over yet", nodes: "a:excluded b c", entries: []string{
			"a 1 Announced leaving observed", "b 2 Takeover waiting",
		},
			want: "a 1 Probe leaving, b 2 Takeover leaving, c 3 Probe"},
		{name: "handover, and the claimant is silent: it has had time to see that", nodes: "a:excluded b c",
			entries: []string{"a 1 Announced leaving observed", "b 2 Takeover leaving waiting", "c 3 Waiting"},
			want:    "a 1 Probe leaving, b 2 Takeover leaving, c 3 Takeover"},
		{
			name: "handover, and the holder does not react: its successor asks for it", nodes: "a:excluded b",
			entries: []string{"a 1 Announced leaving waiting"}, want: "a 1 Probe leaving, b 2 Probe",
		},
		{
			name: "handover, and the holder does not react, but answers", nodes: "a:out b",
			entries: []string{"a 1 Announced leaving waiting", "b 2 Waiting"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{
			name: "handover, and the holder does not react, nor answer", nodes: "a:shutdown b",
			entries: []string{"a 1 Announced leaving waiting", "b 2 Announced"}, want: "b 2 Probe",
		},
		{name: "handover, and the claimant that stood by does not take over", nodes: "a:out b c", entries: []string{
			"a 1 Announced leaving waiting", "b 2 Takeover Waiting waiting",
		},
			want: "a 1 Probe leaving, b 2 Takeover leaving, c 3 Probe"},
		{
			name: "handover, and the holder reacts late", nodes: "a:excluded b",
			entries: []string{"a 1 Announced leaving observed", "b 2 Pending"}, want: "a 1 Probe leaving, b 2 Takeover",
		},
		{name: "new, to a node that is Ready", nodes: "a:notready b:notready c", want: "c 1 Probe"},
		{name: "new, and none is Ready", nodes: "a:notready", want: "a 1 Probe"},
		{name: "a holder whose Announcement was made anew", nodes: "a:silent b", entries: []string{"a 1"}, want: "a 1 Probe"},
		{name: "remote, and one node never announces", nodes: "a b", remote: true, serves: "b", ending: "a",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual waiting"}, want: "b Virtual"},

		// Traffic that stays on the node.
		{
			name: "the holder has an endpoint", nodes: "a b", serves: "a b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
		},
		{
			name: "the holder has none", nodes: "a b", serves: "b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{name: "no node has any: it stays", nodes: "a b", serves: "-", entries: []string{"a 1 Announced"}, want: "a 1 Probe"},
		{name: "new, to a node with an endpoint", nodes: "a b c", serves: "c", want: "c 1 Probe"},
		{
			name: "new, and no node has any", nodes: "a", serves: "-",
			unplaced: "NoEligibleNode: a has no ready endpoint" + seePods,
		},
		{name: "the only one with an endpoint dies", nodes: "a:expired b", serves: "a", entries: []string{"a 1 Announced"},
			want:     "a 1 Probe",
			unplaced: "NoEligibleNode: a has an agent that does not renew its Lease; b has no ready endpoint" + seePods},
		{
			name: "what counts for Virtual only", nodes: "a b", serves: "virtually b", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
		},
		{name: "what counts for Virtual only, new", nodes: "a", serves: "virtually b", want: "a 1 Probe"},
		{
			name: "what counts for Virtual only, and it is", nodes: "a b", remote: true, serves: "virtually b",
			want: "b Virtual",
		},
		{name: "remote, where endpoints are", nodes: "a b c", remote: true, serves: "a c", want: "a Virtual, c Virtual"},
		{name: "remote, and an endpoint ends: until the others announce it", nodes: "a b c", remote: true, serves: "b c",
			ending:  "a",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual Announced", "c 0 Virtual"},
			want:    "a Virtual, b Virtual, c Virtual"},
		{name: "remote, and an endpoint ends: the others announce it", nodes: "a b", remote: true, serves: "b", ending: "a",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual Announced"}, want: "b Virtual"},
		{name: "remote, and an endpoint ends that never was announced", nodes: "a b", remote: true, serves: "b", ending: "a",
			entries: []string{"b 0 Virtual"}, want: "b Virtual"},
		{name: "remote, and an endpoint ends on a node that is excluded", nodes: "a:excluded b", remote: true, serves: "b",
			ending:  "a",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual"}, want: "b Virtual"},
		{
			name: "remote, and there are none", nodes: "a", remote: true, serves: "-",
			unplaced: "NoEligibleNode: a has no ready endpoint" + seePods,
		},

		// A node is cordoned, and hands its addresses over.
		{name: "cordoned", nodes: "a:cordoned b", entries: []string{"a 1 Announced"}, want: "a 1 Probe leaving"},
		{
			name: "cordoned, and another has it", nodes: "a:cordoned b",
			entries: []string{"a 1 Announced leaving observed", "b 2 Takeover Announced"}, want: "b 2 Takeover",
		},
		{
			name: "not cordoned any more: nothing moves back", nodes: "a b", entries: []string{"b 2 Takeover Announced"},
			want: "b 2 Takeover",
		},
		{
			name: "not cordoned any more, before another has it", nodes: "a b", entries: []string{"a 1 Announced leaving"},
			want: "a 1 Probe",
		},
		{
			name: "cordoned, and no other node has the Virtual address yet", nodes: "a:cordoned b", remote: true, serves: "a b",
			entries: []string{"a 0 Virtual Announced"}, want: "a Virtual, b Virtual",
		},
		{
			name: "cordoned, and without an endpoint", nodes: "a:cordoned b", remote: true, serves: "b",
			entries: []string{"a 0 Virtual Announced"}, want: "b Virtual",
		},
		{name: "all are cordoned", nodes: "a:cordoned b:cordoned", entries: []string{"a 1 Announced"}, want: "a 1 Probe"},
		{name: "all are cordoned, and it is new", nodes: "b:cordoned", want: "b 1 Probe"},
		{name: "new, and one is cordoned", nodes: "a b:cordoned c:cordoned", want: "a 1 Probe"},
		{
			name: "cordoned, and the only other is dead", nodes: "a:cordoned b:expired", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
		},
		{
			name: "cordoned, and the only other is in another subnet", nodes: "a:cordoned b:elsewhere",
			entries: []string{"a 1 Announced"}, want: "a 1 Probe",
		},
		{
			name: "cordoned, and the only other is excluded", nodes: "a:cordoned b:excluded",
			entries: []string{"a 1 Announced"}, want: "a 1 Probe",
		},
		{
			name: "cordoned, and no other has an endpoint", nodes: "a:cordoned b", serves: "a",
			entries: []string{"a 1 Announced"}, want: "a 1 Probe",
		},
		{
			name: "cordoned, and the endpoint is elsewhere", nodes: "a:cordoned b c", serves: "c",
			entries: []string{"a 1 Announced leaving observed"}, want: "a 1 Probe leaving, c 2 Takeover",
		},
		{
			name: "the holder dies, and the others are cordoned", nodes: "a:expired b:cordoned c:cordoned d:out",
			entries: []string{"a 1 Announced"}, want: "a 1 Probe, c 2 Probe",
		},
		{
			name: "the holder dies, and one is cordoned", nodes: "a:expired b c:cordoned", entries: []string{"a 1 Announced"},
			want: "a 1 Probe, b 2 Probe",
		},
		{
			name: "cordoned, and the only other is late", nodes: "a:cordoned b:late", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
			unplaced: "NoEligibleNode: a is unschedulable, and its LBNodeAgent has spec.onUnschedulable: HandOver; " +
				"b has an agent that is late to renew its Lease",
		},
		{
			name: "cordoned, and excluded as well", nodes: "a:cordoned,excluded b:cordoned", entries: []string{"a 1 Announced"},
			want: "a 1 Probe leaving",
		},
		{name: "remote, on all that are not cordoned", nodes: "a b:cordoned,shares", remote: true, want: "a Virtual"},
		{
			name: "remote, and routers still send to a node that is cordoned", remote: true,
			nodes: "a b:cordoned,withdrawing,shares", want: "a Virtual, b Virtual",
		},
		{
			name: "remote, and routers know a node that is cordoned, and never had an address", remote: true,
			nodes: "a b:cordoned,withdrawing", want: "a Virtual",
		},
		{
			name: "remote, and all are cordoned", nodes: "a:cordoned,shares b:cordoned", remote: true,
			want: "a Virtual, b Virtual",
		},
		{name: "remote, and the only other is dead", nodes: "a:cordoned,shares b:expired", remote: true,
			want: "a Virtual, b Virtual"},
		{name: "remote, and only a cordoned node has an endpoint", nodes: "a:cordoned b", remote: true, serves: "a",
			entries: []string{"a 0 Virtual Announced"}, want: "a Virtual"},
		{name: "remote, until another announces it", nodes: "a:cordoned b", remote: true, serves: "a b",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual"}, want: "a Virtual, b Virtual"},
		{name: "remote, as another announces it", nodes: "a:cordoned b", remote: true, serves: "a b",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual Announced"}, want: "b Virtual"},
		{name: "remote, and routers still send to it", nodes: "a:cordoned,withdrawing b", remote: true, serves: "a b",
			entries: []string{"a 0 Virtual Announced", "b 0 Virtual Announced"}, want: "a Virtual, b Virtual"},
		{name: "remote, and a cordoned node gets an endpoint", nodes: "a:cordoned,withdrawing b", remote: true,
			serves: "a b", entries: []string{"b 0 Virtual Announced"}, want: "b Virtual"},

		// Local or Virtual.
		{name: "remote, but not where a node leaves", nodes: "a b:leaving", remote: true, want: "a Virtual"},
		{
			name: "without a carrier it is Local still", nodes: "a:down b:elsewhere",
			unplaced: "NoEligibleNode: a has no carrier on eth0; b has no interface in the subnet of 10.0.0.1",
		},
		{
			name: "remote", nodes: "a b:expired c:excluded d:noagent e:silent f:notready", remote: true,
			want: "a Virtual, b Virtual, e Virtual, f Virtual",
		},
		{name: "remote, nowhere to go", nodes: "c:excluded d:noagent", remote: true, unplaced: "NoEligibleNode: " +
			"c is labelled node.kubernetes.io/exclude-from-external-load-balancers; d runs no agent"},
		{name: "remote, and there are no nodes", remote: true, unplaced: "NoEligibleNode: there are no nodes"},
		{
			name: "remote, and routers still send to a node that is excluded", remote: true,
			nodes: "a b:excluded,withdrawing,shares", want: "a Virtual, b Virtual",
		},
		{
			name: "remote, and routers know a node that is excluded, and never had an address", remote: true,
			nodes: "a b:excluded,withdrawing", want: "a Virtual",
		},
		{
			name: "remote, and a node that is excluded has withdrawn its routes", remote: true,
			nodes: "a b:excluded,shares", want: "a Virtual",
		},
		{name: "in no node's subnet", nodes: "a:elsewhere b:elsewhere", want: "a Virtual, b Virtual"},
		{name: "a node that is down makes it Local", nodes: "a:expired,notready b:elsewhere", unplaced: "NoEligibleNode: " +
			"a has an agent that does not renew its Lease; b has no interface in the subnet of 10.0.0.1"},
		{
			name: "facts are waited for", nodes: "a:elsewhere b:silent",
			unplaced: "WaitingForFacts: waiting for the agent of node b to report its interfaces",
		},
		{name: "facts that never come are not", nodes: "a:elsewhere b:overdue", want: "a Virtual, b Virtual"},
		{name: "a node that is gone makes nothing Local", nodes: "a:gone b:elsewhere", want: "b Virtual"},
		{
			name: "facts of a node just made", nodes: "a:elsewhere b:awaited,expired",
			unplaced: "WaitingForFacts: waiting for the agent of node b to report its interfaces",
		},
		{name: "facts of a dead node are not", nodes: "a:elsewhere b:silent,expired", want: "a Virtual, b Virtual"},
		{name: "facts of one suffice for Local", nodes: "a b:silent", want: "a 1 Probe"},
		{name: "Local in use stays Local", nodes: "a:elsewhere b:elsewhere", entries: []string{"a 1 Announced"},
			want: "a 1 Probe",
			unplaced: "NoEligibleNode: a has no interface in the subnet of 10.0.0.1; b has no interface in the subnet of " +
				"10.0.0.1"},
		{
			name: "Virtual in use stays Virtual", nodes: "a b", entries: []string{"a 0 Virtual Announced"},
			want: "a Virtual, b Virtual",
		},
		{
			name: "Local in use stays Local, whatever becomes of its group", nodes: "a b", entries: []string{"a 1 Announced"},
			remote: true, want: "a 1 Probe",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := placement.Inputs{
				Nodes: nodes(t, row.nodes),
				Addresses: []placement.Address{
					{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Mask: 24, Services: []string{"a/b"}},
				},
				LingeringReports: map[netip.Addr][]placement.LingeringReport{},
			}
			for _, word := range strings.Fields(row.lingering) {
				name, long := strings.CutSuffix(word, ":long")
				l := placement.LingeringReport{Node: name}
				if long {
					l.Age = placement.LingeringTime
				}
				inputs.LingeringReports[addr] = append(inputs.LingeringReports[addr], l)
			}
			if row.remote {
				inputs.Addresses[0].PoolType = v1.PoolTypeRemote
			}
			if row.serves != "" {
				inputs.Addresses[0].ServingNodes = map[string]bool{}
				serves, virtually := strings.CutPrefix(row.serves, "virtually")
				inputs.Addresses[0].IsUnrestrictedIfLocal = virtually
				for _, name := range strings.Fields(strings.Trim(serves, "-")) {
					inputs.Addresses[0].ServingNodes[name] = true
				}
			}
			inputs.Addresses[0].TerminatingNodes = map[string]bool{row.ending: row.ending != ""}
			for _, s := range row.entries {
				inputs.Entries = append(inputs.Entries, entry(t, addr, s))
			}
			got := placement.Place(inputs)
			if diff := cmp.Diff(row.want, show(got)); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if twice := entriesTwice(got); twice != "" {
				t.Errorf("two entries: %s", twice)
			}
			unplaced := ""
			if why, ok := got.Unplaced[addr]; ok {
				unplaced = why.Reason + ": " + why.Message
			}
			if diff := cmp.Diff(row.unplaced, unplaced); diff != "" {
				t.Errorf("unplaced (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEntries(t *testing.T) {
	v4, v6, routed := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("172.16.0.1")
	inputs := placement.Inputs{
		Nodes: nodes(t, "a:expired b"),
		Addresses: []placement.Address{
			{Addr: v6, Group: "g", PoolType: v1.PoolTypeLocal, Mask: 128, SkipsProbe: true, Services: []string{"a/b"}},
			{Addr: v4, Group: "g", PoolType: v1.PoolTypeLocal, Mask: 32, SkipsProbe: true, Services: []string{"a/b", "a/c"}},
			{Addr: routed, Group: "r", PoolType: v1.PoolTypeRemote, Mask: 32, SkipsProbe: true, Services: []string{"a/d"}},
		},
		Entries:      []placement.Entry{entry(t, v4, "a 7 Announced")},
		LocalSubnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")},
	}
	got := placement.Place(inputs)
	want := []v1.AnnouncedAddress{
		{Address: "10.0.0.1", PrefixLength: 32, Interface: "eth0", Type: v1.AnnounceLocal, ServiceGroup: "g",
			Services:    []string{"a/b", "a/c"},
			ClaimPolicy: v1.ClaimProbe, Epoch: 8, PreviousMACs: []string{"mac-a"}},
		{Address: "fd00::1", PrefixLength: 128, Interface: "eth0", Type: v1.AnnounceLocal, ServiceGroup: "g",
			Services:    []string{"a/b"},
			ClaimPolicy: v1.ClaimProbe, Epoch: 1, SkipProbe: true},
	}
	if diff := cmp.Diff(want, placement.SpecsOf(got.Entries["b"])); diff != "" {
		t.Errorf("entries of b (-want +got):\n%s", diff)
	}
	common := map[string][]placement.Placed{"default": {
		{Addr: routed, AnnouncedAddress: v1.AnnouncedAddress{
			Address: "172.16.0.1", PrefixLength: 32, Interface: "kube-lb0", Type: v1.AnnounceVirtual, ServiceGroup: "r",
			Services: []string{"a/d"}, ClaimPolicy: v1.ClaimProbe,
		}},
	}}
	if diff := cmp.Diff(common, got.SharedEntries, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("in common (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int32{"a": 1, "b": 1}, got.HeartbeatSeconds); diff != "" {
		t.Errorf("heartbeats (-want +got):\n%s", diff)
	}
	inputs.LocalSubnets = nil
	if diff := cmp.Diff(map[string]int32{"a": 10, "b": 10}, placement.Place(inputs).HeartbeatSeconds); diff != "" {
		t.Errorf("heartbeats without local pools (-want +got):\n%s", diff)
	}
}

// TestBalance checks that new choices spread, each family by itself.
func TestBalance(t *testing.T) {
	inputs := placement.Inputs{Nodes: nodes(t, "a b c d")}
	for i := range 42 {
		inputs.Addresses = append(inputs.Addresses,
			placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), PoolType: v1.PoolTypeLocal},
			placement.Address{Addr: netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1)), PoolType: v1.PoolTypeLocal})
	}
	const share = 11 // 42 / 4, rounded up
	for name, entries := range placement.Place(inputs).Entries {
		count := map[bool]int{}
		for _, e := range entries {
			count[strings.Contains(e.Address, ":")]++
		}
		if count[true] > share || count[false] > share {
			t.Errorf("node %s has %d IPv4 and %d IPv6 addresses", name, count[false], count[true])
		}
	}
}

// TestMinimalMovement checks that the end of a node moves only what it had.
func TestMinimalMovement(t *testing.T) {
	inputs := placement.Inputs{Nodes: nodes(t, "a b c d")}
	for i := range 40 {
		inputs.Addresses = append(
			inputs.Addresses,
			placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), PoolType: v1.PoolTypeLocal},
		)
	}
	holder := map[string]string{}
	for name, entries := range placement.Place(inputs).Entries {
		for _, e := range entries {
			inputs.Entries = append(
				inputs.Entries,
				placement.Entry{
					Node: name, Addr: e.Addr, Spec: e.AnnouncedAddress, ReportedState: v1.StateAnnounced, IsObserved: true,
				},
			)
			holder[e.Address] = name
		}
	}
	inputs.Nodes[1].Liveness = placement.Expired
	for name, entries := range placement.Place(inputs).Entries {
		for _, e := range entries {
			if was := holder[e.Address]; was != name && was != "b" {
				t.Errorf("%s moves from %s to %s", e.Address, was, name)
			}
		}
	}
}

// TestInterface checks which of several interfaces holds an address.
func TestInterface(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	iface := func(name, subnet string, down bool) placement.Interface {
		return placement.Interface{Name: name, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, IsDown: down}
	}
	for _, row := range []struct {
		name       string
		interfaces []placement.Interface
		want       string
	}{
		{"the longest mask", []placement.Interface{iface("a", "10.0.0.0/16", false), iface("b", "10.0.0.0/24", false)}, "b"},
		{
			"of equal ones the first by name",
			[]placement.Interface{iface("b", "10.0.0.0/24", false), iface("a", "10.0.0.0/24", false)}, "a",
		},
		{"one with a carrier", []placement.Interface{iface("a", "10.0.0.0/24", true), iface("b", "10.0.0.0/16", false)}, "b"},
		{
			"not one that has the address for itself",
			[]placement.Interface{iface("a", "10.0.0.1/32", false), iface("b", "10.0.0.0/8", false)}, "b",
		},
	} {
		n := healthy("a")
		n.Interfaces = row.interfaces
		got := placement.Place(placement.Inputs{
			Nodes: []placement.Node{n}, Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal}},
		}).Entries["a"]
		if len(got) != 1 || string(got[0].Interface) != row.want || got[0].PrefixLength != 32 {
			t.Errorf("%s: %+v, want %s", row.name, got, row.want)
		}
	}
}

// TestOrphans checks that an address whose group is gone keeps its mask.
func TestOrphans(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	inputs := placement.Inputs{
		Nodes: nodes(t, "a b"), Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeRemote}},
	}
	mask := func() int32 { return placement.Place(inputs).SharedEntries["default"][0].PrefixLength }
	if got := mask(); got != 32 {
		t.Errorf("the mask of one that was never announced is %d", got)
	}
	apart := entry(t, addr, "b 0 Virtual Announced")
	apart.Spec.PrefixLength = 24
	inputs.Entries = []placement.Entry{apart}
	if got := mask(); got != 24 {
		t.Errorf("the mask of one that is announced by one node is %d", got)
	}
	inputs.Entries, inputs.SharedEntries = nil, []placement.SharedEntry{
		{LBNodeAgent: "default", Addr: addr, Spec: apart.Spec},
	}
	if got := mask(); got != 24 {
		t.Errorf("the mask of one that is announced by all is %d", got)
	}
}

// TestMoves checks what is said of addresses on their way.
func TestMoves(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct {
		name, nodes string
		entries     []string
		want        *placement.Move
	}{
		{"settled", "a b", []string{"a 1 Announced"}, nil},
		{
			"new", "a b:excluded", nil,
			&placement.Move{
				Kind: placement.FirstPlacement, To: "a", IsNew: true,
				NotChosen: "b is labelled node.kubernetes.io/exclude-from-external-load-balancers",
			},
		},
		{"failover begins", "a:expired b", []string{"a 1 Announced"},
			&placement.Move{
				Kind: placement.Failover, Cause: placement.CauseLease, From: "a", To: "b", IsNew: true,
				Message: "a has an agent that does not renew its Lease", NotChosen: "a has an agent that does not renew its Lease",
			}},
		{"failover goes on", "a:expired b", []string{"a 1 Announced", "b 2 Waiting"},
			&placement.Move{
				Kind: placement.Failover, Cause: placement.CauseLease, From: "a", To: "b",
				Message: "a has an agent that does not renew its Lease",
			}},
		{"handover begins", "a:shutdown b", []string{"a 1 Announced"},
			&placement.Move{
				Kind: placement.Handover, From: "a", To: "b", IsNew: true, Message: "a is shutting down",
				NotChosen: "a is shutting down",
			}},
		{
			"handover goes on", "a:shutdown b", []string{"a 1 Announced leaving"},
			&placement.Move{Kind: placement.Handover, From: "a", To: "b", Message: "a is shutting down"},
		},
	} {
		inputs := placement.Inputs{
			Nodes: nodes(t, row.nodes), Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal}},
		}
		for _, s := range row.entries {
			inputs.Entries = append(inputs.Entries, entry(t, addr, s))
		}
		var got *placement.Move
		if m, ok := placement.Place(inputs).Moves[addr]; ok {
			got = &m
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
	}
}

// TestFailedOver has a failover be over, of an address that another node could claim in different ways.
func TestFailedOver(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct{ holder, message string }{
		{"b 2 Announced", "nobody answered for it: a has an agent that does not renew its Lease"},
		{
			"b 2 Takeover Announced",
			"it was taken over, although its node still answered for it: a has an agent that does not renew its Lease",
		},
	} {
		inputs := placement.Inputs{
			Nodes:     nodes(t, "a:expired,notready b"),
			Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal}},
			Entries:   []placement.Entry{entry(t, addr, "a 1 Announced"), entry(t, addr, row.holder)},
		}
		want := placement.Move{
			Kind: placement.Failover, Cause: placement.CauseLease, From: "a", To: "b", Message: row.message,
		}
		if diff := cmp.Diff(want, placement.Place(inputs).EndedFailovers[addr]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.holder, diff)
		}
	}
}

// TestNotFailedOver has no failover be over while the holder is the only node, or another one's entry is no dead one's.
func TestNotFailedOver(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for name, row := range map[string]struct {
		nodes   string
		entries []string
	}{
		"a handover, at first":   {"a:excluded b", []string{"a 1 Announced leaving observed", "b 2"}},
		"a handover, at last":    {"a:excluded b", []string{"a 1 Announced leaving observed", "b 2 Announced"}},
		"the holder is dead":     {"a:expired,notready b", []string{"a 1 Announced observed"}},
		"a dead node has failed": {"a:expired,notready b", []string{"a 1 Failed observed", "b 2 Announced observed"}},
	} {
		inputs := placement.Inputs{
			Nodes: nodes(t, row.nodes), Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal}},
		}
		for _, text := range row.entries {
			inputs.Entries = append(inputs.Entries, entry(t, addr, text))
		}
		if ended := placement.Place(inputs).EndedFailovers; len(ended) > 0 {
			t.Errorf("%s: %v", name, ended)
		}
	}
}
