package allocation

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// What NetBox records of addresses unless the group says otherwise.
const (
	defaultNetboxStatus = "active"
	defaultNetboxRole   = "vip"
	defaultNetboxTag    = "purelb"
)

// The longest masks of the families.
const (
	longestIPv4Mask = 32
	longestIPv6Mask = 128
)

// NetboxVRFGlobal is the VRF of a selector that stands for none.
const NetboxVRFGlobal = "global"

// Netbox says how a group's addresses are allocated from NetBox: spec.netbox, parsed.
type Netbox struct {
	// URL has no /api and no slash at its end.
	URL      string
	CABundle string // PEM, or empty for what the system trusts
	// TokenSecret and TokenKey name the Secret with the token, in the group's namespace.
	TokenSecret, TokenKey string
	// Tenant is a slug, or empty.
	Tenant string
	// Sources are empty if the addresses are those reserved for the tenant.
	Sources map[Family]NetboxSource
	// Status, Role and Tags are what addresses of Services have in NetBox. Those that are
	// reserved for a tenant keep their role and tags where these are empty.
	Status, Role string
	Tags         []string
	// DNSName is the template of a DNS name, or empty.
	DNSName string
	// Masks are the masks that Virtual addresses get; of a family without one it is that of their subnet.
	Masks map[Family]int
}

// NetboxSource says from which prefixes and ranges the addresses of one family come.
type NetboxSource struct {
	Prefixes []netip.Prefix
	Ranges   []netipx.IPRange
	// Selector is empty if there is none.
	Selector v1.NetboxSelector
}

// NetboxName is what messages call NetBox.
const NetboxName = "NetBox"

// SystemName is what messages call the system that the addresses come from.
func (n *Netbox) SystemName() string { return NetboxName + " " + n.URL }

// IsByTenant reports whether the addresses are those that NetBox has reserved for a
// tenant.
func (n *Netbox) IsByTenant() bool { return len(n.Sources) == 0 }

// describeSource says whose records the addresses have in NetBox: those that are reserved for a tenant, or new ones.
func (n *Netbox) describeSource() string {
	if n.IsByTenant() {
		return "addresses reserved for tenant " + n.Tenant
	}
	return "prefixes and ranges"
}

// The parts of a DNS name that stand for those of a Service.
const (
	dnsNameOfService = "{{.Name}}"
	dnsNamespace     = "{{.Namespace}}"
)

var dnsNamePattern = regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?$`)

// DNSNameOf returns the DNS name that the addresses of a Service have in NetBox. It is
// empty if they have none, or if the name would be longer than NetBox stores.
func (n *Netbox) DNSNameOf(namespace, name string) string {
	const maxDNSName = 255
	return emptyIfLonger(
		strings.NewReplacer(dnsNameOfService, name, dnsNamespace, namespace).Replace(n.DNSName), maxDNSName,
	)
}

// parseNetbox parses spec.netbox. path is its path.
func parseNetbox(spec *v1.NetboxPools, path *field.Path) (n *Netbox, warnings []string, errs field.ErrorList) {
	n = &Netbox{
		CABundle: spec.CABundle, TokenSecret: spec.TokenSecretRef.Name, TokenKey: spec.TokenSecretRef.Key,
		Tenant: spec.Tenant,
		Status: spec.Status, Role: spec.Role, Tags: slices.Clone(spec.Tags), DNSName: spec.DNSName,
	}
	isByTenant := spec.V4 == nil && spec.V6 == nil
	if n.Status == "" {
		n.Status = defaultNetboxStatus
	}
	if n.Role == "" && !isByTenant {
		n.Role = defaultNetboxRole
	}
	if len(n.Tags) == 0 && !isByTenant {
		n.Tags = []string{defaultNetboxTag}
	}
	var err error
	if n.URL, err = parseNetboxURL(spec.URL); err != nil {
		errs = append(errs, field.Invalid(path.Child("url"), redactURL(spec.URL), err.Error()))
	} else if strings.HasPrefix(n.URL, "http:") {
		warnings = append(warnings, path.Child("url").String()+": by http, everyone on the way can read the token: use https")
	}
	if n.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(n.CABundle)) {
		errs = append(
			errs, field.Invalid(path.Child("caBundle"), "…", "has no certificate in PEM form (-----BEGIN CERTIFICATE-----)"),
		)
	}
	if sample := n.DNSNameOf("namespace", "name"); n.DNSName != "" && !dnsNamePattern.MatchString(sample) {
		errs = append(
			errs,
			field.Invalid(
				path.Child("dnsName"), n.DNSName,
				"must be a DNS name, in which only "+dnsNameOfService+" and "+dnsNamespace+" are replaced",
			),
		)
	}
	var sourceErrs field.ErrorList
	n.Sources, sourceErrs = parseNetboxSources(spec, path)
	errs = append(errs, sourceErrs...)
	if len(n.Sources) == 0 && n.Tenant == "" {
		errs = append(
			errs,
			field.Required(
				path, "say which addresses Services get: v4, v6, or tenant for the addresses that are reserved for a tenant",
			),
		)
	}
	if n.IsByTenant() && n.Status == reservedNetboxStatus {
		errs = append(
			errs,
			field.Invalid(
				path.Child("status"), n.Status,
				"is the status of the tenant's free addresses: choose another for those of Services",
			),
		)
	}
	var maskErrs field.ErrorList
	n.Masks, maskErrs = parseNetboxMasks(spec, path)
	return n, warnings, append(errs, maskErrs...)
}

// parseNetboxMasks parses the aggregations of spec.netbox: the group's, and those of the families.
func parseNetboxMasks(spec *v1.NetboxPools, path *field.Path) (masks map[Family]int, errs field.ErrorList) {
	masks = map[Family]int{}
	parse := func(a v1.Aggregation, longest int, path *field.Path) (mask int) {
		mask, err := parseAggregation(a, longest)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("aggregation"), string(a), err.Error()))
		}
		return mask
	}
	isOnlyIPv4, isOnlyIPv6 := spec.V4 != nil && spec.V6 == nil, spec.V4 == nil && spec.V6 != nil
	longest := longestIPv6Mask
	if isOnlyIPv4 {
		longest = longestIPv4Mask
	}
	switch mask := parse(spec.Aggregation, longest, path); {
	case isOnlyIPv6 || mask > longestIPv4Mask:
		masks[IPv6] = mask
	default:
		masks[IPv4] = mask
	}
	if spec.V4 != nil && spec.V4.Aggregation != "" {
		masks[IPv4] = parse(spec.V4.Aggregation, longestIPv4Mask, path.Child("v4"))
	}
	if spec.V6 != nil && spec.V6.Aggregation != "" {
		masks[IPv6] = parse(spec.V6.Aggregation, longestIPv6Mask, path.Child("v6"))
	}
	return masks, errs
}

// reservedNetboxStatus is the status of a tenant's addresses that Services can get.
const reservedNetboxStatus = "reserved"

// parseNetboxURL checks the URL of a NetBox, and cuts off slashes and /api at its end.
func parseNetboxURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("must be an http or https URL")
	case u.User != nil:
		return "", errors.New("must not have a user or password: the token goes into the Secret")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("must not have a query or fragment")
	}
	u.Path, u.RawPath = strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/api"), "/"), ""
	return u.String(), nil // the scheme is in lower case
}

// HasURL reports whether text is the URL of the NetBox, with or without /api at its end.
func (n *Netbox) HasURL(text string) bool {
	parsed, err := parseNetboxURL(strings.TrimSpace(text))
	return err == nil && parsed == n.URL
}

// redactURL leaves out of a URL what may be a password.
func redactURL(s string) string {
	if u, err := url.Parse(s); err == nil && u.User == nil {
		return s
	}
	return "…"
}

func parseNetboxSources(
	spec *v1.NetboxPools, path *field.Path,
) (sources map[Family]NetboxSource, errs field.ErrorList) {
	sources = map[Family]NetboxSource{}
	for _, source := range []struct {
		spec   *v1.NetboxSource
		family Family
		name   string
	}{{spec.V4, IPv4, "v4"}, {spec.V6, IPv6, "v6"}} {
		if source.spec == nil {
			continue
		}
		parsed, sourceErrs := parseNetboxSource(source.spec, source.family, path.Child(source.name))
		sources[source.family] = parsed
		errs = append(errs, sourceErrs...)
	}
	return sources, errs
}

func parseNetboxSource(
	spec *v1.NetboxSource, family Family, path *field.Path,
) (source NetboxSource, errs field.ErrorList) {
	if spec.Selector != nil {
		source.Selector = *spec.Selector
		if source.Selector == (v1.NetboxSelector{}) {
			errs = append(errs, field.Required(path.Child("selector"), "at least one of tag, role, tenant and vrf is needed"))
		}
	}
	for i, text := range spec.Prefixes {
		prefix, err := parseSubnet(text, family)
		if err == nil {
			err = checkSpecialBlocks(netipx.RangeOfPrefix(prefix))
		}
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("prefixes").Index(i), text, err.Error()))
			continue
		}
		source.Prefixes = append(source.Prefixes, prefix)
	}
	for i, text := range spec.Ranges {
		r, err := parseNetboxRange(text, family)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child("ranges").Index(i), text, err.Error()))
			continue
		}
		source.Ranges = append(source.Ranges, r)
	}
	if len(spec.Prefixes) == 0 && len(spec.Ranges) == 0 && spec.Selector == nil {
		errs = append(errs, field.Required(path, "at least one of prefixes, ranges and selector is needed"))
	}
	return source, errs
}

func parseNetboxRange(s string, family Family) (netipx.IPRange, error) {
	if !strings.Contains(s, "-") {
		return netipx.IPRange{}, errors.New("must be an IP range of NetBox, as first-last")
	}
	r, err := parseDashPool(s, netip.Prefix{})
	if err != nil {
		return netipx.IPRange{}, err
	}
	if r.From().Is4In6() || FamilyOf(r.From()) != family {
		return netipx.IPRange{}, fmt.Errorf("must be a range of %s addresses", family)
	}
	return r, checkSpecialBlocks(r)
}

// netboxRanges returns the ranges of a group that takes its addresses from NetBox: those
// that the manager found there and wrote into the group's status, without those that the
// specification does not ask for any more.
func (n *Netbox) netboxRanges(status *v1.ServiceGroupStatus) []Range {
	var ranges []Range
	for i := range status.Pools {
		addrs, err1 := netipx.ParseIPRange(status.Pools[i].Range)
		subnet, err2 := netip.ParsePrefix(status.Pools[i].Subnet)
		if err1 != nil || err2 != nil || !n.asksFor(addrs) {
			continue
		}
		r := Range{
			Addrs: addrs, Subnet: subnet, Mask: cmp.Or(n.Masks[FamilyOf(subnet.Addr())], subnet.Bits()),
			PoolText: status.Pools[i].Range, Path: field.NewPath("spec", "netbox"),
		}
		if status.Pools[i].Recorded != nil {
			r.Recorded = *status.Pools[i].Recorded
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// asksFor reports whether the specification may ask for a range.
func (n *Netbox) asksFor(r netipx.IPRange) bool {
	if n.IsByTenant() {
		return true
	}
	source, hasFamily := n.Sources[FamilyOf(r.From())]
	if !hasFamily {
		return false
	}
	if len(source.Prefixes) == 0 && len(source.Ranges) == 0 {
		return true // what the selector finds
	}
	return slices.Contains(source.Ranges, r) ||
		slices.ContainsFunc(source.Prefixes, func(p netip.Prefix) bool { return netipx.RangeOfPrefix(p) == r })
}

// CheckRange says why Services cannot have the addresses of a range of an external
// system, or returns nil.
func CheckRange(r netipx.IPRange) error {
	if !r.IsValid() || r.From().Is4In6() {
		return fmt.Errorf("range %s is not one of IPv4 or IPv6 addresses", r)
	}
	return checkSpecialBlocks(r)
}
