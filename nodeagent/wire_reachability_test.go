package nodeagent

import (
	"testing"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// TestWireReachability asks on a real link for addresses of a holder that answers for its own addresses, and not for
// these: they become unreachable, and reachable as soon as the holder answers.
func TestWireReachability(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w := newWireBy(t, func(w *wire) {
		plugVeth(w)
		w.neighbour.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
		w.neighbour.Run(t, "ip addr add 2001:db8::12/64 dev eth0 nodad")
		ann := askingFor(3)
		asking := ann.Spec.Asking
		asking.Holder.Addresses, asking.Holder.MACs = []string{"192.0.2.12", "2001:db8::12"}, []string{neighbour.String()}
		asking.Askers = asking.Askers[:1]
		asking.Askers[0].Addresses = []string{"192.0.2.11", "2001:db8::11"}
		asking.Addresses = append(asking.Addresses, purelbv1.AskedAddress{
			Address: "2001:db8::1", Epoch: 3, Services: []string{"test/web"},
		})
		if err := w.Client.Create(t.Context(), ann); err != nil {
			t.Fatal(err)
		}
	}, true)
	says := func(want string) func() bool {
		return func() bool {
			found := w.get("node1-asking").Status.Reachability
			for _, r := range found {
				if string(r.Reachable)+" "+r.Reason != want {
					return false
				}
			}
			return len(found) == 2
		}
	}
	w.within("the addresses are unreachable", says("False NoAnswer"))
	w.neighbour.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	w.neighbour.Run(t, "ip addr add 2001:db8::1/128 dev eth0 nodad")
	w.within("the addresses are reachable", says("True Answered"))
}
