package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

const testInstallation types.UID = "3b6f0b52-3b1c-4a0e-9a52-5d1a5f0c7a01"

func ownerNamed(name string) Owner {
	return Owner{Namespace: "test", Name: name, UID: types.UID("uid-" + name)}
}

func TestMark(t *testing.T) {
	uid := types.UID("11111111-1111-1111-1111-111111111111")
	short := Owner{"test", "web", uid}.Mark(testInstallation)
	if want := "purelb " + string(testInstallation) + "/test/web/" + string(uid); short != want {
		t.Errorf("got %s, want %s", short, want)
	}
	long := Owner{strings.Repeat("n", 63), strings.Repeat("a", 63), uid}
	other := Owner{strings.Repeat("n", 63), strings.Repeat("a", 62) + "b", uid}
	a, b := long.Mark(testInstallation), other.Mark(testInstallation)
	if len(a) != MaxMark || len(b) != MaxMark || a == b || !strings.HasSuffix(a, "/"+string(uid)) ||
		!strings.HasPrefix(a, MarkPrefix(testInstallation)+strings.Repeat("n", 63)+"/a") {
		t.Errorf("long marks: %q (%d), %q", a, len(a), b)
	}
	rest := len(Owner{Namespace: "test", UID: uid}.Mark(testInstallation))
	for length, isWhole := range map[int]bool{MaxMark - rest: true, MaxMark - rest + 1: false} {
		name := strings.Repeat("a", length)
		mark := Owner{"test", name, uid}.Mark(testInstallation)
		if len(mark) != MaxMark || strings.Contains(mark, name) != isWhole {
			t.Errorf("a name of %d bytes: %q (%d)", length, mark, len(mark))
		}
	}
}

func TestDescribeMark(t *testing.T) {
	for mark, want := range map[string]string{
		ownerNamed("web").Mark(testInstallation):        "Service test/web",
		ownerNamed("web").Mark("another"):               "purelb another/test/web/uid-web",
		"keepalived":                                    "keepalived",
		"proxy/10":                                      "proxy/10",
		MarkPrefix(testInstallation) + "/uid":           MarkPrefix(testInstallation) + "/uid",
		MarkPrefix(testInstallation) + "edited by hand": MarkPrefix(testInstallation) + "edited by hand",
	} {
		if got := DescribeMark(mark, testInstallation); got != want {
			t.Errorf("%q is described as %q, want %q", mark, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	web, other := ownerNamed("web"), ownerNamed("other")
	record := func(a netip.Addr, o Owner) Record { return Record{Address: a, Mark: o.Mark(testInstallation)} }
	edited := record(a, web)
	edited.Difference = "its status is deprecated"
	foreign := Record{Address: a, IsForeign: true, Difference: "it is a copy"}
	for _, row := range []struct {
		name    string
		records []Record
		held    map[netip.Addr][]Owner
		want    Comparison
	}{
		{"alike", []Record{record(a, web), record(b, other)}, map[netip.Addr][]Owner{a: {web}, b: {other}}, Comparison{}},
		{
			"missing", nil, map[netip.Addr][]Owner{b: {other}, a: {web}},
			Comparison{Missing: []Missing{{a, web, false}, {b, other, false}}},
		},
		{
			"unused", []Record{record(c, web), record(a, web), record(b, other)}, map[netip.Addr][]Owner{b: {other}},
			Comparison{Unused: []netip.Addr{a, c}},
		},
		{"unused, recorded twice", []Record{record(a, web), record(a, other)}, nil, Comparison{Unused: []netip.Addr{a}}},
		{"shared", []Record{record(a, other)}, map[netip.Addr][]Owner{a: {web, other}}, Comparison{}},
		{
			"shared, and the recorded one is gone", []Record{record(a, ownerNamed("gone"))},
			map[netip.Addr][]Owner{a: {web, other}}, Comparison{Missing: []Missing{{a, web, true}}},
		},
		{
			"recorded twice", []Record{record(a, web), record(a, web)}, map[netip.Addr][]Owner{a: {web}},
			Comparison{Missing: []Missing{{a, web, true}}},
		},
		{
			"edited", []Record{edited}, map[netip.Addr][]Owner{a: {web}},
			Comparison{Differences: map[netip.Addr]string{a: "its status is deprecated"}},
		},
		{
			"foreign", []Record{foreign, record(b, web)}, map[netip.Addr][]Owner{b: {web}},
			Comparison{Differences: map[netip.Addr]string{a: "it is a copy"}},
		},
		{"foreign beside the owner's", []Record{foreign, record(a, web)}, map[netip.Addr][]Owner{a: {web}}, Comparison{}},
		{
			"foreign beside an unused one", []Record{foreign, record(a, web)}, nil,
			Comparison{Unused: []netip.Addr{a}, Differences: map[netip.Addr]string{a: "it is a copy"}},
		},
		{
			"foreign instead of the owner's", []Record{foreign}, map[netip.Addr][]Owner{a: {web}},
			Comparison{Missing: []Missing{{a, web, false}}},
		},
		{"held by nobody", nil, map[netip.Addr][]Owner{a: {}}, Comparison{}},
		{"edited and unused", []Record{edited}, nil, Comparison{Unused: []netip.Addr{a}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := CompareRecords(row.records, row.held, testInstallation)
			if diff := cmp.Diff(
				row.want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTooManyUnused(t *testing.T) {
	for _, row := range []struct {
		unused, all int
		want        bool
	}{{0, 0, false}, {5, 5, false}, {6, 6, true}, {6, 59, true}, {6, 60, false}, {100, 1000, false}, {101, 1000, true}} {
		if got := areTooManyUnused(row.unused, row.all); got != row.want {
			t.Errorf("%d of %d: %v", row.unused, row.all, got)
		}
	}
	if n := countOwn([]Record{{}, {IsForeign: true}, {}, {IsForeign: true}, {}}); n != 3 {
		t.Errorf("%d of three records may be released", n)
	}
	owners := []Owner{{Namespace: "b", Name: "a"}, {Namespace: "a", Name: "b"}, {Namespace: "a", Name: "a"}}
	SortOwners(owners)
	if fmt.Sprint(owners[0], owners[1], owners[2]) != "a/a a/b b/a" {
		t.Errorf("sorted: %v", owners)
	}
}
