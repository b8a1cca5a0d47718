package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// Plot is a plot with horizontal bars.
type Plot struct {
	Title, Axis string
	// Log makes the axis logarithmic. It begins at 1, and smaller values are drawn as 1.
	Log  bool
	Bars []Bar
}

// Bar is a bar: a range and its median.
type Bar struct {
	Label         string
	Low, Mid, Top float64
}

// Measures of plots, in pixels.
const (
	plotWidth = 760
	plotLeft  = 270
	plotRight = 90
	plotTop   = 46
	plotStep  = 22
)

// SVG returns the plot as an SVG file, whose colours suit a light and a dark page.
func (p Plot) SVG() string {
	height := plotTop + plotStep*len(p.Bars) + 44
	var b strings.Builder
	fmt.Fprintf(
		&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#888">`+
			"\n",
		plotWidth, height,
	)
	fmt.Fprintf(&b, `<text x="10" y="20" font-size="15">%s</text>`+"\n", escape(p.Title))
	bottom := plotTop + plotStep*len(p.Bars)
	for _, tick := range p.ticks() {
		x := p.position(tick)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#8884"/>`, x, plotTop-6, x, bottom)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, bottom+16, formatNumber(tick))
	}
	fmt.Fprintf(
		&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, bottom+34,
		escape(p.Axis),
	)
	for i, bar := range p.Bars {
		y := plotTop + plotStep*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, plotLeft-8, y+13, escape(bar.Label))
		low, mid, top := p.position(bar.Low), p.position(bar.Mid), p.position(bar.Top)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="12" fill="#3b82c4"/>`, plotLeft, y+3, mid-plotLeft)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#d9822b" stroke-width="3"/>`, low, y+9, top, y+9)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", top+6, y+13, formatNumber(bar.Mid))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return ""
	}
	return b.String()
}

// axisEnd returns the value at the end of the axis.
func (p Plot) axisEnd() float64 {
	top := 1.0
	for _, bar := range p.Bars {
		top = max(top, bar.Top)
	}
	magnitude := math.Pow(10, math.Floor(math.Log10(top)))
	if p.Log {
		if top > magnitude {
			return 10 * magnitude
		}
		return max(10, magnitude)
	}
	for _, step := range []float64{1, 2, 5, 10} {
		if top <= step*magnitude {
			return step * magnitude
		}
	}
	return 10 * magnitude
}

func (p Plot) ticks() []float64 {
	top := p.axisEnd()
	var all []float64
	if p.Log {
		for tick := 1.0; tick <= top; tick *= 10 {
			all = append(all, tick)
		}
		return all
	}
	for i := range 6 {
		all = append(all, top*float64(i)/5)
	}
	return all
}

// position returns where on the axis a value is, in pixels.
func (p Plot) position(value float64) float64 {
	width := float64(plotWidth - plotLeft - plotRight)
	if p.Log {
		return plotLeft + width*math.Log10(max(1, value))/math.Log10(p.axisEnd())
	}
	return plotLeft + width*value/p.axisEnd()
}

// OutagePlot plots the time without HTTP answers by cause, from the section availability.
func OutagePlot(rows []Row) Plot {
	p := Plot{
		Title: "Longest time without an HTTP answer, by cause",
		Axis:  "ms, logarithmic: median (bar), minimum to maximum (line)", Log: true,
	}
	for _, row := range rows {
		mid, ok := row.Values["outageMedian"]
		if row.Section == "availability" && ok {
			p.Bars = append(p.Bars, Bar{row.Case, row.Values["outageMin"], mid, row.Values["outageMax"]})
		}
	}
	return p
}

// ScalePlot plots a value by the size of the cluster, from the section scale.
func ScalePlot(rows []Row, value, title, axis string) Plot {
	p := Plot{Title: title, Axis: axis}
	for _, row := range rows {
		v, ok := row.Values[value]
		if row.Section == "scale" && ok {
			p.Bars = append(p.Bars, Bar{row.Case, v, v, v})
		}
	}
	return p
}
