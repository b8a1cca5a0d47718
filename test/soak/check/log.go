package check

import (
	"encoding/json"
	"strings"
	"time"
)

// LogLine is what a line of a program of PureLB's log means.
type LogLine struct {
	// Panic: the program has panicked, or the race detector or the runtime ended it.
	Panic bool
	// Level and Message of a line in JSON.
	Level, Message, Error string
}

// ParseLog parses a line of a container's log, as containerd writes it: time, stream, tag,
// text.
func ParseLog(line string) LogLine {
	fields := strings.SplitN(line, " ", 4)
	if len(fields) == 4 {
		if _, err := time.Parse(time.RFC3339Nano, fields[0]); err == nil {
			line = fields[3]
		}
	}
	var parsed struct {
		Level   string `json:"level"`
		Message string `json:"msg"`
		Error   string `json:"error"`
	}
	if json.Unmarshal([]byte(line), &parsed) == nil {
		return LogLine{Level: parsed.Level, Message: parsed.Message, Error: parsed.Error,
			Panic: parsed.Level == "panic" || strings.Contains(parsed.Message, "panic") ||
				strings.Contains(parsed.Message, "Observed a panic")}
	}
	for _, mark := range []string{
		"panic:", "fatal error:", "WARNING: DATA RACE", "goroutine 1 [", "unexpected fault address",
	} {
		if strings.HasPrefix(line, mark) {
			return LogLine{Panic: true, Message: line}
		}
	}
	return LogLine{Message: line}
}

// Errors counts error-level lines by message, and judges those that come in calm.
type Errors struct {
	// Counts by program and message.
	Counts map[string]int
	found  []string
}

// Line takes a line. calm says that nothing has disturbed the cluster for long enough.
func (e *Errors) Line(at time.Time, source, line string, calm bool) {
	if e.Counts == nil {
		e.Counts = map[string]int{}
	}
	parsed := ParseLog(line)
	if parsed.Panic {
		e.found = append(e.found, stamp(at)+": "+source+" panicked: "+parsed.Message)
	}
	if parsed.Level != "error" {
		return
	}
	program, _, _ := strings.Cut(source, "/")
	e.Counts[program+": "+parsed.Message]++
	if calm && len(e.found) < 100 {
		e.found = append(
			e.found, stamp(at)+": "+source+" logs an error though nothing is wrong: "+parsed.Message+": "+parsed.Error,
		)
	}
}

// Violations returns what was found so far.
func (e *Errors) Violations() []string { return e.found }
