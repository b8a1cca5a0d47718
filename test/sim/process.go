package sim

import "time"

// process is a program that can be paused, as a machine that sleeps pauses it, and killed.
type process struct {
	world    *World
	isPaused bool
	isKilled bool
	// missed is what would have happened while the process was paused.
	missed []*Happening
}

// after makes the process do something after a while. Paused, it does so as soon as it goes on; killed, it
// does nothing any more.
func (p *process) after(wait time.Duration, do func()) *Happening {
	var h *Happening
	h = p.world.After(wait, func() {
		switch {
		case p.isKilled:
		case p.isPaused:
			p.missed = append(p.missed, h)
		default:
			do()
		}
	})
	return h
}

// Pause makes the process do nothing until Resume.
func (p *process) Pause() { p.isPaused = true }

// Resume lets the process go on with what it missed.
func (p *process) Resume() {
	p.isPaused = false
	missed := p.missed
	p.missed = nil
	for _, h := range missed {
		p.world.postpone(h)
	}
}
