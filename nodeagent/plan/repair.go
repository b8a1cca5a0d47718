package plan

import "net/netip"

// Repair makes a plan put back at once what somebody has taken off: a Local
// address that the agent held until now, under the same epoch, and at which it
// was listening. Nobody else can have it without having been heard, so the link is
// not asked first. held is by address.
func (p *Plan) Repair(held map[netip.Addr]Held) {
	for i := range p.Operations {
		op := &p.Operations[i]
		if op.Kind != Add || !op.Probe {
			continue
		}
		d := op.Desired
		if h, ok := held[d.Addr]; ok && h.Epoch == d.Epoch && h.Interface == d.Interface {
			op.Probe = false
			p.Results[d.Addr] = Announced(d)
		}
	}
}
