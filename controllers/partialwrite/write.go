// Package partialwrite writes as much of an object as the API server accepts, and remembers the
// entries that it refuses.
package partialwrite

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// WithStored returns the wanted entries of an object, of which those that isPostponed
// picks are as they are stored, or missing if they are not stored.
func WithStored(
	wanted, stored []v1.AnnouncedAddress, isPostponed func(*v1.AnnouncedAddress) bool,
) []v1.AnnouncedAddress {
	storedEntry := entriesByAddress(stored)
	out := make([]v1.AnnouncedAddress, 0, len(wanted))
	for i := range wanted {
		if !isPostponed(&wanted[i]) {
			out = append(out, wanted[i])
		} else if old, exists := storedEntry[wanted[i].Address]; exists {
			out = append(out, old)
		}
	}
	return out
}

func entriesByAddress(entries []v1.AnnouncedAddress) map[string]v1.AnnouncedAddress {
	byAddress := map[string]v1.AnnouncedAddress{}
	for _, e := range entries {
		byAddress[e.Address] = e
	}
	return byAddress
}

// ErrObjectRefused marks the errors by which an object is refused whatever its entries are.
var ErrObjectRefused = errors.New("the object is refused")

// Outcome is what became of the wanted entries of an object.
type Outcome struct {
	// Refused are the entries that the API server refuses, and Refusal is the last error by which it did.
	Refused []v1.AnnouncedAddress
	Refusal error
	// Err is an error that says nothing about entries. What became of those that are not refused is not known then.
	Err error
}

// Write writes as many of the wanted entries of one object as the API server accepts.
// try writes some entries, and reports whether they are refused for what they are, as
// against an error that says nothing about them. Where the object is refused, its entries
// that differ from the stored ones are tried in smaller and smaller parts, and those that
// are refused by themselves stay as they are stored. Where the error is ErrObjectRefused, all
// that differ do, and no part is tried.
func Write(
	wanted, stored []v1.AnnouncedAddress, try func([]v1.AnnouncedAddress) (isRefused bool, err error),
) Outcome {
	isRefused, err := try(wanted)
	if !isRefused {
		return Outcome{Err: err}
	}
	w := partWriter{wanted: wanted, stored: stored, try: try, isUndecided: map[string]bool{}, lastRefusal: err}
	var suspects []v1.AnnouncedAddress
	storedEntry := entriesByAddress(stored)
	for _, e := range wanted {
		if old, exists := storedEntry[e.Address]; !exists || !equality.Semantic.DeepEqual(old, e) {
			w.isUndecided[e.Address] = true
			suspects = append(suspects, e)
		}
	}
	if errors.Is(err, ErrObjectRefused) {
		return refusedAll(suspects, err)
	}
	if isRefused, tryErr := w.tryWith(nil); isRefused {
		return refusedAll(suspects, err)
	} else if tryErr != nil {
		return Outcome{Err: tryErr}
	}
	err = w.add(suspects)
	if len(w.refused) == 0 {
		return Outcome{Err: err}
	}
	return Outcome{Refused: w.refused, Refusal: w.lastRefusal, Err: err}
}

// refusedAll is the outcome for an object that is refused whatever its entries are. If none of them differs from what
// is stored, nothing is known of entries.
func refusedAll(entries []v1.AnnouncedAddress, refusal error) Outcome {
	if len(entries) == 0 {
		return Outcome{Err: refusal}
	}
	return Outcome{Refused: entries, Refusal: refusal}
}

// partWriter writes one object in parts.
type partWriter struct {
	wanted, stored []v1.AnnouncedAddress
	try            func([]v1.AnnouncedAddress) (isRefused bool, err error)
	// isUndecided are the addresses of entries that were not accepted so far.
	isUndecided map[string]bool
	// refused are the entries that were refused by themselves, and lastRefusal is the last
	// error by which one was.
	refused     []v1.AnnouncedAddress
	lastRefusal error
}

// tryWith tries the object with what was accepted so far and some entries more.
func (w *partWriter) tryWith(more []v1.AnnouncedAddress) (bool, error) {
	isTried := map[string]bool{}
	for _, e := range more {
		isTried[e.Address] = true
	}
	return w.try(WithStored(
		w.wanted, w.stored, func(e *v1.AnnouncedAddress) bool { return w.isUndecided[e.Address] && !isTried[e.Address] },
	))
}

// add adds as many of some entries as are accepted. It returns an error that says nothing
// about them.
func (w *partWriter) add(more []v1.AnnouncedAddress) error {
	if len(more) == 0 {
		return nil
	}
	isRefused, err := w.tryWith(more)
	switch {
	case !isRefused && err != nil:
		return err
	case !isRefused:
		for _, e := range more {
			delete(w.isUndecided, e.Address)
		}
		return nil
	case len(more) == 1:
		w.refused, w.lastRefusal = append(w.refused, more...), err
		return nil
	}
	if err := w.add(more[:len(more)/2]); err != nil {
		return err
	}
	return w.add(more[len(more)/2:])
}
