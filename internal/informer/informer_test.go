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

// flaky is an API server that fails, and then does not.
type flaky struct {
	errs  []error
	asked int
}

func (f *flaky) next() error {
	f.asked++
	if f.asked <= len(f.errs) {
		return f.errs[f.asked-1]
	}
	return nil
}

func (f *flaky) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return &corev1.ServiceList{}, f.next()
}

func (f *flaky) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), f.next()
}

func TestPersistent(t *testing.T) {
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "announcements"}, "", errors.New("no role"))
	expired := apierrors.NewResourceExpired("too old")
	for name, tc := range map[string]struct {
		errs  []error
		want  error
		asked int
		took  time.Duration
	}{
		"an answer":                {nil, nil, 1, 0},
		"away for 30 s":            {slices.Repeat([]error{away}, 30), nil, 31, 30 * time.Second},
		"not allowed yet":          {[]error{forbidden, forbidden}, nil, 3, 2 * time.Second},
		"an answer that is no use": {[]error{away, expired}, expired, 2, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				list, watching := &flaky{errs: tc.errs}, &flaky{errs: tc.errs}
				_, err := (&persistent{lw: list}).List(metav1.ListOptions{})
				if !errors.Is(err, tc.want) || list.asked != tc.asked || time.Since(start) != tc.took {
					t.Errorf("list: %v after %d attempts in %v", err, list.asked, time.Since(start))
				}
				w, err := (&persistent{lw: watching}).Watch(metav1.ListOptions{})
				if !errors.Is(err, tc.want) || watching.asked != tc.asked {
					t.Errorf("watch: %v after %d attempts", err, watching.asked)
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
		f := &flaky{errs: slices.Repeat([]error{away}, 30)}
		if _, err := (&persistent{lw: f}).ListWithContext(ctx, metav1.ListOptions{}); err == nil || f.asked != 2 {
			t.Errorf("goes on after its end: %v after %d attempts", err, f.asked)
		}
	})
}
