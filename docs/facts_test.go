package docs_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// globbed returns the texts of files, all of which are there.
func globbed(t *testing.T, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %q, %v", pattern, paths, err)
	}
	texts := map[string]string{}
	for _, path := range paths {
		texts[path] = read(t, path)
	}
	return texts
}

// found returns what the first group of a form matches in texts, each once and sorted.
func found(texts map[string]string, form string) []string {
	var all []string
	for _, text := range texts {
		for _, match := range regexp.MustCompile(form).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// facts are what manifests and code have, by the noun that pages use for it.
type facts map[string][]string

func factsOf(t *testing.T) facts {
	t.Helper()
	crds := globbed(t, "config/crd/bases/*.yaml")
	withConditions := map[string]string{}
	for path, text := range crds {
		if strings.Contains(text, "              conditions:\n") {
			withConditions[path] = text
		}
	}
	policies := globbed(t, "config/policy/*.yaml")
	monitors := globbed(t, "config/components/prometheus/monitors.yaml")
	return facts{
		"kinds":                 found(crds, `(?m)^    kind: (\w+)$`),
		"kinds with conditions": found(withConditions, `(?m)^    kind: (\w+)$`),
		"policies":              found(policies, `(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (\S+)$`),
		"FlowSchemas":           found(policies, `(?m)^kind: FlowSchema\nmetadata:\n  name: (\S+)$`),
		"ServiceMonitors":       found(monitors, `(?m)^kind: ServiceMonitor\nmetadata:\n  name: (\S+)$`),
		"alerts":                found(globbed(t, "config/components/prometheus/rules.yaml"), `(?m)^ *- alert: (\S+)$`),
		"components":            found(globbed(t, "config/components/*/kustomization.yaml"), `(?m)^kind: (Component)$`),
		"ports of the node":     found(globbed(t, "controllers/*/daemonset.go"), `(?:MetricsPort|HealthPort): +(\d+)`),
		"ports of the manager":  found(globbed(t, "config/manager/manager.yaml"), `containerPort: (\d+)`),
	}
}

// TestNumbers compares each number of things that a page states with how many there are.
func TestNumbers(t *testing.T) {
	all := factsOf(t)
	counts := map[string]int{
		"kinds": len(all["kinds"]), "CRDs": len(all["kinds"]), "CustomResourceDefinitions": len(all["kinds"]),
		"kinds that have conditions": len(all["kinds with conditions"]), "policies": len(all["policies"]),
		"ValidatingAdmissionPolicies": len(all["policies"]), "FlowSchemas": len(all["FlowSchemas"]),
		"ServiceMonitors": len(all["ServiceMonitors"]), "monitors": len(all["ServiceMonitors"]), "alerts": len(all["alerts"]),
	}
	words := []string{
		"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
	}
	var nouns []string
	for noun := range counts {
		nouns = append(nouns, noun)
	}
	slices.SortFunc(nouns, func(x, y string) int { return len(y) - len(x) }) // the longest noun counts
	stated := regexp.MustCompile(`\b(?i:(` + strings.Join(words, "|") + `|\d+)) (?:` + "`?" + `purelb\.io` + "`? )?(" +
		strings.Join(nouns, "|") + `)\b`)
	// What a page counts that is not all there is.
	partial := []string{
		"For two kinds, make two groups", "edits of\nusers and administrators, 41 kinds in all",
	}
	numbers := 0
	eachFile(t, isPage, func(path, text string) {
		for _, p := range partial {
			text = strings.ReplaceAll(text, p, "")
		}
		for _, match := range stated.FindAllStringSubmatch(text, -1) {
			n, err := strconv.Atoi(match[1])
			if err != nil {
				n = slices.Index(words, strings.ToLower(match[1]))
			}
			numbers++
			if n != counts[match[2]] {
				t.Errorf("%s says %q, and there are %d", path, match[0], counts[match[2]])
			}
		}
	})
	if numbers < 3 {
		t.Errorf("only %d numbers were found", numbers)
	}
}

// TestNamesOfManifests compares lists of names in pages with the manifests.
func TestNamesOfManifests(t *testing.T) {
	all := factsOf(t)
	section := func(page, begin, end string) map[string]string {
		_, text, isThere := strings.Cut(read(t, page), begin)
		if !isThere {
			t.Errorf("%s has no %q", page, begin)
		}
		text, _, _ = strings.Cut(text, end)
		return map[string]string{page: text}
	}
	kinds := section("concepts.md", "\n## The kinds\n", "\n## ")
	compare(t, "kinds in concepts.md", found(kinds, `(?m)^\| \*\*(\w+)\*\* \|`), all["kinds"])

	health := section("how-to/gitops.md", "\n## Argo CD\n", "```lua")
	checked := found(health, `customizations\.health\.purelb\.io_(\w+)`)
	compare(t, "kinds for Argo CD", checked, all["kinds with conditions"])

	made := section("how-to/install.md", "\n## What the manager makes by itself\n", "\n## ")
	policies := section("how-to/install.md", "| ValidatingAdmissionPolicies ", " with a binding")
	compare(t, "policies in install.md", found(policies, "`(purelb-[a-z]+)`"), all["policies"])
	compare(t, "FlowSchemas in install.md", found(made, "(?m)^\\| FlowSchemas `(purelb-[a-z]+)`, `purelb-[a-z]+`"),
		all["FlowSchemas"][:1])

	ports := found(section("reference/requirements.md", "\n## Ports\n", "\n## "), `(?m)^\| (\d+) \|`)
	for _, port := range append(slices.Clone(all["ports of the node"]), all["ports of the manager"]...) {
		if !slices.Contains(ports, port) {
			t.Errorf("the table of ports lacks %s", port)
		}
	}
	for _, page := range []string{"how-to/install.md", "troubleshooting.md"} {
		for _, port := range all["ports of the node"] {
			if !strings.Contains(read(t, page), port) {
				t.Errorf("%s does not name port %s", page, port)
			}
		}
	}

	var folders []string
	for path := range globbed(t, "config/components/*/kustomization.yaml") {
		folders = append(folders, filepath.Base(filepath.Dir(path)))
	}
	compare(t, "components in install.md", found(section("how-to/install.md", "\n## Components\n", "\n## OpenShift"),
		`(?m)^    make deploy COMPONENTS=([a-z-]+)$`), folders)
}

// TestAmbiguousKind wants commands to say whose BGPPeers they mean: MetalLB and Calico have some, too.
func TestAmbiguousKind(t *testing.T) {
	command := regexp.MustCompile(`kubectl [^\n]*\bbgppeers\b(\.purelb\.io)?`)
	eachFile(t, isPage, func(path, text string) {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			if match[1] == "" {
				t.Errorf("%s: %q may mean BGPPeers of others: write bgppeers.purelb.io", path, match[0])
			}
		}
	})
}

// TestMap wants each folder with Go code on the map of CONTRIBUTING.md.
func TestMap(t *testing.T) {
	_, text, _ := strings.Cut(read(t, filepath.Join(root, "CONTRIBUTING.md")), "\n## Layout\n")
	text, _, _ = strings.Cut(text, "\n### ")
	seen := map[string]bool{}
	isCode := func(path string) bool { return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") }
	eachFile(t, isCode, func(path, _ string) {
		folder := filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, root+"/")))
		if first, _, _ := strings.Cut(folder, "/"); seen[folder] || first == "test" || first == "tools" || first == "." {
			return
		}
		seen[folder] = true
		parts := strings.Split(folder, "/")
		short := strings.Join(parts[max(0, len(parts)-2):], "/")
		if !strings.Contains(text, "`"+folder+"`") && !strings.Contains(text, "`"+short+"`") {
			t.Errorf("CONTRIBUTING.md does not say what is in %s", folder)
		}
	})
	if len(seen) < 30 {
		t.Errorf("only %d folders were found", len(seen))
	}
}

// TestPatience compares the table of docs/reference/placement.md of how long each node is waited for with the constants
// and functions that its rows name.
func TestPatience(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "reference/placement.md"), "\n## How long a node is waited for\n")
	section, _, _ = strings.Cut(section, "\n## ")
	code := map[string]string{}
	for _, folder := range []string{"controllers", "controllers/*", "nodeagent/plan", "nodeagent/watch"} {
		maps.Copy(code, globbed(t, folder+"/*.go"))
	}
	units := strings.NewReplacer(
		" * time.Second", " s", " * time.Millisecond", " ms", "time.Second", "1 s", "time.Minute", "1 min",
	)
	row := regexp.MustCompile(
		`(?m)^\| [^|]+ \| ([^|]+) \| [^|]+ \| ([^|]+) \| (.+) in ` + "`([^`]+)`, (.+)" + ` \| [^|]*\|$`,
	)
	rows := row.FindAllStringSubmatch(section, -1)
	if len(rows) != strings.Count(section, "\n| ")-1 || len(rows) == 0 {
		t.Fatalf("%d of the rows name a constant, its file and a function: %q", len(rows), section)
	}
	for _, cells := range rows {
		howLong, file := cells[1]+" "+cells[2], code[filepath.Join(root, cells[4])]
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[3], -1) {
			value := regexp.MustCompile(`(?m)^(?:const|\t)\s*` + name[1] + ` += (.+)$`).FindStringSubmatch(file)
			if value == nil {
				t.Errorf("%s: no constant %s", cells[4], name[1])
				continue
			}
			want := units.Replace(value[1])
			if n, err := strconv.Atoi(want); err == nil && strings.HasSuffix(name[1], "Heartbeat") {
				want = strconv.Itoa(n*v1.HeartbeatsPerLease) + " s"
			}
			if !regexp.MustCompile(`\b` + want + `\b`).MatchString(howLong) {
				t.Errorf("%s is %s, and the row says %q", name[1], want, howLong)
			}
		}
		for _, name := range regexp.MustCompile("`(?:\\w+\\.)?(\\w+)`").FindAllStringSubmatch(cells[5], -1) {
			if len(found(code, `(?m)^func (?:\([^)]+\) )?(`+name[1]+`)\(`)) == 0 {
				t.Errorf("no function %s", name[1])
			}
		}
	}
}
