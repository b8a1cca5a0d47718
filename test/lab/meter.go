package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MeterInterval is the time between two requests of a kind.
	MeterInterval = 10 * time.Millisecond
	// meterTimeout is how long an HTTP request may take before it has failed. It is longer than
	// Linux takes to send a lost SYN once more (RFC 6298: 1 s): that a machine lost one packet
	// is no outage. Figures count such requests apart.
	meterTimeout = 3 * time.Second
)

// Meter sends two requests for an address every MeterInterval until Stop: one by HTTP,
// with a new connection, and one by ARP or ND. HTTP alone would not show that no station
// answers for the address while the client's neighbour table still has an entry.
type Meter struct {
	begun  time.Time
	stop   context.CancelFunc
	wait   sync.WaitGroup
	wire   *wire
	mutex  sync.Mutex
	record Record
}

// Measure starts a Meter of an address (HTTP at port 80), from a host on the nodes' link.
// From a host elsewhere, such as far, the Meter sends HTTP requests only.
func (l *Lab) Measure(ctx context.Context, host string, address netip.Addr) (*Meter, error) {
	m := &Meter{begun: time.Now()}
	if host != Far {
		var err error
		if m.wire, err = openWire(host, address); err != nil {
			return nil, fmt.Errorf("measure %s from %s: %w", address, host, err)
		}
	}
	ctx, m.stop = context.WithCancel(ctx)
	client := l.HTTPClient(host, meterTimeout)
	m.wait.Go(func() {
		m.everyInterval(ctx, func() { m.wait.Go(func() { m.request(client, address) }) })
	})
	if m.wire != nil {
		m.wait.Go(func() { m.everyInterval(ctx, m.sendWireRequest) })
		m.wait.Go(func() { m.listen(ctx) })
	}
	return m, nil
}

// everyInterval calls do at once and then every MeterInterval.
func (m *Meter) everyInterval(ctx context.Context, do func()) {
	tick := time.NewTicker(MeterInterval)
	defer tick.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Meter) now() time.Duration { return time.Since(m.begun) }

func (m *Meter) request(client *http.Client, address netip.Addr) {
	// The request ends by its own timeout, not by the end of the measurement: requests
	// that are under way when the meter is stopped count, too.
	start := m.now()
	var connected atomic.Int64 // a request that has timed out may still be connecting
	ctx := httptrace.WithClientTrace(
		context.Background(),
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(int64(m.now())) }},
	)
	err := getOnce(ctx, client, "http://"+netip.AddrPortFrom(address, 80).String()+"/")
	end := m.now()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.record.Requests = append(
		m.record.Requests, Request{Start: start, End: end, Connected: time.Duration(connected.Load()), Err: err},
	)
}

func getOnce(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func (m *Meter) sendWireRequest() {
	m.mutex.Lock()
	defer m.mutex.Unlock() // also while sending: the answer must be recorded after the request
	m.record.WireRequests = append(m.record.WireRequests, m.now())
	if err := m.wire.sendRequest(); err != nil {
		m.record.wireError = errors.Join(m.record.wireError, err)
	}
}

// listen records which stations claim the address, until ctx ends.
func (m *Meter) listen(ctx context.Context) {
	for ctx.Err() == nil {
		claim, ok := m.wire.receive()
		if !ok || claim.address != m.wire.address {
			continue
		}
		answer := Answer{At: claim.at.Sub(m.begun), MAC: claim.mac}
		m.mutex.Lock()
		if claim.answersAsker {
			m.record.WireAnswers = append(m.record.WireAnswers, answer)
		} else {
			m.record.UnaskedClaims = append(m.record.UnaskedClaims, answer)
		}
		m.mutex.Unlock()
	}
}

// Stop ends the measurement, waits for the requests under way, and returns the record. An
// error says that measuring failed, not that a request did.
func (m *Meter) Stop() (Record, error) {
	end := m.now()
	m.stop()
	m.wait.Wait()
	var err error
	if m.wire != nil {
		err = m.wire.close()
	}
	m.record.End = end
	return m.record, errors.Join(err, m.record.wireError)
}
