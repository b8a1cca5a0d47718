package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table returns all rows as Markdown, with a table for each section.
func Table(rows []Row) string {
	var b strings.Builder
	for _, section := range sectionNames(rows) {
		var ofSection []Row
		for _, row := range rows {
			if row.Section == section {
				ofSection = append(ofSection, row)
			}
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n", section, sectionTable(ofSection))
	}
	return b.String()
}

// sectionNames returns the sections in the order in which they come first.
func sectionNames(rows []Row) []string {
	var all []string
	for _, row := range rows {
		if !slices.Contains(all, row.Section) {
			all = append(all, row.Section)
		}
	}
	return all
}

// sectionTable returns the rows of one section in columns of equal width, so that it can be
// read on a terminal, too.
func sectionTable(rows []Row) string {
	columns := columnNames(rows)
	header := append([]string{"case", "n"}, columns...)
	lines := [][]string{header}
	for _, row := range rows {
		name := row.Case
		if row.Unit != "" {
			name += " (" + row.Unit + ")"
		}
		line := []string{name, strconv.Itoa(row.N)}
		for _, column := range columns {
			line = append(line, formatCell(row.Values, column))
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(header))
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], len([]rune(text)))
		}
	}
	rule := make([]string, len(header))
	for i := range rule {
		rule[i] = strings.Repeat("-", max(3, widths[i]))
	}
	var b strings.Builder
	for i, line := range append([][]string{header, rule}, lines[1:]...) {
		for j, text := range line {
			pad := strings.Repeat(" ", widths[j]-min(widths[j], len([]rune(text))))
			if j == 0 || i == 1 {
				fmt.Fprintf(&b, "| %s%s ", text, pad)
			} else {
				fmt.Fprintf(&b, "| %s%s ", pad, text)
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// columnNames returns the names of the columns. The three values of a spread share one.
func columnNames(rows []Row) []string {
	var all []string
	for _, name := range valueNames(rows) {
		column := name
		for _, suffix := range suffixes {
			if stem, ok := strings.CutSuffix(name, suffix); ok {
				column = stem
			}
		}
		if !slices.Contains(all, column) {
			all = append(all, column)
		}
	}
	return all
}

// formatCell returns the value of a column, or the three of a spread, or nothing.
func formatCell(values map[string]float64, column string) string {
	if value, ok := values[column]; ok {
		return formatNumber(value)
	}
	var parts []string
	for _, suffix := range suffixes {
		if value, ok := values[column+suffix]; ok {
			parts = append(parts, formatNumber(value))
		}
	}
	return strings.Join(parts, " / ")
}

// formatNumber formats a number with three significant digits, or with all those before
// the point.
func formatNumber(value float64) string {
	switch size := math.Abs(value); {
	case value == math.Trunc(value) || size >= 100:
		return strconv.FormatFloat(value, 'f', 0, 64)
	case size >= 10:
		return strconv.FormatFloat(value, 'f', 1, 64)
	case size >= 0.1:
		return strconv.FormatFloat(value, 'f', 2, 64)
	default:
		return strconv.FormatFloat(value, 'g', 2, 64)
	}
}
