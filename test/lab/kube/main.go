// Command kube is all of Kubernetes that the lab needs, in one program.
//
// "kube control-plane FILE" runs etcd, kube-apiserver, kube-controller-manager
// and kube-scheduler in one process. Every other component is a subcommand,
// and also what the program becomes when it is called by that name: a folder
// with links named etcd, kube-apiserver and kubectl is what envtest takes as
// KUBEBUILDER_ASSETS.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	_ "time/tzdata" // CronJobs and log timestamps on machines without zoneinfo

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as the real binaries have
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name, args := component(os.Args)
	run, ok := components()[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: kube {%s} [arguments]\n", strings.Join(names(), "|"))
		os.Exit(2)
	}
	os.Exit(run(args))
}

// component says which component is asked for: by the name the program was
// called by, else by its first argument.
func component(argv []string) (name string, args []string) {
	if name = filepath.Base(argv[0]); slices.Contains(names(), name) {
		return name, argv[1:]
	}
	if len(argv) > 1 {
		return argv[1], argv[2:]
	}
	return "", nil
}

// names lists what components knows, in alphabetical order.
func names() []string {
	var all []string
	for name := range components() {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// components maps each name to a function that runs it and returns the exit
// status of the process. Only one of them may run in a process: the Kubernetes
// commands install process-wide signal handlers and panic the second time.
func components() map[string]func(args []string) int {
	return map[string]func([]string) int{
		"control-plane": runControlPlane,
		"etcd": func(args []string) int {
			etcdmain.Main(append([]string{"etcd"}, args...))
			return 0
		},
		"kube-apiserver": func(args []string) int {
			return runCommand(kubeapiserver.NewAPIServerCommand(), args)
		},
		"kube-proxy": func(args []string) int {
			return runCommand(kubeproxy.NewProxyCommand(), args)
		},
		"kubelet": func(args []string) int {
			return runCommand(kubelet.NewKubeletCommand(context.Background()), args)
		},
		"kubectl": func(args []string) int {
			os.Args = append([]string{"kubectl"}, args...) // kubectl looks for plugins by os.Args
			return runCommand(kubectl.NewDefaultKubectlCommand(), args)
		},
	}
}

// runCommand runs one of the Kubernetes commands as its own binary would.
func runCommand(command *cobra.Command, args []string) int {
	command.SetArgs(args)
	return cli.Run(command)
}

// runControlPlane runs the control plane until SIGTERM or SIGINT.
func runControlPlane(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: kube control-plane FILE")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	config, err := readConfig(args[0])
	if err == nil {
		err = serve(ctx, config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "control-plane:", err)
		return 1
	}
	return 0
}
