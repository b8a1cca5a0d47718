package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Request is what a client asks of the API server.
type Request struct {
	// Verb is get, list, create, update, patch, apply or delete, and Subresource "status" or empty.
	Verb, Subresource string
	Kind              schema.GroupVersionKind
	Key               client.ObjectKey
}

// Intercept is called for each request of a client instead of the API server, which do asks. It may wait
// before and after, fail the request, or lose the answer.
type Intercept func(ctx context.Context, r Request, do func() error) error

// Client is a client of a Server. Its reads are answered by the API server, or by the cache it has.
type Client struct {
	server    *Server
	intercept Intercept
	cache     *Cache
}

var _ client.Client = (*Client)(nil)

// NewClient returns a client whose requests intercept handles, if that is not nil. Its reads come from
// the cache, if that is not nil.
func (s *Server) NewClient(intercept Intercept, cache *Cache) *Client {
	if intercept == nil {
		intercept = func(_ context.Context, _ Request, do func() error) error { return do() }
	}
	return &Client{s, intercept, cache}
}

// ask makes a request by way of intercept.
func (c *Client) ask(
	ctx context.Context, verb, subresource string, k *kind, key client.ObjectKey, do func() error,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.intercept(ctx, Request{verb, subresource, k.GroupVersionKind, key}, do)
}

// Get reads an object.
func (c *Client) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	if c.cache != nil {
		return c.cache.get(k, key, obj)
	}
	return c.ask(ctx, "get", "", k, key, func() error {
		found, exists := k.stored[key]
		if !exists {
			return apierrors.NewNotFound(k.resource, key.Name)
		}
		return setContent(obj, found.object)
	})
}

// List reads objects, in the order of their namespaces and names. It knows selectors of labels, and those
// of fields metadata.name, spec.nodeName and spec.lbNodeAgent; pages are always whole.
func (c *Client) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	k, err := c.server.kindOf(list)
	if err != nil {
		return err
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if c.cache != nil {
		return c.cache.list(k, list, options)
	}
	return c.ask(ctx, "list", "", k, client.ObjectKey{Namespace: options.Namespace}, func() error {
		list.SetResourceVersion(fmt.Sprint(c.server.revision))
		return setItems(list, k.inOrder(), options, func(obj client.Object) (bool, error) {
			return matchesFields(options.FieldSelector, obj)
		})
	})
}

// selectableFields are the fields by which the API server selects objects, as far as they are needed.
func selectableFields(obj client.Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
	spec := reflect.ValueOf(obj).Elem().FieldByName("Spec")
	if !spec.IsValid() {
		return set
	}
	for name, selector := range map[string]string{"NodeName": "spec.nodeName", "LBNodeAgent": "spec.lbNodeAgent"} {
		if f := spec.FieldByName(name); f.IsValid() && f.Kind() == reflect.String {
			set[selector] = f.String()
		}
	}
	return set
}

func matchesFields(selector fields.Selector, obj client.Object) (bool, error) {
	if selector == nil || selector.Empty() {
		return true, nil
	}
	set := selectableFields(obj)
	for _, r := range selector.Requirements() {
		if !set.Has(r.Field) {
			return false, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return selector.Matches(set), nil
}

// setItems makes the items of list those objects that the options and matches select.
func setItems(
	list client.ObjectList, objects []client.Object, options *client.ListOptions,
	matches func(client.Object) (bool, error),
) error {
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	selected := make([]reflect.Value, 0, len(objects))
	for _, obj := range objects {
		if options.Namespace != "" && obj.GetNamespace() != options.Namespace {
			continue
		}
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(obj.GetLabels())) {
			continue
		}
		isWanted, err := matches(obj)
		if err != nil {
			return err
		}
		if !isWanted {
			continue
		}
		if options.UnsafeDisableDeepCopy == nil || !*options.UnsafeDisableDeepCopy {
			obj = obj.DeepCopyObject().(client.Object)
		}
		item := reflect.ValueOf(obj).Elem()
		if item.Type() != items.Type().Elem() {
			return fmt.Errorf("the API server in memory has %s, not %s", item.Type(), items.Type().Elem())
		}
		selected = append(selected, item)
	}
	items.Set(reflect.MakeSlice(items.Type(), len(selected), len(selected)))
	for i, item := range selected {
		items.Index(i).Set(item)
	}
	return nil
}

// Create makes an object.
func (c *Client) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	options := (&client.CreateOptions{}).ApplyOptions(opts)
	return c.ask(ctx, "create", "", k, client.ObjectKeyFromObject(obj), func() error {
		created, err := c.server.create(k, obj, options.FieldManager)
		if err != nil {
			return err
		}
		return setContent(obj, created)
	})
}

// Update writes an object, without its status if its kind has one by itself.
func (c *Client) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.update(ctx, obj, whole, (&client.UpdateOptions{}).ApplyOptions(opts).FieldManager)
}

func (c *Client) update(ctx context.Context, obj client.Object, p part, owner string) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	return c.ask(ctx, "update", subresources[p], k, client.ObjectKeyFromObject(obj), func() error {
		written, err := c.server.replace(k, obj, p, owner)
		if err != nil {
			return err
		}
		return setContent(obj, written)
	})
}

var subresources = map[part]string{status: "status"}

// Patch applies a merge patch.
func (c *Client) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.patch(ctx, obj, patch, whole, (&client.PatchOptions{}).ApplyOptions(opts).FieldManager)
}

func (c *Client) patch(ctx context.Context, obj client.Object, patch client.Patch, p part, owner string) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	if patch.Type() != types.MergePatchType {
		return fmt.Errorf("the API server in memory knows merge patches, not %s", patch.Type())
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var change map[string]any
	if err := utiljson.Unmarshal(data, &change); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	key := client.ObjectKeyFromObject(obj)
	return c.ask(ctx, "patch", subresources[p], k, key, func() error {
		before, exists := k.stored[key]
		if !exists {
			return apierrors.NewNotFound(k.resource, key.Name)
		}
		content, err := toMap(before.object)
		if err != nil {
			return err
		}
		after, err := fromMap(mergePatch(content, change), before.object)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if after.GetUID() != before.object.GetUID() {
			return replaced(k, after)
		}
		written, err := c.server.replace(k, after, p, owner)
		if err != nil {
			return err
		}
		return setContent(obj, written)
	})
}

// mergePatch changes content by a merge patch (RFC 7386), and returns it.
func mergePatch(content, patch map[string]any) map[string]any {
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(content, name)
		case map[string]any:
			child, isMap := content[name].(map[string]any)
			if !isMap {
				child = map[string]any{}
			}
			content[name] = mergePatch(child, v)
		default:
			content[name] = v
		}
	}
	return content
}

// Apply applies a configuration, with force, and gives it what is stored then.
func (c *Client) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	options := (&client.ApplyOptions{}).ApplyOptions(opts)
	return c.applyPart(ctx, config, whole, options.FieldManager, options.Force)
}

func (c *Client) applyPart(
	ctx context.Context, config runtime.ApplyConfiguration, p part, owner string, force *bool,
) error {
	if force == nil || !*force || owner == "" {
		return errors.New("the API server in memory applies with force and a field manager only")
	}
	content, err := contentOf(config)
	if err != nil {
		return err
	}
	target := &unstructured.Unstructured{Object: content}
	k, err := c.server.kind(target.GroupVersionKind())
	if err != nil {
		return err
	}
	return c.ask(ctx, "apply", subresources[p], k, client.ObjectKeyFromObject(target), func() error {
		written, err := c.server.apply(content, p, owner)
		if err != nil {
			return err
		}
		answer, err := toMap(written)
		if err != nil {
			return err
		}
		answer["apiVersion"], answer["kind"] = k.GroupVersion().String(), k.Kind.Kind
		if u, isUnstructured := config.(runtime.Unstructured); isUnstructured {
			u.SetUnstructuredContent(answer)
			return nil
		}
		data, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		return json.Unmarshal(data, config)
	})
}

// contentOf returns a copy of what a configuration says, with whole numbers as int64, as objects have them.
func contentOf(config runtime.ApplyConfiguration) (map[string]any, error) {
	if u, isUnstructured := config.(runtime.Unstructured); isUnstructured {
		return runtime.DeepCopyJSON(u.UnstructuredContent()), nil
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var content map[string]any
	err = utiljson.Unmarshal(data, &content)
	return content, err
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	k, err := c.server.kindOf(obj)
	if err != nil {
		return err
	}
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	key := client.ObjectKeyFromObject(obj)
	return c.ask(ctx, "delete", "", k, key, func() error { return c.server.delete(k, key, options.Preconditions) })
}

// DeleteAllOf is not served.
func (*Client) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return errors.New("the API server in memory deletes objects one by one")
}

// Status returns a client of the status.
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource returns a client of the status, which is the only subresource.
func (c *Client) SubResource(name string) client.SubResourceClient { return &statusClient{c, name} }

// Scheme returns the server's scheme.
func (c *Client) Scheme() *runtime.Scheme { return c.server.scheme }

// RESTMapper returns the server's kinds.
func (c *Client) RESTMapper() meta.RESTMapper { return c.server.mapper }

// GroupVersionKindFor returns the kind of an object.
func (c *Client) GroupVersionKindFor(obj runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(obj, c.server.scheme)
}

// IsObjectNamespaced says whether objects of its kind are in namespaces.
func (c *Client) IsObjectNamespaced(obj runtime.Object) (bool, error) {
	k, err := c.server.kindOf(obj)
	return err == nil && k.IsNamespaced, err
}

// statusClient writes the status of objects.
type statusClient struct {
	client *Client
	name   string
}

func (s *statusClient) check() error {
	if s.name != "status" {
		return fmt.Errorf("the API server in memory has no subresource %s", s.name)
	}
	return nil
}

func (s *statusClient) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	return errors.New("the API server in memory reads objects as a whole")
}

func (s *statusClient) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return errors.New("the API server in memory creates no subresources")
}

func (s *statusClient) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	options := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
	return errors.Join(s.check(), s.client.update(ctx, obj, status, options.FieldManager))
}

func (s *statusClient) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	options := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
	return errors.Join(s.check(), s.client.patch(ctx, obj, patch, status, options.FieldManager))
}

func (s *statusClient) Apply(
	ctx context.Context, config runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	options := (&client.SubResourceApplyOptions{}).ApplyOpts(opts)
	return errors.Join(s.check(), s.client.applyPart(ctx, config, status, options.FieldManager, options.Force))
}
