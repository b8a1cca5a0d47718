package allocation_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// serviceWithRecord makes a Service with a record, as text, and shown addresses.
func serviceWithRecord(record, shown string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Annotations: map[string]string{}}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	svc.Status.Conditions = []metav1.Condition{
		{Type: v1.ConditionAllocated}, {Type: v1.ConditionAllocationRecord, Message: record},
	}
	show(svc, addresses(shown)...)
	return svc
}

// manyPorts is a set of n ports.
func manyPorts(n int) allocation.PortSet {
	ports := make([]corev1.ServicePort, n)
	for i := range ports {
		ports[i].Port = int32(1 + i)
	}
	return allocation.PortsOf(ports)
}

func TestRecordRoundTrip(t *testing.T) {
	for _, r := range []allocation.Record{
		{},
		{Addresses: addresses("10.0.0.1"), Group: "default", Type: v1.PoolTypeLocal},
		{Addresses: addresses("fd00::1 10.0.0.1 10.0.0.2"), Group: "a.b-c", Type: v1.PoolTypeRemote, Key: "k"},
		{Addresses: addresses("10.0.0.1"), Type: v1.PoolTypeRemote, Key: " key= group=x type=local 10.0.0.9\n\t,\x00é"},
		{
			Addresses: addresses("10.0.0.1"), Group: "g", Type: v1.PoolTypeLocal, Key: "k ports=UDP/1",
			Ports: portsFrom(t, "53/UDP,65535,1"),
		},
		{
			Addresses: addresses("10.0.0.1"), Group: "g", Type: v1.PoolTypeLocal, Key: "k",
			Ports: manyPorts(allocation.MaxRecordedPorts),
		},
		{
			Addresses: addresses("10.0.0.1"), Group: "g", Type: v1.PoolTypeNetbox,
			Key: strings.Repeat("k", allocation.MaxSharingKey),
		},
	} {
		if diff := cmp.Diff(r, allocation.RecordOf(serviceWithRecord(r.String(), "")), sameAddr); diff != "" {
			t.Errorf("%s (-written +read):\n%s", r, diff)
		}
	}
	for _, text := range []string{
		"", "none", "10.0.0.1", "10.0.0.1 group=g", "10.0.0.1 group=g type=local", "10.0.0.1 type=local group=g key=",
		"none group= type= key=",
		" group=g type=local key=", "10.0.0.1, group=g type=local key=", "10.0.0.1,10.0.0.1 group=g type=local key=",
		"::ffff:10.0.0.1 group=g type=local key=",
		"fe80::1%eth0 group=g type=local key=", "10.0.0.1 group=g type=other key=",
		"10.0.0.1 group=" + strings.Repeat("g", 254) + " type=local key=",
		"10.0.0.1 group=g type=local key=" + strings.Repeat("k", 254),
		"10.0.0.1 group=g type=local ports=TCP key=k", "10.0.0.1 group=g type=local ports=80 key=k",
		"10.0.0.1 group=g type=local ports=TCP/65536 key=k",
		"10.0.0.1 group=g type=local ports=TCP/80, key=k",
		"10.0.0.1 group=g type=local ports=" + manyPorts(allocation.MaxRecordedPorts+1).String() + " key=k",
	} {
		if r := allocation.RecordOf(serviceWithRecord(text, "10.0.0.1")); len(r.Addresses) > 0 {
			t.Errorf("%q is read as %s", text, r)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("10.0.0.1,fd00::1 group=default type=local key=web")
	f.Add("10.0.0.1 group=default type=local ports=TCP/80,UDP/53 key=web")
	f.Add("none")
	f.Fuzz(func(t *testing.T, text string) {
		r := allocation.RecordOf(serviceWithRecord(text, ""))
		if again := allocation.RecordOf(serviceWithRecord(r.String(), "")); !cmp.Equal(r, again, sameAddr) {
			t.Errorf("%q is read as %s, and that as %s", text, r, again)
		}
	})
}

// TestAttackForgedAnnotations lets the author of a Service write what the manager writes
// there for people to read.
func TestAttackForgedAnnotations(t *testing.T) {
	forged := map[string]string{
		v1.AnnotationAllocatedBy: v1.Brand, v1.AnnotationAllocatedFrom: strings.Repeat("z", 300),
		v1.AnnotationPoolType: "mine", v1.AnnotationAllocatedKey: strings.Repeat("k", 300),
	}
	for _, row := range []struct {
		name string
		svc  *corev1.Service
		want allocation.Record
	}{
		{"never served", &corev1.Service{}, allocation.Record{}},
		{
			"never served, but another controller has written it",
			func() *corev1.Service { svc := &corev1.Service{}; show(svc, addresses("8.8.8.8")...); return svc }(),
			allocation.Record{},
		},
		{"waits, and another controller has written it", serviceWithRecord("none", "8.8.8.8"), allocation.Record{}},
		{
			"served", serviceWithRecord("10.0.0.1 group=g type=local key=", "10.0.0.1"),
			allocation.Record{Addresses: addresses("10.0.0.1"), Group: "g", Type: v1.PoolTypeLocal},
		},
		{
			"served, and overwritten", serviceWithRecord("10.0.0.1 group=g type=local key=", "8.8.8.8"),
			allocation.Record{Addresses: addresses("10.0.0.1"), Group: "g", Type: v1.PoolTypeLocal},
		},
	} {
		row.svc.Annotations = forged
		if diff := cmp.Diff(row.want, allocation.RecordOf(row.svc), sameAddr); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
	}
}

// TestFaultForeignAddresses lets other controllers write addresses into Services of
// ours, and checks what the manager takes for its own.
func TestFaultForeignAddresses(t *testing.T) {
	catalog := allocation.NewCatalog([]v1.ServiceGroup{
		groupMadeAt(t, "default", 1, "local: {pool: 192.168.1.0/24, subnet: 192.168.1.0/24}"),
		groupMadeAt(t, "small", 1, "remote: {pool: 10.5.0.1, subnet: 10.5.0.0/24}"),
	}, namespace)
	never := map[netip.Addr]string{
		netip.MustParseAddr("192.168.1.1"): "a gateway", netip.MustParseAddr("192.168.1.2"): "a node's",
		netip.MustParseAddr("192.168.1.3"): "a node's",
	}
	const has9 = "192.168.1.9 group=default type=local key="
	for _, row := range []struct {
		name, record, shown, group, named string
		others                            []string // other Services: their record
		want, display                     string
	}{
		{
			name: "adopts what could have been allocated", record: "none", shown: "192.168.1.77", want: "192.168.1.77",
			display: "192.168.1.77",
		},
		{
			name: "nodes' addresses, as k3s leaves them", record: "none", shown: "192.168.1.2 192.168.1.3", want: "192.168.1.4",
			display: "192.168.1.4",
		},
		{
			name: "nodes' addresses, asked for by name", record: "none", shown: "192.168.1.2", named: "192.168.1.2",
			display: "192.168.1.2",
		},
		{name: "a gateway's address", record: "none", shown: "192.168.1.1", want: "192.168.1.4", display: "192.168.1.4"},
		{name: "network address", record: "none", shown: "192.168.1.0", want: "192.168.1.4", display: "192.168.1.4"},
		{name: "broadcast address", record: "none", shown: "192.168.1.255", want: "192.168.1.4", display: "192.168.1.4"},
		{
			name: "waits: what others have written is left alone", record: "none", shown: "8.8.8.8", group: "nowhere",
			display: "8.8.8.8",
		},
		{
			name: "waits: not even what could be adopted", record: "none", shown: "192.168.1.77", group: "nowhere",
			display: "192.168.1.77",
		},
		{
			name: "waits, but another Service has it", record: "none", shown: "192.168.1.9 8.8.8.8", group: "nowhere",
			others: []string{has9}, display: "8.8.8.8",
		},
		{name: "overwritten in no pool", record: has9, shown: "8.8.8.8", want: "192.168.1.9", display: "192.168.1.9"},
		{name: "overwritten by a gateway's", record: has9, shown: "192.168.1.1", want: "192.168.1.9", display: "192.168.1.9"},
		{name: "overwritten in the pool", record: has9, shown: "192.168.1.77", want: "192.168.1.9", display: "192.168.1.9"},
		{
			name: "overwritten, and the group is gone", record: "10.6.0.1 group=gone type=remote key=", shown: "8.8.8.8",
			want: "10.6.0.1", display: "10.6.0.1",
		},
		{name: "emptied", record: has9, want: "192.168.1.9", display: "192.168.1.9"},
		{name: "added to", record: has9, shown: "192.168.1.9 8.8.8.8", want: "192.168.1.9", display: "192.168.1.9"},
		{name: "overwritten by another Service's, which is younger", record: "192.168.1.8 group=default type=local key=",
			shown:  "192.168.1.9",
			others: []string{has9}, want: "192.168.1.8", display: "192.168.1.8"},
		{
			name: "its own shown by another", record: has9, shown: "192.168.1.9", others: []string{"none 192.168.1.9"},
			want: "192.168.1.9", display: "192.168.1.9",
		},
		{name: "lost: what another controller has written is left alone", record: "10.5.0.1 group=small type=remote key=",
			shown: "10.5.0.1 8.8.8.8", group: "small",
			others: []string{"10.5.0.1 group=small type=remote key= older"}, display: "8.8.8.8"},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := serviceWithRecord(row.record, row.shown)
			svc.CreationTimestamp = metav1.Unix(10, 0)
			svc.Annotations[v1.AnnotationServiceGroup], svc.Annotations[v1.AnnotationAddresses] = row.group, row.named
			used := allocation.NewInUse(allocation.ServiceOf(svc, true))
			for _, words := range row.others {
				record, older := strings.CutSuffix(words, " older")
				other := serviceWithRecord(
					strings.TrimSuffix(record, " 192.168.1.9"), strings.Fields(strings.TrimPrefix(record, "none "))[0],
				)
				other.Name, other.CreationTimestamp = "other", metav1.Unix(20, 0)
				if older {
					other.CreationTimestamp = metav1.Unix(1, 0)
				}
				used.Put(allocation.ServiceOf(other, true))
			}
			result := allocation.Allocate(
				allocation.RequestOf(svc), &allocation.Inputs{Catalog: catalog, InUse: used, NodeAddresses: never},
			)
			if got, shown := allocation.JoinAddresses(result.Addresses),
				allocation.JoinAddresses(result.AddressesToShow(svc)); got != row.want ||
				shown != strings.ReplaceAll(row.display, " ", ", ") {
				t.Errorf(
					"gets %q and shows %q, not %q and %q (%s: %s)", got, shown, row.want, row.display, result.Reason, result.Message,
				)
			}
			show(svc, result.AddressesToShow(svc)...)
			svc.Status.Conditions[1].Message = result.Record().String()
			if served := allocation.AddressesToAnnounce(svc); !slices.Equal(served, result.Addresses) {
				t.Errorf("%v is announced", served)
			}
		})
	}
}

func TestAddressesToAnnounce(t *testing.T) {
	for _, row := range []struct{ name, record, shown, want string }{
		{"recorded and shown", "10.0.0.1,fd00::1 group=g type=local key=", "10.0.0.1 fd00::1", "10.0.0.1 fd00::1"},
		{
			"in the order in which they are shown", "10.0.0.1,fd00::1 group=g type=local key=", "fd00::1 10.0.0.1",
			"fd00::1 10.0.0.1",
		},
		{"recorded and not shown", "10.0.0.1,fd00::1 group=g type=local key=", "fd00::1", "fd00::1"},
		{"shown and not recorded", "10.0.0.1 group=g type=local key=", "10.0.0.1 10.0.0.2", "10.0.0.1"},
		{"recorded as none", "none", "10.0.0.1", ""},
		{"a record that cannot be read", "10.0.0.1 and more", "10.0.0.1", ""},
		{"no record", "", "10.0.0.1", ""},
		{"nothing is shown", "10.0.0.1 group=g type=local key=", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := serviceWithRecord(row.record, row.shown)
			if row.record == "" {
				svc.Status.Conditions = nil
			}
			if got := allocation.AddressesToAnnounce(svc); !slices.Equal(got, addresses(row.want)) {
				t.Errorf("%v, want %q", got, row.want)
			}
		})
	}
}

func TestServiceOfKeepsPortsForSharing(t *testing.T) {
	for _, row := range []struct {
		name, record, key string
		isKept            bool
	}{
		{"no key", "10.0.0.1 group=g type=local key=", "", false},
		{"a key that is asked for", "none", "k", true},
		{"a key that is recorded", "10.0.0.1 group=g type=local key=k", "", true},
	} {
		svc := serviceWithRecord(row.record, "")
		svc.Spec.Ports = []corev1.ServicePort{{Port: 80}}
		svc.Annotations[v1.AnnotationAllowSharedIP] = row.key
		if got := allocation.ServiceOf(svc, true); len(got.Ports) > 0 != row.isKept {
			t.Errorf("%s: ports %v", row.name, got.Ports)
		}
	}
}

// TestAttackSharers lets more Services ask for one address than can have it.
func TestAttackSharers(t *testing.T) {
	inputs := &allocation.Inputs{
		Catalog: allocation.NewCatalog(
			[]v1.ServiceGroup{groupMadeAt(t, "default", 1, "remote: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}")}, namespace,
		),
		InUse: allocation.NewInUse(),
	}
	for i := range allocation.MaxSharers + 20 {
		req := requestFrom(t, "a/s"+strings.Repeat("x", i)+" unbranded group=default key=k")
		req.Ports = allocation.PortsOf([]corev1.ServicePort{{Port: int32(i + 1)}})
		result := allocation.Allocate(req, inputs)
		if gets := len(result.Addresses) == 1; gets != (i < allocation.MaxSharers) {
			t.Fatalf("the %dth: %v %s: %s", i+1, result.Addresses, result.Reason, result.Message)
		}
		if i >= allocation.MaxSharers &&
			(result.Reason != v1.ReasonSharingRefused ||
				!strings.Contains(result.Message, "10.0.0.1 is shared by 100 Services already")) {
			t.Fatalf("%s: %s", result.Reason, result.Message)
		}
		req.Addresses, req.Allocated = result.Addresses, result.Record()
		inputs.InUse.Put(&req.Service)
	}
	if n := len(inputs.InUse.ServicesWith(netip.MustParseAddr("10.0.0.1"))); n != allocation.MaxSharers {
		t.Errorf("%d have it", n)
	}
	// Nor does one adopt it that another controller has written it into.
	late := requestFrom(t, "a/late unbranded group=default key=k 10.0.0.1")
	late.Ports = allocation.PortsOf([]corev1.ServicePort{{Port: 9999}})
	if result := allocation.Allocate(late, inputs); len(result.Addresses) > 0 {
		t.Errorf("adopted: %v", result.Addresses)
	}
}

// TestAttackLongValues writes more on a Service than any value can mean.
func TestAttackLongValues(t *testing.T) {
	inputs := &allocation.Inputs{
		Catalog: allocation.NewCatalog(
			[]v1.ServiceGroup{groupMadeAt(t, "default", 1, "remote: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}")}, namespace,
		),
		InUse: allocation.NewInUse(),
	}
	for name, most := range map[string]int{
		v1.AnnotationServiceGroup: 253, v1.AnnotationAllowSharedIP: 253, v1.AnnotationAddresses: 1024,
	} {
		for _, record := range []string{"none", "10.0.0.1 group=default type=remote key="} {
			svc := serviceWithRecord(record, "")
			svc.Annotations[name] = strings.Repeat("x", most+1)
			result := allocation.Allocate(allocation.RequestOf(svc), inputs)
			if result.Reason != v1.ReasonInvalid || !strings.HasPrefix(result.Message, "annotation "+name+" is ") ||
				len(result.Message) > 200 {
				t.Errorf("%s: %s: %.200s", name, result.Reason, result.Message)
			}
			if got := result.Record().String(); got != record {
				t.Errorf("%s: has %q, not %q", name, got, record)
			}
		}
	}
	svc := serviceWithRecord("none", "")
	svc.Annotations[v1.AnnotationAllowSharedIP] = strings.Repeat("k", 253)
	if result := allocation.Allocate(allocation.RequestOf(svc), inputs); result.Reason != v1.ReasonAllocated ||
		result.Key != svc.Annotations[v1.AnnotationAllowSharedIP] {
		t.Errorf("%s: %s", result.Reason, result.Message)
	}
}

// TestAttackAskedGroups checks that no name of a group that does not exist gets into
// the text that becomes a label of a metric.
func TestAttackAskedGroups(t *testing.T) {
	inputs := &allocation.Inputs{
		Catalog: allocation.NewCatalog(
			[]v1.ServiceGroup{groupMadeAt(t, "wrong", 1, "local: {pool: 10.3.0.1, subnet: 10.4.0.0/24}")}, namespace,
		),
		InUse: allocation.NewInUse(),
	}
	for _, row := range []struct{ group, named, asked string }{
		{"invented", "", ""}, {"invented", "ten", ""}, {"invented", "10.0.0.1", ""}, {"wrong", "", "wrong"}, {
			"wrong", "ten", "wrong",
		}, {"", "", ""},
	} {
		svc := serviceWithRecord("none", "")
		svc.Annotations[v1.AnnotationServiceGroup], svc.Annotations[v1.AnnotationAddresses] = row.group, row.named
		if result := allocation.Allocate(allocation.RequestOf(svc), inputs); result.RequestedGroup != row.asked ||
			result.Reason == v1.ReasonAllocated {
			t.Errorf("group %q, addresses %q: %q (%s)", row.group, row.named, result.RequestedGroup, result.Reason)
		}
	}
}

// TestAttackManyPorts makes decisions among Services with so many ports that comparing
// each port with each would take minutes.
func TestAttackManyPorts(t *testing.T) {
	inputs := &allocation.Inputs{
		Catalog: allocation.NewCatalog(
			[]v1.ServiceGroup{groupMadeAt(t, "default", 1, "remote: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}")}, namespace,
		),
		InUse: allocation.NewInUse(),
	}
	const each = 60000
	var all []*allocation.Request
	for i, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		ports := make([]corev1.ServicePort, each)
		for p := range ports {
			ports[p] = corev1.ServicePort{Port: int32(each - p), Protocol: protocol}
		}
		req := requestFrom(
			t, "a/"+string(protocol)+" key=k given=k group=default 10.0.0.1 from=default age="+string(rune('1'+i)),
		)
		req.Ports = allocation.PortsOf(ports)
		inputs.InUse.Put(&req.Service)
		all = append(all, req)
	}
	begun := time.Now()
	for range 30 {
		for _, req := range all {
			if result := allocation.Allocate(req, inputs); result.Reason != v1.ReasonAllocated {
				t.Fatalf("%s: %s", result.Reason, result.Message)
			}
		}
	}
	if took := time.Since(begun); took > 20*time.Second { // milliseconds, or many minutes
		t.Errorf("it took %s", took)
	}
}

// TestAttackLongWords checks that nothing is guessed for words that are too long for names.
func TestAttackLongWords(t *testing.T) {
	name := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + "." +
		strings.Repeat("d", 60)
	s := admissionOf("", *group(t, name, "remote: {pool: 10.0.0.1, subnet: 10.0.0.0/24}"))
	advise := func(asked string) string {
		svc := serviceWithRecord("none", "")
		svc.Annotations[v1.AnnotationServiceGroup] = asked
		return strings.Join(s.Advise(svc), "; ")
	}
	if said := advise(name[1:]); !strings.Contains(said, "did you mean "+name+"?") {
		t.Errorf("no guess: %s", said)
	}
	for _, size := range []int{254, 1 << 20} {
		if said := advise(name + strings.Repeat("d", size-len(name))); strings.Contains(said, "did you mean") ||
			len(said) > 200 {
			t.Errorf("%d bytes: %.200s", size, said)
		}
	}
	svc := serviceWithRecord("none", "")
	svc.Annotations["purelb.io/"+strings.Repeat("allow-shared-ip", 1<<16)] = "x"
	if said := strings.Join(s.Advise(svc), "; "); strings.Contains(said, "did you mean") {
		t.Errorf("a guess: %.200s", said)
	}
}
