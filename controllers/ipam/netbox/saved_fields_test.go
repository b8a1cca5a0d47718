package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// A Service gets an address of the tenant, with a longer description than there is room for behind
// the mark, a DNS name and comments. When the Service goes, all of them are as they were.
func TestReservedKeepsFields(t *testing.T) {
	const name = "lab5.example"
	long := strings.TrimSpace(strings.Repeat("reserved for the lab, ask Jane <jané@example> before use; ", 3))
	for _, row := range []struct {
		name, description, dnsName, comments string
		setsName                             bool
		// whileUsed is what a person changes while a Service has the address, and after what
		// that is in the end, with the rest as before.
		whileUsed, after object
	}{
		{name: "nothing"},
		{name: "a short description", description: "first of the lot", comments: "of rack 7"},
		{name: "a long description", description: long},
		{name: "a description of this", description: "PureLB puts back: {}, " + long, comments: "as PureLB puts back: {}"},
		{name: "a description that begins as marks do", description: "purelb pool, ask Jane", dnsName: name, setsName: true},
		{name: "a description that nearly is a mark", description: "purelb: lab/rack/7", comments: "of rack 7"},
		{name: "comments", description: long, dnsName: name, comments: "of rack 7\n\n- ask Jane", setsName: true},
		{name: "a DNS name", dnsName: name, setsName: true},
		{name: "a DNS name that is not changed", dnsName: name},
		{name: "the Service's own DNS name", dnsName: "web.lb.example", setsName: true},
		{name: "a new comment", description: long, dnsName: name, comments: "of rack 7", setsName: true,
			whileUsed: object{"comments": "KEPT\r\nand of row 3"}, after: object{"comments": "of rack 7\n\nand of row 3"}},
		{name: "a comment instead", description: "short", dnsName: name, setsName: true,
			whileUsed: object{"comments": "mine"}, after: object{"comments": "mine", "dns_name": ""}},
		{name: "another description", description: long, dnsName: name, setsName: true,
			whileUsed: object{"description": "MARK | for Joe"}, after: object{"description": "for Joe"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			forEachNetBox(t, func(w *world) {
				config, _ := tenantFixture(w)
				if row.setsName {
					config.DNSName = "{{.Name}}.lb.example"
				}
				path := fmt.Sprintf("%s%d/", addresses, idOf(w.recordAt(w.addr(5))))
				before := object{"description": row.description, "dns_name": row.dnsName, "comments": row.comments}
				w.send(http.MethodPatch, path, before).want(w, http.StatusOK)
				s := w.connect(config, ipamtest.Installation)
				a := w.allocate(s, request("web"))
				if row.whileUsed != nil {
					used, change := w.recordAt(a), object{}
					mark, _, _ := strings.Cut(fmt.Sprint(used["description"]), " | ")
					for field, value := range row.whileUsed {
						change[field] = strings.NewReplacer("MARK", mark, "KEPT", fmt.Sprint(used["comments"])).Replace(fmt.Sprint(value))
					}
					w.send(http.MethodPatch, path, change).want(w, http.StatusOK)
				}
				if b := w.allocate(s, requestOf("another-one", a)); b != a { // which shared it
					w.Fatalf("got %s", b)
				}
				used := w.recordAt(a)
				if want := ipamtest.NewOwner("another-one", 0).Mark(ipamtest.Installation) + "/" +
					a.String(); !strings.HasPrefix(fmt.Sprint(used["description"]), want) || at(used, "status.value") != "active" {
					w.Errorf("in use: %v", used)
				}
				if row.setsName && used["dns_name"] != "another-one.lb.example" {
					w.Errorf("in use: %v", used["dns_name"])
				}
				if err := s.Release(w.Context(), a); err != nil {
					w.Fatal(err)
				}
				got := w.recordAt(a)
				for field, want := range before {
					if changed, isChanged := row.after[field]; isChanged {
						want = changed
					}
					if got[field] != want {
						w.Errorf("%s: got %q, want %q", field, got[field], want)
					}
				}
				if at(got, "status.value") != "reserved" {
					w.Errorf("released: %v", got)
				}
			})
		})
	}
}

// A group with addresses of a tenant is deleted, and made again with a prefix, while a Service has one of them. When
// the Service goes, the tenant's address is reserved again, and not deleted.
func TestReservedOfChangedGroup(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		ofTenant, _ := tenantFixture(w)
		before := w.recordAt(w.addr(5))
		a := w.allocate(w.connect(ofTenant, ipamtest.Installation), request("web"))
		if want := w.addr(5); a != want {
			w.Fatalf("got %s, want %s", a, want)
		}
		ofPrefix, _ := prefixFixture(w)
		s := w.connect(ofPrefix, ipamtest.Installation)
		if err := s.Release(w.Context(), a); err != nil {
			w.Fatal(err)
		}
		got := w.recordAt(a)
		for _, field := range []string{"id", "description", "comments", "dns_name", "status.value", "tenant.slug"} {
			if at(got, field) != at(before, field) {
				w.Errorf("%s: got %v, want %v", field, at(got, field), at(before, field))
			}
		}
		b := w.allocate(s, request("mail")) // what the prefix gave is deleted
		if err := s.Release(w.Context(), b); err != nil {
			w.Fatal(err)
		}
		for _, record := range w.list(addresses) {
			if strings.HasPrefix(fmt.Sprint(record["address"]), b.String()+"/") {
				w.Errorf("released, and still there: %v", record)
			}
		}
	})
}

// The mark of a Service with a long name leaves little room, or none, for the description that an
// address had. It can be read all the same, and the description comes back.
func TestReservedWithoutRoom(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	config, _ := tenantFixture(w)
	a := netip.MustParseAddr("fd00:7e57:1111:2222:3333:4444:5555:6666")
	fields := object{
		"address": a.String() + "/64", "status": "reserved", "tenant": object{"slug": config.Tenant},
		"description": "of the lab",
	}
	w.create(addresses, fields)
	s := w.connect(config, ipamtest.Installation)
	for length := 1; length <= 100; length++ {
		r := request(strings.Repeat("n", length))
		r.Family = allocation.IPv6
		for range 2 { // the second time by the mark
			if got := w.allocate(s, r); got != a {
				t.Fatalf("%d letters: got %s", length, got)
			}
		}
		if err := s.Release(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if got := w.recordAt(a); got["description"] != "of the lab" || got["comments"] != "" ||
			at(got, "status.value") != "reserved" {
			t.Fatalf("%d letters: %v", length, got)
		}
	}
}
