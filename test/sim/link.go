package sim

import (
	"slices"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// Link is a switch and the stations on its ports. It learns behind which port a station is, as switches
// do, from what the station sends.
type Link struct {
	world *World
	ports []*Port
	// learnt says behind which port frames to a station go.
	learnt map[neigh.MAC]*Port
	// MinDelay and MaxDelay are how long a frame takes.
	MinDelay, MaxDelay time.Duration
	// Loss is how many frames get lost, of 1.
	Loss float64
	// DropsUnknown means that no frame gets to a station of which the switch has not heard.
	DropsUnknown bool
}

// NewLink returns a link without stations.
func (w *World) NewLink() *Link {
	return &Link{
		world: w, learnt: map[neigh.MAC]*Port{}, MinDelay: 20 * time.Microsecond, MaxDelay: 200 * time.Microsecond,
	}
}

// Port is a port of a switch with what is connected to it.
type Port struct {
	link    *Link
	name    string
	receive func(frame []byte)
	// IsDown says that nothing comes from it, and nothing gets to it.
	IsDown bool
	// lastAt is when the last frame that is on its way gets to it.
	lastAt time.Time
	// isCutFrom are the ports of which nothing gets to it.
	isCutFrom map[*Port]bool
}

// Connect connects a station, which is given the frames that come to its port.
func (l *Link) Connect(name string, receive func(frame []byte)) *Port {
	p := &Port{link: l, name: name, receive: receive, isCutFrom: map[*Port]bool{}}
	l.ports = append(l.ports, p)
	return p
}

// Cut makes nothing that one port sends get to another, or makes it get there again.
func (l *Link) Cut(from, to *Port, isCut bool) { to.isCutFrom[from] = isCut }

// Split makes nothing get from the ports of one side to any others and back, or makes it get there again.
func (l *Link) Split(side []*Port, isSplit bool) {
	for _, a := range l.ports {
		for _, b := range l.ports {
			if slices.Contains(side, a) != slices.Contains(side, b) {
				l.Cut(a, b, isSplit)
			}
		}
	}
}

// Forget makes the switch forget behind which port which station is.
func (l *Link) Forget() { clear(l.learnt) }

// Send sends an Ethernet frame.
func (p *Port) Send(frame []byte) {
	const addresses = 12
	if len(frame) < addresses || p.IsDown {
		return
	}
	to, from := neigh.MAC(frame[:6]), neigh.MAC(frame[6:addresses])
	p.link.learnt[from] = p
	frame = slices.Clone(frame)
	if known, isKnown := p.link.learnt[to]; isKnown && to[0]&1 == 0 {
		p.pass(known, frame)
		return
	}
	if p.link.DropsUnknown && to[0]&1 == 0 {
		return
	}
	for _, other := range p.link.ports {
		p.pass(other, frame)
	}
}

// pass lets a frame, which nobody changes any more, get to another port, unless it is lost on the way. Frames
// get to a port in the order in which they were sent, as the port of a switch has one queue: so an answer comes
// after that which it answers.
func (p *Port) pass(to *Port, frame []byte) {
	l := p.link
	if to == p || l.Loss > 0 && l.world.Chance(l.Loss) {
		return
	}
	at := time.Now().Add(l.world.Between(l.MinDelay, l.MaxDelay))
	if !at.After(to.lastAt) {
		at = to.lastAt.Add(time.Nanosecond)
	}
	to.lastAt = at
	l.world.After(time.Until(at), func() {
		if !to.IsDown && !to.isCutFrom[p] {
			to.receive(frame)
		}
	})
}
