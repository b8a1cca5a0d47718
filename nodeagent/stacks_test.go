//go:build stacks

package nodeagent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// The tests of this file run an agent beside the network programs of a Debian node: the real ones,
// in a network namespace of their own, with a chroot that PURELB_DEBIAN_ROOT names. make
// test-stacks prepares it.

// Addresses of the agent's, and the node's own.
const (
	local4, local6, shared4 = "192.0.2.1", "2001:db8::1", "198.51.100.1"
	own4, own6              = "192.0.2.11", "2001:db8::11"
)

// patience is how long a network program may take for one thing. NetworkManager waits for some
// seconds after a carrier is lost.
const patience = 40 * time.Second

// setUpDebian makes a Debian system over the folder $1, of which it changes nothing: the
// programs have a file system, processes, a /run and users of their own. There are no udev
// rules, since one of NetworkManager's package leaves veth interfaces unmanaged.
const setUpDebian = `
set -e
top=$(mktemp -d)
mount --make-rprivate /
mount -t tmpfs tmpfs $top
mkdir $top/upper $top/work $top/root
mount -t overlay overlay -o lowerdir="$1",upperdir=$top/upper,workdir=$top/work $top/root
cd $top/root
mkdir -p proc sys dev run tmp var/lib/dhcp var/lib/NetworkManager
rm -rf var/run; ln -s /run var/run
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir -p run/dbus run/NetworkManager run/systemd/netif/links run/systemd/netif/leases run/systemd/netif/lldp
rm -f usr/lib/udev/rules.d/*
cat > etc/passwd <<END
root:x:0:0:root:/root:/bin/sh
messagebus:x:100:100::/:/bin/false
systemd-network:x:101:101::/:/bin/false
polkitd:x:102:102::/:/bin/false
dnsmasq:x:103:65534::/:/bin/false
nobody:x:65534:65534::/:/bin/false
END
printf '%s\n' root:x:0: messagebus:x:100: systemd-network:x:101: polkitd:x:102: netdev:x:104: nogroup:x:65534: \
  > etc/group
chown -R 101:101 run/systemd/netif
echo 0123456789abcdef0123456789abcdef > etc/machine-id
exec chroot . sh -c 'echo ready; while :; do sleep 1000 & wait; done' # which reaps all processes that end
`

// node is an agent on a real link, beside programs of Debian's.
type node struct {
	*wire
	// pid is the first process of the Debian system, outside.
	pid int
	// own4 is the node's own IPv4 address.
	own4 string
	// changes is what "ip monitor" has said of addresses.
	changes *addressLog
}

// newNode makes a node whose agent announces two Local addresses and a Virtual one.
func newNode(t *testing.T) *node {
	t.Helper()
	root := os.Getenv("PURELB_DEBIAN_ROOT")
	if root == "" {
		t.Fatal("PURELB_DEBIAN_ROOT does not say where the programs of a Debian node are: run make test-stacks")
	}
	n := &node{own4: own4}
	n.wire = newWire(
		t, true, local(local4), local(local6, func(a *purelbv1.AnnouncedAddress) { a.PrefixLength = 64 }), virtual(shared4),
	)
	n.neighbour.Run(t, "ip addr add 192.0.2.254/24 dev eth0")
	n.neighbour.Run(t, "ip addr add 2001:db8::fe/64 dev eth0 nodad")
	nstest.Run(t, "ip route add default via 192.0.2.254 dev eth0")
	nstest.Run(t, "ip route add default via 2001:db8::fe dev eth0")

	cmd := exec.Command("sh", "-c", setUpDebian, "sh", root)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("start a Debian system: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with the first process all others of its namespace
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("start a Debian system: %q, %v", line, err)
	}
	n.pid = cmd.Process.Pid
	n.changes = watchAddresses(t)
	n.eventually("the addresses are announced", n.isWell)
	return n
}

// sh runs a script in the Debian system, and returns its output.
func (n *node) sh(script string) string {
	n.t.Helper()
	out, err := n.command("", script).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s%s", script, err, out, n.logs())
	}
	return string(out)
}

// command returns a command that runs a script in the Debian system; netns is the file of another
// network namespace, or empty.
func (n *node) command(netns, script string) *exec.Cmd {
	args := []string{"--target", fmt.Sprint(n.pid), "--mount", "--pid", "--root", "--wd"}
	if netns != "" {
		args = append(args, "--net="+netns)
	}
	cmd := exec.Command("nsenter", append(args, "--", "timeout", fmt.Sprint(patience.Seconds()), "sh", "-c", script)...)
	cmd.WaitDelay = time.Second // for programs that the script leaves behind
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "SYSTEMD_PAGER="}
	return cmd
}

// logs returns the ends of the programs' logs.
func (n *node) logs() string {
	out, _ := n.command("", `for f in /run/*.log; do echo "== $f"; tail -n 40 $f; done; ip addr show eth0; ip route`).
		CombinedOutput()
	return string(out)
}

// startBus starts what networkd and NetworkManager need of a system.
func (n *node) startBus() {
	n.t.Helper()
	n.sh(`dbus-daemon --system --fork --nopidfile > /run/dbus.log 2>&1
/lib/systemd/systemd-udevd --daemon > /run/udevd.log 2>&1
udevadm trigger --subsystem-match=net --action=add && udevadm settle --timeout=30`)
}

// eventually waits until a condition is true.
func (n *node) eventually(what string, isTrue func() bool) {
	n.t.Helper()
	for start := time.Now(); !isTrue(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			n.t.Fatalf(
				"not after %s: %s; the node has %v, states: %s\n%s", patience, what, n.addresses(), n.states("node1"), n.logs(),
			)
		}
	}
}

// addresses lists those of eth0 in the kernel's order.
func (n *node) addresses() []string {
	o, err := n.Kernel.Observe()
	if err != nil {
		n.t.Error(err)
	}
	var all []string
	for _, a := range o.Addresses {
		if a.Interface == "eth0" {
			all = append(all, a.Prefix.Addr().String())
		}
	}
	return all
}

// isWell reports whether the node has its own addresses and the agent's, the node's own IPv4
// address first, and the agent says so.
func (n *node) isWell() bool {
	all := n.addresses()
	first := slices.IndexFunc(all, func(a string) bool { return netip.MustParseAddr(a).Is4() })
	return first >= 0 && all[first] == n.own4 && slices.Contains(all, own6) && slices.Contains(all, local4) &&
		slices.Contains(all, local6) && n.has(shared4) &&
		strings.Count(n.states("node1"), "Announced") == 3
}

var sourceOf = regexp.MustCompile(` src (\S+)`)

// sourceTo returns the address with which the kernel sends to a destination.
func sourceTo(destination string) string {
	out, _ := exec.Command("ip", "route", "get", destination).CombinedOutput()
	if m := sourceOf.FindStringSubmatch(string(out)); m != nil {
		return m[1]
	}
	return string(out)
}

// disturb does something, waits until the node is well again, and logs for how long addresses were
// away meanwhile. An address of the agent's may be away for atMost.
func (n *node) disturb(what string, atMost time.Duration, do func()) {
	n.t.Helper()
	n.changes.begin()
	do()
	n.eventually(what+": the node has all addresses", n.isWell)
	// While the kernel looks for duplicates of the node's own IPv6 address it sends from another.
	n.eventually(what+": the node sends from its own addresses", func() bool {
		return sourceTo("203.0.113.1") == n.own4 && sourceTo("2001:db8::77") == own6
	})
	away := n.changes.end()
	n.t.Logf("%-40s | %s %s | %s %s | %s %s | own %s %s", what,
		local4, away.of(local4), local6, away.of(local6), shared4, away.of(shared4), away.of(n.own4), away.of(own6))
	for _, address := range []string{local4, local6, shared4} {
		if away[address] > atMost {
			n.t.Errorf("%s: %s was away for %s", what, address, away[address])
		}
	}
	// Who asks as the kubelet does gets the node's own address.
	if ip, err := utilnet.ResolveBindAddress(net.IPv4zero); err != nil || ip.String() != n.own4 {
		n.t.Errorf("%s: the kubelet takes %v for the node's address, %v", what, ip, err)
	}
	n.checkFlannel(what)
}

// checkFlannel runs the program that asks for the node's addresses as flannel does.
func (n *node) checkFlannel(what string) {
	n.t.Helper()
	program := os.Getenv("PURELB_FLANNEL_ADDRESS")
	if program == "" {
		n.t.Fatal("PURELB_FLANNEL_ADDRESS names no program: run make test-stacks")
	}
	out, err := exec.Command(program).CombinedOutput()
	v4, v6, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || v4 != n.own4 {
		n.t.Errorf("%s: flannel takes %q for the node's address, %v", what, out, err)
	}
	if v6 != own6 && v6 != "" {
		n.t.Logf("%s: flannel would take %s for the node's IPv6 address", what, v6)
	}
}

// cutCarrier takes the carrier off eth0 until isNoticed.
func (n *node) cutCarrier(isNoticed func() bool) {
	n.t.Helper()
	n.neighbour.Run(n.t, "ip link set eth0 down")
	n.eventually("the loss of the carrier is noticed", isNoticed)
	n.neighbour.Run(n.t, "ip link set eth0 up")
}

// addressLog is what "ip monitor" says of addresses.
type addressLog struct {
	mu sync.Mutex
	// goneAt is since when addresses are away, and away is for how long they were at most, once.
	goneAt map[string]time.Time
	away   absences
}

// absences are for how long addresses were away.
type absences map[string]time.Duration

func (a absences) of(address string) string {
	if away, was := a[address]; was {
		return "away " + away.Round(100*time.Microsecond).String()
	}
	return "stayed"
}

func watchAddresses(t *testing.T) *addressLog {
	t.Helper()
	cmd := exec.Command("ip", "-oneline", "-tshort", "monitor", "address")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	l := &addressLog{goneAt: map[string]time.Time{}, away: absences{}}
	go l.read(out)
	return l
}

var changeOf = regexp.MustCompile(`^\[([^\]]+)\] *(Deleted )?.*? inet6? ([0-9a-f.:]+)[/ ]`)

func (l *addressLog) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		m := changeOf.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, err := time.Parse("2006-01-02T15:04:05.999999", m[1])
		if err == nil {
			l.note(m[3], m[2] != "", at)
		}
	}
}

func (l *addressLog) note(address string, isGone bool, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone, isAway := l.goneAt[address]
	switch {
	case isGone && !isAway:
		l.goneAt[address] = at
	case !isGone && isAway:
		l.away[address] = max(l.away[address], at.Sub(gone))
		delete(l.goneAt, address)
	}
}

func (l *addressLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = absences{}
}

// end waits until what the kernel has said so far is read, and returns the absences since begin.
func (l *addressLog) end() absences {
	const marker = "127.0.0.99"
	_ = exec.Command("ip", "addr", "add", marker+"/32", "dev", "lo").Run()
	_ = exec.Command("ip", "addr", "del", marker+"/32", "dev", "lo").Run()
	for range 2000 {
		l.mu.Lock()
		_, isRead := l.goneAt[marker]
		if isRead {
			defer l.mu.Unlock()
			delete(l.goneAt, marker)
			return l.away
		}
		l.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	panic("ip monitor says nothing of an address that was removed")
}

// networkdFile is the configuration of eth0.
const networkdFile = `[Match]
Name=eth0
[Network]
Address=192.0.2.11/24
Address=2001:db8::11/64
Gateway=192.0.2.254
Gateway=2001:db8::fe
IPv6AcceptRA=no
`

// startNetworkd starts systemd-networkd with configuration files and waits until eth0 is
// configured.
func (n *node) startNetworkd(files map[string]string) {
	n.t.Helper()
	for name, text := range files {
		n.sh(fmt.Sprintf("mkdir -p /etc/systemd/network\ncat > /etc/systemd/network/%s <<'END'\n%sEND", name, text))
	}
	n.sh("setsid /lib/systemd/systemd-networkd >> /run/networkd.log 2>&1 < /dev/null &")
	n.isConfigured()
}

func (n *node) isConfigured() {
	n.t.Helper()
	n.eventually("systemd-networkd has configured eth0", func() bool {
		out, err := n.command("", "networkctl --no-legend --no-pager list eth0").Output()
		fields := strings.Fields(string(out))
		return err == nil && len(fields) > 0 && fields[len(fields)-1] == "configured"
	})
}

// untilReconfigured runs a script and waits until systemd-networkd has configured an interface anew.
// Until it begins, networkctl says that the interface is configured.
func (n *node) untilReconfigured(iface, script string) {
	n.t.Helper()
	begun := func() string {
		out, _ := n.command("", "grep -c '^"+iface+": .*onfiguring with' /run/networkd.log").Output()
		return string(out)
	}
	before := begun()
	n.sh(script)
	n.eventually("systemd-networkd configures "+iface, func() bool { return begun() != before })
	n.isConfigured()
}

// isOwnAway reports whether the node has lost its own IPv4 address.
func (n *node) isOwnAway() bool { return !slices.Contains(n.addresses(), n.own4) }

// soonBack is how long an address may be away that a network program has removed. The agent
// needs about 30 ms, on a quiet machine.
const soonBack = 2 * time.Second

// systemd-networkd removes addresses that it did not add whenever it configures an interface.
func TestStackNetworkd(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	for name, extra := range map[string]string{"defaults": "", "KeepConfiguration=yes": "KeepConfiguration=yes\n"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.startBus()
			n.t.Log(strings.SplitN(n.sh("networkctl --version"), "\n", 2)[0], name)
			files := map[string]string{"10-eth0.network": networkdFile + extra}
			n.disturb("start", soonBack, func() { n.startNetworkd(files) })
			n.disturb("reload", soonBack, func() { n.sh("networkctl reload"); n.isConfigured() })
			n.disturb("reload, the file has changed", soonBack, func() {
				n.untilReconfigured("eth0", "echo '#' >> /etc/systemd/network/10-eth0.network; networkctl reload")
			})
			n.disturb("reconfigure", soonBack, func() { n.untilReconfigured("eth0", "networkctl reconfigure eth0") })
			n.disturb("the carrier is lost and back", soonBack, func() {
				n.cutCarrier(n.isOwnAway)
				n.isConfigured()
			})
			n.disturb("restart", soonBack, func() {
				n.sh("pkill -TERM -x systemd-network; while pgrep -x systemd-network > /dev/null; do sleep 0.1; done")
				n.startNetworkd(nil)
			})
			n.disturb("networkctl down, up", patience, func() {
				n.sh("networkctl down eth0")
				n.eventually("eth0 is down", func() bool { return !strings.Contains(nstest.Run(t, "ip link show eth0"), ",UP") })
				n.sh("networkctl up eth0")
				n.isConfigured()
			})
		})
	}
}

// A file that matches the virtual interface, too, makes systemd-networkd remove addresses there;
// one that says Unmanaged does not.
func TestStackNetworkdVirtual(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	const all = "[Match]\nName=*\n[Network]\nLinkLocalAddressing=no\n"
	for name, isManaged := range map[string]bool{
		"a file for all interfaces": true, "and one that leaves kube-lb0 alone": false,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.startBus()
			n.disturb("start", soonBack, func() {
				files := map[string]string{"10-eth0.network": networkdFile, "20-all.network": all}
				if !isManaged {
					files["05-kube-lb0.network"] = "[Match]\nName=kube-lb0\n[Link]\nUnmanaged=yes\n"
				}
				n.startNetworkd(files)
			})
			if isManaged {
				n.disturb("reconfigure", soonBack, func() { n.untilReconfigured("kube-lb0", "networkctl reconfigure kube-lb0") })
			} else {
				n.disturb("reconfigure", 0, func() { _ = n.command("", "networkctl reconfigure kube-lb0").Run() })
			}
		})
	}
}

// startDHCPServer starts a DHCP server in the neighbour's namespace, which gives eth0 an address,
// in place of the one before.
func (n *node) startDHCPServer(address string) {
	n.t.Helper()
	netns := fmt.Sprintf("/proc/%d/ns/net", n.neighbour.PID())
	script := fmt.Sprintf(`[ ! -f /run/dnsmasq.pid ] || kill $(cat /run/dnsmasq.pid)
while pgrep -x dnsmasq > /dev/null; do sleep 0.05; done
rm -f /run/dnsmasq.log
dnsmasq --conf-file=/dev/null --port=0 --interface=eth0 --bind-interfaces --user=root \
  --pid-file=/run/dnsmasq.pid --leasefile-ro \
  --dhcp-authoritative --no-ping --dhcp-range=192.0.2.11,192.0.2.12,2m --dhcp-host=02:00:00:00:00:aa,%s \
  --dhcp-option=3,192.0.2.254 \
  --dhcp-option=58,3 --dhcp-option=59,60 --log-dhcp --log-facility=/run/dnsmasq.log`, address)
	if out, err := n.command(netns, script).CombinedOutput(); err != nil {
		n.t.Fatalf("start a DHCP server: %v\n%s%s", err, out, n.logs())
	}
}

// acknowledged returns how often the DHCP server has given the address, or extended its lease.
func (n *node) acknowledged() int {
	out, _ := n.command("", "grep -c DHCPACK /run/dnsmasq.log").Output()
	var count int
	_, _ = fmt.Sscan(string(out), &count)
	return count
}

// untilAcknowledged waits until the DHCP server has extended the lease n more times.
func (n *node) untilAcknowledged(more int) {
	n.t.Helper()
	before := n.acknowledged()
	n.eventually("the DHCP server extends the lease", func() bool { return n.acknowledged() >= before+more })
}

// The DHCP client of ISC renews its lease, gets another address, and gives it back.
func TestStackDHClient(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	n := newNode(t)
	n.startDHCPServer(own4)
	start := func() {
		t.Helper()
		n.sh("dhclient -4 -v -pf /run/dhclient.pid -lf /var/lib/dhcp/eth0.leases eth0 >> /run/dhclient.log 2>&1 < /dev/null")
	}
	n.disturb("the first lease", soonBack, start)
	n.disturb("renewals", 0, func() { n.untilAcknowledged(2) })
	n.disturb("another address", patience, func() {
		n.startDHCPServer("192.0.2.12")
		n.own4 = "192.0.2.12"
		n.untilAcknowledged(1)
	})
	n.disturb("the lease given back and taken again", patience, func() {
		n.sh(
			"dhclient -4 -v -r -pf /run/dhclient.pid -lf /var/lib/dhcp/eth0.leases eth0 >> /run/dhclient.log 2>&1 < /dev/null",
		)
		n.eventually("the node is without an address, and the agent waits", func() bool {
			return n.isOwnAway() && !n.has(local4) && strings.Contains(n.states("node1"), local4+" Pending ")
		})
		start()
	})
}

// systemd-networkd's DHCP client renews its lease.
func TestStackNetworkdDHCP(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	n := newNode(t)
	n.startDHCPServer(own4)
	n.startBus()
	n.disturb("start", soonBack, func() {
		n.startNetworkd(map[string]string{
			"10-eth0.network": "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nAddress=2001:db8::11/64\nIPv6AcceptRA=no\n",
		})
	})
	n.disturb("renewals", 0, func() { n.untilAcknowledged(2) })
	n.disturb("the carrier is lost and back", soonBack, func() {
		n.cutCarrier(n.isOwnAway)
		n.isConfigured()
	})
}

// networkManagerFiles are the configuration of NetworkManager.
const networkManagerFiles = `mkdir -p /etc/NetworkManager/system-connections
cat > /etc/NetworkManager/NetworkManager.conf <<END
[main]
plugins=keyfile
auth-polkit=false
dns=none
no-auto-default=*
[keyfile]
unmanaged-devices=%s
END
cat > /etc/NetworkManager/system-connections/eth0.nmconnection <<END
[connection]
id=eth0
uuid=5f3b2b1c-7b1e-4d52-9b53-1f3a1de7d5a1
type=ethernet
interface-name=eth0
[ipv4]
method=manual
address1=192.0.2.11/24,192.0.2.254
[ipv6]
method=manual
addr-gen-mode=eui64
address1=2001:db8::11/64,2001:db8::fe
END
chmod 600 /etc/NetworkManager/system-connections/eth0.nmconnection`

// NetworkManager.
func TestStackNetworkManager(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	for name, unmanaged := range map[string]string{"defaults": "", "kube-lb0 unmanaged": "interface-name:kube-lb0"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.startBus()
			n.sh(fmt.Sprintf(networkManagerFiles, unmanaged))
			n.t.Log(strings.TrimSpace(n.sh("NetworkManager --version")), name)
			start := func() {
				t.Helper()
				n.sh("setsid NetworkManager --debug >> /run/NetworkManager.log 2>&1 < /dev/null &")
				n.eventually("NetworkManager has activated eth0", func() bool {
					out, _ := n.command("", "nmcli -g GENERAL.STATE device show eth0").Output()
					return strings.HasPrefix(string(out), "100 ")
				})
			}
			n.disturb("start", soonBack, start)
			n.t.Log(n.sh("nmcli -t device"))
			n.disturb("reload", 0, func() { n.sh("nmcli general reload") })
			n.disturb("reapply", soonBack, func() {
				n.sh("nmcli connection modify eth0 ipv4.dns-search example.com && nmcli device reapply eth0")
			})
			n.disturb("reapply, an address has changed", soonBack, func() {
				n.sh("nmcli connection modify eth0 +ipv4.addresses 192.0.2.77/24 && nmcli device reapply eth0")
			})
			n.disturb("connection up", soonBack, func() { n.sh("nmcli connection up eth0") })
			n.disturb("connection down, up", patience, func() {
				n.sh("nmcli connection down eth0")
				n.eventually("the node is without an address", n.isOwnAway)
				n.sh("nmcli connection up eth0")
			})
			n.disturb("the carrier is lost and back", patience, func() { n.cutCarrier(n.isOwnAway) })
			n.disturb("restart", soonBack, func() {
				n.sh("pkill -TERM -x NetworkManager; while pgrep -x NetworkManager > /dev/null; do sleep 0.1; done")
				start()
			})
			n.disturb("unmanaged, managed", patience, func() {
				n.sh("nmcli device set eth0 managed no && nmcli device set eth0 managed yes && nmcli --wait 30 connection up eth0")
			})
		})
	}
}
