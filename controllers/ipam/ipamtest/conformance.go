package ipamtest

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// Fixture is a system to test, with pools in which at least five and at most twenty
// addresses are free, of which nobody else takes any.
type Fixture struct {
	// Connect returns a new connection to the system, as a new leader makes one, or one
	// of another cluster.
	Connect func(t *testing.T, installationID types.UID) ipam.System
	Family  allocation.Family
	// Outside is an address of no pool.
	Outside netip.Addr
}

// The clusters of the tests.
const (
	Installation      types.UID = "3b6f0b52-3b1c-4a0e-9a52-5d1a5f0c7a01"
	OtherInstallation types.UID = "3b6f0b52-3b1c-4a0e-9a52-5d1a5f0c7a02"
)

// NewOwner returns an owner, with a uid that follows from its name and number.
func NewOwner(name string, number byte) ipam.Owner {
	uid := []byte("00000000-0000-4000-8000-000000000000")
	uid[len(uid)-1] = 'a' + number%26
	copy(uid, name[:min(len(name), 8)])
	return ipam.Owner{Namespace: "test", Name: name, UID: types.UID(uid)}
}

// NoObjection is an Objection that has none.
func NoObjection(netip.Addr) string { return "" }

// Conformance tests that a system does what the comments of ipam.System say. fixture makes
// a Fixture for each test.
func Conformance(t *testing.T, fixture func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*suite){
		"OneAddressForAnOwner":   (*suite).testOneAddressForAnOwner,
		"NewLeader":              (*suite).testNewLeader,
		"RecreatedOwner":         (*suite).testRecreatedOwner,
		"Requested":              (*suite).testRequested,
		"RequestedOfAnOwner":     (*suite).testRequestedOfAnOwner,
		"RequestedOfOthers":      (*suite).testRequestedOfAnotherCluster,
		"Objection":              (*suite).testObjection,
		"Exhausted":              (*suite).testExhausted,
		"Release":                (*suite).testRelease,
		"ReleaseOfAnotherOwners": (*suite).testReleaseOfAnotherCluster,
		"Inspect":                (*suite).testInspect,
		"InspectInParts":         (*suite).testInspectInParts,
		"Check":                  (*suite).testCheck,
	} {
		t.Run(name, func(t *testing.T) {
			f := fixture(t)
			test(&suite{T: t, Fixture: f, system: f.Connect(t, Installation)})
		})
	}
}

type suite struct {
	*testing.T
	Fixture
	system ipam.System
}

func (s *suite) request(o ipam.Owner) ipam.Request {
	return ipam.Request{Owner: o, Family: s.Family, Objection: NoObjection}
}

func (s *suite) allocate(system ipam.System, r ipam.Request) netip.Addr {
	s.Helper()
	a, err := system.Allocate(s.Context(), r)
	if err != nil {
		s.Fatalf("allocate for %s: %v", r.Owner, err)
	}
	return a
}

// refuses checks that a request is refused for a reason.
func (s *suite) refuses(system ipam.System, r ipam.Request, reason string) {
	s.Helper()
	a, err := system.Allocate(s.Context(), r)
	var refusal *ipam.Error
	if !errors.As(err, &refusal) || refusal.Reason != reason || refusal.Scope != ipam.ScopeRequest {
		s.Fatalf("allocate for %s: got %v %v, want a refusal of reason %s", r.Owner, a, err, reason)
	}
	if refusal.Message == "" {
		s.Error("the refusal has no message")
	}
}

// Inspect does all parts of an inspection.
func Inspect(ctx context.Context, s ipam.System) (*ipam.Report, error) {
	next := s.BeginInspection()
	for {
		if report, err := next(ctx); report != nil || err != nil {
			return report, err
		}
	}
}

func (s *suite) records(system ipam.System) map[netip.Addr]string {
	s.Helper()
	report, err := Inspect(s.Context(), system)
	if err != nil {
		s.Fatalf("inspect: %v", err)
	}
	records := map[netip.Addr]string{}
	for _, r := range report.MarkedRecords {
		if records[r.Address] != "" {
			s.Errorf("%s is recorded twice", r.Address)
		}
		records[r.Address] = r.Mark
	}
	return records
}

func (s *suite) testOneAddressForAnOwner() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	if again := s.allocate(s.system, s.request(NewOwner("web", 0))); again != a {
		s.Errorf("asked again: got %s, want %s", again, a)
	}
	if other := s.allocate(s.system, s.request(NewOwner("other", 0))); other == a {
		s.Errorf("another owner got %s, too", a)
	}
	if n := len(s.records(s.system)); n != 2 {
		s.Errorf("%d records, want 2", n)
	}
}

func (s *suite) testNewLeader() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	if again := s.allocate(s.Connect(s.T, Installation), s.request(NewOwner("web", 0))); again != a {
		s.Errorf("a new leader got %s, want %s", again, a)
	}
}

func (s *suite) testRecreatedOwner() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	if b := s.allocate(s.system, s.request(NewOwner("web", 1))); b == a {
		s.Errorf("a Service of the same name got %s, which is its predecessor's until that is released", a)
	}
}

func (s *suite) testRequested() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	b := s.allocate(s.system, s.request(NewOwner("other", 0)))
	if err := s.system.Release(s.Context(), b); err != nil {
		s.Fatal(err)
	}
	r := s.request(NewOwner("web", 0))
	r.Address = b
	for range 2 { // also when it is the owner's already
		if got := s.allocate(s.system, r); got != b {
			s.Fatalf("got %s, want %s", got, b)
		}
	}
	if records := s.records(s.system); records[a] == "" || records[b] != NewOwner("web", 0).Mark(Installation) {
		s.Errorf("records: %v, want %s and %s", records, a, b)
	}
	r.Address = s.Outside
	s.refuses(s.system, r, v1.ReasonAddressOutsidePools)
}

func (s *suite) testRequestedOfAnOwner() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	r := s.request(NewOwner("other", 0))
	r.Address = a
	s.allocate(s.system, r)
	if records := s.records(s.system); len(records) != 1 || records[a] != NewOwner("other", 0).Mark(Installation) {
		s.Errorf("records: %v, want %s as the new owner's", records, a)
	}
}

func (s *suite) testRequestedOfAnotherCluster() {
	elsewhere := s.Connect(s.T, OtherInstallation)
	a := s.allocate(elsewhere, s.request(NewOwner("web", 0)))
	r := s.request(NewOwner("web", 0))
	r.Address = a
	s.refuses(s.system, r, v1.ReasonAddressInUse)
	if b := s.allocate(s.system, s.request(NewOwner("web", 0))); b == a {
		s.Errorf("two clusters got %s", a)
	}
	if records := s.records(elsewhere); len(records) != 1 || records[a] == "" {
		s.Errorf("the other cluster's records: %v", records)
	}
}

func (s *suite) testObjection() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	if err := s.system.Release(s.Context(), a); err != nil {
		s.Fatal(err)
	}
	r := s.request(NewOwner("web", 0))
	r.Objection = func(b netip.Addr) string {
		if a == b {
			return "a node has it"
		}
		return ""
	}
	if b := s.allocate(s.system, r); b == a {
		s.Errorf("got %s in spite of the objection", b)
	}
	if records := s.records(s.system); len(records) != 1 {
		s.Errorf("records: %v", records)
	}
	r.Address = a
	s.refuses(s.system, r, v1.ReasonAddressInUse)
}

func (s *suite) testExhausted() {
	got := map[netip.Addr]bool{}
	for n := byte(0); ; n++ {
		a, err := s.system.Allocate(s.Context(), s.request(NewOwner("web", n)))
		var refusal *ipam.Error
		if errors.As(err, &refusal) && refusal.Reason == v1.ReasonExhausted && refusal.Scope == ipam.ScopeRequest {
			break
		}
		if err != nil || got[a] || n > 20 {
			s.Fatalf("owner %d: got %v %v", n, a, err)
		}
		got[a] = true
	}
	if len(got) < 5 {
		s.Errorf("only %d addresses", len(got))
	}
}

func (s *suite) testRelease() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	for range 2 { // also when there is nothing
		if err := s.Connect(s.T, Installation).Release(s.Context(), a); err != nil {
			s.Fatal(err)
		}
	}
	if records := s.records(s.system); len(records) != 0 {
		s.Errorf("records: %v", records)
	}
	r := s.request(NewOwner("other", 0))
	r.Address = a
	s.allocate(s.Connect(s.T, OtherInstallation), r)
}

func (s *suite) testReleaseOfAnotherCluster() {
	elsewhere := s.Connect(s.T, OtherInstallation)
	a := s.allocate(elsewhere, s.request(NewOwner("web", 0)))
	if err := s.system.Release(s.Context(), a); err != nil {
		s.Fatal(err)
	}
	if records := s.records(elsewhere); len(records) != 1 {
		s.Errorf("the other cluster's records: %v", records)
	}
}

func (s *suite) testInspect() {
	a := s.allocate(s.system, s.request(NewOwner("web", 0)))
	report, err := Inspect(s.Context(), s.system)
	if err != nil {
		s.Fatal(err)
	}
	i := slices.IndexFunc(report.Ranges, func(p ipam.Range) bool { return p.Addrs.Contains(a) })
	if i < 0 {
		s.Fatalf("no pool contains %s: %v", a, report.Ranges)
	}
	p := report.Ranges[i]
	if !p.Subnet.Contains(p.Addrs.From()) || !p.Subnet.Contains(p.Addrs.To()) || p.Recorded != 1 {
		s.Errorf("pool: %+v", p)
	}
	if len(report.MarkedRecords) != 1 || report.MarkedRecords[0].Mark != NewOwner("web", 0).Mark(Installation) ||
		report.MarkedRecords[0].Difference != "" {
		s.Errorf("records: %+v", report.MarkedRecords)
	}
	if len(report.Problems) > 0 {
		s.Errorf("problems: %v", report.Problems)
	}
}

// What is allocated and released between the parts of an inspection is in its report as it is in the
// end, and the inspection does not disturb it.
func (s *suite) testInspectInParts() {
	const mostParts = 100
	first := s.allocate(s.system, s.request(NewOwner("first", 0)))
	inspect := s.system.BeginInspection()
	recorded := map[netip.Addr]bool{first: true}
	var last netip.Addr
	for n := range mostParts {
		report, err := inspect(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		if report != nil {
			got := map[netip.Addr]bool{}
			for _, r := range report.MarkedRecords {
				got[r.Address] = true
				if r.IsForeign || r.Difference != "" {
					s.Errorf("record: %+v", r)
				}
			}
			if !maps.Equal(got, recorded) {
				s.Errorf("after %d parts: got records of %v, want %v", n, got, recorded)
			}
			return
		}
		if last.IsValid() {
			if err := s.system.Release(s.Context(), last); err != nil {
				s.Fatal(err)
			}
			delete(recorded, last)
		}
		last = s.allocate(s.system, s.request(NewOwner("web", byte(n))))
		recorded[last] = true
	}
	s.Errorf("no report after %d parts", mostParts)
}

func (s *suite) testCheck() {
	if err := s.system.Check(s.Context()); err != nil {
		s.Errorf("the system is well: %v", err)
	}
	if records := s.records(s.system); len(records) != 0 {
		s.Errorf("records: %v", records)
	}
}
