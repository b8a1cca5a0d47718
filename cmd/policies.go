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

// setUpPolicies adds the controller that applies the policies in config/policy. They limit the
// service account of the manager, whatever its name is. A manager that a user runs by hand
// applies none: they would limit that user, who could then no longer change Nodes.
func setUpPolicies(ctx context.Context, mgr manager.Manager, o managerOptions) error {
	self := &authenticationv1.SelfSubjectReview{}
	if err := mgr.GetClient().Create(ctx, self); err != nil {
		return fmt.Errorf("find out as which user the manager runs: %w", err)
	}
	name := self.Status.UserInfo.Username
	if !strings.HasPrefix(name, serviceAccountPrefix) {
		mgr.GetLogger().Info("The manager does not run as a service account: it applies no policies", "user", name)
		return nil
	}
	return (&controllers.PolicyReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Recorder:  controllers.BoundedRecorder{EventRecorder: mgr.GetEventRecorder("purelb-policy")},
		Namespace: o.namespace, PodName: o.podName,
		Users: policy.Users{Manager: name, Agent: serviceAccountPrefix + o.namespace + ":" + o.agentServiceAccount,
			Speaker: serviceAccountPrefix + o.namespace + ":" + o.speakerServiceAccount},
	}).SetupWithManager(mgr)
}
