package placement_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

func numbered(from, to int) []v1.AnnouncedAddress {
	var out []v1.AnnouncedAddress
	for i := from; i < to; i++ {
		out = append(out, v1.AnnouncedAddress{Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250)})
	}
	return out
}

func whereabouts(sliced map[string][]v1.AnnouncedAddress) (names []string, where map[string]string) {
	where = map[string]string{}
	for name, entries := range sliced {
		for _, e := range entries {
			where[e.Address] = name
		}
	}
	return slices.Sorted(maps.Keys(sliced)), where
}

func TestSlice(t *testing.T) {
	t.Run("nothing", func(t *testing.T) {
		got := placement.Slice("n", nil, nil, nil)
		if diff := cmp.Diff(map[string][]v1.AnnouncedAddress{"n": {}}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("up to 25 in one", func(t *testing.T) {
		if got := placement.Slice("n", numbered(0, 25), nil, nil); len(got) != 1 || len(got["n"]) != 25 {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
	})
	t.Run("26 in two", func(t *testing.T) {
		if got := placement.Slice("n", numbered(0, 26), nil, nil); len(got) != 2 || len(got["n"]) != 25 {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
	})
	t.Run("those of a version that put 100 in one stay", func(t *testing.T) {
		where := map[string]string{}
		for _, e := range numbered(0, 100) {
			where[e.Address] = "n"
		}
		if got := placement.Slice("n", numbered(0, 101), []string{"n"}, where); len(got) != 2 || len(got["n"]) != 100 {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
	})
	t.Run("no more than 100 in one, whoever put them there", func(t *testing.T) {
		where := map[string]string{}
		for _, e := range numbered(0, 101) {
			where[e.Address] = "n"
		}
		if got := placement.Slice("n", numbered(0, 101), []string{"n"}, where); len(got) != 2 ||
			len(got["n"]) != v1.MaxAddressesPerAnnouncement {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
	})
	t.Run("an empty one goes, but for the first", func(t *testing.T) {
		names, where := whereabouts(placement.Slice("n", numbered(0, 40), nil, nil))
		got := placement.Slice("n", numbered(25, 40), names, where)
		if len(got["n"]) != 0 || len(got) != 2 {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
		names, where = whereabouts(got)
		if got := placement.Slice("n", numbered(0, 10), names, where); len(got["n"]) != 10 || len(got) != 1 {
			t.Errorf("%d slices, %d addresses in the first", len(got), len(got["n"]))
		}
	})
	t.Run("a new one goes where there is room, whatever the name", func(t *testing.T) {
		where := map[string]string{"10.0.0.25": "n-of-old"}
		got := placement.Slice("n", numbered(0, 27), []string{"n-of-old", "n"}, where)
		if len(got) != 2 || len(got["n"]) != 25 || len(got["n-of-old"]) != 2 {
			t.Errorf("%d slices, %d addresses in the first, %d in the other", len(got), len(got["n"]), len(got["n-of-old"]))
		}
	})
	t.Run("other nodes' names are kept apart", func(t *testing.T) {
		one, _ := whereabouts(placement.Slice("n", numbered(0, 300), nil, nil))
		two, _ := whereabouts(placement.Slice("n-1", numbered(0, 300), nil, nil))
		for _, name := range one {
			if slices.Contains(two, name) {
				t.Errorf("both nodes have %s", name)
			}
		}
	})
}

// TestSliceHistories lets addresses of a node come and go.
func TestSliceHistories(t *testing.T) {
	all := numbered(0, 700)
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 2))
		has := map[string]bool{}
		var names []string
		where := map[string]string{}
		for step := range 60 {
			for range rng.IntN(120) {
				a := all[rng.IntN(len(all))].Address
				has[a] = rng.IntN(3) > 0
				if !has[a] {
					delete(has, a)
				}
			}
			var entries []v1.AnnouncedAddress
			for _, a := range slices.Sorted(maps.Keys(has)) {
				entries = append(entries, v1.AnnouncedAddress{Address: a})
			}
			sliced := placement.Slice("n", entries, names, where)
			shuffledNames := slices.Clone(names)
			rng.Shuffle(len(names), func(i, j int) {
				shuffledNames[i], shuffledNames[j] = shuffledNames[j], shuffledNames[i]
			})
			if again := placement.Slice("n", entries, shuffledNames, where); !reflect.DeepEqual(sliced, again) {
				t.Fatalf("seed %d, step %d: names in another order give another result:\n%s", seed, step, cmp.Diff(sliced, again))
			}
			if _, first := sliced["n"]; !first {
				t.Fatalf("seed %d, step %d: the first slice is missing", seed, step)
			}
			seen := map[string]bool{}
			for name, list := range sliced {
				if len(list) > v1.MaxAddressesPerAnnouncement || len(list) == 0 && name != "n" {
					t.Fatalf("seed %d, step %d: %s has %d addresses", seed, step, name, len(list))
				}
				for _, e := range list {
					if seen[e.Address] {
						t.Fatalf("seed %d, step %d: %s is there twice", seed, step, e.Address)
					}
					seen[e.Address] = true
					if was, had := where[e.Address]; had && was != name {
						t.Fatalf("seed %d, step %d: %s moved from %s to %s", seed, step, e.Address, was, name)
					}
				}
			}
			if !maps.Equal(has, seen) {
				t.Fatalf("seed %d, step %d: addresses (-given +sliced):\n%s", seed, step, cmp.Diff(has, seen))
			}
			names, where = whereabouts(sliced)
		}
	}
}
