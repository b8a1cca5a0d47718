package panels

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestSVG draws a row, a number and lines: the file is XML, a gap parts a line in two, and names of
// others cannot end a tag.
func TestSVG(t *testing.T) {
	g := NewWithT(t)
	text := SVG("The lab", 2*time.Second, []Panel{
		{Title: "Overview", IsRow: true, W: 24, H: 1},
		{Title: "Announced", IsStat: true, Y: 1, W: 4, H: 4, Lines: []Line{{"", []Point{{0, 1}, {time.Second, 7}}}}},
		{Title: "Moves", Unit: "s", X: 4, Y: 1, W: 8, H: 8, Lines: []Line{
			{"b <gap>", []Point{{0, 0.1}, {time.Second, math.NaN()}, {2 * time.Second, 0.3}}}, {"a", []Point{{0, 0.2}}},
		}},
	})
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		g.Expect(err).NotTo(HaveOccurred(), text)
	}
	g.Expect(text).To(And(
		ContainSubstring(">Overview<"), ContainSubstring(">7<"), ContainSubstring(">500 ms<"),
		ContainSubstring("b &lt;gap&gt;"),
	))
	g.Expect(strings.Count(text, "<polyline")).To(Equal(3))
	g.Expect(strings.Index(text, ">a<")).
		To(BeNumerically("<", strings.Index(text, "b &lt;gap&gt;")), "in the order of names")
}

// TestFormat writes values as panels show them.
func TestFormat(t *testing.T) {
	g := NewWithT(t)
	for _, row := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"short", 3, "3"}, {"short", 0.5, "0.5"}, {"", math.NaN(), "–"}, {"s", 0.25, "250 ms"}, {"s", 12, "12 s"},
		{"s", 0, "0 s"}, {"bytes", 3 << 20, "3 MiB"}, {"percentunit", 0.75, "75 %"}, {"ops", 2, "2/s"},
	} {
		g.Expect(Format(row.unit, row.value)).To(Equal(row.want))
	}
}

// TestShortened keeps both ends of a name, by which names differ.
func TestShortened(t *testing.T) {
	g := NewWithT(t)
	g.Expect(shortened("purelb-manager-5f9b-nzjs2", 25)).To(Equal("purelb-manager-5f9b-nzjs2"))
	g.Expect(shortened("purelb-manager-5f9b-nzjs2", 13)).To(Equal("purelb…-nzjs2"))
	g.Expect(shortened("ab", 1)).To(Equal("ab"))
}

// TestHasValues tells a panel that shows nothing from one that shows zero.
func TestHasValues(t *testing.T) {
	g := NewWithT(t)
	for value, want := range map[float64]bool{0: true, 1: true, math.Inf(1): false} {
		g.Expect(Panel{Lines: []Line{{"a", []Point{{0, math.NaN()}, {0, value}}}}}.HasValues()).To(Equal(want))
	}
	g.Expect(Panel{Lines: []Line{{"a", nil}}}.HasValues()).To(BeFalse())
}

// TestHighest ends an axis at a round number, as it is shown.
func TestHighest(t *testing.T) {
	g := NewWithT(t)
	for value, want := range map[float64]float64{0: 1, 1: 1, 3: 5, 7: 10, 0.3: 0.5, 120: 200} {
		g.Expect(highest("", []Line{{"", []Point{{0, value}, {0, math.Inf(1)}}}})).To(BeNumerically("~", want, 1e-9))
	}
	line := []Line{{"", []Point{{0, 70 << 20}}}}
	g.Expect(Format("bytes", highest("bytes", line))).To(Equal("100 MiB"))
}
