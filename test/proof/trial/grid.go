package trial

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The lines of a page between which a Grid keeps its tables.
const (
	gridBegins = "<!-- cells: begin -->"
	gridEnds   = "<!-- cells: end -->"
)

// gridHead is how the tables of a grid begin; the figures and the verdict follow.
const gridHead = "| session | date | commit | n |"

// noFigure stands where there is none.
const noFigure = "–"

// Grid is a matrix of experiments: things that happen, each in several columns. Its page has a summary, and a table for
// each thing that happens, with a line for each column.
type Grid struct {
	// Rows and Columns are the names, in order, and Cell names the experiment of a row and a column.
	Rows, Columns []string
	Cell          func(row, column string) string
	// Reason is why there is no value; empty if there is one.
	Reason func(row, column string) string
	// Groups are those of columns in the summary, by which group a column is in.
	Groups  []string
	GroupOf func(column string) string
	// Shown are the figures of the summary.
	Shown []string
}

// gridLine is what the page has of a cell.
type gridLine struct {
	date, commit, n, verdict string
	// figures are the spreads by the names of the figures.
	figures map[string]string
}

// gridTable has the lines of a row by their columns.
type gridTable map[string]gridLine

// UpdatePage returns a page with the cells that results have. Other cells stay as they are, with their own date and
// commit, and so do those that were measured on a later day.
func (g Grid) UpdatePage(page string, results []Result) (string, error) {
	before, rest, hasBegin := strings.Cut(page, gridBegins+"\n")
	old, after, hasEnd := strings.Cut(rest, gridEnds)
	if !hasBegin || !hasEnd {
		return "", fmt.Errorf("the page has no lines %s and %s", gridBegins, gridEnds)
	}
	tables := g.read(old)
	results = slices.Clone(results)
	slices.SortStableFunc(results, func(a, b Result) int { return a.Began.Compare(b.Began) })
	for _, r := range results {
		if err := r.Check(); err != nil {
			return "", err
		}
		g.add(tables, r)
	}
	return before + gridBegins + "\n" + g.format(tables) + gridEnds + after, nil
}

// read returns the tables of a page by their rows.
func (g Grid) read(text string) map[string]gridTable {
	tables := map[string]gridTable{}
	for _, row := range g.Rows {
		tables[row] = gridTable{}
	}
	row, figures := "", []string(nil)
	for text := range strings.Lines(text) {
		line := strings.TrimSpace(text)
		if name, isHeading := strings.CutPrefix(line, "### "); isHeading {
			row, figures = name, nil
			continue
		}
		if names, isHead := strings.CutPrefix(line, gridHead); isHead {
			figures = fields(strings.TrimSuffix(names, " verdict |"))
			continue
		}
		parts := fields(line)
		if tables[row] == nil || len(parts) != 5+len(figures) || !slices.Contains(g.Columns, parts[0]) {
			continue
		}
		one := gridLine{
			date: parts[1], commit: parts[2], n: parts[3], verdict: parts[len(parts)-1], figures: map[string]string{},
		}
		for i, figure := range figures {
			if parts[4+i] != noFigure {
				one.figures[figure] = parts[4+i]
			}
		}
		tables[row][parts[0]] = one
	}
	return tables
}

// fields returns the fields of a line of a table.
func fields(line string) []string {
	line = strings.Trim(line, "| ")
	if line == "" {
		return nil
	}
	parts := strings.Split(line, "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// add puts the experiments of a result into the tables.
func (g Grid) add(tables map[string]gridTable, r Result) {
	for _, row := range g.Rows {
		for _, column := range g.Columns {
			i := slices.IndexFunc(r.Experiments, func(e Experiment) bool { return e.Name == g.Cell(row, column) })
			if i < 0 {
				continue
			}
			v := Judge(r.Experiments[i])
			one := gridLine{
				date: r.Began.UTC().Format("2006-01-02"), commit: r.Commit, n: strconv.Itoa(v.Conclusive),
				verdict: strings.NewReplacer("|", "/", "\n", " ").Replace(v.String()), figures: map[string]string{},
			}
			for _, s := range v.Spreads {
				one.figures[s.Figure] = formatSpread(s)
			}
			if old, exists := tables[row][column]; !exists || old.date <= one.date { // dates are in the order of their text
				tables[row][column] = one
			}
		}
	}
}

// format writes the summary and the tables.
func (g Grid) format(tables map[string]gridTable) string {
	var b strings.Builder
	g.formatSummary(&b, tables)
	for _, row := range g.Rows {
		fmt.Fprintf(&b, "\n### %s\n", row)
		if len(tables[row]) > 0 {
			g.formatTable(&b, tables[row])
		}
		g.formatWithout(&b, row, tables[row])
	}
	return b.String()
}

// formatTable writes a table, with a column for each figure that a line has, in alphabetical order.
func (g Grid) formatTable(b *strings.Builder, table gridTable) {
	all := map[string]bool{}
	for _, line := range table {
		for figure := range line.figures {
			all[figure] = true
		}
	}
	figures := slices.Sorted(maps.Keys(all))
	b.WriteString("\n" + gridHead)
	for _, figure := range figures {
		b.WriteString(" " + figure + " |")
	}
	b.WriteString(" verdict |\n" + strings.Repeat("|---", 5+len(figures)) + "|\n")
	for _, column := range g.Columns {
		line, exists := table[column]
		if !exists {
			continue
		}
		parts := []string{column, line.date, line.commit, line.n}
		for _, figure := range figures {
			parts = append(parts, cmp.Or(line.figures[figure], noFigure))
		}
		b.WriteString("| " + strings.Join(append(parts, line.verdict), " | ") + " |\n")
	}
}

// formatWithout says of which columns a row has no line, and why.
func (g Grid) formatWithout(b *strings.Builder, row string, table gridTable) {
	var reasons, missing []string
	count := map[string]int{}
	for _, column := range g.Columns {
		reason := g.Reason(row, column)
		if _, exists := table[column]; exists {
			continue
		}
		if reason == "" {
			missing = append(missing, column)
			continue
		}
		if count[reason]++; count[reason] == 1 {
			reasons = append(reasons, reason)
		}
	}
	for _, reason := range reasons {
		fmt.Fprintf(b, "\nWithout a value in %d of %d columns: %s.\n", count[reason], len(g.Columns), reason)
	}
	switch {
	case len(missing) == 0:
	case len(table) == 0:
		b.WriteString("\nNot measured yet.\n")
	default:
		fmt.Fprintf(b, "\nNot measured yet: %s.\n", strings.Join(missing, "; "))
	}
}

// formatSummary writes a table with the most of each shown figure over the columns of each group.
func (g Grid) formatSummary(b *strings.Builder, tables map[string]gridTable) {
	b.WriteString("\n| what happens | cells |")
	for _, group := range g.Groups {
		b.WriteString(" " + group + " |")
	}
	b.WriteString("\n" + strings.Repeat("|---", 2+len(g.Groups)) + "|\n")
	for _, row := range g.Rows {
		table := tables[row]
		if len(table) == 0 {
			continue
		}
		red := 0
		for _, line := range table {
			if !strings.HasPrefix(line.verdict, string(Green)) {
				red++
			}
		}
		cells := strconv.Itoa(len(table))
		if red > 0 {
			cells += fmt.Sprintf(", %d not green", red)
		}
		fmt.Fprintf(b, "| %s | %s |", row, cells)
		for _, group := range g.Groups {
			var most []string
			for _, figure := range g.Shown {
				if text := g.most(table, group, figure); text != "" {
					most = append(most, text)
				}
			}
			b.WriteString(" " + cmp.Or(strings.Join(most, "; "), noFigure) + " |")
		}
		b.WriteString("\n")
	}
}

// most returns the most of a figure in a table over the columns of a group; empty if there is none.
func (g Grid) most(table gridTable, group, figure string) string {
	most, text := 0.0, ""
	for column, line := range table {
		spread := strings.Split(line.figures[figure], " / ")
		last := spread[len(spread)-1]
		value, err := strconv.ParseFloat(last, 64)
		if err == nil && g.GroupOf(column) == group && (text == "" || value > most) {
			most, text = value, last
		}
	}
	return text
}
