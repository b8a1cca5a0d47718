package plugin

import (
	"bytes"
	"io"
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

// Whoever has the token of an agent or a speaker writes messages. They neither command the terminal
// of who asks, nor forge rows. This test shows the row "command the terminal of whoever reads its
// reports, or forge rows and lines there" of docs/trust.md.
func TestAttackForgedRow(t *testing.T) {
	type result interface {
		WriteText(w io.Writer, style Style) error
	}
	const forged = "node9   eth0   02:00:00:00:00:09   Local   Announced"
	addr := netip.MustParseAddr("192.168.1.240")
	for name, texts := range map[string]func(*Cluster) result{
		"where":  func(c *Cluster) result { return LocateAddress(c, addr) },
		"status": func(c *Cluster) result { return StatusOf(c) },
	} {
		t.Run(name, func(t *testing.T) {
			write := func(message string, style Style) string {
				c := clusterOf(t, func(o *Objects) {
					for i := range o.Announcements {
						for k := range o.Announcements[i].Status.Addresses {
							s := &o.Announcements[i].Status.Addresses[k]
							s.State, s.Message = "Failed", message
						}
					}
					for i := range o.BGPPeers {
						for k := range o.BGPPeers[i].Status.Conditions {
							o.BGPPeers[i].Status.Conditions[k].Message = message
						}
					}
				})
				var out bytes.Buffer
				if err := texts(c).WriteText(&out, style); err != nil {
					t.Fatal(err)
				}
				return out.String()
			}
			for _, style := range []Style{{}, {Wide: true}} {
				plain, got := write("ok", style), write("ok\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2K\u009b\u202e\r\n"+forged, style)
				if !strings.Contains(plain, "ok") {
					t.Fatalf("the message is not shown: %s", plain)
				}
				if strings.Count(got, "\n") != strings.Count(plain, "\n") ||
					strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
					t.Errorf("got %q", got)
				}
			}
			if colored := write("ok\x1b[2K", Style{Color: true}); strings.Contains(colored, "\x1b[2K") {
				t.Errorf("with colours: %q", colored)
			}
		})
	}
}
