package link

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// bootID is a file in which the kernel says which run of the machine this is.
const bootID = "/proc/sys/kernel/random/boot_id"

// Ledger is which addresses are ours, for kernels that keep no tags: a file, good
// until the machine boots, as addresses are.
type Ledger struct {
	path, boot string

	mu      sync.Mutex
	entries map[owned]bool
}

// owned is an address on an interface, by the kernel's number of it, which stays
// when it is renamed.
type owned struct {
	Interface int          `json:"interface"`
	Address   netip.Prefix `json:"address"`
}

// ledgerFile is the file's form.
type ledgerFile struct {
	Boot      string  `json:"boot"`
	Addresses []owned `json:"addresses"`
}

// OpenLedger reads the ledger, if there is one. An error says why there is none to
// go by; what is returned is empty then, and of use all the same.
func OpenLedger(path string) (*Ledger, error) {
	l := &Ledger{path: path, entries: map[owned]bool{}}
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return l, fmt.Errorf("find out which addresses were ours: %w", err)
	}
	l.boot = strings.TrimSpace(string(boot))
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var content ledgerFile
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	if err != nil {
		return l, fmt.Errorf("find out from %s which addresses were ours: %w", path, err)
	}
	if content.Boot == l.boot {
		for _, o := range content.Addresses {
			l.entries[o] = true
		}
	}
	return l, nil
}

// note adds an entry. One that could not be written is not there.
func (l *Ledger) note(o owned) error {
	if l.entries[o] {
		return nil
	}
	l.entries[o] = true
	if err := l.write(); err != nil {
		delete(l.entries, o)
		return fmt.Errorf("note which addresses are ours: %w", err)
	}
	return nil
}

// drop removes an entry. If that cannot be written now, it is when something else
// is, or found out when the file is read.
func (l *Ledger) drop(o owned) {
	if l.entries[o] {
		delete(l.entries, o)
		_ = l.write()
	}
}

// prune drops what is not there any more: put there again it is somebody else's.
func (l *Ledger) prune(there map[owned]bool) {
	before := len(l.entries)
	maps.DeleteFunc(l.entries, func(o owned, _ bool) bool { return !there[o] })
	if len(l.entries) < before {
		_ = l.write()
	}
}

func (l *Ledger) write() error {
	content := ledgerFile{Boot: l.boot, Addresses: slices.SortedFunc(maps.Keys(l.entries), func(a, b owned) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), a.Address.Compare(b.Address))
	})}
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return file.Replace(l.path, text)
}

// addNoted adds an address that is in the ledger before, so that none is ours
// without being known to be.
func (n *Netlink) addNoted(a plan.Address) error {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	return n.apply(a, func(link netlink.Link, address *netlink.Addr) error {
		o := owned{link.Attrs().Index, a.Prefix}
		known := n.ledger.entries[o]
		if err := n.ledger.note(o); err != nil {
			return err
		}
		err := n.add(link, address)
		if err != nil && !known {
			n.ledger.drop(o)
		}
		return err
	})
}
