package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Forever is the lifetime of an address that does not expire.
const Forever = time.Duration(math.MaxInt64)

// IfAddr is an address on an interface.
type IfAddr struct {
	// Link is the name of the interface.
	Link string
	// Prefix is the address and the length of its subnet's prefix.
	Prefix netip.Prefix
	// Valid and Preferred are the lifetimes that are left, to the second;
	// Forever if they do not end.
	Valid, Preferred time.Duration
	// NoPrefixRoute, NoDAD, Tentative and DADFailed are flags of the address.
	NoPrefixRoute, NoDAD, Tentative, DADFailed bool
	// Protocol says who has set the address (IFA_PROTO), as ip(8) writes it;
	// empty if it is not known.
	Protocol string
}

// Addresses lists all addresses of a host, interface by interface.
func (l *Lab) Addresses(ctx context.Context, host string) ([]IfAddr, error) {
	text, err := l.Exec(ctx, host, "ip", "-json", "address", "show")
	if err != nil {
		return nil, err
	}
	return parseAddresses([]byte(text))
}

// parseAddresses parses the output of "ip -json address show".
func parseAddresses(text []byte) ([]IfAddr, error) {
	var links []struct {
		Name      string `json:"ifname"`
		Addresses []struct {
			Local         netip.Addr      `json:"local"`
			Bits          int             `json:"prefixlen"`
			Valid         uint32          `json:"valid_life_time"`
			Preferred     uint32          `json:"preferred_life_time"`
			NoPrefixRoute bool            `json:"noprefixroute"`
			NoDAD         bool            `json:"nodad"`
			Tentative     bool            `json:"tentative"`
			DADFailed     bool            `json:"dadfailed"`
			Protocol      json.RawMessage `json:"protocol"` // a name or a number
		} `json:"addr_info"`
	}
	if err := json.Unmarshal(text, &links); err != nil {
		return nil, fmt.Errorf("parse addresses: %w", err)
	}
	var all []IfAddr
	for _, link := range links {
		for _, a := range link.Addresses {
			if !a.Local.IsValid() {
				continue // ip(8) prints an empty object for what it has filtered
			}
			all = append(all, IfAddr{
				Link:          link.Name,
				Prefix:        netip.PrefixFrom(a.Local, a.Bits),
				Valid:         lifetime(a.Valid),
				Preferred:     lifetime(a.Preferred),
				NoPrefixRoute: a.NoPrefixRoute,
				NoDAD:         a.NoDAD,
				Tentative:     a.Tentative,
				DADFailed:     a.DADFailed,
				Protocol:      strings.Trim(string(a.Protocol), `"`),
			})
		}
	}
	return all, nil
}

// lifetime converts the kernel's lifetime, in seconds. The largest number means no end.
func lifetime(seconds uint32) time.Duration {
	if seconds == math.MaxUint32 {
		return Forever
	}
	return time.Duration(seconds) * time.Second
}

// Holders lists the hosts that have an address on any interface, in the order
// of [Lab.Hosts].
func (l *Lab) Holders(ctx context.Context, address netip.Addr) ([]string, error) {
	var holders []string
	for _, h := range l.plan().hosts() {
		all, err := l.Addresses(ctx, h.Name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(a IfAddr) bool { return a.Prefix.Addr() == address }) {
			holders = append(holders, h.Name)
		}
	}
	return holders, nil
}

// MAC returns the hardware address of a host's eth0, in lower case.
func (l *Lab) MAC(ctx context.Context, host string) (string, error) {
	text, err := l.Exec(ctx, host, "ip", "-json", "link", "show", link)
	if err != nil {
		return "", err
	}
	var links []struct {
		Address string `json:"address"`
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil {
		return "", fmt.Errorf("parse the link of %s: %w", host, err)
	}
	if len(links) != 1 {
		return "", fmt.Errorf("parse the link of %s: %d links, want one", host, len(links))
	}
	return links[0].Address, nil
}

// Neighbour looks an address up in the neighbour table (ARP or NDP) of a host.
// The state is one of ip-neighbour(8), such as REACHABLE or STALE. Without an entry both
// are empty. If the entry is not resolved, mac is empty.
func (l *Lab) Neighbour(ctx context.Context, host string, address netip.Addr) (mac, state string, err error) {
	text, err := l.Exec(ctx, host, "ip", "-json", "neighbour", "show", "to", address.String(), "dev", link)
	if err != nil {
		return "", "", err
	}
	return parseNeighbour([]byte(text))
}

// parseNeighbour parses the output of "ip -json neighbour show to ADDRESS".
func parseNeighbour(text []byte) (mac, state string, err error) {
	var entries []struct {
		MAC   string   `json:"lladdr"`
		State []string `json:"state"`
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		return "", "", nil
	}
	if err := json.Unmarshal(text, &entries); err != nil {
		return "", "", fmt.Errorf("parse neighbours: %w", err)
	}
	if len(entries) == 0 {
		return "", "", nil
	}
	return entries[0].MAC, strings.Join(entries[0].State, ","), nil
}

// FlushNeighbours empties the neighbour table of a host's eth0.
func (l *Lab) FlushNeighbours(ctx context.Context, host string) error {
	return l.ip(ctx, host, "neighbour", "flush", "dev", link)
}

// ARPing asks on the link of a host, by ARP for IPv4 and by NDP for IPv6, which stations
// have an address. It returns the hardware addresses of all that answer within about a
// second, sorted, in lower case. More than one is a conflict.
func (l *Lab) ARPing(ctx context.Context, host string, address netip.Addr) ([]string, error) {
	argv := []string{"arping", "-b", "-c", "1", "-I", link, address.String()}
	parse := parseARPing
	if address.Is6() {
		argv = []string{"ndisc6", "-m", "-q", "-r", "1", "-w", "1000", address.String(), link}
		parse = parseNDisc
	}
	text, err := l.Exec(ctx, host, argv...)
	macs := parse(text)
	var status *exec.ExitError
	if err != nil && (len(macs) > 0 || !errors.As(err, &status) || status.ExitCode() < 0) {
		return nil, err
	}
	if err != nil && status.ExitCode() > 2 {
		return nil, err // 1 and 2 say that no station has answered
	}
	return macs, nil
}

// parseARPing finds the answers in the output of arping of iputils:
//
//	Unicast reply from 10.77.0.11 [02:00:00:77:00:11]  0.617ms
func parseARPing(text string) []string {
	var macs []string
	for line := range strings.Lines(text) {
		_, rest, ok := strings.Cut(line, " reply from ")
		_, rest, found := strings.Cut(rest, "[")
		mac, _, closed := strings.Cut(rest, "]")
		if ok && found && closed {
			macs = append(macs, strings.ToLower(mac))
		}
	}
	slices.Sort(macs)
	return slices.Compact(macs)
}

// parseNDisc finds the answers in the output of "ndisc6 -q": one on each line.
func parseNDisc(text string) []string {
	macs := strings.Fields(strings.ToLower(text))
	slices.Sort(macs)
	return slices.Compact(macs)
}
