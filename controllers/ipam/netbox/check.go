package netbox

import (
	"context"
	"errors"
	"net/http"
)

// Check asks NetBox for its status. A token that NetBox takes needs no permission for that.
func (s *System) Check(ctx context.Context) error {
	var status struct {
		Version string `json:"netbox-version"`
	}
	_, err := s.client.sendOnce(ctx, http.MethodGet, pathStatus, nil, nil, nil, &status)
	var refused *requestRefused
	switch {
	case errors.As(err, &refused):
		return nil // NetBox answers, if not this question
	case err == nil && status.Version == "":
		return s.client.unavailableError("the answer is not what NetBox sends: is there something else at this URL?")
	}
	return err
}
