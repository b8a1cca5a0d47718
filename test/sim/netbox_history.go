package sim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/test/netbox"
)

// How long it takes, once nothing is wrong any more, until each Service has asked NetBox again, and until the
// manager has compared all records twice, with what follows from that.
const netboxSettled, netboxCompared = 3 * time.Minute, 25 * time.Minute

// netboxHistory is what histories with a NetBox have besides.
type netboxHistory struct {
	*netboxLaws
	// others are the ids of the records of others.
	others []int64
	// isFatal means that the next manager that writes into NetBox dies before it gets an answer.
	isFatal bool
}

func (h *History) beginNetBox() {
	h.netbox = &netboxHistory{netboxLaws: newNetBoxLaws(h.laws, h.NetBox)}
	h.NetBox.OnWrite = func(who string) {
		h.netbox.noteWrite(who)
		if r := h.replicaNamed(who); r != nil && h.netbox.isFatal {
			h.netbox.isFatal = false
			h.Tell("", "%s crashes", who)
			r.Crash()
		}
	}
	h.Inspect = func() {
		h.laws.inspect()
		h.netbox.inspect()
	}
}

// netboxDeeds are the deeds of a history with a NetBox: those that concern it, Services and managers.
func (h *History) netboxDeeds() []deed {
	n := h.NetBox
	return []deed{
		{16, h.createService}, {10, h.deleteService}, {1, h.moveEndpoints},
		{1, h.powerOff}, {1, h.sleep}, {1, h.apiAway}, {2, h.killManager}, {1, h.stopManager}, {2, h.pauseManager},
		{1, h.cutManager}, {4, h.killManagerInRequest},
		{2, h.netboxTrouble("NetBox is down", &n.IsDown)}, {2, h.netboxTrouble("nobody hears who dials NetBox", &n.IsCut)},
		{2, h.netboxTrouble("NetBox hangs", &n.Hangs)}, {2, h.netboxTrouble("NetBox is broken", &n.IsBroken)},
		{4, h.netboxTrouble("NetBox is slow", &n.IsSlow)},
		{6, h.netboxTrouble("answers of NetBox get lost", &n.LosesAnswers)},
		{2, h.refuseToken}, {3, h.takeAddress}, {2, h.giveAddressBack}, {1, h.deleteRecord},
	}
}

// settleNetBox lets the manager compare records, which no agent has to do with, and looks at what has become of them.
func (h *History) settleNetBox() {
	for _, n := range h.Nodes {
		n.KillAgent()
	}
	h.Run(netboxCompared)
	h.netbox.settled()
}

// replicaNamed returns the replica whose program has a name and runs, or nil.
func (h *History) replicaNamed(name string) *Replica {
	for _, r := range h.Replicas {
		if r.name == name && !r.isKilled {
			return r
		}
	}
	return nil
}

// killManagerInRequest lets a manager die between its next request that changes something in NetBox and the answer.
func (h *History) killManagerInRequest() { h.netbox.isFatal = true }

// netboxTrouble returns the deed that makes something be wrong with NetBox for a while.
func (h *History) netboxTrouble(what string, isWrong *bool) func() {
	return func() {
		h.begin(nil, what, nil, doing(func() { *isWrong = true }), doing(func() { *isWrong = false }))
	}
}

// refuseToken makes NetBox know no token for a while.
func (h *History) refuseToken() {
	set := func(tokens map[string]netbox.Token) func() error {
		return doing(func() { h.NetBox.Server.SetTokens(tokens) })
	}
	h.begin(nil, "NetBox does not know the token", nil, set(nil), set(map[string]netbox.Token{netbox.TokenV1: {}}))
}

// maxOthers is how many addresses others have at the most.
const maxOthers = 4

// takeAddress makes somebody else take an address of the prefixes, if that is free, or one of the tenant's.
func (h *History) takeAddress() {
	n, i := h.NetBox, h.Pick(len(netboxPrefixes))
	if len(h.netbox.others) >= maxOthers {
		return
	}
	description := "a printer"
	if h.Chance(0.3) {
		free := slices.DeleteFunc(n.Server.Addresses(), func(r netbox.Address) bool { return r.Status != "reserved" })
		if len(free) == 0 || n.Server.Version == netbox.V44 { // which lets nobody see that another is first
			return
		}
		taken := free[h.Pick(len(free))]
		n.write(people, func() {
			if n.Server.Edit(taken.ID, map[string]any{"status": "active", "description": description}) {
				h.netbox.others = append(h.netbox.others, taken.ID)
			}
		})
		h.Tell(people, "have taken %s of the tenant's", taken.Address)
		return
	}
	addr := netip.PrefixFrom(addressOf(netboxPrefixes[i], byte(1+h.Pick(14))), netboxPrefixes[i].Bits())
	n.write(people, func() {
		id := n.Server.Create("ip-addresses", map[string]any{"address": addr.String(), "description": description})
		if id != 0 {
			h.Tell(people, "have taken %s", addr)
			h.netbox.others = append(h.netbox.others, id)
		}
	})
}

// giveAddressBack makes somebody else give an address up.
func (h *History) giveAddressBack() {
	n := h.NetBox
	if len(h.netbox.others) == 0 {
		return
	}
	i := h.Pick(len(h.netbox.others))
	id := h.netbox.others[i]
	h.netbox.others = slices.Delete(h.netbox.others, i, i+1)
	for _, r := range n.Server.Addresses() {
		if r.ID != id {
			continue
		}
		h.Tell(people, "give %s back", r.Address)
		n.write(people, func() {
			if r.Tenant == "" {
				n.Server.Delete(id)
			} else {
				n.Server.Edit(id, map[string]any{"status": "reserved", "description": ""})
			}
		})
	}
}

// deleteRecord makes a person delete a record of the cluster's, by mistake. Those of the tenant stay.
func (h *History) deleteRecord() {
	n := h.NetBox
	ours := slices.DeleteFunc(n.Server.Addresses(), func(r netbox.Address) bool {
		return !h.netbox.isOurs(&r) || r.Tenant != ""
	})
	if len(ours) == 0 {
		return
	}
	deleted := ours[h.Pick(len(ours))]
	h.Tell(people, "delete the record of %s", deleted.Address)
	n.write(people, func() { n.Server.Delete(deleted.ID) })
}
