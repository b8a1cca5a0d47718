package webhooks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/webhooks"
)

// endless is a body without a length. It counts what is read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

// TestAttackBody sends what is longer than any request of the API server.
func TestAttackBody(t *testing.T) {
	server := webhooks.NewServer(webhooks.ServerOptions{})
	var got int
	server.Register("/x", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = len(body)
	}))
	for _, row := range []struct {
		name   string
		body   io.Reader
		status int
		got    int
	}{
		{"as long as it may be", strings.NewReader(strings.Repeat("x", webhooks.MaxBody)), http.StatusOK, webhooks.MaxBody},
		{
			"longer, and says so", strings.NewReader(strings.Repeat("x", webhooks.MaxBody+1)), http.StatusRequestEntityTooLarge,
			-1,
		},
		{
			"longer, without a word", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", webhooks.MaxBody+1))},
			http.StatusRequestEntityTooLarge, -1,
		},
	} {
		got = -1
		answer := httptest.NewRecorder()
		server.WebhookMux().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/x", row.body))
		if answer.Code != row.status || got != row.got {
			t.Errorf("%s: status %d, and %d bytes are handed on", row.name, answer.Code, got)
		}
	}
	body := &endless{}
	server.WebhookMux().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/x", body))
	if body.read > 2*webhooks.MaxBody {
		t.Errorf("%d bytes are read of a body without end", body.read)
	}
}
