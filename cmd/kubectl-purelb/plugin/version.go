package plugin

import (
	"io"
	"slices"
)

// Versions are the version of the plugin, and the images that run in the cluster.
type Versions struct {
	Client string `json:"client"`
	// Images of the managers, agents and speakers; more than one while an upgrade is under way.
	Images []string `json:"images,omitempty"`
	// IsClientOnly is that nobody asked what runs.
	IsClientOnly bool     `json:"-"`
	Unread       []Unread `json:"unread,omitempty"`
}

// VersionsOf lists the images of PureLB's pods.
func VersionsOf(c *Cluster, clientVersion string) *Versions {
	v := &Versions{Client: clientVersion, Unread: c.unreadOf(kindPods)}
	for _, pod := range podsOf(c) {
		for _, container := range pod.Spec.Containers {
			v.Images = append(v.Images, container.Image)
		}
	}
	slices.Sort(v.Images)
	v.Images = slices.Compact(v.Images)
	return v
}

// WriteText writes the versions for people.
func (v *Versions) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	t.line("kubectl-purelb " + v.Client)
	for _, image := range v.Images {
		t.line("running: " + image)
	}
	if len(v.Images) == 0 && len(v.Unread) == 0 && !v.IsClientOnly {
		t.line("running: nothing")
	}
	t.unread(v.Unread)
	return t.flush()
}
