// Command chart writes the Helm chart of PureLB, charts/purelb:
//
//	chart -root ../.. -version 0.1.0 -image registry.example.com/purelb:v0.1.0
//
// Its input is config/: config/default, and the components, which the chart's
// values turn on. With the chart's default values Helm renders what kustomize does; the chart's
// tests compare. The same input gives the same chart.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/purelb/purelb-operator/tools/bundle/files"
)

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the repository")
	flag.StringVar(&o.version, "version", "", "version of the chart, such as 0.1.0")
	flag.StringVar(
		&o.image, "image", "", "image of PureLB, with its tag, and its digest if it is known: repository:tag@sha256:…",
	)
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	root    string // the folder of the repository
	version string // the chart's semantic version
	image   string // the image of PureLB: repository:tag, or repository:tag@digest
}

func run(o options) error {
	generated, err := generate(o)
	if err != nil {
		return err
	}
	return files.Replace(o.root, chartDir, generated)
}
