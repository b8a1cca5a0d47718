package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// System is an external IPAM system, with the addresses that one ServiceGroup takes from
// it. Its methods are called one at a time. Errors that are not of type *Error count as
// v1.ReasonIPAMUnavailable. ipamtest.Conformance tests an implementation.
type System interface {
	// Allocate records an address as the owner's, and returns it: the requested one, or
	// the one that is recorded as the owner's already and is of the group, or a free
	// one. An address that is recorded as another owner's of the same cluster becomes this
	// owner's if it is requested: the caller knows that the other one has it no more.
	Allocate(ctx context.Context, r Request) (netip.Addr, error)
	// Release removes what is recorded of an address for owners of this cluster. If there
	// is nothing, it does nothing.
	Release(ctx context.Context, a netip.Addr) error
	// BeginInspection returns an inspection, which has asked for nothing yet.
	BeginInspection() Inspection
	// Check asks whether the system answers at all, and takes the token. What it asks
	// needs no permission, and has nothing to do with the group.
	Check(ctx context.Context) error
}

// Inspection finds out what a System has: the group's ranges, and what is recorded for owners of
// this cluster. Each call does a part of it, of a few requests, between which the other methods of
// the System may be called. It returns nil until the last part, which reads the records, so that
// these are not older than what the caller has done before. After an error the inspection is of no
// more use.
type Inspection func(ctx context.Context) (*Report, error)

// Request asks for one address.
type Request struct {
	Owner  Owner
	Family allocation.Family
	// Address is the one that is requested. It is not valid if any will do.
	Address netip.Addr
	// IsShown says that the Service shows the requested address, and that this manager has
	// not allocated it: another controller may have taken it in the system, without a mark.
	IsShown bool
	// Objection says why the owner cannot have an address in this cluster, or returns an
	// empty text.
	Objection func(netip.Addr) string
}

// Report is what a System has.
type Report struct {
	// Ranges in the order in which Allocate tries them.
	Ranges []Range
	// MarkedRecords are those with marks of this cluster, foreign ones among them, in any order.
	MarkedRecords []Record
	// Problems are what the group asks for and the system does not have, and what it has and no Service can have.
	Problems []string
}

// Range is a range of addresses that a System allocates from.
type Range struct {
	Addrs netipx.IPRange
	// Subnet contains Addrs.
	Subnet netip.Prefix
	// Recorded is how many addresses of the pool are recorded, for whomever.
	Recorded int64
}

// Record is what a System has recorded of one address.
type Record struct {
	Address netip.Addr
	// Mark is the owner's, or empty if the record has yet to be completed: if a Service has the
	// address, it is allocated once more.
	Mark string
	// Difference says what is not recorded as the group asks for, or is empty.
	Difference string
	// IsForeign says that the record is not of an owner of the group, although its mark is one
	// of this cluster: somebody has copied it, or its address is not of the group's ranges. It
	// is never released. Its Difference is reported, unless a Service or another ServiceGroup
	// has the address.
	IsForeign bool
}

// hasAddress reports whether an address is of one of the ranges.
func (r *Report) hasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(r.Ranges, func(p Range) bool { return p.Addrs.Contains(a) })
}

// Error is why a System did not do what it was asked for.
type Error struct {
	// Reason is one of package v1: ReasonExhausted, ReasonAddressInUse,
	// ReasonAddressOutsidePools, ReasonIPAMRefused, ReasonIPAMUnavailable or, of an error of
	// Cluster.EnsureInstallation, ReasonOtherInstallation. ReasonIPAMUnavailable says that the
	// system has not answered the request as it ought to.
	Reason string
	// Message says it to people. It is the same whenever the same thing goes wrong, and
	// holds no secret.
	Message string
	Scope   Scope
}

// Scope is what else an Error concerns.
type Scope int

const (
	// ScopeRequest is of an error that says nothing of other requests. If the reason is
	// v1.ReasonIPAMUnavailable, the Broker asks whether the system is well.
	ScopeRequest Scope = iota
	// ScopeGroup is of an error that other requests for the ServiceGroup would meet, too,
	// as when a permission is missing.
	ScopeGroup
	// ScopeEndpoint is of an error that all requests would meet: there is no connection, or
	// no token.
	ScopeEndpoint
)

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// errorOf returns an error as an *Error, or nil for none.
func errorOf(err error) *Error {
	var known *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	}
	return &Error{Reason: v1.ReasonIPAMUnavailable, Message: err.Error()}
}

// asEndpointError returns an error as one that concerns the whole endpoint, or nil for none.
func asEndpointError(err error) *Error {
	e := errorOf(err)
	if e == nil {
		return nil
	}
	return &Error{Reason: e.Reason, Message: e.Message, Scope: ScopeEndpoint}
}

// isOneRequestUnanswered reports whether a system has not answered one request.
func (e *Error) isOneRequestUnanswered() bool {
	return e != nil && e.Scope == ScopeRequest && e.Reason == v1.ReasonIPAMUnavailable
}

// leavesInDoubt reports whether the whole endpoint may be concerned: the system has not
// answered, or what refuses the token may refuse it everywhere.
func (e *Error) leavesInDoubt() bool {
	return e.isOneRequestUnanswered() || e != nil && e.Scope == ScopeGroup
}
