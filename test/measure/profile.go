package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"k8s.io/client-go/rest"
)

// The paths of profiles, as net/http/pprof serves them.
const (
	cpuPath  = "/debug/pprof/profile"
	heapPath = "/debug/pprof/heap"
)

// Profiler opens a profile of a program.
type Profiler func(context.Context) (io.ReadCloser, error)

// CPUOfAPIServer profiles what the API server's processors do in the next seconds.
func CPUOfAPIServer(api rest.Interface, seconds int) Profiler {
	return func(ctx context.Context) (io.ReadCloser, error) {
		return api.Get().AbsPath(cpuPath).Param("seconds", strconv.Itoa(seconds)).Stream(ctx)
	}
}

// CPUOf profiles what the processors of a program do in the next seconds. The program
// serves its profiles at address, without encryption.
func CPUOf(web *http.Client, address string, seconds int) Profiler {
	return httpProfiler(web, "http://"+address+cpuPath+"?seconds="+strconv.Itoa(seconds))
}

// HeapOf profiles the memory of a program that serves its profiles at address.
func HeapOf(web *http.Client, address string) Profiler {
	return httpProfiler(web, "http://"+address+heapPath)
}

func httpProfiler(web *http.Client, url string) Profiler {
	return func(ctx context.Context) (io.ReadCloser, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		response, err := web.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			text, err := io.ReadAll(response.Body)
			return nil, errors.Join(fmt.Errorf("%s: %s", response.Status, text), err, response.Body.Close())
		}
		return response.Body, nil
	}
}

// Save writes a profile to a file.
func (p Profiler) Save(ctx context.Context, file string) error {
	body, err := p(ctx)
	if err != nil {
		return fmt.Errorf("take a profile: %w", err)
	}
	defer body.Close()
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("save a profile: %w", err)
	}
	_, err = io.Copy(f, body)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("save a profile: %w", err)
	}
	return nil
}

// StartAll starts tasks at the same time. The function that it returns waits until all
// have ended.
func StartAll(tasks ...func() error) (wait func() error) {
	ended := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { ended <- task() }()
	}
	return func() error {
		var errs []error
		for range tasks {
			errs = append(errs, <-ended)
		}
		return errors.Join(errs...)
	}
}
