package controllers

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// ServiceProgress is how far a Service is on its way to packets, by its conditions.
type ServiceProgress string

// States of Services, in order.
const (
	// serviceWaiting does not have all the addresses that it asks for.
	serviceWaiting ServiceProgress = "Waiting"
	// serviceNotAnnounced has addresses of which some are not announced as they are to be.
	serviceNotAnnounced ServiceProgress = "NotAnnounced"
	// serviceNotAdvertised has Virtual addresses of which no router knows some.
	serviceNotAdvertised ServiceProgress = "NotAdvertised"
	// serviceUnreachable has Local addresses of which other nodes cannot reach some.
	serviceUnreachable ServiceProgress = "Unreachable"
	// serviceAnnounced lacks nothing that PureLB can see.
	serviceAnnounced ServiceProgress = "Announced"
)

// ServiceProgresses are the values of the label state of the metric purelb_services.
var ServiceProgresses = []ServiceProgress{
	serviceWaiting, serviceNotAnnounced, serviceNotAdvertised, serviceUnreachable, serviceAnnounced,
}

// progressOf returns how far a Service that PureLB serves is.
func progressOf(svc *corev1.Service) ServiceProgress {
	conditions := svc.Status.Conditions
	switch {
	case !meta.IsStatusConditionTrue(conditions, v1.ConditionAllocated):
		return serviceWaiting
	case !meta.IsStatusConditionTrue(conditions, v1.ConditionAnnounced):
		return serviceNotAnnounced
	case meta.IsStatusConditionFalse(conditions, v1.ConditionAdvertised):
		return serviceNotAdvertised
	case meta.IsStatusConditionFalse(conditions, v1.ConditionServiceReachable):
		return serviceUnreachable
	}
	return serviceAnnounced
}
