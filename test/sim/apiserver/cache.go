package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cache is what a client knows of some kinds of a Server. It learns of changes when Next is called, one
// by one, in the order in which they happened, and so is as far behind as the simulation lets it be.
type Cache struct {
	server *Server
	kinds  map[schema.GroupVersionKind]*cachedKind
	// seen is the revision up to which it knows everything.
	seen int64
}

// Selection says what a cache keeps of a kind.
type Selection struct {
	// Of is an object of the kind.
	Of client.Object
	// Selects and Fields, if set, say which objects.
	Selects func(client.Object) bool
	Fields  fields.Selector
	// Transform, if set, returns what is kept of an object, which it does not change.
	Transform func(any) (any, error)
}

type cachedKind struct {
	Selection
	objects map[client.ObjectKey]cached
	indexes map[string]*index
}

// cached is what a cache keeps of an object, and the object as it was stored.
type cached struct{ kept, stored client.Object }

// keep returns what is kept of an object that is stored; nothing if it is not selected, or nil.
func (k *cachedKind) keep(stored client.Object) (cached, error) {
	if stored == nil || k.Selects != nil && !k.Selects(stored) {
		return cached{}, nil
	}
	if isSelected, err := matchesFields(k.Fields, stored); err != nil || !isSelected {
		return cached{}, err
	}
	if k.Transform == nil {
		return cached{stored, stored}, nil
	}
	kept, err := k.Transform(stored)
	if err != nil {
		return cached{}, err
	}
	obj, isObject := kept.(client.Object)
	if !isObject {
		return cached{}, fmt.Errorf("the transformation of %T returns %T", stored, kept)
	}
	return cached{obj, stored}, nil
}

// index has the objects of a kind by the values that a function says of each.
type index struct {
	valuesOf client.IndexerFunc
	keys     map[string]map[client.ObjectKey]struct{}
}

// NewCache returns a cache that knows nothing yet.
func (s *Server) NewCache(selections ...Selection) (*Cache, error) {
	c := &Cache{server: s, kinds: map[schema.GroupVersionKind]*cachedKind{}}
	for _, selection := range selections {
		k, err := s.kindOf(selection.Of)
		if err != nil {
			return nil, err
		}
		c.kinds[k.GroupVersionKind] = &cachedKind{selection, map[client.ObjectKey]cached{}, map[string]*index{}}
	}
	return c, nil
}

// AddIndex makes objects of the kind of obj be found by the field name, of which valuesOf says the values.
func (c *Cache) AddIndex(obj client.Object, name string, valuesOf client.IndexerFunc) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	known, err := c.known(k)
	if err != nil {
		return err
	}
	if _, exists := known.indexes[name]; exists {
		return fmt.Errorf("%s has the index %s already", k.Kind.Kind, name)
	}
	x := &index{valuesOf, map[string]map[client.ObjectKey]struct{}{}}
	known.indexes[name] = x
	for key, have := range known.objects {
		x.add(key, have.kept)
	}
	return nil
}

func (c *Cache) known(k *kind) (*cachedKind, error) {
	known, isCached := c.kinds[k.GroupVersionKind]
	if !isCached {
		return nil, fmt.Errorf("the cache does not have %s", k.GroupVersionKind)
	}
	return known, nil
}

// Next learns of the next change that concerns the cache, and returns it as the cache sees it: an object
// that is selected no more is deleted. It returns false if there is none. If the server does not have the
// change any more, it fails with ResourceExpired, and the cache has to list.
func (c *Cache) Next() (Change, bool, error) {
	if len(c.server.changes) > 0 && c.server.changes[0].Revision > c.seen+1 && c.seen > 0 {
		return Change{}, false, apierrors.NewResourceExpired("too old resource version")
	}
	from, _ := slices.BinarySearchFunc(
		c.server.changes, c.seen+1, func(have Change, want int64) int { return int(have.Revision - want) },
	)
	for _, change := range c.server.changes[from:] {
		c.seen = change.Revision
		seen, concerns, err := c.see(change)
		if concerns || err != nil {
			return seen, concerns, err
		}
	}
	c.seen = c.server.revision
	return Change{}, false, nil
}

// see makes the cache know of a change.
func (c *Cache) see(change Change) (Change, bool, error) {
	known := c.kinds[change.Kind]
	if known == nil {
		return Change{}, false, nil
	}
	key := client.ObjectKeyFromObject(change.Last())
	before := known.objects[key]
	after, err := known.keep(change.New)
	if err != nil || before.kept == nil && after.kept == nil {
		return Change{}, false, err
	}
	known.set(key, before, after)
	return Change{change.Revision, change.Kind, before.kept, after.kept}, true, nil
}

func (k *cachedKind) set(key client.ObjectKey, before, after cached) {
	for _, x := range k.indexes {
		if before.kept != nil {
			x.remove(key, before.kept)
		}
		if after.kept != nil {
			x.add(key, after.kept)
		}
	}
	if after.kept == nil {
		delete(k.objects, key)
	} else {
		k.objects[key] = after
	}
}

func (x *index) add(key client.ObjectKey, obj client.Object) {
	for _, value := range x.valuesOf(obj) {
		if x.keys[value] == nil {
			x.keys[value] = map[client.ObjectKey]struct{}{}
		}
		x.keys[value][key] = struct{}{}
	}
}

func (x *index) remove(key client.ObjectKey, obj client.Object) {
	for _, value := range x.valuesOf(obj) {
		if delete(x.keys[value], key); len(x.keys[value]) == 0 {
			delete(x.keys, value)
		}
	}
}

// Relist makes the cache know all that there is, and returns what changed by that, by kind, namespace and
// name. It cannot tell of an object that was replaced by one of the same name meanwhile but as a change.
func (c *Cache) Relist() ([]Change, error) {
	c.seen = c.server.revision
	var changes []Change
	for _, gvk := range c.kindsInOrder() {
		known, k := c.kinds[gvk], c.server.kinds[gvk]
		keys := map[client.ObjectKey]struct{}{}
		for key := range known.objects {
			keys[key] = struct{}{}
		}
		for key := range k.stored {
			keys[key] = struct{}{}
		}
		for _, key := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
			before, now := known.objects[key], k.stored[key].object
			if before.kept != nil && before.stored == now {
				continue
			}
			after, err := known.keep(now)
			if err != nil {
				return nil, err
			}
			if before.kept == nil && after.kept == nil {
				continue
			}
			known.set(key, before, after)
			changes = append(changes, Change{c.seen, gvk, before.kept, after.kept})
		}
	}
	return changes, nil
}

// Known returns what the cache knows, as what a client sees that follows it from now on: each object is
// made, by kind, namespace and name.
func (c *Cache) Known() []Change {
	var changes []Change
	for _, gvk := range c.kindsInOrder() {
		known := c.kinds[gvk]
		for _, key := range slices.SortedFunc(maps.Keys(known.objects), compareKeys) {
			changes = append(changes, Change{Revision: c.seen, Kind: gvk, New: known.objects[key].kept})
		}
	}
	return changes
}

func (c *Cache) kindsInOrder() []schema.GroupVersionKind {
	return slices.SortedFunc(
		maps.Keys(c.kinds), func(a, b schema.GroupVersionKind) int { return cmp.Compare(a.String(), b.String()) },
	)
}

func (c *Cache) get(k *kind, key client.ObjectKey, obj client.Object) error {
	known, err := c.known(k)
	if err != nil {
		return err
	}
	found := known.objects[key].kept
	if found == nil {
		return apierrors.NewNotFound(k.resource, key.Name)
	}
	return setContent(obj, found)
}

// list lists by one index at most, as the cache of controller-runtime does.
func (c *Cache) list(k *kind, list client.ObjectList, options *client.ListOptions) error {
	known, err := c.known(k)
	if err != nil {
		return err
	}
	var keys []client.ObjectKey
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		keys = slices.SortedFunc(maps.Keys(known.objects), compareKeys)
	} else {
		r := options.FieldSelector.Requirements()
		x := known.indexes[r[0].Field]
		if len(r) != 1 || x == nil {
			return fmt.Errorf("the cache has no index of %s for %s", k.Kind.Kind, options.FieldSelector)
		}
		keys = slices.SortedFunc(maps.Keys(x.keys[r[0].Value]), compareKeys)
	}
	objects := make([]client.Object, len(keys))
	for i, key := range keys {
		objects[i] = known.objects[key].kept
	}
	return setItems(list, objects, options, func(client.Object) (bool, error) { return true, nil })
}
