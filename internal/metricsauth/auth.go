package metricsauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// verdictTTL is for how long a verdict is used again, and so for how long a revoked token
	// still reads metrics.
	verdictTTL = 10 * time.Second
	// reviewTimeout bounds how long a request waits for its turn and for the API server.
	reviewTimeout = 5 * time.Second
)

const (
	// maxVerdicts is how many verdicts are kept: there are few scrapers.
	maxVerdicts = 64
	// maxReviews is how many tokens are reviewed at a time. requestRate bounds the requests
	// to the API server in a second, and requestBurst how many come at once. Whoever reaches
	// the port can show any number of tokens to the agent of each node.
	maxReviews   = 2
	requestRate  = 5
	requestBurst = 20
)

// errBusy means that a request has waited for its turn in vain.
var errBusy = errors.New("too many tokens wait for a review")

// verdict is what the API server has said about a token, a path and a verb.
type verdict struct {
	// status is the HTTP status of the response; http.StatusOK if the client may read.
	status     int
	reviewedAt time.Time
}

// reviewer asks the API server about tokens. Its verdicts are lost with the process; the
// next request is reviewed again.
type reviewer struct {
	client client.Client
	// runningReviews holds an element for each review that runs.
	runningReviews chan struct{}

	mu sync.Mutex
	// verdicts are kept by the hash of verb, path and token.
	verdicts map[[sha256.Size]byte]verdict
}

// Handler makes a handler that passes requests of clients that may read metrics to next, and
// refuses others. It asks the API server of a configuration by an HTTP client. Errors are those
// of a bad configuration.
func Handler(config *rest.Config, httpClient *http.Client, log logr.Logger, next http.Handler) (http.Handler, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // spares the client a request for the API's resources
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), meta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	config = rest.CopyConfig(config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestRate, requestBurst)
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: httpClient})
	if err != nil {
		return nil, fmt.Errorf("make a client for reviews: %w", err)
	}
	r := &reviewer{client: c, runningReviews: make(chan struct{}, maxReviews), verdicts: map[[sha256.Size]byte]verdict{}}
	return r.handler(log, next), nil
}

// handler passes requests of clients that may read to the next handler, and refuses others.
func (r *reviewer) handler(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		token, found := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
		if !found || token == "" {
			refuse(w, http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(request.Context(), reviewTimeout)
		defer cancel()
		status, err := r.statusFor(ctx, token, request.URL.Path, strings.ToLower(request.Method))
		switch {
		case errors.Is(err, errBusy):
			refuse(w, http.StatusServiceUnavailable)
		case err != nil:
			log.Error(err, "Cannot review who reads metrics")
			refuse(w, http.StatusInternalServerError)
		case status != http.StatusOK:
			refuse(w, status)
		default:
			next.ServeHTTP(w, request)
		}
	})
}

// refuse responds with a status. With 401 the response says that a bearer token is needed
// (RFC 9110 section 11.6.1, RFC 6750 section 3).
func refuse(w http.ResponseWriter, status int) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, http.StatusText(status), status)
}

// statusFor returns the HTTP status for a request: a kept verdict, or that of a review,
// which waits until fewer than maxReviews run.
func (r *reviewer) statusFor(ctx context.Context, token, path, verb string) (int, error) {
	key := sha256.Sum256([]byte(verb + " " + path + " " + token))
	if status, ok := r.keptStatus(key); ok {
		return status, nil
	}
	select {
	case r.runningReviews <- struct{}{}:
		defer func() { <-r.runningReviews }()
	case <-ctx.Done():
		return 0, errBusy
	}
	if ctx.Err() != nil { // select chooses at random if both cases are ready
		return 0, errBusy
	}
	if status, ok := r.keptStatus(key); ok { // reviewed for another request meanwhile
		return status, nil
	}
	status, err := r.review(ctx, token, path, verb)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.verdicts) >= maxVerdicts {
		clear(r.verdicts)
	}
	r.verdicts[key] = verdict{status, time.Now()}
	return status, nil
}

// keptStatus returns the status of a verdict that is not too old, if there is one.
func (r *reviewer) keptStatus(key [sha256.Size]byte) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.verdicts[key]
	return v.status, ok && time.Since(v.reviewedAt) < verdictTTL
}

// review asks the API server which user a token belongs to, and whether the user may read.
func (r *reviewer) review(ctx context.Context, token, path, verb string) (int, error) {
	tokenReview := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := r.client.Create(ctx, tokenReview); err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}
	if !tokenReview.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := tokenReview.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	accessReview := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
	}}
	if err := r.client.Create(ctx, accessReview); err != nil {
		return 0, fmt.Errorf("review whether %s may read metrics: %w", user.Username, err)
	}
	if !accessReview.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
