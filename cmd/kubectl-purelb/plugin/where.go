package plugin

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// AddressLocation says where one address is.
type AddressLocation struct {
	Address string `json:"address"`
	// Summary in one sentence.
	Summary string `json:"summary"`
	// Services that have the address.
	Services []string      `json:"services,omitempty"`
	Pool     string        `json:"pool,omitempty"`
	Nodes    []AddressNode `json:"nodes,omitempty"`
	Unread   []Unread      `json:"unread,omitempty"`
}

// AddressNode is a node that has an address, or is to have it.
type AddressNode struct {
	Node      string          `json:"node"`
	Interface string          `json:"interface"`
	MAC       string          `json:"mac,omitempty"` // of that interface: what the neighbours' tables have to say
	Type      v1.AnnounceType `json:"type"`
	State     v1.AddressState `json:"state"`
	Message   string          `json:"message,omitempty"`
}

// LocateAddress says where an address is.
func LocateAddress(c *Cluster, a netip.Addr) *AddressLocation {
	l := &AddressLocation{Address: a.String(), Unread: c.unreadOf(append([]string{kindCommons}, allocationKinds...)...)}
	isExternal, reservedFor := false, ""
	if group, r, found := c.Admission.Catalog.GroupContaining(a); found {
		isExternal, reservedFor = group.IsExternal(), group.Reservations[a]
		l.Pool = fmt.Sprintf("ServiceGroup %s, range %s in %s", group.Name, r, r.Subnet)
	}
	seen := map[string]bool{}
	for _, s := range c.Admission.InUse.ServicesWith(a) {
		l.Services = append(l.Services, s.String())
		for _, p := range announced.PlacesOf(s.String(), c.Announcements, c.Commons, c.Announcements) {
			if p.Address != a.String() || seen[p.Node] {
				continue
			}
			seen[p.Node] = true
			l.Nodes = append(
				l.Nodes, AddressNode{p.Node, p.Interface, macOf(p.Announcement, p.Interface), p.Type, p.State, p.Message},
			)
		}
	}
	switch {
	case c.Admission.NodeAddresses[a] != "":
		l.Summary = "is " + c.Admission.NodeAddresses[a] + ": no Service gets it"
	case len(l.Services) > 0:
		l.Summary = "is of " + strings.Join(l.Services, ", ") + " and announced by " + strings.Join(l.announcers(), ", ")
		if len(l.announcers()) == 0 {
			l.Summary = "is of " + strings.Join(l.Services, ", ") + ", and no node announces it"
		}
	case isExternal:
		l.Summary = "is of no Service; whether it is free, the external IPAM system knows"
	case reservedFor != "":
		l.Summary = "is of no Service, and reserved for " + reservedFor
	case l.Pool != "":
		l.Summary = "is free"
	default:
		l.Summary = "is in no pool, and no Service has it"
	}
	if len(l.Unread) > 0 {
		l.Summary = "is unknown, since " + describeUnread(l.Unread) + "; by what was read it " + l.Summary
	}
	return l
}

func (l *AddressLocation) announcers() (nodes []string) {
	for _, n := range l.Nodes {
		if n.State == v1.StateAnnounced {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}

// macOf returns the Ethernet address of an interface, as the node's agent reports it.
func macOf(a *v1.Announcement, iface string) string {
	for i := range a.Status.Interfaces {
		if string(a.Status.Interfaces[i].Name) == iface {
			return a.Status.Interfaces[i].MAC
		}
	}
	return ""
}

// WriteText writes where the address is, for people.
func (l *AddressLocation) WriteText(out io.Writer, style Style) error {
	t := newTextWriter(out, style)
	t.line(l.Address + " " + l.Summary)
	if l.Pool != "" {
		t.line("Pool: " + l.Pool)
	}
	if len(l.Nodes) > 0 {
		t.header("NODE", "INTERFACE", "MAC", "TYPE", "STATE", "MESSAGE")
		for _, n := range l.Nodes {
			t.row(n.Node, n.Interface, n.MAC, string(n.Type), string(n.State), n.Message)
		}
	}
	t.unread(l.Unread)
	return t.flush()
}
