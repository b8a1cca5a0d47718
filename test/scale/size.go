package main

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// objectSizes are the numbers of objects, and the bytes of the largest as stored (JSON).
type objectSizes struct {
	announcements, largestAnnouncement int // the largest of one node's
	commons, largestCommon             int // CommonAnnouncements
}

// readObjectSizes reads the sizes of Announcements and CommonAnnouncements.
func (r *run) readObjectSizes(ctx context.Context) (s objectSizes, err error) {
	name := nodeName(len(r.agents.nodes) - 1)
	s.announcements, s.largestAnnouncement, err = r.sizeOfKind(
		ctx, "Announcement", func(m *metav1.PartialObjectMetadata) bool { return m.Labels[v1.LabelNode] == name },
		client.HasLabels{v1.LabelNode}, // those with standby have none
	)
	if err != nil {
		return objectSizes{}, err
	}
	s.commons, s.largestCommon, err = r.sizeOfKind(
		ctx, "CommonAnnouncement", func(*metav1.PartialObjectMetadata) bool { return true },
	)
	return s, err
}

// sizeOfKind returns the number of objects of a kind that the options list, and the bytes of the largest of
// those that isMeasured chooses.
func (r *run) sizeOfKind(
	ctx context.Context, kind string, isMeasured func(*metav1.PartialObjectMetadata) bool, options ...client.ListOption,
) (count, largest int, err error) {
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(v1.GroupVersion.WithKind(kind + "List"))
	if err := r.cluster.admin.List(ctx, &all, append(options, client.InNamespace(namespace))...); err != nil {
		return 0, 0, fmt.Errorf("list objects of kind %s: %w", kind, err)
	}
	for i := range all.Items {
		if !isMeasured(&all.Items[i]) {
			continue
		}
		body, err := r.cluster.clientset.RESTClient().Get().
			AbsPath(
				"apis", v1.GroupVersion.Group, v1.GroupVersion.Version, "namespaces", namespace, strings.ToLower(kind)+"s",
				all.Items[i].Name,
			).
			DoRaw(ctx)
		if err != nil {
			return 0, 0, fmt.Errorf("get %s %s: %w", kind, all.Items[i].Name, err)
		}
		largest = max(largest, len(body))
	}
	return len(all.Items), largest, nil
}
