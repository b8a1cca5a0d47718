package ipam

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// countedCluster is a cluster of this installation that counts how often it is asked so.
type countedCluster struct {
	Cluster
	reads int
}

func (c *countedCluster) Installation(context.Context) (types.UID, error) {
	c.reads++
	return cluster, nil
}

// The cluster is asked whether it is of this installation unless it said so in the last minute.
func TestWhenInstallationIsRead(t *testing.T) {
	for _, row := range []struct {
		name string
		ago  time.Duration // since it said so, or negative for never
		want int
	}{
		{"never", -1, 1},
		{"just now", 0, 0},
		{"a minute ago", confirmationAge, 0},
		{"more than a minute ago", confirmationAge + 1, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, asked := newClocked(), &countedCluster{}
			c.Cluster = asked
			if row.ago >= 0 {
				c.cluster, c.confirmedAt = cluster, c.now.Add(-row.ago)
			}
			id, err := c.installation(t.Context())
			if id != cluster || err != nil || asked.reads != row.want {
				t.Errorf("got %s, %v after %d reads", id, err, asked.reads)
			}
		})
	}
}
