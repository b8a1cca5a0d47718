package plugin

import (
	"fmt"
	"io"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// Usage is how many addresses of one family are in use and free.
type Usage struct {
	Used int64 `json:"used"`
	Free int64 `json:"free"` // the largest int64 if there are more
}

func (u Usage) isFull() bool { return u.Used > 0 && u.Free == 0 }

// String is used/all, or "-" for a family that the group has no addresses of.
func (u Usage) String() string {
	switch {
	case u.Used == 0 && u.Free == 0:
		return "-"
	case u.Free > math.MaxInt64-u.Used || u.Free == math.MaxInt64:
		return fmt.Sprintf("%d/2^63+", u.Used)
	}
	return fmt.Sprintf("%d/%d", u.Used, u.Used+u.Free)
}

// Pool is one ServiceGroup.
type Pool struct {
	Group   string      `json:"group"`
	Type    v1.PoolType `json:"type,omitempty"`
	Ready   bool        `json:"ready"`
	Message string      `json:"message,omitempty"`
	IPv4    Usage       `json:"ipv4"`
	IPv6    Usage       `json:"ipv6"`
	Ranges  []PoolRange `json:"ranges,omitempty"`
}

// PoolRange is one range of a ServiceGroup.
type PoolRange struct {
	Range    string          `json:"range"`
	Subnet   string          `json:"subnet"`
	Announce v1.AnnounceType `json:"announce,omitempty"`
	Used     int64           `json:"used"`
	Capacity int64           `json:"capacity"`
}

func (p *Pool) fullFamilies() (families []string) {
	if p.IPv4.isFull() {
		families = append(families, "IPv4")
	}
	if p.IPv6.isFull() {
		families = append(families, "IPv6")
	}
	return families
}

// PoolsOf lists the ServiceGroups of the manager's namespace, as the manager judges them now.
func PoolsOf(c *Cluster) []Pool {
	pools := []Pool{}
	for i := range c.ServiceGroups {
		sg := &c.ServiceGroups[i]
		if sg.Namespace != c.Namespace {
			pools = append(pools, Pool{Group: sg.Namespace + "/" + sg.Name, Message: "is not in namespace " + c.Namespace + ": the manager ignores it"})
			continue
		}
		verdict := c.Admission.Catalog[sg.Name]
		if verdict == nil {
			continue
		}
		p := Pool{Group: sg.Name, Type: sg.Status.Type, Ready: verdict.Ready()}
		if !p.Ready {
			p.Message = verdict.Message
		}
		if ready := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionReady); ready != nil && p.Ready && ready.Status == metav1.ConditionFalse {
			p.Ready, p.Message = false, ready.Message
		}
		if len(verdict.Group.Ranges) > 0 {
			p.Type = verdict.Group.Type
			p.addUsage(c, &verdict.Group)
		}
		pools = append(pools, p)
	}
	return pools
}

func (p *Pool) addUsage(c *Cluster, group *allocation.Group) {
	usage := group.Usage(c.Admission.InUse)
	p.IPv4 = Usage{usage.AllocatedIPv4, usage.AvailableIPv4}
	p.IPv6 = Usage{usage.AllocatedIPv6, usage.AvailableIPv6}
	for i, r := range group.Ranges {
		announce := v1.AnnounceVirtual
		if group.Type == v1.PoolTypeLocal {
			announce = c.Admission.AnnounceType(r)
		}
		p.Ranges = append(p.Ranges, PoolRange{r.String(), r.Subnet.String(), announce, usage.Ranges[i], r.Capacity()})
	}
}

// PoolList is what the command pools prints.
type PoolList struct {
	Pools  []Pool   `json:"pools"`
	Unread []Unread `json:"unread,omitempty"`
}

// WriteText writes one line for each ServiceGroup; wide, one for each range.
func (l *PoolList) WriteText(w io.Writer, style Style) error {
	t := newText(w, style)
	if len(l.Pools) == 0 {
		t.line("There are no ServiceGroups.")
	} else {
		writePools(t, l.Pools, style.Wide)
	}
	t.unread(l.Unread)
	return t.flush()
}

func writePools(t *text, pools []Pool, wide bool) {
	columns := []string{"GROUP", "TYPE", "READY", "IPV4 USED", "IPV6 USED"}
	if wide {
		columns = append(columns, "RANGE", "SUBNET", "ANNOUNCED", "USED")
	}
	t.header(append(columns, "MESSAGE")...)
	for _, p := range pools {
		cells := []string{p.Group, string(p.Type), strconv.FormatBool(p.Ready), p.IPv4.String(), p.IPv6.String()}
		if !wide {
			t.row(append(cells, p.Message)...)
			continue
		}
		if len(p.Ranges) == 0 {
			t.row(append(cells, "", "", "", "", p.Message)...)
		}
		for i, r := range p.Ranges {
			if i > 0 {
				cells = []string{"", "", "", "", ""}
				p.Message = ""
			}
			t.row(append(cells[:5:5], r.Range, r.Subnet, string(r.Announce), Usage{r.Used, r.Capacity - r.Used}.String(), p.Message)...)
		}
	}
}
