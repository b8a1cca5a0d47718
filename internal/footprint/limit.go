package footprint

import (
	"errors"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
)

// ownMemory is how many bytes a program needs beside its heap: the pages of its code and constants
// that it uses.
const ownMemory = 32 << 20

// HeapLimit returns how many bytes the heap of a program may have in a container with so many: at most
// nine tenths, and ownMemory less than all of it, but a half in any case.
func HeapLimit(container uint64) uint64 {
	nineTenths := container/10*9 + container%10*9/10
	return min(nineTenths, max(container/2, container-min(container, ownMemory)))
}

// LimitHeap has the garbage collector work harder as the program comes close to the HeapLimit of its
// container, so that the program is slow for a moment rather than killed. A program without such a
// limit works as before, as does one that GOMEMLIMIT limits. So does one that cannot read /proc and
// /sys/fs/cgroup, which is logged.
func LimitHeap(log logr.Logger) {
	_, err := memlimit.Set(memlimit.WithRatio(1), memlimit.WithProvider(func() (uint64, error) {
		container, err := memlimit.FromCgroup()
		return HeapLimit(container), err
	}))
	if err != nil && !errors.Is(err, memlimit.ErrNoCgroup) && !errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		log.Error(err, "Cannot find out how much memory the container may use")
	}
}
