package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/api"
	"github.com/purelb/purelb-operator/test/lab/internal/pki"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// StopControlPlane kills the API server, the controllers, the scheduler and etcd, as if
// their machine had lost power. The nodes keep running. The data stays for
// StartControlPlane.
func (l *Lab) StopControlPlane(ctx context.Context) error {
	if err := process.Kill(ctx, l.pidFile(controlPlaneProcess)); err != nil {
		return fmt.Errorf("stop the control plane: %w", err)
	}
	return nil
}

// StartControlPlane starts what StopControlPlane has stopped, and waits until
// the API server is ready.
func (l *Lab) StartControlPlane(ctx context.Context) error {
	if !process.Alive(l.pidFile(controlPlaneProcess)) {
		if err := l.startControlPlane(); err != nil {
			return err
		}
	}
	client, err := api.Open(l.Kubeconfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return l.waitFor(ctx, "the API server", []string{controlPlaneProcess}, client.Ready) // nodes may be without power
}

// SaveEtcd copies what etcd holds into a folder, which must not exist. The control plane is away
// meanwhile, as it is for RestoreEtcd.
func (l *Lab) SaveEtcd(ctx context.Context, folder string) error {
	return l.withoutControlPlane(ctx, func() error {
		if err := os.CopyFS(folder, os.DirFS(l.etcdDir())); err != nil {
			return fmt.Errorf("save etcd: %w", err)
		}
		return nil
	})
}

// RestoreEtcd makes etcd hold what SaveEtcd has copied into a folder. Revisions begin again from
// there, as when an administrator restores a snapshot and does not raise them.
func (l *Lab) RestoreEtcd(ctx context.Context, folder string) error {
	return l.withoutControlPlane(ctx, func() error {
		if err := os.RemoveAll(l.etcdDir()); err != nil {
			return fmt.Errorf("restore etcd: %w", err)
		}
		if err := os.CopyFS(l.etcdDir(), os.DirFS(folder)); err != nil {
			return fmt.Errorf("restore etcd: %w", err)
		}
		return nil
	})
}

// withoutControlPlane stops the control plane, calls do, and starts the control plane whatever
// do returns.
func (l *Lab) withoutControlPlane(ctx context.Context, do func() error) error {
	if err := l.StopControlPlane(ctx); err != nil {
		return err
	}
	return errors.Join(do(), l.StartControlPlane(ctx))
}

// etcdDir is the folder of etcd's data.
func (l *Lab) etcdDir() string { return l.path("control-plane", "etcd") }

func (l *Lab) startControlPlane() error {
	// ip-netns(8) executes the program in its own process, so the pid file has the
	// program's pid.
	return process.Start(l.pidFile(controlPlaneProcess), l.logFile(controlPlaneProcess),
		"ip", "netns", "exec", Namespace(ControlPlane),
		l.kube(), "control-plane", l.path("control-plane", "config.json"))
}

// startDNS starts the cluster's name server beside the API server. The name server stays
// when the control plane stops, and then answers as it answered before.
func (l *Lab) startDNS() error {
	argv := ExecArgv(ControlPlane, l.command(), "dns", l.HostKubeconfig())
	for _, address := range nameServers() {
		argv = append(argv, netip.AddrPortFrom(address, dnsPort).String())
	}
	return process.Start(l.pidFile(dnsProcess), l.logFile(dnsProcess), argv...)
}

// writeControlPlane writes the keys, kubeconfigs and configuration of the
// control plane, and the kubeconfig for users of the lab.
func (l *Lab) writeControlPlane(authority *pki.Authority, options Options) error {
	cp, err := plannedHost(ControlPlane)
	if err != nil {
		return err
	}
	server, err := authority.Server("kube-apiserver",
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
		[]netip.Addr{
			cp.IPv4.Addr(), cp.IPv6.Addr(),
			netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(),
			serviceCIDRs()[0].Addr().Next(), serviceCIDRs()[1].Addr().Next(), // of the Service kubernetes
		})
	if err != nil {
		return err
	}
	kubelets, err := authority.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	private, public, err := pki.ServiceAccountKeys()
	if err != nil {
		return err
	}
	if err := server.Write(l.path("pki"), "apiserver"); err != nil {
		return err
	}
	if err := kubelets.Write(l.path("pki"), "kubelet-client"); err != nil {
		return err
	}
	if err := (pki.Pair{CertificatePEM: authority.CertificatePEM, KeyPEM: authority.KeyPEM}).Write(l.path("pki"),
		"ca"); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"service-account.key": private, "service-account.pub": public} {
		if err := os.WriteFile(l.path("pki", name), text, 0o600); err != nil {
			return fmt.Errorf("write a key: %w", err)
		}
	}

	inside := "https://" + apiServer().String()
	for _, config := range []struct{ path, server, user, group string }{
		{l.Kubeconfig(), "https://127.0.0.1:" + strconv.Itoa(options.APIPort), "admin", "system:masters"},
		{l.HostKubeconfig(), inside, "admin", "system:masters"},
		{l.controllerManagerKubeconfig(), inside, "system:kube-controller-manager", ""},
		{l.schedulerKubeconfig(), inside, "system:kube-scheduler", ""},
	} {
		var groups []string
		if config.group != "" {
			groups = []string{config.group}
		}
		pair, err := authority.Client(config.user, groups...)
		if err != nil {
			return err
		}
		if err := authority.WriteKubeconfig(config.path, config.server, config.user, pair); err != nil {
			return err
		}
	}

	text, err := json.MarshalIndent(l.controlPlaneConfig(cp.IPv4.Addr(), options.NodeGracePeriod), "", "  ")
	if err != nil {
		return fmt.Errorf("encode the configuration of the control plane: %w", err)
	}
	if err := os.WriteFile(l.path("control-plane", "config.json"), text, 0o644); err != nil {
		return fmt.Errorf("write the configuration of the control plane: %w", err)
	}
	return nil
}

func (l *Lab) controllerManagerKubeconfig() string {
	return l.path("control-plane", "controller-manager.kubeconfig")
}

func (l *Lab) schedulerKubeconfig() string {
	return l.path("control-plane", "scheduler.kubeconfig")
}

// controlPlaneConfig returns the configuration that "kube control-plane" reads.
func (l *Lab) controlPlaneConfig(address netip.Addr, nodeGracePeriod time.Duration) map[string]any {
	services := joinPrefixes(serviceCIDRs())
	kubeconfigs := func(path string) []string {
		return []string{
			"--kubeconfig=" + path,
			"--authentication-kubeconfig=" + path,
			"--authorization-kubeconfig=" + path,
			"--leader-elect=false",
		}
	}
	return map[string]any{
		"etcdDir": l.etcdDir(),
		"etcdURL": etcdURL,
		"apiServer": []string{
			"--etcd-servers=" + etcdURL,
			"--bind-address=0.0.0.0",
			"--advertise-address=" + address.String(),
			"--secure-port=" + strconv.Itoa(apiPort),
			"--service-cluster-ip-range=" + services,
			"--tls-cert-file=" + l.path("pki", "apiserver.crt"),
			"--tls-private-key-file=" + l.path("pki", "apiserver.key"),
			"--client-ca-file=" + l.path("pki", "ca.crt"),
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + l.path("pki", "service-account.pub"),
			"--service-account-signing-key-file=" + l.path("pki", "service-account.key"),
			"--allow-privileged=true",
			// No kube-proxy runs beside the API server: call webhooks at the
			// addresses of their pods.
			"--enable-aggregator-routing=true",
			"--kubelet-client-certificate=" + l.path("pki", "kubelet-client.crt"),
			"--kubelet-client-key=" + l.path("pki", "kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP",
		},
		"controllerManager": append(kubeconfigs(l.controllerManagerKubeconfig()),
			"--service-account-private-key-file="+l.path("pki", "service-account.key"),
			"--root-ca-file="+l.path("pki", "ca.crt"),
			"--use-service-account-credentials=true",
			"--cluster-cidr="+joinPrefixes(clusterCIDRs()),
			"--service-cluster-ip-range="+services,
			"--allocate-node-cidrs=false", // they are planned: see Node.PodCIDRs
			"--node-monitor-grace-period="+nodeGracePeriod.String(),
			// The controller manager creates this folder, by default below /usr.
			"--flex-volume-plugin-dir="+l.path("control-plane", "flex-volumes"),
			"--cluster-signing-cert-file="+l.path("pki", "ca.crt"),
			"--cluster-signing-key-file="+l.path("pki", "ca.key"),
		),
		"scheduler": kubeconfigs(l.schedulerKubeconfig()),
	}
}
