// Package panels draws what a dashboard shows: panels with lines over time, at the places that the
// dashboard gives them.
package panels

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Panel is a panel of a dashboard.
type Panel struct {
	Title string
	// Unit is Grafana's name of what the values are: short, s, bytes, ops or percentunit.
	Unit string
	// IsStat says that only the last value is shown, as a number. IsRow says that the panel is but a
	// heading.
	IsStat, IsRow bool
	// X, Y, W and H are the place and the size on Grafana's grid, which is 24 columns wide.
	X, Y, W, H int
	Lines      []Line
}

// Line is a series of values.
type Line struct {
	Name   string
	Points []Point
}

// Point is a value at a time since the beginning. Value may be NaN, which is drawn as a gap.
type Point struct {
	At    time.Duration
	Value float64
}

// Measures of the picture, in pixels.
const (
	columnWidth = 50
	rowHeight   = 26
	margin      = 6
	headHeight  = 24
	axisWidth   = 46
	axisHeight  = 18
	legendStep  = 13
	// maxNames is how many lines a legend names, and nameWidth how wide a letter of a name is.
	maxNames  = 6
	nameWidth = 5.6
)

// colours are those of lines, which suit a light and a dark page.
var colours = []string{"#3b82c4", "#d9822b", "#4c9f70", "#b15bb5", "#c94f4f", "#8a8f3c", "#2aa5a5", "#8d6e63"}

// SVG returns the panels as an SVG file. Its lines go from the beginning to the end.
func SVG(title string, end time.Duration, all []Panel) string {
	rows := 0
	for _, p := range all {
		rows = max(rows, p.Y+p.H)
	}
	var b strings.Builder
	fmt.Fprintf(
		&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" `+
			`fill="#888">`+"\n", 24*columnWidth, rows*rowHeight+headHeight,
	)
	fmt.Fprintf(&b, `<text x="%d" y="16" font-size="15">%s</text>`+"\n", margin, escape(title))
	for _, p := range all {
		p.draw(&b, end)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p Panel) draw(b *strings.Builder, end time.Duration) {
	x, y := p.X*columnWidth+margin/2, p.Y*rowHeight+headHeight+margin/2
	w, h := p.W*columnWidth-margin, p.H*rowHeight-margin
	if p.IsRow {
		fmt.Fprintf(b, `<text x="%d" y="%d" font-size="13" font-weight="bold">%s</text>`+"\n", x, y+15, escape(p.Title))
		return
	}
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#8886" rx="3"/>`, x, y, w, h)
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="12">%s</text>`+"\n", x+margin, y+15, escape(p.Title))
	if p.IsStat {
		fmt.Fprintf(
			b, `<text x="%d" y="%d" font-size="34" text-anchor="middle" fill="%s">%s</text>`+"\n", x+w/2, y+h/2+20, colours[0],
			escape(Format(p.Unit, p.last())),
		)
		return
	}
	lines := slices.SortedFunc(slices.Values(p.Lines), func(a, b Line) int { return cmp.Compare(a.Name, b.Name) })
	names := min(len(lines), maxNames)
	plot := area{
		left: float64(x + axisWidth), top: float64(y + headHeight), width: float64(w - axisWidth - margin),
		height: float64(h - headHeight - axisHeight - (names+1)/2*legendStep), end: end, high: highest(p.Unit, lines),
	}
	plot.drawAxes(b, p.Unit)
	for i, line := range lines {
		for _, path := range plot.paths(line.Points) {
			fmt.Fprintf(
				b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5" stroke-linecap="round"/>`+"\n", path,
				colours[i%len(colours)],
			)
		}
	}
	letters := int(float64(w/2-margin) / nameWidth)
	for i, line := range lines[:names] {
		more := ""
		if i == names-1 && len(lines) > names {
			more = fmt.Sprintf(", and %d more", len(lines)-names)
		}
		name := shortened(line.Name, letters-len(more)) + more
		fmt.Fprintf(
			b, `<text x="%d" y="%d" fill="%s" font-size="10">%s</text>`+"\n", x+margin+i%2*(w/2),
			y+h-4-((names-1)/2-i/2)*legendStep, colours[i%len(colours)], escape(name),
		)
	}
}

// HasValues reports whether the panel shows anything.
func (p Panel) HasValues() bool {
	return slices.ContainsFunc(p.Lines, func(line Line) bool {
		return slices.ContainsFunc(line.Points, func(point Point) bool { return isDrawn(point.Value) })
	})
}

// isDrawn reports whether a value has a place in a panel.
func isDrawn(value float64) bool { return !math.IsNaN(value) && !math.IsInf(value, 0) }

// shortened returns the beginning and the end of a name that has more letters than there is room for: names of
// pods differ at their ends.
func shortened(name string, letters int) string {
	if len(name) <= letters || letters < 3 {
		return name
	}
	head := (letters - 1) / 2
	return name[:head] + "…" + name[len(name)-(letters-1-head):]
}

// last returns the last value of the panel, or NaN.
func (p Panel) last() float64 {
	for _, line := range p.Lines {
		if n := len(line.Points); n > 0 {
			return line.Points[n-1].Value
		}
	}
	return math.NaN()
}

// bytesPerMiB is what a value in bytes is divided by, to be shown.
const bytesPerMiB = 1 << 20

// highest returns the end of an axis for the values of lines: a round number, as it is shown.
func highest(unit string, lines []Line) float64 {
	high, shownIn := 0.0, 1.0
	if unit == "bytes" {
		shownIn = bytesPerMiB
	}
	for _, line := range lines {
		for _, point := range line.Points {
			if isDrawn(point.Value) {
				high = max(high, point.Value/shownIn)
			}
		}
	}
	return roundUp(high) * shownIn
}

// roundUp returns the next of 1, 2, 5, 10, 20, … or one of their parts; 1 for 0.
func roundUp(high float64) float64 {
	if high == 0 {
		return 1
	}
	magnitude := math.Pow(10, math.Floor(math.Log10(high)))
	for _, step := range []float64{1, 2, 5} {
		if high <= step*magnitude {
			return step * magnitude
		}
	}
	return 10 * magnitude
}

// area is where lines are drawn.
type area struct {
	left, top, width, height float64
	end                      time.Duration
	high                     float64
}

func (a area) drawAxes(b *strings.Builder, unit string) {
	bottom := a.top + a.height
	for _, part := range []float64{0, 0.5, 1} {
		y := bottom - part*a.height
		fmt.Fprintf(
			b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#8884"/><text x="%.1f" y="%.1f" text-anchor="end" `+
				`font-size="9">%s</text>`, a.left, y, a.left+a.width, y, a.left-3, y+3, escape(Format(unit, part*a.high)),
		)
		fmt.Fprintf(
			b, `<text x="%.1f" y="%.1f" text-anchor="middle" font-size="9">%s</text>`+"\n", a.left+part*(a.width-20)+5,
			bottom+11, time.Duration(part*float64(a.end)).Round(time.Second),
		)
	}
}

// paths returns the points of a line in pixels, one text for each part without a gap.
func (a area) paths(points []Point) []string {
	var all []string
	var path []string
	finish := func() {
		if len(path) == 1 {
			path = append(path, path[0]) // which is drawn as a dot
		}
		if len(path) > 0 {
			all = append(all, strings.Join(path, " "))
		}
		path = nil
	}
	for _, p := range points {
		if !isDrawn(p.Value) {
			finish()
			continue
		}
		x := a.left + a.width*float64(p.At)/float64(a.end)
		y := a.top + a.height*(1-min(1, max(0, p.Value/a.high)))
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
	}
	finish()
	return all
}

// Format returns a value as a panel shows it.
func Format(unit string, value float64) string {
	if math.IsNaN(value) {
		return "–"
	}
	number := func(v float64) string { return fmt.Sprintf("%.3g", v) }
	switch {
	case unit == "percentunit":
		return number(value*100) + " %"
	case unit == "s" && value != 0 && value < 1:
		return number(value*1000) + " ms"
	case unit == "s":
		return number(value) + " s"
	case unit == "bytes":
		return number(value/bytesPerMiB) + " MiB"
	case unit == "ops":
		return number(value) + "/s"
	case value == math.Trunc(value):
		return fmt.Sprintf("%.0f", value)
	}
	return number(value)
}

// escape returns text as XML has it.
func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return ""
	}
	return b.String()
}
