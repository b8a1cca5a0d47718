package plugin

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// Usage is how many addresses of one family are in use and free. In use are those of Services and, in
// an external IPAM system, those that are recorded there for anybody.
type Usage struct {
	Used int64 `json:"used"`
	Free int64 `json:"free"` // the largest int64 if there are more
	// Reserved are those that are neither, because they are kept for particular Services.
	Reserved int64 `json:"reserved,omitempty"`
}

func (u Usage) isFull() bool { return u.Used > 0 && u.Free == 0 }

// String is used/all, or "-" for a family that the group has no addresses of.
func (u Usage) String() string {
	switch {
	case u.Used == 0 && u.Free == 0 && u.Reserved == 0:
		return "-"
	case u.Free > math.MaxInt64-u.Used-u.Reserved || u.Free == math.MaxInt64:
		return fmt.Sprintf("%d/2^63+", u.Used)
	}
	return fmt.Sprintf("%d/%d", u.Used, u.Used+u.Free+u.Reserved)
}

// Pool is one ServiceGroup.
type Pool struct {
	Group   string      `json:"group"`
	Type    v1.PoolType `json:"type,omitempty"`
	Ready   bool        `json:"ready"`
	Message string      `json:"message,omitempty"`
	// Problems are what its conditions say besides Ready: the external IPAM system does not
	// answer or has other records, or nodes claim too many of its addresses.
	Problems []string `json:"problems,omitempty"`
	// Restrictions are who gets its addresses, if not everybody.
	Restrictions []string    `json:"limits,omitempty"`
	IPv4         Usage       `json:"ipv4"`
	IPv6         Usage       `json:"ipv6"`
	Ranges       []PoolRange `json:"ranges,omitempty"`
}

// PoolRange is one range of a ServiceGroup.
type PoolRange struct {
	Range    string          `json:"range"`
	Subnet   string          `json:"subnet"`
	Announce v1.AnnounceType `json:"announce,omitempty"`
	Used     int64           `json:"used"`     // as in Usage
	Capacity int64           `json:"capacity"` // the largest int64 if there are more
}

// usage returns how many addresses of the range are in use and free.
func (r *PoolRange) usage() Usage {
	if r.Capacity == math.MaxInt64 {
		return Usage{Used: r.Used, Free: math.MaxInt64}
	}
	return Usage{Used: r.Used, Free: r.Capacity - r.Used}
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
			pools = append(
				pools,
				Pool{
					Group: sg.Namespace + "/" + sg.Name, Message: "is not in namespace " + c.Namespace + ": the manager ignores it",
				},
			)
			continue
		}
		verdict := c.Admission.Catalog[sg.Name]
		if verdict == nil {
			continue
		}
		p := Pool{Group: sg.Name, Type: sg.Status.Type, Ready: verdict.IsReady()}
		if !p.Ready {
			p.Message = verdict.Message
		}
		if ready := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionReady); ready != nil && p.Ready &&
			ready.Status == metav1.ConditionFalse {
			p.Ready, p.Message = false, ready.Message
		}
		p.Problems, p.Restrictions = problemsOf(sg, p.Message), restrictionsOf(&verdict.Group)
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
	p.IPv4.Free, p.IPv6.Free = usage.AvailableIPv4, usage.AvailableIPv6
	p.IPv4.Reserved, p.IPv6.Reserved = usage.ReservedIPv4, usage.ReservedIPv6
	if n := usage.ReservedIPv4 + usage.ReservedIPv6; n > 0 {
		p.Restrictions = append(p.Restrictions, fmt.Sprintf("reserved for Services that do not have them: %d", n))
	}
	for i, r := range group.Ranges {
		announce := v1.AnnounceVirtual
		if group.Type != v1.PoolTypeRemote {
			announce = c.Admission.AnnounceType(r)
		}
		used := max(usage.AllocatedByRange[i], r.Recorded)
		if r.Family() == allocation.IPv6 {
			p.IPv6.Used += used
		} else {
			p.IPv4.Used += used
		}
		p.Ranges = append(p.Ranges, PoolRange{r.String(), r.Subnet.String(), announce, used, r.Capacity()})
	}
}

// restrictionsOf says whose Services get addresses of a ServiceGroup.
func restrictionsOf(group *allocation.Group) []string {
	var restrictions []string
	if group.NamespaceSelector != nil {
		restrictions = append(restrictions, "for namespaces with "+group.NamespaceSelector.String())
	}
	switch isDefault := group.Name == v1.DefaultServiceGroup; {
	case isDefault && !group.AutoAssign:
		restrictions = append(restrictions, "only for Services that name it")
	case !isDefault && group.AutoAssign:
		restrictions = append(restrictions, "also for Services that name none")
	}
	return restrictions
}

// problemsOf lists what the conditions of a ServiceGroup say besides Ready, and besides a message that is said anyway.
func problemsOf(sg *v1.ServiceGroup, said string) []string {
	var problems []string
	for i := range sg.Status.Conditions {
		condition := &sg.Status.Conditions[i]
		bad := metav1.ConditionTrue
		if condition.Type == v1.ConditionReachable {
			bad = metav1.ConditionFalse
		}
		if condition.Type != v1.ConditionReady && condition.Type != v1.ConditionStalled && condition.Status == bad &&
			condition.Message != said {
			problems = append(problems, condition.Type+" is "+string(condition.Status)+": "+condition.Message)
		}
	}
	return problems
}

// PoolList is what the command pools prints.
type PoolList struct {
	Pools  []Pool   `json:"pools"`
	Unread []Unread `json:"unread,omitempty"`
}

// PoolListOf lists the ServiceGroups.
func PoolListOf(c *Cluster) *PoolList {
	return &PoolList{Pools: PoolsOf(c), Unread: c.unreadOf(allocationKinds...)}
}

// WriteText writes one line for each ServiceGroup; wide, one for each range.
func (l *PoolList) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	switch {
	case len(l.Pools) > 0:
		writePools(t, l.Pools, style.Wide)
	case len(l.Unread) == 0:
		t.line("There are no ServiceGroups.")
	}
	t.unread(l.Unread)
	return t.flush()
}

func writePools(t *textWriter, pools []Pool, wide bool) {
	columns := []string{"GROUP", "TYPE", "READY", "IPV4 USED", "IPV6 USED"}
	if wide {
		columns = append(columns, "RANGE", "SUBNET", "ANNOUNCED", "USED")
	}
	t.header(append(columns, "MESSAGE")...)
	for _, p := range pools {
		if p.Message != "" {
			p.Problems = append([]string{p.Message}, p.Problems...)
		}
		p.Message = strings.Join(append(p.Problems, p.Restrictions...), "; ")
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
			t.row(append(
				cells[:5:5], r.Range, r.Subnet, string(r.Announce), r.usage().String(), p.Message,
			)...)
		}
	}
}
