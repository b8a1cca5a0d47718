package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// installation returns the id of the installation. It returns an error unless the cluster was
// found to be of this installation lately: then no system may be asked.
func (b *Broker) installation(ctx context.Context) (types.UID, error) {
	b.mu.Lock()
	id, confirmedAt := b.installationID, b.confirmedAt
	b.mu.Unlock()
	isConfirmed := !confirmedAt.IsZero()
	if isConfirmed && b.Now().Sub(confirmedAt) <= maxConfirmationAge {
		return id, nil
	}
	read, err := b.Cluster.EnsureInstallation(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	var other *Error
	switch {
	case err == nil:
		b.installationID, b.confirmedAt = read, b.Now()
	case errors.As(err, &other):
		b.confirmedAt = time.Time{}
		return "", err
	case !isConfirmed: // otherwise the last answer is as good as any
		return "", fmt.Errorf("find out which installation this is: %w", err)
	}
	return b.installationID, nil
}
