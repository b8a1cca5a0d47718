package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CommonAnnouncementSpec is what nodes announce alike.
type CommonAnnouncementSpec struct {
	// lbNodeAgent whose nodes announce it: those whose Announcement says common.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="lbNodeAgent is immutable"
	LBNodeAgent string `json:"lbNodeAgent"`

	// revision is higher than that of any CommonAnnouncement of the LBNodeAgent that
	// was written before. The epoch of an address is the revision with which it came,
	// or with which its interface or mask changed.
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision"`

	// reportSpreadSeconds is over how long the nodes spread their reports of what
	// they have made of it: the more nodes, the longer, so that the API server is
	// not asked by all at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=60
	ReportSpreadSeconds int32 `json:"reportSpreadSeconds,omitempty"`

	// addresses to announce; all are Virtual.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.type == 'Virtual')",message="only Virtual addresses are announced by all nodes"
	Addresses []AnnouncedAddress `json:"addresses,omitempty"`
}

// CommonAnnouncement is what all nodes of an LBNodeAgent announce alike, written by
// the manager: Virtual addresses that are served from every node. Written once, and
// not once for each node, they cost a large cluster no more than a small one. What a
// node makes of them is in its own Announcement. Users read it; nobody but the
// manager writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=cann;canns,categories=purelb
// +kubebuilder:selectablefield:JSONPath=`.spec.lbNodeAgent`
// +kubebuilder:printcolumn:name="LBNodeAgent",type=string,JSONPath=`.spec.lbNodeAgent`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.spec.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CommonAnnouncement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the nodes are to announce.
	// +required
	Spec CommonAnnouncementSpec `json:"spec"`
}

// CommonAnnouncementList is a list of CommonAnnouncements.
//
// +kubebuilder:object:root=true
type CommonAnnouncementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CommonAnnouncement `json:"items"`
}
