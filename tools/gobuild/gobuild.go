// Package gobuild compiles the programs of a release so that the same commit and the same Go give the same bytes,
// wherever the sources lie and whatever Go is set to there.
package gobuild

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Platform is an operating system and an architecture, as GOOS and GOARCH.
type Platform struct{ OS, Arch string }

func (p Platform) String() string { return p.OS + "/" + p.Arch }

// ParsePlatforms parses a list such as linux/amd64,windows/arm64.
func ParsePlatforms(list string) (platforms []Platform, err error) {
	for name := range strings.SplitSeq(list, ",") {
		system, arch, ok := strings.Cut(strings.TrimSpace(name), "/")
		if !ok || system == "" || arch == "" {
			return nil, fmt.Errorf("platform %q: write it as linux/amd64", name)
		}
		platforms = append(platforms, Platform{system, arch})
	}
	return platforms, nil
}

// settings are those of Go's settings that change what it compiles.
var settings = []string{
	"CGO_ENABLED=0", "GOENV=off", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
	"GOAMD64=v1", "GOARM64=v8.0",
}

// Build compiles a main package of the module in root for a platform, and tells the program its version.
func Build(root, pkg, version string, p Platform, out string) error {
	command := exec.Command("go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -buildid= -X main.version="+version, "-o", out, pkg)
	command.Dir = root
	command.Env = append(append(os.Environ(), settings...), "GOOS="+p.OS, "GOARCH="+p.Arch)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", pkg, p, err, output)
	}
	return nil
}
