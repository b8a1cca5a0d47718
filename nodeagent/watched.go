package nodeagent

import (
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

const (
	// maxKnown bounds what is remembered of stations that answer for an address.
	maxKnown = 16
	// knownFor is for how long a previous holder that answered is remembered: it is
	// asked more often than that. One that has been silent may have got the address
	// back, and the node be the one that does not know.
	knownFor = repeatInterval + askInterval
)

// watched is what is remembered of one address that is held.
type watched struct {
	asked    time.Time // for it, last
	defended time.Time
	suspect  time.Time               // since when somebody is suspected; zero for nobody
	again    bool                    // the suspect was asked a second time
	known    map[neigh.MAC]time.Time // who answered while the agent was fresh; when last
	rival    neigh.MAC               // who claimed it last
	claimed  time.Time               // when
	repeat   time.Time               // until when claims are repeated against a previous holder
}

// knows whether a station answered while the agent was fresh and, if it is the
// previous holder, has gone on answering since.
func (w *watched) knows(mac neigh.MAC, previous bool, now time.Time) bool {
	last, known := w.known[mac]
	switch {
	case !known:
		return false
	case previous && now.Sub(last) > knownFor:
		delete(w.known, mac)
		return false
	}
	w.known[mac] = now
	return true
}

// remember notes that a station has answered while the agent was fresh.
func (w *watched) remember(mac neigh.MAC, now time.Time) {
	if w.known == nil {
		w.known = map[neigh.MAC]time.Time{}
	}
	if len(w.known) < maxKnown {
		w.known[mac] = now
	}
}
