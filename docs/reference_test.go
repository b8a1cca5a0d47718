package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/buildinfo"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/speaker"
)

// codeFolders have the constants that users see.
var codeFolders = []string{"api", "cmd", "config", "controllers", "nodeagent", "webhooks"}

// kinds of constants, by their names.
var (
	isEvent      = regexp.MustCompile(`^[eE]vent[A-Z]`)
	isReason     = regexp.MustCompile(`^[rR]eason[A-Z]`)
	isCondition  = regexp.MustCompile(`^[cC]ondition[A-Z]`)
	isState      = regexp.MustCompile(`^State[A-Z]`)
	isAnnotation = regexp.MustCompile(`^(Annotation|Label)[A-Z]`)
)

// TestReasons compares the tables of docs/reference/conditions.md with the constants.
func TestReasons(t *testing.T) {
	wanted := constants(t, isReason)
	for _, table := range []struct {
		heading string
		want    []string
	}{
		{"## Condition types", constants(t, isCondition)},
		{"## States of an address on a node", constants(t, isState)},
	} {
		compare(t, table.heading, section(t, "conditions.md", table.heading), table.want)
	}
	var listed []string
	page := read(t, "reference/conditions.md")
	for heading := range strings.Lines(page) {
		heading = strings.TrimSpace(heading)
		if strings.HasPrefix(heading, "## Reasons") {
			listed = append(listed, section(t, "conditions.md", heading)...)
		}
	}
	compare(t, "reasons", listed, wanted)
}

// TestReasonsAreConstants keeps reasons from being written where TestReasons does not
// see them.
func TestReasonsAreConstants(t *testing.T) {
	literal := regexp.MustCompile(`\bReason(: +|, [^=]*= |\s*= )"`)
	eachCodeFile(t, func(path, text string) {
		for _, found := range literal.FindAllString(text, -1) {
			t.Errorf("%s: a reason that is no constant: %s…", path, found)
		}
	})
}

// TestEvents compares the table of docs/reference/events.md with the constants. Events
// may also have reasons of conditions.
func TestEvents(t *testing.T) {
	listed := rows(read(t, "reference/events.md"))
	alsoReasons := constants(t, isReason)
	listed = slices.DeleteFunc(listed, func(name string) bool { return slices.Contains(alsoReasons, name) })
	compare(t, "events", listed, constants(t, isEvent))
}

// TestPhases compares the table of phases in docs/reference/placement.md with the phases.
func TestPhases(t *testing.T) {
	var want []string
	page := read(t, "reference/placement.md")
	for _, p := range placement.Phases {
		want = append(want, string(p.Phase))
		if row := "| `" + string(p.Phase) + "` | " + p.Meaning + " |\n"; !strings.Contains(page, row) {
			t.Errorf("placement.md does not have the row %s", row)
		}
	}
	compare(t, "phases", section(t, "placement.md", "## Phases of a Local address"), want)
}

// TestAnnotations compares the tables of docs/reference/annotations.md with the
// constants.
func TestAnnotations(t *testing.T) {
	compare(t, "annotations and labels", rows(read(t, "reference/annotations.md")), constants(t, isAnnotation))
}

// TestMetrics compares the tables of docs/reference/metrics.md with what the manager
// and the agents register: names, types and labels.
func TestMetrics(t *testing.T) {
	manager, agent, ofSpeaker := &registry{}, &registry{}, &registry{}
	controllers.NewMetrics(manager)
	nodeagent.NewMetrics(agent)
	speaker.NewMetrics(ofSpeaker)
	buildinfo.Register(ofSpeaker, "")
	listed := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(purelb_[a-z_]+)` \\| [a-z]+ \\|([^|]*)\\|")
	for _, match := range row.FindAllStringSubmatch(read(t, "reference/metrics.md"), -1) {
		listed[match[1]] = strings.ReplaceAll(strings.TrimSpace(match[2]), "`", "")
	}
	want := maps.Clone(manager.metrics)
	maps.Copy(want, agent.metrics)
	maps.Copy(want, ofSpeaker.metrics)
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("docs/reference/metrics.md (-code +page):\n%s", diff)
	}
}

// registry notes the labels of the metrics that are registered, by their names.
type registry struct{ metrics map[string]string }

var description = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// firstCell is the first cell of a row of a table, if it is a name.
var firstCell = regexp.MustCompile("(?m)^\\| `([A-Za-z][A-Za-z0-9./-]*)`(?:: [^|]*)? \\|")

// rows lists the names in the first cells of tables.
func rows(text string) []string {
	var names []string
	for _, match := range firstCell.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// section lists the names in the tables below one heading of a page of the reference.
func section(t *testing.T, page, heading string) []string {
	t.Helper()
	_, text, found := strings.Cut(read(t, "reference/"+page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/reference/%s has no %s", page, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return rows(text)
}

func compare(t *testing.T, what string, listed, want []string) {
	t.Helper()
	for _, names := range [][]string{listed, want} {
		slices.Sort(names)
	}
	if diff := cmp.Diff(slices.Compact(slices.Clone(want)), slices.Compact(slices.Clone(listed))); diff != "" {
		t.Errorf("%s (-code +page):\n%s", what, diff)
	}
	if len(want) == 0 {
		t.Errorf("%s: there are none in the code", what)
	}
}

// byDefault is the reason in a marker of the API types, which no constant can be in.
var byDefault = regexp.MustCompile(`\+kubebuilder:default=.*reason: "([A-Za-z]+)"`)

// constants returns the values of the string constants that have such names.
func constants(t *testing.T, named *regexp.Regexp) []string {
	t.Helper()
	var values []string
	eachCodeFile(t, func(path, text string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if general, ok := decl.(*ast.GenDecl); ok && general.Tok == token.CONST {
				values = append(values, literals(general, named)...)
			}
		}
		if named == isReason {
			for _, match := range byDefault.FindAllStringSubmatch(text, -1) {
				values = append(values, match[1])
			}
		}
	})
	return values
}

func literals(decl *ast.GenDecl, named *regexp.Regexp) []string {
	var values []string
	for _, spec := range decl.Specs {
		constant, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for i, value := range constant.Values {
			literal, ok := value.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || !named.MatchString(constant.Names[i].Name) {
				continue
			}
			if text, err := strconv.Unquote(literal.Value); err == nil {
				values = append(values, text)
			}
		}
	}
	return values
}

func (r *registry) Register(c prometheus.Collector) error {
	if r.metrics == nil {
		r.metrics = map[string]string{}
	}
	descriptions := make(chan *prometheus.Desc, 16)
	c.Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		if found := description.FindStringSubmatch(d.String()); found != nil {
			r.metrics[found[1]] = strings.ReplaceAll(found[2], ",", ", ")
		}
	}
	return nil
}

func (r *registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = r.Register(c)
	}
}

func (r *registry) Unregister(prometheus.Collector) bool { return false }
