package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// namespaceControllerNames are the usual accounts of the namespace controller: with
// kube-controller-manager's --use-service-account-credentials, and without.
var namespaceControllerNames = []string{
	"system:serviceaccount:kube-system:namespace-controller",
	"system:kube-controller-manager",
}

// subjectReviewer asks the API server what an account may do, by creating a
// SubjectAccessReview.
type subjectReviewer interface {
	Create(ctx context.Context, review client.Object, opts ...client.CreateOption) error
}

// refuseUnlessNamespaceController refuses to delete an object of a resource, unless the namespace controller deletes
// it.
func refuseUnlessNamespaceController(
	ctx context.Context, reviews subjectReviewer, resource schema.GroupResource, obj client.Object, refusal string,
) error {
	isNamespaceController, err := isByNamespaceController(ctx, reviews, resource, obj.GetNamespace())
	switch {
	case err != nil:
		return apierrors.NewInternalError(err)
	case isNamespaceController:
		return nil
	}
	return apierrors.NewForbidden(resource, obj.GetName(), errors.New(refusal))
}

// isByNamespaceController reports whether the namespace controller makes the request to
// delete an object of a resource. It deletes everything in a namespace that is being
// deleted, and if it were refused, it would try for ever.
//
// The webhooks' matchCondition not-with-its-namespace (config/webhook/patch.yaml) says
// the same, so that such a request never depends on the manager. OLM installs no
// matchConditions: there, only this function lets the request through.
//
// The webhooks recognise the namespace controller under any name: it may finalize every
// namespace, and it may not change objects of the resource. Administrators may do both, so
// their deletions are checked.
func isByNamespaceController(
	ctx context.Context, reviews subjectReviewer, resource schema.GroupResource, namespace string,
) (bool, error) {
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return false, fmt.Errorf("read who deletes %s: %w", resource, err)
	}
	if slices.Contains(namespaceControllerNames, req.UserInfo.Username) {
		return true, nil
	}
	mayFinalize, err := isAllowed(
		ctx, reviews, req.UserInfo,
		authorizationv1.ResourceAttributes{Verb: "update", Resource: "namespaces", Subresource: "finalize"},
	)
	if err != nil || !mayFinalize {
		return false, err
	}
	mayChange, err := isAllowed(ctx, reviews, req.UserInfo, authorizationv1.ResourceAttributes{
		Verb: "update", Group: resource.Group, Resource: resource.Resource, Namespace: namespace,
	})
	return !mayChange, err
}

// isAllowed asks the API server whether an account may do something.
func isAllowed(
	ctx context.Context, reviews subjectReviewer, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes,
) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, ResourceAttributes: &what,
	}}
	if len(user.Extra) > 0 {
		review.Spec.Extra = make(map[string]authorizationv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
		}
	}
	if err := reviews.Create(ctx, review); err != nil {
		return false, fmt.Errorf("review whether %s may %s %s: %w", user.Username, what.Verb, what.Resource, err)
	}
	return review.Status.Allowed, nil
}
