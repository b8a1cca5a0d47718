package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/internal/httpserver"
)

// awaitInterval is the time between two requests to an API server that is away, and how long
// each may take.
const awaitInterval = time.Second

// awaitAPIServer repeats a request until it succeeds. The manager needs the API server to
// start. If the manager exited while the API server is away, as a leader does that has lost
// its Lease, the kubelet would restart it after ever longer pauses, and the manager would
// still be missing minutes after the API server is back. While it waits the manager is alive
// but not ready, and says so at healthAddress, unless that is empty or 0.
func awaitAPIServer(
	ctx context.Context, healthAddress string, interval time.Duration, request func(context.Context) error,
) error {
	err := requestWithin(ctx, interval, request)
	if err == nil {
		return nil
	}
	log.FromContext(ctx).Error(err, "Waiting for the API server")
	stop, err := serveLiveness(ctx, healthAddress)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, interval, false, func(ctx context.Context) (hasAnswered bool, err error) {
		return requestWithin(ctx, interval, request) == nil, nil
	})
	if err == nil {
		log.FromContext(ctx).Info("The API server answers")
	}
	return errors.Join(err, stop())
}

// requestWithin makes a request with a timeout.
func requestWithin(ctx context.Context, timeout time.Duration, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return request(ctx)
}

// serveLiveness responds with success to /healthz, and to nothing else, until stop is called,
// which frees the address.
func serveLiveness(ctx context.Context, address string) (stop func() error, err error) {
	if address == "" || address == "0" {
		return func() error { return nil }, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "waiting for the API server", http.StatusServiceUnavailable)
	})
	server, err := httpserver.New(ctx, "liveness", address, nil, mux)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	return func() error {
		cancel()
		return <-done
	}, nil
}

// leaderLeaseRequest returns a request for the Lease of the leader, which every replica may
// read. Right after its start an API server answers but refuses requests, because it has not
// yet read what they are allowed by; the request fails then, too.
func leaderLeaseRequest(config *rest.Config, namespace string) (func(context.Context) error, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return func(ctx context.Context) error {
		_, err := clientset.CoordinationV1().Leases(namespace).Get(ctx, controllers.LeaderLease, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get Lease %s: %w", controllers.LeaderLease, err)
		}
		return nil
	}, nil
}
