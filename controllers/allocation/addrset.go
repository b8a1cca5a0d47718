package allocation

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// addrSet is a set of addresses in which the first one that is missing, and how
// many there are in a range, are found in a time that does not depend on how
// many there are: a tree with one level for each byte of an address, in which
// every node knows which of its branches are full.
type addrSet struct{ v4, v6 addrNode }

// addrNode is all addresses of the set that begin with the same bytes. The zero
// value is empty.
type addrNode struct {
	// full is the values of the next byte of which no address is missing.
	full     [4]uint64
	count    uint64
	branches []addrBranch // by value; none at the last byte
}

type addrBranch struct {
	value byte
	node  *addrNode
}

func (s *addrSet) root(a netip.Addr) *addrNode {
	if a.Is4() {
		return &s.v4
	}
	return &s.v6
}

func (s *addrSet) add(a netip.Addr)    { s.root(a).add(a.AsSlice()) }
func (s *addrSet) remove(a netip.Addr) { s.root(a).remove(a.AsSlice()) }

// missing returns the first address that is not in the set, from a on. There is
// none if all from a to the last of its family are.
func (s *addrSet) missing(a netip.Addr) (netip.Addr, bool) {
	b := a.AsSlice()
	if !s.root(a).missing(b) {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b)
}

// countIn counts the addresses from first to last, both included.
func (s *addrSet) countIn(first, last netip.Addr) uint64 {
	n := s.root(first)
	count := n.less(last.AsSlice()) - n.less(first.AsSlice())
	if n.has(last.AsSlice()) {
		count++
	}
	return count
}

func (n *addrNode) isFull(value byte) bool { return n.full[value/64]&(1<<(value%64)) != 0 }

func (n *addrNode) setFull(value byte, full bool) {
	if full {
		n.full[value/64] |= 1 << (value % 64)
	} else {
		n.full[value/64] &^= 1 << (value % 64)
	}
}

func (n *addrNode) find(value byte) (int, bool) {
	return slices.BinarySearchFunc(n.branches, value, func(b addrBranch, v byte) int { return cmp.Compare(b.value, v) })
}

// branch is the node behind a value, or nil.
func (n *addrNode) branch(value byte) *addrNode {
	if i, ok := n.find(value); ok {
		return n.branches[i].node
	}
	return nil
}

func (n *addrNode) has(rest []byte) bool {
	if len(rest) == 1 {
		return n.isFull(rest[0])
	}
	child := n.branch(rest[0])
	return child != nil && child.has(rest[1:])
}

func (n *addrNode) add(rest []byte) {
	if n.has(rest) {
		return
	}
	for ; len(rest) > 1; rest = rest[1:] {
		n.count++
		i, ok := n.find(rest[0])
		if !ok {
			n.branches = slices.Insert(n.branches, i, addrBranch{rest[0], &addrNode{}})
		}
		child := n.branches[i].node
		if child.count+1 == size(len(rest)-1) {
			n.setFull(rest[0], true)
		}
		n = child
	}
	n.count++
	n.setFull(rest[0], true)
}

// size is how many addresses so many bytes can tell apart, or 0 where that is
// more than can be counted: there will never be as many.
func size(bytes int) uint64 {
	if bytes >= 8 {
		return 0
	}
	return 1 << (8 * bytes)
}

func (n *addrNode) remove(rest []byte) {
	if !n.has(rest) {
		return
	}
	for ; len(rest) > 1; rest = rest[1:] {
		n.count--
		n.setFull(rest[0], false)
		i, _ := n.find(rest[0])
		child := n.branches[i].node
		if child.count == 1 { // it is the last one there
			n.branches = slices.Delete(n.branches, i, i+1)
			return
		}
		n = child
	}
	n.count--
	n.setFull(rest[0], false)
}

// missing makes rest the first bytes, from rest on, that are not below n.
func (n *addrNode) missing(rest []byte) bool {
	value := int(rest[0])
	if len(rest) > 1 && !n.isFull(rest[0]) {
		child := n.branch(rest[0])
		if child == nil || child.missing(rest[1:]) {
			return true
		}
		value++
	}
	if value = n.notFull(value); value > 255 {
		return false
	}
	if byte(value) == rest[0] {
		return true // only at the last byte
	}
	rest[0] = byte(value)
	clear(rest[1:])
	if len(rest) == 1 {
		return true
	}
	child := n.branch(rest[0])
	return child == nil || child.missing(rest[1:])
}

// notFull is the first value, from value on, that is not full; above 255 if
// there is none.
func (n *addrNode) notFull(value int) int {
	for value <= 255 {
		free := ^n.full[value/64] >> (value % 64)
		if free != 0 {
			return value + bits.TrailingZeros64(free)
		}
		value = (value/64 + 1) * 64
	}
	return value
}

// less counts what is below n and before rest.
func (n *addrNode) less(rest []byte) uint64 {
	var count uint64
	if len(rest) == 1 {
		word, bit := rest[0]/64, rest[0]%64
		for _, w := range n.full[:word] {
			count += uint64(bits.OnesCount64(w))
		}
		return count + uint64(bits.OnesCount64(n.full[word]&(1<<bit-1)))
	}
	for _, b := range n.branches {
		if b.value < rest[0] {
			count += b.node.count
		}
	}
	if child := n.branch(rest[0]); child != nil {
		count += child.less(rest[1:])
	}
	return count
}
