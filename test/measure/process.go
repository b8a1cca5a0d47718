package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every
// architecture that Go runs Linux on.
const clockTick = 10 * time.Millisecond

// CPUTime returns for how long a process has run on processors, its own code and the
// kernel's for it.
func CPUTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of a process: %w", err)
	}
	return parseCPUTime(string(stat))
}

// parseCPUTime adds utime and stime of /proc/PID/stat (proc_pid_stat(5)). The name of
// the program, in parentheses, may hold spaces and parentheses.
func parseCPUTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("parse the processor time of a process: too few fields in %q", stat)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	kernel, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("parse the processor time of a process: %w", err)
	}
	return time.Duration(user+kernel) * clockTick, nil
}

// ResidentMiB returns a process's resident memory (VmRSS) in MiB.
func ResidentMiB(pid int) (float64, error) { return readMiB(pid, "VmRSS") }

// PeakMiB returns the most memory of a process that was ever resident (VmHWM), in MiB.
func PeakMiB(pid int) (float64, error) { return readMiB(pid, "VmHWM") }

func readMiB(pid int, name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	return parseMiB(string(status), name)
}

// parseMiB finds a figure in /proc/PID/status (proc_pid_status(5)).
func parseMiB(status, name string) (float64, error) {
	for line := range strings.Lines(status) {
		value, found := strings.CutPrefix(line, name+":")
		if !found {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, fmt.Errorf("parse the memory of a process: %w", err)
		}
		return kib / 1024, nil
	}
	return 0, fmt.Errorf("parse the memory of a process: no %s, so it has ended", name)
}
