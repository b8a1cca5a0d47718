package main

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/purelb/purelb-operator/config/policy"
	"github.com/purelb/purelb-operator/controllers"
)

const serviceAccountPrefix = "system:serviceaccount:"

// setUpPolicies adds the controller that keeps the cluster's policies. They are
// about the manager's service account, whatever its name is. A manager that a
// user runs by hand has none: they would bind that user, who could then write
// nothing of Nodes.
func setUpPolicies(ctx context.Context, mgr manager.Manager, o managerOptions) error {
	self := &authenticationv1.SelfSubjectReview{}
	if err := mgr.GetClient().Create(ctx, self); err != nil {
		return fmt.Errorf("ask the API server who the manager is: %w", err)
	}
	name := self.Status.UserInfo.Username
	if !strings.HasPrefix(name, serviceAccountPrefix) {
		mgr.GetLogger().Info("Not run by a service account: policies are not applied", "user", name)
		return nil
	}
	return (&controllers.PolicyReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Recorder:  controllers.BoundedRecorder{EventRecorder: mgr.GetEventRecorder("purelb-policy")},
		Namespace: o.namespace, PodName: o.podName,
		Users: policy.Users{Manager: name, Agent: serviceAccountPrefix + o.namespace + ":" + o.agentServiceAccount},
	}).SetupWithManager(mgr)
}
