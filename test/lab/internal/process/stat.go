package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stat is the part of /proc/PID/stat that tells one process from another.
type stat struct {
	state     byte
	startTime uint64
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	s, err := parseStat(string(text))
	if err != nil {
		return stat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return s, nil
}

// parseStat parses proc_pid_stat(5). The second field is the name of the
// program in brackets, and may itself hold spaces and brackets: the fields
// after it are counted from the last closing one.
func parseStat(text string) (stat, error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("no program name in %q", text)
	}
	const state, startTime = 3, 22 // numbers of the fields, from 1
	fields := strings.Fields(text[end+1:])
	if len(fields) <= startTime-state || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("too few fields in %q", text)
	}
	ticks, err := strconv.ParseUint(fields[startTime-state], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse the start time: %w", err)
	}
	return stat{state: fields[0][0], startTime: ticks}, nil
}
