package revision_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/internal/revision"
)

// TestFaultRestoredDatabaseEndsProgram has the version fall that manager and speaker read.
func TestFaultRestoredDatabaseEndsProgram(t *testing.T) {
	const interval = 5 * time.Second
	for name, row := range map[string]struct {
		versions []string      // one for each request, then the last one again; an empty one is no answer
		took     time.Duration // until the program ends; 0 is never
	}{
		"restored":             {[]string{"3000", "3001", "3001", "1000"}, 3 * interval},
		"away, then restored":  {[]string{"3000", "", "", "", "", "999"}, 5 * interval},
		"away":                 {[]string{"", "", "3000", "", "", "3000"}, 0},
		"written all the time": {[]string{"3000", "3002", "3004", "10000"}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			requests := 0
			read := func(context.Context) (string, error) {
				version := row.versions[min(requests, len(row.versions)-1)]
				requests++
				if version == "" {
					return "", errors.New("connection refused")
				}
				return version, nil
			}
			begun := time.Now()
			err := (&revision.RestoreDetector{Subject: "a Lease", Read: read, Interval: interval}).Start(ctx)
			want := row.took
			if want == 0 {
				want = time.Hour
			}
			if took := time.Since(begun); errors.Is(err, revision.ErrRestored) != (row.took != 0) || took != want {
				t.Errorf("%s: %v after %s", name, err, took)
			}
		})
	}
}

// TestRestoredTimeout has a request that is never answered end.
func TestRestoredTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Minute)
		defer cancel()
		requests := 0
		read := func(ctx context.Context) (string, error) {
			requests++
			<-ctx.Done()
			return "", ctx.Err()
		}
		if err := (&revision.RestoreDetector{Read: read, Interval: time.Minute}).Start(ctx); err != nil || requests != 30 {
			t.Errorf("%v after %d requests, want 30 of two minutes", err, requests)
		}
	})
}
