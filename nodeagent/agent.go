package nodeagent

import (
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/internal/watchdog"
)

// FieldOwner of the status of Announcements.
const FieldOwner = "purelb-agent"

// Agent makes the kernel of its node match its Announcements. SetupWithManager adds it, and its
// components, to a manager, which starts them.
type Agent struct {
	// Client reads from the cache and writes.
	Client client.Client
	// APIReader reads from the API server.
	APIReader  client.Reader
	Kernel     Kernel
	Neighbours Neighbours
	// Proxy, if set, is waited for before an address is announced whose traffic
	// stays on the node.
	Proxy   Proxy
	Metrics *Metrics
	// NodeName, Namespace of its Announcements, and LBNodeAgentName, whose
	// settings apply.
	NodeName, Namespace, LBNodeAgentName string

	// Reconnect, if set, drops the connections to the API server. It is called when several
	// requests, one after the other, were not answered in time: another API server may answer.
	Reconnect func()
	// Unacknowledged, if set, is signalled when the API server did not acknowledge what was sent to it.
	Unacknowledged <-chan struct{}

	// CheckpointPath, if set, is the file in which the agent keeps the objects that it last read,
	// for a start while the API server is away.
	CheckpointPath string
	// Disk has the checkpoint; the node's, if it is nil.
	Disk Disk
	// OpenExchange, if set, opens an Exchange by which the agent watches other nodes on the link of
	// an interface.
	OpenExchange func(iface string) (Exchange, error)
	// Ownership, if set, is the record of the addresses that the agent has added. The agent writes
	// it to its file.
	Ownership Ownership
	// Tasks runs the agent's components; as goroutines, if it is nil.
	Tasks tasks.Runner
	// SuspendedFor returns for how long the node has been suspended since it booted, which the clock of Tasks has not
	// counted; what the kernel says, if it is nil.
	SuspendedFor func() time.Duration

	announcer    *announcer
	prober       *prober
	defender     *defender
	watching     *watching
	reachability *reachability
	freshness    *freshness
	watchdog     *watchdog.Watchdog
	reporter     *reporter
	// checkpointSaver writes the checkpoint, and ownershipSaver the Ownership; nil if there is none.
	checkpointSaver, ownershipSaver *file.Saver

	// wake wakes the worker, statusChanged does so after statusCheckDelay, and emptyItem gives it nothing
	// to do. All three have room for one signal.
	wake, statusChanged, emptyItem chan struct{}
	// heartbeatLists has room for the one request of the heartbeat, and listResults for the result of the
	// one list that is under way. listsChanged is signalled when there is something in one of them.
	heartbeatLists chan listRequest
	listResults    chan listResult
	listsChanged   chan struct{}
	// isCacheFilled means that the cache has been filled since the agent started, so that the worker
	// reads it. Until then the heartbeat lists before each renewal.
	isCacheFilled atomic.Bool
	// workerEnded is signalled when the worker has ended.
	workerEnded chan struct{}
	state       workerState
}

// savers returns the savers that there are.
func (a *Agent) savers() []*file.Saver {
	if a.ownershipSaver == nil {
		return []*file.Saver{a.checkpointSaver}
	}
	return []*file.Saver{a.checkpointSaver, a.ownershipSaver}
}

// problemNotes returns why files are not written.
func (a *Agent) problemNotes() []string {
	var notes []string
	for _, s := range a.savers() {
		notes = append(notes, s.Problem())
	}
	return notes
}

// Healthy returns an error if the agent counts as stuck. It is for a liveness probe: whether
// the API server answers makes no difference. A stuck agent renews no Lease, either, so that other
// nodes probe for its addresses, which fade from its kernel. An idle agent does not sync: before each
// renewal the heartbeat gives the worker an empty item.
func (a *Agent) Healthy(*http.Request) error { return a.watchdog.Check() }
