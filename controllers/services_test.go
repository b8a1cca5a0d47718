package controllers

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWritten follows writes whose outcome is known, and one whose is not.
func TestWritten(t *testing.T) {
	shown := func(version string, addrs ...string) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: "1", ResourceVersion: version}}
		for _, a := range addrs {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		return svc
	}
	x, y := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	check := func(what string, w written, svc *corev1.Service, behind bool, want ...netip.Addr) {
		t.Helper()
		got := w.addresses(svc)
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(slices.Compact(got), want) || w.isBehind(svc) != behind {
			t.Errorf("%s: has %v, behind %v; want %v, %v", what, got, w.isBehind(svc), want, behind)
		}
	}

	w := written{}
	w.note(shown("5"), []netip.Addr{x}, "5", "6")
	check("before the cache shows it", w, shown("5"), true, x)
	check("halfway", w, shown("6"), true, x)
	check("when it does", w, shown("7", x.String()), false, x)
	w.prune([]corev1.Service{*shown("7", x.String())})
	if len(w) != 0 {
		t.Errorf("remembers what the cache shows: %v", w)
	}

	w = written{}
	w.note(shown("5"), []netip.Addr{x}, "5")()
	check("refused", w, shown("5"), false)

	w.note(shown("5"), []netip.Addr{x}, "5")
	w.doubt(shown("5"))
	check("of unknown outcome: kept, and tried again", w, shown("5"), false, x)
	undo := w.note(shown("5"), []netip.Addr{y}, "5")
	check("tried again", w, shown("5"), true, x, y)
	undo()
	check("refused, so that the first went through", w, shown("5"), false, x)
	check("as the cache shows then", w, shown("6", x.String()), false, x)
}
