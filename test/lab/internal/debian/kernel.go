package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnsureVM installs the packages that a virtual machine needs and that are missing. Where
// it cannot, its error names them. It calls say with what it does.
func EnsureVM(ctx context.Context, say func(string)) error {
	return ensure(ctx, missingOf([]program{
		{"qemu-system-x86_64", "qemu-system-x86"}, {"busybox", "busybox-static"}, {"cpio", "cpio"},
		{"ip", "iproute2"}, {"nsenter", "util-linux"}, {"arping", "iputils-arping"},
	}), say)
}

// KernelFiles is a kernel of Debian's, unpacked but not installed.
type KernelFiles struct {
	Name    string // of its package
	Image   string
	Modules string // the folder of its version
}

// Kernel downloads Debian's kernel for virtual machines, unless it is in
// cacheDir already. It calls say with what it does.
func Kernel(ctx context.Context, cacheDir string, say func(string)) (KernelFiles, error) {
	if found, err := kernelIn(filepath.Join(cacheDir, "kernel")); err == nil {
		return found, nil
	}
	if !isDebian() {
		return KernelFiles{}, errors.New("get a kernel for the virtual machine: this is not Debian, where a package has one")
	}
	name, err := kernelPackage(ctx)
	if err != nil { // the lists of packages may not be there
		if err := aptGet(ctx, "update"); err != nil {
			return KernelFiles{}, err
		}
		if name, err = kernelPackage(ctx); err != nil {
			return KernelFiles{}, err
		}
	}
	say("downloading " + name)
	dir, err := os.MkdirTemp(cacheDir, "kernel-")
	if err != nil {
		return KernelFiles{}, fmt.Errorf("make a folder for the kernel: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := download(ctx, dir, name); err != nil {
		return KernelFiles{}, err
	}
	if err := os.Rename(filepath.Join(dir, "unpacked"), filepath.Join(cacheDir, "kernel")); err != nil {
		return KernelFiles{}, fmt.Errorf("keep the kernel: %w", err)
	}
	return kernelIn(filepath.Join(cacheDir, "kernel"))
}

// kernelPackage is the package of the kernel that Debian has now.
func kernelPackage(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", "linux-image-cloud-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("look for a kernel: %w", err)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(field, "linux-image-") && field != "linux-image-cloud-amd64" {
			return field, nil
		}
	}
	return "", errors.New("look for a kernel: no package linux-image-*-cloud-amd64 is known")
}

// download fetches a package and unpacks it below dir/unpacked.
func download(ctx context.Context, dir, name string) error {
	if err := fetch(ctx, dir, name); err != nil { // the lists may be old
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		if err := fetch(ctx, dir, name); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("download %s: %d files came, want one", name, len(files))
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", files[0], filepath.Join(dir, "unpacked")).
		CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", name, err, out)
	}
	return nil
}

// fetch downloads a package into dir.
func fetch(ctx context.Context, dir, name string) error {
	command := exec.CommandContext(ctx, "apt-get", "--quiet", "download", name)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("download %s: %w: %s", name, err, out)
	}
	return nil
}

func kernelIn(dir string) (KernelFiles, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return KernelFiles{}, fmt.Errorf("%d kernels in %s, want one", len(images), dir)
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return KernelFiles{
		Name: "linux-image-" + version, Image: images[0], Modules: filepath.Join(dir, "lib", "modules", version),
	}, nil
}
