package apiserver

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// leaves are the leaves of an object's content: values that are neither maps nor lists with keys, and each
// entry of such a list, with its keys alone, before its other fields.
type leaves struct {
	// paths of the leaves, in a fixed order: entries of a list in that of the list.
	paths  []string
	values map[string]any
}

// A path is names of fields and, for an entry of a list with keys, the values of these. No such part has the
// separator.
const separator = "\x00"

func split(path string) []string { return strings.Split(path, separator) }

// ownedMetadata are the fields of metadata that clients write, those first that a write of the status may
// change, too.
var ownedMetadata = []string{"annotations", "labels", "finalizers", "ownerReferences"}

// leavesOf returns the leaves of an object's content that a write of a part may change.
func (k *kind) leavesOf(content map[string]any, p part) leaves {
	found := leaves{values: map[string]any{}}
	metadata, _ := content["metadata"].(map[string]any)
	names := ownedMetadata
	if p == status {
		names = names[:2]
	}
	for _, name := range names {
		if value, isSet := metadata[name]; isSet {
			k.addLeaves(&found, "metadata"+separator+name, "metadata."+name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		isStatus := name == "status" && k.HasStatus
		if name == "metadata" || name == "apiVersion" || name == "kind" || isStatus != (p == status) {
			continue
		}
		k.addLeaves(&found, name, name, content[name])
	}
	return found
}

// addLeaves adds the leaves of value, which is at path; list is the path without keys of entries.
func (k *kind) addLeaves(found *leaves, path, list string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			k.addLeaves(found, path+separator+name, list+"."+name, v[name])
		}
		return
	case []any:
		if keys := k.ListKeys[list]; keys != nil {
			for _, e := range v {
				if entry, isMap := e.(map[string]any); isMap {
					name, rest := path+separator+entryName(entry, keys), maps.Clone(entry)
					found.add(name, keysOf(entry, keys))
					for _, key := range keys {
						delete(rest, key)
					}
					k.addLeaves(found, name, list, rest)
				}
			}
			return
		}
	}
	found.add(path, value)
}

func (l *leaves) add(path string, value any) {
	l.paths = append(l.paths, path)
	l.values[path] = value
}

// keysOf returns the fields by which an entry of a list is told apart.
func keysOf(entry map[string]any, keys []string) map[string]any {
	values := map[string]any{}
	for _, key := range keys {
		values[key] = entry[key]
	}
	return values
}

// entryName names an entry of a list by the values of its keys.
func entryName(entry map[string]any, keys []string) string {
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = fmt.Sprint(entry[key])
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// ownership says which fields each field manager has written last, the writes that are no apply apart.
type ownership map[string]map[string]struct{}

func (o ownership) clone() ownership {
	c := make(ownership, len(o))
	for owner, paths := range o {
		c[owner] = maps.Clone(paths)
	}
	return c
}

// noteWritten notes that owner has made after of before by a write that is no apply: what it changed is
// its own, and nobody else's any more.
func (o ownership) noteWritten(owner string, before, after leaves) {
	written := "write by " + owner
	for path, value := range after.values {
		if old, was := before.values[path]; was && reflect.DeepEqual(old, value) {
			continue
		}
		o.drop(path)
		o.add(written, path)
	}
	for path := range before.values {
		if _, is := after.values[path]; !is {
			o.drop(path)
		}
	}
}

// drop notes that the field is nobody's.
func (o ownership) drop(path string) {
	for _, paths := range o {
		delete(paths, path)
	}
}

func (o ownership) add(owner, path string) {
	if o[owner] == nil {
		o[owner] = map[string]struct{}{}
	}
	o[owner][path] = struct{}{}
}

// isOwnedBesides reports whether the field is anybody's but owner's.
func (o ownership) isOwnedBesides(owner, path string) bool {
	for other, paths := range o {
		if other == owner {
			continue
		}
		if _, isOwned := paths[path]; isOwned {
			return true
		}
	}
	return false
}
