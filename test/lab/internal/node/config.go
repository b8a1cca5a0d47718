// Package node makes a Kubernetes node out of namespaces: a network namespace
// that exists already, and mount, process, host name, IPC and control group
// namespaces of its own.
//
// It takes three steps, since a process cannot move itself into a new process
// namespace, and must be in its control group before it makes a namespace of
// it:
//
//   - [Prepare], in "lab up", writes the node's files;
//   - [Start], in a process of its own, joins the control group and starts
//     process 1 of the node in its namespaces;
//   - [Init] is process 1: it makes the node's view of the file system, and
//     runs containerd, kubelet and kube-proxy.
//
// When process 1 ends, the kernel ends every process of the node and forgets
// its mounts.
package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
	"github.com/purelb/purelb-operator/test/lab/internal/pki"
)

// Config describes a node. All paths are as seen outside of it.
type Config struct {
	// Name of the node.
	Name string `json:"name"`
	// Namespace is its network namespace.
	Namespace string `json:"namespace"`
	// Dir is where its files are kept.
	Dir string `json:"dir"`
	// Logs is the folder of its logs.
	Logs string `json:"logs"`
	// PIDFile is where Start writes the pid file of process 1.
	PIDFile string `json:"pidFile"`
	// Kube is the kube binary.
	Kube string `json:"kube"`
	// ProxyFlags are flags of kube-proxy: its mode.
	ProxyFlags []string `json:"proxyFlags"`
	// CNIPlugins is the folder of the CNI plugins.
	CNIPlugins string `json:"cniPlugins"`
	// Images are tar files of images to import before the kubelet starts.
	Images []string `json:"images"`
	// PauseImage is the image of each pod's first process.
	PauseImage string `json:"pauseImage"`
	// APIServer is where the API server listens.
	APIServer netip.AddrPort `json:"apiServer"`
	// NameServers are those of the pods.
	NameServers []netip.Addr `json:"nameServers"`
	// Addresses are the node's own.
	Addresses []netip.Addr `json:"addresses"`
	// PodCIDRs are the addresses of its pods; ClusterCIDRs those of all pods.
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs"`
	// Hierarchies are the machine's control groups.
	Hierarchies []cgroup.Hierarchy `json:"hierarchies"`
}

// Inside is the folder of the lab's own files as the node sees it. It lies
// below /var, of which each node has its own.
const Inside = "/var/lib/purelb-node"

// Names of files below Inside.
const (
	caFile         = "ca.crt"
	kubeletFile    = "kubelet.json"
	kubeletKube    = "kubelet.kubeconfig"
	proxyKube      = "kube-proxy.kubeconfig"
	containerdFile = "containerd.toml"
	resolvFile     = "resolv.conf"
	busFile        = "bus.conf"
	cniDir         = "cni"
	kubeBinary     = "kube"
)

// files is the folder Inside as seen from outside.
func (c Config) files() string { return filepath.Join(c.Dir, Inside) }

// Prepare writes the files of a node, and returns the name of the one that
// Start and Init take.
func Prepare(c Config, authority *pki.Authority) (string, error) {
	for dir, mode := range map[string]os.FileMode{
		c.Logs:                              0o755,
		filepath.Join(c.files(), cniDir):    0o755,
		filepath.Join(c.Dir, "var/log"):     0o755,
		filepath.Join(c.Dir, "var/cache"):   0o755,
		filepath.Join(c.Dir, "var/tmp"):     0o777 | os.ModeSticky,
		filepath.Join(c.Dir, "var/lib/cni"): 0o755,
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("make folders of %s: %w", c.Name, err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			return "", fmt.Errorf("make folders of %s: %w", c.Name, err)
		}
	}
	for link, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock"} {
		if err := os.Symlink(target, filepath.Join(c.Dir, link)); err != nil {
			return "", fmt.Errorf("make folders of %s: %w", c.Name, err)
		}
	}

	server := "https://" + c.APIServer.String()
	for file, client := range map[string]struct {
		user   string
		groups []string
	}{
		kubeletKube: {"system:node:" + c.Name, []string{"system:nodes"}},
		proxyKube:   {"system:kube-proxy", nil},
	} {
		pair, err := authority.Client(client.user, client.groups...)
		if err != nil {
			return "", err
		}
		if err := authority.WriteKubeconfig(filepath.Join(c.files(), file), server, client.user, pair); err != nil {
			return "", err
		}
	}

	kubelet, err := json.MarshalIndent(kubeletConfig(c.NameServers), "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the kubelet's configuration: %w", err)
	}
	cni, err := json.MarshalIndent(cniConfig(c.PodCIDRs), "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the CNI configuration: %w", err)
	}
	self, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the configuration of %s: %w", c.Name, err)
	}
	file := filepath.Join(c.Dir, "node.json")
	for path, text := range map[string][]byte{
		file:                                     self,
		filepath.Join(c.files(), caFile):         authority.CertificatePEM,
		filepath.Join(c.files(), kubeletFile):    kubelet,
		filepath.Join(c.files(), containerdFile): []byte(containerdConfig(c)),
		filepath.Join(c.files(), resolvFile): []byte(
			"# The nodes have no name server. Their pods have the cluster's.\n",
		),
		filepath.Join(c.files(), busFile):                   []byte(BusConfig(busSocket)),
		filepath.Join(c.files(), kubeBinary):                nil, // the binary is mounted here
		filepath.Join(c.files(), cniDir, "10-lab.conflist"): cni,
	} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return "", fmt.Errorf("write files of %s: %w", c.Name, err)
		}
	}
	return file, nil
}

// Read reads the file that Prepare wrote.
func Read(path string) (Config, error) {
	var c Config
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read the node's configuration: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("parse %s: %w", path, err)
	}
	return c, nil
}
