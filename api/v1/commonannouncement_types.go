package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Why revisions, and not the generations of the objects:
//
//   - An entry names the revision with which it came. It could not name a generation: the
//     API server chooses that when the object is written. Without it a report of a
//     generation says nothing about the single entry, which Services ask about.
//   - One number in the status of each of a thousand nodes covers all CommonAnnouncements
//     of its LBNodeAgent. A list of generations would make each of those reports longer
//     with each 25 to 100 addresses.
//   - A generation begins anew with 1 when an object is deleted and created again. A
//     revision never comes twice.

// CommonAnnouncementSpec has the entries that nodes share.
type CommonAnnouncementSpec struct {
	// lbNodeAgent whose nodes announce the addresses: those whose Announcement
	// includes them (includeCommonAnnouncements).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="lbNodeAgent is immutable"
	LBNodeAgent string `json:"lbNodeAgent"`

	// revision is higher than that of any CommonAnnouncement of the LBNodeAgent that
	// was written before. The epoch of an address is the revision with which it came,
	// or with which its interface or mask changed; so a node reports with one number
	// which addresses of all CommonAnnouncements it has realised.
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision"`

	// reportSpreadSeconds is over how long the nodes spread their reports that they
	// have realised a change: the more nodes, the longer, so that not all of them
	// write to the API server at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=60
	ReportSpreadSeconds int32 `json:"reportSpreadSeconds,omitempty"`

	// addressCount is how many addresses there are, for the table.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	AddressCount int32 `json:"addressCount,omitempty"`

	// addresses that the nodes are to announce; all are Virtual.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.type == 'Virtual')",message="only Virtual addresses are announced by all nodes"
	Addresses []AnnouncedAddress `json:"addresses,omitempty"`
}

// CommonAnnouncement has entries that all nodes of an LBNodeAgent share: Virtual addresses
// that every node announces. The manager writes them once, and not once for each node, so a
// large cluster costs no more writes than a small one. Each node reports in its own
// Announcement what it has realised. Users only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=cann;canns,categories=purelb
// +kubebuilder:selectablefield:JSONPath=`.spec.lbNodeAgent`
// +kubebuilder:printcolumn:name="LBNodeAgent",type=string,JSONPath=`.spec.lbNodeAgent`
// +kubebuilder:printcolumn:name="Addresses",type=integer,JSONPath=`.spec.addressCount`
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
