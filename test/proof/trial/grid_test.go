package trial

import (
	"strings"
	"testing"
	"time"
)

// smallGrid has two things that happen and three columns, of which one has no value in the second row.
func smallGrid() Grid {
	return Grid{
		Rows: []string{"killed", "cut"}, Columns: []string{"A, BFD", "A", "B"},
		Cell: func(row, column string) string { return row + ": " + column },
		Reason: func(row, column string) string {
			if row == "cut" && column == "A" {
				return "it has no BFD"
			}
			return ""
		},
		Groups: []string{"all A", "all B"}, GroupOf: func(column string) string { return "all " + column[:1] },
		Shown: []string{"lost", "away, ms"},
	}
}

// cell is an experiment with two trials.
func cell(name string, lost, away float64) Experiment {
	figures := func(more float64) map[string]float64 {
		return map[string]float64{"lost": lost + more, "away, ms": away + more}
	}
	return Experiment{
		Name: name, Wanted: 2, AnyMachine: true, Trials: []Trial{{Figures: figures(0)}, {Figures: figures(2)}},
	}
}

const emptyGrid = "# Cells\n\n" + gridBegins + "\n" + gridEnds + "\nThe end.\n"

func TestGrid(t *testing.T) {
	g := smallGrid()
	first := Result{
		Command: "make cells", Commit: "aaa", Began: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
		Experiments: []Experiment{cell("killed: A", 1, 10), cell("killed: A, BFD", 0, 20), cell("cut: B", 3, 30)},
	}
	page, err := g.UpdatePage(emptyGrid, []Result{first})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Cells\n", "The end.\n",
		"| what happens | cells | all A | all B |\n|---|---|---|---|\n| killed | 2 | 3; 22 | – |\n| cut | 1 | – | 5; 32 |\n",
		"### killed\n\n| session | date | commit | n | away, ms | lost | verdict |\n|---|---|---|---|---|---|---|\n" +
			"| A, BFD | 2026-11-01 | aaa | 2 | 20 / 21 / 22 | 0 / 1 / 2 | green |\n" +
			"| A | 2026-11-01 | aaa | 2 | 10 / 11 / 12 | 1 / 2 / 3 | green |\n\nNot measured yet: B.\n",
		"\nWithout a value in 1 of 3 columns: it has no BFD.\n\nNot measured yet: A, BFD.\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks\n%s\nand is\n%s", want, page)
		}
	}

	// What is measured again replaces its line alone, and the summary follows.
	second := Result{
		Command: "make cells", Commit: "bbb", Began: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC),
		Experiments: []Experiment{cell("killed: A", 7, 70)},
	}
	again, err := g.UpdatePage(page, []Result{second})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| A, BFD | 2026-11-01 | aaa |", "| A | 2026-11-02 | bbb | 2 | 70 / 71 / 72 | 7 / 8 / 9 | green |",
		"| killed | 2 | 9; 72 |", "| B | 2026-11-01 | aaa |",
	} {
		if !strings.Contains(again, want) {
			t.Errorf("the page lacks\n%s\nand is\n%s", want, again)
		}
	}
	if strings.Contains(again, "| A | 2026-11-01 |") {
		t.Error("the old line of the cell is still there")
	}
	if same, err := g.UpdatePage(again, []Result{first, second}); err != nil || same != again {
		t.Errorf("an older result, given once more, replaces a newer one: %v\n%s", err, same)
	}
	if same, err := g.UpdatePage(again, nil); err != nil || same != again {
		t.Errorf("without results the page changes: %v\n%s", err, same)
	}
}

// TestGridOfBroken has the cell of an experiment that ended at once, which has no figures, before and after another
// cell of the same row has some.
func TestGridOfBroken(t *testing.T) {
	g := smallGrid()
	broken := cell("killed: A", 0, 0)
	broken.Trials = []Trial{{Broken: []string{"it | hangs"}}}
	r := Result{Command: "make cells", Commit: "aaa", Began: time.Unix(1e9, 0), Experiments: []Experiment{broken}}
	page, err := g.UpdatePage(emptyGrid, []Result{r})
	if err != nil {
		t.Fatal(err)
	}
	if want := `| A | 2001-09-09 | aaa | 1 | red; seed 0: it / hangs |`; !strings.Contains(page, want) {
		t.Errorf("the page lacks %s:\n%s", want, page)
	}
	r.Experiments = []Experiment{cell("killed: A, BFD", 1, 2)}
	if page, err = g.UpdatePage(page, []Result{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| A | 2001-09-09 | aaa | 1 | – | – | red; seed 0: it / hangs |", "| killed | 2, 1 not green | 3; 4 | – |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	if _, err := g.UpdatePage("# No marks\n", []Result{r}); err == nil {
		t.Error("a page without marks is no error")
	}
}
