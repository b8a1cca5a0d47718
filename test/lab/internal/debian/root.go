package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// rootPackages are the network programs of a Debian node, and what a shell needs beside them.
// apt adds what they depend on.
var rootPackages = []string{
	"base-files", "base-passwd", "coreutils", "dash", "grep", "hostname", "iproute2", "procps", "sed", "util-linux",
	"dbus", "dnsmasq-base", "isc-dhcp-client", "network-manager", "systemd", "udev",
}

// uselessFolders take half of the space, and no program of the packages needs them.
var uselessFolders = []string{
	"boot", "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "usr/share/perl",
	"usr/share/perl5", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base",
}

// Root returns a folder with a Debian system that has the network programs of a node, for a
// chroot. Unless it is in cacheDir already, Root downloads the packages and unpacks them there.
// It installs nothing on the machine: an installed NetworkManager would take the machine's own
// interfaces. It calls say with what it does.
func Root(ctx context.Context, cacheDir string, say func(string)) (string, error) {
	root := filepath.Join(cacheDir, "debian-root")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if !isDebian() {
		return "", errors.New("get the network programs of a Debian node: this is not Debian, where apt downloads them")
	}
	dir, err := os.MkdirTemp(cacheDir, "debian-root-")
	if err != nil {
		return "", fmt.Errorf("make a folder for a Debian system: %w", err)
	}
	defer os.RemoveAll(dir)
	say("downloading, not installing, Debian packages: " + strings.Join(rootPackages, " "))
	if err := downloadAll(ctx, dir, rootPackages); err != nil {
		// The lists of packages may be old or, in a container, not there.
		if err := aptGet(ctx, "update"); err != nil {
			return "", err
		}
		if err := downloadAll(ctx, dir, rootPackages); err != nil {
			return "", err
		}
	}
	if err := unpackAll(ctx, dir); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(dir, "root"), root); err != nil {
		return "", fmt.Errorf("keep the Debian system: %w", err)
	}
	return root, nil
}

// downloadAll downloads packages and all that they depend on into dir, as for a machine on which
// nothing is installed.
func downloadAll(ctx context.Context, dir string, packages []string) error {
	nothing := filepath.Join(dir, "nothing-installed")
	if err := errors.Join(os.WriteFile(nothing, nil, 0o644),
		os.MkdirAll(filepath.Join(dir, "partial"), 0o755)); err != nil {
		return fmt.Errorf("make a folder for packages: %w", err)
	}
	return aptGet(ctx, slices.Concat([]string{
		"install", "--yes", "--download-only", "--no-install-recommends",
		"--option", "Dir::State::status=" + nothing, "--option", "Dir::Cache::archives=" + dir,
	}, packages)...)
}

// unpackAll unpacks all packages in dir into dir/root.
func unpackAll(ctx context.Context, dir string) error {
	root := filepath.Join(dir, "root")
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} { // as usrmerge(1) does
		err := errors.Join(
			os.MkdirAll(filepath.Join(root, "usr", name), 0o755), os.Symlink("usr/"+name, filepath.Join(root, name)),
		)
		if err != nil {
			return fmt.Errorf("make the folders of a Debian system: %w", err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) == 0 {
		return errors.New("unpack packages: apt has downloaded none")
	}
	for _, file := range files {
		command := exec.CommandContext(
			ctx, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"`, "sh", file, root,
		)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(file), err, out)
		}
	}
	for _, name := range uselessFolders {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}
