package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[99-i] = float64(i + 1)
	}
	for _, row := range []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"one", []float64{7}, 0.99, 7},
		{"median of an odd number", []float64{3, 1, 2}, 0.5, 2},
		{"median of an even number is the lower", []float64{4, 1, 2, 3}, 0.5, 2},
		{"least", []float64{3, 1, 2}, 0, 1},
		{"greatest", []float64{3, 1, 2}, 1, 3},
		{"p99 of a hundred", hundred, 0.99, 99},
		{"p99 of few is the greatest", []float64{1, 2, 3}, 0.99, 3},
	} {
		if got := Quantile(row.values, row.q); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
	if got := Quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}

func TestMerge(t *testing.T) {
	row := func(section, name string, n int) Row { return Row{Section: section, Case: name, N: n} }
	got := Merge([]Row{row("a", "x", 1), row("a", "y", 1)}, []Row{row("a", "y", 2), row("b", "x", 3)})
	want := []Row{row("a", "x", 1), row("a", "y", 2), row("b", "x", 3)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	first := Row{Section: "latency", Case: "x", Unit: "ms", N: 1, Values: map[string]float64{"p50": 1}}
	second := Row{Section: "latency", Case: "y", Unit: "ms", N: 2, Values: map[string]float64{"p50": 2}}
	other := Row{Section: "burst", Case: "x", Unit: "s", N: 3, Values: map[string]float64{"p50": 3}}
	for _, rows := range [][]Row{{first}, {second, other}} {
		if err := Add(dir, rows...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{MachineFile, AllFile} {
		if err := WriteJSON(filepath.Join(dir, name), Report{[]Row{{Section: "no section"}}}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Read(dir)
	if want := []Row{other, first, second}; err != nil || !reflect.DeepEqual(all.Rows, want) {
		t.Errorf("%v, %v, want %v", all.Rows, err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("a broken file: %v", err)
	}
}

func TestTable(t *testing.T) {
	values := map[string]float64{}
	Spread(values, "outage", []float64{30, 10.04, 2500})
	Spread(values, "moves", []float64{1, 0, 1})
	got := Table([]Row{
		{Section: "availability", Case: "holder dead", Unit: "ms", N: 3, Values: values},
		{
			Section: "latency", Case: "created → ingress", Unit: "ms", N: 50,
			Values: map[string]float64{"p99": 40.23, "p50": 0.0123},
		},
		{Section: "latency", Case: "x", N: 1, Values: map[string]float64{"p50": 5}},
	})
	want := `### availability

| case             | n   |             outage |     moves |
| ---------------- | --- | ------------------ | --------- |
| holder dead (ms) | 3 | 10.0 / 30 / 2500 | 0 / 1 / 1 |

### latency

| case                   | n   |   p50 |  p99 |
| ---------------------- | --- | ----- | ---- |
| created → ingress (ms) | 50 | 0.012 | 40.2 |
| x                      | 1 |     5 |      |

`
	squeeze := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, "-", "")), " ") }
	if squeeze(got) != squeeze(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "| x") &&
			len([]rune(line)) != len([]rune("| created → ingress (ms) | 50 | 0.012 | 40.2 |\n")) {
			t.Errorf("not aligned: %q", line)
		}
	}
}

func TestNumber(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 5: "5", 12.34: "12.3", 1.234: "1.23", 0.0456: "0.046", 1234.5: "1234", 0.5: "0.50",
	} {
		if got := formatNumber(value); got != want {
			t.Errorf("%v: %s, want %s", value, got, want)
		}
	}
}

func TestPlots(t *testing.T) {
	rows := []Row{
		{
			Section: "availability", Case: "A & B",
			Values: map[string]float64{"outageMin": 10, "outageMedian": 100, "outageMax": 1000},
		},
		{Section: "availability", Case: "no HTTP", Values: map[string]float64{"backMedian": 1}},
		{Section: "scale", Case: "100 nodes", Values: map[string]float64{"convergeMs": 20}},
	}
	outage, scale := OutagePlot(rows), ScalePlot(rows, "convergeMs", "T", "ms")
	if len(outage.Bars) != 1 || len(scale.Bars) != 1 || scale.Bars[0].Mid != 20 {
		t.Errorf("bars %v, %v", outage.Bars, scale.Bars)
	}
	for _, p := range []Plot{outage, scale, {Title: "empty"}, {Title: "empty", Log: true}} {
		decoder := xml.NewDecoder(strings.NewReader(p.SVG()))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", p.Title, err, p.SVG())
			}
		}
	}
	// A decade takes the same width everywhere, and the axis ends where the plot does.
	if a, b := outage.position(100)-outage.position(10),
		outage.position(1000)-outage.position(100); math.Abs(a-b) > 1e-6 || outage.position(1000) != plotWidth-plotRight {
		t.Errorf("logarithmic axis: %v, %v, %v", a, b, outage.position(1000))
	}
	if outage.position(0) != plotLeft || scale.position(0) != plotLeft || scale.position(20) != plotWidth-plotRight {
		t.Errorf("axes: %v, %v, %v", outage.position(0), scale.position(0), scale.position(20))
	}
}
