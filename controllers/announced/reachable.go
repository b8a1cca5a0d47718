package announced

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// askersUntilUnreachable is how many askers have to get no answer until an address is unreachable:
// a single one may be mistaken, or have a broken link itself.
const askersUntilUnreachable = 2

// ReachVerdict is what is known of whether the node that announces a Local address answers for it.
type ReachVerdict struct {
	Address, Holder string
	Reachable       metav1.ConditionStatus
	Reason          string
	Message         string
	// Reports are what the askers report, sorted by node.
	Reports []ReachReport
}

// ReachReport is what one asker reports of an address.
type ReachReport struct {
	Node string
	v1.Reachability
}

// ReachVerdicts returns, for each Local address of some places that a node announces, whether other nodes
// get answers, sorted as the places are. askings are the Announcements with asking, and asks says of
// an LBNodeAgent whether its nodes have others ask for their addresses.
func ReachVerdicts(places []Place, askings []v1.Announcement, asks func(lbNodeAgent string) bool) []ReachVerdict {
	holders := map[string]*Place{} // by address
	var order []string
	for i := range places {
		p := &places[i]
		if p.Type != v1.AnnounceLocal || p.State != v1.StateAnnounced {
			continue
		}
		if holders[p.Address] == nil {
			order = append(order, p.Address)
		}
		if known := holders[p.Address]; known == nil || known.Epoch < p.Epoch {
			holders[p.Address] = p
		}
	}
	var all []ReachVerdict
	for _, address := range order {
		if p := holders[address]; asks(p.Announcement.Spec.LBNodeAgent) {
			all = append(all, reachVerdictOf(p, askings))
		}
	}
	return all
}

// reachVerdictOf judges what the askers report of one address. One answer is enough to be reachable.
func reachVerdictOf(p *Place, askings []v1.Announcement) ReachVerdict {
	r := ReachVerdict{Address: p.Address, Holder: p.Node}
	var answered, silent []string
	for i := range askings {
		report, isAsked := reportOf(&askings[i], p)
		if !isAsked {
			continue
		}
		r.Reports = append(r.Reports, report)
		switch report.Reachable {
		case metav1.ConditionTrue:
			answered = append(answered, report.Node)
		case metav1.ConditionFalse:
			silent = append(silent, report.Node)
		}
	}
	slices.SortFunc(r.Reports, func(a, b ReachReport) int { return strings.Compare(a.Node, b.Node) })
	slices.Sort(silent)
	who := strings.Join(silent, " and ")
	switch {
	case len(r.Reports) == 0:
		r.Reachable, r.Reason = metav1.ConditionUnknown, v1.ReasonNoAsker
		r.Message = fmt.Sprintf("there is no other node on the link of %s that could ask for %s", p.Node, p.Address)
	case len(answered) > 0:
		r.Reachable, r.Reason = metav1.ConditionTrue, v1.ReasonReachable
		r.Message = fmt.Sprintf("%s answers for %s", p.Node, p.Address)
		if len(silent) > 0 {
			r.Message += fmt.Sprintf(", but %s: %s", who, r.problems())
		}
	case len(silent) >= askersUntilUnreachable:
		r.Reachable, r.Reason = metav1.ConditionFalse, v1.ReasonUnreachable
		r.Message = fmt.Sprintf("%s announces %s, and %s cannot reach it: %s", p.Node, p.Address, who, r.problems())
	case len(silent) > 0:
		r.Reachable, r.Reason = metav1.ConditionUnknown, v1.ReasonNoAnswer
		r.Message = fmt.Sprintf(
			"%s cannot reach %s of %s: %s; no other node has found out about it, and one may be mistaken",
			who, p.Address, p.Node, r.problems(),
		)
	default:
		r.Reachable, r.Reason = metav1.ConditionUnknown, v1.ReasonNotAsked
		r.Message = fmt.Sprintf("no node has found out yet whether %s answers for %s: %s", p.Node, p.Address, r.problems())
	}
	return r
}

// reportOf returns what an asker reports of the address of a place, and whether the asker was told to ask.
func reportOf(ann *v1.Announcement, p *Place) (report ReachReport, isAsked bool) {
	asking := ann.Spec.Asking
	if asking == nil || asking.Holder.NodeName != p.Node || !slices.ContainsFunc(
		asking.Addresses, func(a v1.AskedAddress) bool { return a.Address == p.Address && a.Epoch == p.Epoch },
	) {
		return ReachReport{}, false
	}
	for _, r := range ann.Status.Reachability {
		if r.Address == p.Address && r.Epoch == p.Epoch {
			return ReachReport{ann.Spec.NodeName, r}, true
		}
	}
	return ReachReport{ann.Spec.NodeName, v1.Reachability{
		Address: p.Address, Epoch: p.Epoch, Reachable: metav1.ConditionUnknown, Reason: v1.ReasonNotAsked,
	}}, true
}

// problems says, once for each reason, why askers do not reach the address.
func (r *ReachVerdict) problems() string {
	var texts []string
	for i := range r.Reports {
		if report := &r.Reports[i]; report.Reachable != metav1.ConditionTrue {
			if text := report.Explain(r.Holder); !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, "; ")
}

// Explain says in words what an asker has found out. What an agent reports is cut to what it may say.
func (r *ReachReport) Explain(holder string) string {
	switch r.Reason {
	case v1.ReasonAnswered:
		return holder + " answers"
	case v1.ReasonNoAnswer:
		return fmt.Sprintf("%s answers for its own address, and not for this one", holder)
	case v1.ReasonHolderSilent:
		return fmt.Sprintf("%s answers for no address, and other nodes do for theirs", holder)
	case v1.ReasonOtherStation:
		return textlimit.Shorten(r.MAC, maxReachText) + " answers for the address, which is not " + holder
	case v1.ReasonNoWitness:
		return "no node answers, so this one may be cut off itself"
	case v1.ReasonNotAsked:
		return "it has not been asked for"
	}
	return textlimit.Shorten(r.Reason, maxReachText)
}

// maxReachText is longer than any MAC address, and than any reason.
const maxReachText = 64

// ReachableCondition returns the condition v1.ConditionServiceReachable of a Service: the worst of what
// is known of its addresses. The condition has no type if nobody is to ask for any of them.
func ReachableCondition(all []ReachVerdict) metav1.Condition {
	if len(all) == 0 {
		return metav1.Condition{}
	}
	order := []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionUnknown, metav1.ConditionTrue}
	rank := func(r ReachVerdict) int { return slices.Index(order, r.Reachable) }
	all = slices.SortedStableFunc(slices.Values(all), func(a, b ReachVerdict) int { return rank(a) - rank(b) })
	texts := make([]string, 0, len(all))
	for i := range all {
		texts = append(texts, all[i].Message)
	}
	const maxMessage = 1024
	return metav1.Condition{
		Type: v1.ConditionServiceReachable, Status: all[0].Reachable, Reason: all[0].Reason,
		Message: textlimit.Shorten(strings.Join(textlimit.First(texts, maxNamedInCondition), "; "), maxMessage),
	}
}

// servicesOfChangedReachability lists the Services, as namespace/name, for which something differs between two
// versions of an Announcement with asking, but for when a holder last answered.
func servicesOfChangedReachability(before, after *v1.Announcement) []string {
	type finding struct {
		holder, reason, mac string
		epoch               int64
		reachable           metav1.ConditionStatus
		isAsked             bool
	}
	findings := func(a *v1.Announcement) map[string]finding {
		all := map[string]finding{}
		if a.Spec.Asking == nil {
			return all
		}
		for _, e := range a.Spec.Asking.Addresses {
			all[e.Address] = finding{holder: a.Spec.Asking.Holder.NodeName, epoch: e.Epoch, isAsked: true}
		}
		for _, r := range a.Status.Reachability {
			if f := all[r.Address]; f.isAsked && f.epoch == r.Epoch {
				f.reason, f.mac, f.reachable = r.Reason, r.MAC, r.Reachable
				all[r.Address] = f
			}
		}
		return all
	}
	old, current := findings(before), findings(after)
	var keys []string
	for _, a := range []*v1.Announcement{before, after} {
		if a.Spec.Asking == nil {
			continue
		}
		for _, e := range a.Spec.Asking.Addresses {
			if old[e.Address] != current[e.Address] {
				keys = append(keys, e.Services...)
			}
		}
	}
	return keys
}
