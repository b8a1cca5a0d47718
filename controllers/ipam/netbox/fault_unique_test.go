package netbox_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// recordsIn lists what NetBox has recorded in the world's IPv4 network.
func (w *world) recordsIn() []object {
	w.Helper()
	return w.list(addresses + "?limit=1000&parent=" + url.QueryEscape(w.v4.String()))
}

// tagged returns the configuration of a group that takes what has a tag.
func (w *world) tagged(tag string) *allocation.Netbox {
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{Selector: v1.NetboxSelector{Tag: tag}}
	return config
}

// A range is extended while its addresses are chosen from the list of free ones: the Service gets
// one address of the extension, however often it asks.
func TestFaultExtendedList(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		tag := w.named(tags)
		id := w.create(
			ranges,
			object{
				"start_address": address(w.v4, 1), "end_address": address(w.v4, 2), "status": "active",
				"tags": []object{{"slug": tag}},
			},
		)
		s := w.connect(w.tagged(tag), ipamtest.Installation)
		ask := func(name string) netip.Addr {
			r := request(name)
			r.Objection = func(a netip.Addr) string {
				if a == w.addr(1) {
					return "a node has it"
				}
				return ""
			}
			return w.allocate(s, r)
		}
		if a := ask("web"); a != w.addr(2) {
			w.Errorf("got %s", a)
		}
		w.send(http.MethodPatch, fmt.Sprintf("%s%d/", ranges, id), object{"end_address": address(w.v4, 20)}).want(
			w, http.StatusOK,
		)
		for range 3 {
			if a := ask("late"); a != w.addr(3) {
				w.Errorf("got %s, want %s", a, w.addr(3))
			}
		}
		if records := w.recordsIn(); len(records) != 2 {
			w.Errorf("%d records of two Services: %v", len(records), records)
		}
	})
}

// A range or prefix is full, a Service waits, and somebody extends it in NetBox: it keeps its
// id. The Service gets an address of the extension, and nobody else's is used up. This test shows the
// row "somebody extends a prefix or range that is full" of docs/trust.md.
func TestFaultExtendedPool(t *testing.T) {
	for _, row := range []struct {
		name, path     string
		before, change func(*world) object
		free           int
	}{
		{"range", ranges,
			func(w *world) object {
				return object{"start_address": address(w.v4, 1), "end_address": address(w.v4, 2), "status": "active"}
			},
			func(w *world) object { return object{"end_address": address(w.v4, 20)} }, 3},
		{"prefix", prefixes,
			func(w *world) object {
				return object{"prefix": netip.PrefixFrom(w.v4.Addr(), 30).String(), "status": "active"}
			},
			func(w *world) object { return object{"prefix": netip.PrefixFrom(w.v4.Addr(), 28).String()} }, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			forEachNetBox(t, func(w *world) {
				tag := w.named(tags)
				fields := row.before(w)
				fields["tags"] = []object{{"slug": tag}}
				id := w.create(row.path, fields)
				s := w.connect(w.tagged(tag), ipamtest.Installation)
				for n := range byte(2) {
					r := request("web")
					r.Owner = ipamtest.NewOwner(fmt.Sprint("web", n), n)
					w.allocate(s, r)
				}
				w.refusal(s, request("late"), v1.ReasonExhausted)
				w.send(http.MethodPatch, fmt.Sprintf("%s%d/", row.path, id), row.change(w)).want(w, http.StatusOK)
				for n, name := range []string{"late", "later"} {
					if a := w.allocate(s, request(name)); a != w.addr(row.free+n) {
						w.Errorf("got %s, want %s", a, w.addr(row.free+n))
					}
				}
				if records := w.recordsIn(); len(records) != 4 {
					w.Errorf("%d records of four Services: %v", len(records), records)
				}
			})
		})
	}
}

// A NetBox that goes on creating addresses outside of what it lists refuses the one request,
// and fills with no records.
func TestFaultCreatedOutside(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	tag := w.named(tags)
	id := w.create(
		ranges,
		object{
			"start_address": address(w.v4, 10), "end_address": address(w.v4, 11), "status": "active",
			"tags": []object{{"slug": tag}},
		},
	)
	for n := 10; n <= 11; n++ {
		w.send(http.MethodPost, addresses, object{"address": address(w.v4, n)}).want(w, http.StatusCreated)
	}
	var isChanging atomic.Bool
	change := func(last int) {
		isChanging.Store(true)
		w.send(http.MethodPatch, fmt.Sprintf("%s%d/", ranges, id), object{"end_address": address(w.v4, last)}).want(
			w, http.StatusOK,
		)
		isChanging.Store(false)
	}
	w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
		switch {
		case isChanging.Load():
		case r.URL.Path == ranges:
			change(11)
		case r.Method == http.MethodPost:
			change(200)
		}
		return false
	}, nil)
	s := w.connect(w.tagged(tag), ipamtest.Installation)
	for range 3 {
		_, err := s.Allocate(t.Context(), request("web"))
		var refused *ipam.Error
		if !errors.As(err, &refused) || refused.Reason != v1.ReasonIPAMRefused || refused.Scope != ipam.ScopeRequest {
			t.Errorf("got %v, want a refusal of this request", err)
		}
	}
	w.fake.SetFaults(nil, nil)
	if records := w.recordsIn(); len(records) != 2 {
		t.Errorf("%d records are left: %v", len(records), records)
	}
}

// uniqueness is whether NetBox refuses to record one address twice.
var uniqueness = map[string]bool{"NetBox keeps addresses unique": true, "NetBox takes an address twice": false}

// inVRF makes the world's network in a VRF that keeps addresses unique or not, and returns the
// configuration of a group that takes its addresses from there.
func (w *world) inVRF(isUnique bool) *allocation.Netbox {
	vrf := w.create(vrfs, object{"name": w.id, "enforce_unique": isUnique})
	w.prefix(w.v4, object{"vrf": vrf})
	config := w.config()
	config.Sources[allocation.IPv4] = allocation.NetboxSource{
		Prefixes: []netip.Prefix{w.v4}, Selector: v1.NetboxSelector{VRF: w.id},
	}
	return config
}

// nodesAt returns an objection to the first addresses of the world's network.
func (w *world) nodesAt(count int) func(netip.Addr) string {
	return func(a netip.Addr) string {
		if a.Less(w.addr(count + 1)) {
			return "a node has it"
		}
		return ""
	}
}

// Another cluster records an address just before this one does. The manager dies, or NetBox
// goes away, before it can look which record is the first one. The next request looks. This test shows
// the row "another cluster records an address just before the manager, which dies or is cut off before
// it can look" of docs/trust.md.
func TestFaultDeathBeforeLook(t *testing.T) {
	for name, isUnique := range uniqueness {
		for _, isRequested := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, requested %v", name, isRequested), func(t *testing.T) {
				w := newFake(t, fake.V46, fake.TokenV2)
				config := w.inVRF(isUnique)
				// The first addresses are nodes of both clusters, so both create by name.
				ours, theirs := request("web"), request("other")
				ours.Objection, theirs.Objection = w.nodesAt(2), w.nodesAt(2)
				if isRequested {
					ours.Address, theirs.Address = w.addr(3), w.addr(3)
				}
				other := w.connect(config, ipamtest.OtherInstallation)
				var byOther netip.Addr
				var moment atomic.Int32
				w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
					switch {
					case r.Method == http.MethodPost && r.URL.Path == addresses && moment.CompareAndSwap(0, 1):
						byOther = w.allocate(other, theirs)
						moment.Store(2)
					case r.Method == http.MethodGet && r.URL.Query().Has("address") && moment.CompareAndSwap(2, 3):
						http.Error(rw, "bad gateway", http.StatusBadGateway)
						return true
					}
					return false
				}, nil)
				_, err := w.connect(config, ipamtest.Installation).Allocate(t.Context(), ours)
				w.fake.SetFaults(nil, nil)
				if !isUnique && err == nil {
					t.Fatal("the look has not failed")
				}
				a, err := w.connect(config, ipamtest.Installation).Allocate(t.Context(), ours)
				if isRequested {
					w.checkReason(err, v1.ReasonAddressInUse)
				} else if err != nil || a == byOther {
					t.Errorf("got %s, %v; the other cluster has %s", a, err, byOther)
				}
				if records := w.list(addresses + "?address=" + byOther.String()); !isRequested && len(records) != 1 {
					t.Errorf("%d records of %s", len(records), byOther)
				}
			})
		}
	}
}

func (w *world) checkReason(err error, reason string) {
	w.Helper()
	var failed *ipam.Error
	if !errors.As(err, &failed) || failed.Reason != reason || failed.Scope != ipam.ScopeRequest {
		w.Errorf("got %v, want one of reason %s", err, reason)
	}
}

// Two clusters with tokens that see the records of their own cluster only, get different
// addresses, by whatever way they ask. This test shows the row "it hides the records of others from
// the token" of docs/trust.md.
func TestFaultViewConstraint(t *testing.T) {
	for _, version := range []fake.Version{fake.V44, fake.V46} {
		w := newFake(t, version, fake.TokenV1)
		w.prefix(w.v4, nil)
		known := map[string]fake.Token{fake.TokenV1: {}}
		connect := func(slug string, installationID types.UID) *netbox.System {
			tag := w.id + slug
			w.create(tags, object{"name": tag, "slug": tag})
			known["token"+slug] = fake.Token{OnlyTagged: tag, OnlyViewTagged: tag}
			w.fake.SetTokens(maps.Clone(known))
			config := w.config()
			config.Tags = []string{tag}
			inner := *w
			inner.token = "token" + slug
			return inner.connect(config, installationID)
		}
		ours, theirs := connect("a", ipamtest.Installation), connect("b", ipamtest.OtherInstallation)
		w.allocate(ours, requestOf("web", w.addr(5)))
		w.refusal(theirs, requestOf("web", w.addr(5)), v1.ReasonAddressInUse)
		got := map[netip.Addr]bool{}
		for n := range byte(4) {
			for _, s := range []*netbox.System{ours, theirs} {
				r := request("web")
				r.Owner, r.Objection = ipamtest.NewOwner("any", n), w.nodesAt(7)
				a := w.allocate(s, r)
				if got[a] {
					t.Errorf("%s: both clusters got %s", version, a)
				}
				got[a] = true
			}
		}
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV1: {}})
		if records := w.recordsIn(); len(records) != 9 {
			t.Errorf("%s: %d records of nine Services", version, len(records))
		}
	}
}

// A comparison reports addresses of which NetBox has an older record of somebody else's, and
// no others. This test shows the row "it has an older record of somebody else's for an address that a
// Service has" of docs/trust.md.
func TestFaultOlderRecord(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		s := w.connect(w.inVRF(false), ipamtest.Installation)
		var all []ipam.Request
		for n := range 60 { // more than one query names
			r := requestOf(fmt.Sprint("web", n), w.addr(n+1))
			r.Owner.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
			all = append(all, r)
		}
		foreign := func(n int) int64 {
			return idOf(
				w.send(
					http.MethodPost, addresses,
					object{"address": address(w.v4, n), "vrf": object{"name": w.id}, "role": "vip", "description": "keepalived"},
				).want(w, http.StatusCreated).object,
			)
		}
		older := foreign(55)
		for n, r := range all {
			if n+1 != 55 {
				w.allocate(s, r)
				continue
			}
			w.refusal(s, r, v1.ReasonAddressInUse)
			w.send(
				http.MethodPost, addresses,
				object{
					"address": address(w.v4, 55), "vrf": object{"name": w.id}, "role": "vip",
					"description": r.Owner.Mark(ipamtest.Installation) + "/" + r.Address.String(),
				},
			).want(w, http.StatusCreated)
		}
		foreign(1) // a younger one
		w.send(http.MethodPost, addresses, object{"address": address(w.v4, 2), "description": "in no VRF"}).want(
			w, http.StatusCreated,
		)
		report, err := ipamtest.Inspect(w.Context(), s)
		if err != nil || len(report.MarkedRecords) != len(all) {
			w.Fatalf("%d records, %v", len(report.MarkedRecords), err)
		}
		for _, r := range report.MarkedRecords {
			want := ""
			if r.Address == w.addr(55) {
				want = fmt.Sprintf("NetBox has an older record of the address, which is somebody else's: id %d", older)
			}
			if r.Difference != want {
				w.Errorf("%s: %q, want %q", r.Address, r.Difference, want)
			}
		}
	})
}

// Whichever request of an allocation is lost, or its answer is: the next manager ends with one
// record, which has all that it is to have. This test shows the row "an answer is lost, or the manager
// is killed before it writes the address to the Service" of docs/trust.md.
func TestFaultLostAnywhere(t *testing.T) {
	for name, ask := range map[string]func(*world) ipam.Request{
		"NetBox chooses": func(*world) ipam.Request { return request("web") },
		"among the free": func(w *world) ipam.Request {
			r := request("web")
			r.Objection = w.nodesAt(3)
			return r
		},
		"requested": func(w *world) ipam.Request { return requestOf("web", w.addr(9)) },
	} {
		for _, isServed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, served %v", name, isServed), func(t *testing.T) {
				losses := 0
				for lost := int32(1); ; lost++ {
					w := newFake(t, fake.V46, fake.TokenV2)
					w.prefix(w.v4, nil)
					var asked atomic.Int32
					if isServed {
						w.fake.SetFaults(nil, func(*http.Request, int) bool { return asked.Add(1) != lost })
					} else {
						w.fake.SetFaults(func(http.ResponseWriter, *http.Request) bool {
							if asked.Add(1) == lost {
								panic(http.ErrAbortHandler)
							}
							return false
						}, nil)
					}
					_, err := w.connect(w.config(), ipamtest.Installation).Allocate(t.Context(), ask(w))
					w.fake.SetFaults(nil, nil)
					if err == nil && asked.Load() < lost {
						break
					}
					losses++
					w.checkOneRecord(w.allocate(w.connect(w.config(), ipamtest.Installation), ask(w)), ask(w).Objection)
				}
				if losses < 4 {
					t.Errorf("an allocation has only %d requests", losses)
				}
			})
		}
	}
}

// checkOneRecord checks that NetBox has one record, of an address of the Service web, and that
// it is as the group asks for. Beside it there may be one of an address that the cluster objects
// to: the next comparisons release it.
func (w *world) checkOneRecord(a netip.Addr, objection func(netip.Addr) string) {
	w.Helper()
	report, err := ipamtest.Inspect(w.Context(), w.connect(w.config(), ipamtest.Installation))
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range report.MarkedRecords {
		if isOther := r.Address != a; isOther && objection(r.Address) == "" || !isOther && r.Difference != "" {
			w.Errorf("the Service has %s; recorded is %+v", a, r)
		}
	}
	want := ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation) + "/" + a.String()
	if got := w.recordAt(a); at(got, "role.value") != "vip" || got["description"] != want {
		w.Errorf("recorded: %v", got)
	}
}

// A manager dies after it has created the record of an address that a Service has already. The
// next comparison finds that the record is not complete, and no difference. This test shows the row
// "the manager is killed while it records an address once more that a Service has" of docs/trust.md.
func TestFaultIncompleteRecord(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		w.prefix(w.v4, nil)
		r := requestOf("web", w.addr(9))
		w.send(
			http.MethodPost, addresses, object{"address": address(w.v4, 9), "description": r.Owner.Mark(ipamtest.Installation)},
		).want(w, http.StatusCreated)
		s := w.connect(w.config(), ipamtest.Installation)
		report, err := ipamtest.Inspect(w.Context(), s)
		if err != nil {
			w.Fatal(err)
		}
		held := map[netip.Addr][]ipam.Owner{r.Address: {r.Owner}}
		comparison := ipam.CompareRecords(report.MarkedRecords, held, ipamtest.Installation)
		if len(comparison.Differences) != 0 || len(comparison.Missing) != 1 ||
			comparison.Missing[0] != (ipam.Missing{Address: r.Address, Owner: r.Owner, HasOtherRecord: true}) {
			w.Errorf("the comparison: %+v", comparison)
		}
		if unused := ipam.CompareRecords(report.MarkedRecords, nil, ipamtest.Installation).Unused; len(unused) != 1 {
			w.Errorf("if no Service has it: %v", unused)
		}
		w.checkOneRecord(w.allocate(s, r), r.Objection)
	})
}

// A record that NetBox creates, and does not let be completed, is deleted at once. This test shows the
// row "it lets a record be created and not be changed" of docs/trust.md.
func TestFaultNotCompleted(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	w.prefix(w.v4, nil)
	for _, r := range []ipam.Request{request("web"), requestOf("web", w.addr(9))} {
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {Denied: []string{"PATCH ip-addresses"}}})
		_, err := w.connect(w.config(), ipamtest.Installation).Allocate(t.Context(), r)
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {}})
		w.checkReason(err, v1.ReasonIPAMRefused)
		if records := w.recordsIn(); len(records) != 0 ||
			!strings.Contains(err.Error(), "view, add, change and delete IP addresses") {
			t.Errorf("%v; left: %v", err, records)
		}
	}
}
