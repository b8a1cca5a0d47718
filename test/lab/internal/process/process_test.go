package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 38952 10288 0"
	for _, tc := range []struct {
		name, text string
		want       stat
		wantErr    bool
	}{
		{"plain", "7 (kubelet)" + rest, stat{'S', 4242}, false},
		{"brackets and spaces in the name", "7 (a) Z 1 (b)" + rest, stat{'S', 4242}, false},
		{"no name", "7 kubelet S 1", stat{}, true},
		{"cut off", "7 (kubelet) S 1 7", stat{}, true},
		{"empty", "", stat{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseStat(tc.text)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("parseStat = %+v, %v; want %+v, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestRecycledPIDIsNotKilled(t *testing.T) {
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })

	r, err := RecordOf(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stale := r
	stale.StartTime-- // the process that had this pid before
	pidFile := filepath.Join(t.TempDir(), "pid")
	if err := stale.Write(pidFile); err != nil {
		t.Fatal(err)
	}
	if Alive(pidFile) {
		t.Error("a stale pid file counts as alive")
	}
	if err := Kill(t.Context(), pidFile); err != nil {
		t.Fatal(err)
	}
	if !r.Alive() {
		t.Error("the process that now has the pid was killed")
	}
}

func TestStartAndKill(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	if err := Start(pidFile, filepath.Join(dir, "log"), "sh", "-c", "echo hello; exec sleep 600"); err != nil {
		t.Fatal(err)
	}
	if !Alive(pidFile) {
		t.Error("not alive after Start")
	}
	for range 2 { // the second time there is nothing to do
		if err := Kill(t.Context(), pidFile); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(pidFile); !os.IsNotExist(err) {
		t.Errorf("the pid file is still there: %v", err)
	}
}
