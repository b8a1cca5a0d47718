package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// MaxBody is the longest request that the webhooks read, in bytes. Every pod can reach
// the webhooks, so a longer request must cost neither memory nor time.
const MaxBody = 1 << 20

// NewServer makes a webhook server that answers a request with a body longer than MaxBody
// with status 413, and does not read it. The API server then does what the failurePolicy
// says: it stores Services without advice.
func NewServer(o webhook.Options) webhook.Server { return limitedServer{webhook.NewServer(o)} }

type limitedServer struct{ webhook.Server }

// Register serves hook at path.
func (s limitedServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, limitBody(hook))
}

// limitBody passes requests with bodies of at most MaxBody to next.
func limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > MaxBody {
			refuseTooLong(w)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			refuseTooLong(w)
		case err != nil:
			http.Error(w, "cannot read the request", http.StatusBadRequest)
		default:
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
		}
	})
}

func refuseTooLong(w http.ResponseWriter) {
	http.Error(w, fmt.Sprintf("a request may have %d bytes", MaxBody), http.StatusRequestEntityTooLarge)
}
