// Command bundle writes the bundle from which the Operator Lifecycle Manager (OLM)
// installs PureLB: bundle/ and bundle.Dockerfile, in the format registry+v1.
//
//	bundle -root ../.. -version 0.1.0 -image registry.example.com/purelb:v0.1.0
//
// Its input is config/: the manifests that install PureLB without OLM, and
// config/manifests, which only the bundle needs. It renders the objects, decides for each
// whether the object becomes part of the ClusterServiceVersion, a manifest of the bundle or
// an example, or is left out (parts.go), and builds the ClusterServiceVersion (csv.go,
// descriptors.go). The same input gives the same bundle.
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
	flag.StringVar(&o.version, "version", "", "version of the bundle, such as 0.1.0")
	flag.StringVar(&o.image, "image", "", "image of PureLB; empty for that of config/default")
	flag.StringVar(&o.channel, "channel", "candidate", "channel of the package to which the bundle belongs")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	root    string // the folder of the repository
	version string // the bundle's semantic version
	image   string // the image of PureLB; empty for the one that the manifests name
	channel string // the channel of the package
}

func run(o options) error {
	generated, err := generate(o)
	if err != nil {
		return err
	}
	return files.Replace(o.root, bundleDir, generated)
}
