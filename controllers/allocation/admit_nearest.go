package allocation

import "strings"

// nearest guesses which known word was meant: the one from which the fewest
// letters differ, if they are few, or one that contains word.
func nearest(word string, known []string) (string, bool) {
	best, fewest := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < fewest {
			best, fewest = k, d
		}
	}
	if best != "" {
		return best, true
	}
	for _, k := range known {
		if len(word) > 3 && strings.Contains(k, word) {
			return k, true
		}
	}
	return "", false
}

// distance is Levenshtein's: how many letters must be added, dropped or
// replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
