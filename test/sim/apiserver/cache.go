package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

type cachedKind struct {
	selects func(client.Object) bool
	objects map[client.ObjectKey]client.Object
	indexes map[string]*index
}

// index has the objects of a kind by the values that a function says of each.
type index struct {
	valuesOf client.IndexerFunc
	keys     map[string]map[client.ObjectKey]struct{}
}

// NewCache returns a cache that knows nothing, of the kinds of the objects given as keys. It keeps those
// objects for which the function is true, all if it is nil.
func (s *Server) NewCache(selects map[client.Object]func(client.Object) bool) (*Cache, error) {
	c := &Cache{server: s, kinds: map[schema.GroupVersionKind]*cachedKind{}}
	for obj, isSelected := range selects {
		k, err := s.kindOf(obj)
		if err != nil {
			return nil, err
		}
		if isSelected == nil {
			isSelected = func(client.Object) bool { return true }
		}
		c.kinds[k.GroupVersionKind] = &cachedKind{isSelected, map[client.ObjectKey]client.Object{}, map[string]*index{}}
	}
	return c, nil
}

// AddIndex makes objects of the kind of obj be found by the field name, of which valuesOf says the values.
func (c *Cache) AddIndex(obj client.Object, name string, valuesOf client.IndexerFunc) error {
	k, cached, err := c.kindOf(obj)
	if err != nil {
		return err
	}
	if _, exists := cached.indexes[name]; exists {
		return fmt.Errorf("%s has the index %s already", k.Kind.Kind, name)
	}
	x := &index{valuesOf, map[string]map[client.ObjectKey]struct{}{}}
	cached.indexes[name] = x
	for key, obj := range cached.objects {
		x.add(key, obj)
	}
	return nil
}

func (c *Cache) kindOf(obj client.Object) (*kind, *cachedKind, error) {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return nil, nil, err
	}
	cached, err := c.cached(k)
	return k, cached, err
}

func (c *Cache) cached(k *kind) (*cachedKind, error) {
	cached, isCached := c.kinds[k.GroupVersionKind]
	if !isCached {
		return nil, fmt.Errorf("the cache does not have %s", k.GroupVersionKind)
	}
	return cached, nil
}

// Next learns of the next change that concerns the cache, and returns it as the cache sees it: an object
// that is selected no more is deleted. It returns false if there is none. If the server does not have the
// change any more, it fails with ResourceExpired, and the cache has to list.
func (c *Cache) Next() (Change, bool, error) {
	if len(c.server.changes) > 0 && c.server.changes[0].Revision > c.seen+1 && c.seen > 0 {
		return Change{}, false, apierrors.NewResourceExpired("too old resource version")
	}
	from, _ := slices.BinarySearchFunc(c.server.changes, c.seen+1, func(have Change, want int64) int { return int(have.Revision - want) })
	for _, change := range c.server.changes[from:] {
		c.seen = change.Revision
		if seen, concerns := c.see(change); concerns {
			return seen, true, nil
		}
	}
	c.seen = c.server.revision
	return Change{}, false, nil
}

// see makes the cache know of a change.
func (c *Cache) see(change Change) (Change, bool) {
	cached := c.kinds[change.Kind]
	if cached == nil {
		return Change{}, false
	}
	obj := change.New
	if obj == nil {
		obj = change.Old
	}
	key := client.ObjectKeyFromObject(obj)
	before := cached.objects[key]
	if change.New == nil || !cached.selects(change.New) {
		if before == nil {
			return Change{}, false
		}
		cached.set(key, before, nil)
		if change.New == nil {
			before = change.Old // a deletion shows the object as it was last
		}
		return Change{Revision: change.Revision, Kind: change.Kind, Old: before}, true
	}
	cached.set(key, before, change.New)
	return Change{Revision: change.Revision, Kind: change.Kind, Old: before, New: change.New}, true
}

func (k *cachedKind) set(key client.ObjectKey, before, after client.Object) {
	for _, x := range k.indexes {
		if before != nil {
			x.remove(key, before)
		}
		if after != nil {
			x.add(key, after)
		}
	}
	if after == nil {
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
func (c *Cache) Relist() []Change {
	c.seen = c.server.revision
	var changes []Change
	kinds := slices.SortedFunc(maps.Keys(c.kinds), func(a, b schema.GroupVersionKind) int { return cmp.Compare(a.String(), b.String()) })
	for _, gvk := range kinds {
		cached, k := c.kinds[gvk], c.server.kinds[gvk]
		keys := map[client.ObjectKey]struct{}{}
		for key := range cached.objects {
			keys[key] = struct{}{}
		}
		for key := range k.stored {
			keys[key] = struct{}{}
		}
		for _, key := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
			before, after := cached.objects[key], k.stored[key].object
			if after != nil && !cached.selects(after) {
				after = nil
			}
			if before == after {
				continue
			}
			cached.set(key, before, after)
			changes = append(changes, Change{Revision: c.seen, Kind: gvk, Old: before, New: after})
		}
	}
	return changes
}

func (c *Cache) get(k *kind, key client.ObjectKey, obj client.Object) error {
	cached, err := c.cached(k)
	if err != nil {
		return err
	}
	found := cached.objects[key]
	if found == nil {
		return apierrors.NewNotFound(k.resource, key.Name)
	}
	setContent(obj, found)
	return nil
}

// list lists by one index at most, as the cache of controller-runtime does.
func (c *Cache) list(k *kind, list client.ObjectList, options *client.ListOptions) error {
	cached, err := c.cached(k)
	if err != nil {
		return err
	}
	var keys []client.ObjectKey
	if options.FieldSelector == nil || options.FieldSelector.Empty() {
		keys = slices.SortedFunc(maps.Keys(cached.objects), compareKeys)
	} else {
		r := options.FieldSelector.Requirements()
		x := cached.indexes[r[0].Field]
		if len(r) != 1 || x == nil {
			return fmt.Errorf("the cache has no index of %s for %s", k.Kind.Kind, options.FieldSelector)
		}
		keys = slices.SortedFunc(maps.Keys(x.keys[r[0].Value]), compareKeys)
	}
	objects := make([]client.Object, len(keys))
	for i, key := range keys {
		objects[i] = cached.objects[key]
	}
	return setItems(list, objects, options, func(client.Object) (bool, error) { return true, nil })
}
