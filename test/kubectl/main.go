// Command kubectl is kubectl of the version of k8s.io/kubectl in go.mod. build.sh builds it, also
// of other versions, so that the end-to-end tests can run with clients that are older or newer
// than the API server.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
