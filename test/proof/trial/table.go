package trial

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The lines of a page between which UpdatePage keeps its table.
const (
	tableBegins = "<!-- results: begin -->"
	tableEnds   = "<!-- results: end -->"
)

const tableHead = `| what | date | commit | command | n | least / median / most | machine late | verdict |
|---|---|---|---|---|---|---|---|
`

// commandColumn is that of the command in a row, from 0.
const commandColumn = 3

// UpdatePage returns a page with the rows of results in its table. Rows of other commands stay
// as they are, with their own date and commit. Rows are in the order of their commands.
func UpdatePage(page string, results []Result) (string, error) {
	before, rest, hasBegin := strings.Cut(page, tableBegins+"\n")
	table, after, hasEnd := strings.Cut(rest, tableEnds)
	if !hasBegin || !hasEnd {
		return "", fmt.Errorf("the page has no lines %s and %s", tableBegins, tableEnds)
	}
	rows, err := keptRows(table, results)
	if err != nil {
		return "", err
	}
	for _, r := range results {
		if err := r.Check(); err != nil {
			return "", err
		}
		rows = append(rows, formatRows(r)...)
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.target, b.target) })
	var text strings.Builder
	text.WriteString(before + tableBegins + "\n" + tableHead)
	for _, r := range rows {
		text.WriteString(r.text + "\n")
	}
	text.WriteString(tableEnds + after)
	return text.String(), nil
}

// row is a line of the table.
type row struct{ target, text string }

// target returns the target of make in a command.
func target(command string) string {
	fields := strings.Fields(command)
	if len(fields) < 2 || fields[0] != "make" {
		return command
	}
	return fields[1]
}

// replaces says whether the rows of a command are replaced by the results of another one: of the
// same target with the same FEATURE_GATES, as a whole or with the same ROWS.
func replaces(command, old string) bool {
	part := rowsOf(command)
	isSame := target(command) == target(old) && variable(command, "FEATURE_GATES") == variable(old, "FEATURE_GATES")
	return isSame && (part == "" || part == rowsOf(old))
}

// rowsOf returns which experiments a command runs: the value of ROWS, empty for all of them.
func rowsOf(command string) string { return variable(command, "ROWS") }

// variable returns the value that a command gives a variable of make, without quotes; empty if it gives none.
func variable(command, name string) string {
	for _, field := range strings.Fields(command) {
		if value, ok := strings.CutPrefix(field, name+"="); ok {
			return strings.Trim(value, "'")
		}
	}
	return ""
}

// quoteRows returns a command as a shell takes it: an expression of ROWS in quotes if it has characters that mean
// something to a shell.
func quoteRows(command string) string {
	rows := rowsOf(command)
	if !strings.ContainsAny(rows, "|&;<>()$*?[]\\") {
		return command
	}
	return strings.Replace(command, "ROWS="+rows, "ROWS='"+rows+"'", 1)
}

// keptRows returns the rows of a table that results do not replace.
func keptRows(table string, results []Result) ([]row, error) {
	var rows []row
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		if i < 2 || line == "" { // the head
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) <= commandColumn {
			return nil, errors.New("this is no row of the table of results: " + line)
		}
		of := strings.ReplaceAll(strings.Trim(cells[commandColumn], "`"), "\\|", "|")
		if !slices.ContainsFunc(results, func(r Result) bool { return replaces(r.Command, of) }) {
			rows = append(rows, row{target(of), line})
		}
	}
	return rows, nil
}

// formatRows returns the rows of a result.
func formatRows(r Result) []row {
	var rows []row
	for _, e := range r.Experiments {
		v := Judge(e)
		cells := []string{
			e.Name, r.Began.UTC().Format("2006-01-02"), r.Commit, "`" + quoteRows(r.Command) + "`", strconv.Itoa(v.Conclusive),
			formatFigures(e, v), formatSpread(v.LateMS) + " ms", v.String(),
		}
		for i := range cells {
			cells[i] = strings.NewReplacer("|", "\\|", "\n", " ").Replace(cells[i])
		}
		rows = append(rows, row{target(r.Command), "| " + strings.Join(cells, " | ") + " |"})
	}
	return rows
}

// formatFigures returns each figure with its bound: those with a bound first, in the order of
// the bounds.
func formatFigures(e Experiment, v Verdict) string {
	place := func(s Spread) int {
		if i := slices.IndexFunc(e.Bounds, func(b Bound) bool { return b.Figure == s.Figure }); i >= 0 {
			return i
		}
		return len(e.Bounds)
	}
	spreads := slices.Clone(v.Spreads)
	slices.SortStableFunc(spreads, func(a, b Spread) int { return cmp.Compare(place(a), place(b)) })
	var parts []string
	for _, s := range spreads {
		name, unit := cutUnit(s.Figure)
		text := strings.TrimSpace(name + " " + formatSpread(s) + " " + unit)
		var limits []string
		for _, b := range e.MedianBounds {
			if b.Figure == s.Figure {
				limits = append(limits, "median at most "+formatFigure(b.AtMost))
			}
		}
		if i := place(s); i < len(e.Bounds) {
			limits = append(limits, "at most "+formatFigure(e.Bounds[i].AtMost))
		}
		if len(limits) > 0 {
			text += " (" + strings.Join(limits, ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func formatSpread(s Spread) string {
	if s.Min == s.Max {
		return formatFigure(s.Min)
	}
	return formatFigure(s.Min) + " / " + formatFigure(s.Median) + " / " + formatFigure(s.Max)
}

// formatFigure returns a figure without decimal places that nobody needs.
func formatFigure(f float64) string {
	switch {
	case f >= 100 || f <= -100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	default:
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	}
}

// formatBroken says that a figure is above its bound.
func formatBroken(b Bound) string {
	name, unit := cutUnit(b.Figure)
	return strings.TrimSpace(fmt.Sprintf("%s above %s %s", name, formatFigure(b.AtMost), unit))
}

// String says in a few words what came of the experiment, and why.
func (v Verdict) String() string {
	parts := []string{string(v.Outcome)}
	if v.Late > 0 {
		parts = append(parts, fmt.Sprintf("%d more trials were inconclusive, the machine was late", v.Late))
	}
	if v.LateConclusive > 0 {
		parts = append(parts, fmt.Sprintf("in %d of %d the machine was late, and the bounds hold even so",
			v.LateConclusive, v.Conclusive))
	}
	if v.LateBroken > 0 && v.LateConclusive > 0 {
		text := fmt.Sprintf("%d late trials break a bound", v.LateBroken)
		if v.isBrokenTooOftenWhenLate() {
			text += ", which is too often"
		}
		parts = append(parts, text)
	}
	for _, b := range v.BrokenBounds {
		parts = append(parts, formatBroken(b.Bound)+fmt.Sprintf(" in %d of %d", b.Trials, v.Conclusive))
	}
	for _, b := range v.BrokenMedians {
		parts = append(parts, "median of "+formatBroken(b))
	}
	parts = append(parts, v.Broken...)
	if v.Errors > 0 {
		parts = append(parts, fmt.Sprintf("%d errors", v.Errors))
	}
	return strings.Join(parts, "; ")
}
