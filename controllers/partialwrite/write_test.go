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
		outcome := partialwrite.Write(row.wanted, stored, func(part []v1.AnnouncedAddress) (bool, error) {
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
		for _, e := range outcome.Refused {
			addresses = append(addresses, e.Address)
		}
		if diff := cmp.Diff(row.want, is, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: stored (-want +got):\n%s", row.name, diff)
		}
		if diff := cmp.Diff(row.refused, addresses); diff != "" {
			t.Errorf("%s: refused (-want +got):\n%s", row.name, diff)
		}
		if (outcome.Err != nil) != row.fails || (outcome.Refusal != nil) != (len(row.refused) > 0) {
			t.Errorf("%s: %+v", row.name, outcome)
		}
		if attempts != row.wantAttempts {
			t.Errorf("%s: %d attempts, want %d", row.name, attempts, row.wantAttempts)
		}
	}
	// Where the object is refused whatever its entries are, no part is tried.
	attemptsOfObject := 0
	outcome := partialwrite.Write([]v1.AnnouncedAddress{entry(1, "old"), entry(2, "new"), entry(4, "new")}, stored,
		func([]v1.AnnouncedAddress) (bool, error) {
			attemptsOfObject++
			return true, fmt.Errorf("a quota: %w", partialwrite.ErrObjectRefused)
		})
	isObject := errors.Is(outcome.Refusal, partialwrite.ErrObjectRefused) && outcome.Err == nil
	if len(outcome.Refused) != 2 || !isObject || attemptsOfObject != 1 {
		t.Errorf("the object: %+v after %d attempts", outcome, attemptsOfObject)
	}
	// So it is where no entry differs from what is stored: then the error is about none.
	for _, refusal := range []error{partialwrite.ErrObjectRefused, errors.New("invalid")} {
		outcome = partialwrite.Write(stored, stored, func([]v1.AnnouncedAddress) (bool, error) { return true, refusal })
		if !errors.Is(outcome.Err, refusal) || outcome.Refused != nil || outcome.Refusal != nil {
			t.Errorf("the object, with the entries that are stored: %+v", outcome)
		}
	}
	// Many good ones with one bad one cost few attempts.
	var wanted []v1.AnnouncedAddress
	for i := range 100 {
		wanted = append(wanted, entry(i, "new"))
	}
	attempts := 0
	wanted[37].ServiceGroup = "bad"
	manyOutcome := partialwrite.Write(wanted, nil, func(part []v1.AnnouncedAddress) (bool, error) {
		attempts++
		if slices.ContainsFunc(part, func(e v1.AnnouncedAddress) bool { return e.ServiceGroup == "bad" }) {
			return true, errors.New("invalid")
		}
		return false, nil
	})
	if len(manyOutcome.Refused) != 1 || manyOutcome.Refused[0].Address != wanted[37].Address || attempts > 20 {
		t.Errorf("%+v after %d attempts", manyOutcome, attempts)
	}
}

// TestPartRefusedForAnotherReason stops at an error that says nothing about the entries.
func TestPartRefusedForAnotherReason(t *testing.T) {
	entry := func(i int) v1.AnnouncedAddress { return v1.AnnouncedAddress{Address: fmt.Sprintf("10.0.0.%d", i)} }
	wanted := []v1.AnnouncedAddress{entry(1), entry(2), entry(3), entry(4)}
	away, attempts := errors.New("the API server is away"), 0
	outcome := partialwrite.Write(wanted, nil, func(part []v1.AnnouncedAddress) (bool, error) {
		attempts++
		switch attempts {
		case 1: // all of them
			return true, errors.New("invalid")
		case 2: // none of them
			return false, nil
		}
		return false, away
	})
	if !errors.Is(outcome.Err, away) || len(outcome.Refused) > 0 || outcome.Refusal != nil || attempts != 3 {
		t.Errorf("%+v after %d attempts", outcome, attempts)
	}
	// An entry that was refused before that is so by its own error.
	invalid := errors.New("invalid")
	outcome = partialwrite.Write(wanted, nil, func(part []v1.AnnouncedAddress) (bool, error) {
		switch {
		case slices.ContainsFunc(part, func(e v1.AnnouncedAddress) bool { return e.Address == wanted[0].Address }):
			return true, invalid
		case len(part) > 0:
			return false, away
		}
		return false, nil
	})
	if len(outcome.Refused) != 1 || !errors.Is(outcome.Refusal, invalid) || !errors.Is(outcome.Err, away) {
		t.Errorf("of one and another reason: %+v", outcome)
	}
}
