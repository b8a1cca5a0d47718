package gobgp

import (
	"context"
	"errors"
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
			if err := node.Start(context.Background(), netip.MustParseAddr("fd00::1")); err == nil {
				t.Error("the library has started with an identifier of IPv6")
			}
		})
	})
	for name, isGraceful := range map[string]bool{"stopped": false, "stopped gracefully": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := New(logr.Discard(), func() {})
				if err := node.Start(context.Background(), netip.MustParseAddr("192.0.2.11")); err != nil {
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

// TestWithin checks that what heeds no context holds up nobody for longer than the context says.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		failure, began := errors.New("no"), time.Now()
		if err := within(ctx, func() error { time.Sleep(time.Second); return failure }); !errors.Is(err, failure) {
			t.Errorf("one that ends: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("one that ends: after %s", took)
		}
		if err := within(ctx, func() error { time.Sleep(time.Hour); return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that does not: %v", err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("one that does not: after %s", took)
		}
		time.Sleep(time.Hour) // until the function, which nobody waits for, has ended
	})
}
