package allocation

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/purelb/purelb-operator/test/seeds"
)

// TestAddressSet compares the tree with a map, after random additions and removals
// in ranges that cross the borders of bytes.
func TestAddressSet(t *testing.T) {
	for _, first := range []string{
		"10.0.0.250", "10.0.255.0", "255.255.255.0", "0.0.0.0", "fd00::fffe", "fd00::ffff:ffff:ffff:ff00",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00",
	} {
		t.Run(first, func(t *testing.T) {
			seed := seeds.First(t)
			random := rand.New(rand.NewPCG(seed, 1))
			var pool []netip.Addr
			for a := netip.MustParseAddr(first); a.IsValid() && len(pool) < 700; a = a.Next() {
				pool = append(pool, a)
			}
			var set addressSet
			has := map[netip.Addr]bool{}
			for step := range 6000 {
				a := pool[random.IntN(len(pool))]
				// Mostly full, then mostly empty, then full again.
				if random.IntN(10) < 9 == (step/2000%2 == 0) {
					set.add(a)
					has[a] = true
				} else {
					set.remove(a)
					delete(has, a)
				}
				from, to := random.IntN(len(pool)), random.IntN(len(pool))
				if from > to {
					from, to = to, from
				}
				count, free := uint64(0), netip.Addr{}
				for _, p := range pool[from : to+1] {
					if has[p] {
						count++
					} else if !free.IsValid() {
						free = p
					}
				}
				if got := set.countIn(pool[from], pool[to]); got != count {
					t.Fatalf("seed %d, step %d: %d from %s to %s, want %d", seed, step, got, pool[from], pool[to], count)
				}
				got, ok := set.firstMissing(pool[from])
				if ok && pool[to].Less(got) {
					ok = false
				}
				if ok != free.IsValid() || ok && got != free {
					t.Fatalf("seed %d, step %d: first missing from %s is %s (%t), want %s", seed, step, pool[from], got, ok, free)
				}
			}
			for _, a := range pool {
				set.remove(a)
			}
			if set.v4.count+set.v6.count != 0 || len(set.v4.branches)+len(set.v6.branches) != 0 {
				t.Errorf("something is left: %+v", set)
			}
		})
	}
}

// TestFullBranchesAreMarked checks that the search can skip a branch that has no address to
// give, and that the mark goes with the first address that is removed.
func TestFullBranchesAreMarked(t *testing.T) {
	for _, bits := range []int{24, 16} {
		block := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits)
		var set addressSet
		isMarked := func() bool {
			n := &set.v4
			for _, value := range block.Addr().AsSlice()[:bits/8-1] {
				if n = n.branch(value); n == nil {
					return false
				}
			}
			return n.isFull(0)
		}
		last := netip.Addr{}
		for a := block.Addr(); block.Contains(a); a = a.Next() {
			if isMarked() {
				t.Fatalf("%s is marked full without %s", block, a)
			}
			set.add(a)
			last = a
		}
		if !isMarked() {
			t.Errorf("%s is not marked full", block)
		}
		if set.remove(last); isMarked() {
			t.Errorf("%s is marked full after %s was removed", block, last)
		}
	}
}

// BenchmarkFirstFree finds, frees and takes an address in pools that are empty
// or full but for one address.
func BenchmarkFirstFree(b *testing.B) {
	for _, row := range []struct {
		name, first string
		used        int
	}{
		{"empty 16", "10.0.0.0", 0}, {"full 16", "10.0.0.0", 1 << 16},
		{"empty 64", "fd00::", 0}, {"64 with a million in use", "fd00::", 1_000_000},
	} {
		b.Run(row.name, func(b *testing.B) {
			var set addressSet
			first := netip.MustParseAddr(row.first)
			raw := first.AsSlice()
			base := binary.BigEndian.Uint32(raw[len(raw)-4:])
			at := func(i int) netip.Addr {
				r := first.AsSlice()
				binary.BigEndian.PutUint32(r[len(r)-4:], base+uint32(i))
				a, _ := netip.AddrFromSlice(r)
				return a
			}
			for i := range row.used {
				set.add(at(i))
			}
			for b.Loop() {
				if row.used > 0 {
					set.remove(at(row.used - 1))
				}
				a, _ := set.firstMissing(first)
				set.add(a)
				if row.used == 0 {
					set.remove(a)
				}
			}
		})
	}
}
