package sim

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/test/netbox"
)

// The laws of a cluster with a NetBox, which hold besides those of laws.go. They read as the specification.
//
//  1. What NetBox has recorded of an address for a Service that has it stays recorded for that Service, whatever a
//     manager does that leads no more, and whatever NetBox answers. So the address is given to nobody else, there
//     or here.
//  2. A Service gets an address only if it is recorded for it then, and no record of the address is older. People
//     may meanwhile have written into records of the address.
//  3. No manager changes or deletes what others have recorded, but for addresses that are reserved for the tenant
//     and free.
//  4. Once nothing is wrong any more, and netboxSettled and Settled have passed, each Service has an address of each
//     of its families (law 4 of laws.go), whatever managers died between a request and its answer. When
//     netboxCompared has passed, too, each of them is recorded once for its Service, or for somebody else who took
//     the address when a person had deleted the record, and nothing else is recorded for any Service; unless that is
//     more than a manager releases without a person having looked: then the ServiceGroup says so.
type netboxLaws struct {
	laws *laws
	box  *NetBox
	// records are those that there are.
	records []netbox.Address
	// owners are the Services of NetBox's addresses as they were last, by their addresses.
	owners map[netip.Addr]*service
	// touched are addresses of whose records people have changed some.
	touched map[netip.Addr]bool
}

func newNetBoxLaws(l *laws, box *NetBox) *netboxLaws {
	return &netboxLaws{
		laws: l, box: box, records: box.Server.Addresses(), owners: map[netip.Addr]*service{}, touched: map[netip.Addr]bool{},
	}
}

// people is who writes into NetBox and is no manager.
const people = "people"

// isOurs reports whether a record is marked as one of the cluster's.
func (n *netboxLaws) isOurs(r *netbox.Address) bool {
	return strings.HasPrefix(r.Description, ipam.MarkPrefix(n.box.Installation))
}

// isOf reports whether a record is marked as that of a Service.
func (n *netboxLaws) isOf(r *netbox.Address, s *service) bool {
	owner := ipam.Owner{Namespace: Tenants, Name: s.Name, UID: s.uid}
	return strings.HasPrefix(r.Description, owner.Mark(n.box.Installation))
}

// recordsOf returns the records of an address.
func recordsOf(addr netip.Addr, records []netbox.Address) []netbox.Address {
	return slices.DeleteFunc(slices.Clone(records), func(r netbox.Address) bool { return r.Address.Addr() != addr })
}

// isRecorded reports whether any of some records of an address is that of a Service.
func (n *netboxLaws) isRecorded(addr netip.Addr, s *service, records []netbox.Address) bool {
	return slices.ContainsFunc(recordsOf(addr, records), func(r netbox.Address) bool { return n.isOf(&r, s) })
}

// noteWrite is laws 1 and 3, after somebody has written.
func (n *netboxLaws) noteWrite(who string) {
	before := n.records
	n.records = n.box.Server.Addresses()
	for _, old := range before {
		i := slices.IndexFunc(n.records, func(r netbox.Address) bool { return r.ID == old.ID })
		isChanged := i < 0 || n.records[i].Description != old.Description || n.records[i].Status != old.Status
		isFree := old.Tenant == netboxTenant && old.Status == "reserved"
		switch {
		case !isChanged:
		case who == people:
			n.touched[old.Address.Addr()] = true
		case !n.isOurs(&old) && !isFree:
			n.laws.broken("%s changes or deletes another's record of %s: %q", who, old.Address.Addr(), old.Description)
		}
	}
	if who == people {
		return
	}
	for addr, s := range order.ByKey(n.laws.owners, netip.Addr.Compare) {
		if s.isOfNetBox() && n.isRecorded(addr, s, before) && !n.isRecorded(addr, s, n.records) {
			n.laws.broken("%s takes the record of %s, which %s has", who, addr, s.Name)
		}
	}
}

// inspect is law 2.
func (n *netboxLaws) inspect() {
	for addr, s := range order.ByKey(n.laws.owners, netip.Addr.Compare) {
		if !s.isOfNetBox() || n.owners[addr] == s {
			continue
		}
		n.owners[addr] = s
		records := recordsOf(addr, n.records)
		if !n.touched[addr] && (len(records) == 0 || !n.isOf(&records[0], s)) {
			n.laws.broken("%s gets %s, of which NetBox has %v", s.Name, addr, records)
		}
	}
}

// settled is the part of law 4 that is about records.
func (n *netboxLaws) settled() {
	for addr, s := range order.ByKey(n.laws.owners, netip.Addr.Compare) {
		isOthers := func(r netbox.Address) bool { return !n.isOurs(&r) }
		isExcused := n.touched[addr] && slices.ContainsFunc(recordsOf(addr, n.records), isOthers)
		if s.isOfNetBox() && !isExcused && !n.isRecorded(addr, s, n.records) {
			n.laws.broken("settled: %s of %s is not recorded: %v", addr, s.Name, recordsOf(addr, n.records))
		}
	}
	for i := range n.records {
		r := &n.records[i]
		addr := r.Address.Addr()
		s := n.laws.owners[addr]
		switch {
		case !n.isOurs(r):
		case (s == nil || !n.isOf(r, s)) && !n.saysTooMany(r):
			n.laws.broken("settled: %s is recorded for nobody who has it: %q", addr, r.Description)
		case len(recordsOf(addr, n.records)) > 1 && !n.touched[addr]:
			n.laws.broken("settled: %s has the records %v", addr, recordsOf(addr, n.records))
		}
	}
}

// saysTooMany reports whether the ServiceGroup of a record says that too many records are of addresses that no
// Service has.
func (n *netboxLaws) saysTooMany(r *netbox.Address) bool {
	group := &v1.ServiceGroup{}
	key := client.ObjectKey{Namespace: Namespace, Name: GroupNetBox}
	if r.Tenant != "" {
		key.Name = GroupTenant
	}
	if err := n.laws.cluster.Admin.Get(context.Background(), key, group); err != nil {
		n.laws.broken("%s: %v", key.Name, err)
	}
	drift := meta.FindStatusCondition(group.Status.Conditions, v1.ConditionDrift)
	return drift != nil && strings.Contains(drift.Message, "of addresses that no Service has")
}
