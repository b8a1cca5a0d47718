package controllers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestMeasureMoves measures a move when the node announces the address, however long that takes, also
// when placement takes it for over before: the first placement of an address for which another station
// answers. An address that goes before a node has it is not measured.
func TestMeasureMoves(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	begun := time.Unix(1000, 0)
	entry := func(node string, state v1.AddressState) placement.Entry {
		return placement.Entry{Node: node, Addr: addr, ReportedState: state}
	}
	for name, row := range map[string]struct {
		// rounds are the entries of each second since the move begun.
		rounds [][]placement.Entry
		// underWay is in how many of them placement has the move.
		underWay int
		// want is how long it took; 0 if it is not measured.
		want time.Duration
	}{
		"announced at once": {[][]placement.Entry{{entry("a", v1.StateAnnounced)}}, 0, time.Second},
		"another station answers for a while": {[][]placement.Entry{
			{entry("a", "")}, {entry("a", v1.StateConflict)}, {entry("a", v1.StateConflict)}, {entry("a", v1.StateAnnounced)},
		}, 1, 4 * time.Second},
		"a handover": {[][]placement.Entry{
			{entry("a", v1.StateAnnounced), entry("b", "")}, {entry("a", v1.StateAnnounced), entry("b", v1.StateAnnounced)},
			{entry("b", v1.StateAnnounced)},
		}, 2, 3 * time.Second},
		"the Service goes": {[][]placement.Entry{{entry("a", v1.StatePending)}, nil, {entry("a", v1.StateAnnounced)}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			now := begun
			r := &PlacementReconciler{Metrics: NewMetrics(registry), Now: func() time.Time { return now }}
			r.resetState()
			r.state.moveStarts[addr] = moveStart{kind: placement.FirstPlacement, since: begun}
			for i, entries := range row.rounds {
				now = begun.Add(time.Duration(i+1) * time.Second)
				result := &placement.Result{Moves: map[netip.Addr]placement.Move{}}
				if i < row.underWay {
					result.Moves[addr] = placement.Move{Kind: placement.FirstPlacement}
				}
				r.measureMovesAndMembers(&placement.Inputs{Entries: entries}, result)
			}
			var out dto.Metric
			if err := r.Metrics.moveDuration.WithLabelValues(string(placement.FirstPlacement)).(prometheus.Metric).
				Write(&out); err != nil {
				t.Fatal(err)
			}
			count, sum := out.GetHistogram().GetSampleCount(), out.GetHistogram().GetSampleSum()
			if sum != row.want.Seconds() || (count > 0) != (row.want > 0) {
				t.Errorf("%d moves of %g s altogether, want one of %s", count, sum, row.want)
			}
			if len(r.state.moveStarts) > 0 {
				t.Errorf("%v is kept", r.state.moveStarts)
			}
		})
	}
}
