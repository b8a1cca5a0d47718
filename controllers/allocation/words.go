package allocation

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// maxNamedInMessage is how many of several things a message names.
const maxNamedInMessage = 5

// JoinAddresses lists addresses for messages.
func JoinAddresses(addrs []netip.Addr) string {
	return strings.Join(textlimit.Texts(addrs), ", ")
}

// countOf writes a number with its noun, such as "1 range" or "2 ranges".
func countOf(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// DescribeInUse says how many addresses Services have, and names some of these.
func DescribeInUse(addresses int, services []string) string {
	return fmt.Sprintf(
		"%s in use by %s (%s)", countOf(addresses, "address"), countOf(len(services), "Service"),
		textlimit.List(services, maxNamedInMessage, ", "),
	)
}
