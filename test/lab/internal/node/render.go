package node

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/dns"
)

// object is a JSON object.
type object = map[string]any

// inside is the path of one of the lab's files as the node sees it.
func inside(elem ...string) string {
	return filepath.Join(append([]string{Inside}, elem...)...)
}

// kubeletConfig is the kubelet's configuration file (a KubeletConfiguration).
func kubeletConfig(nameServers []netip.Addr) object {
	return object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": inside(caFile)},
		},
		"authorization": object{"mode": "Webhook"},
		// There is no systemd in a node, and the machine may be one on which
		// the kubelet would by default refuse to start.
		"cgroupDriver": "cgroupfs",
		"failCgroupV1": false,
		"failSwapOn":   false,
		// Stay below the limit of a machine that does not let it be raised.
		"maxOpenFiles":           20000,
		"enforceNodeAllocatable": []string{"pods"},
		// The disk is the machine's: never evict pods or remove images that
		// came from no registry and would not come back.
		"evictionHard": object{
			"memory.available":  "50Mi",
			"nodefs.available":  "1%",
			"imagefs.available": "1%",
			"nodefs.inodesFree": "1%",
		},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"resolvConf":                  inside(resolvFile),
		"clusterDNS":                  nameServers,
		"clusterDomain":               strings.TrimSuffix(dns.Domain, "."),
		// Default folder: /usr/libexec/kubernetes, which is the machine's.
		"volumePluginDir": "/var/lib/kubelet/volume-plugins",
		// A shutdown waits for pods: docs/how-to/drain.md.
		"shutdownGracePeriod":             ShutdownGracePeriod.String(),
		"shutdownGracePeriodCriticalPods": (ShutdownGracePeriod / 2).String(),
		"syncFrequency":                   "10s",
		"nodeStatusUpdateFrequency":       "5s",
	}
}

// ShutdownGracePeriod is how long the kubelet delays a shutdown at most, and how long it may.
const ShutdownGracePeriod = time.Minute

// busSocket is where programs of the node look for the system bus.
const busSocket = "/run/dbus/system_bus_socket"

// BusAddress is the D-Bus address of a node's system bus.
const BusAddress = "unix:path=" + busSocket

// BusConfig is the configuration of a D-Bus daemon at a socket that lets everyone do everything.
func BusConfig(socket string) string {
	return `<busconfig>
  <type>system</type>
  <listen>unix:path=` + socket + `</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow send_type="signal"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
`
}

// cniConfig gives pods addresses from cidrs on a bridge of the node. Routes
// between nodes are those of the lab, and nothing is masqueraded.
func cniConfig(cidrs []netip.Prefix) object {
	var ranges [][]object
	var routes []object
	for _, cidr := range cidrs {
		ranges = append(ranges, []object{{"subnet": cidr.String()}})
		all := "0.0.0.0/0"
		if cidr.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, object{"dst": all})
	}
	return object{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins": []object{
			{
				"type":        "bridge",
				"bridge":      "cni0",
				"isGateway":   true,
				"hairpinMode": true,
				"ipam": object{
					"type":    "host-local",
					"dataDir": "/run/cni-ipam",
					"ranges":  ranges,
					"routes":  routes,
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}
}

// containerdConfig is the configuration of containerd 1.6 and later; 2.x
// migrates it.
func containerdConfig(c Config) string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
# The lab may run where processes lack CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
`, c.PauseImage, c.CNIPlugins, inside(cniDir))
}

// services are the long-lived programs of a node, in order of start.
func services(c Config) (bus, containerd, kubelet, proxy []string) {
	bus = []string{"dbus-daemon", "--config-file=" + inside(busFile), "--nofork", "--nopidfile"}
	kube := inside(kubeBinary)
	containerd = []string{"containerd", "--config", inside(containerdFile)}
	kubelet = []string{kube, "kubelet",
		"--config=" + inside(kubeletFile),
		"--kubeconfig=" + inside(kubeletKube),
		"--hostname-override=" + c.Name,
		"--node-ip=" + joinTexts(c.Addresses),
		"--root-dir=/var/lib/kubelet",
		"--v=2",
	}
	proxy = []string{kube, "kube-proxy",
		"--kubeconfig=" + inside(proxyKube),
		"--hostname-override=" + c.Name,
		"--cluster-cidr=" + joinTexts(c.ClusterCIDRs),
		// The size of the connection table is the whole machine's.
		"--conntrack-max-per-core=0",
		"--conntrack-min=0",
		"--nodeport-addresses=primary",
		"--healthz-bind-address=127.0.0.1:10256",
		"--metrics-bind-address=127.0.0.1:10249",
		"--v=2",
	}
	proxy = append(proxy, c.ProxyFlags...)
	return bus, containerd, kubelet, proxy
}

// joinTexts joins things with commas.
func joinTexts[T fmt.Stringer](things []T) string {
	var all []string
	for _, thing := range things {
		all = append(all, thing.String())
	}
	return strings.Join(all, ",")
}
