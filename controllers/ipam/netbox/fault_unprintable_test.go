package netbox_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"unicode"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// maxText is how many bytes a message that quotes an answer has at most, in these tests.
const maxText = 1024

// checkText checks that a text can be shown to people.
func checkText(t *testing.T, what, text string) {
	t.Helper()
	if text == "" || len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%s: %d bytes: %.2000q", what, len(text), text)
	}
}

// What answers as NetBox sends sequences that command a terminal, rows of its own and texts
// without end. Messages quote what is printable of them, in one line and short. This test shows the
// row "its answers and records hold control characters, or texts without end" of docs/trust.md.
func TestAttackUnprintableAnswer(t *testing.T) {
	nasty := "no\x1b]52;c;aGVsbG8=\x07 \x1b[2J\u009b2J\u202eevil\u200b\u2028\r\nReady   True   Reachable" +
		strings.Repeat(" long", 2000)
	for name, answer := range map[string]struct {
		status int
		body   any
		reason string
	}{
		"detail":                 {http.StatusForbidden, object{"detail": nasty}, v1.ReasonIPAMRefused},
		"other JSON":             {http.StatusBadRequest, object{"status": []string{nasty}, nasty: 1}, v1.ReasonIPAMRefused},
		"a refusal of the token": {http.StatusUnauthorized, object{"detail": nasty}, v1.ReasonIPAMRefused},
		"a refusal of addresses": {http.StatusBadRequest, object{"address": []string{nasty}}, v1.ReasonAddressInUse},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFake(t, fake.V46, fake.TokenV2)
			w.prefix(w.v4, nil)
			s := w.connect(w.config(), ipamtest.Installation)
			w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost {
					send(t, rw, answer.status, answer.body)
				}
				return r.Method == http.MethodPost
			}, nil)
			_, err := s.Allocate(t.Context(), requestOf("web", w.addr(9)))
			w.fake.SetFaults(nil, nil)
			var refused *ipam.Error
			if !errors.As(err, &refused) || refused.Reason != answer.reason {
				t.Fatalf("got %q, want %s", err, answer.reason)
			}
			checkText(t, name, refused.Message)
		})
	}
	t.Run("records", func(t *testing.T) {
		w := newFake(t, fake.V46, fake.TokenV2)
		w.prefix(w.v4, nil)
		s := w.connect(w.config(), ipamtest.Installation)
		mark := ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation)
		record := func(n int, description string) object {
			return object{
				"id": n, "address": address(w.v4, n), "status": object{"value": nasty}, "role": object{"value": nasty},
				"description": description,
			}
		}
		forged := ipam.MarkPrefix(ipamtest.Installation) + nasty + "/uid/" + w.addr(99).String() // the copy of a record
		w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
			isAsked := r.URL.Path == addresses && r.URL.Query().Has("description__isw")
			if isAsked {
				send(
					t, rw, http.StatusOK,
					object{"count": 2, "results": []object{record(5, mark+"/"+w.addr(5).String()), record(6, forged)}},
				)
			}
			return isAsked
		}, nil)
		report, err := ipamtest.Inspect(t.Context(), s)
		w.fake.SetFaults(nil, nil)
		if err != nil || len(report.MarkedRecords) != 2 {
			t.Fatalf("got %+v, %v", report, err)
		}
		for _, r := range report.MarkedRecords {
			checkText(t, r.Address.String(), r.Difference)
		}
	})
}

func send(t *testing.T, rw http.ResponseWriter, status int, body any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	if err := json.NewEncoder(rw).Encode(body); err != nil {
		t.Error(err)
	}
}
