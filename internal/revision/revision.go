// Package revision compares the resourceVersions of objects. A resourceVersion is the revision
// of the API server's database, etcd, at which the object was last written.
//
// Clients of Kubernetes could long compare resourceVersions only for equality. Since 1.35
// Kubernetes defines their order, within a kind, as that of unsigned integers, as which all
// earlier versions wrote them, too (KEP-5504). Whatever in PureLB needs that order asks this
// package.
package revision

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// ErrRestored says that the API server's database is older than it was: it was restored from a
// backup. What a process has cached, and the versions from which its watches go on, are of
// what is no more, and no watch says so. The process has to begin anew.
var ErrRestored = errors.New("the database of the API server has been restored from a backup")

// IsNewer reports whether version a of an object is newer than version b. Of versions that are
// no integers every other one counts as newer.
func IsNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return a != b
	}
	return order > 0
}

// IsOlder reports whether version a of an object is certain to be older than version b.
func IsOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Watermark follows one object that the API server is asked for, or that is written, again and
// again. It holds the newest version that was seen, which is lost with the process: the next one
// reads everything from the database as it is then. The zero value is ready to use.
type Watermark struct {
	mu     sync.Mutex
	newest string
}

// Note notes the version in an answer of the API server. Each request has to begin after the
// answer to the last one, and must not be answered from a cache. It returns ErrRestored if the
// version is older than one that was seen.
func (w *Watermark) Note(version string) error {
	if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
		return nil //nolint:nilerr // no integer says nothing about the database
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if IsOlder(version, w.newest) {
		return fmt.Errorf("%w: it has version %s where it had %s", ErrRestored, version, w.newest)
	}
	w.newest = version
	return nil
}
