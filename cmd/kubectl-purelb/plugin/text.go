package plugin

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Style says how text is written.
type Style struct {
	// Color colours the health; for terminals.
	Color bool
	// Wide shows more columns.
	Wide bool
}

// textWriter writes lines and tables. Of what it is given it writes only what is printable: others,
// such as agents, have written some of it, and could otherwise forge rows and command the
// terminal. The first error is kept until flush.
type textWriter struct {
	out   io.Writer
	style Style
	// table is the table that is being written, to rows.
	table *tabwriter.Writer
	rows  strings.Builder
	// hasLines is that something is written already.
	hasLines bool
	err      error
}

func newTextWriter(w io.Writer, style Style) *textWriter { return &textWriter{out: w, style: style} }

func (t *textWriter) endTable() {
	if t.table != nil && t.err == nil {
		t.err = t.table.Flush()
	}
	for row := range strings.Lines(t.rows.String()) {
		if t.err == nil {
			_, t.err = fmt.Fprintln(t.out, strings.TrimRight(row, " \n"))
			t.hasLines = true
		}
	}
	t.table = nil
	t.rows.Reset()
}

// printableLine returns a text in one line of printable letters, behind the spaces that it begins
// with.
func printableLine(s string) string {
	rest := strings.TrimLeft(s, " ")
	return s[:len(s)-len(rest)] + textlimit.Line(rest)
}

// line writes one line that is not part of a table.
func (t *textWriter) line(s string) { t.writeLine(printableLine(s)) }

// healthLine writes a line that says how something is.
func (t *textWriter) healthLine(h Health, s string) { t.writeLine(t.health(h, s)) }

// writeLine writes a line that is printable.
func (t *textWriter) writeLine(s string) {
	t.endTable()
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.out, s)
		t.hasLines = true
	}
}

// emptyLine parts what follows from what is before it, if something is.
func (t *textWriter) emptyLine() {
	t.endTable()
	if t.hasLines {
		t.line("")
	}
}

// section begins a part of the text.
func (t *textWriter) section(title string) {
	t.emptyLine()
	t.line(title)
}

// header begins a table.
func (t *textWriter) header(columns ...string) {
	t.endTable()
	t.table = tabwriter.NewWriter(&t.rows, 0, 0, 3, ' ', 0)
	t.row(columns...)
}

// row writes one row of a table.
func (t *textWriter) row(cells ...string) {
	written := make([]string, 0, len(cells))
	for _, cell := range cells {
		written = append(written, printableLine(cell))
	}
	t.writeRow(written)
}

// healthRow writes one row of a table whose first cell says how something is.
func (t *textWriter) healthRow(h Health, first string, others ...string) {
	written := []string{t.health(h, first)}
	for _, cell := range others {
		written = append(written, printableLine(cell))
	}
	t.writeRow(written)
}

// writeRow writes a row of printable cells.
func (t *textWriter) writeRow(cells []string) {
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.table, strings.Join(cells, "\t")+"\t")
	}
}

// unread says what could not be read.
func (t *textWriter) unread(kinds []Unread) {
	if len(kinds) == 0 {
		return
	}
	t.emptyLine()
	for _, u := range kinds {
		t.line("Not read: " + u.Kind + ": " + u.Reason)
	}
}

// health returns a text in printable letters, coloured by a state. In a table every cell of the
// column has to be coloured, or none: an escape counts as text.
func (t *textWriter) health(h Health, s string) string {
	s = printableLine(s)
	if !t.style.Color {
		return s
	}
	color := map[Health]string{Healthy: "\x1b[32m", Degraded: "\x1b[33m", Critical: "\x1b[31m", Unknown: "\x1b[35m"}[h]
	return color + s + "\x1b[0m"
}

func (t *textWriter) flush() error {
	t.endTable()
	return t.err
}
