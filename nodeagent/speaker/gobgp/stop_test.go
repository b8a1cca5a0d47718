package gobgp

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// TestNothingIsLeftRunning has a library that does not start, as it takes no such identifier, and one that works for
// a while and is stopped. A goroutine that either leaves running makes the bubble fail.
func TestNothingIsLeftRunning(t *testing.T) {
	t.Run("not started", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			node := New(logr.Discard(), func() {})
			if err := node.Start(context.Background(), netip.MustParseAddr("fd00::1"), 65001); err == nil {
				t.Error("the library has started with an identifier of IPv6")
			}
		})
	})
	for name, isGraceful := range map[string]bool{"stopped": false, "stopped gracefully": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := New(logr.Discard(), func() {})
				if err := node.Start(context.Background(), netip.MustParseAddr("192.0.2.11"), 65001); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second) // of the test's own time
				if err := node.Stop(context.Background(), isGraceful); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
