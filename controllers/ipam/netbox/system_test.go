package netbox_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// TestConformance runs the tests of any ipam.System, in each way to say which addresses
// Services get.
func TestConformance(t *testing.T) {
	for name, fixture := range map[string]func(*world) (*allocation.Netbox, netip.Addr){
		"prefix":           prefixFixture,
		"prefix of IPv6":   prefixFixtureV6,
		"two prefixes":     twoPrefixesFixture,
		"range":            rangeFixture,
		"selector and VRF": selectorFixture,
		"tenant alone":     tenantFixture,
	} {
		t.Run(name, func(t *testing.T) {
			forEachNetBox(t, func(outer *world) {
				ipamtest.Conformance(outer.T, func(t *testing.T) ipamtest.Fixture {
					w := newWorld(t, outer.base, outer.token, outer.fake)
					config, outside := fixture(w)
					family := allocation.IPv4
					if _, isV6 := config.Sources[allocation.IPv6]; isV6 {
						family = allocation.IPv6
					}
					return ipamtest.Fixture{Family: family, Outside: outside,
						Connect: func(t *testing.T, installationID types.UID) ipam.System {
							other := *w
							other.T = t
							return other.connect(config, installationID)
						}}
				})
			})
		})
	}
}

// addr returns the nth address of the world's IPv4 network.
func (w *world) addr(n int) netip.Addr { return netip.MustParsePrefix(address(w.v4, n)).Addr() }

func prefixFixture(w *world) (*allocation.Netbox, netip.Addr) {
	small := netip.PrefixFrom(w.v4.Addr(), 28)
	w.prefix(small, nil)
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{small}}
	config.Tags = []string{w.named(tags)}
	return config, w.addr(100)
}

func prefixFixtureV6(w *world) (*allocation.Netbox, netip.Addr) {
	small := netip.PrefixFrom(w.v6.Addr(), 124)
	w.prefix(small, nil)
	config := w.config()
	config.Sources = map[allocation.Family]allocation.NetboxSource{allocation.IPv6: {Prefixes: []netip.Prefix{small}}}
	return config, netip.MustParsePrefix(address(w.v6, 100)).Addr()
}

func twoPrefixesFixture(w *world) (*allocation.Netbox, netip.Addr) {
	first, second := netip.PrefixFrom(w.v4.Addr(), 30), netip.PrefixFrom(w.addr(16), 29)
	w.prefix(first, nil)
	w.prefix(second, nil)
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{first, second}}
	return config, w.addr(100)
}

func rangeFixture(w *world) (*allocation.Netbox, netip.Addr) {
	w.prefix(w.v4, nil)
	w.create(ranges, object{"start_address": address(w.v4, 10), "end_address": address(w.v4, 16), "status": "active"})
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{
		Ranges: []netipx.IPRange{netipx.IPRangeFrom(w.addr(10), w.addr(16))},
	}
	return config, w.addr(17)
}

func selectorFixture(w *world) (*allocation.Netbox, netip.Addr) {
	small := netip.PrefixFrom(w.v4.Addr(), 28)
	vrf := w.create(vrfs, object{"name": w.id})
	w.prefix(small, nil) // in no VRF
	w.prefix(small, object{"vrf": vrf})
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{Selector: v1.NetboxSelector{VRF: w.id}}
	config.Tenant = w.named(tenants)
	return config, w.addr(100)
}

func tenantFixture(w *world) (*allocation.Netbox, netip.Addr) {
	w.prefix(w.v4, nil)
	tenant := w.named(tenants)
	for n := 5; n <= 11; n++ {
		w.send(
			http.MethodPost, addresses,
			object{"address": address(w.v4, n), "status": "reserved", "tenant": object{"slug": tenant}},
		).want(w, http.StatusCreated)
	}
	w.send(
		http.MethodPost, addresses,
		object{"address": address(w.v4, 20), "status": "active", "tenant": object{"slug": tenant}},
	).want(w, http.StatusCreated)
	config := w.config()
	config.Sources, config.Tenant, config.Role = nil, tenant, ""
	return config, w.addr(100)
}

func request(name string) ipam.Request {
	return ipam.Request{Owner: ipamtest.NewOwner(name, 0), Family: allocation.IPv4, Objection: ipamtest.NoObjection}
}

func requestOf(name string, a netip.Addr) ipam.Request {
	r := request(name)
	r.Address, r.Family = a, allocation.FamilyOf(a)
	return r
}

func (w *world) allocate(s ipam.System, r ipam.Request) netip.Addr {
	w.Helper()
	a, err := s.Allocate(w.Context(), r)
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// refusal returns the error of a request that has to be refused.
func (w *world) refusal(s ipam.System, r ipam.Request, reason string) string {
	w.Helper()
	a, err := s.Allocate(w.Context(), r)
	var refused *ipam.Error
	if !errors.As(err, &refused) || refused.Reason != reason {
		w.Fatalf("got %s, %v, want %s", a, err, reason)
	}
	return strings.ReplaceAll(strings.ReplaceAll(refused.Message, w.base, "URL"), w.id, "ID")
}

// recordAt returns what NetBox has at an address.
func (w *world) recordAt(a netip.Addr) object {
	w.Helper()
	records := w.list(addresses + "?address=" + a.String())
	if len(records) != 1 {
		w.Fatalf("%d records of %s", len(records), a)
	}
	return records[0]
}

func TestRecordedFields(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(w.v4, nil)
		config := w.config()
		config.Tenant, config.Tags, config.Status, config.DNSName = w.named(tenants), []string{w.named(tags)}, "reserved",
			"{{.Name}}.{{.Namespace}}.lb.example"
		got := w.recordAt(w.allocate(w.connect(config, ipamtest.Installation), request("web")))
		for path, want := range map[string]any{
			"status.value": "reserved", "role.value": "vip", "tenant.slug": w.id, "dns_name": "web.test.lb.example",
			"description": ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation) + "/" + w.addr(1).String(),
			"address":     address(w.v4, 1),
		} {
			if value := at(got, path); value != want {
				w.Errorf("%s: got %v, want %v", path, value, want)
			}
		}
		report, err := ipamtest.Inspect(w.Context(), w.connect(config, ipamtest.Installation))
		if err != nil || len(report.MarkedRecords) != 1 || report.MarkedRecords[0].Difference != "" {
			w.Errorf("inspect: %+v %v", report, err)
		}
		// Somebody edits the record.
		w.send(
			http.MethodPatch, fmt.Sprintf("%s%d/", addresses, idOf(got)),
			object{"status": "deprecated", "tags": []object{}, "role": "anycast", "tenant": nil},
		).want(w, http.StatusOK)
		report, err = ipamtest.Inspect(w.Context(), w.connect(config, ipamtest.Installation))
		want := "its status is deprecated, and not reserved, its role is anycast, and not vip, it is not of tenant " + w.id +
			", it has no tag " + w.id
		if err != nil || len(report.MarkedRecords) != 1 || report.MarkedRecords[0].Difference != want {
			w.Errorf("inspect: got %+v %v, want %s", report, err, want)
		}
	})
}

// The settings of a group change. Records that it has already are reported and left as they are,
// also when their Services ask again: nothing tells a record that was made by earlier settings from
// one that somebody has edited. Once somebody has changed them in NetBox, nothing is reported.
func TestChangedSettingsLeaveRecords(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	config, tag, tenant := w.config(), w.named(tags), w.named(tenants)
	a := w.allocate(w.connect(config, ipamtest.Installation), request("web"))
	before := w.recordAt(a)
	config.Status, config.Role, config.Tenant, config.Tags = "reserved", "anycast", tenant, []string{tag}
	config.DNSName = "{{.Name}}.lb.example"
	s := w.connect(config, ipamtest.Installation)
	var changes []string
	w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			changes = append(changes, r.Method+" "+r.URL.Path)
		}
		return false
	}, nil)
	difference := func() string {
		report, err := ipamtest.Inspect(t.Context(), s)
		if err != nil || len(report.MarkedRecords) != 1 {
			t.Fatalf("inspect: %+v %v", report, err)
		}
		return report.MarkedRecords[0].Difference
	}
	want := "its status is active, and not reserved, its role is vip, and not anycast, " +
		"it is not of tenant " + tenant + ", it has no tag " + tag
	if got := difference(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, r := range []ipam.Request{request("web"), requestOf("web", a)} {
		if again := w.allocate(s, r); again != a {
			t.Errorf("got %s, want %s", again, a)
		}
	}
	w.fake.SetFaults(nil, nil)
	if len(changes) > 0 {
		t.Errorf("changes: %v", changes)
	}
	w.send(http.MethodPatch, fmt.Sprintf("%s%d/", addresses, idOf(before)), object{
		"status": "reserved", "role": "anycast", "tenant": object{"slug": tenant}, "tags": []object{{"slug": tag}},
	}).want(w, http.StatusOK)
	if got := difference(); got != "" {
		t.Errorf("got %s", got)
	}
}

func TestRefusals(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(netip.PrefixFrom(w.v4.Addr(), 30), nil)
		w.send(
			http.MethodPost, addresses,
			object{"address": address(w.v4, 2), "description": "the printer", "dns_name": "printer.example"},
		).want(w, http.StatusCreated)
		change := func(edit func(*allocation.Netbox)) *allocation.Netbox {
			config := w.config()
			config.Sources[allocation.IPv4] = allocation.NetboxSource{
				Prefixes: []netip.Prefix{netip.PrefixFrom(w.v4.Addr(), 30)},
			}
			edit(config)
			return config
		}
		for _, row := range []struct {
			name    string
			config  *allocation.Netbox
			request ipam.Request
			reason  string
			want    string // its beginning
		}{
			{
				"requested, and NetBox has it", change(func(*allocation.Netbox) {}), requestOf("web", w.addr(2)),
				v1.ReasonAddressInUse, w.addr(2).String() + " is recorded in NetBox URL already: id ",
			},
			{
				"a tag that is not there", change(func(c *allocation.Netbox) { c.Tags = []string{"none-" + w.id} }), request("web"),
				v1.ReasonIPAMRefused, "NetBox URL refuses the request: 400: ",
			},
			{
				"a tenant that is not there", change(func(c *allocation.Netbox) { c.Tenant = "none-" + w.id }), request("web"),
				v1.ReasonIPAMRefused, "NetBox URL refuses the request: 400: ",
			},
			{
				"a status that is not there", change(func(c *allocation.Netbox) { c.Status = "sleeping" }), request("web"),
				v1.ReasonIPAMRefused, "NetBox URL refuses the request: 400: ",
			},
			{"a prefix that is not there", change(func(c *allocation.Netbox) {
				c.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{w.v4}}
			}), request("web"), v1.ReasonIPAMRefused,
				"NetBox has no prefix " + w.v4.String() + ", or the token may not view it"},
			{"a selector that finds nothing", change(func(c *allocation.Netbox) {
				c.Sources[allocation.IPv4] = allocation.NetboxSource{Selector: v1.NetboxSelector{Tag: "none-" + w.id}}
			}), request("web"), v1.ReasonIPAMRefused, "NetBox does not know what the selector names: 400: "},
			{"a VRF that is not there", change(func(c *allocation.Netbox) {
				c.Sources[allocation.IPv4] = allocation.NetboxSource{Selector: v1.NetboxSelector{VRF: "none"}}
			}), request("web"), v1.ReasonIPAMRefused,
				"NetBox has 0 VRFs with the name or route distinguisher none, that the token may view: there must be one"},
			{"the other family", change(func(*allocation.Netbox) {}), ipam.Request{
				Owner: ipamtest.NewOwner("web", 0), Family: allocation.IPv6, Objection: ipamtest.NoObjection,
			},
				v1.ReasonExhausted, "NetBox URL has no prefix or range of that family for IPv6 of the group"},
			{"exhausted by objections", change(func(*allocation.Netbox) {}), ipam.Request{
				Owner: ipamtest.NewOwner("web", 0), Family: allocation.IPv4, Objection: func(netip.Addr) string { return "no" },
			},
				v1.ReasonExhausted, "NetBox URL has no free address for IPv4 of the group"},
		} {
			w.Run(row.name, func(t *testing.T) {
				inner := *w
				inner.T = t
				s := inner.connect(row.config, ipamtest.Installation)
				if got := inner.refusal(s, row.request, row.reason); !strings.HasPrefix(got, row.want) {
					t.Errorf("got  %s\nwant %s…", got, row.want)
				}
			})
		}
		if n := len(w.list(addresses + "?parent=" + w.v4.String())); n != 1 {
			w.Errorf("%d records are left, want the printer's", n)
		}
	})
}

// Of one prefix in two VRFs, the selector says which one is meant.
func TestPrefixInTwoVRFs(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		vrf := w.create(vrfs, object{"name": w.id})
		w.prefix(w.v4, nil)
		w.prefix(w.v4, object{"vrf": vrf})
		config := w.config()
		config.Sources[allocation.IPv4] = allocation.NetboxSource{Prefixes: []netip.Prefix{w.v4}}
		want := fmt.Sprintf(`NetBox has 2 of prefix %s: say which one by selector.vrf ("global" for that in no VRF)`, w.v4)
		if got := w.refusal(w.connect(config, ipamtest.Installation), request("web"), v1.ReasonIPAMRefused); got != want {
			w.Errorf("got  %s\nwant %s", got, want)
		}
		for name, wantVRF := range map[string]int64{w.id: vrf, allocation.NetboxVRFGlobal: 0} {
			config.Sources[allocation.IPv4] = allocation.NetboxSource{
				Prefixes: []netip.Prefix{w.v4}, Selector: v1.NetboxSelector{VRF: name},
			}
			s := w.connect(config, ipamtest.Installation)
			a := w.allocate(s, request("web"))
			query := "&vrf_id=null"
			if wantVRF != 0 {
				query = fmt.Sprintf("&vrf_id=%d", wantVRF)
			}
			if n := len(w.list(addresses + "?address=" + a.String() + query)); n != 1 {
				w.Errorf("VRF %s: %d records of %s", name, n, a)
			}
			if err := s.Release(w.Context(), a); err != nil {
				w.Fatal(err)
			}
		}
	})
}

// A selector finds prefixes and ranges, and leaves out ranges inside of the prefixes, and
// what is not active.
func TestSelector(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		tag := w.named(tags)
		tagged := []object{{"slug": tag}}
		low, high := netip.PrefixFrom(w.v4.Addr(), 28), netip.PrefixFrom(w.addr(64), 28)
		w.prefix(w.v4, object{"tags": tagged, "status": "container"})
		w.prefix(low, object{"tags": tagged})
		w.prefix(high, nil)
		w.create(
			ranges,
			object{"start_address": address(w.v4, 3), "end_address": address(w.v4, 5), "status": "active", "tags": tagged},
		)
		w.create(
			ranges,
			object{"start_address": address(w.v4, 70), "end_address": address(w.v4, 75), "status": "active", "tags": tagged},
		)
		config := w.config()
		config.Sources[allocation.IPv4] = allocation.NetboxSource{Selector: v1.NetboxSelector{Tag: tag}}
		report, err := ipamtest.Inspect(w.Context(), w.connect(config, ipamtest.Installation))
		if err != nil || len(report.Ranges) != 2 || report.Ranges[0].Addrs != netipx.RangeOfPrefix(low) ||
			report.Ranges[1].Addrs != netipx.IPRangeFrom(w.addr(70), w.addr(75)) {
			w.Fatalf("got %+v, %v", report, err)
		}
		if report.Ranges[1].Subnet != w.v4 || report.Ranges[1].Recorded != 0 {
			w.Errorf("the range: %+v", report.Ranges[1])
		}
	})
}

// Of two records of one address, the first one counts; the other's Service gets another
// address.
func TestDuplicateOfAnother(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(w.v4, nil)
		s := w.connect(w.config(), ipamtest.Installation)
		a := w.allocate(s, request("web"))
		// Another program creates the same address with the same role.
		w.send(http.MethodPost, addresses, object{"address": address(w.v4, 1), "role": "vip", "description": "keepalived"}).
			want(w, http.StatusCreated)
		if again := w.allocate(s, requestOf("web", a)); again != a {
			w.Errorf("the first one's: got %s", again)
		}
		w.send(http.MethodPost, addresses, object{"address": address(w.v4, 9), "role": "vip", "description": "keepalived"}).
			want(w, http.StatusCreated)
		if got := w.refusal(s, requestOf("web", w.addr(9)), v1.ReasonAddressInUse); got != fmt.Sprintf(
			"%s is recorded in NetBox URL already: id %d", w.addr(9), idOf(w.recordAt(w.addr(9))),
		) {
			w.Errorf("got %s", got)
		}
		if err := s.Release(w.Context(), a); err != nil {
			w.Fatal(err)
		}
		if got := w.recordAt(a); got["description"] != "keepalived" {
			w.Errorf("after the release: %v", got)
		}
	})
}

// A crash may leave two records of one owner and address, or two addresses of one owner.
func TestOwnDuplicates(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(w.v4, nil)
		s := w.connect(w.config(), ipamtest.Installation)
		mark := ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation)
		for range 2 {
			w.send(http.MethodPost, addresses, object{"address": address(w.v4, 7), "role": "vip", "description": mark}).want(
				w, http.StatusCreated,
			)
		}
		if a := w.allocate(s, request("web")); a != w.addr(7) {
			w.Errorf("got %s", a)
		}
		w.allocate(s, requestOf("web", w.addr(7)))
		w.recordAt(w.addr(7)) // fails if there are two
		// Requests that were given up have created more, as a slow NetBox does.
		for n := range 3 {
			w.create(addresses, object{"address": address(w.v4, 3+n), "description": mark})
		}
		if a := w.allocate(s, request("web")); a != w.addr(7) {
			w.Errorf("got %s", a)
		}
		w.recordAt(w.addr(7))
		if left := w.list(addresses + "?parent=" + url.QueryEscape(w.v4.String())); len(left) != 1 {
			w.Errorf("%d records are left", len(left))
		}
	})
}

// The mode of the original PureLB: addresses that are reserved for a tenant become active.
func TestReservedForTenant(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		config, _ := tenantFixture(w)
		for _, o := range w.list(addresses + "?address=" + w.addr(5).String()) {
			w.send(http.MethodPatch, fmt.Sprintf("%s%d/", addresses, idOf(o)), object{"description": "first of the lot"}).want(
				w, http.StatusOK,
			)
		}
		s := w.connect(config, ipamtest.Installation)
		a := w.allocate(s, request("web"))
		got := w.recordAt(a)
		mark := ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation)
		if a != w.addr(5) || at(got, "status.value") != "active" ||
			got["description"] != mark+"/"+a.String()+" | first of the lot" || got["role"] != nil {
			w.Errorf("allocated: %v", got)
		}
		report, err := ipamtest.Inspect(w.Context(), s)
		if err != nil || len(report.Ranges) != 1 || report.Ranges[0].Addrs != netipx.IPRangeFrom(w.addr(5), w.addr(11)) ||
			report.Ranges[0].Recorded != 1 || report.MarkedRecords[0].Mark != mark {
			w.Errorf("inspect: %+v %v", report, err)
		}
		if err := s.Release(w.Context(), a); err != nil {
			w.Fatal(err)
		}
		if got := w.recordAt(a); at(got, "status.value") != "reserved" || got["description"] != "first of the lot" {
			w.Errorf("released: %v", got)
		}
		// An active address of the tenant is somebody's, unless the Service shows it: then an
		// earlier PureLB has taken it for the Service.
		w.refusal(s, requestOf("web", w.addr(20)), v1.ReasonAddressInUse)
		shown := requestOf("web", w.addr(20))
		shown.IsShown = true
		w.allocate(s, shown)
		if got := w.recordAt(w.addr(20)); got["description"] != mark+"/"+w.addr(20).String() {
			w.Errorf("adopted: %v", got)
		}
	})
}

// TestReservedOfLoopback has reserved addresses that no Service can have: none gets them, and the group says so.
func TestReservedOfLoopback(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	config, _ := tenantFixture(w)
	special := []string{"127.0.0.53", "169.254.169.254", "224.0.0.9", "127.0.0.54"}
	for _, a := range special {
		w.create(addresses, object{"address": a + "/32", "status": "reserved", "tenant": object{"slug": config.Tenant}})
	}
	s := w.connect(config, ipamtest.Installation)
	for n := range byte(7) {
		r := request("web")
		r.Owner = ipamtest.NewOwner("web", n)
		if a := w.allocate(s, r); !w.v4.Contains(a) {
			w.Errorf("got %s", a)
		}
	}
	w.refusal(s, request("one-more"), v1.ReasonExhausted)
	w.refusal(s, requestOf("web", netip.MustParseAddr(special[1])), v1.ReasonAddressOutsidePools)
	report, err := ipamtest.Inspect(t.Context(), s)
	if err != nil || len(report.Ranges) != 1 || len(report.Problems) != 1 ||
		!strings.Contains(report.Problems[0], special[0]) || !strings.HasSuffix(report.Problems[0], "and 1 more") {
		t.Errorf("%+v %v", report, err)
	}
}

// TestReservedThatCannotBeChanged has reserved addresses that NetBox does not let be changed, as by a rule of its own:
// others are taken, and nothing more is asked of those once they are known.
func TestReservedThatCannotBeChanged(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	config, _ := tenantFixture(w)
	refused, asked := map[string]bool{}, 0
	for n := 5; n <= 6; n++ {
		refused[fmt.Sprintf("%s%d/", addresses, idOf(w.recordAt(w.addr(n))))] = true
	}
	w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !refused[r.URL.Path] {
			return false
		}
		asked++
		send(t, rw, http.StatusBadRequest, object{"tags": []string{"Changes need a ticket."}})
		return true
	}, nil)
	s := w.connect(config, ipamtest.Installation)
	for n := range byte(5) {
		r := request("web")
		r.Owner = ipamtest.NewOwner("web", n)
		if a := w.allocate(s, r); a != w.addr(7+int(n)) {
			w.Errorf("got %s", a)
		}
		if asked != 2 {
			w.Errorf("%d requests to change the others", asked)
		}
	}
	if got := w.refusal(s, request("one-more"), v1.ReasonIPAMRefused); !strings.Contains(got, "Changes need a ticket.") {
		w.Errorf("got %s", got)
	}
	w.fake.SetFaults(nil, nil)
	if a := w.allocate(s, request("one-more")); !w.v4.Contains(a) {
		w.Errorf("got %s", a)
	}
}

// Pages: more records than one page has.
func TestManyRecords(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.fake.MaxPageSize = 20
	w.prefix(w.v4, nil)
	s := w.connect(w.config(), ipamtest.Installation)
	for n := range 90 {
		r := request("web")
		r.Owner.Name = fmt.Sprint("web", n)
		r.Owner.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
		w.allocate(s, r)
	}
	report, err := ipamtest.Inspect(w.Context(), s)
	if err != nil || len(report.MarkedRecords) != 90 || report.Ranges[0].Recorded != 90 {
		t.Errorf("got %d records, %v", len(report.MarkedRecords), err)
	}
}

// The cluster objects to the address that NetBox would choose, as to that of a node: the next
// allocations do not create a record there only to delete it.
func TestRequestsInSpiteOfObjection(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	s := w.connect(w.config(), ipamtest.Installation)
	if _, err := ipamtest.Inspect(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	deleted := 0
	w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			deleted++
		}
		return false
	}, nil)
	defer w.fake.SetFaults(nil, nil)
	for n := range byte(10) {
		if n == 5 { // what the cluster objects to is known after a comparison, too
			if _, err := ipamtest.Inspect(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		r := request("web")
		r.Owner = ipamtest.NewOwner(fmt.Sprint("web", n), n)
		r.Objection = func(a netip.Addr) string {
			if a == w.addr(1) {
				return "a node has it"
			}
			return ""
		}
		if a := w.allocate(s, r); a != w.addr(2+int(n)) {
			t.Errorf("got %s", a)
		}
	}
	if deleted != 1 {
		t.Errorf("%d records were deleted, want one", deleted)
	}
	// The node's address is no more: NetBox chooses again.
	posted := w.refuseAddresses(func(netip.Addr) bool { return false }, false)
	if a := w.allocate(s, request("last")); a != w.addr(1) {
		t.Errorf("got %s", a)
	}
	if got := posted(); len(got) != 1 || !strings.HasSuffix(got[0], "/available-ips/") {
		t.Errorf("asked for %v", got)
	}
}

// Somebody records in NetBox the node's address, to which the cluster objects: NetBox, which does not
// choose it any more, chooses again.
func TestChoiceAfterObjection(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	s := w.connect(w.config(), ipamtest.Installation)
	posted := w.refuseAddresses(func(netip.Addr) bool { return false }, false)
	allocate := func(n byte) []string {
		r := request("web")
		r.Owner, r.Objection = ipamtest.NewOwner(fmt.Sprint("web", n), n), w.nodesAt(1)
		w.allocate(s, r)
		return posted()
	}
	allocate(0)
	node := object{"address": address(w.v4, 1), "description": "node"}
	w.send(http.MethodPost, addresses, node).want(w, http.StatusCreated)
	posted()
	if got := allocate(1); len(got) != 1 || strings.HasSuffix(got[0], "/available-ips/") {
		t.Errorf("asked for %v", got)
	}
	if got := allocate(2); len(got) != 1 || !strings.HasSuffix(got[0], "/available-ips/") {
		t.Errorf("asked for %v", got)
	}
}

// A comparison costs one request for the records and two for each prefix: with two
// prefixes five requests, in ten minutes, when nothing happens.
func TestRequestsOfAComparison(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	w.prefix(w.v6, nil)
	config := w.config()
	config.Sources[allocation.IPv6] = allocation.NetboxSource{Prefixes: []netip.Prefix{w.v6}}
	s := w.connect(config, ipamtest.Installation)
	before := w.fake.Requests()
	if _, err := ipamtest.Inspect(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if n := w.fake.Requests() - before; n != 5 {
		t.Errorf("%d requests", n)
	}
	before = w.fake.Requests()
	w.allocate(s, request("web"))
	if n := w.fake.Requests() - before; n != 4 {
		t.Errorf("%d requests for an allocation", n)
	}
}
