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

// ListWithin joins texts with commas; if they do not fit into maxBytes, it says how many more there are.
func ListWithin(texts []string, maxBytes int) string {
	joinedLength := len(texts) - 1
	for _, text := range texts {
		joinedLength += len(text)
	}
	if joinedLength <= maxBytes {
		return strings.Join(texts, ",")
	}
	room := maxBytes - len(more(len(texts))) - len(" ")
	length, n := 0, 0
	for n < len(texts) && length+len(texts[n])+len(",") <= room {
		length += len(texts[n]) + len(",")
		n++
	}
	if n == 0 {
		return fmt.Sprintf("%d more", len(texts))
	}
	return List(texts, n, ",")
}

// Texts returns the texts of items.
func Texts[T fmt.Stringer](items []T) []string {
	var texts []string
	for _, item := range items {
		texts = append(texts, item.String())
	}
	return texts
}

func more(n int) string { return fmt.Sprintf("and %d more", n) }
