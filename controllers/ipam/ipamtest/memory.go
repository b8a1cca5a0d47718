// Package ipamtest tests implementations of ipam.System. Its Memory is the smallest one.
package ipamtest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// Memory is a System that has one pool and remembers whose each address is. It outlives
// the connections to it, as any system does that is not of the manager's process.
type Memory struct {
	Pool   netipx.IPRange
	Subnet netip.Prefix

	mu     sync.Mutex
	marks  map[netip.Addr]string
	isAway bool
}

// Of returns the System of an installation.
func (m *Memory) Of(installationID types.UID) ipam.System { return &memorySystem{m, installationID} }

type memorySystem struct {
	*Memory
	installationID types.UID
}

// SetAway makes the system away, or back.
func (m *Memory) SetAway(isAway bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isAway = isAway
}

// Marks returns whose each address is.
func (m *Memory) Marks() map[netip.Addr]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.marks)
}

// SetMark changes whose an address is, as if somebody did so by hand; empty for nobody's.
func (m *Memory) SetMark(a netip.Addr, mark string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark == "" {
		delete(m.marks, a)
		return
	}
	m.set(a, mark)
}

func (m *Memory) set(a netip.Addr, mark string) {
	if m.marks == nil {
		m.marks = map[netip.Addr]string{}
	}
	m.marks[a] = mark
}

func (m *Memory) check() error {
	if m.isAway {
		return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: "the memory is away", Scope: ipam.ScopeEndpoint}
	}
	return nil
}

// Allocate records an address as the owner's.
func (m *memorySystem) Allocate(_ context.Context, r ipam.Request) (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark := r.Owner.Mark(m.installationID)
	if err := m.check(); err != nil {
		return netip.Addr{}, err
	}
	if r.Address.IsValid() {
		return r.Address, m.allocateRequested(&r, mark)
	}
	if r.Family == allocation.FamilyOf(m.Pool.From()) {
		for _, a := range slices.SortedFunc(maps.Keys(m.marks), netip.Addr.Compare) {
			if m.marks[a] == mark && r.Objection(a) == "" {
				return a, nil
			}
		}
		for a := m.Pool.From(); m.Pool.Contains(a); a = a.Next() {
			if m.marks[a] == "" && r.Objection(a) == "" {
				m.set(a, mark)
				return a, nil
			}
		}
	}
	return netip.Addr{}, &ipam.Error{
		Reason: v1.ReasonExhausted, Message: fmt.Sprintf("the memory has no free %s address", r.Family),
	}
}

func (m *memorySystem) allocateRequested(r *ipam.Request, mark string) error {
	present := m.marks[r.Address]
	switch {
	case !m.Pool.Contains(r.Address):
		return &ipam.Error{Reason: v1.ReasonAddressOutsidePools, Message: r.Address.String() + " is not in the memory's pool"}
	case r.Objection(r.Address) != "":
		return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: r.Objection(r.Address)}
	case present != "" && !m.isOurs(present):
		return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: r.Address.String() + " is that of " + present}
	}
	m.set(r.Address, mark)
	return nil
}

func (m *memorySystem) isOurs(mark string) bool {
	return strings.HasPrefix(mark, ipam.MarkPrefix(m.installationID))
}

// Release removes what is recorded of an address for owners of the cluster.
func (m *memorySystem) Release(_ context.Context, a netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(); err != nil {
		return err
	}
	if m.isOurs(m.marks[a]) {
		delete(m.marks, a)
	}
	return nil
}

// BeginInspection returns an inspection of one part.
func (m *memorySystem) BeginInspection() ipam.Inspection { return m.inspect }

// inspect returns the pool and the records of the cluster.
func (m *memorySystem) inspect(context.Context) (*ipam.Report, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(); err != nil {
		return nil, err
	}
	report := &ipam.Report{Ranges: []ipam.Range{{Addrs: m.Pool, Subnet: m.Subnet, Recorded: int64(len(m.marks))}}}
	for a, mark := range m.marks {
		if m.isOurs(mark) {
			report.MarkedRecords = append(report.MarkedRecords, ipam.Record{Address: a, Mark: mark})
		}
	}
	return report, nil
}

// Check returns an error while the system is away.
func (m *memorySystem) Check(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.check()
}
