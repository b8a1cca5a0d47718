package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/lab"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/test/soak/check"
	"github.com/purelb/purelb-operator/test/soak/model"
)

const (
	// askTimeout is for a request over HTTP at rest.
	askTimeout = time.Second
	// waitLog is how often the soak says what it waits for.
	waitLog = 30 * time.Second
	// Resident memory, in MiB, that programs have at most at rest.
	managerMemory, agentMemory = 150, 80
)

// rest waits until nothing is wrong with the cluster, twice in a row, watches it for a while,
// and notes where addresses are.
func (s *soak) rest(ctx context.Context) error {
	begun := time.Now()
	if err := s.replaceKilledPods(ctx); err != nil {
		return err
	}
	var found []string
	replaced := begun
	for good := 0; good < 2; {
		if err := s.violation(); err != nil && !s.carryOn {
			return err
		}
		snapshot, err := s.gather(ctx)
		if err == nil {
			found = check.Rest(snapshot)
		} else {
			found = []string{err.Error()}
		}
		if len(found) == 0 {
			good++
		} else {
			good = 0
		}
		if time.Since(begun) > restLimit {
			return fmt.Errorf("the cluster does not come to rest within %s:\n%s", restLimit, strings.Join(found, "\n"))
		}
		if time.Since(replaced) > waitLog {
			replaced = time.Now()
			s.say("    not at rest after %s: %s", time.Since(begun).Round(time.Second), strings.Join(found, "; "))
			if err := s.replaceKilledPods(ctx); err != nil {
				return err
			}
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		if good == 2 {
			s.settle(snapshot)
		}
	}
	took := time.Since(begun)
	s.slowest = max(s.slowest, took)
	s.mutex.Lock()
	s.calmSince = time.Now()
	s.watched, s.hasCut = s.mayWatch, false
	longest, remarks := s.watch.Summary(), s.watch.Remarks()
	s.mutex.Unlock()
	for _, remark := range remarks {
		s.say("    half of a bound: %s", remark)
	}
	if err := sleep(ctx, calmTime); err != nil {
		return err
	}
	if err := s.checkPrograms(ctx); err != nil {
		return err
	}
	s.say("  at rest after %s; %d Services; longest: %s", took.Round(100*time.Millisecond), len(s.world.Services), longest)
	return s.violation()
}

// replaceKilledPods replaces the pods of PureLB that the kubelet lets wait because their
// containers were ended again and again: it would wait longer each time.
func (s *soak) replaceKilledPods(ctx context.Context) error {
	err := s.deletePods(ctx, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		})
	})
	if err != nil && ctx.Err() == nil {
		s.say("    cannot replace pods: %s", firstLine(err))
		return nil
	}
	return err
}

// settle notes where addresses are, for as long as no user changes them.
func (s *soak) settle(snapshot check.Snapshot) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.virtual = map[string][]string{}
	for _, n := range snapshot.Nodes {
		s.refusing[n.Name] = n.Refusing
	}
	for _, svc := range snapshot.Services {
		s.watch.Pin(svc.Name, svc.Ingress)
		if svc.Announced.Status != "True" || svc.PolicyLocal {
			continue
		}
		for _, a := range svc.Ingress {
			if len(s.local[a.String()]) > 0 {
				s.watch.Settle(a)
				continue
			}
			for _, n := range snapshot.Nodes {
				if slices.ContainsFunc(n.Held, func(h check.Held) bool { return h.Prefix.Addr() == a }) {
					s.virtual[a.String()] = append(s.virtual[a.String()], n.Name)
				}
			}
		}
	}
	for _, svc := range snapshot.Services {
		if svc.PolicyLocal { // one sharer is enough for the address to follow endpoints
			for _, a := range svc.Ingress {
				s.watch.Unsettle(a)
				delete(s.virtual, a.String())
			}
		}
	}
}

// gather looks at the whole cluster.
func (s *soak) gather(ctx context.Context) (check.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var snapshot check.Snapshot
	nodes, services, groups := &corev1.NodeList{}, &corev1.ServiceList{}, &v1.ServiceGroupList{}
	announcements, commons, pods := &v1.AnnouncementList{}, &v1.CommonAnnouncementList{}, &corev1.PodList{}
	var errs []error
	for _, list := range []struct {
		objects   client.ObjectList
		namespace string
	}{
		{nodes, ""}, {services, soakNamespace}, {groups, systemNamespace}, {announcements, systemNamespace},
		{commons, systemNamespace}, {pods, soakNamespace},
	} {
		errs = append(errs, s.client.List(ctx, list.objects, client.InNamespace(list.namespace)))
	}
	if err := errors.Join(errs...); err != nil {
		return snapshot, err
	}
	if err := s.checkWorkloads(ctx); err != nil {
		return snapshot, err
	}
	snapshot.Announcements, snapshot.Commons = announcements.Items, commons.Items
	snapshot.Watched = s.mayWatch
	for i := range nodes.Items {
		n, err := s.gatherNode(ctx, &nodes.Items[i], pods.Items)
		if err != nil {
			return snapshot, err
		}
		snapshot.Nodes = append(snapshot.Nodes, n)
	}
	for i := range services.Items {
		snapshot.Services = append(snapshot.Services, serviceAtRest(&services.Items[i]))
	}
	for i := range groups.Items {
		if g := &groups.Items[i]; slices.Contains(model.GroupNames, g.Name) {
			snapshot.Groups = append(snapshot.Groups, groupAtRest(g))
		}
	}
	for _, svc := range s.world.Services {
		snapshot.Wanted = append(snapshot.Wanted, svc.Name)
	}
	snapshot.Asked = s.askAll(ctx, snapshot.Services)
	return snapshot, nil
}

// checkWorkloads returns what of PureLB and its servers is not rolled out.
func (s *soak) checkWorkloads(ctx context.Context) error {
	deployments, daemonSets := &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}
	agents, pods := &v1.LBNodeAgentList{}, &corev1.PodList{}
	if err := errors.Join(
		s.client.List(ctx, deployments), s.client.List(ctx, daemonSets, client.InNamespace(systemNamespace)),
		s.client.List(ctx, agents, client.InNamespace(systemNamespace)),
		s.client.List(ctx, pods, client.InNamespace(systemNamespace)),
	); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil { // no workload counts it any more
			errs = append(errs, fmt.Errorf("pod %s is terminating", p.Name))
		}
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Status.ObservedGeneration != d.Generation || d.Status.AvailableReplicas != ptr.Deref(d.Spec.Replicas, 1) ||
			d.Status.UpdatedReplicas != d.Status.Replicas {
			errs = append(
				errs,
				fmt.Errorf(
					"deployment %s: %d of %d are available, %d updated of %d", d.Name, d.Status.AvailableReplicas,
					ptr.Deref(d.Spec.Replicas, 1), d.Status.UpdatedReplicas, d.Status.Replicas,
				),
			)
		}
	}
	for i := range daemonSets.Items {
		d := &daemonSets.Items[i]
		if d.Status.ObservedGeneration != d.Generation || d.Status.NumberReady != d.Status.DesiredNumberScheduled ||
			d.Status.UpdatedNumberScheduled != d.Status.DesiredNumberScheduled {
			errs = append(
				errs, fmt.Errorf("daemonset %s: %d of %d are ready", d.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled),
			)
		}
	}
	for i := range agents.Items {
		a := &agents.Items[i]
		if a.DeletionTimestamp != nil {
			errs = append(errs, fmt.Errorf("LBNodeAgent %s is being deleted", a.Name))
		}
		if c := meta.FindStatusCondition(a.Status.Conditions, v1.ConditionReady); c == nil ||
			c.Status != metav1.ConditionTrue || c.ObservedGeneration != a.Generation {
			errs = append(errs, fmt.Errorf("LBNodeAgent %s is not Ready: %+v", a.Name, c))
		}
	}
	return errors.Join(errs...)
}

func (s *soak) gatherNode(ctx context.Context, node *corev1.Node, pods []corev1.Pod) (check.Node, error) {
	n := check.Node{Name: node.Name}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return n, fmt.Errorf("%s is NotReady: %s", node.Name, c.Message)
		}
	}
	_, n.Refusing = node.Labels[corev1.LabelNodeExcludeBalancers]
	for _, taint := range node.Spec.Taints {
		n.Refusing = n.Refusing || taint.Key == corev1.TaintNodeOutOfService
	}
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != node.Name {
			continue
		}
		if p.DeletionTimestamp != nil {
			return n, fmt.Errorf("pod %s on %s is terminating", p.Name, node.Name)
		}
		for _, c := range p.Status.Conditions {
			n.HasEndpoint = n.HasEndpoint || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
	}
	var err error
	n.Held, err = s.places(ctx, node.Name)
	return n, err
}

func serviceAtRest(svc *corev1.Service) check.Service {
	r := check.Service{
		Name: svc.Name, IsBalancer: svc.Spec.Type == corev1.ServiceTypeLoadBalancer, Port: uint16(svc.Spec.Ports[0].Port),
		PolicyLocal: svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		ShareKey:    svc.Annotations[v1.AnnotationAllowSharedIP],
		Allocated:   conditionOf(svc, v1.ConditionAllocated), Announced: conditionOf(svc, v1.ConditionAnnounced),
	}
	_, r.Branded = svc.Annotations[v1.AnnotationAllocatedBy]
	for _, f := range svc.Spec.IPFamilies {
		r.Families = append(r.Families, string(f))
	}
	if ptr.Deref(svc.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack {
		r.Families = nil // one of them is enough, and which one is not said
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			r.Ingress = append(r.Ingress, a)
		}
	}
	return r
}

func conditionOf(svc *corev1.Service, name string) check.Condition {
	c := meta.FindStatusCondition(svc.Status.Conditions, name)
	if c == nil {
		return check.Condition{}
	}
	return check.Condition{Status: string(c.Status), Reason: c.Reason, Message: c.Message}
}

func groupAtRest(g *v1.ServiceGroup) check.Group {
	r := check.Group{Name: g.Name, AllocatedIPv4: g.Status.AllocatedIPv4, AllocatedIPv6: g.Status.AllocatedIPv6}
	if c := meta.FindStatusCondition(g.Status.Conditions, v1.ConditionReady); c != nil {
		r.Ready = c.Status == metav1.ConditionTrue && c.ObservedGeneration == g.Generation
	}
	var pools []v1.AddressPool
	if g.Spec.Local != nil {
		pools = append(g.Spec.Local.V4Pools, g.Spec.Local.V6Pools...)
	}
	if g.Spec.Remote != nil {
		pools = append(g.Spec.Remote.V4Pools, g.Spec.Remote.V6Pools...)
	}
	for _, p := range pools {
		first, last, _ := strings.Cut(p.Pool, "-")
		from, err := netip.ParseAddr(first)
		to, err2 := netip.ParseAddr(last)
		if err == nil && err2 == nil {
			r.Ranges = append(r.Ranges, check.Range{First: from, Last: to})
		}
	}
	return r
}

// askAll sends a request to each address of each Service, from the clients on the nodes' link
// and behind the router.
func (s *soak) askAll(ctx context.Context, services []check.Service) map[netip.AddrPort]map[string]string {
	asked := map[netip.AddrPort]map[string]string{}
	var mutex sync.Mutex
	var group sync.WaitGroup
	limit := make(chan struct{}, 8)
	for _, svc := range services {
		for _, a := range svc.Ingress {
			if svc.Announced.Status != "True" {
				continue
			}
			for _, host := range []string{lab.Client, lab.Far} {
				at := netip.AddrPortFrom(a, svc.Port)
				group.Go(func() {
					limit <- struct{}{}
					defer func() { <-limit }()
					wrong := s.fetch(ctx, host, at)
					mutex.Lock()
					defer mutex.Unlock()
					if asked[at] == nil {
						asked[at] = map[string]string{}
					}
					asked[at][host] = wrong
				})
			}
		}
	}
	group.Wait()
	return asked
}

// fetch returns what is wrong with the answer of an address, or nothing.
func (s *soak) fetch(ctx context.Context, host string, at netip.AddrPort) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/", nil)
	if err != nil {
		return err.Error()
	}
	response, err := s.lab.HTTPClient(host, askTimeout).Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err.Error()
	case response.StatusCode != http.StatusOK || !strings.Contains(string(body), "pod="):
		return response.Status + ": " + string(body)
	}
	return ""
}

// checkPrograms checks the memory of all programs of PureLB, and that no container was ended
// by its memory limit.
func (s *soak) checkPrograms(ctx context.Context) error {
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range programs {
		rss, err := measure.ResidentMiB(p.pid)
		if err != nil {
			continue // it has ended
		}
		limit := map[string]float64{"manager": managerMemory, "agent": agentMemory}[p.role]
		if rss > limit {
			errs = append(errs, fmt.Errorf("the %s %s%s has %.0f MiB, more than %.0f", p.role, p.node, p.name, rss, limit))
		}
		s.noteLongest(p.role+" MiB", rss)
	}
	pods := &corev1.PodList{}
	if err := s.client.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t != nil && (t.Reason == "OOMKilled" || t.ExitCode == 2) {
					errs = append(errs, fmt.Errorf("pod %s was ended: %s, exit code %d", pods.Items[i].Name, t.Reason, t.ExitCode))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// noteLongest keeps the largest value of a kind for the summary.
func (s *soak) noteLongest(what string, value float64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.largest[what] = max(s.largest[what], value)
}

// collect writes the state of the cluster and of the nodes to the folder of the results.
func (s *soak) collect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var errs []error
	write := func(name, text string, err error) {
		if err != nil {
			text += "\n" + err.Error()
		}
		errs = append(errs, os.WriteFile(filepath.Join(s.out, name), []byte(text), 0o644))
	}
	for name, args := range map[string][]string{
		"objects.txt": {
			"get", "nodes,servicegroups,lbnodeagents,announcements,commonannouncements,leases,pods,daemonsets", "-n",
			systemNamespace, "-o", "wide",
		},
		"announcements.txt": {
			"get", "announcements,commonannouncements,servicegroups,lbnodeagents", "-n", systemNamespace, "-o", "yaml",
		},
		"services.txt":  {"describe", "services", "-n", soakNamespace},
		"services.yaml": {"get", "services,endpointslices", "-n", soakNamespace, "-o", "yaml"},
		"events.txt":    {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"nodes.txt":     {"get", "nodes", "-o", "yaml"},
	} {
		text, err := s.kubectlOutput(ctx, args...)
		write(name, text, err)
	}
	for _, host := range append(slices.Clone(model.Nodes), lab.Client, lab.Router, lab.Far) {
		for _, what := range []string{"address", "neighbour", "route"} {
			text, err := s.lab.Exec(ctx, host, "ip", what)
			write(host+"-"+what+".txt", text, err)
		}
	}
	if capture, err := s.lab.StartCapture(ctx, lab.Fabric, "arp or icmp6"); err == nil {
		_ = sleep(ctx, 5*time.Second)
		lines, _ := capture.Stop()
		write("capture.txt", strings.Join(lines, "\n"), nil)
	}
	errs = append(errs, exec.CommandContext(ctx, "cp", "-r", s.lab.Logs(), filepath.Join(s.out, "lab-logs")).Run())
	return errors.Join(errs...)
}
