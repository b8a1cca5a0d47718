package controllers_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
)

type right = authorizationv1.ResourceAttributes

// isAllowed asks the API server whether a service account of PureLB may do something.
func (g *guarded) isAllowed(account string, r right) func(Gomega) bool {
	return func(gomega Gomega) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: accounts + account,
			Groups: []string{
				"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated",
			},
			ResourceAttributes: &r,
		}}
		gomega.Expect(g.admin.Create(context.Background(), review)).To(Succeed())
		return review.Status.Allowed
	}
}

// TestManagerRightsToConfigMaps asks the API server what the manager may do with ConfigMaps: make
// them, which RBAC cannot limit by name, and read the one that has the installation's id.
func TestManagerRightsToConfigMaps(t *testing.T) {
	g := guard(t)
	const name = "purelb-installation"
	for _, r := range []right{
		{Verb: "create", Resource: "configmaps", Namespace: namespace},
		{Verb: "get", Resource: "configmaps", Namespace: namespace, Name: name},
	} {
		g.Eventually(g.isAllowed("purelb-manager", r)).WithTimeout(time.Minute).Should(BeTrue(), "%+v", r)
	}
	for _, r := range []right{
		{Verb: "get", Resource: "configmaps", Namespace: namespace, Name: "another"},
		{Verb: "list", Resource: "configmaps", Namespace: namespace},
		{Verb: "watch", Resource: "configmaps", Namespace: namespace},
		{Verb: "patch", Resource: "configmaps", Namespace: namespace, Name: name},
		{Verb: "update", Resource: "configmaps", Namespace: namespace, Name: name},
		{Verb: "delete", Resource: "configmaps", Namespace: namespace, Name: name},
		{Verb: "create", Resource: "configmaps", Namespace: "default"},
		{Verb: "get", Resource: "configmaps", Namespace: "default", Name: name},
	} {
		g.Expect(g.isAllowed("purelb-manager", r)(g)).To(BeFalse(), "%+v", r)
	}
}

// TestManagerRightsToNamespaces asks the API server what the manager may do with Namespaces: read
// them, for the labels by which ServiceGroups select them.
func TestManagerRightsToNamespaces(t *testing.T) {
	g := guard(t)
	for _, verb := range []string{"get", "list", "watch"} {
		g.Eventually(g.isAllowed("purelb-manager", right{Verb: verb, Resource: "namespaces"})).WithTimeout(time.Minute).
			Should(BeTrue(), verb)
	}
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		g.Expect(g.isAllowed("purelb-manager", right{Verb: verb, Resource: "namespaces"})(g)).To(BeFalse(), verb)
	}
}

// TestServiceAccountRights asks the API server what agents and speakers may do by the roles of
// config/rbac. Whoever takes over a node has the rights of both. This test shows the row "write
// another node's status or Lease, or anything else" of docs/trust.md.
func TestServiceAccountRights(t *testing.T) {
	g := guard(t)
	for account, rights := range map[string][]right{
		"purelb-agent": {
			{Verb: "list", Group: "purelb.io", Resource: "announcements", Namespace: namespace},
			{Verb: "patch", Group: "purelb.io", Resource: "announcements", Subresource: "status", Namespace: namespace},
			{Verb: "patch", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
			{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		},
		"purelb-speaker": {
			{Verb: "list", Group: "purelb.io", Resource: "noderoutings", Namespace: namespace},
			{Verb: "patch", Group: "purelb.io", Resource: "noderoutings", Subresource: "status", Namespace: namespace},
			{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		},
	} {
		// The API server takes a moment to know the roles. It knows all rules of a role at once.
		for _, r := range rights {
			g.Eventually(g.isAllowed(account, r)).WithTimeout(time.Minute).Should(BeTrue(), "%s: %+v", account, r)
		}
		for _, r := range []right{
			{Verb: "create", Group: "purelb.io", Resource: "announcements", Namespace: namespace},
			{Verb: "patch", Group: "purelb.io", Resource: "announcements", Namespace: namespace},
			{Verb: "delete", Group: "purelb.io", Resource: "announcements", Namespace: namespace},
			{Verb: "patch", Group: "purelb.io", Resource: "servicegroups", Namespace: namespace},
			{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
			{Verb: "get", Resource: "secrets", Namespace: namespace},
			{Verb: "get", Resource: "configmaps", Namespace: namespace},
			{Verb: "create", Resource: "pods", Namespace: namespace},
			{Verb: "list", Resource: "services"},
			{Verb: "patch", Resource: "services", Subresource: "status", Namespace: "default"},
			{Verb: "patch", Resource: "nodes"},
			{Verb: "get", Resource: "secrets", Namespace: "kube-system"},
		} {
			g.Expect(g.isAllowed(account, r)(g)).To(BeFalse(), "%s: %+v", account, r)
		}
	}
}
