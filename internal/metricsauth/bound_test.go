package metricsauth

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// slow is an API server that answers each review only when it is let, and knows
// how many wait at most.
type slow struct {
	waiting, most, asked atomic.Int32
	let                  chan struct{}
}

// ServeHTTP says of every token that it is good, and of everybody that they may.
func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := s.waiting.Add(1)
	defer s.waiting.Add(-1)
	s.asked.Add(1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	select {
	case <-s.let:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		fmt.Fprint(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,"user":{"username":"u"}}}`)
		return
	}
	fmt.Fprint(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
}

// TestBound has many come at once, with different tokens, and then with one.
func TestBound(t *testing.T) {
	api := &slow{let: make(chan struct{})}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	filter, err := Filter(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, server.Client())
	if err != nil {
		t.Fatal(err)
	}
	handler, err := filter(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context, token string) int {
		request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", "Bearer "+token)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return recorder.Code
	}
	crowd := func(ctx context.Context, token func(i int) string) func() map[int]int {
		var mu sync.Mutex
		var group sync.WaitGroup
		answers := map[int]int{}
		for i := range 20 {
			group.Go(func() {
				code := get(ctx, token(i))
				mu.Lock()
				defer mu.Unlock()
				answers[code]++
			})
		}
		return func() map[int]int { group.Wait(); return answers }
	}

	ctx, cancel := context.WithCancel(t.Context())
	wait := crowd(ctx, func(i int) string { return fmt.Sprint("token", i) })
	for deadline := time.Now().Add(10 * time.Second); api.waiting.Load() < maxReviews; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody asks the API server")
		}
	}
	cancel() // all but those whose turn it is have waited in vain
	answers := wait()
	if answers[http.StatusServiceUnavailable] < 20-maxReviews || api.most.Load() != maxReviews {
		t.Errorf("answers %v, at most %d at a time", answers, api.most.Load())
	}

	close(api.let)
	api.asked.Store(0)
	answers = crowd(t.Context(), func(int) string { return "one" })()
	if answers[http.StatusOK] != 20 || api.asked.Load() > 2*maxReviews {
		t.Errorf("one token: answers %v, the API server was asked %d times", answers, api.asked.Load())
	}
}
