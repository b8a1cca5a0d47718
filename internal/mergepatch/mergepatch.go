// Package mergepatch writes merge patches that name each field they change. One that is computed from
// two copies of an object would do harm if these lack something: where the only label or annotation
// that a copy has goes, the patch says that all go.
package mergepatch

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Write writes these fields of an object. Afterwards obj is what is stored.
func Write(ctx context.Context, c client.Client, obj client.Object, fields any, options ...client.PatchOption) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("make a patch: %w", err)
	}
	return c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, body), options...)
}

// SetLabel writes one label of an object, or removes it if the value is empty.
func SetLabel(
	ctx context.Context, c client.Client, obj client.Object, label, value string, options ...client.PatchOption,
) error {
	labels := map[string]*string{label: nil}
	if value != "" {
		labels[label] = &value
	}
	return Write(ctx, c, obj, map[string]any{"metadata": map[string]any{"labels": labels}}, options...)
}
