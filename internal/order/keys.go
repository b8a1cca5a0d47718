package order

import (
	"iter"
	"maps"
	"slices"
)

// ByKey returns the content of a map in the order of its keys.
func ByKey[K comparable, V any](m map[K]V, compare func(a, b K) int) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, key := range slices.SortedFunc(maps.Keys(m), compare) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
