// Package metricsauth lets those read metrics whom the API server knows, and who
// may. It does what controller-runtime's filter does, with two reviews and no
// more: that one brings in most of an API server, which every agent would carry.
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
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// remember is for how long a verdict counts, and maxRemembered how many are
	// kept: scrapers are few.
	remember      = 10 * time.Second
	maxRemembered = 64
	// reviewTimeout is for how long the API server is waited for.
	reviewTimeout = 5 * time.Second
	// maxReviews is how many tokens are reviewed at a time, and requestRate and
	// requestBurst bound the requests for it in a second: anybody who reaches the
	// port may show as many tokens as they like, to each node's agent.
	maxReviews   = 2
	requestRate  = 5
	requestBurst = 20
)

// errBusy is that a request has waited for its turn in vain.
var errBusy = errors.New("too many ask for metrics")

// verdict is the HTTP status that a request gets, http.StatusOK if it may pass.
type verdict struct {
	status int
	at     time.Time
}

// reviewer asks the API server about tokens.
type reviewer struct {
	client client.Client
	// turns has a place for each review that runs.
	turns chan struct{}

	mu       sync.Mutex
	verdicts map[[sha256.Size]byte]verdict
}

// Filter makes the filter of a metrics server: of controller-runtime's
// metricsserver.Options, the FilterProvider.
func Filter(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // it is known without asking
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), meta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	config = rest.CopyConfig(config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestRate, requestBurst)
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: httpClient})
	if err != nil {
		return nil, fmt.Errorf("make a client for reviews: %w", err)
	}
	r := &reviewer{client: c, turns: make(chan struct{}, maxReviews), verdicts: map[[sha256.Size]byte]verdict{}}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) { return r.handler(log, handler), nil }, nil
}

func (r *reviewer) handler(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		token, found := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
		if !found || token == "" {
			refuse(w, http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(request.Context(), reviewTimeout)
		defer cancel()
		status, err := r.judge(ctx, token, request.URL.Path, strings.ToLower(request.Method))
		switch {
		case errors.Is(err, errBusy):
			refuse(w, http.StatusServiceUnavailable)
		case err != nil:
			log.Error(err, "Cannot tell who asks for metrics")
			refuse(w, http.StatusInternalServerError)
		case status != http.StatusOK:
			refuse(w, status)
		default:
			next.ServeHTTP(w, request)
		}
	})
}

// refuse answers with a status; who has shown no token that counts is told what
// to show (RFC 9110 section 11.6.1, RFC 6750 section 3).
func refuse(w http.ResponseWriter, status int) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, http.StatusText(status), status)
}

// judge remembers what it has found out, for a little while. Those who have to be
// asked about wait for their turn.
func (r *reviewer) judge(ctx context.Context, token, path, verb string) (int, error) {
	key := sha256.Sum256([]byte(verb + " " + path + " " + token))
	if status, known := r.known(key); known {
		return status, nil
	}
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
	case <-ctx.Done():
		return 0, errBusy
	}
	if ctx.Err() != nil { // its turn came as it gave up
		return 0, errBusy
	}
	if status, known := r.known(key); known { // by who came before
		return status, nil
	}
	status, err := r.ask(ctx, token, path, verb)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.verdicts) >= maxRemembered {
		clear(r.verdicts)
	}
	r.verdicts[key] = verdict{status, time.Now()}
	return status, nil
}

// known is the verdict that still counts, if there is one.
func (r *reviewer) known(key [sha256.Size]byte) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, known := r.verdicts[key]
	return v.status, known && time.Since(v.at) < remember
}

// ask asks the API server whose a token is, and what they may.
func (r *reviewer) ask(ctx context.Context, token, path, verb string) (int, error) {
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := r.client.Create(ctx, who); err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
	}}
	if err := r.client.Create(ctx, may); err != nil {
		return 0, fmt.Errorf("review what %s may: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
