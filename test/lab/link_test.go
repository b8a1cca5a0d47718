package lab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// Two hosts that are not of the lab, and not of the same test elsewhere.
var (
	oneHost   = fmt.Sprintf("test-%d-one", os.Getpid())
	otherHost = fmt.Sprintf("test-%d-other", os.Getpid())
)

// joinTwoHosts makes two network namespaces with a cable between them, until the test ends.
func joinTwoHosts(t *testing.T) {
	t.Helper()
	run := func(command string) {
		t.Helper()
		if text, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, text)
		}
	}
	for _, host := range []string{oneHost, otherHost} {
		run("netns add " + Namespace(host))
		t.Cleanup(func() { run("netns delete " + Namespace(host)) })
	}
	run(
		"link add " + link + " netns " + Namespace(oneHost) + " type veth peer name " + link + " netns " +
			Namespace(otherHost),
	)
	for _, host := range []string{oneHost, otherHost} {
		run("-netns " + Namespace(host) + " link set " + link + " up")
	}
}

// TestForgeOnLink checks that a station hears a Forger claim and answer by itself, and no more when
// it has stopped.
func TestForgeOnLink(t *testing.T) {
	joinTwoHosts(t)
	const mac = "02:00:00:77:00:13"
	for _, address := range []netip.Addr{netip.MustParseAddr("10.77.0.122"), netip.MustParseAddr("fd00:77::122")} {
		asker, err := OpenAsker(oneHost, address)
		if err != nil {
			t.Fatal(err)
		}
		forger, err := (&Lab{}).Forge(t.Context(), otherHost, mac, address)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; {
			if err := asker.Ask(address); err != nil {
				t.Fatal(err)
			}
			if at, from, _, ok := asker.Answer(); ok {
				if at != address || from != mac {
					t.Errorf("%s is at %s, want %s at %s", at, from, address, mac)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("nobody answers for %s", address)
			}
		}
		heard := make(chan claim)
		go func() {
			defer close(heard)
			for range 300 {
				if c, ok := asker.wire.receive(); ok && !c.answersAsker && c.address == address {
					heard <- c
					return
				}
			}
		}()
		if c := <-heard; c.mac != mac {
			t.Errorf("the claim of %s: %+v", address, c)
		}
		if err := forger.Stop(); err != nil {
			t.Error(err)
		}
		if err := asker.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := (&Lab{}).Forge(t.Context(), otherHost, "nonsense", netip.IPv6Loopback()); err == nil {
		t.Error("a MAC that is none was accepted")
	}
}

// TestWatchAddressesOnKernel checks that an address that is there for a moment is noted.
func TestWatchAddressesOnKernel(t *testing.T) {
	joinTwoHosts(t)
	l, ctx := &Lab{}, t.Context()
	watch, err := l.WatchAddresses(ctx, oneHost)
	if err != nil {
		t.Fatal(err)
	}
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.77.0.121/32"), netip.MustParsePrefix("fd00:77::121/128")}
	hasSeen := func() bool {
		watch.mu.Lock()
		defer watch.mu.Unlock()
		return !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
			return !slices.Contains(watch.changes, AddressChange{Link: link, Prefix: p}) ||
				!slices.Contains(watch.changes, AddressChange{Link: link, Prefix: p, IsDeleted: true})
		})
	}
	for deadline := time.Now().Add(30 * time.Second); !hasSeen(); { // the watch may begin a moment later
		for _, prefix := range prefixes {
			for _, do := range []string{"add", "delete"} {
				if err := l.ip(ctx, oneHost, "address", do, prefix.String(), "dev", link); err != nil {
					t.Fatal(err)
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all is noted: %+v", watch.Stop())
		}
	}
	if changes := watch.Stop(); len(changes) < 2*len(prefixes) {
		t.Errorf("%+v", changes)
	}
}
