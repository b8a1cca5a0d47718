package v1

// Community is a BGP community (RFC 1997): two 16-bit numbers, or a well-known name.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]{1,5}:[0-9]{1,5}|no-export|no-advertise|no-export-subconfed|no-peer|blackhole|graceful-shutdown|accept-own)$`
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{1,5}:[0-9]{1,5}$') || self.split(':').all(n, int(n) <= 65535)",message="must be two numbers of at most 65535, such as 65000:100"
type Community string

// LargeCommunity is a large community (RFC 8092): three 32-bit numbers.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}$`
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{1,10}(:[0-9]{1,10}){2}$') || self.split(':').all(n, int(n) <= 4294967295)",message="must be three numbers of at most 4294967295, such as 65000:1:100"
type LargeCommunity string

// ServiceGroupBGP is how nodes advertise the Virtual addresses of a group by BGP.
type ServiceGroupBGP struct {
	// advertise says whether nodes advertise them at all.
	// +optional
	// +kubebuilder:default=true
	Advertise *bool `json:"advertise,omitempty"`

	// peers are the names of the BGPPeers to which nodes advertise them; absent, all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Peers []string `json:"peers,omitempty"`

	// communities that the routes have, such as 65000:100 or no-export.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Communities []Community `json:"communities,omitempty"`

	// largeCommunities that the routes have, such as 65000:1:100.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	LargeCommunities []LargeCommunity `json:"largeCommunities,omitempty"`

	// localPref is the preference of the routes among neighbours of the nodes' own
	// autonomous system; other neighbours do not see it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	LocalPref *int64 `json:"localPref,omitempty"`

	// med is the multi-exit discriminator of the routes: neighbours prefer the lower one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	MED *int64 `json:"med,omitempty"`

	// prepend is how many times more the nodes' autonomous system stands in the routes'
	// path towards external neighbours: neighbours prefer shorter paths.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	Prepend int32 `json:"prepend,omitempty"`
}
