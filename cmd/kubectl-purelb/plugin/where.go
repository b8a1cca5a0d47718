package plugin

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// Where says where one address is.
type Where struct {
	Address string `json:"address"`
	// Summary in one sentence.
	Summary string `json:"summary"`
	// Services that have the address.
	Services []string    `json:"services,omitempty"`
	Pool     string      `json:"pool,omitempty"`
	Nodes    []WhereNode `json:"nodes,omitempty"`
	Unread   []Unread    `json:"unread,omitempty"`
}

// WhereNode is a node that has an address, or is to have it.
type WhereNode struct {
	Node      string          `json:"node"`
	Interface string          `json:"interface"`
	MAC       string          `json:"mac,omitempty"` // of that interface: what the neighbours' tables have to say
	Type      v1.AnnounceType `json:"type"`
	State     v1.AddressState `json:"state"`
	Message   string          `json:"message,omitempty"`
}

// WhereIs says where an address is.
func WhereIs(c *Cluster, a netip.Addr) *Where {
	w := &Where{Address: a.String(), Unread: c.unreadOf(append([]string{kindCommons}, allocationKinds...)...)}
	isExternal, reservedFor := false, ""
	if group, r, found := c.Admission.Catalog.GroupContaining(a); found {
		isExternal, reservedFor = group.IsExternal(), group.Reservations[a]
		w.Pool = fmt.Sprintf("ServiceGroup %s, range %s in %s", group.Name, r, r.Subnet)
	}
	seen := map[string]bool{}
	for _, s := range c.Admission.InUse.ServicesWith(a) {
		w.Services = append(w.Services, s.String())
		for _, p := range announced.PlacesOf(s.String(), c.Announcements, c.Commons, c.Announcements) {
			if p.Address != a.String() || seen[p.Node] {
				continue
			}
			seen[p.Node] = true
			w.Nodes = append(
				w.Nodes, WhereNode{p.Node, p.Interface, macOf(p.Announcement, p.Interface), p.Type, p.State, p.Message},
			)
		}
	}
	switch {
	case c.Admission.NodeAddresses[a] != "":
		w.Summary = "is " + c.Admission.NodeAddresses[a] + ": no Service gets it"
	case len(w.Services) > 0:
		w.Summary = "is of " + strings.Join(w.Services, ", ") + " and announced by " + strings.Join(w.announcers(), ", ")
		if len(w.announcers()) == 0 {
			w.Summary = "is of " + strings.Join(w.Services, ", ") + ", and no node announces it"
		}
	case isExternal:
		w.Summary = "is of no Service; whether it is free, the external IPAM system knows"
	case reservedFor != "":
		w.Summary = "is of no Service, and reserved for " + reservedFor
	case w.Pool != "":
		w.Summary = "is free"
	default:
		w.Summary = "is in no pool, and no Service has it"
	}
	if len(w.Unread) > 0 {
		w.Summary = "is unknown, since " + describeUnread(w.Unread) + "; by what was read it " + w.Summary
	}
	return w
}

func (w *Where) announcers() (nodes []string) {
	for _, n := range w.Nodes {
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
func (w *Where) WriteText(out io.Writer, style Style) error {
	t := newText(out, style)
	t.line(w.Address + " " + w.Summary)
	if w.Pool != "" {
		t.line("Pool: " + w.Pool)
	}
	if len(w.Nodes) > 0 {
		t.header("NODE", "INTERFACE", "MAC", "TYPE", "STATE", "MESSAGE")
		for _, n := range w.Nodes {
			t.row(n.Node, n.Interface, n.MAC, string(n.Type), string(n.State), n.Message)
		}
	}
	t.unread(w.Unread)
	return t.flush()
}
