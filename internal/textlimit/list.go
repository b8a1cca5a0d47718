package textlimit

import (
	"fmt"
	"slices"
	"strings"
)

// List joins up to most names, and says how many more there are: "a, b and 3 more".
func List(names []string, most int, separator string) string {
	if len(names) <= most {
		return strings.Join(names, separator)
	}
	return strings.Join(names[:most], separator) + " " + more(len(names)-most)
}

// First returns up to most texts and, if there are more, one that says how many.
func First(texts []string, most int) []string {
	if len(texts) <= most {
		return texts
	}
	return append(slices.Clone(texts[:most]), more(len(texts)-most))
}

func more(n int) string { return fmt.Sprintf("and %d more", n) }
