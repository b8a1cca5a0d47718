package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/purelb/purelb-operator/internal/httpserver"
)

const (
	// MaxBody is the longest request that the webhooks read, in bytes. Every pod can reach
	// the webhooks, so a longer request must cost neither memory nor time.
	MaxBody = 1 << 20
	// maxAnswers is how many requests are decoded and answered at a time. One takes about a
	// millisecond, and several times the memory of its body.
	maxAnswers = 16
)

// answerLimit bounds how many requests are answered at a time. It holds an element for each.
type answerLimit chan struct{}

func newAnswerLimit() answerLimit { return make(answerLimit, maxAnswers) }

// limit passes requests with bodies of at most MaxBody to next, maxAnswers at a time and one
// of each connection. It refuses a longer one with status 413, and does not read it. A client
// that sends slowly keeps only its own connection waiting: it takes no answer's place before
// all of its request is there.
func (l answerLimit) limit(next http.Handler) http.Handler {
	return httpserver.OneByOne(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > MaxBody {
			refuseTooLong(w)
			return
		}
		var body bytes.Buffer // which has room for all of it: one that grows takes more than twice as much
		body.Grow(int(max(r.ContentLength, 0)) + bytes.MinRead)
		_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, MaxBody))
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			refuseTooLong(w)
			return
		case err != nil:
			http.Error(w, "cannot read the request", http.StatusBadRequest)
			return
		}
		select {
		case l <- struct{}{}:
			defer func() { <-l }()
		case <-r.Context().Done():
			return
		}
		r.Body = io.NopCloser(&body)
		next.ServeHTTP(w, r)
	}))
}

func refuseTooLong(w http.ResponseWriter) {
	http.Error(w, fmt.Sprintf("a request may have %d bytes", MaxBody), http.StatusRequestEntityTooLarge)
}
