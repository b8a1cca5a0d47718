package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Desired is one address that the node is to have.
type Desired struct {
	Addr      netip.Addr
	Prefix    netip.Prefix
	Interface string
	IsLocal   bool
	// IsTakeover means that the node claims the address even though another station may
	// answer for it: the node has not had the address under this epoch yet.
	IsTakeover bool
	// SkipsProbe means that the node claims the address without asking the link.
	SkipsProbe bool
	// IsHandingOver means that the address is being handed over: the node keeps and does not
	// claim it.
	IsHandingOver bool
	// PreviousMACs are the Ethernet addresses of the node that held the address before.
	PreviousMACs []string
	// HigherEpochMACs are those of successors, which claim the address under a higher epoch than the
	// node has it, and LowerEpochMACs those of one that claims it under a lower epoch.
	HigherEpochMACs, LowerEpochMACs []string
	// Contest is the claim of another node that the manager asks this one to check.
	Contest Contest
	// IsProvisional means that the node has the address by a Claim, and SilentSince is when the other
	// node answered last; zero unless the Claim has just been made.
	IsProvisional bool
	SilentSince   time.Time
	// HealthPort is the port at which the service proxy says whether it serves the address;
	// 0 if that does not matter.
	HealthPort int32
	Epoch      int64
	Services   []string
	// Announcement is the UID of the Announcement that has the entry, and NodeAnnouncements are
	// those of all Announcements of the node. They are empty for shared entries, and as far as
	// the UIDs are not known.
	Announcement      types.UID
	NodeAnnouncements []types.UID
}

// MergeDesired returns the addresses of all Announcements of a node and of the shared
// entries, ascending, and a Result for each address that cannot be used. Of an address that
// is in several objects (for a moment, while it moves between slices) the entry with the
// highest epoch counts, then the one in the first Announcement by name, and last the shared
// entry.
func MergeDesired(
	announcements []purelbv1.Announcement, shared []purelbv1.CommonAnnouncement,
) ([]Desired, map[netip.Addr]Result) {
	announcements = slices.Clone(announcements)
	slices.SortFunc(announcements, func(a, b purelbv1.Announcement) int { return cmp.Compare(a.Name, b.Name) })
	entries := 0
	var uids []types.UID
	var successors []purelbv1.StandbyNode
	for i := range announcements {
		entries += len(announcements[i].Spec.Addresses)
		successors = append(successors, announcements[i].Spec.Successors...)
		if uid := announcements[i].UID; uid != "" { // checkpoints of earlier versions have none
			uids = append(uids, uid)
		}
	}
	for i := range shared {
		entries += len(shared[i].Spec.Addresses)
	}
	m := desiredMerger{
		desired: make([]Desired, 0, entries), invalid: map[netip.Addr]Result{}, uids: uids, successors: successors,
	}
	wanted := make([]wantedEntry, 0, entries)
	for i := range announcements {
		wanted = appendWanted(wanted, announcements[i].Spec.Addresses, &announcements[i])
	}
	for i := range shared {
		wanted = appendWanted(wanted, shared[i].Spec.Addresses, nil)
	}
	slices.SortFunc(wanted, func(a, b wantedEntry) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.rank, b.rank))
	})
	for _, w := range wanted {
		m.merge(w)
	}
	return m.desired, m.invalid
}

// wantedEntry is an entry, its address, and the Announcement that has it; nil for a shared entry.
type wantedEntry struct {
	addr netip.Addr
	*purelbv1.AnnouncedAddress
	ann *purelbv1.Announcement
	// rank says which of several entries of an address comes first.
	rank int
}

// appendWanted appends the entries of one object. What is not an IP address is left out here, and Status reports it.
func appendWanted(
	wanted []wantedEntry, entries []purelbv1.AnnouncedAddress, ann *purelbv1.Announcement,
) []wantedEntry {
	for i := range entries {
		if addr := parseAddrOrZero(entries[i].Address); addr.IsValid() {
			wanted = append(wanted, wantedEntry{addr, &entries[i], ann, len(wanted)})
		}
	}
	return wanted
}

// desiredMerger has what MergeDesired has merged so far.
type desiredMerger struct {
	desired    []Desired // ascending
	invalid    map[netip.Addr]Result
	uids       []types.UID // of the node's Announcements
	successors []purelbv1.StandbyNode
}

// merge adds an entry, in the place of one of an Announcement with a lower epoch. Entries come in the order of their
// addresses, and those of an address in the order of their ranks.
func (m *desiredMerger) merge(w wantedEntry) {
	last := len(m.desired) - 1
	isMerged := last >= 0 && m.desired[last].Addr == w.addr
	if isMerged && (w.ann == nil || m.desired[last].Epoch >= w.Epoch) {
		return
	}
	d, problem := desiredBy(w.addr, w.AnnouncedAddress)
	if problem.State != "" {
		if !isMerged {
			m.invalid[w.addr] = problem
		}
		return
	}
	if w.ann != nil {
		d.IsTakeover = d.IsTakeover && !hasRealised(w.ann, w.AnnouncedAddress)
		d.Announcement, d.NodeAnnouncements = w.ann.UID, m.uids
		d.HigherEpochMACs, d.Contest = m.claimantsBy(w.AnnouncedAddress)
	}
	if isMerged {
		m.desired[last] = d
		return
	}
	delete(m.invalid, w.addr)
	m.desired = append(m.desired, d)
}

// hasRealised reports whether the node has already had an address under the epoch of an entry, by the status of the
// entry's Announcement.
func hasRealised(ann *purelbv1.Announcement, entry *purelbv1.AnnouncedAddress) bool {
	return slices.ContainsFunc(ann.Status.Addresses, func(s purelbv1.AddressStatus) bool {
		return s.Address == entry.Address && wasRealised(s, entry.Epoch)
	})
}

// claimantsBy returns the Ethernet addresses of the nodes to which the node is to yield the address of
// an entry when they claim it, and the claim that is to be checked.
func (m *desiredMerger) claimantsBy(entry *purelbv1.AnnouncedAddress) (higherEpochMACs []string, contest Contest) {
	rivals := slices.Clone(entry.Successors)
	if entry.ContestedBy != nil {
		rivals = append(rivals, *entry.ContestedBy)
		if macs := macsOfNode(m.successors, entry.ContestedBy.NodeName); len(macs) > 0 {
			contest = Contest{Epoch: entry.ContestedBy.Epoch, MAC: macs[0], NodeAddrs: addressesOfNodes(m.successors)}
		}
	}
	for _, s := range rivals {
		if s.Epoch > entry.Epoch {
			higherEpochMACs = append(higherEpochMACs, macsOfNode(m.successors, s.NodeName)...)
		}
	}
	return higherEpochMACs, contest
}

// addressesOfNodes returns the addresses of nodes, but for those that are none.
func addressesOfNodes(nodes []purelbv1.StandbyNode) []netip.Addr {
	var addrs []netip.Addr
	for i := range nodes {
		for _, text := range nodes[i].Addresses {
			if addr, err := netip.ParseAddr(text); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

// desiredBy returns what an entry asks for, or a Result that says why the entry is invalid.
// A Local address is a host address whatever the entry says: with the mask of its subnet it
// could become the subnet's primary address when the node's own address goes and comes back.
// The node's own would then be its secondary address, without a route, and would go with it.
func desiredBy(addr netip.Addr, entry *purelbv1.AnnouncedAddress) (Desired, Result) {
	bits := int(entry.PrefixLength)
	if entry.Type == purelbv1.AnnounceLocal {
		bits = addr.BitLen()
	}
	prefix, err := addr.Prefix(bits)
	if err != nil || bits < 1 {
		return Desired{}, Result{
			State: purelbv1.StateFailed, Epoch: entry.Epoch, Reason: ReasonInvalid,
			Message: fmt.Sprintf("prefix length %d is not one of this family", entry.PrefixLength),
		}
	}
	return Desired{
		Addr:          addr,
		Prefix:        netip.PrefixFrom(addr, prefix.Bits()),
		Interface:     string(entry.Interface),
		IsLocal:       entry.Type == purelbv1.AnnounceLocal,
		IsTakeover:    entry.ClaimPolicy == purelbv1.ClaimTakeover,
		SkipsProbe:    entry.SkipProbe,
		IsHandingOver: entry.HandingOver,
		PreviousMACs:  entry.PreviousMACs,
		HealthPort:    entry.HealthCheckNodePort,
		Epoch:         entry.Epoch,
		Services:      entry.Services,
	}, Result{}
}

// wasRealised reports whether the node has already had an address under an epoch, by the status of the address.
func wasRealised(s purelbv1.AddressStatus, epoch int64) bool {
	return s.Epoch == epoch &&
		(s.State == purelbv1.StateAnnounced || s.State == purelbv1.StateYielded || s.Reason == ReasonLost)
}

// hasVirtual reports whether a desired address belongs on the virtual interface.
func hasVirtual(desired []Desired, virtualInterface string) bool {
	return slices.ContainsFunc(desired, func(d Desired) bool { return !d.IsLocal && d.Interface == virtualInterface })
}
