package partialwrite_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/partialwrite"
)

// TestFaultRefusedEntries writes objects of which entries are refused.
func TestFaultRefusedEntries(t *testing.T) {
	entry := func(i int, group string) v1.AnnouncedAddress {
		return v1.AnnouncedAddress{Address: fmt.Sprintf("10.0.0.%d", i), ServiceGroup: group}
	}
	stored := []v1.AnnouncedAddress{entry(1, "old"), entry(2, "old"), entry(3, "old")}
	for _, row := range []struct {
		name         string
		wanted       []v1.AnnouncedAddress
		fails        bool
		want         []v1.AnnouncedAddress
		refused      []string
		wantAttempts int
	}{
		{
			name: "none", wanted: []v1.AnnouncedAddress{entry(1, "new"), entry(4, "new")},
			want: []v1.AnnouncedAddress{entry(1, "new"), entry(4, "new")}, wantAttempts: 1,
		},
		{
			name: "a new one", wanted: append(stored[:3:3], entry(4, "bad")), want: stored, refused: []string{"10.0.0.4"},
			wantAttempts: 3,
		},
		{name: "one that changes stays as it was", wanted: []v1.AnnouncedAddress{entry(1, "bad"), entry(2, "new")},
			want:    []v1.AnnouncedAddress{entry(1, "old"), entry(2, "new")},
			refused: []string{"10.0.0.1"}, wantAttempts: 5},
		{
			name: "what goes goes", wanted: []v1.AnnouncedAddress{entry(4, "bad")}, want: nil, refused: []string{"10.0.0.4"},
			wantAttempts: 3,
		},
		{name: "another error", wanted: []v1.AnnouncedAddress{entry(1, "new")}, fails: true, want: stored, wantAttempts: 1},
	} {
		is, attempts := slices.Clone(stored), 0
		refused, err := partialwrite.Write(row.wanted, stored, func(part []v1.AnnouncedAddress) (bool, error) {
			attempts++
			if row.fails {
				return false, errors.New("timeout")
			}
			if slices.ContainsFunc(part, func(e v1.AnnouncedAddress) bool { return e.ServiceGroup == "bad" }) {
				return true, errors.New("invalid")
			}
			is = part
			return false, nil
		})
		var addresses []string
		for _, e := range refused {
			addresses = append(addresses, e.Address)
		}
		if diff := cmp.Diff(row.want, is, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: stored (-want +got):\n%s", row.name, diff)
		}
		if diff := cmp.Diff(row.refused, addresses); diff != "" {
			t.Errorf("%s: refused (-want +got):\n%s", row.name, diff)
		}
		if (err != nil) != (row.fails || len(row.refused) > 0) || attempts != row.wantAttempts {
			t.Errorf("%s: %v after %d attempts, want %d", row.name, err, attempts, row.wantAttempts)
		}
	}
	// Where the object is refused whatever its entries are, no part is tried.
	attemptsOfObject := 0
	refused, err := partialwrite.Write([]v1.AnnouncedAddress{entry(1, "old"), entry(2, "new"), entry(4, "new")}, stored,
		func([]v1.AnnouncedAddress) (bool, error) {
			attemptsOfObject++
			return true, fmt.Errorf("a quota: %w", partialwrite.ErrObjectRefused)
		})
	if len(refused) != 2 || !errors.Is(err, partialwrite.ErrObjectRefused) || attemptsOfObject != 1 {
		t.Errorf("the object: %v, %v after %d attempts", refused, err, attemptsOfObject)
	}
	// Many good ones with one bad one cost few attempts.
	var wanted []v1.AnnouncedAddress
	for i := range 100 {
		wanted = append(wanted, entry(i, "new"))
	}
	attempts := 0
	wanted[37].ServiceGroup = "bad"
	if _, err := partialwrite.Write(wanted, nil, func(part []v1.AnnouncedAddress) (bool, error) {
		attempts++
		return slices.ContainsFunc(part, func(e v1.AnnouncedAddress) bool { return e.ServiceGroup == "bad" }),
			errors.New("invalid")
	}); err == nil || attempts > 20 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
}

// TestPartRefusedForAnotherReason stops at an error that says nothing about the entries.
func TestPartRefusedForAnotherReason(t *testing.T) {
	entry := func(i int) v1.AnnouncedAddress { return v1.AnnouncedAddress{Address: fmt.Sprintf("10.0.0.%d", i)} }
	wanted := []v1.AnnouncedAddress{entry(1), entry(2), entry(3), entry(4)}
	away, attempts := errors.New("the API server is away"), 0
	refused, err := partialwrite.Write(wanted, nil, func(part []v1.AnnouncedAddress) (bool, error) {
		attempts++
		switch attempts {
		case 1: // all of them
			return true, errors.New("invalid")
		case 2: // none of them
			return false, nil
		}
		return false, away
	})
	if !errors.Is(err, away) || len(refused) > 0 || attempts != 3 {
		t.Errorf("refused %v, %v, after %d attempts", refused, err, attempts)
	}
}
