package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

var errAway = errors.New("the API server is away")

// lookUp knows a few names.
func lookUp(_ context.Context, key Key) (Found, error) {
	switch key {
	case Key{Service: "web", Namespace: "shop"}:
		return Found{
			Exists: true, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00:96::7")},
		}, nil
	case Key{Service: "old", Namespace: "shop"}:
		return Found{Exists: true, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.8")}}, nil
	case Key{Host: "web-0", Service: "peers", Namespace: "shop"}:
		return Found{Exists: true, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.9")}}, nil
	case Key{Service: "alias", Namespace: "shop"}:
		return Found{Exists: true, Alias: "db.example.com"}, nil
	case Key{Service: "bad-alias", Namespace: "shop"}:
		return Found{Exists: true, Alias: strings.Repeat("a", 300)}, nil
	case Key{Service: "many", Namespace: "shop"}:
		var all []netip.Addr
		for i := range 200 {
			all = append(all, netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}))
		}
		return Found{Exists: true, Addresses: all}, nil
	case Key{Service: "unknowable", Namespace: "shop"}:
		return Found{}, errAway
	}
	return Found{}, nil
}

func query(name string, kind dnsmessage.Type, announced int) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if announced > 0 {
		var header dnsmessage.ResourceHeader
		_ = header.SetEDNS0(announced, dnsmessage.RCodeSuccess, false)
		m.Additionals = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.OPTResource{}}}
	}
	packed, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

// show unpacks an answer into a line.
func show(t *testing.T, answer []byte) string {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		t.Fatal(err)
	}
	if m.ID != 4711 || !m.Response {
		t.Errorf("header %v", m.Header)
	}
	all := []string{strings.TrimPrefix(m.RCode.String(), "RCode")}
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			all = append(all, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			all = append(all, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.CNAMEResource:
			all = append(all, b.CNAME.String())
		}
	}
	if m.Truncated {
		all = append(all[:1], fmt.Sprint("truncated to ", len(m.Answers)))
	}
	return strings.Join(all, " ")
}

func TestAnswer(t *testing.T) {
	a, aaaa := dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, test := range []struct {
		name      string
		kind      dnsmessage.Type
		announced int
		limit     int
		want      string
	}{
		{name: "web.shop.svc.cluster.local.", kind: a, want: "Success 10.96.0.7"},
		{name: "WEB.Shop.svc.Cluster.local.", kind: a, want: "Success 10.96.0.7"},
		{name: "web.shop.svc.cluster.local.", kind: aaaa, want: "Success fd00:96::7"},
		{name: "web.shop.svc.cluster.local.", kind: dnsmessage.TypeSRV, want: "Success"},
		{name: "old.shop.svc.cluster.local.", kind: aaaa, want: "Success"},
		{name: "web-0.peers.shop.svc.cluster.local.", kind: a, want: "Success 10.244.1.9"},
		{name: "alias.shop.svc.cluster.local.", kind: a, want: "Success db.example.com."},
		{name: "bad-alias.shop.svc.cluster.local.", kind: a, want: "Success"},
		{name: "none.shop.svc.cluster.local.", kind: a, want: "NameError"},
		{name: "shop.svc.cluster.local.", kind: a, want: "NameError"},
		{name: "web.shop.pod.cluster.local.", kind: a, want: "NameError"},
		{name: "cluster.local.", kind: a, want: "NameError"},
		{name: "unknowable.shop.svc.cluster.local.", kind: a, want: "ServerFailure"},
		{name: "example.com.", kind: a, want: "Refused"},
		{name: "notcluster.local.", kind: a, want: "Refused"},
		{name: ".", kind: a, want: "Refused"},
		{name: "many.shop.svc.cluster.local.", kind: a, want: "Success truncated to 25"},
		{name: "many.shop.svc.cluster.local.", kind: a, announced: 4096, want: "Success truncated to 50"},
		{name: "many.shop.svc.cluster.local.", kind: a, announced: 100, want: "Success truncated to 25"},
	} {
		got := show(t, Answer(t.Context(), query(test.name, test.kind, test.announced), test.limit, lookUp))
		if got != test.want {
			t.Errorf("%s %s, %d: %q, want %q", test.name, test.kind, test.announced, got, test.want)
		}
	}
	if got := show(t, Answer(t.Context(), query("many.shop.svc.cluster.local.", a, 0), 1<<16-1,
		lookUp)); len(strings.Fields(got)) != 201 {
		t.Errorf("without a limit: %q", got)
	}
}

func TestAnswerToNonsense(t *testing.T) {
	good := query("web.shop.svc.cluster.local.", dnsmessage.TypeA, 0)
	response := slices.Clone(good)
	response[2] |= 0x80
	for name, nonsense := range map[string][]byte{"nothing": nil, "short": good[:5], "an answer": response} {
		if answer := Answer(t.Context(), nonsense, 0, lookUp); answer != nil {
			t.Errorf("%s: answered %x", name, answer)
		}
	}
	if got := show(t, Answer(t.Context(), good[:len(good)-3], 0, lookUp)); got != "FormatError" {
		t.Errorf("cut question: %s", got)
	}
	update := slices.Clone(good)
	update[2] |= 5 << 3
	if got := show(t, Answer(t.Context(), update, 0, lookUp)); got != "NotImplemented" {
		t.Errorf("update: %s", got)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query("web.shop.svc.cluster.local.", dnsmessage.TypeA, 0))
	f.Add(query("many.shop.svc.cluster.local.", dnsmessage.TypeA, 1232))
	f.Fuzz(func(t *testing.T, message []byte) {
		answer := Answer(t.Context(), message, 0, lookUp)
		if len(answer) > maxSize {
			t.Errorf("%d bytes", len(answer))
		}
		if answer != nil {
			if err := new(dnsmessage.Message).Unpack(answer); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestCache(t *testing.T) {
	now, asked, fails := time.Unix(0, 0), 0, false
	cache := &Cache{Fresh: time.Second, Limit: 2, Now: func() time.Time { return now }}
	cache.Lookup = func(ctx context.Context, key Key) (Found, error) {
		asked++
		if fails {
			return Found{}, errAway
		}
		return lookUp(ctx, key)
	}
	expect := func(step, service string, wantExists bool, wantErr error, wantAsked int) {
		t.Helper()
		asked = 0
		found, err := cache.Get(t.Context(), Key{Service: service, Namespace: "shop"})
		if found.Exists != wantExists || !errors.Is(err, wantErr) || asked != wantAsked {
			t.Errorf("%s: %v, %v, asked %d times", step, found, err, asked)
		}
	}
	expect("unknown", "web", true, nil, 1)
	expect("fresh", "web", true, nil, 0)
	now = now.Add(time.Second)
	expect("old", "web", true, nil, 1)
	now, fails = now.Add(time.Hour), true
	expect("old, while the API server is away", "web", true, nil, 1)
	expect("unknown, while the API server is away", "old", false, errAway, 1)
	fails = false
	expect("second name", "old", true, nil, 1)
	expect("third name", "none", false, nil, 1)
	if n := len(cache.entries); n != 1 {
		t.Errorf("the cache has %d entries", n)
	}
}

// freeAddress returns an address where the test can listen by UDP and by TCP. Other programs of the machine
// connect from 127.0.0.1, and the kernel gives each of their connections a port of that host, where the test
// could not listen by TCP. They do not connect from 127.0.0.53.
func freeAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	var errs []error
	for range 10 { // a program that listens at all hosts may have the port
		packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 53)})
		if err != nil {
			t.Fatal(err)
		}
		defer packets.Close()
		address := packets.LocalAddr().(*net.UDPAddr).AddrPort()
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
		if err == nil {
			defer listener.Close()
			return address
		}
		errs = append(errs, err)
	}
	t.Fatal(errors.Join(errs...))
	return netip.AddrPort{}
}

// TestServe asks as pods do: with a resolver, by UDP and, for a long answer, TCP.
func TestServe(t *testing.T) {
	address := freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, []netip.AddrPort{address}, lookUp)
		cancel()
	}()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address.String())
	}}
	for service, want := range map[string]int{"web": 2, "many": 200} {
		var found []netip.Addr
		var err error
		// The first queries may come before Serve listens.
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && ctx.Err() == nil && len(found) != want; {
			found, err = resolver.LookupNetIP(ctx, "ip", service+".shop.svc.cluster.local.")
		}
		if len(found) != want {
			t.Errorf("%s: %v, %v", service, found, err)
		}
	}
	var notFound *net.DNSError
	if _, err := resolver.LookupNetIP(ctx, "ip", "none.shop.svc.cluster.local."); !errors.As(err, &notFound) ||
		!notFound.IsNotFound {
		t.Errorf("a name that is not there: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeWhereItCannot starts a second server at the same address.
func TestServeWhereItCannot(t *testing.T) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	free := netip.MustParseAddrPort("127.0.0.1:0")
	if err := Serve(t.Context(), []netip.AddrPort{free, socket.LocalAddr().(*net.UDPAddr).AddrPort()},
		lookUp); err == nil {
		t.Error("no error")
	}
}
