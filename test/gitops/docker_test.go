package gitops

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestDockerfile checks that .dockerignore lets all packages of the program through, and
// that the Dockerfile copies all of them.
func TestDockerfile(t *testing.T) {
	g := NewWithT(t)
	const module = "github.com/purelb/purelb-operator/"
	list := exec.Command("go", "list", "-deps", "./cmd", "./cmd/speaker")
	list.Dir = root
	packages, err := list.Output()
	g.Expect(err).NotTo(HaveOccurred())
	folders := func(path, prefix string) []string {
		text, err := os.ReadFile(root + "/" + path)
		g.Expect(err).NotTo(HaveOccurred())
		var found []string
		for line := range strings.Lines(string(text)) {
			if folder, is := strings.CutPrefix(line, prefix); is {
				found = append(found, strings.Fields(folder)[0]+"/")
			}
		}
		return found
	}
	sent, copied := folders(".dockerignore", "!"), folders("Dockerfile", "COPY ")
	seen := 0
	for name := range strings.FieldsSeq(string(packages)) {
		folder, ours := strings.CutPrefix(name, module)
		if !ours {
			continue
		}
		seen++
		for _, all := range [][]string{sent, copied} {
			within := func(parent string) bool { return strings.HasPrefix(folder+"/", parent) }
			g.Expect(all).To(ContainElement(Satisfy(within)), folder)
		}
	}
	g.Expect(seen).To(BeNumerically(">", 10))
}
