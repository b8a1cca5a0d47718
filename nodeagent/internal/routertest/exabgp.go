package routertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// ExaBGP is ExaBGP in a network namespace. It has no routes of its own: it sends what it is told to.
type ExaBGP struct {
	log string
}

// StartExaBGP runs ExaBGP, which waits for its neighbours at an address of the namespace. A process "script" of its
// configuration is the shell script whose output it takes as commands. The script outlives ExaBGP unless it ends with
// its input, or because nobody reads its output.
func StartExaBGP(t testing.TB, where nstest.Neighbour, address, config, script string) *ExaBGP {
	t.Helper()
	if _, err := exec.LookPath("exabgp"); err != nil {
		t.Fatalf("this test needs ExaBGP (apt-get install exabgp): %v", err)
	}
	dir := t.TempDir()
	e := &ExaBGP{log: filepath.Join(dir, "exabgp.log")}
	for name, text := range map[string]string{
		"script":      "#!/bin/sh\n" + script,
		"exabgp.conf": fmt.Sprintf("process script { run %s/script; encoder text; }\n", dir) + config,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(e.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", where.PID()), "--", "env",
		"exabgp.tcp.bind="+address, "exabgp.daemon.drop=false", "exabgp.api.ack=false", "exabgp.api.cli=false",
		"exabgp", filepath.Join(dir, "exabgp.conf"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return e
}

// Log returns what ExaBGP has said.
func (e *ExaBGP) Log() string {
	text, _ := os.ReadFile(e.log)
	return string(text)
}
