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
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

// bootIDPath is a file in which the kernel identifies the present boot of the machine.
const bootIDPath = "/proc/sys/kernel/random/boot_id"

// readTimeout bounds how long the start waits for a disk that may hang.
const readTimeout = 2 * time.Second

// OwnershipFile records which addresses the agent has added, for kernels that keep no
// tags. The record is good until the machine boots, and so are the addresses.
//
// A change of the record changes memory only, because a disk may hang or be full. OnChange
// tells the owner of the file, who writes Content to it.
type OwnershipFile struct {
	path, bootID string

	// mu is held over a change of the kernel's addresses and of recorded.
	mu sync.Mutex
	// recorded is what the file is to contain. A new process reads it from the file, and
	// does not recognise an address that was not written there.
	recorded map[ownedAddress]bool
	// onChange is called after each change of recorded.
	onChange func()
}

// ownedAddress is an address on an interface. The kernel's index of the interface stays
// the same when the interface is renamed.
type ownedAddress struct {
	InterfaceIndex int          `json:"interface"`
	Address        netip.Prefix `json:"address"`
}

// ownershipContent is the content of the file.
type ownershipContent struct {
	BootID    string         `json:"boot"`
	Addresses []ownedAddress `json:"addresses"`
}

// OpenOwnershipFile reads the file, if it exists. It always returns an OwnershipFile
// that can be used; with an error, one in which no address is recorded.
func OpenOwnershipFile(path string) (*OwnershipFile, error) {
	f := &OwnershipFile{path: path, recorded: map[ownedAddress]bool{}, onChange: func() {}}
	bootID, err := os.ReadFile(bootIDPath)
	if err != nil {
		return f, fmt.Errorf("find out which addresses the agent has added: %w", err)
	}
	f.bootID = strings.TrimSpace(string(bootID))
	text, err := file.ReadWithin(path, readTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	var content ownershipContent
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	if err != nil {
		return f, fmt.Errorf("find out from %s which addresses the agent has added: %w", path, err)
	}
	if content.BootID == f.bootID {
		for _, address := range content.Addresses {
			f.recorded[address] = true
		}
	}
	return f, nil
}

// Path returns the name of the file.
func (f *OwnershipFile) Path() string { return f.path }

// OnChange sets the function that is called after each change of the record. The function
// must not wait, nor use the OwnershipFile.
func (f *OwnershipFile) OnChange(changed func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onChange = changed
}

// Content returns what the file is to contain now.
func (f *OwnershipFile) Content() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return json.Marshal(ownershipContent{BootID: f.bootID,
		Addresses: slices.SortedFunc(maps.Keys(f.recorded), func(a, b ownedAddress) int {
			return cmp.Or(cmp.Compare(a.InterfaceIndex, b.InterfaceIndex), a.Address.Compare(b.Address))
		})})
}

// record adds an address to the record. The caller holds the lock, here and below.
func (f *OwnershipFile) record(address ownedAddress) {
	if !f.recorded[address] {
		f.recorded[address] = true
		f.onChange()
	}
}

// drop removes an address from the record.
func (f *OwnershipFile) drop(address ownedAddress) {
	if f.recorded[address] {
		delete(f.recorded, address)
		f.onChange()
	}
}

// dropMissing removes the addresses from the record that no interface has any more. If
// another program adds such an address later, the address belongs to that program.
func (f *OwnershipFile) dropMissing(present map[ownedAddress]bool) {
	before := len(f.recorded)
	maps.DeleteFunc(f.recorded, func(address ownedAddress, _ bool) bool { return !present[address] })
	if len(f.recorded) < before {
		f.onChange()
	}
}
