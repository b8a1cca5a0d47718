package file

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	if err := os.WriteFile(path+".new", []byte("left by a process that was killed, and long"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		replace func(string, []byte) error
		text    string
	}{{Replace, "one, which is longer"}, {ReplaceDurably, "two"}} {
		if err := c.replace(path, []byte(c.text)); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != c.text {
			t.Errorf("%q, %v", text, err)
		}
	}
	// A failure leaves no file behind.
	if err := os.Mkdir(filepath.Join(dir, "b.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "b.json"), []byte("x")); err == nil {
		t.Error("Replace has replaced a folder")
	}
	if err := Replace(filepath.Join(dir, "none", "c.json"), []byte("x")); err == nil {
		t.Error("Replace returns no error without the folder")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
