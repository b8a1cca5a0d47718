package allocation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// ParseGroup turns the spec of a ServiceGroup into a Group. Warnings tell its author
// that the group is valid, and that something in it may not be what the author meant.
// If errs is not empty, the caller must not allocate from the Group.
func ParseGroup(sg *v1.ServiceGroup) (group Group, warnings []string, errs field.ErrorList) {
	group = Group{Name: sg.Name, ShareAcrossNamespaces: sg.Spec.ShareAcrossNamespaces, PolicyLocal: PolicyLocalOf(sg)}
	group.AutoAssign = ptr.Deref(sg.Spec.AutoAssign, sg.Name == v1.DefaultServiceGroup)
	if bgp := sg.Spec.BGP; bgp != nil {
		group.AllowServices = bgp.AllowServices
	}
	spec := field.NewPath("spec")

	local, remote, netbox := sg.Spec.Local, sg.Spec.Remote, sg.Spec.Netbox
	set := 0
	for _, isSet := range []bool{local != nil, remote != nil, netbox != nil} {
		if isSet {
			set++
		}
	}
	switch {
	case set != 1:
		errs = field.ErrorList{field.Invalid(spec, set, "exactly one of local, remote and netbox must be set")}
	case local != nil:
		group.Type = v1.PoolTypeLocal
		group.SkipIPv6DAD = local.SkipIPv6DAD
		warnings, errs = parsePoolSet(&group, &local.PoolSet, spec.Child("local"))
	case remote != nil:
		group.Type = v1.PoolTypeRemote
		warnings, errs = parsePoolSet(&group, &remote.PoolSet, spec.Child("remote"))
		if group.PolicyLocal == v1.PolicyLocalAllow {
			warnings = append(warnings,
				spec.Child("policyLocal").String()+
					": addresses of remote pools are Virtual, and keep externalTrafficPolicy Local anyway, "+
					"unless Services share them: Allow is only for those")
		}
	default:
		group.Type = v1.PoolTypeNetbox
		group.Netbox, warnings, errs = parseNetbox(netbox, spec.Child("netbox"))
		group.Ranges = group.Netbox.netboxRanges(&sg.Status)
	}
	var namespaceErrs, reservationErrs field.ErrorList
	group.NamespaceSelector, namespaceErrs = parseAllowedNamespaces(
		sg.Spec.AllowedNamespaces, spec.Child("allowedNamespaces"),
	)
	group.Reservations, reservationErrs = parseReservations(
		sg.Spec.Reservations, &group, len(errs) == 0, spec.Child("reservations"),
	)
	var stickyErrs, preferenceErrs field.ErrorList
	group.StickyFor, stickyErrs = parseStickyFor(sg, spec.Child("stickyFor"))
	group.Preference, preferenceErrs = placement.ParsePreference(&sg.Spec, spec)
	return group, warnings, slices.Concat(errs, namespaceErrs, reservationErrs, stickyErrs, preferenceErrs)
}

// poolField is one range as the user wrote it, and the path of the field that it is in.
type poolField struct {
	pool v1.AddressPool
	path *field.Path
}

// parsePoolSet adds the ranges of a PoolSet, in every form that users write them in,
// to group.
func parsePoolSet(group *Group, set *v1.PoolSet, path *field.Path) (warnings []string, errs field.ErrorList) {
	if set.MultiPool && set.BalancePools {
		errs = append(errs, field.Invalid(path.Child("balancePools"), true, "multiPool and balancePools exclude each other"))
	}
	group.MultiPool, group.BalancePools = set.MultiPool, set.BalancePools

	addRange := func(p poolField, family Family) {
		r, warning, err := parseRange(p, family)
		errs = append(errs, err...)
		if len(err) > 0 {
			return
		}
		if warning != "" {
			warnings = append(warnings, warning)
		}
		if other, overlaps := group.rangeOverlapping(r); overlaps {
			errs = append(errs, field.Invalid(p.path.Child("pool"), p.pool.Pool,
				fmt.Sprintf("range %s overlaps range %s of the same group", r, other)))
			return
		}
		group.Ranges = append(group.Ranges, r)
	}

	addOldestForm := func(family Family, otherRanges int) {
		switch {
		case set.Pool == "" || familyOfSubnet(set.Subnet) != family:
		case otherRanges > 0:
			errs = append(errs, field.Invalid(path.Child("pool"), set.Pool,
				fmt.Sprintf("the group has %s ranges in another form already: move this one into the list", family)))
		default:
			addRange(poolField{v1.AddressPool{Pool: set.Pool, Subnet: set.Subnet, Aggregation: set.Aggregation}, path}, family)
		}
	}

	v4 := poolFields(set.V4Pools, set.V4Pool, path, "v4pool")
	for _, p := range v4 {
		addRange(p, IPv4)
	}
	addOldestForm(IPv4, len(v4))
	v6 := poolFields(set.V6Pools, set.V6Pool, path, "v6pool")
	for _, p := range v6 {
		addRange(p, IPv6)
	}
	addOldestForm(IPv6, len(v6))
	if len(errs) == 0 && len(group.Ranges) == 0 {
		errs = append(
			errs, field.Required(path, "at least one pool is needed: v4pools, v6pools, v4pool, v6pool, or pool with subnet"),
		)
	}
	return warnings, errs
}

// poolFields returns the ranges of one family: those of the list, then the single one.
func poolFields(list []v1.AddressPool, single *v1.AddressPool, path *field.Path, name string) []poolField {
	all := make([]poolField, 0, len(list)+1)
	for i := range list {
		all = append(all, poolField{list[i], path.Child(name + "s").Index(i)})
	}
	if single != nil {
		all = append(all, poolField{*single, path.Child(name)})
	}
	return all
}

// parseRange parses one range, and the subnet and mask beside it.
func parseRange(p poolField, family Family) (Range, string, field.ErrorList) {
	subnet, err := parseSubnet(p.pool.Subnet, family)
	if err != nil {
		return Range{}, "", field.ErrorList{field.Invalid(p.path.Child("subnet"), p.pool.Subnet, err.Error())}
	}
	var errs field.ErrorList
	mask, err := parseAggregation(p.pool.Aggregation, subnet.Addr().BitLen())
	if err != nil {
		errs = append(errs, field.Invalid(p.path.Child("aggregation"), string(p.pool.Aggregation), err.Error()))
	}
	if mask == 0 {
		mask = subnet.Bits()
	}
	addrs, warning, err := parsePool(p.pool.Pool, subnet)
	if err != nil {
		errs = append(errs, field.Invalid(p.path.Child("pool"), p.pool.Pool, err.Error()))
	} else if warning != "" {
		warning = fmt.Sprintf("%s: %s", p.path.Child("pool"), warning)
	}
	return Range{Addrs: addrs, Subnet: subnet, Mask: mask, PoolText: p.pool.Pool, Path: p.path.Child("pool")}, warning,
		errs
}

func parseSubnet(s string, family Family) (netip.Prefix, error) {
	subnet, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("must be a subnet in CIDR form, such as 192.168.1.0/24 or fd00:1::/64")
	case subnet.Addr().Is4In6():
		return netip.Prefix{}, errors.New("must not be an IPv4-mapped IPv6 subnet")
	case FamilyOf(subnet.Addr()) != family:
		return netip.Prefix{}, fmt.Errorf("must be an %s subnet", family)
	case subnet.Bits() == 0:
		return netip.Prefix{}, errors.New("must not be all addresses of a family")
	case subnet.Masked() != subnet:
		return netip.Prefix{}, fmt.Errorf("has bits set beyond its prefix length; did you mean %s?", subnet.Masked())
	}
	return subnet, nil
}

// parseAggregation returns the length of the mask, or 0 for the subnet's mask.
func parseAggregation(a v1.Aggregation, longest int) (int, error) {
	if a == "" || a == "default" {
		return 0, nil
	}
	digits, slash := strings.CutPrefix(string(a), "/")
	n, err := strconv.Atoi(digits)
	if !slash || err != nil || n < 1 || n > longest || strconv.Itoa(n) != digits {
		return 0, fmt.Errorf("must be \"default\" or a mask from /1 to /%d", longest)
	}
	return n, nil
}

// parsePool parses a pool: a CIDR, a range first-last or a single address. All of its
// addresses must lie in subnet.
func parsePool(s string, subnet netip.Prefix) (addrs netipx.IPRange, warning string, err error) {
	switch {
	case strings.Contains(s, "/"):
		addrs, warning, err = parseCIDRPool(s)
	case strings.Contains(s, "-"):
		addrs, err = parseDashPool(s, subnet)
	default:
		addrs, err = parseSinglePool(s)
	}
	if err != nil {
		return netipx.IPRange{}, "", err
	}
	for _, end := range []netip.Addr{addrs.From(), addrs.To()} {
		switch {
		case end.Is4In6():
			return netipx.IPRange{}, "", fmt.Errorf("%s is an IPv4-mapped IPv6 address; write it as %s", end, end.Unmap())
		case FamilyOf(end) != FamilyOf(subnet.Addr()):
			return netipx.IPRange{}, "", fmt.Errorf("%s is not of the same family as subnet %s", end, subnet)
		case !subnet.Contains(end):
			return netipx.IPRange{}, "", fmt.Errorf("%s is outside subnet %s", end, subnet)
		}
	}
	if err := checkSpecialBlocks(addrs); err != nil {
		return netipx.IPRange{}, "", err
	}
	return addrs, warning, nil
}

// checkSpecialBlocks refuses a range with addresses that no Service can have.
func checkSpecialBlocks(addrs netipx.IPRange) error {
	for _, b := range blocksWithoutServices {
		if addrs.Overlaps(netipx.RangeOfPrefix(b.prefix)) {
			return fmt.Errorf("range %s has addresses of %s (%s), which no Service can have", addrs, b.prefix, b.what)
		}
	}
	return nil
}

// blocksWithoutServices are special-purpose addresses (RFC 6890 and the registries of
// IANA) that nodes neither accept from other hosts nor route to them as unicast.
var blocksWithoutServices = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

func parseSinglePool(s string) (netipx.IPRange, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netipx.IPRange{}, errors.New("must be a CIDR, a range first-last, or one address")
	}
	return netipx.IPRangeFrom(addr, addr), checkZone(addr)
}

// checkZone refuses an address with a zone, which an IPRange would silently lose.
func checkZone(a netip.Addr) error {
	if a.Zone() != "" {
		return fmt.Errorf("%s has a zone", a)
	}
	return nil
}

// parseCIDRPool parses a CIDR. A CIDR with host bits begins at the address as written.
func parseCIDRPool(s string) (netipx.IPRange, string, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netipx.IPRange{}, "", errors.New("must be a CIDR, a range first-last, or one address")
	}
	if prefix == prefix.Masked() {
		return netipx.RangeOfPrefix(prefix), "", nil
	}
	addrs := netipx.IPRangeFrom(prefix.Addr(), netipx.PrefixLastIP(prefix))
	return addrs, fmt.Sprintf("%s has host bits: addresses are taken from %s", s, addrs), nil
}

func parseDashPool(s string, subnet netip.Prefix) (netipx.IPRange, error) {
	from, to, _ := strings.Cut(s, "-")
	first, err := netip.ParseAddr(strings.TrimSpace(from))
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("%q, before the dash, is not an address", from)
	}
	last, err := netip.ParseAddr(strings.TrimSpace(to))
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("%q, after the dash, is not an address", to)
	}
	if err := cmp.Or(checkZone(first), checkZone(last)); err != nil {
		return netipx.IPRange{}, err
	}
	if first.BitLen() != last.BitLen() {
		return netipx.IPRange{}, fmt.Errorf("%s and %s are of different families", first, last)
	}
	if last.Less(first) {
		return netipx.IPRange{},
			fmt.Errorf("ends (%s) before it starts (%s)%s", last, first, rangeSuggestionText(first, last, subnet))
	}
	return netipx.IPRangeFrom(first, last), nil
}

// rangeSuggestionText guesses what the author meant by a range that ends before it starts:
// either its end lies in the subnet, as its start does, or its ends are swapped.
func rangeSuggestionText(first, last netip.Addr, subnet netip.Prefix) string {
	for _, guess := range [][2]netip.Addr{{first, withNetwork(last, subnet)}, {last, first}} {
		from, to := guess[0], guess[1]
		if subnet.Contains(from) && subnet.Contains(to) && !to.Less(from) {
			return fmt.Sprintf("; did you mean %s-%s?", from, to)
		}
	}
	return ""
}

// withNetwork returns addr with its network bits replaced by those of the subnet.
func withNetwork(addr netip.Addr, subnet netip.Prefix) netip.Addr {
	if addr.BitLen() != subnet.Addr().BitLen() {
		return addr
	}
	host, network := addr.AsSlice(), subnet.Addr().AsSlice()
	for i := range host {
		bits := min(max(subnet.Bits()-8*i, 0), 8)
		mask := byte(0xff << (8 - bits))
		host[i] = network[i]&mask | host[i]&^mask
	}
	merged, _ := netip.AddrFromSlice(host)
	return merged
}

func familyOfSubnet(s string) Family {
	if prefix, err := netip.ParsePrefix(s); err == nil {
		return FamilyOf(prefix.Addr())
	}
	return IPv4
}
