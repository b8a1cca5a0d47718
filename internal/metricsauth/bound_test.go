package metricsauth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
		fmt.Fprint(
			w,
			`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,`+
				`"user":{"username":"u"}}}`,
		)
		return
	}
	fmt.Fprint(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
}

// RoundTrip serves a request in this process. It returns when the response is whole.
func (s *slowAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return recorder.Result(), nil
}

// TestReviewsAreBounded sends many requests at once, with different tokens, and then with one.
func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowAPI{released: make(chan struct{})}
		config := &rest.Config{Host: "http://api.test", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
		handler, err := Handler(
			config, &http.Client{Transport: api}, logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		)
		if err != nil {
			t.Fatal(err)
		}
		const requests = 20
		getMany := func(token func(i int) string) func() map[int]int {
			codes := make(chan int, requests)
			for i := range requests {
				go func() {
					request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
					request.Header.Set("Authorization", "Bearer "+token(i))
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, request)
					codes <- recorder.Code
				}()
			}
			return func() map[int]int {
				responses := map[int]int{}
				for range requests {
					responses[<-codes]++
				}
				return responses
			}
		}

		responses := getMany(func(i int) string { return fmt.Sprint("token", i) })
		synctest.Wait() // for all requests to wait
		if waiting := api.waiting.Load(); waiting != maxReviews {
			t.Errorf("%d reviews at a time", waiting)
		}
		// After reviewTimeout all have waited in vain. Whose turn comes in that moment fails as
		// those do that were being reviewed.
		if got := responses(); got[http.StatusServiceUnavailable] == 0 ||
			got[http.StatusServiceUnavailable]+got[http.StatusInternalServerError] != requests {
			t.Errorf("different tokens: responses %v", got)
		}
		if most := api.mostWaiting.Load(); most != maxReviews {
			t.Errorf("at most %d reviews at a time", most)
		}

		close(api.released)
		api.reviews.Store(0)
		if got := getMany(func(int) string { return "one" })(); got[http.StatusOK] != requests ||
			api.reviews.Load() > 2*maxReviews {
			t.Errorf("one token: responses %v, %d reviews", got, api.reviews.Load())
		}
	})
}
