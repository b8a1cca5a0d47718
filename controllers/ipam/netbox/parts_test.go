package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// maxPart is how many requests one part of an inspection sends at most, in these tests.
const maxPart = 6

// numbered returns a request of one of many owners.
func numbered(n int) ipam.Request {
	r := request("web")
	r.Owner.Name = fmt.Sprint("web", n)
	r.Owner.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
	return r
}

// largeGroup returns a group of 64 prefixes that it names, or that a selector finds.
func (w *world) largeGroup(isBySelector bool) (config *allocation.Netbox, prefixes int) {
	w.Helper()
	config = w.config()
	source, tag := allocation.NetboxSource{}, w.named(tags)
	for n := range 64 {
		p := netip.PrefixFrom(w.addr(n*4), 30)
		w.prefix(p, object{"tags": []object{{"slug": tag}}})
		source.Prefixes = append(source.Prefixes, p)
	}
	if isBySelector {
		source.Prefixes, source.Selector.Tag = nil, tag
	}
	config.Sources[allocation.IPv4] = source
	return config, 64
}

// An inspection of many prefixes and records is in parts of a few requests. What is recorded and
// released between them is in the report as it is in the end.
func TestInspectionInParts(t *testing.T) {
	for name, isBySelector := range map[string]bool{"named": false, "selected": true} {
		t.Run(name, func(t *testing.T) {
			w := newFake(t, fake.V46, fake.TokenV2)
			config, prefixes := w.largeGroup(isBySelector)
			s := w.connect(config, ipamtest.Installation)
			const owners = 60 // more than one query names
			recorded := map[netip.Addr]bool{}
			for n := range owners {
				recorded[w.allocate(s, numbered(n))] = true
			}
			inspect := s.BeginInspection()
			var report *ipam.Report
			parts, requests := 0, 0
			for report == nil {
				before := w.fake.Requests()
				var err error
				if report, err = inspect(t.Context()); err != nil {
					t.Fatal(err)
				}
				n := w.fake.Requests() - before
				if n > maxPart || parts > 2*prefixes {
					t.Fatalf("%d requests in part %d", n, parts)
				}
				requests += n
				parts++
				if report == nil { // others come between
					a := w.allocate(s, numbered(owners+parts))
					recorded[a] = true
					if parts%2 == 0 {
						if err := s.Release(t.Context(), a); err != nil {
							t.Fatal(err)
						}
						delete(recorded, a)
					}
				}
			}
			if most := 2*prefixes + 10; requests > most || parts < prefixes/maxPart {
				t.Errorf("%d requests, want %d at most, in %d parts", requests, most, parts)
			}
			if len(report.Ranges) != prefixes || len(report.Problems) > 0 {
				t.Errorf("%d pools, problems %v", len(report.Ranges), report.Problems)
			}
			got := map[netip.Addr]bool{}
			for _, r := range report.MarkedRecords {
				if got[r.Address] = true; r.IsForeign || r.Difference != "" || !recorded[r.Address] {
					t.Errorf("record: %+v", r)
				}
			}
			if len(got) != len(recorded) {
				t.Errorf("%d records, want %d", len(got), len(recorded))
			}
		})
	}
}

// Between the parts of an inspection somebody extends a prefix in NetBox, and an allocation finds that: the
// inspection begins anew, and reports the group's pools as they are.
func TestInspectionOfChangedPools(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	config := w.config()
	source := allocation.NetboxSource{}
	source.Selector.Tag = w.named(tags)
	var ids []int64
	for n := range 10 {
		p := netip.PrefixFrom(w.addr(n*16), 30)
		ids = append(ids, w.prefix(p, object{"tags": []object{{"slug": source.Selector.Tag}}}))
	}
	config.Sources[allocation.IPv4] = source
	s := w.connect(config, ipamtest.Installation)
	for n := range 2 { // all that the first prefix has
		w.allocate(s, numbered(n))
	}
	inspect := s.BeginInspection()
	if report, err := inspect(t.Context()); report != nil || err != nil {
		t.Fatalf("got %v, %v", report, err)
	}
	extended := netip.PrefixFrom(w.addr(0), 29)
	path := fmt.Sprintf("%s%d/", prefixes, ids[0])
	w.send(http.MethodPatch, path, object{"prefix": extended.String()}).want(w, http.StatusOK)
	w.allocate(s, numbered(2)) // the broadcast address of before
	a := w.allocate(s, numbered(3))
	for {
		report, err := inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if report == nil {
			continue
		}
		if got := report.Ranges[0].Subnet; got != extended || len(report.Ranges) != 10 {
			t.Errorf("%d pools, the first is %s", len(report.Ranges), got)
		}
		for _, r := range report.MarkedRecords {
			if r.IsForeign {
				t.Errorf("record: %+v", r)
			}
		}
		break
	}
	if !extended.Contains(a) {
		t.Errorf("got %s", a)
	}
}
