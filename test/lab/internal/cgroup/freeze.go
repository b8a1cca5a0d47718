package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// freezer is how the processes of a control group are stopped all at once, and how one knows
// that they are (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst and cgroup-v2.rst of
// the kernel).
type freezer struct{ control, frozen, thawed, state, isFrozen, isThawed string }

var (
	freezerV1 = freezer{"freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN", "THAWED"}
	freezerV2 = freezer{"cgroup.freeze", "1", "0", "cgroup.events", "frozen 1", "frozen 0"}
)

// freezerOf returns the freezer of a hierarchy, and whether it has one.
func freezerOf(h Hierarchy, isUnified bool) (freezer, bool) {
	switch {
	case isUnified:
		return freezerV2, true
	case slices.Contains(strings.Split(h.Options, ","), "freezer"):
		return freezerV1, true
	}
	return freezer{}, false
}

// Freeze stops all processes in the group called Prefix+name and in those below it, and returns
// when they are stopped. No signal does anything to them until Thaw, not even SIGKILL.
func Freeze(ctx context.Context, hierarchies []Hierarchy, name string) error {
	return setFrozen(ctx, hierarchies, name, true)
}

// Thaw undoes Freeze. It does nothing to processes that are not frozen.
func Thaw(ctx context.Context, hierarchies []Hierarchy, name string) error {
	return setFrozen(ctx, hierarchies, name, false)
}

func setFrozen(ctx context.Context, hierarchies []Hierarchy, name string, isFrozen bool) error {
	for _, h := range hierarchies {
		if f, ok := freezerOf(h, IsUnified(hierarchies)); ok {
			return f.set(ctx, filepath.Join(h.Base, Prefix+name), isFrozen)
		}
	}
	return errors.New("this machine has no control group that freezes processes")
}

// ThawAll thaws every group that the lab has made, wherever in the tree it is.
func ThawAll(ctx context.Context) error {
	hierarchies, err := Current()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hierarchies {
		f, ok := freezerOf(h, IsUnified(hierarchies))
		if !ok {
			continue
		}
		found, err := findGroups(h.Mount)
		errs = append(errs, err)
		for _, dir := range found {
			if err := f.set(ctx, dir, false); !errors.Is(err, fs.ErrNotExist) { // the group has gone
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// set freezes or thaws a group, and waits until that is done.
func (f freezer) set(ctx context.Context, dir string, isFrozen bool) error {
	value, wanted := f.thawed, f.isThawed
	if isFrozen {
		value, wanted = f.frozen, f.isFrozen
	}
	if err := os.WriteFile(filepath.Join(dir, f.control), []byte(value), 0o644); err != nil {
		return fmt.Errorf("freeze or thaw a control group: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, f.state))
		if err != nil {
			return fmt.Errorf("freeze or thaw a control group: %w", err)
		}
		if slices.Contains(strings.Split(strings.TrimSpace(string(text)), "\n"), wanted) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s says %q: %w", dir, wanted, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}
