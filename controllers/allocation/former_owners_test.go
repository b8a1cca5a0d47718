package allocation_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestStickyAddress deletes Services, of which some are made again.
func TestStickyAddress(t *testing.T) {
	of := func(fields string) map[string]string { return map[string]string{"default": pool4 + fields} }
	again := []string{"gold/web 10.0.0.3 1m"}
	for _, row := range []tenantRow{
		{name: "gets it back", groups: of(""), namespace: "gold", deleted: again, want: "10.0.0.3", group: "default"},
		{
			name: "gets what it had last", groups: of(""), namespace: "gold",
			deleted: []string{"gold/web 10.0.0.2 2m", "gold/web 10.0.0.3 1m"}, want: "10.0.0.3", group: "default",
		},
		{name: "of another namespace", groups: of(""), namespace: "free", deleted: again, want: "10.0.0.1", group: "default"},
		{
			name: "just in time", groups: of(""), namespace: "gold", deleted: []string{"gold/web 10.0.0.3 4m59s"},
			want: "10.0.0.3", group: "default",
		},
		{
			name: "too late", groups: of(""), namespace: "gold", deleted: []string{"gold/web 10.0.0.3 5m"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "longer", groups: of("\nstickyFor: 1h"), namespace: "gold", deleted: []string{"gold/web 10.0.0.3 59m"},
			want: "10.0.0.3", group: "default",
		},
		{
			name: "switched off", groups: of("\nstickyFor: 0s"), namespace: "gold", deleted: []string{"gold/web 10.0.0.3 0s"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "another one needed it meanwhile", groups: of(""), namespace: "gold", deleted: again,
			others: []*allocation.Service{other("free/a", "", "10.0.0.3")}, want: "10.0.0.1", group: "default",
		},
		{
			name: "asks for another one", groups: of(""), namespace: "gold", ask: []string{"addresses=10.0.0.2"}, deleted: again,
			want: "10.0.0.2", group: "default",
		},
		{
			name: "it is reserved for another one by now", groups: of(
				"\nreservations: [{address: 10.0.0.3, service: gold/db}]",
			), namespace: "gold", deleted: again, want: "10.0.0.1", group: "default",
		},
		{
			name: "another one is reserved for it", groups: of("\nreservations: [{address: 10.0.0.2, service: gold/web}]"),
			namespace: "gold", deleted: again, want: "10.0.0.2", group: "default",
		},
		{
			name: "a node has it by now", groups: of(""), namespace: "gold", deleted: []string{"gold/web 10.0.0.4 1m"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "it has left the pools", groups: of(""), namespace: "gold", deleted: []string{"gold/web 10.0.0.9 1m"},
			want: "10.0.0.1", group: "default",
		},
		{
			name: "its namespace may not use the group any more", groups: of("\n" + onlyGold), namespace: "free",
			deleted: []string{"free/web 10.0.0.3 1m"}, reason: v1.ReasonNotAllowed,
			message: "ServiceGroup default is not for namespace free: " + refused,
		},
		{
			name: "its key stands for another address", groups: of(""), namespace: "gold", ask: []string{"allow-shared-ip=k"},
			others: []*allocation.Service{other("gold/a", "k", "10.0.0.2")}, deleted: again, want: "10.0.0.2", group: "default",
		},
		{
			name: "of both families", groups: map[string]string{"default": dual}, namespace: "gold", families: "46",
			deleted: []string{"gold/web 10.0.0.3,fd00::2 1m"}, want: "10.0.0.3 fd00::2", group: "default",
		},
		{
			name:   "of another group for Services that name none",
			groups: map[string]string{"default": pool4, "more": pool1 + "\nautoAssign: true"}, namespace: "gold",
			deleted: []string{"gold/web 10.1.0.2 1m"}, want: "10.1.0.2", group: "more",
		},
		{
			name:   "of a group that is not for Services that name none",
			groups: map[string]string{"default": pool4, "more": pool1}, namespace: "gold",
			deleted: []string{"gold/web 10.1.0.2 1m"}, want: "10.0.0.1", group: "default",
		},
		{
			name: "of another group than the one it names", groups: map[string]string{"default": pool4, "more": pool1},
			namespace: "gold", ask: []string{"service-group=more"}, deleted: again, want: "10.1.0.1", group: "more",
		},
		{
			name:   "of a group that lacks the other family",
			groups: map[string]string{"default": dual, "more": pool1 + "\nautoAssign: true"}, namespace: "gold", families: "46",
			deleted: []string{"gold/web 10.1.0.2 1m"}, want: "10.0.0.1 fd00::1", group: "default",
		},
		{
			name: "every range", groups: map[string]string{
				"default": "remote: {multiPool: true, v4pools: [{pool: 10.0.0.1-10.0.0.2, subnet: 10.0.0.0/24}, {pool: " +
					"10.1.0.1-10.1.0.2, subnet: 10.1.0.0/24}]}",
			}, namespace: "gold", deleted: []string{"gold/web 10.1.0.2,10.0.0.2 1m"}, want: "10.0.0.2 10.1.0.2",
			group: "default",
		},

		// Others.
		{
			name: "is left to another one", groups: of(""), namespace: "gold", deleted: []string{"free/a 10.0.0.1 1m"},
			want: "10.0.0.2", group: "default",
		},
		{
			name: "is asked for", groups: of(""), namespace: "gold", ask: []string{"addresses=10.0.0.1"},
			deleted: []string{"free/a 10.0.0.1 1m"}, want: "10.0.0.1", group: "default",
		},
		{
			name: "is left to others, and nothing else is free", groups: of(""), namespace: "gold",
			deleted: []string{"free/a 10.0.0.1 1m", "free/b 10.0.0.2 3m", "free/c 10.0.0.3 2m"},
			want:    "10.0.0.2", group: "default",
		},
		{
			name: "was left to several", groups: of(""), namespace: "gold",
			deleted: []string{"free/b 10.0.0.2 4m", "free/a 10.0.0.1 3m", "free/c 10.0.0.2 1m", "free/d 10.0.0.3 1m"},
			want:    "10.0.0.1", group: "default",
		},
		{
			name: "is left to another one, in the group that comes first", groups: map[string]string{
				"default": "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}", "more": pool1 + "\nautoAssign: true",
			}, namespace: "gold", deleted: []string{"free/a 10.0.0.1 1m"}, want: "10.0.0.1", group: "default",
		},
	} {
		t.Run(row.name, row.run)
	}
}

// TestStickySharers has Services that shared an address come back one after the other, in any order.
func TestStickySharers(t *testing.T) {
	row := tenantRow{
		groups: map[string]string{"default": pool4}, namespace: "gold", ask: []string{"allow-shared-ip=k"},
		deleted: []string{"gold/web 10.0.0.3 2m", "gold/dns 10.0.0.3 1m"}, want: "10.0.0.3", group: "default",
	}
	row.run(t)
}

// TestAttackLastHolders makes and deletes Services without end: what the manager remembers has a
// bound, and what it forgets is the attacker's own.
//
// This test shows the row "make the manager forget which address a deleted Service of another namespace had" of
// docs/trust.md.
func TestAttackLastHolders(t *testing.T) {
	holders := allocation.FormerOwners{}
	at := time.Unix(0, 0)
	victims := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	holders.Add("gold/web", victims, at)
	a := netip.MustParseAddr("fd01::")
	for i := range 2 * allocation.MaxFormerOwners {
		at, a = at.Add(time.Millisecond), a.Next()
		holders.Add(fmt.Sprintf("free/s%d", i), []netip.Addr{a, victims[0]}, at)
		holders.Add("free/again", []netip.Addr{a}, at)
	}
	n, kept := 0, 0
	for _, all := range holders {
		if len(all) == 0 {
			t.Error("an address without a holder")
		}
		for _, o := range all {
			n++
			if o.Service == "gold/web" {
				kept++
			}
		}
	}
	if n != allocation.MaxFormerOwners || kept != len(victims) {
		t.Errorf("%d holders, %d of the other namespace", n, kept)
	}
}
