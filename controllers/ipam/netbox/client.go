package netbox

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Bounds of a request.
const (
	// requestTimeout bounds a whole request: a NetBox that takes ten seconds is slow, not
	// away.
	requestTimeout = 15 * time.Second
	// dialTimeout bounds the connection by TCP. It is short, because a Service that waits
	// is served as soon as NetBox is back, and not when a dial to the absent one ends.
	dialTimeout = 1500 * time.Millisecond
	tlsTimeout  = 5 * time.Second
	// maxBody bounds an answer in bytes. A page of 250 addresses has some 300 kB.
	maxBody = 8 << 20
	// pageSize and maxPages bound a list. NetBox sends 1000 objects at most.
	pageSize = 250
	maxPages = 400
	// maxQuoted is how many bytes of an answer, or of another's error, an error quotes.
	maxQuoted = 300
)

// Options of the connection to NetBox.
type Options struct {
	// Proxy chooses the proxy for a request; nil for none.
	Proxy func(*http.Request) (*url.URL, error)
	// Observe is called after each request. It may be nil.
	Observe func(outcome string, took time.Duration)
	// Now tells the time, for Observe.
	Now func() time.Time
	// Transport sends the requests. If it is nil, they are sent by TCP, and Proxy counts.
	Transport http.RoundTripper
	// Tasks runs the caller, and lets it wait; nil for a goroutine.
	Tasks tasks.Runner
}

// client sends requests to one NetBox.
type client struct {
	base, token string
	http        *http.Client
	options     Options
}

func newClient(base, token, caBundle string, o Options) (*client, error) {
	roots, err := rootsOf(caBundle)
	if err != nil {
		return nil, err
	}
	if o.Tasks == nil {
		o.Tasks = tasks.Goroutines{}
	}
	if o.Transport == nil {
		o.Transport = newTransport(roots, o.Proxy)
	}
	return &client{base: base, token: strings.TrimSpace(token), options: o, http: &http.Client{
		Transport: o.Transport, Timeout: requestTimeout,
		// A redirect leads to a page for logging in, or takes the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// newTransport returns what sends requests by TCP.
func newTransport(roots *x509.CertPool, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	// It has no HTTP/2: requests come one after the other, and a connection of HTTP/1.1 on
	// which one got no answer in time is used no more.
	return &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: tlsTimeout,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		MaxIdleConns:        2,
		IdleConnTimeout:     30 * time.Second,
	}
}

// rootsOf returns the authorities of a bundle, or nil for those of the system.
func rootsOf(caBundle string) (*x509.CertPool, error) {
	if caBundle == "" {
		return nil, nil //nolint:nilnil // the zero value of tls.Config
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(caBundle)) {
		return nil, errors.New("spec.netbox.caBundle has no certificate")
	}
	return pool, nil
}

// authorization returns the header for a token. Tokens of version 2 have a prefix of
// their own.
func authorization(token string) string {
	if strings.HasPrefix(token, "nbt_") {
		return "Bearer " + token
	}
	return "Token " + token
}

// answer is what NetBox sent.
type answer struct {
	status int
	etag   string
	body   []byte
}

// requestRefused is an answer that refuses this request: it is no matter of the token, of NetBox or of time.
type requestRefused struct {
	answer
	text string
}

func (e *requestRefused) Error() string { return e.text }

// isStatus reports whether an error is an answer with a status.
func isStatus(err error, status int) bool {
	var e *requestRefused
	return errors.As(err, &e) && e.status == status
}

// sendOnce sends one request, and decodes the answer into out unless that is nil. Errors are
// of type *requestRefused if NetBox has refused this request, else of *ipam.Error, apart from that of a body that
// cannot be encoded.
func (c *client) sendOnce(
	ctx context.Context, method, path string, query url.Values, header http.Header, body, out any,
) (*answer, error) {
	var reader io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		reader = bytes.NewReader(encoded)
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, reader)
	if err != nil {
		return nil, c.unreachableError("the URL cannot be used")
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", authorization(c.token))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "purelb")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	begin := c.options.Now()
	a, err := c.exchange(req)
	if c.options.Observe != nil {
		c.options.Observe(outcomeOf(a, err), c.options.Now().Sub(begin))
	}
	if err != nil {
		return nil, err
	}
	if err := c.judge(method, a); err != nil {
		return a, err
	}
	if out != nil {
		if err := json.Unmarshal(a.body, out); err != nil {
			return a, c.unavailableError("the answer is not what NetBox sends: is there something else at this URL?")
		}
	}
	return a, nil
}

// outcomeOf names the outcome of a request in few words, for metrics.
func outcomeOf(a *answer, err error) string {
	if err != nil {
		return "error"
	}
	return strconv.Itoa(a.status)
}

// exchange sends a request, and returns the answer. It is an error if there is none, or if it is a redirect (3xx), says
// that NetBox cannot answer now (429, 5xx), or is not JSON. Other answers, such as a refusal (4xx), are none.
func (c *client) exchange(req *http.Request) (*answer, error) {
	isConnected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { isConnected = true }}
	resp, err := c.http.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	switch {
	case err != nil && !isConnected:
		return nil, c.unreachableError(describeFailure(err))
	case err != nil:
		return nil, c.unavailableError(describeFailure(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, c.unavailableError(describeFailure(err))
	}
	if len(body) > maxBody {
		return nil, c.unavailableError(fmt.Sprintf("an answer has more than %d bytes", maxBody))
	}
	a := &answer{status: resp.StatusCode, etag: resp.Header.Get("ETag"), body: body}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // an unknown one is not JSON
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, c.unavailableError(fmt.Sprintf(
			"it redirects (%d): is there a page for logging in before it, or does its URL begin otherwise?", resp.StatusCode,
		))
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return nil, c.unavailableError(fmt.Sprintf("it answers %d", resp.StatusCode))
	case len(body) > 0 && kind != "application/json":
		return nil, c.unavailableError(fmt.Sprintf(
			"it answers %d, but not in JSON: is there something else at this URL?", resp.StatusCode,
		))
	}
	return a, nil
}

// judge returns an error for an answer that is not a success.
func (c *client) judge(method string, a *answer) error {
	if a.status < 300 {
		return nil
	}
	text := c.quote(a.body)
	if a.status == http.StatusUnauthorized || a.status == http.StatusForbidden && method == http.MethodGet {
		// The group needs to view these objects; others may not.
		return &ipam.Error{Reason: v1.ReasonIPAMRefused, Scope: ipam.ScopeGroup, Message: fmt.Sprintf(
			"NetBox %s refuses the token (%d): %s", c.base, a.status, text)}
	}
	return &requestRefused{*a, fmt.Sprintf("%d: %s", a.status, text)}
}

// unavailable returns the error that NetBox has not answered a request.
func (c *client) unavailableError(why string) error {
	return c.unavailableErrorOf(ipam.ScopeRequest, why)
}

// unreachable returns the error that there is no connection to NetBox.
func (c *client) unreachableError(why string) error {
	return c.unavailableErrorOf(ipam.ScopeEndpoint, why)
}

func (c *client) unavailableErrorOf(scope ipam.Scope, why string) error {
	message := fmt.Sprintf("NetBox %s cannot be asked: %s", c.base, textlimit.Shorten(c.scrub(why), maxQuoted))
	return &ipam.Error{Reason: v1.ReasonIPAMUnavailable, Message: message, Scope: scope}
}

// quote returns an answer for an error, short, printable and without the token.
func (c *client) quote(body []byte) string {
	text := string(body)
	var detail struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(body, &detail) == nil && detail.Detail != "" {
		text = detail.Detail
	}
	return textlimit.Shorten(c.scrub(text), maxQuoted)
}

// scrub removes the token, and its secret part, from a text that others have written.
func (c *client) scrub(text string) string {
	_, secret, _ := strings.Cut(c.token, ".")
	for _, part := range []string{c.token, secret} {
		if part != "" {
			text = strings.ReplaceAll(text, part, "***")
		}
	}
	return text
}

// describeFailure says why a request got no answer, in words that do not change with each
// attempt: no time, no ports of this host, and no query.
func describeFailure(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	var certificate x509.CertificateInvalidError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case dns != nil:
		return "its name cannot be looked up"
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired:
		return "its certificate has expired, or is not valid yet"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.As(err, &op):
		return op.Op + ": " + op.Err.Error()
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection ended early"
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		return inner.Err.Error()
	}
	return err.Error()
}

// page is a part of a list, as NetBox sends it. A JSON object without these two is not of NetBox.
type page[T any] struct {
	Count   *int64 `json:"count"`
	Results *[]T   `json:"results"`
}

// readPage reads a part of a list.
func readPage[T any](
	ctx context.Context, c *client, path string, query url.Values, limit, offset int,
) (results []T, total int64, err error) {
	var got page[T]
	query = withParameters(query, "limit", strconv.Itoa(limit), "offset", strconv.Itoa(offset))
	if _, err := c.sendOnce(ctx, http.MethodGet, path, query, nil, nil, &got); err != nil {
		return nil, 0, err
	}
	if got.Count == nil || got.Results == nil {
		return nil, 0, c.unavailableError("the answer is not a list of NetBox's: is there something else at this URL?")
	}
	return *got.Results, *got.Count, nil
}

// list reads all pages of a list, IP addresses without their comments. It counts pages itself: the links that NetBox
// sends may name a host behind a proxy.
func list[T any](ctx context.Context, c *client, path string, query url.Values) ([]T, error) {
	var all []T
	for range maxPages {
		results, total, err := readPage[T](ctx, c, path, query, pageSize, len(all))
		if err != nil {
			return nil, err
		}
		for i := range results {
			if record, isAddress := any(&results[i]).(*ipAddress); isAddress {
				record.Comments = "" // of all they may be many megabytes; who changes a record reads it by itself
			}
		}
		all = append(all, results...)
		switch {
		case int64(len(all)) >= total:
			return all, nil
		case len(results) == 0: // what is missing would count as not recorded
			return nil, c.unavailableError("a list ends before its end")
		}
	}
	return nil, c.unavailableErrorOf(ipam.ScopeGroup, fmt.Sprintf("a list has more than %d objects", maxPages*pageSize))
}

// count returns how many objects a list has.
func count(ctx context.Context, c *client, path string, query url.Values) (int64, error) {
	_, total, err := readPage[struct{}](ctx, c, path, query, 1, 0)
	return total, err
}
