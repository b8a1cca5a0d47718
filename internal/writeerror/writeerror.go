// Package writeerror tells what the API server's answer to a write means.
package writeerror

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsReplaced reports whether a write that names its object by UID found another object of
// the same name. The API server answers then as if the write would change the UID.
func IsReplaced(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(
		status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" },
	)
}

// IsOutdated reports whether nothing is wrong with a write but that its object is not as it
// was read any more: changed, replaced by another of the same name, or gone. Where a
// server-side apply names by UID an object that is gone, the API server answers Conflict.
func IsOutdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || IsReplaced(err)
}
