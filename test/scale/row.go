package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// row is what was measured in one case.
type row struct {
	Section string             `json:"section"`
	Case    string             `json:"case"`
	Unit    string             `json:"unit"`
	N       int                `json:"n"`
	Values  map[string]float64 `json:"values"`
}

// columns are those of the table, with the names of their values.
var columns = []struct{ title, value, format string }{
	{"nodes", "nodes", "%.0f"},
	{"addresses", "addresses", "%.0f"},
	{"on all nodes ms", "changeMs", "%.0f"},
	{"reported ms", "convergeMs", "%.0f"},
	{"death ms", "deathMs", "%.0f"},
	{"restart ms", "restartMs", "%.0f"},
	{"rewritten", "restartRewritten", "%.0f"},
	{"manager MiB", "managerRSSMiB", "%.0f"},
	{"CPU s/min", "managerCPUPerMin", "%.1f"},
	{"API server MiB", "apiServerRSSMiB", "%.0f"},
	{"CPU s/min", "apiServerCPUPerMin", "%.1f"},
	{"agents CPU s/min", "agentsCPUPerMin", "%.1f"},
	{"requests/s", "requestsPerS", "%.0f"},
	{"events/s", "watchEventsPerS", "%.0f"},
	{"Announcements", "announcements", "%.0f"},
	{"bytes", "announcementBytes", "%.0f"},
	{"Common", "commons", "%.0f"},
	{"bytes", "commonBytes", "%.0f"},
}

// printTable prints the most important values as a Markdown table.
func printTable(out io.Writer, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(w, "| "+strings.Join(cells, "\t| ")+"\t|") }
	var titles, rule []string
	for _, c := range columns {
		titles, rule = append(titles, c.title), append(rule, "---")
	}
	line(titles)
	line(rule)
	for _, r := range rows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, fmt.Sprintf(c.format, r.Values[c.value]))
		}
		line(cells)
	}
	return w.Flush()
}

// writeRows writes the rows to a file as JSON.
func writeRows(path string, rows []row) error {
	content, err := json.MarshalIndent(map[string][]row{"rows": rows}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make a folder for the results: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
