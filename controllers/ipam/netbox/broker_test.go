package netbox_test

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// emptyCluster is a cluster without Services.
type emptyCluster struct{ token string }

func (c emptyCluster) EnsureInstallation(context.Context) (types.UID, error) {
	return ipamtest.Installation, nil
}

func (c emptyCluster) Token(context.Context, *allocation.Netbox) (string, error) { return c.token, nil }

func (c emptyCluster) Holders(context.Context, string) (map[netip.Addr][]ipam.Owner, error) {
	return nil, nil //nolint:nilnil // an empty map
}

func (c emptyCluster) IsInUse(netip.Addr) bool { return false }

func (c emptyCluster) Objection(context.Context, ipam.Owner, string) (func(netip.Addr) string, error) {
	return ipamtest.NoObjection, nil
}

// startBroker starts a Broker that asks the world's NetBox, for a cluster without Services.
func (w *world) startBroker() *ipam.Broker { return w.startBrokerOf(emptyCluster{w.token}) }

func (w *world) startBrokerOf(cluster ipam.Cluster) *ipam.Broker {
	b := ipam.NewBroker(ipam.Options{
		Cluster: cluster, Now: time.Now,
		NewSystem: func(_ string, config *allocation.Netbox, token string, installationID types.UID) (ipam.System, error) {
			return netbox.NewSystem(config, token, installationID, netbox.Options{Now: time.Now})
		},
		OnAnswersChanged: func(types.NamespacedName) {}, OnObservationChanged: func(string) {},
		OnDifference: func(string, ipam.Owner, string) {},
	})
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		_ = b.Start(ctx)
	}()
	w.Cleanup(func() {
		cancel()
		<-ended
	})
	return b
}

// A permission that one group needs and another does not keeps the other one from nothing.
func TestFaultPermissionOfOneGroup(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	g := NewWithT(t)
	w.prefix(w.v4, nil)
	tag := w.named(tags)
	w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {Denied: []string{"GET ip-ranges"}}})
	defer w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {}})
	b := w.startBroker()
	bySelector := w.config()
	bySelector.Sources = map[allocation.Family]allocation.NetboxSource{
		allocation.IPv4: {Selector: v1.NetboxSelector{Tag: tag}},
	}
	b.Configure("selector", bySelector)
	reasonOf := func(group string) func() string { return func() string { return b.Observation(group).Reason } }
	g.Eventually(reasonOf("selector")).WithTimeout(30 * time.Second).Should(Equal(v1.ReasonIPAMRefused))
	b.Configure("prefix", w.config())
	wanted := allocation.IPAMRequest{Group: "prefix", Family: allocation.IPv4}
	owner := request("web").Owner
	b.SetRequests(owner, []allocation.IPAMRequest{wanted})
	g.Eventually(func() allocation.Offer { return b.Offers(owner.UID)[wanted] }).WithTimeout(30 * time.Second).
		Should(Equal(allocation.Offer{Address: w.addr(1)}))
	g.Eventually(reasonOf("prefix")).WithTimeout(30 * time.Second).Should(Equal(v1.ReasonReachable))
	g.Expect(reasonOf("selector")()).To(Equal(v1.ReasonIPAMRefused))
}

// Errors of one request concern that request while NetBox says that it is well.
func TestFaultOneRequest(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	g := NewWithT(t)
	w.prefix(w.v4, nil)
	b := w.startBroker()
	b.Configure("group", w.config())
	wanted := allocation.IPAMRequest{Group: "group", Family: allocation.IPv4}
	first, second := ipamtest.NewOwner("first", 0), ipamtest.NewOwner("second", 1)
	offerTo := func(o ipam.Owner) func() allocation.Offer {
		return func() allocation.Offer { return b.Offers(o.UID)[wanted] }
	}
	b.SetRequests(first, []allocation.IPAMRequest{wanted})
	g.Eventually(offerTo(first)).WithTimeout(30 * time.Second).Should(Equal(allocation.Offer{Address: w.addr(1)}))
	w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		http.Error(rw, "a plugin has failed", http.StatusInternalServerError)
		return true
	}, nil)
	b.SetRequests(first, nil) // its record cannot be deleted
	g.Eventually(func() map[netip.Addr]string { return b.Observation("group").Differences }).WithTimeout(30 * time.Second).
		Should(
			HaveKeyWithValue(w.addr(1), "its record cannot be deleted: NetBox "+w.base+" cannot be asked: it answers 500"))
	b.SetRequests(second, []allocation.IPAMRequest{wanted})
	g.Eventually(offerTo(second)).WithTimeout(30 * time.Second).Should(Equal(allocation.Offer{Address: w.addr(2)}))
	g.Expect(b.Observation("group").Reason).To(Equal(v1.ReasonReachable))
	w.fake.SetFaults(nil, nil)
	g.Eventually(func() int { return len(w.fake.Addresses()) }).WithTimeout(30 * time.Second).Should(Equal(1))
	g.Eventually(func() map[netip.Addr]string { return b.Observation("group").Differences }).WithTimeout(30 * time.Second).
		Should(BeEmpty())
}
