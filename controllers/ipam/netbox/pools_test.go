package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// No address is created in a prefix that no Service can have, whether or not the records have
// been compared since the connection was made, as after a rotation of the token.
func TestRefusedPool(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		tag := w.named(tags)
		special := netip.MustParsePrefix("127.5.5.0/28")
		if len(w.list(prefixes+"?within_include="+special.String())) > 0 {
			w.Skipf("somebody has %s", special)
		}
		w.prefix(special, object{"tags": []object{{"slug": tag}}})
		w.prefix(w.v4, object{"tags": []object{{"slug": tag}}})
		if a := w.allocate(w.connect(w.tagged(tag), ipamtest.Installation), request("web")); a != w.addr(1) {
			w.Errorf("got %s", a)
			w.deleteAddresses(special)
		}
		s := w.connect(w.tagged(tag), ipamtest.Installation)
		report, err := ipamtest.Inspect(w.Context(), s)
		if err != nil || len(report.Ranges) != 1 || len(report.Problems) != 1 ||
			!strings.Contains(report.Problems[0], "127.0.0.0/8 (loopback)") {
			w.Errorf("the comparison: %+v, %v", report, err)
		}
	})
}

// How many addresses of a range are recorded does not depend on how many objects NetBox sends
// at once, nor on how long the range is.
func TestRecordedOfRange(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.fake.MaxPageSize = 20
	last := netipx.RangeOfPrefix(w.v6).To()
	for _, row := range []struct {
		bits        int
		first, last netip.Addr
	}{
		{24, w.addr(10), w.addr(209)},
		{64, w.v6.Addr().Next(), last.Prev()}, // more prefixes than one query names
	} {
		text := func(a netip.Addr) string { return netip.PrefixFrom(a, row.bits).String() }
		w.create(ranges, object{"start_address": text(row.first), "end_address": text(row.last), "status": "active"})
		config := w.config()
		config.Sources = map[allocation.Family]allocation.NetboxSource{
			allocation.FamilyOf(row.first): {Ranges: []netipx.IPRange{netipx.IPRangeFrom(row.first, row.last)}},
		}
		s := w.connect(config, ipamtest.Installation)
		recorded := func(want int64) {
			t.Helper()
			report, err := ipamtest.Inspect(t.Context(), s)
			if err != nil || len(report.Ranges) != 1 || report.Ranges[0].Recorded != want {
				t.Fatalf("%s-%s: %+v, %v, want %d recorded", row.first, row.last, report, err, want)
			}
		}
		recorded(0)
		for _, a := range []netip.Addr{row.first, row.last, row.first.Prev()} { // the last one is outside
			w.send(http.MethodPost, addresses, object{"address": text(a)}).want(w, http.StatusCreated)
		}
		recorded(2)
	}
}

// What others use addresses for is not said to those who may make Services. This test shows the row
// "learn from a refusal what NetBox says of an address of others" of docs/trust.md.
func TestAttackDescriptionOfOthers(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(w.v4, nil)
		id := idOf(
			w.send(
				http.MethodPost, addresses,
				object{"address": address(w.v4, 9), "description": "vault, rack 7", "dns_name": "vault.example"},
			).want(w, http.StatusCreated).object,
		)
		got := w.refusal(w.connect(w.config(), ipamtest.Installation), requestOf("web", w.addr(9)), v1.ReasonAddressInUse)
		if want := fmt.Sprintf("%s is recorded in NetBox URL already: id %d", w.addr(9), id); got != want {
			w.Errorf("got  %s\nwant %s", got, want)
		}
	})
}
