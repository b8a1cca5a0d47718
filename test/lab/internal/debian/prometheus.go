package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Prometheus returns the folder of Debian's programs prometheus and promtool. Unless it is in
// cacheDir already, Prometheus downloads the package and unpacks it there. It installs nothing on
// the machine: an installed Prometheus would start as a service of the machine. It calls say with
// what it does.
func Prometheus(ctx context.Context, cacheDir string, say func(string)) (string, error) {
	kept := filepath.Join(cacheDir, "prometheus")
	programs := filepath.Join(kept, "usr", "bin")
	if _, err := os.Stat(filepath.Join(programs, "prometheus")); err == nil {
		return programs, nil
	}
	if !isDebian() {
		return "", errors.New("get Prometheus: this is not Debian, where a package has it")
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	dir, err := os.MkdirTemp(cacheDir, "prometheus-")
	if err != nil {
		return "", fmt.Errorf("make a folder for Prometheus: %w", err)
	}
	defer os.RemoveAll(dir)
	say("downloading, not installing, the Debian package prometheus")
	if err := download(ctx, dir, "prometheus"); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(dir, "unpacked"), kept); err != nil {
		return "", fmt.Errorf("keep Prometheus: %w", err)
	}
	return programs, nil
}
