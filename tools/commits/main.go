// Command commits fails if the message of a commit does not have the form that CONTRIBUTING.md asks for.
//
// It looks at all commits of HEAD but merges that are not in the history of the commit first, from which
// on the form is asked for. In a shallow clone, which may not have that commit, it looks at HEAD alone,
// and says so.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// first is the last commit whose form, and that of its ancestors, is not judged.
const first = "77931c3173059d83238ec7e9464659ace198fd61"

func main() {
	bad, err := check(os.Stdout, ".", first)
	if err != nil {
		fmt.Fprintln(os.Stderr, "commits:", err)
		os.Exit(2)
	}
	if bad > 0 {
		fmt.Fprintf(
			os.Stderr, "commits: %d without the form that CONTRIBUTING.md asks for; git rebase -i, or git commit --amend\n", bad,
		)
		os.Exit(1)
	}
}

// check writes to out what is wrong with the commits of the repository that are not in the history of the
// commit first, and returns how many have a finding.
func check(out io.Writer, repository, first string) (int, error) {
	commits := []string{first + "..HEAD"}
	if !has(repository, first) {
		if shallow, err := git(repository, "rev-parse", "--is-shallow-repository"); err != nil ||
			strings.TrimSpace(shallow) != "true" {
			return 0, fmt.Errorf("commit %s, from which on messages are checked, is not in this repository", first)
		}
		fmt.Fprintln(out, "commits: the clone is shallow, so only the last commit is checked")
		commits = []string{"-1", "HEAD"}
	}
	messages, err := git(repository, append([]string{"log", "-z", "--no-merges", "--format=%h %B"}, commits...)...)
	if err != nil {
		return 0, err
	}
	bad := 0
	for entry := range strings.SplitSeq(messages, "\x00") {
		hash, message, ok := strings.Cut(entry, " ")
		if !ok {
			continue // nothing follows the last commit
		}
		found := findings(message)
		if len(found) == 0 {
			continue
		}
		bad++
		subject, _, _ := strings.Cut(message, "\n")
		fmt.Fprintf(out, "%s %q: %s\n", hash, subject, strings.Join(found, "; "))
	}
	return bad, nil
}

// has says whether the repository has the commit.
func has(repository, commit string) bool {
	_, err := git(repository, "cat-file", "-e", commit+"^{commit}")
	return err == nil
}

// git returns what git says in the repository.
func git(repository string, arguments ...string) (string, error) {
	command := exec.Command("git", append([]string{"-C", repository}, arguments...)...)
	output, err := command.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("git %s: %s", arguments[0], strings.TrimSpace(string(failed.Stderr)))
	}
	return string(output), err
}
