// Package assets builds what the lab runs, once, and keeps it in a cache: the
// kube binary and the images.
//
// Each entry is a folder named after a hash of everything that determines what
// is in it. It is built in a temporary folder beside it and renamed, so there
// are no half-built entries, and processes that build at once do no harm.
package assets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/oci"
)

// What the images are called.
const (
	PauseImage = "lab.local/pause:1"
	EchoImage  = "lab.local/echo:1"
)

// Cache builds into Dir from the Go module of the lab at Source.
type Cache struct {
	Dir    string
	Source string
	// Kubernetes is the version of Kubernetes, or "" for that of the go.mod of kube.
	Kubernetes string
	// Say is called with each slow step.
	Say func(string)
}

// Kube is the folder with the binary kube and the links to it that envtest
// wants.
func (c Cache) Kube(ctx context.Context) (string, error) {
	source := filepath.Join(c.Source, "kube")
	goMod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("look at the sources: %w", err)
	}
	version, err := kubernetesVersion(string(goMod))
	if err != nil {
		return "", err
	}
	if c.Kubernetes != "" && c.Kubernetes != version {
		return c.otherKube(ctx, source, goMod)
	}
	flags := kubeFlags(version)
	key, err := c.key(ctx, strings.Join(flags, " "), source)
	if err != nil {
		return "", err
	}
	return c.entry("kube-"+key, func(dir string) error {
		return c.buildKube(ctx, version, source, dir, flags)
	})
}

// otherKube is Kube for another version of Kubernetes than that of the go.mod of kube.
func (c Cache) otherKube(ctx context.Context, source string, goMod []byte) (string, error) {
	other, err := newOtherSource(source, c.Kubernetes, goMod)
	if err != nil {
		return "", err
	}
	patch, err := other.patchText()
	if err != nil {
		return "", err
	}
	// The module's go.sum is that of Kubernetes. It does not have the sums of Kubernetes'
	// libraries, which Go adds, checked against the checksum database.
	flags := append([]string{"-mod=mod"}, kubeFlags(c.Kubernetes)...)
	key, err := c.key(ctx, strings.Join(flags, " ")+patch, source)
	if err != nil {
		return "", err
	}
	return c.entry("kube-"+c.Kubernetes+"-"+key, func(dir string) error {
		module := filepath.Join(dir, "module")
		if err := os.Mkdir(module, 0o755); err != nil {
			return fmt.Errorf("make a folder for the module: %w", err)
		}
		c.Say("downloading Kubernetes " + c.Kubernetes)
		if err := other.write(ctx, module); err != nil {
			return err
		}
		return c.buildKube(ctx, c.Kubernetes, module, dir, flags)
	})
}

// buildKube builds the kube binary from a module, and links to it.
func (c Cache) buildKube(ctx context.Context, version, module, dir string, flags []string) error {
	stop := ticker(c.Say, "still building kube", "about 5 to 10 minutes on two cores the first time")
	defer stop()
	c.Say("building kube, all of Kubernetes " + version + " in one binary")
	if err := build(ctx, module, ".", filepath.Join(dir, "kube"), flags...); err != nil {
		return err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.Symlink("kube", filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

// kubeFlags are the flags with which kube is built.
func kubeFlags(version string) []string {
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", versionFlags(version)}
}

// Images are the image tars that every node has from the start.
func (c Cache) Images(ctx context.Context) ([]string, error) {
	images := []struct{ name, ref string }{{"pause", PauseImage}, {"echo", EchoImage}}
	key, err := c.key(ctx, fmt.Sprint("1 ", images), // the number is that of oci.Write's way
		filepath.Join(c.Source, "images", "pause"), filepath.Join(c.Source, "images", "echo"))
	if err != nil {
		return nil, err
	}
	dir, err := c.entry("images-"+key, func(dir string) error {
		for _, image := range images {
			c.Say("building the image " + image.ref)
			binary := filepath.Join(dir, image.name)
			if err := build(ctx, c.Source, "./images/"+image.name, binary,
				"-trimpath", "-buildvcs=false", "-ldflags", "-s -w"); err != nil {
				return err
			}
			if err := oci.Write(binary+".tar", image.ref, runtime.GOARCH, binary); err != nil {
				return err
			}
			if err := os.Remove(binary); err != nil {
				return fmt.Errorf("remove the binary: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var tars []string
	for _, image := range images {
		tars = append(tars, filepath.Join(dir, image.name+".tar"))
	}
	return tars, nil
}

// kubernetesVersion finds in a go.mod which version of Kubernetes is built.
func kubernetesVersion(goMod string) (string, error) {
	for line := range strings.Lines(goMod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == "k8s.io/kubernetes" {
			return fields[1], nil
		}
	}
	return "", errors.New("the go.mod of kube does not require k8s.io/kubernetes")
}

// versionFlags are the linker's flags. Without a version kubectl fails, and the
// API server says that it is v0.0.0.
func versionFlags(version string) string {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return "-s -w" +
		" -X k8s.io/component-base/version.gitVersion=" + version +
		" -X k8s.io/component-base/version.gitMajor=" + parts[0] +
		" -X k8s.io/component-base/version.gitMinor=" + parts[1] +
		" -X k8s.io/client-go/pkg/version.gitVersion=" + version
}

// build builds a static binary of a package in the module at dir.
func build(ctx context.Context, dir, pkg, out string, flags ...string) error {
	args := append([]string{"build"}, flags...)
	command := exec.CommandContext(ctx, "go", append(args, "-o", out, pkg)...)
	command.Dir = dir
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off", "GOFLAGS=-mod=readonly")
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s: %w: %s", pkg, dir, err, bytes.TrimSpace(text))
	}
	return nil
}

// entry returns the folder called name in the cache, which fill fills if it is
// not there.
func (c Cache) entry(name string, fill func(dir string) error) (string, error) {
	final := filepath.Join(c.Dir, name)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	c.sweep()
	temporary, err := os.MkdirTemp(c.Dir, temporaryPrefix)
	if err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	defer os.RemoveAll(temporary)
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	if err := fill(temporary); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("put %s into the cache: %w", name, err)
	}
	return final, nil
}

// temporaryPrefix starts the names of entries that are being made.
const temporaryPrefix = ".new-"

// sweep removes what a build that was killed has left.
func (c Cache) sweep() {
	left, err := filepath.Glob(filepath.Join(c.Dir, temporaryPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(dir) // if it fails it only takes space
		}
	}
}

// key hashes the sources in the given folders together with how they are built.
func (c Cache) key(ctx context.Context, how string, dirs ...string) (string, error) {
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir = dirs[0]
	version, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of Go: %w", err)
	}
	return hash(string(version)+runtime.GOARCH+"\n"+how+"\n", dirs...)
}

// hash hashes the Go files, tests aside, and module files of folders, not of
// those below them.
func hash(salt string, dirs ...string) (string, error) {
	sum := sha256.New()
	fmt.Fprint(sum, salt)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", fmt.Errorf("look at the sources: %w", err)
		}
		for _, entry := range entries {
			name := entry.Name()
			if strings.HasSuffix(name, "_test.go") ||
				filepath.Ext(name) != ".go" && name != "go.mod" && name != "go.sum" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return "", fmt.Errorf("look at the sources: %w", err)
			}
			fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), nil
}

// ticker says every 15 s that something is going on, until the function that
// it returns is called.
func ticker(say func(string), what, expect string) (stop func()) {
	start := time.Now()
	tick := time.NewTicker(15 * time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-tick.C:
				say(fmt.Sprintf("%s (%s; %s)", what, time.Since(start).Round(time.Second), expect))
			case <-done:
				return
			}
		}
	}()
	return func() { tick.Stop(); close(done) }
}
