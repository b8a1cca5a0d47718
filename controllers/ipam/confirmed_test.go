package ipam

import (
	"testing"
	"time"
)

// The cluster is asked whether it is of this installation unless it said so in the last minute.
func TestWhenInstallationIsRead(t *testing.T) {
	for _, row := range []struct {
		name string
		ago  time.Duration // since it said so, or negative for never
		want int
	}{
		{"never", -1, 1},
		{"just now", 0, 0},
		{"a minute ago", maxConfirmationAge, 0},
		{"more than a minute ago", maxConfirmationAge + 1, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked()
			if row.ago >= 0 {
				c.installationID, c.confirmedAt = testInstallation, c.now.Add(-row.ago)
			}
			id, err := c.installation(t.Context())
			if n := c.stub.installationReads; id != testInstallation || err != nil || n != row.want {
				t.Errorf("got %s, %v after %d reads", id, err, n)
			}
		})
	}
}
