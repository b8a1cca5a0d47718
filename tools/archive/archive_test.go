package archive

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var modified = time.Unix(1_700_000_000, 0)

func TestTarGzip(t *testing.T) {
	files := []File{{"b/program", []byte("program"), 0o755}, {"a", []byte("text"), 0o644}}
	first, err := TarGzip(files, modified)
	if err != nil {
		t.Fatal(err)
	}
	second, err := TarGzip(files, modified.In(time.FixedZone("", 3600)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same files differ")
	}
	if flags, seconds := first[3], first[4:8]; flags != 0 || !bytes.Equal(seconds, make([]byte, 4)) {
		t.Errorf("the header of gzip has the flags %x and the time %x", flags, seconds)
	}
	got, err := Untar(first)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Error(diff)
	}
}

// TestFolder reads two folders that differ in all that must not count: permissions, times, and the order in which
// the files were made.
func TestFolder(t *testing.T) {
	read := func(names []string, plain, program os.FileMode) []File {
		folder := t.TempDir()
		for i, name := range names {
			path := filepath.Join(folder, name)
			mode := plain
			if filepath.Base(name) == "program" {
				mode = program
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Time{}, modified.Add(time.Duration(i)*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		files, err := Folder(folder, "chart")
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	got := read([]string{"b/program", "a.yaml"}, 0o600, 0o700)
	want := []File{{"chart/a.yaml", []byte("a.yaml"), 0o644}, {"chart/b/program", []byte("b/program"), 0o755}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(got, read([]string{"a.yaml", "b/program"}, 0o664, 0o775)); diff != "" {
		t.Error(diff)
	}
}

func TestFolderRefusesLinks(t *testing.T) {
	folder := t.TempDir()
	if err := os.Symlink("elsewhere", filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if files, err := Folder(folder, ""); err == nil {
		t.Errorf("got %v", files)
	}
}
