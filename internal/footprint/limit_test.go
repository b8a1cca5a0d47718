package footprint

import "testing"

func TestHeapLimit(t *testing.T) {
	const mib = 1 << 20
	for container, want := range map[uint64]uint64{
		0: 0, 10 * mib: 5 * mib, 60 * mib: 30 * mib, 64 * mib: 32 * mib,
		65 * mib: 33 * mib, 128 * mib: 96 * mib, 192 * mib: 160 * mib, 320 * mib: 288 * mib,
		512 * mib: 483183820,
	} {
		if got := HeapLimit(container); got != want {
			t.Errorf("of %d MiB: %d MiB, want %d", container/mib, got/mib, want/mib)
		}
	}
}
