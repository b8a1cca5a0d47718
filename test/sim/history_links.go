package sim

// What goes wrong in a cluster of two links alone.

// anySegment returns a segment.
func (h *History) anySegment() *Segment {
	if len(h.Segments) == 1 {
		return h.Segments[0]
	}
	return h.Segments[h.Pick(len(h.Segments))]
}

// anyNIC returns an interface, and its node.
func (h *History) anyNIC() (*Node, *NIC) {
	n := h.anyNode()
	if len(n.NICs) == 1 {
		return n, n.NICs[0]
	}
	return n, n.NICs[h.Pick(len(n.NICs))]
}

// nameOf returns what the name of a trouble of a segment ends in, if there are several.
func (h *History) nameOf(s *Segment) string {
	if len(h.Segments) == 1 {
		return ""
	}
	return " on " + s.subnet.String()
}

// swapCables plugs the cables of a node on both links in the wrong way round.
func (h *History) swapCables() {
	n := h.anyNode()
	if len(n.NICs) < 2 {
		return
	}
	h.begin(joined{h.laws.unreached, h.laws.rewired}, "swapped cables", []*Node{n},
		doing(n.SwapCables), doing(n.SwapCables))
}

// renumber gives the interfaces of a node on both links each other's addresses and links.
func (h *History) renumber() {
	n := h.anyNode()
	if len(n.NICs) < 2 || n.isOff {
		return
	}
	renumber := doing(n.Renumber)
	h.begin(joined{h.laws.unreached, h.laws.rewired, h.laws.renumbered}, "renumbered", []*Node{n}, renumber, renumber)
}

// joined are excuses of several laws.
type joined []excuses

func (j joined) begin(nodes ...*Node) {
	for _, e := range j {
		e.begin(nodes...)
	}
}

func (j joined) end(nodes ...*Node) {
	for _, e := range j {
		e.end(nodes...)
	}
}

// stopFlooding makes a switch forget all stations, and pass on nothing to those of which it does not know where
// they are, as one does that keeps floods of unicast frames back.
func (h *History) stopFlooding() {
	on := h.anySegment()
	h.begin(h.laws.unreached.on(on.Link), "the switch does not flood"+h.nameOf(on), nil, doing(func() {
		on.Forget()
		on.DropsUnknown = true
	}), doing(func() { on.DropsUnknown = false }))
}
