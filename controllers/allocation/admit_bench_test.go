package allocation_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// large is a cluster of 10,000 Services and 100 groups of 64 ranges each, and
// the group whose addresses those Services have: 64 ranges, too.
func large(t testing.TB) (*allocation.Admission, *v1.ServiceGroup) {
	ranges := func(format string) string {
		var b strings.Builder
		for i := range 64 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	s := &allocation.Admission{Namespace: namespace}
	s.NodeAddresses, s.InUse = map[netip.Addr]string{}, allocation.NewInUse()
	for i := range 100 {
		spec := "remote: {v6pools: [" +
			ranges(fmt.Sprintf("{pool: 'fd00:%d:%%[1]d::/64', subnet: 'fd00:%d:%%[1]d::/64'}, ", i, i)) + "]}"
		sg := group(t, fmt.Sprintf("g%d", i), spec)
		sg.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
		s.Groups = append(s.Groups, *sg)
	}
	mine := group(t, "mine", "remote: {v4pools: ["+ranges("{pool: 10.0.%[1]d.0/24, subnet: 10.0.%[1]d.0/24}, ")+"]}")
	s.Groups = append(s.Groups, *mine)
	for i := range 10000 {
		s.InUse.Put(allocatedService(
			fmt.Sprintf("service%d", i), netip.AddrFrom4([4]byte{10, 0, byte(i / 200), byte(i%200 + 1)}),
		))
		s.NodeAddresses[netip.AddrFrom4([4]byte{172, 16, byte(i / 256), byte(i % 256)})] = "an address of a node"
	}
	return s, mine
}

func BenchmarkAdmit(b *testing.B) {
	s, mine := large(b)
	half := mine.DeepCopy()
	half.Spec.Remote.V4Pools = half.Spec.Remote.V4Pools[:25]
	fresh := mine.DeepCopy()
	fresh.Name = "fresh"
	for i := range fresh.Spec.Remote.V4Pools {
		p := &fresh.Spec.Remote.V4Pools[i]
		p.Pool = strings.Replace(p.Pool, "10.0.", "10.1.", 1)
		p.Subnet = p.Pool
	}
	everything := group(b, "everything", "remote: {v6pools: [{pool: '::/0', subnet: '::/0'}]}")
	uniqueLocal := group(b, "unique-local", "remote: {v6pools: [{pool: 'fc00::/7', subnet: 'fc00::/7'}]}")

	for _, row := range []struct {
		name    string
		refused bool
		judge   func() bool
	}{
		{"CreateZeroPrefix", true, func() bool { _, errs := s.AdmitCreate(everything); return len(errs) > 0 }},
		{"CreateUniqueLocal", true, func() bool { _, errs := s.AdmitCreate(uniqueLocal); return len(errs) > 0 }},
		{"Create64Ranges", false, func() bool { _, errs := s.AdmitCreate(fresh); return len(errs) > 0 }},
		{"Shrink64RangesInUse", true, func() bool { _, errs := s.AdmitUpdate(mine, half); return len(errs) > 0 }},
		{"DeleteInUse", true, func() bool { _, refusal := s.AdmitDelete(mine); return refusal != "" }},
	} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				if row.judge() != row.refused {
					b.Fatalf("refused: %t", !row.refused)
				}
			}
		})
	}
}
