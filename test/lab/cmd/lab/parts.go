package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/purelb/purelb-operator/test/lab/internal/api"
	"github.com/purelb/purelb-operator/test/lab/internal/dns"
	"github.com/purelb/purelb-operator/test/lab/internal/forward"
	"github.com/purelb/purelb-operator/test/lab/internal/logind"
	"github.com/purelb/purelb-operator/test/lab/internal/node"
)

// The hidden subcommands are the parts of a lab that are processes of their
// own; "lab up" starts them.

func forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "forward LISTEN NAMESPACE TARGET",
		Short:  "Carry connections to LISTEN on to TARGET in a network namespace",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			target, err := netip.ParseAddrPort(args[2])
			if err != nil {
				return fmt.Errorf("parse the target: %w", err)
			}
			return forward.Listen(c.Context(), args[0], args[1], target)
		},
	}
}

func dnsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "dns KUBECONFIG ADDRESS...",
		Short:  "Answer queries for the names of Services",
		Hidden: true,
		Args:   cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			var addresses []netip.AddrPort
			for _, text := range args[1:] {
				address, err := netip.ParseAddrPort(text)
				if err != nil {
					return fmt.Errorf("parse an address to listen on: %w", err)
				}
				addresses = append(addresses, address)
			}
			client, err := api.Open(args[0])
			if err != nil {
				return err
			}
			// While tests change Services, an answer is at most a second old.
			cache := &dns.Cache{Lookup: client.FindName, Fresh: time.Second, Limit: 10000, Now: time.Now}
			return dns.Serve(c.Context(), addresses, cache.Get)
		},
	}
}

func nodeStartCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "node-start FILE",
		Short:  "Start process 1 of a node in the namespaces of the node",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			config, err := node.Read(args[0])
			if err != nil {
				return err
			}
			return node.Start(config, "node-init", args[0])
		},
	}
}

func nodeInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "node-init FILE",
		Short:  "Be process 1 of a node",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			config, err := node.Read(args[0])
			if err != nil {
				return err
			}
			return node.Init(config, func() error { return logind.Start(node.BusAddress, node.ShutdownGracePeriod) })
		},
	}
}
