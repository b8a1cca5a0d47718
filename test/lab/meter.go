package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// MeterInterval is between two requests of a kind.
	MeterInterval = 10 * time.Millisecond
	// meterTimeout is after how long an HTTP request has failed.
	meterTimeout = time.Second
)

// Meter asks for an address, by HTTP with a new connection each, and by ARP or
// ND, every MeterInterval until it is stopped. HTTP alone would hide an address
// that nobody answers for while the client's neighbour table still has it.
type Meter struct {
	begun  time.Time
	stop   context.CancelFunc
	wait   sync.WaitGroup
	wire   *wire
	mutex  sync.Mutex
	record Record
}

// Measure starts to ask for an address, from a host on the nodes' link, at port
// 80. Of a host elsewhere, such as far, it measures HTTP only.
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
		m.every(ctx, func() { m.wait.Go(func() { m.request(client, address) }) })
	})
	if m.wire != nil {
		m.wait.Go(func() { m.every(ctx, m.ask) })
		m.wait.Go(func() { m.listen(ctx) })
	}
	return m, nil
}

// every calls do at once and then every MeterInterval.
func (m *Meter) every(ctx context.Context, do func()) {
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
	// It ends by its own timeout: one that is under way when the meter is stopped
	// counts, too.
	start := m.now()
	err := get(client, "http://"+netip.AddrPortFrom(address, 80).String()+"/")
	end := m.now()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.record.Requests = append(m.record.Requests, Request{Start: start, End: end, Err: err})
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
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

func (m *Meter) ask() {
	m.mutex.Lock()
	defer m.mutex.Unlock() // while it is sent, too: the answer is noted after it
	m.record.Asked = append(m.record.Asked, m.now())
	if err := m.wire.ask(); err != nil {
		m.record.wireError = errors.Join(m.record.wireError, err)
	}
}

// listen notes who claims the address until ctx ends, which closes the wire.
func (m *Meter) listen(ctx context.Context) {
	for ctx.Err() == nil {
		claim, ok := m.wire.hear()
		if !ok || claim.address != m.wire.address {
			continue
		}
		answer := Answer{At: claim.at.Sub(m.begun), MAC: claim.mac}
		m.mutex.Lock()
		if claim.asked {
			m.record.Answers = append(m.record.Answers, answer)
		} else {
			m.record.Unasked = append(m.record.Unasked, answer)
		}
		m.mutex.Unlock()
	}
}

// Stop ends the measurement, waits for the requests under way, and returns what
// was seen. The error is what went wrong with measuring.
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
