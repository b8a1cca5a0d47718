package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// routerAddresses are those of the routers of histories with routers.
var routerAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.250"), netip.MustParseAddr("192.0.2.251")}

// NewClusterWithRouters returns a cluster with two routers, and a BGPPeer for each of them, the second one with BFD.
func NewClusterWithRouters(w *World, nodes int) (*Cluster, error) {
	c, err := NewCluster(w, nodes)
	if err != nil {
		return nil, err
	}
	c.AddRouters(routerAddresses...)
	for i := range c.Routers {
		if err := c.CreatePeer(i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func peerName(router int) string { return fmt.Sprint("router", router+1) }

// CreatePeer creates the BGPPeer of a router.
func (c *Cluster) CreatePeer(router int) error {
	peer := &v1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: peerName(router)}}
	peer.Spec = v1.BGPPeerSpec{
		PeerASN: "64500", MyASN: ptr.To(int64(64510)), PeerAddress: c.Routers[router].Addr.String(),
		Families: []v1.IPFamily{"IPv4", "IPv6"},
	}
	if router%2 == 1 {
		peer.Spec.BFD = &v1.BGPBFD{}
	}
	return c.Admin.Create(context.Background(), peer)
}

// EditPeer changes the BGPPeer of a router.
func (c *Cluster) EditPeer(router int, edit func(*v1.BGPPeerSpec)) error {
	peer := &v1.BGPPeer{}
	key := client.ObjectKey{Namespace: Namespace, Name: peerName(router)}
	if err := c.Admin.Get(context.Background(), key, peer); err != nil {
		return client.IgnoreNotFound(err)
	}
	edit(&peer.Spec)
	return c.Admin.Update(context.Background(), peer)
}

// DeletePeer deletes the BGPPeer of a router.
func (c *Cluster) DeletePeer(router int) error {
	return c.Admin.Delete(context.Background(), &v1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: peerName(router)},
	})
}

// EditRemoteGroup changes the ServiceGroup of Virtual addresses.
func (c *Cluster) EditRemoteGroup(edit func(*v1.ServiceGroupSpec)) error {
	group := &v1.ServiceGroup{}
	key := client.ObjectKey{Namespace: Namespace, Name: GroupVirtual}
	if err := c.Admin.Get(context.Background(), key, group); err != nil {
		return err
	}
	edit(&group.Spec)
	return c.Admin.Update(context.Background(), group)
}

// routingHistory is what histories with routers have besides.
type routingHistory struct {
	*routingLaws
	// isUpgrading means that speakers are replaced, one after the other.
	isUpgrading bool
}

func (h *History) beginRouting() {
	h.routing = &routingHistory{routingLaws: newRoutingLaws(h.laws, h)}
	inspect := h.Inspect
	h.Inspect = func() {
		inspect()
		h.routing.inspect()
	}
}

// routingDeeds are the deeds that concern BGP.
func (h *History) routingDeeds() []deed {
	return []deed{
		{2, h.killSpeaker}, {2, h.restartSpeaker}, {1, h.upgradeSpeakers}, {1, h.keepSpeakerAway}, {1, h.pauseSpeaker},
		{1, h.crashRouter}, {1, h.resetRouter}, {1, h.cutRouter}, {3, h.editPeer}, {1, h.deletePeer}, {2, h.editGroup},
	}
}

// isForRoutersOnly reports whether a trouble of a name keeps no node from learning what it is to do.
func isForRoutersOnly(name string) bool {
	return slices.ContainsFunc([]string{"excluded", noPower, cutOffRouter, noPeer}, func(what string) bool {
		return strings.HasPrefix(name, what)
	})
}

// What the troubles of routers are called.
const noPower, cutOffRouter, noPeer = "no power: router", "cut off router", "no BGPPeer"

func (h *History) anyRouter() int { return h.Pick(len(h.Routers)) }

// killSpeaker ends a speaker as the kernel does. The kubelet starts another one.
func (h *History) killSpeaker() {
	n := h.anyNode()
	if n.isOff || !n.Speaks() {
		return
	}
	h.Tell("", "the speaker of %s crashes", n.Name)
	h.recover()
	n.killSpeakers()
}

// restartSpeaker stops a speaker as the kubelet does, which then starts another one.
func (h *History) restartSpeaker() {
	n := h.anyNode()
	if n.isOff {
		return
	}
	h.Tell("", "the speaker of %s is to end", n.Name)
	h.recover()
	n.stopSpeaker()
}

// upgradeSpeakers replaces all speakers, one after the other, each when the one before is ready.
func (h *History) upgradeSpeakers() {
	if h.routing.isUpgrading {
		return
	}
	h.Tell("", "the speakers are replaced")
	h.routing.isUpgrading = true
	h.calmUntil = time.Now().Add(recoverWithin)
	h.upgrade(0)
}

func (h *History) upgrade(i int) {
	if i == len(h.Nodes) {
		h.routing.isUpgrading = false
		return
	}
	n := h.Nodes[i]
	old := slices.Clone(n.speakers)
	n.stopSpeaker()
	var look func()
	look = func() {
		isNew := len(n.speakers) == 1 && !slices.Contains(old, n.speakers[0]) && n.speakers[0].product.Ready() == nil
		if isNew || n.isOff {
			h.upgrade(i + 1)
			return
		}
		h.After(2*time.Second, look)
	}
	h.After(2*time.Second, look)
}

// keepSpeakerAway ends a speaker for a while that may be longer than routers keep routes.
func (h *History) keepSpeakerAway() {
	n := h.anyNode()
	h.begin(h.routing.unspoken, "no speaker", []*Node{n}, doing(func() {
		n.isSpeakerKept = true
		n.killSpeakers()
	}), doing(func() { n.isSpeakerKept = false }))
}

func (h *History) pauseSpeaker() {
	n := h.anyNode()
	if n.isOff || len(n.speakers) != 1 || n.speakers[0].isPaused() {
		return
	}
	s := n.speakers[0]
	h.begin(h.routing.unspoken, "paused speaker", []*Node{n}, doing(s.Pause), doing(s.Resume))
}

func (h *History) crashRouter() {
	i := h.anyRouter()
	r := h.Routers[i]
	if r.IsDown {
		return
	}
	h.begin(h.routing.unrouted[r], fmt.Sprint(noPower, i+1), nil, doing(r.Crash), doing(r.Restart))
}

func (h *History) resetRouter() {
	i := h.anyRouter()
	r := h.Routers[i]
	h.Tell("", "%s ends all sessions", peerName(i))
	h.recover()
	h.routing.unrouted[r].begin(h.Nodes...)
	h.routing.unrouted[r].end(h.Nodes...)
	r.Reset()
}

// cutRouter makes nothing get from a router to a node, or back, or both.
func (h *History) cutRouter() {
	i, n := h.anyRouter(), h.anyNode()
	r := h.Routers[i]
	direction := h.Pick(3)
	set := func(isCut bool) func() error {
		return doing(func() {
			if direction != 1 {
				r.segment.Cut(n.portOn(r.segment), r.port, isCut)
			}
			if direction != 0 {
				r.segment.Cut(r.port, n.portOn(r.segment), isCut)
			}
		})
	}
	h.begin(h.routing.unrouted[r], fmt.Sprint(cutOffRouter, i+1), []*Node{n}, set(true), set(false))
}

// editPeer changes settings of a BGPPeer. Sessions that support graceful restart before and after cost no route.
func (h *History) editPeer() {
	i := h.anyRouter()
	var what string
	var edit func(*v1.BGPPeerSpec)
	switch h.Pick(4) {
	case 0:
		hold := time.Duration(9+3*h.Pick(4)) * time.Second
		what = fmt.Sprint("hold time ", hold)
		edit = func(s *v1.BGPPeerSpec) { s.HoldTime = &metav1.Duration{Duration: hold} }
	case 1:
		restart := time.Duration(20+10*h.Pick(4)) * time.Second
		what = fmt.Sprint("restart time ", restart)
		edit = func(s *v1.BGPPeerSpec) {
			s.GracefulRestart = &v1.BGPGracefulRestart{RestartTime: &metav1.Duration{Duration: restart}}
		}
	case 2:
		connect := time.Duration(2+h.Pick(5)) * time.Second
		what = fmt.Sprint("connect time ", connect)
		edit = func(s *v1.BGPPeerSpec) { s.ConnectTime = &metav1.Duration{Duration: connect} }
	default:
		multiplier := int32(3 + h.Pick(5)) //nolint:gosec // a small number
		what = fmt.Sprint("BFD multiplier ", multiplier)
		edit = func(s *v1.BGPPeerSpec) {
			if s.BFD != nil {
				s.BFD.Multiplier = &multiplier
			}
		}
	}
	h.Tell("user", "edits BGPPeer %s: %s", peerName(i), what)
	h.recover()
	h.note(h.EditPeer(i, edit))
}

func (h *History) deletePeer() {
	i := h.anyRouter()
	h.begin(h.routing.unrouted[h.Routers[i]], fmt.Sprint(noPeer, " ", peerName(i)), nil,
		func() error { return h.DeletePeer(i) }, func() error { return h.CreatePeer(i) })
}

// editGroup changes how the ServiceGroup of Virtual addresses is advertised.
func (h *History) editGroup() {
	var what string
	var edit func(*v1.ServiceGroupSpec)
	if h.Chance(0.5) {
		community := v1.Community(fmt.Sprint("64500:", h.Pick(10)))
		what = fmt.Sprint("community ", community)
		edit = func(s *v1.ServiceGroupSpec) {
			s.BGP = &v1.ServiceGroupBGPSpec{ServiceGroupBGP: v1.ServiceGroupBGP{Communities: []v1.Community{community}}}
		}
	} else {
		aggregations := []v1.Aggregation{"default", "/32", "/28"}
		aggregation := aggregations[h.Pick(len(aggregations))]
		what = fmt.Sprint("aggregation ", aggregation)
		edit = func(s *v1.ServiceGroupSpec) { s.Remote.V4Pools[0].Aggregation = aggregation }
	}
	h.Tell("user", "edits ServiceGroup %s: %s", GroupVirtual, what)
	h.recover()
	h.note(h.EditRemoteGroup(edit))
}
