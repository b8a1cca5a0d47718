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

// slowAPI is an API server that responds to a review only when released is closed. It counts
// the reviews that wait now, the most that have waited at a time, and all reviews.
type slowAPI struct {
	waiting, mostWaiting, reviews atomic.Int32
	released                      chan struct{}
}

// ServeHTTP accepts every token, and allows everything.
func (s *slowAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := s.waiting.Add(1)
	defer s.waiting.Add(-1)
	s.reviews.Add(1)
	for most := s.mostWaiting.Load(); now > most && !s.mostWaiting.CompareAndSwap(most, now); most = s.mostWaiting.Load() {
	}
	select {
	case <-s.released:
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

// TestReviewsAreBounded sends many requests at once, with different tokens, and then with one.
func TestReviewsAreBounded(t *testing.T) {
	api := &slowAPI{released: make(chan struct{})}
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
	getMany := func(ctx context.Context, token func(i int) string) func() map[int]int {
		var mu sync.Mutex
		var group sync.WaitGroup
		responses := map[int]int{}
		for i := range 20 {
			group.Go(func() {
				code := get(ctx, token(i))
				mu.Lock()
				defer mu.Unlock()
				responses[code]++
			})
		}
		return func() map[int]int { group.Wait(); return responses }
	}

	ctx, cancel := context.WithCancel(t.Context())
	wait := getMany(ctx, func(i int) string { return fmt.Sprint("token", i) })
	for deadline := time.Now().Add(10 * time.Second); api.waiting.Load() < maxReviews; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no review reaches the API server")
		}
	}
	cancel() // the requests that are not being reviewed have waited in vain
	responses := wait()
	if responses[http.StatusServiceUnavailable] < 20-maxReviews || api.mostWaiting.Load() != maxReviews {
		t.Errorf("responses %v, at most %d reviews at a time", responses, api.mostWaiting.Load())
	}

	close(api.released)
	api.reviews.Store(0)
	responses = getMany(t.Context(), func(int) string { return "one" })()
	if responses[http.StatusOK] != 20 || api.reviews.Load() > 2*maxReviews {
		t.Errorf("one token: responses %v, %d reviews", responses, api.reviews.Load())
	}
}
