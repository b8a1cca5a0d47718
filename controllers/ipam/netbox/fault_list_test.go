package netbox_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// An answer that is no list, or ends early, does not count as one: what Services have would be
// taken for missing. This test shows the row "a list is cut short, or is none" of docs/trust.md.
func TestFaultShortList(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                          "the answer is not a list of NetBox's: is there something else at this URL?",
		`{"status": "ok"}`:            "the answer is not a list of NetBox's: is there something else at this URL?",
		`{"count": 0}`:                "the answer is not a list of NetBox's: is there something else at this URL?",
		`{"count": 7, "results": []}`: "a list ends before its end",
	} {
		w := newFake(t, fake.V46, fake.TokenV2)
		w.prefix(w.v4, nil)
		s := w.connect(w.config(), ipamtest.Installation)
		w.allocate(s, request("web"))
		w.fake.SetFaults(func(rw http.ResponseWriter, _ *http.Request) bool {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprint(rw, body)
			return true
		}, nil)
		report, err := ipamtest.Inspect(t.Context(), s)
		w.fake.SetFaults(nil, nil)
		var failed *ipam.Error
		if !errors.As(err, &failed) || failed.Reason != v1.ReasonIPAMUnavailable || !strings.HasSuffix(failed.Message, want) {
			t.Errorf("%s: got %+v, %v", body, report, err)
		}
	}
}
