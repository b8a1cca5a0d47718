package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Kind is a kind that a Server serves.
type Kind struct {
	schema.GroupVersionKind
	// IsNamespaced says whether its objects are in namespaces.
	IsNamespaced bool
	// HasStatus says whether the status is written by itself, and by nothing else.
	HasStatus bool
	// CountsGenerations says whether metadata.generation grows with each change of anything but
	// metadata and status.
	CountsGenerations bool
	// ListKeys names the fields by which entries of lists are told apart, by the path of the list
	// with its names of fields, such as "status.conditions": {"type"}. Other lists are written as a whole.
	ListKeys map[string][]string
	// IsNeverApplied says that nobody applies its objects, so that nobody need keep who has written what.
	IsNeverApplied bool
	// SetDefaults, if set, sets what an object's content lacks and has a default.
	SetDefaults func(content map[string]any)
}

// Server is an API server. It is made by New, and for one goroutine.
type Server struct {
	scheme *runtime.Scheme
	mapper *meta.DefaultRESTMapper
	kinds  map[schema.GroupVersionKind]*kind
	// kindOfType has the kinds of objects, and of lists of them, by their Go types, as far as somebody has asked.
	kindOfType map[reflect.Type]*kind
	revision   int64
	// revisions are those of the last change of each kind.
	revisions map[schema.GroupVersionKind]int64
	uids      int64
	// changes are the last ones, at most maxChanges, the oldest first.
	changes []Change
	// OnChange are called after each change, in their order.
	OnChange []func()
}

// maxChanges is how many changes a Server keeps. A Cache that has seen less has to list again.
const maxChanges = 10_000

// kind is a Kind and its objects. An object that is stored is never changed, only replaced, so that
// caches share it.
type kind struct {
	Kind
	resource schema.GroupResource
	stored   map[client.ObjectKey]stored
}

// stored is an object and who has applied which of its fields.
type stored struct {
	object client.Object
	owned  ownership
}

// Change is that an object was made, changed or deleted. Old is nil of one that was made, New of one
// that was deleted.
type Change struct {
	Revision int64
	Kind     schema.GroupVersionKind
	Old, New client.Object
}

// Last returns the object as it is now, or as it was last.
func (c Change) Last() client.Object {
	if c.New == nil {
		return c.Old
	}
	return c.New
}

// New returns a Server without objects.
func New(scheme *runtime.Scheme, kinds ...Kind) *Server {
	s := &Server{
		scheme: scheme, mapper: meta.NewDefaultRESTMapper(nil), kinds: map[schema.GroupVersionKind]*kind{},
		kindOfType: map[reflect.Type]*kind{}, revision: 1, revisions: map[schema.GroupVersionKind]int64{},
	}
	for _, k := range kinds {
		scope := meta.RESTScope(meta.RESTScopeRoot)
		if k.IsNamespaced {
			scope = meta.RESTScopeNamespace
		}
		s.mapper.Add(k.GroupVersionKind, scope)
		plural, _ := meta.UnsafeGuessKindToResource(k.GroupVersionKind)
		s.kinds[k.GroupVersionKind] = &kind{Kind: k, resource: plural.GroupResource(), stored: map[client.ObjectKey]stored{}}
	}
	return s
}

// RevisionOf returns that of the last change of an object of the kind of obj.
func (s *Server) RevisionOf(obj client.Object) int64 {
	k, err := s.kindOf(obj)
	if err != nil {
		return 0
	}
	return s.revisions[k.GroupVersionKind]
}

// Serves reports whether the server has the kind of an object.
func (s *Server) Serves(obj client.Object) bool {
	_, err := s.kindOf(obj)
	return err == nil
}

// kindOf returns the kind of an object, or of the objects of a list.
func (s *Server) kindOf(obj runtime.Object) (*kind, error) {
	goType := reflect.TypeOf(obj)
	if k := s.kindOfType[goType]; k != nil {
		return k, nil
	}
	gvk, err := apiutil.GVKForObject(obj, s.scheme)
	if err != nil {
		return nil, err
	}
	if _, isList := obj.(client.ObjectList); isList {
		gvk.Kind = gvk.Kind[:len(gvk.Kind)-len("List")]
	}
	k, err := s.kind(gvk)
	switch obj.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList: // of any kind
	default:
		s.kindOfType[goType] = k
	}
	return k, err
}

func (s *Server) kind(gvk schema.GroupVersionKind) (*kind, error) {
	k, isServed := s.kinds[gvk]
	if !isServed {
		return nil, fmt.Errorf("the API server in memory does not serve %s", gvk)
	}
	return k, nil
}

// create stores a new object, and returns it as it is stored.
func (s *Server) create(k *kind, obj client.Object, by string) (client.Object, error) {
	created := obj.DeepCopyObject().(client.Object)
	switch {
	case created.GetResourceVersion() != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case created.GetName() == "":
		return nil, invalid(k, created, field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	case k.IsNamespaced != (created.GetNamespace() != ""):
		return nil, apierrors.NewBadRequest("an object is in a namespace if its kind is namespaced")
	}
	key := client.ObjectKeyFromObject(created)
	if _, exists := k.stored[key]; exists {
		return nil, apierrors.NewAlreadyExists(k.resource, key.Name)
	}
	if k.HasStatus {
		clearStatus(created)
	}
	s.uids++
	created.SetUID(types.UID("00000000-0000-0000-0000-" + fmt.Sprintf("%012d", s.uids)))
	created.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	created.SetDeletionTimestamp(nil)
	created.SetManagedFields(nil)
	created.SetGeneration(0)
	if k.CountsGenerations {
		created.SetGeneration(1)
	}
	created, err := k.withDefaults(created)
	if err != nil {
		return nil, err
	}
	owned := ownership{}
	if !k.IsNeverApplied {
		content, err := toMap(created)
		if err != nil {
			return nil, err
		}
		owned.noteWritten(by, leaves{}, k.leavesOf(content, whole))
	}
	s.put(k, nil, created, owned)
	return created, nil
}

// withDefaults returns an object with the defaults of what it lacks.
func (k *kind) withDefaults(obj client.Object) (client.Object, error) {
	if k.SetDefaults == nil {
		return obj, nil
	}
	content, err := toMap(obj)
	if err != nil {
		return nil, err
	}
	if k.HasStatus && statusOf(obj).IsZero() {
		delete(content, "status")
	}
	k.SetDefaults(content)
	return fromMap(content, obj)
}

// part is what a write may change.
type part int

const (
	// whole is all of an object but its status, if the kind has one by itself.
	whole part = iota
	// status is the status; of Services also annotations and labels.
	status
)

// replace stores changed in the place of an object, as far as a write of this part may, and returns
// what is stored. It fails if changed is not based on what is stored.
func (s *Server) replace(k *kind, changed client.Object, p part, by string) (client.Object, error) {
	key := client.ObjectKeyFromObject(changed)
	before, exists := k.stored[key]
	if !exists {
		return nil, apierrors.NewNotFound(k.resource, key.Name)
	}
	if uid := changed.GetUID(); uid != "" && uid != before.object.GetUID() {
		return nil, conflict(k, key.Name)
	}
	if version := changed.GetResourceVersion(); version != "" && version != before.object.GetResourceVersion() {
		return nil, conflict(k, key.Name)
	}
	changed, err := k.withDefaults(changed)
	if err != nil {
		return nil, err
	}
	after := k.combine(before.object, changed, p)
	if reflect.DeepEqual(after, before.object) {
		return before.object, nil
	}
	owned := before.owned.clone()
	if !k.IsNeverApplied {
		old, err := toMap(before.object)
		if err != nil {
			return nil, err
		}
		content, err := toMap(after)
		if err != nil {
			return nil, err
		}
		owned.noteWritten(by, k.leavesOf(old, p), k.leavesOf(content, p))
	}
	s.store(k, before.object, after, owned)
	return after, nil
}

// combine returns the object that a write of changed makes of before.
func (k *kind) combine(before, changed client.Object, p part) client.Object {
	var after client.Object
	if p == status {
		after = before.DeepCopyObject().(client.Object)
		copyStatus(after, changed)
		if k.Group == "" { // Services and Nodes; of custom resources a write of the status leaves metadata alone
			after.SetAnnotations(maps.Clone(changed.GetAnnotations()))
			after.SetLabels(maps.Clone(changed.GetLabels()))
		}
	} else {
		after = changed.DeepCopyObject().(client.Object)
		if k.HasStatus {
			copyStatus(after, before)
		}
	}
	after.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	after.SetUID(before.GetUID())
	after.SetCreationTimestamp(before.GetCreationTimestamp())
	after.SetDeletionTimestamp(before.GetDeletionTimestamp())
	after.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	after.SetManagedFields(nil)
	after.SetResourceVersion(before.GetResourceVersion())
	after.SetGeneration(before.GetGeneration())
	if k.CountsGenerations && p == whole && !sameDesire(before, after) {
		after.SetGeneration(before.GetGeneration() + 1)
	}
	return after
}

// store puts what a write made of an object, or removes it if only its finalizers kept it.
func (s *Server) store(k *kind, before, after client.Object, owned ownership) {
	if after.GetDeletionTimestamp() != nil && len(after.GetFinalizers()) == 0 {
		s.remove(k, after)
		return
	}
	s.put(k, before, after, owned)
}

// put stores an object under the next version, which it sets.
func (s *Server) put(k *kind, before, after client.Object, owned ownership) {
	s.revision++
	after.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	k.stored[client.ObjectKeyFromObject(after)] = stored{after, owned}
	s.note(Change{Revision: s.revision, Kind: k.GroupVersionKind, Old: before, New: after})
}

// remove removes an object.
func (s *Server) remove(k *kind, last client.Object) {
	s.revision++
	delete(k.stored, client.ObjectKeyFromObject(last))
	s.note(Change{Revision: s.revision, Kind: k.GroupVersionKind, Old: last})
}

func (s *Server) note(c Change) {
	if len(s.changes) == maxChanges {
		s.changes = slices.Delete(s.changes, 0, maxChanges/2)
	}
	s.changes = append(s.changes, c)
	s.revisions[c.Kind] = c.Revision
	for _, tell := range s.OnChange {
		tell()
	}
}

// delete removes an object, or marks it if it has finalizers.
func (s *Server) delete(k *kind, key client.ObjectKey, conditions *metav1.Preconditions) error {
	before, exists := k.stored[key]
	if !exists {
		return apierrors.NewNotFound(k.resource, key.Name)
	}
	if c := conditions; c != nil {
		if c.UID != nil && *c.UID != before.object.GetUID() ||
			c.ResourceVersion != nil && *c.ResourceVersion != before.object.GetResourceVersion() {
			return apierrors.NewConflict(k.resource, key.Name, errors.New("a precondition does not hold"))
		}
	}
	if len(before.object.GetFinalizers()) == 0 {
		s.remove(k, before.object)
		return nil
	}
	if before.object.GetDeletionTimestamp() != nil {
		return nil
	}
	marked := before.object.DeepCopyObject().(client.Object)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	marked.SetDeletionTimestamp(&now)
	seconds := int64(0)
	marked.SetDeletionGracePeriodSeconds(&seconds)
	if k.CountsGenerations {
		marked.SetGeneration(marked.GetGeneration() + 1)
	}
	s.put(k, before.object, marked, before.owned)
	return nil
}

// inOrder returns what is stored, by namespace and name.
func (k *kind) inOrder() []client.Object {
	keys := slices.SortedFunc(maps.Keys(k.stored), compareKeys)
	objects := make([]client.Object, len(keys))
	for i, key := range keys {
		objects[i] = k.stored[key].object
	}
	return objects
}

func conflict(k *kind, name string) error {
	return apierrors.NewConflict(
		k.resource, name,
		errors.New("the object has been modified; please apply your changes to the latest version and try again"),
	)
}

// replaced is the error of a write that names an object by another UID.
func replaced(k *kind, obj client.Object) error {
	return invalid(k, obj, field.Invalid(field.NewPath("metadata", "uid"), obj.GetUID(), "field is immutable"))
}

func invalid(k *kind, obj client.Object, err *field.Error) error {
	return apierrors.NewInvalid(k.GroupKind(), obj.GetName(), field.ErrorList{err})
}
