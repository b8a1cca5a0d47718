package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
)

// The order that PureLB creates records in: without a role, which makes NetBox refuse an address
// that it has, and then the role.
func contractRoleLater(w *world) {
	w.prefix(w.v4, nil)
	create := func(n int, role string) response {
		fields := object{"address": address(w.v4, n)}
		if role != "" {
			fields["role"] = role
		}
		return w.send(http.MethodPost, addresses, fields)
	}
	setRole := func(o object, role string) response {
		return w.send(http.MethodPatch, fmt.Sprintf("%s%d/", addresses, idOf(o)), object{"role": role})
	}
	first := create(5, "").want(w, http.StatusCreated).object
	if got := create(5, "vip").want(w, http.StatusBadRequest); got.object["address"] == nil {
		w.Errorf("vip beside one that has no role yet: %s", got.text)
	}
	if got := setRole(first, "vip").want(w, http.StatusOK).object; at(got, "role.value") != "vip" {
		w.Errorf("got %v", got)
	}
	if got := create(5, "").want(w, http.StatusBadRequest); got.object["address"] == nil {
		w.Errorf("without a role beside a vip: %s", got.text)
	}
	second := create(5, "vip").want(w, http.StatusCreated).object
	if got := setRole(second, "loopback").want(w, http.StatusBadRequest); got.object["address"] == nil {
		w.Errorf("a role that is unique beside a vip: %s", got.text)
	}
}

func contractTwiceInVRF(w *world) {
	id := w.create(vrfs, object{"name": w.id, "enforce_unique": false})
	w.prefix(w.v4, object{"vrf": id})
	create := func() int64 {
		return idOf(
			w.send(http.MethodPost, addresses, object{"address": address(w.v4, 5), "vrf": id}).want(w, http.StatusCreated).
				object,
		)
	}
	if first, second := create(), create(); second <= first {
		w.Errorf("ids %d, %d do not grow", first, second)
	}
}

// A prefix or range that somebody extends keeps its id, and gives what it has now.
func contractChangedParents(w *world) {
	small := netip.PrefixFrom(w.v4.Addr(), 30)
	prefix := w.prefix(small, nil)
	ipRange := w.create(
		ranges, object{"start_address": address(w.v4, 100), "end_address": address(w.v4, 101), "status": "active"},
	)
	for _, row := range []struct {
		path   string
		has    int
		change object
		next   string
	}{
		{fmt.Sprintf("%s%d/", prefixes, prefix), 2, object{"prefix": w.v4.String()}, address(w.v4, 3)},
		{fmt.Sprintf("%s%d/", ranges, ipRange), 2, object{"end_address": address(w.v4, 110)}, address(w.v4, 102)},
	} {
		for range row.has {
			w.send(http.MethodPost, row.path+"available-ips/", object{"description": "x"}).want(w, http.StatusCreated)
		}
		w.send(http.MethodPost, row.path+"available-ips/", object{"description": "x"}).want(w, http.StatusConflict)
		w.send(http.MethodPatch, row.path, row.change).want(w, http.StatusOK)
		if got := w.send(http.MethodPost, row.path+"available-ips/", object{"description": "x"}).want(w, http.StatusCreated).
			object; got["address"] != row.next {
			w.Errorf("%s: got %v, want %s", row.path, got["address"], row.next)
		}
	}
}
