package apiserver

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apply makes the fields of config what it says, takes off those that owner has applied before and does
// no more, unless they are another's, too, and returns what is stored. It is the server-side apply with
// force: what another owner has of the same fields with other values becomes owner's.
func (s *Server) apply(config map[string]any, p part, owner string) (client.Object, error) {
	u := &unstructured.Unstructured{Object: config}
	k, err := s.kind(u.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if k.IsNeverApplied {
		return nil, fmt.Errorf("the API server in memory does not apply %s", k.GroupVersionKind)
	}
	key := client.ObjectKeyFromObject(u)
	applied := k.leavesOf(config, p)
	before, exists := k.stored[key]
	if !exists {
		return s.createByApply(k, u, p, applied, owner)
	}
	isMetadataWritten := p == whole || k.Group == "" // of custom resources an apply of the status leaves metadata alone
	if uid := u.GetUID(); uid != "" && uid != before.object.GetUID() && isMetadataWritten {
		return nil, replaced(k, before.object)
	}
	if version := u.GetResourceVersion(); version != "" && version != before.object.GetResourceVersion() {
		return nil, conflict(k, key.Name)
	}
	content, err := toMap(before.object)
	if err != nil {
		return nil, err
	}
	old := k.leavesOf(content, p)
	owned := before.owned.clone()
	self := "apply by " + owner + " " + partNames[p]
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(owned[self]))) { // fields before their entry
		if _, stays := applied.values[path]; stays {
			continue
		}
		delete(owned[self], path)
		if !owned.isOwnedBesides(self, path) {
			k.remove(content, split(path), "")
		}
	}
	for _, path := range applied.paths {
		value := applied.values[path]
		if was, isSet := old.values[path]; !isSet || !reflect.DeepEqual(was, value) {
			owned.drop(path)
			k.set(content, split(path), "", value)
		}
		owned.add(self, path)
	}
	k.putInOrder(content, config, "", old)
	if k.SetDefaults != nil {
		k.SetDefaults(content)
	}
	after, err := fromMap(content, before.object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after = k.combine(before.object, after, p)
	if reflect.DeepEqual(after, before.object) {
		k.stored[key] = stored{before.object, owned}
		return before.object, nil
	}
	s.store(k, before.object, after, owned)
	return after, nil
}

// partNames name parts for ownership: the fields of one apply are never those of another part's.
var partNames = map[part]string{whole: "whole", status: "status"}

func (s *Server) createByApply(
	k *kind, u *unstructured.Unstructured, p part, applied leaves, owner string,
) (client.Object, error) {
	if p != whole {
		return nil, apierrors.NewNotFound(k.resource, u.GetName())
	}
	if u.GetUID() != "" || u.GetResourceVersion() != "" {
		return nil, conflict(k, u.GetName())
	}
	typed, err := s.scheme.New(k.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	obj, err := fromMap(u.Object, typed.(client.Object))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj.GetObjectKind().SetGroupVersionKind(typed.GetObjectKind().GroupVersionKind())
	created, err := s.create(k, obj, owner)
	if err != nil {
		return nil, err
	}
	owned := ownership{}
	for _, path := range applied.paths {
		owned.add("apply by "+owner+" "+partNames[p], path)
	}
	k.stored[types.NamespacedName{Namespace: created.GetNamespace(), Name: created.GetName()}] = stored{created, owned}
	return created, nil
}

// set gives the field at path, in m, a value, and makes what is missing on the way. list is the path of m,
// without keys of entries. An entry of a list is set, with its keys, before its fields.
func (k *kind) set(m map[string]any, path []string, list string, value any) {
	name := path[0]
	list = strings.TrimPrefix(list+"."+name, ".")
	keys := k.ListKeys[list]
	switch {
	case len(path) == 1:
		m[name] = value
	case keys == nil:
		child, isMap := m[name].(map[string]any)
		if !isMap {
			child = map[string]any{}
			m[name] = child
		}
		k.set(child, path[1:], list, value)
	case len(path) == 2:
		entries, _ := m[name].([]any)
		if findEntry(entries, keys, path[1]) < 0 {
			m[name] = append(entries, maps.Clone(value.(map[string]any)))
		}
	default:
		entries := m[name].([]any)
		k.set(entries[findEntry(entries, keys, path[1])].(map[string]any), path[2:], list, value)
	}
}

// remove takes the field at path, or an entry of a list, off m, if it is there.
func (k *kind) remove(m map[string]any, path []string, list string) {
	name := path[0]
	list = strings.TrimPrefix(list+"."+name, ".")
	keys := k.ListKeys[list]
	if len(path) == 1 {
		delete(m, name)
		return
	}
	if keys == nil {
		if child, isMap := m[name].(map[string]any); isMap {
			k.remove(child, path[1:], list)
		}
		return
	}
	entries, _ := m[name].([]any)
	at := findEntry(entries, keys, path[1])
	if at < 0 {
		return
	}
	if len(path) == 2 {
		m[name] = slices.Delete(entries, at, at+1)
		return
	}
	k.remove(entries[at].(map[string]any), path[2:], list)
}

// findEntry returns where in a list the entry of a name is, or -1.
func findEntry(entries []any, keys []string, name string) int {
	return slices.IndexFunc(entries, func(e any) bool {
		entry, isMap := e.(map[string]any)
		return isMap && entryName(entry, keys) == name
	})
}

// putInOrder puts the entries of lists of content in the order of those of config. Entries that config does
// not have stay behind those that they were behind. before has the leaves of what content was.
func (k *kind) putInOrder(content, config map[string]any, path string, before leaves) {
	for name, value := range config {
		inner := strings.TrimPrefix(path+separator+name, separator)
		switch wanted := value.(type) {
		case map[string]any:
			if child, isMap := content[name].(map[string]any); isMap {
				k.putInOrder(child, wanted, inner, before)
			}
		case []any:
			keys := k.ListKeys[strings.ReplaceAll(inner, separator, ".")]
			if have, isSet := content[name].([]any); isSet && keys != nil {
				content[name] = inOrder(have, wanted, keys, func(entry string) bool {
					_, was := before.values[inner+separator+entry]
					return was
				})
			}
		}
	}
}

// inOrder returns the entries of have, those that wanted has in its order. have has all of wanted's; was
// tells those that were there before.
func inOrder(have, wanted []any, keys []string, was func(string) bool) []any {
	named, isWanted, ordered := map[string]any{}, map[string]bool{}, make([]any, 0, len(have))
	var old, order, shared []string
	for _, entry := range wanted {
		name := entryName(entry.(map[string]any), keys)
		order, isWanted[name] = append(order, name), true
		if was(name) {
			shared = append(shared, name)
		}
	}
	for _, entry := range have {
		name := entryName(entry.(map[string]any), keys)
		named[name] = entry
		if was(name) {
			old = append(old, name)
		}
	}
	for len(old) > 0 || len(order) > 0 {
		switch {
		case len(old) > 0 && !isWanted[old[0]]:
			ordered, old = append(ordered, named[old[0]]), old[1:]
			continue
		case len(old) > 0 && (len(shared) == 0 || old[0] != shared[0]): // its turn has been, or comes later
			old = old[1:]
			continue
		}
		name := order[0]
		ordered, order = append(ordered, named[name]), order[1:]
		if len(shared) > 0 && name == shared[0] {
			shared = shared[1:]
		}
		if len(old) > 0 && name == old[0] {
			old = old[1:]
		}
	}
	return ordered
}
