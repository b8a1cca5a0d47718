package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGlossary looks up each word of these names in docs/reference/glossary.md.
func TestGlossary(t *testing.T) {
	page := read(t, "reference/glossary.md")
	entries := glossaryWords(t, page)
	for word, n := range entries {
		if n > 1 {
			t.Errorf("docs/reference/glossary.md explains %q %d times", word, n)
		}
	}
	wholeNames := rowsOfCode(sectionOf(t, page, "## Names that say something else than their words"))
	isUsed := map[string]bool{}
	for _, name := range namesOf(surfaceOf(t)) {
		words := splitName(name)
		for _, word := range words {
			isUsed[word] = true
		}
		if slices.Contains(wholeNames, name) {
			continue
		}
		for _, word := range words {
			if entries[word] == 0 {
				t.Errorf("docs/reference/glossary.md does not have %q, a word of %s", word, name)
			}
		}
	}
	for _, heading := range wordLists {
		for _, word := range listedWords(t, page, heading) {
			if !isUsed[word] {
				t.Errorf("docs/reference/glossary.md lists %q, which is in no name", word)
			}
		}
	}
}

// namesOf lists the names in lines of the surface: of fields the last part of the path, and the values.
func namesOf(surface []string) []string {
	var names []string
	for _, line := range surface {
		words := strings.Fields(strings.ReplaceAll(line, ",", " "))
		switch words[0] {
		case "kind":
			names = append(names, words[1])
		case "field":
			path := strings.Split(strings.ReplaceAll(words[2], "[]", ""), ".")
			names = append(names, path[len(path)-1])
			for _, value := range words[min(4, len(words)):] {
				if value != "required" {
					names = append(names, value)
				}
			}
		default:
			names = append(names, words[1:]...)
		}
	}
	return names
}

var (
	// endOfAcronym is where a word begins after one in capitals, as in BGPPeer.
	endOfAcronym = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	// startOfWord is where a word begins after one in small letters, as in nodeName.
	startOfWord = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	// oneWord are words that would be taken for two, and two that would be taken for one.
	oneWord = strings.NewReplacer("IPv", "Ipv", "MACs", "Macs", "v4pool", "v4_pool", "v6pool", "v6_pool")
)

// splitName takes a name apart, into words of small letters.
func splitName(name string) []string {
	name = endOfAcronym.ReplaceAllString(oneWord.Replace(name), "${1}_$2")
	name = strings.ToLower(startOfWord.ReplaceAllString(name, "${1}_$2"))
	return strings.FieldsFunc(name, func(r rune) bool { return !isWordRune(r) })
}

func isWordRune(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' }

// wordLists are the headings below which words stand without an explanation.
var wordLists = []string{"## Words of Kubernetes", "## Words of networks", "## Words in their plain sense"}

// explained is the first cell of a row that explains words.
var explained = regexp.MustCompile(`(?m)^\| ([a-z][a-z0-9, ]*) \|`)

// glossaryWords counts how often the page explains or lists each word.
func glossaryWords(t *testing.T, page string) map[string]int {
	t.Helper()
	words := map[string]int{}
	for _, match := range explained.FindAllStringSubmatch(page, -1) {
		if match[1] != "word" && match[1] != "name" { // the heads of tables
			for _, word := range splitName(match[1]) {
				words[word]++
			}
		}
	}
	for _, heading := range wordLists {
		for _, word := range listedWords(t, page, heading) {
			words[word]++
		}
	}
	return words
}

// listedWords are the words of the last paragraph below a heading.
func listedWords(t *testing.T, page, heading string) []string {
	t.Helper()
	paragraphs := strings.Split(strings.TrimSpace(sectionOf(t, page, heading)), "\n\n")
	return splitName(paragraphs[len(paragraphs)-1])
}

// sectionOf is the text between a heading and the next one.
func sectionOf(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("there is no %s", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// codeName is a name in the text of a page.
var codeName = regexp.MustCompile("`([^`]+)`")

// rowsOfCode lists the names in the first cells of tables, of which a cell may have several.
func rowsOfCode(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, match := range codeName.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, match[1])
		}
	}
	return names
}
