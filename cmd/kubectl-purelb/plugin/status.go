package plugin

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// Health is the overall state.
type Health string

// States, from best to worst.
const (
	Healthy  Health = "Healthy"
	Degraded Health = "Degraded" // addresses that Services have answer, but something needs attention
	Critical Health = "Critical" // an address is not announced by any node, or not reached, or nothing is decided any more
	Unknown  Health = "Unknown"  // something that the answer depends on could not be read
)

// Problem is one thing that needs attention.
type Problem struct {
	Severity Health `json:"severity"`
	// Object as kind/name or kind/namespace/name.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Alert is the one that is about such a problem, empty for none: its page in docs/runbooks says what to do.
	Alert string `json:"alert,omitempty"`
}

// Component is a part of PureLB.
type Component struct {
	Name    string `json:"name"`
	Ready   int32  `json:"ready"`
	Desired int32  `json:"desired"`
	Message string `json:"message,omitempty"`
}

// AnnouncementCounts says how many announcements are made.
type AnnouncementCounts struct {
	Nodes     int   `json:"nodes"`
	Announced int32 `json:"announced"`
	Desired   int32 `json:"desired"`
}

// ServiceCounts counts PureLB's Services.
type ServiceCounts struct {
	Total   int `json:"total"`
	Waiting int `json:"waiting"` // without all the addresses that they ask for
}

// Status is the state of PureLB in a cluster.
type Status struct {
	Health        Health             `json:"health"`
	Summary       string             `json:"summary"`
	Problems      []Problem          `json:"problems"` // the worst first
	Components    []Component        `json:"components"`
	Pools         []Pool             `json:"pools"`
	Announcements AnnouncementCounts `json:"announcements"`
	Services      ServiceCounts      `json:"services"`
	Unread        []Unread           `json:"unread,omitempty"`
}

// statusKinds are what StatusOf looks at.
var statusKinds = append([]string{kindLBNodeAgents, kindCommons, kindBGPPeers}, allocationKinds...)

// StatusOf summarises the state of PureLB.
func StatusOf(c *Cluster) *Status {
	s := &Status{Pools: PoolsOf(c), Unread: c.unreadOf(statusKinds...), Problems: []Problem{}, Components: []Component{}}
	s.addComponents(c)
	s.addPools()
	s.addAnnouncements(c)
	s.addSessions(c)
	s.addServices(c)
	slices.SortStableFunc(s.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(severityRank(b.Severity), severityRank(a.Severity)), cmp.Compare(a.Object, b.Object))
	})
	s.conclude()
	return s
}

func severityRank(h Health) int { return slices.Index([]Health{Healthy, Degraded, Critical}, h) }

func (s *Status) add(severity Health, alert, object, format string, args ...any) {
	s.Problems = append(s.Problems, Problem{severity, object, fmt.Sprintf(format, args...), alert})
}

func (s *Status) addComponents(c *Cluster) {
	if d := c.managerDeployment(); d != nil {
		desired := int32(1)
		if d.Spec.Replicas != nil {
			desired = *d.Spec.Replicas
		}
		s.Components = append(s.Components, Component{"manager", d.Status.ReadyReplicas, desired, ""})
		switch {
		case d.Status.ReadyReplicas == 0:
			s.add(
				Critical, "PureLBManagerDown", "deployment/"+d.Name,
				"no manager is ready: addresses go on answering, but nothing is allocated, and nothing moves but off dead "+
					"nodes: see kubectl -n %s describe pods -l app.kubernetes.io/name=%s and, if one has run, "+
					"kubectl -n %s logs deployment/%s --all-pods",
				c.Namespace, managerName, c.Namespace, managerName,
			)
		case d.Status.ReadyReplicas < desired:
			s.add(Degraded, "", "deployment/"+d.Name, "%d of %d managers are ready", d.Status.ReadyReplicas, desired)
		}
	} else if !c.isUnread(kindDeployments) {
		s.add(
			Critical, "PureLBManagerDown", "deployment/"+managerName,
			"there is none in namespace %s: nothing is allocated, and nothing moves but off dead nodes", c.Namespace,
		)
	}
	for i := range c.LBNodeAgents {
		a := &c.LBNodeAgents[i]
		component := Component{Name: "agents of " + a.Name, Ready: a.Status.ReadyNodes, Desired: a.Status.DesiredNodes}
		if ready := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionReady); ready != nil &&
			ready.Status != metav1.ConditionTrue {
			component.Message = ready.Message
			s.add(Degraded, "PureLBAgentDown", "lbnodeagent/"+a.Name, "%s", ready.Message)
		}
		if c := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionInterfaceNotFound); c != nil && s.hasLocalPools() {
			s.add(Degraded, "", "lbnodeagent/"+a.Name, "%s", c.Message)
		}
		s.Components = append(s.Components, component)
	}
	s.addWatches(c)
	s.addPods(c)
	s.addWebhooks(c)
	if len(c.LBNodeAgents) == 0 && !c.isUnread(kindLBNodeAgents) {
		s.add(Critical, "", "lbnodeagent", "there is none: no node runs an agent, and nothing is announced")
	}
}

// addWatches counts the watches of nodes by those that are to follow them. One that does not watch costs nothing until
// the other node dies, and then some seconds: it is no problem of its own.
func (s *Status) addWatches(c *Cluster) {
	watches := Component{Name: "watches of nodes"}
	for i := range c.Standbys {
		a := &c.Standbys[i]
		watches.Desired++
		ready := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionReady)
		switch {
		case ready != nil && ready.Status == metav1.ConditionTrue:
			watches.Ready++
		case ready != nil && watches.Message == "":
			watches.Message = fmt.Sprintf(
				"%s of %s: %s: %s", a.Spec.NodeName, a.Spec.Standby.Watched.NodeName, ready.Reason, ready.Message,
			)
		}
	}
	if watches.Desired > 0 {
		s.Components = append(s.Components, watches)
	}
}

// hasLocalPools reports whether there is a ServiceGroup whose addresses may be Local.
func (s *Status) hasLocalPools() bool {
	return slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.Type != v1.PoolTypeRemote })
}

// addWebhooks says which of the manager's webhooks the API server cannot call, as nobody has told it whom to trust.
func (s *Status) addWebhooks(c *Cluster) {
	for i := range c.Webhooks {
		var refused []string
		isUntrusted := false
		for _, w := range c.Webhooks[i].Webhooks {
			service := w.ClientConfig.Service
			if !strings.HasSuffix(w.Name, ".purelb.io") || service == nil || service.Namespace != c.Namespace ||
				len(w.ClientConfig.CABundle) > 0 {
				continue
			}
			isUntrusted = true
			if w.FailurePolicy == nil || *w.FailurePolicy == admissionv1.Fail {
				for _, rule := range w.Rules {
					refused = append(refused, rule.Resources...)
				}
			}
		}
		if !isUntrusted {
			continue
		}
		text := "has no caBundle, so the API server does not trust the webhooks' certificate"
		if len(refused) > 0 {
			text += ", and refuses all changes of " + strings.Join(refused, ", ")
		}
		s.add(Degraded, "", "validatingwebhookconfiguration/"+c.Webhooks[i].Name, "%s: the manager writes the caBundle, or "+
			"cert-manager or OLM where one of these makes the certificate: see kubectl -n %s logs deployment/%s, and "+
			"kubectl -n %s get certificates", text, c.Namespace, managerName, c.Namespace)
	}
}

// addPods says of PureLB's pods which of them do not start, as far as Kubernetes says why.
func (s *Status) addPods(c *Cluster) {
	for i := range c.Pods {
		p := &c.Pods[i]
		for _, status := range p.Status.ContainerStatuses {
			waiting := status.State.Waiting
			if waiting == nil || slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waiting.Reason) {
				continue
			}
			s.add(Degraded, "", "pod/"+p.Name, "does not start on %s: %s: see kubectl -n %s describe pod %s and, if it has "+
				"run, kubectl -n %s logs --previous %s", p.Spec.NodeName, waiting.Reason, p.Namespace, p.Name, p.Namespace, p.Name)
		}
	}
}

func (s *Status) addPools() {
	for _, p := range s.Pools {
		switch {
		case !p.Ready:
			s.add(Degraded, "", "servicegroup/"+p.Group, "%s", p.Message)
		case p.IPv4.isFull() || p.IPv6.isFull():
			s.add(Degraded, "PureLBPoolExhausted", "servicegroup/"+p.Group,
				"has no free address of %s: add a range to it, or delete Services", strings.Join(p.fullFamilies(), " and "))
		}
		for _, problem := range p.Problems {
			s.add(Degraded, alertOfPool(problem), "servicegroup/"+p.Group, "%s", problem)
		}
	}
}

// alertOfPool returns the alert that is about what a condition of a ServiceGroup says, or nothing.
func alertOfPool(problem string) string {
	switch conditionType, _, _ := strings.Cut(problem, " "); conditionType {
	case v1.ConditionReachable:
		return "PureLBIPAMUnavailable"
	case v1.ConditionDrift:
		return "PureLBIPAMDrift"
	}
	return ""
}

func (s *Status) addAnnouncements(c *Cluster) {
	nodes := map[string]bool{}
	for i := range c.Announcements {
		a := &c.Announcements[i]
		nodes[a.Spec.NodeName] = true
		s.Announcements.Announced += a.Status.Announced
		s.Announcements.Desired += a.Status.Desired
		if ready := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionReady); ready != nil &&
			ready.Status == metav1.ConditionFalse {
			s.add(Degraded, "PureLBNodeNotAnnouncing", "announcement/"+a.Name, "%s", ready.Message)
		}
	}
	s.Announcements.Nodes = len(nodes)
}

func (s *Status) addSessions(c *Cluster) {
	for _, p := range BGPStateOf(c).Peers {
		s.Components = append(s.Components, Component{"sessions of " + p.Name, p.Established, p.Desired, p.Message})
		if p.Message != "" {
			alert := ""
			if p.Reason == v1.ReasonSessionsDown {
				alert = "PureLBSessionDown"
			}
			s.add(Degraded, alert, "bgppeer/"+p.Name, "%s", p.Message)
		}
	}
}

func (s *Status) addServices(c *Cluster) {
	for i := range c.Services {
		svc := &c.Services[i]
		if !c.isOurs(svc) {
			continue
		}
		s.Services.Total++
		object := "service/" + controllers.KeyOf(svc)
		allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
		switch {
		case allocated == nil:
			s.Services.Waiting++
			s.add(Degraded, "PureLBServiceWithoutAddress", object, "the manager has not looked at it yet")
			continue
		case allocated.Status != metav1.ConditionTrue:
			s.Services.Waiting++
			alert := "PureLBServiceWithoutAddress"
			if allocated.Reason == v1.ReasonExhausted {
				alert = "PureLBPoolExhausted"
			}
			s.add(Degraded, alert, object, "%s: %s", allocated.Reason, allocated.Message)
		}
		condition := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAnnounced)
		if condition != nil && condition.Status != metav1.ConditionTrue && len(svc.Status.LoadBalancer.Ingress) > 0 {
			severity, alert := severityOfAnnounced(c, svc, condition.Reason)
			s.add(severity, alert, object, "%s", condition.Message)
		}
		for _, of := range []struct{ conditionType, alert string }{
			{v1.ConditionAdvertised, "PureLBServiceNotAdvertised"}, {v1.ConditionServiceReachable, "PureLBAddressUnreachable"},
		} {
			// An address that no node announces is not advertised, either: that is said above.
			if c := meta.FindStatusCondition(svc.Status.Conditions, of.conditionType); c != nil &&
				c.Status == metav1.ConditionFalse && c.Reason != v1.ReasonNotAnnounced {
				s.add(Critical, of.alert, object, "%s", c.Message)
			}
		}
	}
}

// severityOfAnnounced is how bad it is that a Service's condition v1.ConditionAnnounced is not True, for a reason, and
// the alert that is about it.
func severityOfAnnounced(c *Cluster, svc *corev1.Service, reason string) (severity Health, alert string) {
	const notAnnounced = "PureLBAddressNotAnnounced"
	switch {
	case reason == v1.ReasonNotAnnounced, !isEachAddressAnnounced(c, svc):
		return Critical, notAnnounced
	case reason == v1.ReasonHolderSilent: // the node may still answer
		return Degraded, notAnnounced
	}
	return Degraded, "PureLBNodeNotAnnouncing"
}

// isEachAddressAnnounced reports whether each address of a Service is announced somewhere.
func isEachAddressAnnounced(c *Cluster, svc *corev1.Service) bool {
	isAnnounced := map[string]bool{}
	for _, p := range announced.PlacesOf(controllers.KeyOf(svc), c.Announcements, c.Commons, c.Announcements) {
		isAnnounced[p.Address] = isAnnounced[p.Address] || p.State == v1.StateAnnounced
	}
	addresses := allocation.AddressesToAnnounce(svc)
	isNowhere := func(a netip.Addr) bool { return !isAnnounced[a.String()] }
	return len(addresses) > 0 && !slices.ContainsFunc(addresses, isNowhere)
}

// conclude says in one line how PureLB is.
func (s *Status) conclude() {
	if len(s.Unread) > 0 {
		s.Health = Unknown
		s.Summary = "PureLB's health is unknown, since " + describeUnread(s.Unread)
		if len(s.Problems) > 0 {
			s.Summary += "; of what was read: " + count(len(s.Problems), "problem")
		}
		return
	}
	s.Health = Healthy
	if len(s.Problems) == 0 {
		s.Summary = fmt.Sprintf("PureLB is healthy: %s, %d of %d announcements on %s",
			count(s.Services.Total, "Service"), s.Announcements.Announced, s.Announcements.Desired,
			count(s.Announcements.Nodes, "node"))
		return
	}
	worst := s.Problems[0]
	s.Health = worst.Severity
	s.Summary = fmt.Sprintf(
		"PureLB is %s: %s; %s: %s", strings.ToLower(string(s.Health)), count(len(s.Problems), "problem"), worst.Object,
		worst.Message,
	)
}

// describeUnread says which kinds could not be read.
func describeUnread(unread []Unread) string {
	kinds := make([]string, len(unread))
	for i := range unread {
		kinds[i] = unread[i].Kind
	}
	return strings.Join(kinds, ", ") + " cannot be read"
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// WriteText writes the status for people: what needs attention first.
func (s *Status) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	t.healthLine(s.Health, s.Summary)
	if len(s.Problems) > 0 {
		t.section("Problems")
		t.header("SEVERITY", "OBJECT", "ALERT", "MESSAGE")
		for _, p := range s.Problems {
			t.healthRow(p.Severity, string(p.Severity), p.Object, p.Alert, p.Message)
		}
	}
	if len(s.Components) > 0 {
		t.section("Components")
		t.header("COMPONENT", "READY", "MESSAGE")
		for _, c := range s.Components {
			t.row(c.Name, fmt.Sprintf("%d/%d", c.Ready, c.Desired), c.Message)
		}
	}
	if len(s.Pools) > 0 {
		t.section("Pools")
		writePools(t, s.Pools, style.Wide)
	}
	if s.Announcements.Nodes > 0 || s.Services.Total > 0 || len(s.Unread) == 0 {
		t.section("Announcements")
		t.line(fmt.Sprintf("%d of %d are made, on %s; %s, %d waiting",
			s.Announcements.Announced, s.Announcements.Desired, count(s.Announcements.Nodes, "node"),
			count(s.Services.Total, "Service"), s.Services.Waiting))
	}
	t.unread(s.Unread)
	return t.flush()
}
