// Package vm runs test binaries as root in a virtual machine with a kernel of
// Debian's: for what the kernel of this machine may lack, such as the link type
// dummy. It needs no hardware virtualisation, and uses none: what a machine offers as such may not be able to
// run this kernel.
package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/debian"
)

// Options say what to run.
type Options struct {
	// CacheDir is where the kernel is kept.
	CacheDir string
	// Binaries are test binaries, linked statically. "PATH:PATTERN" is those of the
	// binary's tests that match the regular expression.
	Binaries []string
	// Console gets all that the machine prints, when it has ended.
	Console io.Writer
	// Say is called with each step, and with how many tests of each binary passed.
	Say func(string)
}

// timeout is several times what the machine and the tests take.
const timeout = 15 * time.Minute

// modules of the kernel, in the order in which they need each other.
var modules = []string{
	"drivers/net/dummy.ko numdummies=0", "drivers/net/veth.ko", "drivers/net/tun.ko", "drivers/net/ifb.ko numifbs=0",
	"net/llc/llc.ko", "net/802/stp.ko", "net/bridge/bridge.ko",
	"net/802/garp.ko", "net/802/mrp.ko", "net/8021q/8021q.ko", "net/sched/sch_tbf.ko",
	"net/tls/tls.ko", "drivers/net/bonding/bonding.ko max_bonds=0",
}

// tools that the tests run.
var tools = []string{"ip", "bridge", "tc", "nsenter", "arping"}

// Run boots the machine and runs each of the binaries in it. It fails if one of
// them does, runs no test, or skips one.
func Run(ctx context.Context, options Options) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := debian.EnsureVM(ctx, options.Say); err != nil {
		return err
	}
	kernel, err := debian.Kernel(ctx, options.CacheDir, options.Say)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "purelb-vm-")
	if err != nil {
		return fmt.Errorf("make a folder for the machine: %w", err)
	}
	defer os.RemoveAll(dir)
	image, err := initrd(ctx, dir, kernel, options.Binaries)
	if err != nil {
		return err
	}
	options.Say("starting a virtual machine with " + kernel.Name)
	begun := time.Now()
	command := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-m", "512", "-smp", "1",
		"-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", kernel.Image, "-initrd", image,
		// On a busy machine the timer of the machine is late, and its kernel would take it for broken. By itself
		// this kernel reads the time from a device, which QEMU emulates at each reading; here it reads the processor's
		// counter.
		"-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off no_timer_check "+
			"clocksource=tsc tsc=reliable")
	out, err := command.CombinedOutput()
	text := strings.ReplaceAll(string(out), "\r", "")
	if _, printErr := io.WriteString(options.Console, text); printErr != nil {
		return fmt.Errorf("print what the virtual machine printed: %w", printErr)
	}
	if err != nil {
		return fmt.Errorf("run the virtual machine: %w", err)
	}
	report, err := judge(text, options.Binaries)
	for _, line := range report {
		options.Say(line)
	}
	if err != nil {
		return err
	}
	options.Say(fmt.Sprintf("the virtual machine took %s", time.Since(begun).Round(100*time.Millisecond)))
	return nil
}

// Lines that the machine prints before and after each binary.
const (
	beginLine = "VM-BEGIN "
	endLine   = "VM-END "
)

// judge reads what the machine has printed: of each binary, how many tests have
// passed. What has not ended well has failed.
func judge(text string, binaries []string) (report []string, err error) {
	passed, skipped, status, current := map[string]int{}, map[string]int{}, map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, beginLine):
			current = strings.TrimPrefix(line, beginLine)
		case strings.HasPrefix(line, endLine):
			name, code, _ := strings.Cut(strings.TrimPrefix(line, endLine), " ")
			status[name] = code
		case strings.HasPrefix(line, "--- PASS: "):
			passed[current]++
		case strings.HasPrefix(line, "--- SKIP: Test"):
			skipped[current]++
		}
	}
	var errs []error
	for _, binary := range binaries {
		path, _ := split(binary)
		name := filepath.Base(path)
		switch {
		case status[name] == "":
			errs = append(errs, fmt.Errorf("%s has not come to an end", name))
		case status[name] != "0":
			errs = append(errs, fmt.Errorf("%s has failed (%s)", name, status[name]))
		case skipped[name] > 0:
			errs = append(errs, fmt.Errorf("%s has skipped %d tests", name, skipped[name]))
		case passed[name] == 0:
			errs = append(errs, fmt.Errorf("%s has run no test", name))
		default:
			report = append(report, fmt.Sprintf("%s: %d tests passed", name, passed[name]))
		}
	}
	return report, errors.Join(errs...)
}

// split splits "PATH:PATTERN"; without a pattern it is all tests.
func split(binary string) (path, pattern string) {
	path, pattern, found := strings.Cut(binary, ":")
	if !found {
		pattern = "."
	}
	return path, pattern
}

// initrd makes the machine's file system.
func initrd(ctx context.Context, dir string, kernel debian.KernelFiles, binaries []string) (string, error) {
	root := filepath.Join(dir, "root")
	var script strings.Builder
	script.WriteString(
		"#!/bin/sh\n/bin/busybox --install -s /bin\nmount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs " +
			"dev /dev; mount -t tmpfs tmp /tmp\n",
	)
	copies := map[string]string{"/bin/busybox": "/bin/busybox"}
	if path, err := exec.LookPath("busybox"); err == nil {
		copies["/bin/busybox"] = path
	}
	for _, m := range modules {
		file, options, _ := strings.Cut(m, " ")
		name := "/modules/" + filepath.Base(file)
		copies[name] = filepath.Join(kernel.Modules, "kernel", file)
		fmt.Fprintf(&script, "insmod %s %s || echo cannot load %s\n", name, options, file)
	}
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", tool, err)
		}
		copies["/sbin/"+tool] = path
		libraries, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			return "", fmt.Errorf("list what %s needs: %w", tool, err)
		}
		for field := range strings.FieldsSeq(string(libraries)) {
			if filepath.IsAbs(field) {
				copies[field] = field
			}
		}
	}
	// what the machine has printed so far ends without one
	script.WriteString("export PATH=/sbin:/bin PURELB_TEST_VM=1 PURELB_TEST_VIRTUAL=dummy\n" +
		"/sbin/ip link set lo up\ncd /tmp\necho\n")
	for _, binary := range binaries {
		path, pattern := split(binary)
		name := filepath.Base(path)
		copies["/tests/"+name] = path
		fmt.Fprintf(
			&script, "echo %s%s\n/tests/%s -test.v -test.run '%s' 2>&1\necho %s%s $?\n", beginLine, name, name, pattern, endLine,
			name,
		)
	}
	script.WriteString("poweroff -f\n")
	for to, from := range copies {
		if err := install(from, filepath.Join(root, to)); err != nil {
			return "", err
		}
	}
	for _, folder := range []string{"proc", "sys", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return "", fmt.Errorf("make the machine's folders: %w", err)
		}
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin/sh")); err != nil {
		return "", fmt.Errorf("make the machine's shell: %w", err)
	}
	if err := os.WriteFile(filepath.Join(root, "init"), []byte(script.String()), 0o755); err != nil {
		return "", fmt.Errorf("write the machine's init: %w", err)
	}
	image := filepath.Join(dir, "initrd")
	pack := exec.CommandContext(ctx, "sh", "-c", `find . | cpio -o -H newc --quiet > "$1"`, "sh", image)
	pack.Dir = root
	if out, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("pack the machine's files: %w: %s", err, out)
	}
	return image, nil
}

func install(from, to string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		return fmt.Errorf("copy %s into the machine: %w", from, err)
	}
	return nil
}
