package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tree is a copy of the working tree.
type tree struct {
	folder string
}

// sharedTools are the programs in bin that the gate needs and that are not made of the project.
// The copy builds all others itself.
var sharedTools = []string{"kustomize"}

// newTree makes a copy of a working tree below a folder, in place of an earlier one: a clone
// of the present commit, so that the copy has the history; then what is not committed; then
// the shared tools, which are newer so than the files that make would build them from. The
// copy shares the objects of the original's repository.
func newTree(ctx context.Context, root, folder string) (*tree, error) {
	t := &tree{folder: filepath.Join(folder, "tree")}
	if err := errors.Join(os.RemoveAll(t.folder), os.MkdirAll(folder, 0o755)); err != nil {
		return nil, fmt.Errorf("make room for the copy: %w", err)
	}
	commit, err := git(ctx, root, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	if _, err := git(ctx, root, "clone", "--quiet", "--shared", "--no-checkout", root, t.folder); err != nil {
		return nil, err
	}
	if _, err := git(ctx, t.folder, "checkout", "--quiet", "--detach", strings.TrimSpace(commit)); err != nil {
		return nil, err
	}
	if err := t.copyUncommitted(ctx, root); err != nil {
		return nil, err
	}
	return t, t.copyTools(filepath.Join(root, "bin"))
}

// copyUncommitted copies the files that differ from the commit, and those that git does not
// know and does not ignore.
func (t *tree) copyUncommitted(ctx context.Context, root string) error {
	changed, err := git(ctx, root, "diff", "--name-only", "--no-renames", "-z", "HEAD")
	if err != nil {
		return err
	}
	unknown, err := git(ctx, root, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return err
	}
	for _, name := range strings.Split(changed+unknown, "\x00") {
		if name == "" {
			continue
		}
		if err := copyFile(filepath.Join(root, name), filepath.Join(t.folder, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyTools copies the shared tools. They are copied, and not linked, so that nothing that runs
// in the copy changes the original's.
func (t *tree) copyTools(bin string) error {
	for _, name := range sharedTools {
		if err := copyFile(filepath.Join(bin, name), filepath.Join(t.folder, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file or a symbolic link. A file that is missing is removed.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(to)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.RemoveAll(to)); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		return errors.Join(err, os.Symlink(target, to))
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

// applyError means that a patch does not apply to the tree any more.
type applyError struct{ output string }

// Error says so.
func (e *applyError) Error() string { return "the patch does not apply: " + e.output }

// withPatch applies a patch, calls use, and takes the patch out again.
func (t *tree) withPatch(ctx context.Context, file string, use func() error) error {
	output, hasFailed, err := combinedOutput(command(ctx, t.folder, "git", "apply", "--whitespace=nowarn", file))
	if err != nil {
		return err
	}
	if hasFailed {
		return &applyError{output}
	}
	err = use()
	_, undoErr := git(context.WithoutCancel(ctx), t.folder, "apply", "--whitespace=nowarn", "--reverse", file)
	return errors.Join(err, undoErr)
}

// compile builds the packages of Go files that a patch changes. It returns what the compiler
// says if they do not compile.
func (t *tree) compile(ctx context.Context, paths []string) (complaint string, err error) {
	args := []string{"build", "-o", os.DevNull}
	for _, p := range paths {
		if pkg := "./" + path.Dir(p); strings.HasSuffix(p, ".go") && !slices.Contains(args, pkg) {
			args = append(args, pkg)
		}
	}
	if len(args) == 3 {
		return "", nil
	}
	output, hasFailed, err := combinedOutput(command(ctx, t.folder, "go", args...))
	if !hasFailed {
		output = ""
	}
	return output, err
}

// git runs git in a folder, and returns what it prints.
func git(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := command(ctx, folder, "git", args...)
	output, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return string(output), nil
}

// endWithGroup lets a command end, when its context does, with all that the command has
// started: an interrupt first, so that the gate takes its lab down.
func endWithGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
}
