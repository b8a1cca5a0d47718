package v1

import (
	"strconv"
	"strings"
)

// Community is a BGP community (RFC 1997): two 16-bit numbers, or a well-known name.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]{1,5}:[0-9]{1,5}|no-export|no-advertise|no-export-subconfed|no-peer|blackhole|graceful-shutdown|accept-own)$`
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{1,5}:[0-9]{1,5}$') || self.split(':').all(n, int(n) <= 65535)",message="must be two numbers of at most 65535, such as 65000:100"
type Community string

// wellKnownCommunities are the communities that have a name.
var wellKnownCommunities = map[Community]uint32{
	"graceful-shutdown": 0xFFFF0000, "accept-own": 0xFFFF0001, "blackhole": 0xFFFF029A, // RFC 8326, 7611, 7999
	// RFC 1997, 3765
	"no-export": 0xFFFFFF01, "no-advertise": 0xFFFFFF02, "no-export-subconfed": 0xFFFFFF03, "no-peer": 0xFFFFFF04,
}

// Number returns the community as it is in a message, and whether it is one.
func (c Community) Number() (uint32, bool) {
	if n, isKnown := wellKnownCommunities[c]; isKnown {
		return n, true
	}
	numbers, ok := parseNumbers(string(c), 2, 16)
	if !ok {
		return 0, false
	}
	return numbers[0]<<16 | numbers[1], true
}

// LargeCommunity is a large community (RFC 8092): three 32-bit numbers.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10}$`
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]{1,10}(:[0-9]{1,10}){2}$') || self.split(':').all(n, int(n) <= 4294967295)",message="must be three numbers of at most 4294967295, such as 65000:1:100"
type LargeCommunity string

// Numbers returns the three numbers of the large community, and whether it is one.
func (c LargeCommunity) Numbers() (numbers [3]uint32, ok bool) {
	parsed, ok := parseNumbers(string(c), 3, 32)
	copy(numbers[:], parsed)
	return numbers, ok
}

// parseNumbers returns as many numbers of so many bits, which colons separate.
func parseNumbers(text string, count, bits int) ([]uint32, bool) {
	parts := strings.Split(text, ":")
	if len(parts) != count {
		return nil, false
	}
	var numbers []uint32
	for _, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return nil, false
		}
		numbers = append(numbers, uint32(n)) //nolint:gosec // it has at most 32 bits
	}
	return numbers, true
}

// RouteCommunities are communities of both kinds.
type RouteCommunities struct {
	// communities, such as 65000:100 or no-export.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Communities []Community `json:"communities,omitempty"`

	// largeCommunities, such as 65000:1:100.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	LargeCommunities []LargeCommunity `json:"largeCommunities,omitempty"`
}

// IsEmpty reports whether there are no communities.
func (c *RouteCommunities) IsEmpty() bool { return len(c.Communities)+len(c.LargeCommunities) == 0 }

// ServiceGroupBGPSpec is how nodes advertise the Virtual addresses of a group by BGP, and what Services may ask of
// that for theirs.
type ServiceGroupBGPSpec struct {
	ServiceGroupBGP `json:",inline"`

	// allowServices are the communities for which Services may ask, by annotation
	// purelb.io/bgp-communities, for the routes to their own addresses: these values and no
	// others. Absent, Services may ask for none.
	// +optional
	AllowServices *RouteCommunities `json:"allowServices,omitempty"`
}

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
