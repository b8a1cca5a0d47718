package netbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// object is a JSON object of NetBox.
type object = map[string]any

// world is a NetBox, with objects of its own for one test: each test uses another network
// and other names, and removes what it has made.
type world struct {
	*testing.T
	base, token string
	// fake is nil if the NetBox is a real one.
	fake *fake.Server
	// v4 and v6 are networks that nobody else uses, and id is in all names.
	v4, v6 netip.Prefix
	id     string
	// made are the paths of what the test has made, apart from addresses.
	made *[]string
}

// The environment variables that name a real NetBox. Its token has to be a superuser's.
const (
	envURL   = "NETBOX_URL"
	envToken = "NETBOX_TOKEN"
)

// forEachNetBox runs a test against the fake, as each of its versions, or against the real
// NetBox that the environment names.
func forEachNetBox(t *testing.T, test func(*world)) {
	if base := os.Getenv(envURL); base != "" {
		t.Run("real", func(t *testing.T) {
			test(newWorld(t, strings.TrimSuffix(base, "/"), os.Getenv(envToken), nil))
		})
		return
	}
	for _, v := range []struct {
		version fake.Version
		token   string
	}{{fake.V44, fake.TokenV1}, {fake.V46, fake.TokenV1}, {fake.V46, fake.TokenV2}} {
		t.Run(string(v.version)+" token "+v.token[:3], func(t *testing.T) {
			test(newFake(t, v.version, v.token))
		})
	}
}

func newFake(t *testing.T, version fake.Version, token string) *world {
	server := fake.NewServer(version)
	http := httptest.NewServer(server)
	t.Cleanup(http.Close)
	return newWorld(t, http.URL, token, server)
}

func newWorld(t *testing.T, base, token string, server *fake.Server) *world {
	w := emptyWorld(t, base, token, server)
	const most = 100
	for n := 1; w.isTaken(); n++ {
		if n == most {
			t.Fatalf("%d networks, and NetBox has objects in each", most)
		}
		w = emptyWorld(t, base, token, server)
	}
	w.Cleanup(w.removeAll)
	return w
}

// emptyWorld returns a world whose networks may be taken.
func emptyWorld(t *testing.T, base, token string, server *fake.Server) *world {
	n := rand.IntN(1 << 9)
	return &world{
		T: t, base: base, token: token, fake: server, made: &[]string{},
		v4: netip.MustParsePrefix(fmt.Sprintf("198.%d.%d.0/24", 18+n>>8, n&0xff)),
		v6: netip.MustParsePrefix(fmt.Sprintf("fd00:7e57:%x::/64", rand.IntN(1<<16))),
		id: fmt.Sprintf("purelb-test-%08x", rand.Uint32()),
	}
}

// isTaken reports whether somebody has anything in the world's networks: the tests would
// see it, and remove it.
func (w *world) isTaken() bool {
	for _, network := range []netip.Prefix{w.v4, w.v6} {
		inside := url.QueryEscape(network.String())
		for _, path := range []string{prefixes + "?within_include=", ranges + "?parent=", addresses + "?parent="} {
			if len(w.list(path+inside)) > 0 {
				return true
			}
		}
	}
	return false
}

// removeAll removes what the test has made, what others refer to last.
func (w *world) removeAll() {
	if len(*w.made) == 0 {
		return
	}
	w.deleteAddresses(w.v4)
	w.deleteAddresses(w.v6)
	for _, path := range slices.Backward(*w.made) {
		if got := w.send(http.MethodDelete, path, nil); got.status != http.StatusNoContent &&
			got.status != http.StatusNotFound {
			w.Errorf("remove %s: %d %.500s", path, got.status, got.text)
		}
	}
}

// response is what NetBox answers.
type response struct {
	status int
	header http.Header
	text   string
	object object
	list   []object
}

// send sends a request as the world's token.
func (w *world) send(method, path string, body any) response {
	w.Helper()
	return w.sendAs("Token "+w.token, method, path, body, nil)
}

func (w *world) sendAs(authorization, method, path string, body any, header http.Header) response {
	w.Helper()
	if strings.HasPrefix(strings.TrimPrefix(authorization, "Token "), "nbt_") {
		authorization = "Bearer " + w.token
	}
	var encoded io.Reader = http.NoBody // NetBox refuses to delete with the body null
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			w.Fatal(err)
		}
		encoded = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, w.base+path, encoded)
	if err != nil {
		w.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	out := response{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, &out.object)
	_ = json.Unmarshal(text, &out.list)
	return out
}

// create makes an object that the test removes at its end, and returns its id.
func (w *world) create(path string, fields object) int64 {
	w.Helper()
	got := w.send(http.MethodPost, path, fields)
	if got.status != http.StatusCreated {
		w.Fatalf("create %s: %d %s", path, got.status, got.text)
	}
	id := idOf(got.object)
	*w.made = append(*w.made, fmt.Sprintf("%s%d/", path, id))
	return id
}

func idOf(o object) int64 {
	id, _ := o["id"].(float64)
	return int64(id)
}

// want checks the status of an answer.
func (r response) want(w *world, status int) response {
	w.Helper()
	if r.status != status {
		w.Fatalf("got %d %.500s, want %d", r.status, r.text, status)
	}
	return r
}

const (
	addresses = "/api/ipam/ip-addresses/"
	prefixes  = "/api/ipam/prefixes/"
	ranges    = "/api/ipam/ip-ranges/"
	vrfs      = "/api/ipam/vrfs/"
	tenants   = "/api/tenancy/tenants/"
	tags      = "/api/extras/tags/"
	roles     = "/api/ipam/roles/"
)

// prefix makes a prefix with fields, and returns its id.
func (w *world) prefix(cidr netip.Prefix, fields object) int64 {
	w.Helper()
	all := object{"prefix": cidr.String(), "status": "active"}
	for name, value := range fields {
		all[name] = value
	}
	return w.create(prefixes, all)
}

func (w *world) deleteAddresses(cidr netip.Prefix) {
	for range 20 {
		got := w.send(http.MethodGet, addresses+"?limit=200&parent="+url.QueryEscape(cidr.String()), nil)
		results, _ := got.object["results"].([]any)
		if len(results) == 0 {
			return
		}
		for _, r := range results {
			o, _ := r.(object)
			w.send(http.MethodDelete, fmt.Sprintf("%s%d/", addresses, idOf(o)), nil)
		}
	}
	w.Errorf("addresses of %s cannot be removed", cidr)
}

// named makes a tenant, tag or role, and returns its slug.
func (w *world) named(path string) string {
	w.Helper()
	w.create(path, object{"name": w.id, "slug": w.id})
	return w.id
}

// list returns the results of a list.
func (w *world) list(path string) []object {
	w.Helper()
	got := w.send(http.MethodGet, path, nil).want(w, http.StatusOK)
	results, _ := got.object["results"].([]any)
	var out []object
	for _, r := range results {
		o, _ := r.(object)
		out = append(out, o)
	}
	return out
}

// config returns the configuration of a group that takes its addresses from the world.
func (w *world) config() *allocation.Netbox {
	return &allocation.Netbox{
		URL: w.base, Status: "active", Role: "vip", Sources: map[allocation.Family]allocation.NetboxSource{
			allocation.IPv4: {Prefixes: []netip.Prefix{w.v4}},
		},
	}
}

// connect returns a connection to NetBox for a group.
func (w *world) connect(config *allocation.Netbox, installationID types.UID) *netbox.System {
	w.Helper()
	s, err := netbox.NewSystem(config, w.token, installationID, netbox.Options{Now: time.Now})
	if err != nil {
		w.Fatal(err)
	}
	return s
}
