package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestFindings(t *testing.T) {
	for _, row := range []struct{ message, finding string }{
		{"agent: renew the Lease only after a completed sync\n", ""},
		{"allocation tests: a reservation of another namespace", ""},
		{"gitops, scale: the checksums of what is imported\n\nThey changed.\n", ""},
		{"ipam/netbox: one question\n\nhttps://example.com/" + strings.Repeat("long", 40) + "\n", ""},
		{"go.mod: the next version of netlink", ""},
		{"Agent: renew the Lease", "areas in lower case"},
		{"renew the Lease", "areas in lower case"},
		{"agent:renew the Lease", "areas in lower case"},
		{"agent : renew the Lease", "areas in lower case"},
		{"", "areas in lower case"},
		{"Merge branch 'core'", "areas in lower case"},
		{"WIP tests", "joined with another one"},
		{"fixup! agent: renew the Lease", "joined with another one"},
		{"agent: renew the Lease.", "full stop"},
		{"agent: " + strings.Repeat("a", 94), "101 bytes, more than 100"},
		{"agent: " + strings.Repeat("a", 93), ""},
		{"agent: renew the Lease\nlater", "no empty line"},
		{"agent: renew the Lease\n\n" + strings.Repeat("later ", 20) + "a", "line of the body has 121 bytes"},
		{"agent: renew the Lease\n\n" + strings.Repeat("later ", 20), ""},
	} {
		found := strings.Join(findings(row.message), "; ")
		if row.finding == "" && found != "" || !strings.Contains(found, row.finding) {
			t.Errorf("%q: %q, want %q", row.message, found, row.finding)
		}
	}
}

// repository makes a repository with a commit for each message, and returns its folder.
func repository(t *testing.T, messages ...string) string {
	t.Helper()
	folder := t.TempDir()
	run(t, folder, "init", "--quiet")
	for _, message := range messages {
		run(t, folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=false",
			"commit", "--quiet", "--allow-empty", "--message", message)
	}
	return folder
}

func run(t *testing.T, folder string, arguments ...string) {
	t.Helper()
	if _, err := git(folder, arguments...); err != nil {
		t.Fatal(err)
	}
}

func TestCommitsAfterTheFirst(t *testing.T) {
	folder := repository(t, "Unjudged", "agent: first", "agent: second", "Wrong", "agent: third\n\nFine.", "also wrong")
	first, err := git(folder, "rev-parse", "HEAD~4")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	bad, err := check(&out, folder, strings.TrimSpace(first))
	if err != nil || bad != 2 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%d bad, %v, want 2:\n%s", bad, err, out.String())
	}
	for _, text := range []string{` "Wrong": the subject is not`, ` "also wrong": the subject is not`} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("does not say %q:\n%s", text, out.String())
		}
	}
}

func TestShallowClone(t *testing.T) {
	origin := repository(t, "agent: first", "Unjudged", "agent: second", "Wrong")
	clone := t.TempDir()
	run(t, clone, "clone", "--quiet", "--depth=2", "file://"+origin, ".")
	var out bytes.Buffer
	bad, err := check(&out, clone, first)
	if err != nil || bad != 1 {
		t.Fatalf("%d bad, %v, want 1:\n%s", bad, err, out.String())
	}
	for _, text := range []string{"only the last commit is checked", `"Wrong"`} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("does not say %q:\n%s", text, out.String())
		}
	}
}

func TestOtherRepository(t *testing.T) {
	if _, err := check(&bytes.Buffer{}, repository(t, "agent: first"), first); err == nil ||
		!strings.Contains(err.Error(), "is not in this repository") {
		t.Errorf("error %v", err)
	}
	if _, err := check(&bytes.Buffer{}, t.TempDir(), first); err == nil {
		t.Error("no error where no repository is")
	}
}
