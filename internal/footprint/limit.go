package footprint

import (
	"errors"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// LimitHeap has the garbage collector work harder as the program comes close to nine tenths of
// what its container may use, so that it is slow for a moment rather than killed. A program
// without such a limit works as before, as does one that GOMEMLIMIT limits. The errors are
// those of reading /proc and /sys/fs/cgroup.
func LimitHeap() error {
	_, err := memlimit.Set()
	if errors.Is(err, memlimit.ErrNoCgroup) || errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		return nil
	}
	return err
}
