package allocation

import (
	"net/netip"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// decisionAbout is a decision about Service test/new, which has addr by an old key, beside
// another Service that has addr in use.
func decisionAbout(addr netip.Addr, newKey string, other *Service) *decision {
	req := &Request{Service: Service{
		Namespace: "test", Name: "new", IsOurs: true, SharingKey: newKey,
		Allocated: Record{Addresses: []netip.Addr{addr}, Key: "old"}, Addresses: []netip.Addr{addr},
	}}
	return newDecision(req, &Inputs{Catalog: Catalog{}, InUse: NewInUse(&req.Service, other)})
}

// TestKeyOfKeptAddresses keeps an address whose sharer has one key or another.
func TestKeyOfKeptAddresses(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct{ name, keyOfSharer, want string }{
		{"the sharer has the old key", "old", "old"},
		{"the sharer has the new key", "new", "new"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decisionAbout(addr, "new", &Service{
				Namespace: "test", Name: "sharer", IsOurs: true, SharingKey: row.keyOfSharer,
				Allocated: Record{Addresses: []netip.Addr{addr}, Key: "old"}, Addresses: []netip.Addr{addr},
			})
			if key, _ := d.sharingTermsFor([]netip.Addr{addr}); key != row.want {
				t.Errorf("it has the address by key %q, want %q", key, row.want)
			}
		})
	}
}

// TestSharingAcrossNamespaces has an address in two external groups: the group that the other Service has it
// from decides.
func TestSharingAcrossNamespaces(t *testing.T) {
	pool, addr := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParseAddr("10.0.0.1")
	groupThatShares := func(name string, shares bool) *Verdict {
		return &Verdict{Reason: v1.ReasonAccepted, Group: Group{
			Name: name, Type: v1.PoolTypeNetbox, Netbox: &Netbox{}, ShareAcrossNamespaces: shares,
			Ranges: []Range{{Addrs: netipx.RangeOfPrefix(pool), Subnet: pool}},
		}}
	}
	for _, row := range []struct {
		group     string
		isRefused bool
	}{{"a", true}, {"b", false}} {
		other := &Service{
			Namespace: "other", Name: "web", IsOurs: true, SharingKey: "key", Addresses: []netip.Addr{addr},
			Allocated: Record{Addresses: []netip.Addr{addr}, Key: "key", Group: row.group},
		}
		d := decisionAbout(addr, "key", other)
		d.Catalog = Catalog{"a": groupThatShares("a", false), "b": groupThatShares("b", true)}
		if refused := d.refuseToShare(addr, other); (refused != nil) != row.isRefused {
			t.Errorf("an address of group %s: %v", row.group, refused)
		}
	}
}

// TestPortsToRecord records the ports of Services that may share an address with other namespaces.
func TestPortsToRecord(t *testing.T) {
	few, many := make(PortSet, MaxRecordedPorts), make(PortSet, MaxRecordedPorts+1)
	for _, row := range []struct {
		name    string
		service Service
		want    int
	}{
		{"a key", Service{SharingKey: "k", Ports: few}, MaxRecordedPorts},
		{"no key", Service{Ports: few}, 0},
		{"a key and policy Local", Service{SharingKey: "k", HasPolicyLocal: true, Ports: few}, 0},
		{"more ports than a record has room for", Service{SharingKey: "k", Ports: many}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := newDecision(&Request{Service: row.service}, &Inputs{Catalog: Catalog{}, InUse: NewInUse(&row.service)})
			if got := len(d.portsToRecord()); got != row.want {
				t.Errorf("it records %d ports, want %d", got, row.want)
			}
		})
	}
}

// TestPolicyLocalByGroup asks which Services leave it to their ServiceGroup whether policy Local stays.
func TestPolicyLocalByGroup(t *testing.T) {
	for _, row := range []struct {
		policy     corev1.ServiceExternalTrafficPolicy
		annotation string
		want       bool
	}{
		{corev1.ServiceExternalTrafficPolicyLocal, "", true},
		{corev1.ServiceExternalTrafficPolicyLocal, "true", false},
		{corev1.ServiceExternalTrafficPolicyLocal, "false", false},
		{corev1.ServiceExternalTrafficPolicyCluster, "", false},
		{corev1.ServiceExternalTrafficPolicyCluster, "true", false},
	} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{ExternalTrafficPolicy: row.policy}}
		if row.annotation != "" {
			svc.Annotations = map[string]string{v1.AnnotationAllowLocal: row.annotation}
		}
		if got := ServiceOf(svc, true).IsPolicyLocalUpToGroup; got != row.want {
			t.Errorf("policy %s, annotation %q: %t, want %t", row.policy, row.annotation, got, row.want)
		}
	}
}

// TestPortsBetweenNamespaces has Services of two namespaces share an address as long as records have room
// for the ports of each.
func TestPortsBetweenNamespaces(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	ports := func(n int, first uint16) PortSet {
		set := make(PortSet, n)
		for i := range set {
			set[i] = port(1<<16) | port(first+uint16(i))
		}
		return set
	}
	for _, row := range []struct {
		name                 string
		namespace            string // of the other Service
		numberOf, numberHere int
		want                 bool
	}{
		{"as many as records have room for", "elsewhere", MaxRecordedPorts, MaxRecordedPorts, true},
		{"one more of the other Service", "elsewhere", MaxRecordedPorts + 1, 1, false},
		{"one more of this Service", "elsewhere", 1, MaxRecordedPorts + 1, false},
		{"one more within a namespace", "test", MaxRecordedPorts + 1, MaxRecordedPorts + 1, true},
	} {
		other := &Service{Namespace: row.namespace, Name: "other", SharingKey: "k", Ports: ports(row.numberOf, 1000)}
		d := decisionAbout(addr, "k", other)
		d.Ports = ports(row.numberHere, 2000)
		if no := d.refuseKeysAndPorts(addr, other); (no == nil) != row.want {
			t.Errorf("%s: may share %t: %+v", row.name, no == nil, no)
		}
	}
}

// TestWhoYields has two Services with one address that they may not share.
func TestWhoYields(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	allocated := Record{Addresses: []netip.Addr{addr}}
	for _, row := range []struct {
		name      string
		allocated Record // to the Service of the decision
		other     Service
		want      bool
	}{
		{"a Service of another controller shows an allocated address", allocated, Service{}, false},
		{"a Service of another controller shows an address that is not allocated", Record{}, Service{}, true},
		{
			"an address is allocated to both, and the other is older", allocated, Service{IsOurs: true, Allocated: allocated},
			true,
		},
		{"an address is allocated to both, and about to be written to the other", allocated,
			*(&Service{IsOurs: true}).WithPendingAddresses(allocated.Addresses), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			other := row.other
			other.Namespace, other.Name, other.Addresses = "test", "another", []netip.Addr{addr}
			d := decisionAbout(addr, "", &other)
			d.Allocated = row.allocated
			if yields := d.losesAddressTo(addr, &other); yields != row.want {
				t.Errorf("it yields: %t, want %t", yields, row.want)
			}
		})
	}
}

// TestPendingSharerTakesNothing has a Service change its key while the manager is about to write its
// address to a Service with the old key, and nobody knows yet whether that is written.
func TestPendingSharerTakesNothing(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	has := &Service{
		Namespace: "test", Name: "has", IsOurs: true, SharingKey: "new", Addresses: []netip.Addr{addr},
		Allocated: Record{Addresses: []netip.Addr{addr}, Key: "old", Ports: make(PortSet, 1)}, Ports: make(PortSet, 1),
	}
	joins := (&Service{Namespace: "test", Name: "joins", IsOurs: true, SharingKey: "old"}).
		WithPendingAddresses([]netip.Addr{addr})
	if first := NewInUse(has, joins).ServicesWith(addr)[0]; first != has {
		t.Errorf("Service %s keeps the address", first)
	}
}

// TestAddressOfKeyInNamespace has an older Service of another namespace with the same key.
func TestAddressOfKeyInNamespace(t *testing.T) {
	pool := netip.MustParsePrefix("10.0.0.0/24")
	sharer := func(namespace, name, addr string) *Service {
		addrs := []netip.Addr{netip.MustParseAddr(addr)}
		return &Service{
			Namespace: namespace, Name: name, IsOurs: true, SharingKey: "k", Allocated: Record{Addresses: addrs, Key: "k"},
			Addresses: addrs,
		}
	}
	elsewhere, here := sharer("elsewhere", "older", "10.0.0.1"), sharer("test", "sharer", "10.0.0.2")
	d := newDecision(&Request{Service: Service{Namespace: "test", Name: "new", IsOurs: true, SharingKey: "k"}},
		&Inputs{Catalog: Catalog{}, InUse: NewInUse(elsewhere, here)})
	a, s := d.addressOfKey(slot{family: FamilyOf(pool.Addr()), ranges: []Range{{Addrs: netipx.RangeOfPrefix(pool)}}})
	if a != here.Addresses[0] || s != here {
		t.Errorf("the key stands for %s of %v, want that of the sharer in the namespace", a, s)
	}
}
