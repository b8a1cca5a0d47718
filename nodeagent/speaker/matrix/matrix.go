package matrix

import (
	"strings"
)

// Figures that all cells have, and that sum up what happens: how many requests had no answer, and the longest time
// between two answers.
const (
	LostFigure   = "requests lost"
	OutageFigure = "longest time without an answer, ms"
)

// Daemon is a routing daemon.
type Daemon string

// The routing daemons, and the families and kinds of sessions that columns have.
const (
	FRR  Daemon = "FRR"
	BIRD Daemon = "BIRD"
)

// Kind is how a neighbour is related to the nodes.
type Kind string

const (
	// External is the router itself, in another autonomous system.
	External Kind = "eBGP"
	// Reflected is a route reflector in the nodes' autonomous system, beside the router, which is its client, too.
	Reflected Kind = "iBGP with a reflector"
	// Multihop is the router in another autonomous system, by an address of its loopback interface.
	Multihop Kind = "eBGP multihop"
)

// Column is a kind of session.
type Column struct {
	Daemon Daemon
	BFD    bool
	// IPv4 and IPv6 are what the session carries. If it carries both, it is a session over IPv4.
	IPv4, IPv6 bool
	Kind       Kind
}

// String names the column.
func (c Column) String() string {
	bfd, families := "without BFD", "IPv4 and IPv6"
	if c.BFD {
		bfd = "BFD"
	}
	switch {
	case !c.IPv6:
		families = "IPv4"
	case !c.IPv4:
		families = "IPv6"
	}
	return strings.Join([]string{string(c.Daemon), bfd, families, string(c.Kind)}, ", ")
}

// Group names the columns with the same daemon, and with or without BFD.
func (c Column) Group() string {
	if c.BFD {
		return string(c.Daemon) + ", BFD"
	}
	return string(c.Daemon) + ", without BFD"
}

// Columns returns all columns.
func Columns() []Column {
	var all []Column
	for _, daemon := range []Daemon{FRR, BIRD} {
		for _, bfd := range []bool{true, false} {
			for _, families := range []struct{ four, six bool }{{true, false}, {false, true}, {true, true}} {
				for _, kind := range []Kind{External, Reflected, Multihop} {
					all = append(all, Column{daemon, bfd, families.four, families.six, kind})
				}
			}
		}
	}
	return all
}

// Row is something that happens.
type Row struct {
	Name string
	// Elsewhere is why the row has no values here, and where it has; empty if it has values here.
	Elsewhere string
	// NeedsBFD is of rows about BFD.
	NeedsBFD bool
	// LosesNothing means that no request may be lost: some node forwards at any time what the router sends to it.
	LosesNothing bool
	// HasPassword means that the sessions have a password, and IsRange that the router takes any station of the link
	// for a neighbour.
	HasPassword, IsRange bool
	// IsLocal means that the address is of a Service with externalTrafficPolicy Local.
	IsLocal bool
}

// Rows are in the order in which they are tried.
var Rows = []Row{
	{Name: "speakers updated", LosesNothing: true},
	{Name: "speaker killed", LosesNothing: true},
	{Name: "speaker out of memory",
		Elsewhere: "the kernel ends the process by SIGKILL, as in the row \"speaker killed\""},
	{Name: "agent killed", LosesNothing: true},
	{Name: "agent dead, endpoints leave", IsLocal: true},
	{Name: "node without power, and back"},
	{Name: "node rebooted in order"},
	{Name: "node excluded, and back", LosesNothing: true},
	{Name: "node NotReady for 10 s", LosesNothing: true},
	{Name: "node drained by kubectl drain",
		Elsewhere: "a cordon changes no route, and pods move: make proof-bgp, in the lab"},
	{Name: "link cut, and back"},
	{Name: "router restarted"},
	{Name: "session reset by the router"},
	{Name: "too many routes for the router"},
	{Name: "password rotated", HasPassword: true},
	{Name: "BFD lost for 3 s", NeedsBFD: true},
	{Name: "manager away for 20 s, speaker killed", LosesNothing: true},
	{Name: "API server away for 20 s, speaker killed", LosesNothing: true},
	{Name: "BGPPeer edited", LosesNothing: true},
	{Name: "BGPPeer renamed", LosesNothing: true},
	{Name: "BGPPeer deleted, and created"},
	{Name: "ServiceGroup's communities edited", LosesNothing: true},
	{Name: "aggregation changed", LosesNothing: true},
	{Name: "rolling update with policy Local",
		Elsewhere: "needs pods, kubelets and kube-proxy: make proof-bgp, in the lab"},
	{Name: "1,000 addresses"},
	{Name: rangeRow, NeedsBFD: true, IsRange: true, LosesNothing: true},
}

// rangeRow is the row in which nothing happens for long.
const rangeRow = "listen range, nothing happens"

// Reason returns why the cell of a row and a column has no value; it is empty if the cell has one.
func Reason(r Row, c Column) string {
	switch {
	case r.Elsewhere != "":
		return r.Elsewhere
	case c.BFD && c.Kind == Multihop:
		return "BFD is for neighbours on the link (RFC 5881): a BGPPeer with ebgpMultihop cannot have it"
	case r.NeedsBFD && !c.BFD:
		return "there is no BFD"
	}
	return ""
}

// Cell names a cell.
func Cell(r Row, c Column) string { return r.Name + ": " + c.String() }
