package writeerror_test

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/purelb/purelb-operator/internal/writeerror"
)

func TestIsOutdated(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	invalid := func(path ...string) error {
		return apierrors.NewInvalid(
			schema.GroupKind{Kind: "Service"}, "a",
			field.ErrorList{field.Invalid(field.NewPath(path[0], path[1:]...), "1", "field is immutable")},
		)
	}
	for _, row := range []struct {
		name                 string
		err                  error
		isReplaced, outdated bool
	}{
		{"none", nil, false, false},
		{"gone", apierrors.NewNotFound(services, "a"), false, true},
		{"changed", apierrors.NewConflict(services, "a", errors.New("changed")), false, true},
		{"replaced", invalid("metadata", "uid"), true, true},
		{"invalid", invalid("spec", "ports"), false, false},
		{"forbidden", apierrors.NewForbidden(services, "a", errors.New("no")), false, false},
		{"no answer", errors.New("connection refused"), false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			wrapped := row.err
			if wrapped != nil {
				wrapped = fmt.Errorf("write: %w", row.err)
			}
			for _, err := range []error{row.err, wrapped} {
				if writeerror.IsReplaced(err) != row.isReplaced || writeerror.IsOutdated(err) != row.outdated {
					t.Errorf("%v: replaced %v, outdated %v", err, writeerror.IsReplaced(err), writeerror.IsOutdated(err))
				}
			}
		})
	}
}
