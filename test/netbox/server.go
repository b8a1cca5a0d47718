// Package netbox is a fake NetBox: as much of its REST API as PureLB uses, with the
// status codes, bodies and filters of NetBox 4.4 and 4.6. It keeps its objects in memory.
//
// A table of contract tests (controllers/ipam/netbox) runs against it and, by make
// test-netbox, against a real NetBox: where they differ, the fake is wrong.
package netbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Version of NetBox.
type Version string

// The versions that the fake can be.
const (
	V44 Version = "4.4"
	V46 Version = "4.6"
)

// Tokens that the fake takes, unless others are set. Version 4.4 knows only the first kind.
const (
	TokenV1 = "0123456789abcdef0123456789abcdef01234567"
	TokenV2 = "nbt_AbCdEfGhIjKl.0123456789abcdef0123456789abcdef01234567"
)

// Token is what a token may do.
type Token struct {
	// IsReadOnly refuses everything but GET.
	IsReadOnly bool
	// Denied are the methods that its user has no permission for, each as "GET prefixes"
	// or "DELETE ip-addresses".
	Denied []string
	// OnlyTagged is the slug of a tag that an address must have for the token to change or
	// delete it, as by a constraint of a permission; empty for none. NetBox says that there
	// is no address without it.
	OnlyTagged string
	// OnlyViewTagged is the same for the permission to view. NetBox keeps addresses unique
	// all the same among those that a token does not see.
	OnlyViewTagged string
}

// sees reports whether the token may view an address.
func (t *Token) sees(i *ipAddress) bool { return t.OnlyViewTagged == "" || i.hasTag(t.OnlyViewTagged) }

// Server is a fake NetBox. Its exported fields may be set before it serves.
type Server struct {
	Version Version
	// Tokens by their text.
	Tokens map[string]Token
	// MaxPageSize bounds pages, as the setting MAX_PAGE_SIZE.
	MaxPageSize int
	// Before is called before each request is served, and may answer it: then it returns
	// true. It may be nil.
	Before func(w http.ResponseWriter, r *http.Request) bool
	// After is called after a request has been served, and before it is answered, with its
	// status. If it returns false, there is no answer: the connection ends. It may be nil.
	After func(r *http.Request, status int) bool

	mu       sync.Mutex // NetBox has such a lock for changes of addresses
	nextID   int64
	requests int
	// lastChange is the time of the last change.
	lastChange time.Time
	vrfs       []*vrf
	tenants    []*named
	tags       []*named
	roles      []*named
	prefixes   []*prefix
	ranges     []*ipRange
	ips        []*ipAddress
}

// NewServer makes a fake NetBox without objects.
func NewServer(v Version) *Server {
	tokens := map[string]Token{TokenV1: {}}
	if v != V44 {
		tokens[TokenV2] = Token{}
	}
	return &Server{Version: v, Tokens: tokens, MaxPageSize: 1000}
}

// Requests returns how many requests have come.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// reply is an answer.
type reply struct {
	status int
	body   any
	header map[string]string
}

func detail(status int, format string, args ...any) *reply {
	return &reply{status: status, body: map[string]string{"detail": fmt.Sprintf(format, args...)}}
}

// invalid is the answer to a field that is wrong.
func invalid(name, format string, args ...any) *reply {
	return &reply{status: http.StatusBadRequest, body: map[string][]string{name: {fmt.Sprintf(format, args...)}}}
}

// ServeHTTP answers a request as NetBox does.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	before, after := s.Before, s.After
	s.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/") {
		u := *r.URL
		u.Path += "/"
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		http.Redirect(w, r, u.String(), http.StatusMovedPermanently)
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/api/") {
		http.Redirect(w, r, "/login/?next="+url.QueryEscape(r.URL.Path), http.StatusFound)
		return
	}
	out := s.route(r)
	if after != nil && !after(r, out.status) {
		panic(http.ErrAbortHandler)
	}
	for name, value := range out.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("API-Version", string(s.Version))
	if out.body == nil {
		w.WriteHeader(out.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(out.status)
	_ = json.NewEncoder(w).Encode(out.body)
}

// SetFaults replaces Before and After while the server runs.
func (s *Server) SetFaults(before func(http.ResponseWriter, *http.Request) bool, after func(*http.Request, int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Before, s.After = before, after
}

// SetTokens replaces the tokens while the server runs.
func (s *Server) SetTokens(tokens map[string]Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Tokens = tokens
}

func (s *Server) route(r *http.Request) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, refusal := s.authenticate(r)
	if refusal != nil {
		return refusal
	}
	parts := strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, "/api/"), "/"), "/")
	if len(parts) == 1 && parts[0] == "status" {
		return &reply{status: http.StatusOK, body: map[string]string{"netbox-version": string(s.Version) + ".0"}}
	}
	if len(parts) < 2 {
		return detail(http.StatusNotFound, "Not found.")
	}
	kind := parts[1]
	permission := kind
	if len(parts) == 4 && parts[3] == "available-ips" {
		permission = "ip-addresses"
	}
	if refusal := token.check(r.Method, permission); refusal != nil {
		return refusal
	}
	body, refusal := decode(r)
	if refusal != nil {
		return refusal
	}
	if len(parts) == 2 {
		return s.serveList(r, &token, parts[0], kind, body)
	}
	id, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return detail(http.StatusNotFound, "Not found.")
	}
	if len(parts) == 4 && parts[3] == "available-ips" {
		return s.serveAvailable(r, kind, id, body)
	}
	if kind == "ip-addresses" {
		return s.serveAddress(r, &token, id, body)
	}
	return s.serveObject(r, kind, id, body)
}

// check refuses what the token's user has no permission for.
func (t *Token) check(method, kind string) *reply {
	if slices.Contains(t.Denied, method+" "+kind) || t.IsReadOnly && method != http.MethodGet {
		return detail(http.StatusForbidden, "You do not have permission to perform this action.")
	}
	return nil
}

// decode reads the body of a request. NetBox reads the message for its change log from that
// of a deletion: there may be none, or an object, and null is refused.
func decode(r *http.Request) (body any, refusal *reply) {
	if r.Method == http.MethodGet {
		return nil, nil
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	_, isObject := body.(map[string]any)
	switch {
	case r.Method == http.MethodDelete && errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, detail(http.StatusBadRequest, "JSON parse error - %s", err)
	case r.Method == http.MethodDelete && !isObject:
		return nil, invalid("non_field_errors", "No data provided")
	}
	return body, nil
}

// authenticate finds the token of a request. NetBox answers 403 and never 401, because
// sessions come first among its ways to authenticate.
func (s *Server) authenticate(r *http.Request) (Token, *reply) {
	parts := strings.Fields(r.Header.Get("Authorization"))
	if len(parts) == 0 ||
		!strings.EqualFold(parts[0], "Token") && (s.Version == V44 || !strings.EqualFold(parts[0], "Bearer")) {
		return Token{}, detail(http.StatusForbidden, "Authentication credentials were not provided.")
	}
	if len(parts) != 2 {
		return Token{}, detail(http.StatusForbidden, "Invalid authorization header")
	}
	token, isKnown := s.Tokens[parts[1]]
	switch {
	case isKnown:
		return token, nil
	case s.Version == V44:
		return Token{}, detail(http.StatusForbidden, "Invalid token")
	case strings.HasPrefix(parts[1], "nbt_"):
		return Token{}, detail(http.StatusForbidden, "Invalid v2 token")
	}
	return Token{}, detail(http.StatusForbidden, "Invalid v1 token")
}

// page answers a list.
func (s *Server) page(r *http.Request, all []map[string]any) *reply {
	limit, offset := 50, 0
	if n, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && n >= 0 {
		limit = n
		if n == 0 {
			limit = s.MaxPageSize
		}
	}
	limit = min(limit, s.MaxPageSize)
	if n, err := strconv.Atoi(r.URL.Query().Get("offset")); err == nil && n > 0 {
		offset = min(n, len(all))
	}
	end := min(offset+limit, len(all))
	results := append([]map[string]any{}, all[offset:end]...)
	link := func(offset int) any {
		u := *r.URL
		q := u.Query()
		q.Set("limit", strconv.Itoa(limit))
		q.Set("offset", strconv.Itoa(offset))
		u.RawQuery, u.Scheme, u.Host = q.Encode(), "http", r.Host
		return u.String()
	}
	var next, previous any
	if end < len(all) {
		next = link(end)
	}
	if offset > 0 {
		previous = link(max(offset-limit, 0))
	}
	return &reply{
		status: http.StatusOK,
		body:   map[string]any{"count": len(all), "next": next, "previous": previous, "results": results},
	}
}

// etag returns the entity tag of an object that changed at a time; since 4.6.
func (s *Server) etag(changed time.Time) map[string]string {
	if s.Version == V44 {
		return nil
	}
	return map[string]string{"ETag": `W/"` + changed.Format(time.RFC3339Nano) + `"`}
}
