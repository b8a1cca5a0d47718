package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alertRule is what the pages of docs/runbooks are held against, of one alert.
type alertRule struct {
	Alert       string `json:"alert"`
	For         string `json:"for"`
	Labels      map[string]string
	Annotations map[string]string
}

// readAlerts reads the alerts of the component for Prometheus.
func readAlerts(t *testing.T) []alertRule {
	t.Helper()
	var file struct {
		Spec struct {
			Groups []struct{ Rules []alertRule }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, root+"/config/components/prometheus/rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var alerts []alertRule
	for _, group := range file.Spec.Groups {
		alerts = append(alerts, group.Rules...)
	}
	if len(alerts) < 5 {
		t.Fatalf("only %d alerts were found", len(alerts))
	}
	return alerts
}

// runbookHeadings are those that each page of docs/runbooks has, in this order.
var runbookHeadings = []string{"Meaning", "Impact", "Diagnosis", "Cure"}

// TestRunbooks compares the pages of docs/runbooks with the alerts: each alert has a page, which
// says its severity and what it is about, and the other way around. kubectl purelb status names no others.
func TestRunbooks(t *testing.T) {
	var alerts []string
	index := read(t, "runbooks/README.md")
	for _, rule := range readAlerts(t) {
		alerts = append(alerts, rule.Alert)
		const base = "https://github.com/purelb/purelb-operator/blob/main/"
		path, ofProject := strings.CutPrefix(rule.Annotations["runbook_url"], base)
		if !ofProject || path != "docs/runbooks/"+rule.Alert+".md" {
			t.Errorf("%s: runbook_url is %s", rule.Alert, rule.Annotations["runbook_url"])
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Errorf("%s has no page: %v", rule.Alert, err)
			continue
		}
		var headings []string
		for _, match := range heading.FindAllStringSubmatch(string(text), -1) {
			headings = append(headings, match[1])
		}
		if want := append([]string{rule.Alert}, runbookHeadings...); !slices.Equal(headings, want) {
			t.Errorf("%s has the headings %q, not %q", path, headings, want)
		}
		holds := ", at once"
		if rule.For != "" {
			holds = ", after " + rule.For
		}
		severity, summary := rule.Labels["severity"], rule.Annotations["summary"]
		for _, want := range []string{"Severity: " + severity + holds + "\n", "\n" + summary + "\n"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not say %q", path, want)
			}
		}
		row := "| [" + rule.Alert + "](" + rule.Alert + ".md) | " + severity + " | " + summary + " |\n"
		if !strings.Contains(index, row) {
			t.Errorf("docs/runbooks/README.md has no row %q", row)
		}
	}
	named := regexp.MustCompile(`"(PureLB[A-Z]\w+)"`).
		FindAllStringSubmatch(read(t, root+"/cmd/kubectl-purelb/plugin/status.go"), -1)
	if len(named) < 10 {
		t.Errorf("kubectl purelb status names only %d alerts", len(named))
	}
	for _, match := range named {
		if !slices.Contains(alerts, match[1]) {
			t.Errorf("kubectl purelb status names %s: there is no such alert", match[1])
		}
	}
	pages, err := filepath.Glob("runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := strings.TrimSuffix(filepath.Base(page), ".md"); name != "README" && !slices.Contains(alerts, name) {
			t.Errorf("%s: there is no such alert", page)
		}
	}
}

// TestPluginCommands looks up the commands of kubectl purelb that pages name, and their flags.
// What a page of docs/runbooks shows of a command's output is in the golden file of a test of the
// plugin, but for lines that end in "…".
func TestPluginCommands(t *testing.T) {
	code := read(t, root+"/cmd/kubectl-purelb/commands.go")
	var commands [][]string
	row := regexp.MustCompile("(?m)^\\| `([a-z][^`]*)` \\|")
	for _, match := range row.FindAllStringSubmatch(read(t, "reference/kubectl-purelb.md"), -1) {
		words := wordsOf(match[1])
		commands = append(commands, words)
		for _, word := range words {
			if !regexp.MustCompile(`Use: +"` + word + `[" ]`).MatchString(code) {
				t.Errorf("docs/reference/kubectl-purelb.md: there is no command %s", word)
			}
		}
	}
	golden := readGolden(t)
	used := 0
	invocation := regexp.MustCompile("kubectl purelb ((?:[a-z][a-z-]*|--?[a-z-]+)[^`|#\n]*)")
	isRunbook := func(path string) bool { return isPage(path) && filepath.Base(filepath.Dir(path)) == "runbooks" }
	eachFile(t, isRunbook, func(path, text string) {
		for _, match := range invocation.FindAllStringSubmatch(text, -1) {
			used++
			words := wordsOf(match[1])
			if !slices.ContainsFunc(commands, func(command []string) bool {
				return len(words) >= len(command) && slices.Equal(words[:len(command)], command)
			}) {
				t.Errorf("%s: there is no command kubectl purelb %s", path, match[1])
			}
			for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(match[1], -1) {
				if !regexp.MustCompile(`Var\w*\(&[\w.]+, "` + flag[1] + `"`).MatchString(code) {
					t.Errorf("%s: kubectl purelb has no flag --%s", path, flag[1])
				}
			}
		}
		isOutput := false
		for line := range strings.Lines(text) {
			shown, isCode := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
			switch {
			case isOutput && shown == "": // an empty line of the output, or the end of it
			case !isCode || strings.HasPrefix(shown, "$"):
				isOutput = strings.HasPrefix(shown, "$ kubectl purelb ")
			case isOutput && !strings.HasSuffix(shown, "…") && !golden[shown]:
				t.Errorf("%s: no golden file of cmd/kubectl-purelb/plugin has the line %q", path, shown)
			}
		}
	})
	if used < 10 {
		t.Errorf("only %d uses of the plugin were found", used)
	}
}

// wordsOf returns the words of a command up to its first argument or flag.
func wordsOf(command string) []string {
	var words []string
	for word := range strings.FieldsSeq(command) {
		if !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(word) {
			break
		}
		words = append(words, word)
	}
	return words
}

// readGolden reads the lines that commands of the plugin print in its tests.
func readGolden(t *testing.T) map[string]bool {
	t.Helper()
	lines := map[string]bool{}
	eachGolden, err := filepath.Glob(root + "/cmd/kubectl-purelb/plugin/testdata/golden/*.txt")
	if err != nil || len(eachGolden) == 0 {
		t.Fatalf("golden files: %v, %v", eachGolden, err)
	}
	for _, path := range eachGolden {
		for line := range strings.Lines(read(t, path)) {
			lines[strings.TrimRight(line, "\n")] = true
		}
	}
	return lines
}
