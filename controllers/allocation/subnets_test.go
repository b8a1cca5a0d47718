package allocation_test

import (
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// rangesIn are ranges of one address each, in their subnets.
func rangesIn(subnets ...string) []allocation.Range {
	var ranges []allocation.Range
	for _, text := range subnets {
		subnet := netip.MustParsePrefix(text)
		ranges = append(ranges, allocation.Range{
			Addrs: netipx.IPRangeFrom(subnet.Addr().Next(), subnet.Addr().Next()), Subnet: subnet,
		})
	}
	return ranges
}

func TestSubnetsNotFound(t *testing.T) {
	t.Parallel()
	const found, typo, other = "10.7.0.0/24", "10.70.0.0/24", "fd70::/64"
	announceType := func(r allocation.Range) v1.AnnounceType {
		if r.Subnet.String() == found {
			return v1.AnnounceLocal
		}
		return v1.AnnounceVirtual
	}
	unknown := func(allocation.Range) v1.AnnounceType { return "" }
	for _, row := range []struct {
		name         string
		kind         v1.PoolType
		subnets      string
		announceType func(allocation.Range) v1.AnnounceType
		want         string
	}{
		{"a node is in it", v1.PoolTypeLocal, found, announceType, ""},
		{"no node is in it", v1.PoolTypeLocal, typo, announceType, typo},
		{"in one of several", v1.PoolTypeLocal, typo + " " + found + " " + typo + " " + other, announceType,
			typo + ", " + other},
		{"remote", v1.PoolTypeRemote, typo, announceType, ""},
		{"netbox", v1.PoolTypeNetbox, typo, announceType, ""},
		{"no agent has reported", v1.PoolTypeLocal, typo, unknown, ""},
		{"not in a cluster", v1.PoolTypeLocal, typo, nil, ""},
	} {
		in := allocation.Inputs{AnnounceType: row.announceType}
		group := allocation.Group{Type: row.kind, Ranges: rangesIn(strings.Fields(row.subnets)...)}
		text := allocation.DescribeSubnetsNotFound(in.SubnetsNotFound(&group))
		got := strings.TrimPrefix(strings.SplitN(text+": ", ": ", 2)[0], "no node has an interface in ")
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

func TestAnnouncedAs(t *testing.T) {
	t.Parallel()
	for pools, want := range map[string]v1.AnnouncedAs{
		"": "", "L": "Local", "LL": "Local", "V": "Virtual", "VV": "Virtual", "LV": "Mixed", "VLV": "Mixed", "LVV": "Mixed",
		"?": "", "L?": "", "VL?": "",
	} {
		var statuses []v1.PoolStatus
		for _, letter := range pools {
			announce := map[rune]v1.AnnounceType{'L': v1.AnnounceLocal, 'V': v1.AnnounceVirtual}[letter]
			statuses = append(statuses, v1.PoolStatus{Announce: announce})
		}
		if got := allocation.AnnouncedAs(statuses); got != want {
			t.Errorf("%s: %q, want %q", pools, got, want)
		}
	}
}
