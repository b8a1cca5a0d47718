package netbox_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestContract is what PureLB relies on of NetBox's REST API. It runs against the fake and,
// if NETBOX_URL and NETBOX_TOKEN name one, against a real NetBox (make test-netbox).
func TestContract(t *testing.T) {
	for _, row := range []struct {
		name string
		test func(*world)
	}{
		{"available-ips gives one address", contractOne},
		{"available-ips gives several, or none", contractSeveral},
		{"available-ips of a pool and of IPv6", contractPoolAndIPv6},
		{"available-ips of a range", contractRange},
		{"available-ips in a VRF", contractVRF},
		{"available-ips at the same time", contractConcurrent},
		{"available-ips lists", contractListAvailable},
		{"exhausted", contractExhausted},
		{"no such prefix", contractNoPrefix},
		{"tokens that are refused", contractTokens},
		{"no slash at the end", contractNoSlash},
		{"status", contractStatus},
		{"one address twice", contractTwice},
		{"one address twice, and the role later", contractRoleLater},
		{"one address twice in a VRF that takes it", contractTwiceInVRF},
		{"prefixes and ranges that change", contractChangedParents},
		{"fields that are refused", contractRefusedFields},
		{"filters of addresses", contractFilters},
		{"filters of prefixes and ranges", contractFiltersOfPrefixes},
		{"filters that name what is not there", contractUnknownFilters},
		{"pages", contractPages},
		{"change", contractChange},
		{"change of what has changed", contractPrecondition},
		{"delete", contractDelete},
		{"delete what is referred to", contractDeleteReferred},
	} {
		t.Run(row.name, func(t *testing.T) { forEachNetBox(t, row.test) })
	}
}

func available(id int64) string { return fmt.Sprintf("%s%d/available-ips/", prefixes, id) }

// address returns the nth address of a prefix, with its mask.
func address(p netip.Prefix, n int) string {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	return netip.PrefixFrom(a, p.Bits()).String()
}

// The status is that of NetBox, for a token that it takes. It needs no permission.
func contractStatus(w *world) {
	const status = "/api/status/"
	if got := w.send(http.MethodGet, status, nil).want(w, http.StatusOK); got.object["netbox-version"] == nil {
		w.Errorf("got %s", got.text)
	}
	w.sendAs("Token 0000000000000000000000000000000000000000", http.MethodGet, status, nil, nil).want(
		w, http.StatusForbidden,
	)
}

func contractOne(w *world) {
	tag, tenant := w.named(tags), w.named(tenants)
	id := w.prefix(w.v4, nil)
	got := w.send(http.MethodPost, available(id), object{
		"status": "active", "role": "vip", "description": "purelb " + w.id, "dns_name": "Web.Test.example",
		"tags": []object{{"slug": tag}}, "tenant": object{"slug": tenant},
	}).want(w, http.StatusCreated).object
	for path, want := range map[string]any{
		"address": address(w.v4, 1), "status.value": "active", "role.value": "vip", "description": "purelb " + w.id,
		"dns_name":    "web.test.example",
		"tenant.slug": tenant, "vrf": nil, "family.value": 4.0,
	} {
		if value := at(got, path); value != want {
			w.Errorf("%s: got %v, want %v", path, value, want)
		}
	}
	list, _ := got["tags"].([]any)
	if len(list) != 1 || at(list[0].(object), "slug") != tag {
		w.Errorf("tags: %v", got["tags"])
	}
	// The next one follows, and the role may be missing.
	next := w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated).object
	if next["address"] != address(w.v4, 2) || next["role"] != nil || at(next, "status.value") != "active" {
		w.Errorf("the next one: %v", next)
	}
}

// at returns a value inside of an object.
func at(o object, path string) any {
	name, rest, isDeeper := strings.Cut(path, ".")
	if !isDeeper {
		return o[name]
	}
	inner, _ := o[name].(object)
	return at(inner, rest)
}

func contractSeveral(w *world) {
	small := netip.PrefixFrom(w.v4.Addr(), 29)
	id := w.prefix(small, nil)
	got := w.send(http.MethodPost, available(id), []object{{"description": "a"}, {"description": "b"}}).want(
		w, http.StatusCreated,
	)
	if len(got.list) != 2 || got.list[0]["address"] != address(small, 1) || got.list[1]["address"] != address(small, 2) {
		w.Errorf("got %s", got.text)
	}
	w.send(
		http.MethodPost, available(id),
		[]object{
			{"description": "c"}, {"description": "d"}, {"description": "e"}, {"description": "f"}, {"description": "g"},
		},
	).want(w, http.StatusConflict)
	if n := len(w.list(addresses + "?parent=" + url.QueryEscape(small.String()))); n != 2 {
		w.Errorf("%d addresses, want 2", n)
	}
}

func contractPoolAndIPv6(w *world) {
	small := netip.PrefixFrom(w.v4.Addr(), 30)
	pool := w.prefix(small, object{"is_pool": true})
	if got := w.send(http.MethodPost, available(pool), object{"description": "x"}).want(w, http.StatusCreated).
		object; got["address"] != address(small, 0) {
		w.Errorf("of a pool: got %v", got["address"])
	}
	six := w.prefix(w.v6, nil)
	got := w.send(http.MethodPost, available(six), object{"description": "x"}).want(w, http.StatusCreated).object
	if got["address"] != address(w.v6, 1) || at(got, "family.value") != 6.0 {
		w.Errorf("of IPv6: got %v", got)
	}
}

func contractRange(w *world) {
	w.prefix(w.v4, nil)
	id := w.create(
		ranges, object{"start_address": address(w.v4, 10), "end_address": address(w.v4, 11), "status": "active"},
	)
	path := fmt.Sprintf("%s%d/available-ips/", ranges, id)
	for n := 10; n <= 11; n++ {
		if got := w.send(http.MethodPost, path, object{"description": "x"}).want(w, http.StatusCreated).
			object; got["address"] != address(w.v4, n) {
			w.Errorf("got %v", got["address"])
		}
	}
	w.send(http.MethodPost, path, object{"description": "x"}).want(w, http.StatusConflict)
	populated := w.create(
		ranges,
		object{
			"start_address": address(w.v4, 20), "end_address": address(w.v4, 21), "status": "active", "mark_populated": true,
		},
	)
	w.send(http.MethodPost, fmt.Sprintf("%s%d/available-ips/", ranges, populated), object{"description": "x"}).want(
		w, http.StatusConflict,
	)
	got := w.send(http.MethodPost, addresses, object{"address": address(w.v4, 20)}).want(w, http.StatusBadRequest)
	if got.object["address"] == nil {
		w.Errorf("in a populated range: %s", got.text)
	}
}

func contractVRF(w *world) {
	id := w.create(vrfs, object{"name": w.id, "rd": "65000:" + w.id[len(w.id)-8:]})
	prefix := w.prefix(w.v4, object{"vrf": id})
	global := w.prefix(w.v4, nil)
	got := w.send(http.MethodPost, available(prefix), object{"description": "x"}).want(w, http.StatusCreated).object
	if int64(at(got, "vrf.id").(float64)) != id {
		w.Errorf("vrf: %v", got["vrf"])
	}
	// The same address is free outside of the VRF.
	if got := w.send(http.MethodPost, available(global), object{"description": "x"}).want(w, http.StatusCreated).
		object; got["address"] != address(w.v4, 1) || got["vrf"] != nil {
		w.Errorf("outside: %v", got)
	}
	host := strings.Split(address(w.v4, 1), "/")[0]
	for query, want := range map[string]int{"": 2, "&vrf_id=null": 1, fmt.Sprintf("&vrf_id=%d", id): 1} {
		if n := len(w.list(addresses + "?address=" + host + query)); n != want {
			w.Errorf("%q: %d addresses, want %d", query, n, want)
		}
	}
	for query, want := range map[string]int{"name=" + w.id: 1, "rd=" + w.id: 0} {
		if n := len(w.list(vrfs + "?" + query)); n != want {
			w.Errorf("%s: %d VRFs, want %d", query, n, want)
		}
	}
	// Delete what is in the VRF before it.
	for _, a := range w.list(fmt.Sprintf("%s?vrf_id=%d", addresses, id)) {
		w.send(http.MethodDelete, fmt.Sprintf("%s%d/", addresses, idOf(a)), nil).want(w, http.StatusNoContent)
	}
}

func contractConcurrent(w *world) {
	id := w.prefix(w.v4, nil)
	const clients = 8
	got := make([]string, clients)
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			r := w.send(http.MethodPost, available(id), object{"role": "vip", "description": "x"})
			got[n], _ = r.object["address"].(string)
		})
	}
	wg.Wait()
	slices.Sort(got)
	if got[0] == "" || len(slices.Compact(got)) != clients {
		w.Errorf("got %v", got)
	}
}

func contractListAvailable(w *world) {
	id := w.prefix(w.v4, nil)
	w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated)
	got := w.send(http.MethodGet, available(id)+"?limit=1000", nil).want(w, http.StatusOK)
	if len(got.list) != 253 || got.list[0]["address"] != address(w.v4, 2) || got.list[0]["family"] != 4.0 {
		w.Errorf("%d free, the first is %v", len(got.list), got.list[0])
	}
}

func contractExhausted(w *world) {
	id := w.prefix(netip.PrefixFrom(w.v4.Addr(), 30), nil)
	for range 2 {
		w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated)
	}
	got := w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusConflict)
	if text, _ := got.object["detail"].(string); text == "" {
		w.Errorf("got %s", got.text)
	}
}

func contractNoPrefix(w *world) {
	got := w.send(http.MethodPost, available(1<<30), object{"description": "x"}).want(w, http.StatusNotFound)
	if text, _ := got.object["detail"].(string); text == "" {
		w.Errorf("got %s", got.text)
	}
	w.send(http.MethodGet, fmt.Sprintf("%s%d/", addresses, 1<<30), nil).want(w, http.StatusNotFound)
}

func contractTokens(w *world) {
	for _, authorization := range []string{"", "Token 00000000000000000000000000000000000000ff", "Basic YTpi"} {
		got := w.sendAs(authorization, http.MethodPost, addresses, object{}, nil).want(w, http.StatusForbidden)
		if text, _ := got.object["detail"].(string); text == "" ||
			!strings.HasPrefix(got.header.Get("Content-Type"), "application/json") {
			w.Errorf("%q: got %s", authorization, got.text)
		}
	}
}

func contractNoSlash(w *world) {
	got := w.send(http.MethodGet, strings.TrimSuffix(addresses, "/"), nil)
	if got.status != http.StatusMovedPermanently && got.status != http.StatusFound {
		w.Errorf("got %d %.200s, want a redirect", got.status, got.text)
	}
}

func contractTwice(w *world) {
	w.prefix(w.v4, nil)
	create := func(n int, role string) response {
		fields := object{"address": address(w.v4, n)}
		if role != "" {
			fields["role"] = role
		}
		return w.send(http.MethodPost, addresses, fields)
	}
	create(5, "").want(w, http.StatusCreated)
	if got := create(5, "").want(w, http.StatusBadRequest); got.object["address"] == nil {
		w.Errorf("without a role: %s", got.text)
	}
	if got := create(5, "vip").want(w, http.StatusBadRequest); got.object["address"] == nil {
		w.Errorf("vip beside one without: %s", got.text)
	}
	first := create(6, "vip").want(w, http.StatusCreated).object
	second := create(6, "vip").want(w, http.StatusCreated).object
	if idOf(second) <= idOf(first) {
		w.Errorf("ids %d, %d do not grow", idOf(first), idOf(second))
	}
	if n := len(w.list(addresses + "?address=" + strings.Split(address(w.v4, 6), "/")[0])); n != 2 {
		w.Errorf("%d records", n)
	}
}

func contractRefusedFields(w *world) {
	id := w.prefix(w.v4, nil)
	for _, row := range []struct {
		name  string
		value any
	}{
		{"tags", []object{{"slug": w.id + "-none"}}},
		{"tenant", object{"slug": w.id + "-none"}},
		{"status", "sleeping"},
		{"role", "king"},
		{"description", strings.Repeat("a", 201)},
		{"dns_name", "not a name"},
	} {
		got := w.send(http.MethodPost, available(id), object{"description": "x", row.name: row.value})
		if row.name == "description" {
			got = w.send(http.MethodPost, available(id), object{"description": row.value})
		}
		got.want(w, http.StatusBadRequest)
		if got.object[row.name] == nil {
			w.Errorf("%s: got %s", row.name, got.text)
		}
	}
	w.send(http.MethodPost, available(id), object{"description": strings.Repeat("ä", 200)}).want(w, http.StatusCreated)
}

func contractFilters(w *world) {
	tenant, tag := w.named(tenants), w.named(tags)
	w.prefix(w.v4, nil)
	mark := "purelb " + w.id + "/test/web"
	w.send(
		http.MethodPost, addresses,
		object{
			"address": address(w.v4, 5), "role": "vip", "description": mark + "/1", "tenant": object{"slug": tenant},
			"status": "reserved",
		},
	).want(w, http.StatusCreated)
	w.send(
		http.MethodPost, addresses,
		object{"address": address(w.v4, 6), "description": mark + "/2 | 100% of it_all", "tags": []object{{"slug": tag}}},
	).want(w, http.StatusCreated)
	w.send(http.MethodPost, addresses, object{"address": address(w.v4, 7), "description": "other " + mark}).want(
		w, http.StatusCreated,
	)
	host := func(n int) string { return strings.Split(address(w.v4, n), "/")[0] }
	for _, row := range []struct {
		query url.Values
		want  int
	}{
		{url.Values{"parent": {w.v4.String()}}, 3},
		{url.Values{"parent": {w.v4.String()}, "vrf_id": {"null"}}, 3},
		{url.Values{"parent": {host(5) + "/32", host(6) + "/31"}}, 3},
		{url.Values{"address": {host(5)}}, 1},
		{url.Values{"address": {address(w.v4, 5)}}, 1},
		{url.Values{"address": {host(5) + "/32"}}, 0},
		{url.Values{"address": {host(5), host(6)}}, 2},
		{url.Values{"description": {mark + "/1"}}, 1},
		{url.Values{"description": {mark}}, 0},
		{url.Values{"description__isw": {mark}}, 2},
		{url.Values{"description__isw": {strings.ToUpper(mark)}}, 2},
		{url.Values{"description__isw": {mark + "/2 | 100% of it_"}}, 1},
		{url.Values{"description__isw": {mark + "/%"}}, 0},
		{url.Values{"tenant": {tenant}}, 1},
		{url.Values{"tenant": {tenant}, "status": {"reserved"}}, 1},
		{url.Values{"tenant": {tenant}, "status": {"active"}}, 0},
		{url.Values{"tag": {tag}}, 1},
		{url.Values{"role": {"vip"}, "parent": {w.v4.String()}}, 1},
		{url.Values{"family": {"6"}, "parent": {w.v4.String()}}, 0},
	} {
		if n := len(w.list(addresses + "?" + row.query.Encode())); n != row.want {
			w.Errorf("%v: %d addresses, want %d", row.query, n, row.want)
		}
	}
}

func contractFiltersOfPrefixes(w *world) {
	tenant, tag, role := w.named(tenants), w.named(tags), w.named(roles)
	w.prefix(w.v4, object{"tenant": object{"slug": tenant}, "tags": []object{{"slug": tag}}, "role": object{"slug": role}})
	w.prefix(w.v6, object{"tenant": object{"slug": tenant}, "status": "container"})
	w.create(
		ranges,
		object{
			"start_address": address(w.v4, 10), "end_address": address(w.v4, 20), "status": "active",
			"tags": []object{{"slug": tag}},
		},
	)
	for _, row := range []struct {
		path  string
		query url.Values
		want  int
	}{
		{prefixes, url.Values{"prefix": {w.v4.String()}}, 1},
		{prefixes, url.Values{"prefix": {w.v4.String()}, "vrf_id": {"null"}}, 1},
		{prefixes, url.Values{"prefix": {netip.PrefixFrom(w.v4.Addr(), 25).String()}}, 0},
		{prefixes, url.Values{"tag": {tag}}, 1},
		{prefixes, url.Values{"role": {role}}, 1},
		{prefixes, url.Values{"tenant": {tenant}}, 2},
		{prefixes, url.Values{"tenant": {tenant}, "family": {"6"}}, 1},
		{prefixes, url.Values{"tenant": {tenant}, "status": {"active"}}, 1},
		{ranges, url.Values{"tag": {tag}, "family": {"4"}, "status": {"active"}}, 1},
		{
			ranges,
			url.Values{
				"start_address": {strings.Split(address(w.v4, 10), "/")[0]},
				"end_address":   {strings.Split(address(w.v4, 20), "/")[0]},
			},
			1,
		},
		{ranges, url.Values{"start_address": {strings.Split(address(w.v4, 11), "/")[0]}}, 0},
	} {
		if n := len(w.list(row.path + "?" + row.query.Encode())); n != row.want {
			w.Errorf("%s %v: %d objects, want %d", row.path, row.query, n, row.want)
		}
	}
}

func contractUnknownFilters(w *world) {
	for _, row := range []struct{ path, name, value string }{
		{addresses, "tenant", w.id}, {addresses, "tag", w.id}, {addresses, "status", "sleeping"}, {
			addresses, "vrf_id", "1073741824",
		},
		{prefixes, "role", w.id}, {prefixes, "tag", w.id}, {prefixes, "tenant", w.id},
	} {
		got := w.send(http.MethodGet, row.path+"?"+url.Values{row.name: {row.value}}.Encode(), nil).want(
			w, http.StatusBadRequest,
		)
		if got.object[row.name] == nil {
			w.Errorf("%s: got %s", row.name, got.text)
		}
	}
}

func contractPages(w *world) {
	id := w.prefix(w.v4, nil)
	objects := make([]object, 7)
	for n := range objects {
		objects[n] = object{"description": fmt.Sprint(n)}
	}
	w.send(http.MethodPost, available(id), objects).want(w, http.StatusCreated)
	path := addresses + "?parent=" + url.QueryEscape(w.v4.String())
	var got []string
	for offset := 0; offset < 9; offset += 3 {
		page := w.send(http.MethodGet, fmt.Sprintf("%s&limit=3&offset=%d", path, offset), nil).want(w, http.StatusOK).object
		if page["count"] != 7.0 || (page["next"] == nil) != (offset == 6) {
			w.Errorf("offset %d: count %v, next %v", offset, page["count"], page["next"])
		}
		results, _ := page["results"].([]any)
		for _, r := range results {
			got = append(got, at(r.(object), "address").(string))
		}
	}
	if len(got) != 7 || got[0] != address(w.v4, 1) || got[6] != address(w.v4, 7) {
		w.Errorf("got %v", got)
	}
	if n := len(w.list(path + "&limit=3&offset=100")); n != 0 {
		w.Errorf("beyond the end: %d", n)
	}
}

func contractChange(w *world) {
	first, second := w.named(tags), w.id+"-b"
	w.create(tags, object{"name": second, "slug": second})
	id := w.prefix(w.v4, nil)
	created := w.send(
		http.MethodPost, available(id), object{"description": "x", "tags": []object{{"slug": first}}, "status": "reserved"},
	).want(w, http.StatusCreated).object
	path := fmt.Sprintf("%s%d/", addresses, idOf(created))
	got := w.send(
		http.MethodPatch, path, object{"status": "active", "description": "y", "tags": []object{{"slug": second}}},
	).want(w, http.StatusOK).object
	list, _ := got["tags"].([]any)
	if at(got, "status.value") != "active" || got["description"] != "y" || got["address"] != address(w.v4, 1) ||
		len(list) != 1 || at(list[0].(object), "slug") != second {
		w.Errorf("got %v", got)
	}
	if got := w.send(http.MethodPatch, path, object{"description": "", "dns_name": ""}).want(w, http.StatusOK).
		object; got["description"] != "" || len(got["tags"].([]any)) != 1 {
		w.Errorf("got %v", got)
	}
}

// Since 4.6, NetBox has entity tags, and refuses to change or delete an object that has changed.
func contractPrecondition(w *world) {
	id := w.prefix(w.v4, nil)
	created := w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated).object
	path := fmt.Sprintf("%s%d/", addresses, idOf(created))
	tag := w.send(http.MethodGet, path, nil).want(w, http.StatusOK).header.Get("ETag")
	w.send(http.MethodPatch, path, object{"description": "y"}).want(w, http.StatusOK)
	got := w.sendAs("Token "+w.token, http.MethodPatch, path, object{"description": "z"}, http.Header{"If-Match": {tag}})
	if tag == "" {
		got.want(w, http.StatusOK)
		return
	}
	got.want(w, http.StatusPreconditionFailed)
	w.sendAs("Token "+w.token, http.MethodDelete, path, nil, http.Header{"If-Match": {tag}}).want(
		w, http.StatusPreconditionFailed,
	)
	tag = w.send(http.MethodGet, path, nil).header.Get("ETag")
	w.sendAs("Token "+w.token, http.MethodPatch, path, object{"description": "z"}, http.Header{"If-Match": {tag}}).want(
		w, http.StatusOK,
	)
}

func contractDelete(w *world) {
	id := w.prefix(w.v4, nil)
	created := w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated).object
	path := fmt.Sprintf("%s%d/", addresses, idOf(created))
	w.send(http.MethodDelete, path, nil).want(w, http.StatusNoContent)
	w.send(http.MethodDelete, path, nil).want(w, http.StatusNotFound)
	// The address is free again.
	if got := w.send(http.MethodPost, available(id), object{"description": "x"}).want(w, http.StatusCreated).
		object; got["address"] != address(w.v4, 1) {
		w.Errorf("got %v", got["address"])
	}
}

func contractDeleteReferred(w *world) {
	vrf, tenant := w.create(vrfs, object{"name": w.id}), w.create(tenants, object{"name": w.id, "slug": w.id})
	w.prefix(w.v4, object{"vrf": vrf, "tenant": tenant})
	for _, path := range []string{fmt.Sprintf("%s%d/", vrfs, vrf), fmt.Sprintf("%s%d/", tenants, tenant)} {
		if got := w.send(http.MethodDelete, path, nil).want(w, http.StatusConflict); got.object["detail"] == nil {
			w.Errorf("%s: got %s", path, got.text)
		}
	}
}
