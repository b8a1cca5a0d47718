package plugin

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// AskerFinding is what one node has found out by asking the holder of an address for it.
type AskerFinding struct {
	Node          string `json:"node"`
	Holder        string `json:"holder"`
	Reachable     string `json:"reachable"`               // True, False or Unknown
	LastReachable string `json:"lastReachable,omitempty"` // RFC 3339
	Why           string `json:"why,omitempty"`
}

// explainReach says whether other nodes get answers for a Local address, and what each has found out.
func explainReach(c *Cluster, a netip.Addr, places []announced.Place) (string, []AskerFinding) {
	asks := func(lbNodeAgent string) bool {
		return slices.ContainsFunc(c.LBNodeAgents, func(l v1.LBNodeAgent) bool {
			return l.Name == lbNodeAgent && l.Namespace == c.Namespace && l.AsksForAddresses()
		})
	}
	for _, r := range announced.ReachVerdicts(places, c.Askings, asks) {
		if r.Address != a.String() {
			continue
		}
		var all []AskerFinding
		for i := range r.Reports {
			report := &r.Reports[i]
			by := AskerFinding{
				Node: report.Node, Holder: r.Holder, Reachable: string(report.Reachable), Why: report.Explain(r.Holder),
			}
			if report.LastReachable != nil {
				by.LastReachable = report.LastReachable.UTC().Format("2006-01-02T15:04:05Z")
			}
			all = append(all, by)
		}
		return fmt.Sprintf("%s, %s: %s", r.Reachable, r.Reason, r.Message), all
	}
	return "", nil
}
