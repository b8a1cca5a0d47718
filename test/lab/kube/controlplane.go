package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/tools/cache"
	cliflag "k8s.io/component-base/cli/flag"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllermanageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// Config is the file that "kube control-plane" takes.
type Config struct {
	// EtcdDir is the folder of etcd's data.
	EtcdDir string `json:"etcdDir"`
	// EtcdURL is where etcd listens for clients.
	EtcdURL string `json:"etcdURL"`
	// APIServer, ControllerManager and Scheduler are the flags of each.
	APIServer         []string `json:"apiServer"`
	ControllerManager []string `json:"controllerManager"`
	Scheduler         []string `json:"scheduler"`
}

func readConfig(path string) (Config, error) {
	var config Config
	text, err := os.ReadFile(path)
	if err != nil {
		return config, fmt.Errorf("read the configuration: %w", err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return config, fmt.Errorf("parse %s: %w", path, err)
	}
	return config, nil
}

// serve runs the four components until ctx ends or one of them stops.
//
// They are started through their options and Run functions, not through their
// commands: two New*Command in one process panic.
func serve(ctx context.Context, config Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	etcd, err := startEtcd(ctx, config)
	if err != nil {
		return err
	}
	defer etcd.Close()

	stopped := make(chan error, 3)
	apiServerStopped := make(chan struct{})
	readyURL, err := startAPIServer(ctx, config.APIServer, func(err error) {
		close(apiServerStopped)
		stopped <- err
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, readyURL, apiServerStopped); err != nil {
		return err
	}
	if err := startControllerManager(ctx, config.ControllerManager, stopped); err != nil {
		return err
	}
	if err := startScheduler(ctx, config.Scheduler, stopped); err != nil {
		return err
	}

	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	// etcd must outlive the API server, which finishes its requests first.
	select {
	case <-apiServerStopped:
	case <-time.After(10 * time.Second):
	}
	return nil
}

func startEtcd(ctx context.Context, config Config) (*embed.Etcd, error) {
	client, err := url.Parse(config.EtcdURL)
	if err != nil {
		return nil, fmt.Errorf("parse etcdURL: %w", err)
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}

	c := embed.NewConfig()
	c.Dir = config.EtcdDir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.LogLevel = "error"
	// Data survives the death of the process, not of the machine: enough here.
	c.UnsafeNoFsync = true

	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, fmt.Errorf("start etcd: %w", err)
	case <-ctx.Done():
		etcd.Close()
		return nil, ctx.Err()
	}
}

// startAPIServer starts kube-apiserver, calls stopped when it ends, and returns
// the URL of its readiness.
func startAPIServer(ctx context.Context, args []string, stopped func(error)) (string, error) {
	options := apiserveroptions.NewServerRunOptions()
	if err := parseFlags("kube-apiserver", options.Flags(), args); err != nil {
		return "", err
	}
	if err := options.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return "", fmt.Errorf("kube-apiserver: set feature gates: %w", err)
	}
	completed, err := options.Complete(ctx)
	if err != nil {
		return "", fmt.Errorf("kube-apiserver: complete options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return "", fmt.Errorf("kube-apiserver: validate options: %w", errors.Join(errs...))
	}
	go func() { stopped(ended("kube-apiserver", kubeapiserver.Run(ctx, completed))) }()
	return fmt.Sprintf("https://127.0.0.1:%d/readyz", options.SecureServing.BindPort), nil
}

// waitReady waits until the API server says that it is ready. Its certificate
// is not checked: this is a question to ourselves.
func waitReady(ctx context.Context, readyURL string, stopped <-chan struct{}) error {
	client := &http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	defer client.CloseIdleConnections()
	for {
		response, err := client.Get(readyURL)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-stopped:
			return errors.New("kube-apiserver stopped before it was ready")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func startControllerManager(ctx context.Context, args []string, stopped chan<- error) error {
	all := controllermanager.KnownControllers()
	disabled := controllermanager.ControllersDisabledByDefault()
	aliases := controllermanager.ControllerAliases()

	options, err := controllermanageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("kube-controller-manager: options: %w", err)
	}
	flags := options.Flags(all, disabled, aliases)
	options.ParsedFlags = &flags
	if err := parseFlags("kube-controller-manager", flags, args); err != nil {
		return err
	}
	config, err := options.Config(ctx, all, disabled, aliases)
	if err != nil {
		return fmt.Errorf("kube-controller-manager: configure: %w", err)
	}
	go func() {
		stopped <- ended("kube-controller-manager", controllermanager.Run(ctx, config.Complete()))
	}()
	return nil
}

func startScheduler(ctx context.Context, args []string, stopped chan<- error) error {
	options := scheduleroptions.NewOptions()
	if err := parseFlags("kube-scheduler", *options.Flags, args); err != nil {
		return err
	}
	if options.InformerName == nil { // NewSchedulerCommand sets it, Setup needs it
		name, err := cache.NewInformerName("kube-scheduler")
		if err != nil {
			return fmt.Errorf("kube-scheduler: name the informers: %w", err)
		}
		options.InformerName = name
	}
	config, sched, err := scheduler.Setup(ctx, options)
	if err != nil {
		return fmt.Errorf("kube-scheduler: set up: %w", err)
	}
	go func() { stopped <- ended("kube-scheduler", scheduler.Run(ctx, config, sched)) }()
	return nil
}

// ended is the error of a component that should not have stopped.
func ended(name string, err error) error {
	if err == nil {
		return fmt.Errorf("%s stopped", name)
	}
	return fmt.Errorf("%s stopped: %w", name, err)
}

func parseFlags(name string, sets cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%s: parse flags: %w", name, err)
	}
	return nil
}
