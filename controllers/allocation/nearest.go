package allocation

import "strings"

// maxGuessedLength is the length in bytes of the longest word for which nearestWord
// guesses: no name of Kubernetes is longer. The time that a guess takes grows with the
// square of the length.
const maxGuessedLength = 253

// nearestWord guesses which known word was meant by word: the one that differs in the
// fewest letters, if these are at most a third, or one that contains word.
func nearestWord(word string, known []string) (string, bool) {
	if len(word) > maxGuessedLength {
		return "", false
	}
	best, fewest := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if more := len(k) - len(word); more >= fewest || -more >= fewest {
			continue // the lengths alone differ by too many letters
		}
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < fewest {
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

// editDistance is how many letters must be added, dropped or replaced to turn a into b
// (Levenshtein's distance).
func editDistance(a, b string) int {
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
