package plan

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Held is a Local address that the node has.
type Held struct {
	Address
	Epoch int64
	// Announcement is the UID of the Announcement that has the entry; empty if it is not known.
	Announcement types.UID
	// IsUndefended means that the agent does not defend the address, as the node is to hand it over, or
	// nothing asks for it. An address that IsProvisional is not defended either.
	IsUndefended bool
	// PreviousMACs are the Ethernet addresses of the node that held the address before.
	PreviousMACs []string
	// HigherEpochMACs are the Ethernet addresses of nodes that may claim the address under a higher
	// epoch, and LowerEpochMACs those of one that may claim it under a lower epoch.
	HigherEpochMACs, LowerEpochMACs []string
	// Contest is the claim of another node that the manager asks this one to check.
	Contest Contest
	// IsProvisional means that the node has claimed the address from a silent one, and the manager
	// has not said yet that the node is to have it. The agent does not defend the address.
	IsProvisional bool
}

// heldAsDesired returns the Local addresses of the desired that are announced.
func heldAsDesired(settings Settings, desired []Desired, isAnnounced func(netip.Addr) bool) []Held {
	count := 0
	for i := range desired {
		if desired[i].IsLocal {
			count++
		}
	}
	held := make([]Held, 0, count)
	for i := range desired {
		d := &desired[i]
		if d.IsLocal && isAnnounced(d.Addr) {
			held = append(held, Held{
				Address: settings.kernelAddress(d), Epoch: d.Epoch, Announcement: d.Announcement, IsUndefended: d.IsHandingOver,
				PreviousMACs: d.PreviousMACs, HigherEpochMACs: d.HigherEpochMACs, LowerEpochMACs: d.LowerEpochMACs,
				Contest: d.Contest, IsProvisional: d.IsProvisional,
			})
		}
	}
	return held
}

// heldThoughNotDesired returns the Local addresses among those of ours that the agent keeps
// although nothing asks for them. The agent does not defend them.
func heldThoughNotDesired(settings Settings, kept []Address) []Held {
	var held []Held
	for _, a := range kept {
		if a.IsOurs && a.Interface != settings.Selection.VirtualInterface {
			held = append(held, Held{Address: a, IsUndefended: true})
		}
	}
	return held
}
