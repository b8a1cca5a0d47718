package netbox

import (
	"net/netip"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/ipam"
)

// The description of a record begins with its owner's mark, and the mark ends in the
// address that it is for: "purelb cluster/namespace/name/uid/10.0.0.5". Whoever clones a
// record in NetBox gets one with the same description and another address: this is how the
// copy is told from a record of PureLB's.
//
// A mark without an address is that of a record that has just been created, and has yet to be
// completed. If the manager dies first, the next request of the owner completes the record or,
// if the owner has got the address by it already, the next comparison lets it be completed.
const (
	addressSeparator = "/"
	// descriptionSeparator is between the mark and the description that an address had
	// before.
	descriptionSeparator = " | "
	// maxDescription is how many letters NetBox stores.
	maxDescription = 200
)

// descriptionWithMark returns the description of a record of an address that is the owner's; the
// address is not valid while it is unknown. before is what the record was, or nil.
func (s *System) descriptionWithMark(owner ipam.Owner, a netip.Addr, before *ipAddress) string {
	own := ""
	if before != nil {
		own = before.ownDescription()
	}
	description, _ := withDescription(s.markAt(owner, a), own)
	return description
}

// markAt returns the owner's mark for an address.
func (s *System) markAt(owner ipam.Owner, a netip.Addr) string {
	if !a.IsValid() {
		return owner.Mark(s.installationID)
	}
	return owner.Mark(s.installationID) + addressSeparator + a.String()
}

// mark returns the owner's mark, and the address that it is for, which is not valid if the
// mark names none. A description that has no mark is returned as if it were one.
func (a *ipAddress) mark() (owner string, of netip.Addr) {
	owner, _, _ = strings.Cut(a.Description, descriptionSeparator)
	if i := strings.LastIndex(owner, addressSeparator); i >= 0 {
		if parsed, err := netip.ParseAddr(owner[i+len(addressSeparator):]); err == nil {
			return owner[:i], parsed
		}
	}
	return owner, netip.Addr{}
}

// isCopy reports whether the mark is for another address: somebody has copied the record
// that had it.
func (a *ipAddress) isCopy() bool {
	_, of := a.mark()
	return of.IsValid() && of != a.addr()
}

// isComplete reports whether the mark names its address, as that of a record that an owner has got an address by.
func (a *ipAddress) isComplete() bool {
	_, of := a.mark()
	return of.IsValid()
}

// isRecordOf reports whether the address is recorded as that of an owner of the cluster.
func (a *ipAddress) isRecordOf(installationID types.UID) bool {
	return strings.HasPrefix(a.Description, ipam.MarkPrefix(installationID)) && !a.isCopy()
}

// isRecordOfOwner reports whether the address is recorded as that of the owner with a mark.
func (a *ipAddress) isRecordOfOwner(mark string) bool {
	owner, _ := a.mark()
	return owner == mark && !a.isCopy()
}

// markPattern matches descriptions that begin with a mark, or with what somebody has left of one. People may write
// others that begin with the same word.
var markPattern = regexp.MustCompile(`^purelb [a-z0-9-]{1,36}/`)

// isMarked reports whether the description begins with a mark, of any cluster and for any
// address.
func (a *ipAddress) isMarked() bool { return markPattern.MatchString(a.Description) }

// ownDescription returns the description without the mark.
func (a *ipAddress) ownDescription() string {
	if !a.isMarked() {
		return a.Description
	}
	_, own, _ := strings.Cut(a.Description, descriptionSeparator)
	return own
}

// cutRunes cuts a text after so many letters, which is how NetBox counts.
func cutRunes(s string, most int) string {
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most])
	}
	return s
}
