package announced_test

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// An agent's message holds sequences that command a terminal. The condition of the Service quotes
// the message in one line, cut and without these sequences.
func TestAttackUnprintableReport(t *testing.T) {
	a := on("n1", [3]string{"10.0.0.1", "Local", "Failed"})
	a.Status.Addresses[0].Message = "no\x1b]52;c;cm0=\x07\x1b[2K\u202e\r\n10.0.0.1   Announced" +
		strings.Repeat(" long", 500)
	c := announced.Summarise(
		[]netip.Addr{netip.MustParseAddr("10.0.0.1")}, announced.PlacesOf("a/b", []v1.Announcement{a}, nil, nil),
		unexplained,
	).Condition
	const want = "0 of 1 announcements are made; 10.0.0.1 on n1 is Failed (no?]52;c;cm0=??[2K? 10.0.0.1 Announced long"
	if !strings.HasPrefix(c.Message, want) || len(c.Message) > 1024 ||
		strings.ContainsFunc(c.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("got  %d bytes: %q\nwant %q", len(c.Message), c.Message, want)
	}
}
