package plan

import (
	"cmp"
	"fmt"
	"maps"
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
	// HigherMACs are those of successors, which claim the address under a higher epoch than the
	// node has it, and LowerMACs those of one that claims it under a lower epoch.
	HigherMACs, LowerMACs []string
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
		desired: make([]Desired, 0, entries), indexByAddr: make(map[netip.Addr]int, entries),
		invalid: map[netip.Addr]Result{}, uids: uids,
		successors: successors,
	}
	for i := range announcements {
		for j := range announcements[i].Spec.Addresses {
			m.merge(&announcements[i].Spec.Addresses[j], &announcements[i])
		}
	}
	for i := range shared {
		for j := range shared[i].Spec.Addresses {
			m.mergeShared(&shared[i].Spec.Addresses[j])
		}
	}
	maps.DeleteFunc(m.invalid, func(addr netip.Addr, _ Result) bool { _, isValid := m.indexByAddr[addr]; return isValid })
	slices.SortFunc(m.desired, func(a, b Desired) int { return a.Addr.Compare(b.Addr) })
	return m.desired, m.invalid
}

// desiredMerger has what MergeDesired has merged so far.
type desiredMerger struct {
	desired     []Desired
	indexByAddr map[netip.Addr]int // in desired
	invalid     map[netip.Addr]Result
	uids        []types.UID // of the node's Announcements
	successors  []purelbv1.StandbyNode
}

// merge adds an entry of an Announcement, in the place of one with a lower epoch. What is not
// an IP address is left out here, and Status reports it.
func (m *desiredMerger) merge(entry *purelbv1.AnnouncedAddress, ann *purelbv1.Announcement) {
	addr, err := netip.ParseAddr(entry.Address)
	i, isMerged := m.indexByAddr[addr]
	if err != nil || isMerged && m.desired[i].Epoch >= entry.Epoch {
		return
	}
	d, problem := desiredBy(addr, entry)
	if problem.State != "" {
		m.invalid[addr] = problem
		return
	}
	d.IsTakeover = d.IsTakeover && !slices.ContainsFunc(ann.Status.Addresses, func(s purelbv1.AddressStatus) bool {
		return s.Address == entry.Address && wasRealised(s, entry.Epoch)
	})
	d.Announcement, d.NodeAnnouncements = ann.UID, m.uids
	d.HigherMACs, d.Contest = m.claimantsBy(entry)
	if isMerged {
		m.desired[i] = d
		return
	}
	m.indexByAddr[addr] = len(m.desired)
	m.desired = append(m.desired, d)
}

// claimantsBy returns the Ethernet addresses of the nodes to which the node is to yield the address of
// an entry when they claim it, and the claim that is to be checked.
func (m *desiredMerger) claimantsBy(entry *purelbv1.AnnouncedAddress) (higherMACs []string, contest Contest) {
	rivals := slices.Clone(entry.Successors)
	if entry.ContestedBy != nil {
		rivals = append(rivals, *entry.ContestedBy)
		if macs := macsOfNode(m.successors, entry.ContestedBy.NodeName); len(macs) > 0 {
			contest = Contest{Epoch: entry.ContestedBy.Epoch, MAC: macs[0], Nodes: addressesOfNodes(m.successors)}
		}
	}
	for _, s := range rivals {
		if s.Epoch > entry.Epoch {
			higherMACs = append(higherMACs, macsOfNode(m.successors, s.NodeName)...)
		}
	}
	return higherMACs, contest
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

// mergeShared adds a shared entry, unless another entry has asked for its address.
func (m *desiredMerger) mergeShared(entry *purelbv1.AnnouncedAddress) {
	addr, err := netip.ParseAddr(entry.Address)
	if _, isMerged := m.indexByAddr[addr]; isMerged || err != nil {
		return
	}
	d, problem := desiredBy(addr, entry)
	if problem.State != "" {
		m.invalid[addr] = problem
		return
	}
	m.indexByAddr[addr] = len(m.desired)
	m.desired = append(m.desired, d)
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
