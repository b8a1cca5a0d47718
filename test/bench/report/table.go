package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table is all rows as Markdown: a table for each section.
func Table(rows []Row) string {
	var b strings.Builder
	for _, section := range sections(rows) {
		var of []Row
		for _, row := range rows {
			if row.Section == section {
				of = append(of, row)
			}
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n", section, table(of))
	}
	return b.String()
}

// sections in the order in which they come first.
func sections(rows []Row) []string {
	var all []string
	for _, row := range rows {
		if !slices.Contains(all, row.Section) {
			all = append(all, row.Section)
		}
	}
	return all
}

// table is the rows of one section, in columns of equal width, so that it can be
// read on a terminal, too.
func table(rows []Row) string {
	columns := columns(rows)
	header := append([]string{"case", "n"}, columns...)
	lines := [][]string{header}
	for _, row := range rows {
		name := row.Case
		if row.Unit != "" {
			name += " (" + row.Unit + ")"
		}
		line := []string{name, strconv.Itoa(row.N)}
		for _, column := range columns {
			line = append(line, cell(row.Values, column))
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

// columns are the names of values, three of a spread as one.
func columns(rows []Row) []string {
	var all []string
	for _, name := range names(rows) {
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

// cell is the value of a name, or the three of a spread, or nothing.
func cell(values map[string]float64, column string) string {
	if value, ok := values[column]; ok {
		return number(value)
	}
	var parts []string
	for _, suffix := range suffixes {
		if value, ok := values[column+suffix]; ok {
			parts = append(parts, number(value))
		}
	}
	return strings.Join(parts, " / ")
}

// number has three digits that count, or all before the point.
func number(value float64) string {
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
