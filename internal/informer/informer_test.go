package informer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// flakyServer is an API server that fails with each of errs and then succeeds.
type flakyServer struct {
	errs     []error
	requests int
}

func (f *flakyServer) next() error {
	f.requests++
	if f.requests <= len(f.errs) {
		return f.errs[f.requests-1]
	}
	return nil
}

func (f *flakyServer) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &corev1.ServiceList{}, f.next()
}

func (f *flakyServer) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), f.next()
}

func TestPersistent(t *testing.T) {
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "announcements"}, "", errors.New("no role"))
	expired := apierrors.NewResourceExpired("too old")
	for name, tc := range map[string]struct {
		errs     []error
		want     error
		requests int
		took     time.Duration
	}{
		"an answer":              {nil, nil, 1, 0},
		"away for 30 s":          {slices.Repeat([]error{away}, 30), nil, 31, 30 * time.Second},
		"not allowed yet":        {[]error{forbidden, forbidden}, nil, 3, 2 * time.Second},
		"slow":                   {[]error{apierrors.NewTimeoutError("slow", 1)}, nil, 2, time.Second},
		"an error that is final": {[]error{away, expired}, expired, 2, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				list, watching := &flakyServer{errs: tc.errs}, &flakyServer{errs: tc.errs}
				_, err := (&persistent{lw: list}).List(metav1.ListOptions{})
				if !errors.Is(err, tc.want) || list.requests != tc.requests || time.Since(start) != tc.took {
					t.Errorf("list: %v after %d attempts in %v", err, list.requests, time.Since(start))
				}
				w, err := (&persistent{lw: watching}).Watch(metav1.ListOptions{})
				if !errors.Is(err, tc.want) || watching.requests != tc.requests {
					t.Errorf("watch: %v after %d attempts", err, watching.requests)
				}
				if w != nil {
					w.Stop()
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		f := &flakyServer{errs: slices.Repeat([]error{away}, 30)}
		if _, err := (&persistent{lw: f}).ListWithContext(ctx, metav1.ListOptions{}); err == nil || f.requests != 2 {
			t.Errorf("after the context has ended: %v after %d attempts", err, f.requests)
		}
	})
}

// TestFaultVersionTooLarge has the API server not know the version from which an informer goes on,
// as after a restore of its database. The informer is told at once, as client-go's reflector then
// lists what there is.
func TestFaultVersionTooLarge(t *testing.T) {
	tooLarge := apierrors.NewTimeoutError("Too large resource version: 3000, current: 1000", 1)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		options := metav1.ListOptions{ResourceVersion: "3000", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
		f := &flakyServer{errs: slices.Repeat([]error{tooLarge}, 1000)}
		if _, err := (&persistent{lw: f}).ListWithContext(ctx, options); !apierrors.HasStatusCause(
			err, metav1.CauseTypeResourceVersionTooLarge,
		) || f.requests != 1 {
			t.Errorf("list: %v after %d requests", err, f.requests)
		}
		if _, err := (&persistent{lw: f}).WatchWithContext(ctx, options); !apierrors.HasStatusCause(
			err, metav1.CauseTypeResourceVersionTooLarge,
		) || f.requests != 2 {
			t.Errorf("watch: %v after %d requests", err, f.requests)
		}
	})
}
