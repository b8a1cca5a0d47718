package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/purelb/purelb-operator/test/lab/internal/assets"
	"github.com/purelb/purelb-operator/test/lab/internal/node"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// EchoImage is the image of an HTTP server that every node has from the start. It listens
// on port 8080 and answers with its pod and node and the client's address. See
// images/echo.
const EchoImage = assets.EchoImage

// Exec runs a program in the network namespace of a host, "fabric" included,
// and returns its standard output. The error holds its standard error.
func (l *Lab) Exec(ctx context.Context, host string, argv ...string) (string, error) {
	full := ExecArgv(host, argv...)
	return runCommand(exec.CommandContext(ctx, full[0], full[1:]...))
}

// ExecArgv returns the command line that runs argv in the network namespace of a
// host.
func ExecArgv(host string, argv ...string) []string {
	return append([]string{"ip", "netns", "exec", Namespace(host)}, argv...)
}

// NodeExec runs a program in all namespaces of a node, so that it sees the
// node's own files and processes, and returns its standard output. "ctr" there
// talks to the node's containerd.
func (l *Lab) NodeExec(ctx context.Context, node string, argv ...string) (string, error) {
	full, err := l.NodeExecArgv(node, argv...)
	if err != nil {
		return "", err
	}
	return runCommand(exec.CommandContext(ctx, full[0], full[1:]...))
}

// NodeExecArgv returns the command line that runs argv in all namespaces of a node.
func (l *Lab) NodeExecArgv(node string, argv ...string) ([]string, error) {
	r, err := process.Read(l.pidFile(node))
	if err != nil {
		return nil, fmt.Errorf("enter %s: %w", node, err)
	}
	if !r.Alive() {
		return nil, fmt.Errorf("enter %s: the node does not run", node)
	}
	return append([]string{"nsenter", "--target", strconv.Itoa(r.PID),
		"--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--",
		"env", "CONTAINERD_NAMESPACE=k8s.io"}, argv...), nil
}

// LoadImage loads an image, in a tar file of the OCI's or Docker's kind, into
// every node.
func (l *Lab) LoadImage(ctx context.Context, tar string) error {
	return l.LoadImages(ctx, tar)
}

// LoadImages loads several images, as LoadImage loads one.
func (l *Lab) LoadImages(ctx context.Context, tars ...string) error {
	if len(tars) == 0 {
		return nil
	}
	for _, tar := range tars {
		if _, err := os.Stat(tar); err != nil {
			return fmt.Errorf("load an image: %w", err)
		}
	}
	nodes := l.plan().nodes()
	done := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() {
			var errs []error
			for _, tar := range tars {
				errs = append(errs, l.loadImage(ctx, n.Name, tar))
			}
			done <- errors.Join(errs...)
		}()
	}
	var errs []error
	for range nodes {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

func (l *Lab) loadImage(ctx context.Context, name, tar string) error {
	file, err := os.Open(tar)
	if err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	defer file.Close()
	argv, err := l.NodeExecArgv(name, append([]string{"ctr"}, node.ImportArgs()...)...)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdin = file // the file need not be visible in the node
	if _, err := runCommand(command); err != nil {
		return fmt.Errorf("load %s into %s: %w", tar, name, err)
	}
	return nil
}

// runCommand runs a command and returns its standard output. The error names the command
// and has its standard error.
func runCommand(command *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdout, err := command.Output()
	if err != nil {
		return string(stdout), fmt.Errorf("%s: %w: %s",
			strings.Join(command.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(stdout), nil
}

// lastLine returns the last line of a log, for the text of an error.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// addresses are the host's own, IPv4 first.
func (h Host) addresses() []netip.Addr {
	return []netip.Addr{h.IPv4.Addr(), h.IPv6.Addr()}
}

func joinPrefixes(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}
