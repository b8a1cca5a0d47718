package netbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// maxPosts is how many records one attempt to get an address may try to create.
const maxPosts = 5

// refuseAddresses lets NetBox refuse to create records of some addresses, as by a validation rule:
// those that it is asked for by name, and its own choice. It returns what was asked for since it was
// called last: the addresses, and the paths of available-ips.
func (w *world) refuseAddresses(isRefused func(a netip.Addr) bool, refusesChoice bool) (posted func() []string) {
	var posts []string
	w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var fields struct {
			Address string `json:"address"`
		}
		if err := json.Unmarshal(body, &fields); err != nil {
			w.Error(err)
		}
		p, err := netip.ParsePrefix(fields.Address)
		if err != nil {
			posts = append(posts, r.URL.Path)
		} else {
			posts = append(posts, p.Addr().String())
		}
		refuses := err != nil && refusesChoice || err == nil && isRefused(p.Addr())
		if refuses {
			send(w.T, rw, http.StatusBadRequest, object{"address": []string{"Addresses need a ticket."}})
		}
		return refuses
	}, nil)
	w.Cleanup(func() { w.fake.SetFaults(nil, nil) })
	return func() []string {
		defer func() { posts = nil }()
		return posts
	}
}

func everyAddress(netip.Addr) bool { return true }

// NetBox refuses each address that it lists as free, as by a validation rule of its own. The
// Service says so, with NetBox's answer, and not that the addresses are exhausted. Each attempt
// costs few requests, and asks for other addresses than the one before. This test shows the row "it
// refuses addresses that it lists as free, each or some" of docs/trust.md.
func TestFaultAddressesRefused(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	s := w.connect(w.config(), ipamtest.Installation)
	posted := w.refuseAddresses(everyAddress, true)
	const want = `NetBox URL refuses addresses that it lists as free for IPv4 of the group: ` +
		`400: {"address":["Addresses need a ticket."]}; others are tried next`
	seen := map[string]bool{}
	for n := range 4 {
		if got := w.refusal(s, request("web"), v1.ReasonIPAMRefused); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		posts := posted()
		if len(posts) == 0 || len(posts) > maxPosts {
			t.Errorf("attempt %d: asked for %v", n, posts)
		}
		for _, a := range posts {
			if seen[a] {
				t.Errorf("attempt %d: asked for %s once more", n, a)
			}
			seen[a] = true
		}
		if n == 1 { // a comparison forgets nothing of this
			if _, err := ipamtest.Inspect(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			delete(seen, postPath(seen))
		}
	}
}

// postPath returns the path among what was asked for.
func postPath(seen map[string]bool) string {
	for a := range seen {
		if strings.HasPrefix(a, "/") {
			return a
		}
	}
	return ""
}

// NetBox refuses many prefixes' addresses: one attempt is bounded all the same, and the next one goes
// on with other prefixes.
func TestFaultAddressesOfManyPoolsRefused(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	config := w.config()
	source := allocation.NetboxSource{}
	for n := range 16 {
		p := netip.PrefixFrom(w.addr(n*16), 28)
		w.prefix(p, nil)
		source.Prefixes = append(source.Prefixes, p)
	}
	config.Sources[allocation.IPv4] = source
	s := w.connect(config, ipamtest.Installation)
	last := source.Prefixes[15]
	posted := w.refuseAddresses(func(a netip.Addr) bool { return !last.Contains(a) }, true)
	for attempt := 1; ; attempt++ {
		a, err := s.Allocate(t.Context(), request("web"))
		if posts := posted(); len(posts) > maxPosts {
			t.Errorf("attempt %d: asked for %v", attempt, posts)
		}
		if err == nil {
			if !last.Contains(a) {
				t.Errorf("got %s", a)
			}
			break
		}
		var refused *ipam.Error
		if !errors.As(err, &refused) || refused.Reason != v1.ReasonIPAMRefused || attempt > 10 {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
}

// A few addresses that NetBox refuses, lower than all others, do not block the group, and cost
// nothing once they are known.
func TestFaultFewAddressesRefused(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	s := w.connect(w.config(), ipamtest.Installation)
	few := func(a netip.Addr) bool { return a.Less(w.addr(7)) }
	posted := w.refuseAddresses(few, true)
	attempts := 0
	for attempts < 10 {
		attempts++
		if a, err := s.Allocate(t.Context(), request("web")); err == nil {
			if a != w.addr(7) {
				t.Errorf("got %s", a)
			}
			break
		}
	}
	if attempts > 3 {
		t.Errorf("%d attempts", attempts)
	}
	posted()
	for n := range byte(3) {
		r := request("web")
		r.Owner = ipamtest.NewOwner(fmt.Sprint("other", n), n)
		a := w.allocate(s, r)
		if posts := posted(); a != w.addr(8+int(n)) || len(posts) != 1 {
			t.Errorf("got %s, asked for %v", a, posts)
		}
	}
}
