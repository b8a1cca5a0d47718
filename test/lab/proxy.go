package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// ProxyMode is a mode of kube-proxy.
type ProxyMode string

// The modes of kube-proxy. With ProxyIPVSStrictARP a node answers ARP only for addresses of
// the interface that is asked (strictARP); with ProxyIPVS for every address that kube-proxy
// has bound to kube-ipvs0, too.
const (
	ProxyNFTables      ProxyMode = "nftables"
	ProxyIPTables      ProxyMode = "iptables"
	ProxyIPVS          ProxyMode = "ipvs"
	ProxyIPVSStrictARP ProxyMode = "ipvs-strict-arp"
)

// ProxyModes returns all modes.
func ProxyModes() []ProxyMode {
	return []ProxyMode{ProxyNFTables, ProxyIPTables, ProxyIPVS, ProxyIPVSStrictARP}
}

func (m ProxyMode) validate() error {
	if !slices.Contains(ProxyModes(), m) {
		return fmt.Errorf("%q is no mode of kube-proxy: want one of %v", string(m), ProxyModes())
	}
	return nil
}

// isIPVS says whether the mode needs IPVS in the kernel.
func (m ProxyMode) isIPVS() bool { return m == ProxyIPVS || m == ProxyIPVSStrictARP }

// flags returns the flags of kube-proxy for the mode.
func (m ProxyMode) flags() []string {
	switch m {
	case ProxyIPVS:
		return []string{"--proxy-mode=ipvs", "--ipvs-strict-arp=false"}
	case ProxyIPVSStrictARP:
		return []string{"--proxy-mode=ipvs", "--ipvs-strict-arp=true"}
	default:
		return []string{"--proxy-mode=" + string(m)}
	}
}

// checkIPVS returns an error if the kernel of this machine has no IPVS. There would be a
// file of it also in a network namespace that has no such Service.
func checkIPVS() error {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		return errors.New("kube-proxy in IPVS mode needs the kernel's module ip_vs, and this kernel (" +
			strings.TrimSpace(string(release)) +
			") has not loaded it: run modprobe ip_vs, or, where there is none, make test-proxies, which has a kernel of " +
			"Debian's")
	}
	return nil
}

// ProxyMode returns the mode of kube-proxy in this lab.
func (l *Lab) ProxyMode() ProxyMode { return l.state.ProxyMode }
