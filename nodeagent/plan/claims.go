package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Claim is the claim of a Local address by a node that an Announcement with standby names as
// the address's successor: the node that held the address is silent. The claim is provisional:
// it ends when an entry asks this node for the address, and when the API server names this node
// under the claim's epoch no more.
type Claim struct {
	Interface string `json:"interface"`
	// Epoch that is reserved for the claim.
	Epoch int64 `json:"epoch"`
	// PreviousHolder is the node that had the address, and SilentFor for how long it had been silent.
	PreviousHolder string        `json:"node"`
	SilentFor      time.Duration `json:"silentFor"`
	// QuietAt is when the watcher found that no station answers for the address.
	QuietAt time.Time `json:"-"`
}

// updateClaims takes over the claims that watchers have made, and forgets those that are over. What
// the checkpoint says ends none: the manager may know better. Nor does what the API server says
// while an Announcement is missing, which may ask for the address. An earlier claim that has not made the node have the
// address is also over when the node answers again from which it was claimed: if that node dies, watchers claim anew.
func (d *decisionBuilder) updateClaims() {
	if len(d.in.Claims)+len(d.memory.Claims) == 0 {
		return
	}
	d.successionIndex = newSuccessionIndex(d.in)
	claims := map[netip.Addr]Claim{}
	for addr, c := range d.memory.Claims {
		if !d.in.LivingNodes[WatchedNode{c.Interface, c.PreviousHolder}] || d.in.hasClaimed(addr, c) {
			claims[addr] = c
		}
	}
	maps.Copy(claims, d.in.Claims)
	if !d.IsNothingKnown && !d.in.IsFromCheckpoint && d.withdrawNothingFor == 0 {
		maps.DeleteFunc(claims, func(addr netip.Addr, c Claim) bool { return d.successionIndex.isOver(addr, c) })
	}
	d.memory.Claims = claims
}

// hasClaimed reports whether the node has an address that it has claimed, and has not yielded it.
func (in *Inputs) hasClaimed(addr netip.Addr, c Claim) bool {
	y, isYielded := in.Yields[addr]
	return (!isYielded || y.Epoch < c.Epoch) && slices.ContainsFunc(in.Observed.Addresses, func(a Address) bool {
		return a.IsOurs && a.Interface == c.Interface && a.Prefix.Addr() == addr
	})
}

// successionIndex is what the API server says of the addresses that the node may have by claims.
type successionIndex struct {
	// highestEpochs are those of the entries that ask for addresses, by address.
	highestEpochs map[netip.Addr]int64
	successions   map[successionKey]succession
}

// successionKey is an address, and the epoch that is reserved for the node's claim of it.
type successionKey struct {
	addr  netip.Addr
	epoch int64
}

// succession is what a standby says of an address for which it names the node as a successor.
type succession struct {
	standby *purelbv1.Standby
	address *purelbv1.StandbyAddress
}

func newSuccessionIndex(in *Inputs) *successionIndex {
	index := &successionIndex{highestEpochs: map[netip.Addr]int64{}, successions: map[successionKey]succession{}}
	for i := range in.Announcements {
		for j := range in.Announcements[i].Spec.Addresses {
			e := &in.Announcements[i].Spec.Addresses[j]
			addr := parseAddrOrZero(e.Address)
			index.highestEpochs[addr] = max(index.highestEpochs[addr], e.Epoch)
		}
	}
	for i := range in.Standbys {
		spec := &in.Standbys[i].Spec
		for j := range spec.Standby.Addresses {
			a := &spec.Standby.Addresses[j]
			key := successionKey{parseAddrOrZero(a.Address), purelbv1.ReservedEpochOf(a.Successors, spec.NodeName)}
			index.successions[key] = succession{spec.Standby, a}
		}
	}
	return index
}

// isOver reports whether the node holds an address by a claim no more: an entry asks for it, or
// the manager has refused the claim.
func (index *successionIndex) isOver(addr netip.Addr, c Claim) bool {
	r, isNamed := index.successionOf(addr, c)
	return !isNamed || r.address.Epoch > c.Epoch || index.highestEpochs[addr] >= c.Epoch
}

func (index *successionIndex) successionOf(addr netip.Addr, c Claim) (succession, bool) {
	r, isNamed := index.successions[successionKey{addr, c.Epoch}]
	return r, isNamed
}

// withClaims returns what the node is to have, claims included. Of an address that an entry asks
// for, too, the higher epoch counts.
func withClaims(desired []Desired, claims map[netip.Addr]Claim, index *successionIndex, now time.Time) []Desired {
	if len(claims) == 0 {
		return desired
	}
	desired = slices.DeleteFunc(desired, func(d Desired) bool {
		c, isClaimed := claims[d.Addr]
		return isClaimed && c.Epoch > d.Epoch
	})
	isAskedFor := map[netip.Addr]bool{}
	for i := range desired {
		isAskedFor[desired[i].Addr] = true
	}
	for addr, c := range claims {
		if !isAskedFor[addr] {
			desired = append(desired, desiredByClaim(addr, c, index, now))
		}
	}
	slices.SortFunc(desired, func(a, b Desired) int { return a.Addr.Compare(b.Addr) })
	return desired
}

// desiredByClaim returns what a claim asks for. The watcher has just asked the link, so the agent
// need not; later it has to, as when the node boots.
func desiredByClaim(addr netip.Addr, c Claim, index *successionIndex, now time.Time) Desired {
	d := Desired{
		Addr: addr, Prefix: netip.PrefixFrom(addr, addr.BitLen()), Interface: c.Interface, IsLocal: true, IsProvisional: true,
		Epoch: c.Epoch,
	}
	quietFor := now.Sub(c.QuietAt)
	if quietFor >= 0 && quietFor < watcherSilenceValidFor {
		d.SkipsProbe, d.SilentSince = true, c.QuietAt.Add(-c.SilentFor)
	}
	r, isNamed := index.successionOf(addr, c)
	if !isNamed {
		return d
	}
	d.PreviousMACs = r.standby.Watched.MACs
	for _, s := range r.address.Successors {
		switch macs := macsOfNode(r.standby.OtherSuccessors, s.NodeName); {
		case s.Epoch > c.Epoch:
			d.HigherEpochMACs = append(d.HigherEpochMACs, macs...)
		case s.Epoch < c.Epoch:
			d.LowerEpochMACs = append(d.LowerEpochMACs, macs...)
		}
	}
	return d
}

// macsOfNode returns the Ethernet addresses of the node of a name.
func macsOfNode(nodes []purelbv1.StandbyNode, name string) []string {
	for i := range nodes {
		if nodes[i].NodeName == name {
			return nodes[i].MACs
		}
	}
	return nil
}

// standbyAddressStatuses returns what the status of an Announcement with standby says of addresses: what
// became of those that the node has claimed, also once entries ask for them under the same epochs.
func standbyAddressStatuses(
	ann *purelbv1.Announcement, claims map[netip.Addr]Claim, resultOf func(netip.Addr) Result, now metav1.Time,
) []purelbv1.AddressStatus {
	previous := statusesOf(ann)
	var statuses []purelbv1.AddressStatus
	for i := range ann.Spec.Standby.Addresses {
		a := &ann.Spec.Standby.Addresses[i]
		addr, epoch := parseAddrOrZero(a.Address), purelbv1.ReservedEpochOf(a.Successors, ann.Spec.NodeName)
		if r := resultOf(addr); addr.IsValid() && r.State != "" && r.Epoch == epoch {
			if c, isClaimed := claims[addr]; isClaimed && r.Message == "" {
				r.Message = fmt.Sprintf("%s had not answered for %s", c.PreviousHolder, c.SilentFor.Round(10*time.Millisecond))
			}
			statuses = append(statuses, addressStatus(a.Address, r, previous[addr], now))
		}
	}
	return statuses
}
