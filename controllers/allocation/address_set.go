package allocation

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// addressSet is a set of addresses. Finding the first address that is missing, and
// counting those in a range, takes a time that does not depend on the size of the set:
// the set is a tree with one level for each byte of an address, and every node of the
// tree knows which of its branches are full.
type addressSet struct{ v4, v6 addressNode }

// addressNode holds all addresses of the set that begin with the same bytes. The zero
// value is empty.
type addressNode struct {
	// full has a bit for each value of the next byte after which no address is missing.
	full     [4]uint64
	count    uint64
	branches []addressBranch // by value; none at the last byte
}

type addressBranch struct {
	value byte
	node  *addressNode
}

func (s *addressSet) root(a netip.Addr) *addressNode {
	if a.Is4() {
		return &s.v4
	}
	return &s.v6
}

func (s *addressSet) add(a netip.Addr)    { s.root(a).add(a.AsSlice()) }
func (s *addressSet) remove(a netip.Addr) { s.root(a).remove(a.AsSlice()) }

// firstMissing returns the first address from a on that is not in the set, or false if
// the set has all from a to the last of its family.
func (s *addressSet) firstMissing(a netip.Addr) (netip.Addr, bool) {
	b := a.AsSlice()
	if !s.root(a).advanceToMissing(b) {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b)
}

// countIn counts the addresses from first to last, both included.
func (s *addressSet) countIn(first, last netip.Addr) uint64 {
	n := s.root(first)
	count := n.countBefore(last.AsSlice()) - n.countBefore(first.AsSlice())
	if n.has(last.AsSlice()) {
		count++
	}
	return count
}

func (n *addressNode) isFull(value byte) bool { return n.full[value/64]&(1<<(value%64)) != 0 }

func (n *addressNode) setFull(value byte, full bool) {
	if full {
		n.full[value/64] |= 1 << (value % 64)
	} else {
		n.full[value/64] &^= 1 << (value % 64)
	}
}

func (n *addressNode) findBranch(value byte) (int, bool) {
	return slices.BinarySearchFunc(n.branches, value, func(b addressBranch, v byte) int { return cmp.Compare(b.value, v) })
}

// branch returns the node behind a value, or nil.
func (n *addressNode) branch(value byte) *addressNode {
	if i, ok := n.findBranch(value); ok {
		return n.branches[i].node
	}
	return nil
}

func (n *addressNode) has(rest []byte) bool {
	if len(rest) == 1 {
		return n.isFull(rest[0])
	}
	child := n.branch(rest[0])
	return child != nil && child.has(rest[1:])
}

func (n *addressNode) add(rest []byte) {
	if n.has(rest) {
		return
	}
	for ; len(rest) > 1; rest = rest[1:] {
		n.count++
		i, ok := n.findBranch(rest[0])
		if !ok {
			n.branches = slices.Insert(n.branches, i, addressBranch{rest[0], &addressNode{}})
		}
		child := n.branches[i].node
		if child.count+1 == capacityOf(len(rest)-1) {
			n.setFull(rest[0], true)
		}
		n = child
	}
	n.count++
	n.setFull(rest[0], true)
}

// capacityOf is how many addresses so many bytes can tell apart, or 0 if that number
// does not fit: no node will ever hold as many.
func capacityOf(bytes int) uint64 { return 1 << (8 * bytes) }

func (n *addressNode) remove(rest []byte) {
	if !n.has(rest) {
		return
	}
	for ; len(rest) > 1; rest = rest[1:] {
		n.count--
		n.setFull(rest[0], false)
		i, _ := n.findBranch(rest[0])
		child := n.branches[i].node
		if child.count == 1 { // the address is the last one there
			n.branches = slices.Delete(n.branches, i, i+1)
			return
		}
		n = child
	}
	n.count--
	n.setFull(rest[0], false)
}

// advanceToMissing changes rest to the first bytes, from rest on, that are not below n.
// It reports whether there are such bytes.
func (n *addressNode) advanceToMissing(rest []byte) bool {
	value := int(rest[0])
	if !n.isFull(rest[0]) {
		child := n.branch(rest[0]) // nil at the last byte
		if child == nil || child.advanceToMissing(rest[1:]) {
			return true
		}
		value++
	}
	if value = n.firstNotFull(value); value > 255 {
		return false
	}
	rest[0] = byte(value)
	clear(rest[1:])
	child := n.branch(rest[0])
	return child == nil || child.advanceToMissing(rest[1:])
}

// firstNotFull returns the first value, from value on, that is not full. It returns more
// than 255 if all are full.
func (n *addressNode) firstNotFull(value int) int {
	for value <= 255 {
		free := ^n.full[value/64] >> (value % 64)
		if free != 0 {
			return value + bits.TrailingZeros64(free)
		}
		value = (value/64 + 1) * 64
	}
	return value
}

// countBefore counts what is below n and before rest.
func (n *addressNode) countBefore(rest []byte) uint64 {
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
		count += child.countBefore(rest[1:])
	}
	return count
}
