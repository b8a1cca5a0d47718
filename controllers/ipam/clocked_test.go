package ipam

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/allocation"
)

// clocked is a Broker that asks nobody, for tests of its decisions: it is not started, and its
// time passes when the test says so.
type clocked struct {
	*Broker
	now time.Time
	// answered and observed count what the Broker has said of Services and groups, and found is
	// what it has reported.
	answered map[string]int
	observed map[string]int
	found    []string
}

// The groups of a clocked Broker: two are of one endpoint, and the third is of another one.
const (
	group1, group2 = "one", "two"
	groupElsewhere = "elsewhere"
)

var configs = map[string]*allocation.Netbox{
	group1:         {URL: "https://netbox", TokenSecret: "netbox", TokenKey: "token"},
	group2:         {URL: "https://netbox", TokenSecret: "netbox", TokenKey: "token", Tenant: "two"},
	groupElsewhere: {URL: "https://elsewhere", TokenSecret: "netbox", TokenKey: "token"},
}

func newClocked(groups ...string) *clocked {
	c := &clocked{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), answered: map[string]int{}, observed: map[string]int{}}
	c.Broker = NewBroker(Options{
		Now:                func() time.Time { return c.now },
		AnswersChanged:     func(name types.NamespacedName) { c.answered[name.Name]++ },
		ObservationChanged: func(group string) { c.observed[group]++ },
		FoundDifference:    func(_ string, _ Owner, text string) { c.found = append(c.found, text) },
	})
	for _, group := range groups {
		c.Configure(group, configs[group])
	}
	return c
}

// queueOf returns the queue of a group, and its endpoint.
func (c *clocked) queueOf(group string) (*queue, endpoint) {
	e := endpointOf(configs[group])
	return c.queues[e], e
}

// claimOf lets a Service claim an IPv4 address of a group.
func (c *clocked) claimOf(service, group string) (claimKey, *claimState) {
	claim := allocation.Claim{Group: group, Family: allocation.IPv4}
	c.Want(ownerNamed(service), []allocation.Claim{claim})
	key := claimKey{ownerNamed(service).UID, claim}
	return key, c.claims[key]
}

// said makes a claim answered some time ago; without a reason, and with an address, it is met.
func (c *clocked) said(claim *claimState, offer allocation.Offer, ago time.Duration) {
	claim.offer, claim.isAnswered, claim.answeredAt = offer, true, c.now.Add(-ago)
}

// isDue reports whether a job is due.
func (c *clocked) isDue(s *schedule) bool { return !s.dueAt.After(c.now) }
