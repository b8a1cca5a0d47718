package assets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/mod/modfile"
)

// kubernetesModule is the Go module of Kubernetes. Its go.mod replaces the modules of
// Kubernetes' libraries by folders, which are published as modules of their own.
const kubernetesModule = "k8s.io/kubernetes"

// versionPattern matches versions of Kubernetes: v1.32.5, v1.38.0-alpha.1.
var versionPattern = regexp.MustCompile(`^v1\.(\d+)\.\d+(-(alpha|beta|rc)\.\d+)?$`)

// minorOf returns the second number of a version of Kubernetes.
func minorOf(version string) (int, error) {
	match := versionPattern.FindStringSubmatch(version)
	if match == nil {
		return 0, fmt.Errorf("%q is no version of Kubernetes: want all three numbers, such as v1.32.5", version)
	}
	return strconv.Atoi(match[1])
}

// librariesVersion returns the version of Kubernetes' libraries that belongs to a version
// of Kubernetes: v0.32.5 to v1.32.5.
func librariesVersion(version string) string { return "v0" + strings.TrimPrefix(version, "v1") }

// otherGoMod returns a go.mod that builds the sources of the module called name with
// another version of Kubernetes. upstream is the go.mod of that version: whatever else it
// requires stays as it is there, the version of Go and its settings included.
func otherGoMod(name, version string, upstream []byte) ([]byte, error) {
	file, err := modfile.Parse("go.mod", upstream, nil)
	if err != nil {
		return nil, fmt.Errorf("parse the go.mod of Kubernetes %s: %w", version, err)
	}
	if err := file.AddModuleStmt(name); err != nil {
		return nil, fmt.Errorf("name the module: %w", err)
	}
	for _, r := range file.Replace {
		if !modfile.IsDirectoryPath(r.New.Path) {
			continue
		}
		if err := file.AddReplace(r.Old.Path, r.Old.Version, r.Old.Path, librariesVersion(version)); err != nil {
			return nil, fmt.Errorf("replace %s: %w", r.Old.Path, err)
		}
	}
	if err := file.AddRequire(kubernetesModule, version); err != nil {
		return nil, fmt.Errorf("require Kubernetes: %w", err)
	}
	file.Cleanup()
	text, err := file.Format()
	if err != nil {
		return nil, fmt.Errorf("write a go.mod for Kubernetes %s: %w", version, err)
	}
	return text, nil
}

// patchFor chooses, of the names of patches, that for a minor version of Kubernetes. The
// patch v1.N.patch is for N and for what is older, down to the next patch. It returns ""
// if the sources fit as they are.
func patchFor(names []string, minor int) string {
	chosen, least := "", 0
	for _, name := range names {
		var n int
		if _, err := fmt.Sscanf(name, "v1.%d.patch", &n); err != nil || n < minor {
			continue
		}
		if chosen == "" || n < least {
			chosen, least = name, n
		}
	}
	return chosen
}

// otherSource says what is needed to build another version of Kubernetes than that of
// the go.mod of kube.
type otherSource struct {
	module  string // the name of the module
	version string
	source  string // the folder of kube
	patch   string // a file, or "" if the sources fit
}

// newOtherSource finds the patch for a version.
func newOtherSource(source, version string, goMod []byte) (otherSource, error) {
	minor, err := minorOf(version)
	if err != nil {
		return otherSource{}, err
	}
	s := otherSource{module: modfile.ModulePath(goMod), version: version, source: source}
	folder := filepath.Join(source, "patches")
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return otherSource{}, fmt.Errorf("look for patches: %w", err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if name := patchFor(names, minor); name != "" {
		s.patch = filepath.Join(folder, name)
	}
	return s, nil
}

// patchText returns the content of the patch, which is part of the key in the cache.
func (s otherSource) patchText() (string, error) {
	if s.patch == "" {
		return "", nil
	}
	text, err := os.ReadFile(s.patch)
	if err != nil {
		return "", fmt.Errorf("read a patch: %w", err)
	}
	return string(text), nil
}

// write writes the module into an empty folder.
func (s otherSource) write(ctx context.Context, dir string) error {
	upstream, err := download(ctx, s.version)
	if err != nil {
		return err
	}
	goMod, err := os.ReadFile(filepath.Join(upstream, "go.mod"))
	if err != nil {
		return fmt.Errorf("read the go.mod of Kubernetes %s: %w", s.version, err)
	}
	if goMod, err = otherGoMod(s.module, s.version, goMod); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(upstream, "go.sum"))
	if err != nil {
		return fmt.Errorf("read the go.sum of Kubernetes %s: %w", s.version, err)
	}
	files := map[string][]byte{"go.mod": goMod, "go.sum": sums}
	sources, err := filepath.Glob(filepath.Join(s.source, "*.go"))
	if err != nil {
		return fmt.Errorf("look at the sources: %w", err)
	}
	for _, path := range sources {
		if files[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			return fmt.Errorf("look at the sources: %w", err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write a module for Kubernetes %s: %w", s.version, err)
		}
	}
	if s.patch == "" {
		return nil
	}
	return applyPatch(ctx, dir, s.patch)
}

// applyPatch changes the sources in a folder. A patch that does not fit is an error.
func applyPatch(ctx context.Context, dir, patch string) error {
	command := exec.CommandContext(ctx, "git", "apply", patch)
	command.Dir = dir
	// Git must not take the folder for a part of a repository around it: then it ignores
	// the files of a patch that lie outside of that part.
	command.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("apply %s: %w: %s", patch, err, bytes.TrimSpace(text))
	}
	return nil
}

// download downloads the module of a version of Kubernetes, unless it is there, and
// returns its folder.
func download(ctx context.Context, version string) (string, error) {
	command := exec.CommandContext(ctx, "go", "mod", "download", "-json", kubernetesModule+"@"+version)
	command.Dir = os.TempDir() // outside of any module
	out, err := command.Output()
	var info struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &info); jsonErr == nil && info.Error != "" {
		return "", fmt.Errorf("download Kubernetes %s: %s", version, info.Error)
	}
	if err != nil {
		return "", fmt.Errorf("download Kubernetes %s: %w", version, err)
	}
	return info.Dir, nil
}
