package link

import (
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// linkTable holds the kernel's links for WatchLinks, which lists them again when
// notifications were lost.
type linkTable struct {
	mu          sync.Mutex
	linkByIndex map[int32]plan.NetworkInterface
}

// list replaces the table's links by those that the kernel lists.
func (t *linkTable) list(n *Netlink) error {
	listed, err := dump("links", n.handle.LinkList)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.linkByIndex = make(map[int32]plan.NetworkInterface, len(listed))
	for _, l := range listed {
		t.linkByIndex[int32(l.Attrs().Index)] = toLink(l) //nolint:gosec // the kernel counts links in 31 bits
	}
	return nil
}

// apply applies notifications to the table, and reports whether any link has changed.
func (t *linkTable) apply(messages []syscall.NetlinkMessage) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range messages {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		info := nl.DeserializeIfInfomsg(m.Data)
		if info.Family != unix.AF_UNSPEC { // about a bridge's port, for example
			continue
		}
		before, exists := t.linkByIndex[info.Index]
		switch m.Header.Type {
		case unix.RTM_DELLINK:
			delete(t.linkByIndex, info.Index)
			changed = changed || exists
		case unix.RTM_NEWLINK:
			header := unix.NlMsghdr{
				Len: m.Header.Len, Type: m.Header.Type, Flags: m.Header.Flags, Seq: m.Header.Seq, Pid: m.Header.Pid,
			}
			l, err := netlink.LinkDeserialize(&header, m.Data)
			if err != nil {
				continue
			}
			t.linkByIndex[info.Index] = toLink(l)
			changed = changed || t.linkByIndex[info.Index] != before
		}
	}
	return changed
}

// all returns the links, in no order.
func (t *linkTable) all() []plan.NetworkInterface {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.linkByIndex))
}
