package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// clone records another address with all that NetBox's button to clone a record copies.
func (w *world) clone(from, to netip.Addr) int64 {
	w.Helper()
	record := w.recordAt(from)
	fields := object{
		"address": netip.PrefixFrom(to, w.v4.Bits()).String(), "description": record["description"],
		"dns_name": "server.example", "status": at(record, "status.value"),
	}
	if role := at(record, "role.value"); role != nil {
		fields["role"] = role
	}
	if tenant := at(record, "tenant.id"); tenant != nil {
		fields["tenant"] = tenant
	}
	return idOf(w.send(http.MethodPost, addresses, fields).want(w, http.StatusCreated).object)
}

// Somebody clones a record of PureLB's in NetBox, for a server. The copy is the server's: it is
// reported, and neither released, nor allocated, nor changed. This test shows the row "somebody clones
// a record of PureLB's" of docs/trust.md.
func TestFaultClonedRecord(t *testing.T) {
	for name, fixture := range map[string]func(*world) *allocation.Netbox{
		"prefix": func(w *world) *allocation.Netbox {
			w.prefix(w.v4, nil)
			return w.config()
		},
		"tenant alone": func(w *world) *allocation.Netbox {
			config, _ := tenantFixture(w)
			return config
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachNetBox(t, func(w *world) {
				s := w.connect(fixture(w), ipamtest.Installation)
				a, copied := w.allocate(s, request("web")), w.addr(50)
				id := w.clone(a, copied)
				report, err := ipamtest.Inspect(w.Context(), s)
				if err != nil {
					w.Fatal(err)
				}
				held := map[netip.Addr][]ipam.Owner{a: {request("web").Owner}}
				comparison := ipam.CompareRecords(report.MarkedRecords, held, ipamtest.Installation)
				want := fmt.Sprintf(
					"the record with the id %d has the mark of Service test/web, which is for %s: somebody has copied that record, "+
						"and the copy is not PureLB's",
					id, a,
				)
				if len(comparison.Unused) != 0 || len(comparison.Missing) != 0 || len(comparison.Differences) != 1 ||
					comparison.Differences[copied] != want {
					w.Errorf("got  %+v\nwant %s", comparison, want)
				}
				if len(report.Ranges) != 1 {
					w.Errorf("pools: %+v", report.Ranges)
				}
				if again := w.allocate(s, request("web")); again != a {
					w.Errorf("the Service got %s, want %s", again, a)
				}
				shown := requestOf("other", copied)
				shown.IsShown = true
				w.refusal(s, shown, v1.ReasonAddressInUse)
				for _, unused := range []netip.Addr{a, copied} {
					if err := s.Release(w.Context(), unused); err != nil {
						w.Fatal(err)
					}
				}
				if got := w.recordAt(copied); got["dns_name"] != "server.example" || at(got, "status.value") != "active" {
					w.Errorf("the server's record: %v", got)
				}
			})
		})
	}
}

// A group loses one of two prefixes while a Service has an address of it. The record goes with
// the Service; what is left over, because no manager ran, is reported. This test shows the row "the
// group no longer takes addresses from where a Service has one" of docs/trust.md.
func TestFaultOrphanReleased(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		low, high := netip.PrefixFrom(w.v4.Addr(), 28), netip.PrefixFrom(w.addr(64), 28)
		w.prefix(low, nil)
		w.prefix(high, nil)
		config := w.config()
		config.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{low, high}}
		a := w.allocate(w.connect(config, ipamtest.Installation), requestOf("web", w.addr(70)))
		config = w.config()
		config.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{low}}
		s := w.connect(config, ipamtest.Installation)
		report, err := ipamtest.Inspect(w.Context(), s)
		if err != nil {
			w.Fatal(err)
		}
		want := fmt.Sprintf(
			"the record with the id %d is that of Service test/web, which does not have the address, and no ServiceGroup "+
				"takes addresses from there: delete the record in NetBox",
			idOf(w.recordAt(a)),
		)
		if comparison := ipam.CompareRecords(report.MarkedRecords, nil, ipamtest.Installation); len(comparison.Unused) != 0 ||
			comparison.Differences[a] != want {
			w.Errorf("got  %+v\nwant %s", comparison, want)
		}
		if err := s.Release(w.Context(), a); err != nil {
			w.Fatal(err)
		}
		if n := len(w.recordsIn()); n != 0 {
			w.Errorf("%d records are left", n)
		}
	})
}

// An address of the tenant that somebody has given to another tenant stays that tenant's when
// the Service goes: only the mark does.
func TestFaultOrphanOfTenant(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		config, _ := tenantFixture(w)
		s := w.connect(config, ipamtest.Installation)
		a := w.allocate(s, request("web"))
		path := fmt.Sprintf("%s%d/", addresses, idOf(w.recordAt(a)))
		other := w.id + "-b"
		w.create(tenants, object{"name": other, "slug": other})
		w.send(http.MethodPatch, path, object{"tenant": object{"slug": other}}).want(w, http.StatusOK)
		if err := s.Release(w.Context(), a); err != nil {
			w.Fatal(err)
		}
		if got := w.recordAt(a); got["description"] != "" || at(got, "status.value") != "active" ||
			at(got, "tenant.slug") != other {
			w.Errorf("released: %v", got)
		}
	})
}
