// Package v1 contains the API of PureLB, group purelb.io, version v1:
// ServiceGroup (where addresses come from), LBNodeAgent (which nodes announce
// them and how), Announcement (what one node is to announce and what it
// does), CommonAnnouncement (what all nodes announce alike), BGPPeer (a router to
// which nodes advertise Virtual addresses) and NodeRouting (one node's routers).
//
// +kubebuilder:object:generate=true
// +groupName=purelb.io
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "purelb.io", Version: "v1"}

var schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ServiceGroup{}, &ServiceGroupList{},
		&LBNodeAgent{}, &LBNodeAgentList{},
		&Announcement{}, &AnnouncementList{},
		&CommonAnnouncement{}, &CommonAnnouncementList{},
		&BGPPeer{}, &BGPPeerList{},
		&NodeRouting{}, &NodeRoutingList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme registers the kinds of this package with a scheme.
var AddToScheme = schemeBuilder.AddToScheme
