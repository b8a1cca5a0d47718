package plan

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Settings is on which interfaces the agent has addresses, and how it adds, probes and announces them: spec.local of
// the agent's LBNodeAgent without failover, reachability and subnets, with every default filled in.
type Settings struct {
	Selection Selection
	// Local and Virtual are how addresses are put on a node's own interfaces
	// and on the virtual interface.
	Local, Virtual AddressSettings
	Probe          ProbeSettings
	Announce       AnnounceSettings
}

// Selection is which interfaces can hold Local addresses, and which one holds Virtual addresses.
type Selection struct {
	// LocalInterface is purelbv1.InterfaceDefault, or a regular expression.
	LocalInterface string
	// Interfaces are selected as well, by name.
	Interfaces []string
	// VirtualInterface is for Virtual addresses, and for no others.
	VirtualInterface string
}

// AddressSettings is how addresses are put on one kind of interface.
type AddressSettings struct {
	// Valid and Preferred lifetimes, or Forever.
	Valid, Preferred time.Duration
	NoPrefixRoute    bool
}

// ProbeSettings is how the link is asked whether a station has an address.
type ProbeSettings struct {
	IsEnabled bool
	// Count of probes, and how long each waits for an answer.
	Count    int
	Interval time.Duration
}

// AnnounceSettings is how an address that was added is announced to the link.
type AnnounceSettings struct {
	IsEnabled bool
	// Delay between the add and the first of Count announcements.
	Delay    time.Duration
	Count    int
	Interval time.Duration
}

// SettingsOf fills the gaps of an LBNodeAgent with the defaults that its CRD documents, so that
// they also hold where the API server has not filled them.
func SettingsOf(agent *purelbv1.LBNodeAgent) Settings {
	local := ptr.Deref(agent.Spec.Local, purelbv1.LBNodeAgentLocal{})
	garp := ptr.Deref(local.GARPConfig, purelbv1.GARPConfig{})
	probe := ptr.Deref(local.ProbeConfig, purelbv1.ProbeConfig{})
	addresses := ptr.Deref(local.AddressConfig, purelbv1.AddressConfig{})

	s := Settings{
		Selection: Selection{
			LocalInterface:   cmp.Or(local.LocalInterface, purelbv1.InterfaceDefault),
			VirtualInterface: string(cmp.Or(local.DummyInterface, purelbv1.DefaultDummyInterface)),
		},
		Local: addressSettingsOf(
			addresses.LocalInterface, AddressSettings{Valid: defaultValidLifetime, NoPrefixRoute: true},
		),
		Virtual: addressSettingsOf(addresses.DummyInterface, AddressSettings{Valid: Forever}),
		Probe: ProbeSettings{
			IsEnabled: ptr.Deref(probe.Enabled, true),
			Count:     int(ptr.Deref(probe.Count, 2)),
			Interval:  ptr.Deref(probe.Interval, metav1.Duration{Duration: 100 * time.Millisecond}).Duration,
		},
		Announce: AnnounceSettings{
			IsEnabled: ptr.Deref(garp.Enabled, true),
			Delay:     ptr.Deref(garp.InitialDelay, metav1.Duration{}).Duration,
			Count:     int(ptr.Deref(garp.Count, 3)),
			Interval:  ptr.Deref(garp.Interval, metav1.Duration{Duration: 500 * time.Millisecond}).Duration,
		},
	}
	for _, name := range local.Interfaces {
		s.Selection.Interfaces = append(s.Selection.Interfaces, string(name))
	}
	return s
}

// addressSettingsOf reads the API's lifetimes, in which a valid lifetime of 0 is
// forever and a preferred lifetime of 0 is the valid one.
func addressSettingsOf(c *purelbv1.InterfaceAddressConfig, defaults AddressSettings) AddressSettings {
	s := defaults
	config := ptr.Deref(c, purelbv1.InterfaceAddressConfig{})
	if config.ValidLifetime != nil {
		s.Valid = time.Duration(*config.ValidLifetime) * time.Second
		if s.Valid == 0 {
			s.Valid = Forever
		}
	}
	s.Preferred = s.Valid
	if preferred := time.Duration(ptr.Deref(config.PreferredLifetime, 0)) * time.Second; preferred > 0 {
		s.Preferred = min(preferred, s.Valid)
	}
	s.NoPrefixRoute = ptr.Deref(config.NoPrefixRoute, s.NoPrefixRoute)
	return s
}
