package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLinks follows the relative links of all pages, those to headings included.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pages := 0
	eachFile(t, func(path string) bool { return strings.HasSuffix(path, ".md") }, func(path, text string) {
		pages++
		for _, match := range link.FindAllStringSubmatch(prose(text), -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, "://") || strings.HasPrefix(file, "mailto:") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			content, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				err = nil
			}
			switch {
			case err != nil:
				t.Errorf("%s: there is no %s", path, match[1])
			case anchor != "" && !slices.Contains(anchors(string(content)), anchor):
				t.Errorf("%s: there is no heading for %s", path, match[1])
			}
		}
	})
	if pages < 20 {
		t.Errorf("only %d pages were found", pages)
	}
}

// TestIndex keeps every page of this folder in its index, or in that of its own folder.
func TestIndex(t *testing.T) {
	index := read(t, "README.md")
	for _, page := range []string{"runbooks/README.md"} {
		if !strings.Contains(index, "]("+page+")") {
			t.Errorf("docs/README.md does not name %s", page)
		}
		index += strings.ReplaceAll(read(t, page), "](", "]("+filepath.Dir(page)+"/")
	}
	isListed := func(path string) bool {
		return isPage(path) && strings.HasPrefix(path, filepath.Join(root, "docs")) && filepath.Base(path) != "README.md"
	}
	eachFile(t, isListed, func(path, _ string) {
		if page := filepath.ToSlash(strings.TrimPrefix(path, filepath.Join(root, "docs")+"/")); !strings.Contains(
			index, "]("+page+")",
		) {
			t.Errorf("docs/README.md does not name %s", page)
		}
	})
}

// TestCommands looks up the make targets and the end-to-end tests that pages name.
func TestCommands(t *testing.T) {
	targets := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(read(t, root+"/Makefile"), -1) {
		targets[match[1]] = true
	}
	var specs []string
	spec := regexp.MustCompile(`\b(?:Describe|Context|It|When)\("([^"]+)"`)
	isSpec := func(path string) bool {
		return strings.HasPrefix(path, filepath.Join(root, "test", "e2e")) && strings.HasSuffix(path, "_test.go")
	}
	eachFile(t, isSpec, func(_, text string) {
		container := ""
		for _, match := range spec.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(match[0], "Describe") {
				container = match[1]
			}
			specs = append(specs, container+" "+match[1])
		}
	})
	command := regexp.MustCompile("(?m)(?:`|^    )make ((?: *[a-z][a-z0-9-]*)+)")
	// In a command, or in the last column of the table of what moves cost.
	focus := []*regexp.Regexp{
		regexp.MustCompile(`ginkgo\.focus="?([^"'|\n]+)`),
		regexp.MustCompile("(?m)^\\|.* ms .*\\| `([^`]+)` \\|$"),
	}
	eachFile(t, isPage, func(path, text string) {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			for _, target := range strings.Fields(match[1]) {
				if !targets[target] {
					t.Errorf("%s: there is no make %s", path, target)
				}
			}
		}
		for _, form := range focus {
			for _, match := range form.FindAllStringSubmatch(text, -1) {
				named := strings.TrimSpace(match[1])
				if pattern := regexp.MustCompile(named); !slices.ContainsFunc(specs, pattern.MatchString) {
					t.Errorf("%s: there is no end-to-end test for %q", path, named)
				}
			}
		}
	})
	if len(specs) < 20 {
		t.Errorf("only %d end-to-end tests were found", len(specs))
	}
}

// TestReasonsOfCommands compares the commands that the Makefile documents with the table in CONTRIBUTING.md that says
// why each is there.
func TestReasonsOfCommands(t *testing.T) {
	var documented, explained []string
	for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(
		read(t, filepath.Join(root, "Makefile")), -1,
	) {
		documented = append(documented, match[1])
	}
	_, table, _ := strings.Cut(read(t, filepath.Join(root, "CONTRIBUTING.md")), "\n| commands | why |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.SplitSeq(table, "\n") {
		names, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, match := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(names, -1) {
			explained = append(explained, match[1])
		}
	}
	if len(documented) < 20 {
		t.Errorf("the Makefile documents %q", documented)
	}
	compare(t, "commands", explained, documented)
}

// TestPaths looks up the files and folders of the repository that pages name.
func TestPaths(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != "bin" && entry.Name() != "dist" {
			folders = append(folders, regexp.QuoteMeta(entry.Name()))
		}
	}
	named := regexp.MustCompile("`((?:" + strings.Join(folders, "|") + ")/[A-Za-z0-9_./*-]+)`")
	eachFile(t, isPage, func(path, text string) {
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			found, err := filepath.Glob(filepath.Join(root, match[1]))
			if err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", path, match[1])
			}
		}
	})
}

// isPage reports whether a file is a page, other than that of the lab, which is in a folder
// of its own and names what is there, and the changelog, which names what was.
func isPage(path string) bool {
	return strings.HasSuffix(path, ".md") && !strings.HasPrefix(path, filepath.Join(root, "test")) &&
		!strings.HasSuffix(path, "CHANGELOG.md")
}

// prose is a page without its blocks of code.
func prose(text string) string {
	return regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(text, "")
}

var heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)

// anchors are those that GitHub gives the headings of a page.
func anchors(text string) []string {
	var all []string
	seen := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(prose(text), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				return r
			default:
				return -1
			}
		}, strings.ToLower(match[1]))
		if seen[anchor]++; seen[anchor] > 1 {
			anchor += "-" + strconv.Itoa(seen[anchor]-1)
		}
		all = append(all, anchor)
	}
	return all
}
