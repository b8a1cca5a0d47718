// Command echo is the workload of the lab's tests: an HTTP server that says
// which pod answers and which addresses it sees.
//
//	echo [PORT]    serve, on 8080 unless told otherwise, IPv4 and IPv6
//	echo get URL   fetch URL and print the answer: a client, for "kubectl exec"
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	case len(args) == 1:
		return serve(args[0])
	case len(args) == 0:
		return serve("8080")
	}
	return fmt.Errorf("usage: echo [PORT] | echo get URL")
}

func serve(port string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	pod, node := os.Getenv("POD_NAME"), os.Getenv("NODE_NAME")
	server := &http.Server{
		Addr:              ":" + port,
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "pod=%s node=%s client=%s local=%s\n",
				pod, node, r.RemoteAddr, r.Context().Value(http.LocalAddrContextKey))
		}),
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return fmt.Errorf("serve on port %s: %w", port, err)
	}
	return nil
}

func get(url string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}
