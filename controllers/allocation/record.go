package allocation

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Record is what the manager has allocated to a Service, as the manager writes it into
// the Service's condition v1.ConditionAllocationRecord. Users can edit a Service's annotations, and
// other controllers can overwrite its ingress. Only controllers may write its status,
// and no controller but the manager writes that condition.
type Record struct {
	// Addresses are those allocated to the Service, in the order of its families.
	Addresses []netip.Addr
	// Group is the ServiceGroup that the addresses were allocated from, and Type was its
	// kind then. Both are empty if there are no addresses.
	Group string
	Type  v1.PoolType
	// Key is the sharing key by which the Service was given the addresses, at most
	// MaxSharingKey bytes, or empty.
	Key string
	// Ports are those with which the Service has the addresses by the key, at most
	// MaxRecordedPorts. They are empty if there is no key, if the Service has more ports or
	// policy Local, so that it shares with no other namespace, and in records of earlier
	// managers.
	Ports PortSet
}

// The words of a written record. The key is the last one, because a key may contain
// any text.
const (
	noAddressesWord = "none"
	groupWord       = " group="
	typeWord        = " type="
	portsWord       = " ports="
	keyWord         = " key="
	addressComma    = ","
)

// String writes a record, such as
// "10.0.0.1,fd00::1 group=default type=local ports=TCP/80 key=web", or "none". The ports
// are left out if there are none.
func (r Record) String() string {
	if len(r.Addresses) == 0 {
		return noAddressesWord
	}
	addrs := strings.Join(textlimit.Texts(r.Addresses), addressComma)
	ports := ""
	if len(r.Ports) > 0 {
		ports = portsWord + r.Ports.String()
	}
	return addrs + groupWord + r.Group + typeWord + string(r.Type) + ports + keyWord + r.Key
}

// parseRecord reads what String writes. Any other text makes an empty record.
func parseRecord(s string) Record {
	list, ports, r, ok := splitRecord(s)
	if ok && ports != "" {
		r.Ports, ok = parsePorts(ports)
	}
	if !ok {
		return Record{}
	}
	r.Addresses = make([]netip.Addr, 0, 1+strings.Count(list, addressComma))
	for text := range strings.SplitSeq(list, addressComma) {
		a, err := parseAddress(text)
		if err != nil || slices.Contains(r.Addresses, a) {
			return Record{}
		}
		r.Addresses = append(r.Addresses, a)
	}
	return r
}

// splitRecord returns the list of addresses and the ports of a written record, not parsed,
// and a Record with the rest.
func splitRecord(s string) (list, ports string, rest Record, ok bool) {
	list, s, ok1 := strings.Cut(s, groupWord)
	group, s, ok2 := strings.Cut(s, typeWord)
	kind, key, ok3 := strings.Cut(s, keyWord)
	kind, ports, _ = strings.Cut(kind, portsWord)
	ok = ok1 && ok2 && ok3 && isPoolType(kind) && len(group) <= maxGroupName && len(key) <= MaxSharingKey
	return list, ports, Record{Group: group, Type: v1.PoolType(kind), Key: key}, ok
}

func isPoolType(s string) bool {
	switch v1.PoolType(s) {
	case v1.PoolTypeLocal, v1.PoolTypeRemote, v1.PoolTypeNetbox:
		return true
	}
	return false
}

// RecordOf reads what the manager has allocated to a Service.
func RecordOf(svc *corev1.Service) Record {
	if c := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocationRecord); c != nil {
		return parseRecord(c.Message)
	}
	return Record{}
}

// AddressesToAnnounce are the addresses that are allocated to a Service and that the
// Service shows. Each placement asks this of all Services, so it compares addresses as
// text, and parses only those that are shown.
func AddressesToAnnounce(svc *corev1.Service) []netip.Addr {
	shown := ShownAddresses(svc)
	if len(shown) == 0 {
		return nil
	}
	c := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocationRecord)
	if c == nil {
		return nil
	}
	list, _, _, ok := splitRecord(c.Message)
	if !ok {
		return nil
	}
	var buffer [64]byte
	return slices.DeleteFunc(shown, func(a netip.Addr) bool {
		text := a.AppendTo(buffer[:0])
		for entry := range strings.SplitSeq(list, addressComma) {
			if entry == string(text) {
				return false
			}
		}
		return true
	})
}
