package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Clock is the clock of a machine. By it programs measure time; it may be fast or slow, and stands still while the
// machine sleeps, as CLOCK_MONOTONIC does. What it says the time of day is may be quite wrong, and may change at any
// time; programs write that into objects, and measure nothing by it.
type Clock struct {
	// Rate is how much passes in a second.
	Rate float64
	// Offset is how wrong the time of day is.
	Offset time.Duration
	// told is the time that it told at a moment.
	told, at time.Time
	// isStopped means that it stands still, and stoodStill is for how long it has done so.
	isStopped  bool
	stoodStill time.Duration
}

// newClock returns one that is right.
func newClock() *Clock { return &Clock{Rate: 1, told: time.Now(), at: time.Now()} }

// Now tells the time.
func (c *Clock) Now() time.Time {
	if c.isStopped {
		return c.told
	}
	return c.told.Add(c.measure(time.Since(c.at)))
}

// measure returns what the clock says of a while.
func (c *Clock) measure(while time.Duration) time.Duration {
	if c.Rate == 1 {
		return while
	}
	return time.Duration(float64(while) * c.Rate)
}

// wait returns how long it takes until a while has passed by the clock.
func (c *Clock) wait(while time.Duration) time.Duration {
	if c.Rate == 1 {
		return while
	}
	return time.Duration(float64(while)/c.Rate) + 1
}

// SetRate makes it faster or slower from now on.
func (c *Clock) SetRate(rate float64) { c.told, c.at, c.Rate = c.Now(), time.Now(), rate }

// stop makes it stand still, and start go on.
func (c *Clock) stop() { c.told, c.at, c.isStopped = c.Now(), time.Now(), true }

func (c *Clock) start() {
	c.stoodStill += c.measure(time.Since(c.at))
	c.at, c.isStopped = time.Now(), false
}

// suspendedFor returns for how long it has stood still.
func (c *Clock) suspendedFor() time.Duration { return c.stoodStill }

// dated is a client that writes times of day by a clock.
type dated struct {
	client.Client
	clock *Clock
}

// timeOfDay is what a time looks like in an object.
var timeOfDay = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"`)

// date returns a JSON text with the times that the clock tells.
func (d dated) date(text []byte) []byte {
	if d.clock.Offset == 0 {
		return text
	}
	return timeOfDay.ReplaceAllFunc(text, func(quoted []byte) []byte {
		at, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(quoted))
		if err != nil {
			return quoted
		}
		layout := time.RFC3339
		if len(quoted) > len(layout)+1 {
			layout = "2006-01-02T15:04:05.000000Z07:00"
		}
		return []byte(at.Add(d.clock.Offset).Format(`"` + layout + `"`))
	})
}

// Patch applies a patch.
func (d dated) Patch(ctx context.Context, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
	text, err := p.Data(obj)
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	return d.Client.Patch(ctx, obj, client.RawPatch(p.Type(), d.date(text)), opts...)
}

// Status returns what writes statuses.
func (d dated) Status() client.SubResourceWriter { return datedStatus{d.Client.Status(), d} }

type datedStatus struct {
	client.SubResourceWriter
	dated dated
}

// Apply applies a status.
func (s datedStatus) Apply(
	ctx context.Context, config runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	if s.dated.clock.Offset == 0 {
		return s.SubResourceWriter.Apply(ctx, config, opts...)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("make a status: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(s.dated.date(text)); err != nil {
		return fmt.Errorf("date a status: %w", err)
	}
	return s.SubResourceWriter.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), opts...)
}

// rates are how fast clocks are: up to 100 ppm wrong, as crystals are, and up to 2 % wrong, as virtual machines'.
var rates = []float64{1, 1.0001, 0.9999, 1.02, 0.98, 1.005, 0.995}

// maxWrong is how wrong the time of day of a machine is at the most.
const maxWrong = 6 * time.Hour

// NewClocksCluster returns a cluster of three nodes on one link whose clocks are wrong.
func NewClocksCluster(w *World) (*Cluster, error) {
	c, err := NewCluster(w, 3)
	if err != nil {
		return nil, err
	}
	c.hasWrongClocks = true
	for _, n := range c.Nodes {
		n.Clock.SetRate(rates[w.Pick(len(rates))])
		n.Clock.Offset = w.Between(-maxWrong, maxWrong)
		w.Tell(n.Name, "has a clock of rate %v that is %s wrong", n.Clock.Rate, n.Clock.Offset)
	}
	return c, nil
}

// changeClock lets the clock of a node be wrong in another way: somebody sets its time of day, or it is faster or
// slower from now on, as that of a virtual machine that has been moved.
func (h *History) changeClock() {
	n := h.anyNode()
	if n.Clock.isStopped {
		return
	}
	if h.Chance(0.5) {
		n.Clock.Offset = h.Between(-maxWrong, maxWrong)
	} else {
		n.Clock.SetRate(rates[h.Pick(len(rates))])
	}
	h.Tell(n.Name, "has a clock of rate %v that is %s wrong", n.Clock.Rate, n.Clock.Offset)
}
