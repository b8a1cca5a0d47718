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

// OwnershipFile records in a file which addresses the agent has added, for kernels that
// keep no tags. The record is good until the machine boots, and so are the addresses.
type OwnershipFile struct {
	path, bootID string

	// mu is held over a change of the kernel's addresses and of recorded.
	mu sync.Mutex
	// recorded is the file's content. A new process reads it from the file.
	recorded map[ownedAddress]bool
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
	f := &OwnershipFile{path: path, recorded: map[ownedAddress]bool{}}
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

// record adds an address to the file. An address that cannot be written is not recorded.
func (f *OwnershipFile) record(address ownedAddress) error {
	if f.recorded[address] {
		return nil
	}
	f.recorded[address] = true
	if err := f.write(); err != nil {
		delete(f.recorded, address)
		return fmt.Errorf("record which addresses the agent adds: %w", err)
	}
	return nil
}

// drop removes an address from the file. If the file cannot be written now, the next
// write drops the address, or dropMissing does after the next start.
func (f *OwnershipFile) drop(address ownedAddress) {
	if f.recorded[address] {
		delete(f.recorded, address)
		_ = f.write()
	}
}

// dropMissing removes the addresses from the file that no interface has any more. If
// another program adds such an address later, the address belongs to that program.
func (f *OwnershipFile) dropMissing(present map[ownedAddress]bool) {
	before := len(f.recorded)
	maps.DeleteFunc(f.recorded, func(address ownedAddress, _ bool) bool { return !present[address] })
	if len(f.recorded) < before {
		_ = f.write()
	}
}

func (f *OwnershipFile) write() error {
	content := ownershipContent{BootID: f.bootID, Addresses: slices.SortedFunc(maps.Keys(f.recorded), func(a, b ownedAddress) int {
		return cmp.Or(cmp.Compare(a.InterfaceIndex, b.InterfaceIndex), a.Address.Compare(b.Address))
	})}
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return file.Replace(f.path, text)
}
