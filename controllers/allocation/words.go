package allocation

import (
	"fmt"
	"net/netip"
	"strings"
)

// JoinAddresses lists addresses for messages.
func JoinAddresses(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ", ")
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
	return fmt.Sprintf("%s in use by %s (%s)", countOf(addresses, "address"), countOf(len(services), "Service"), abbreviate(services, ", "))
}

// abbreviate lists five names, and says how many more there are.
func abbreviate(names []string, separator string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], separator), len(names)-most)
}
