package ipam

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/allocation"
)

// clocked is a Broker that asks nobody, for tests of its decisions: it is not started, and its
// time passes when the test says so.
type clocked struct {
	*Broker
	now  time.Time
	stub *stubCluster
	// answered and observed count what the Broker has said of Services and groups, and found is
	// what it has reported.
	answered map[string]int
	observed map[string]int
	found    []string
}

// stubCluster is a cluster of this installation, which counts what it is asked for.
type stubCluster struct {
	installationReads, tokenReads int
	// token is what the Secret holds, unless reading it gives tokenError.
	token      string
	tokenError error
	inUse      map[netip.Addr]bool
}

func (s *stubCluster) EnsureInstallation(context.Context) (types.UID, error) {
	s.installationReads++
	return testInstallation, nil
}

func (s *stubCluster) Token(context.Context, *allocation.Netbox) (string, error) {
	s.tokenReads++
	if s.tokenError != nil {
		return "", s.tokenError
	}
	return s.token, nil
}

func (s *stubCluster) Holders(context.Context, string) (map[netip.Addr][]Owner, error) {
	return nil, nil //nolint:nilnil // an empty map
}

func (s *stubCluster) IsInUse(a netip.Addr) bool { return s.inUse[a] }

func (s *stubCluster) Objection(context.Context, Owner, string) (func(netip.Addr) string, error) {
	return func(netip.Addr) string { return "" }, nil
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
	c := &clocked{
		stub: &stubCluster{token: "secret", inUse: map[netip.Addr]bool{}},
		now:  time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), answered: map[string]int{}, observed: map[string]int{},
	}
	c.Broker = NewBroker(Options{
		Cluster:              c.stub,
		Now:                  func() time.Time { return c.now },
		OnAnswersChanged:     func(name types.NamespacedName) { c.answered[name.Name]++ },
		OnObservationChanged: func(group string) { c.observed[group]++ },
		OnDifference:         func(_ string, _ Owner, text string) { c.found = append(c.found, text) },
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

// requestOf lets a Service request an IPv4 address of a group.
func (c *clocked) requestOf(service, group string) (requestKey, *requestState) {
	request := allocation.IPAMRequest{Group: group, Family: allocation.IPv4}
	c.SetRequests(ownerNamed(service), []allocation.IPAMRequest{request})
	key := requestKey{ownerNamed(service).UID, request}
	return key, c.requests[key]
}

// said makes a request answered some time ago; without a reason, and with an address, it is met.
func (c *clocked) said(request *requestState, offer allocation.Offer, ago time.Duration) {
	request.offer, request.isAnswered, request.answeredAt = offer, true, c.now.Add(-ago)
}

// isDue reports whether a job is due.
func (c *clocked) isDue(s *schedule) bool { return !s.dueAt.After(c.now) }
