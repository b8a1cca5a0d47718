package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// awaitInterval is between two questions to an API server that is away, and how
// long each may take.
const awaitInterval = time.Second

// await waits until ask succeeds. The manager cannot be made without the API
// server; were it to end for want of it, as a leader does that has lost its
// Lease, the kubelet would start it again later each time, and it would be away
// for minutes when the API server is back. Meanwhile it is alive, but not ready:
// healthAddress says so, unless it is empty or 0.
func await(ctx context.Context, healthAddress string, interval time.Duration, ask func(context.Context) error) error {
	err := askOnce(ctx, interval, ask)
	if err == nil {
		return nil
	}
	log.FromContext(ctx).Error(err, "Waiting for the API server")
	stop, err := serveAlive(ctx, healthAddress)
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), stop())
		case <-tick.C:
		}
		if askOnce(ctx, interval, ask) == nil {
			log.FromContext(ctx).Info("The API server is there")
			return stop()
		}
	}
}

func askOnce(ctx context.Context, timeout time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return ask(ctx)
}

// serveAlive answers /healthz, and nothing else, until stop is called, which
// frees the address.
func serveAlive(ctx context.Context, address string) (stop func() error, err error) {
	if address == "" || address == "0" {
		return func() error { return nil }, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve health checks: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "waiting for the API server", http.StatusServiceUnavailable)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() error {
		err := server.Close()
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

// askForLease asks for the Lease of the leader, which every replica may read:
// right after its start the API server answers, but refuses what it has not yet
// learnt to be allowed.
func askForLease(config *rest.Config, namespace string) (func(context.Context) error, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return func(ctx context.Context) error {
		_, err := clientset.CoordinationV1().Leases(namespace).Get(ctx, leaderLease, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get Lease %s: %w", leaderLease, err)
		}
		return nil
	}, nil
}
