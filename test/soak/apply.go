package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/soak/model"
)

// apply does an action. Faults begin, and end by themselves; edits are tried until the API
// server takes or refuses them.
func (s *soak) apply(ctx context.Context, a model.Action) error {
	switch a.Kind {
	case model.CutLink:
		return s.hold(
			ctx, a, func() error { return s.lab.CutLink(ctx, a.Node) },
			func(ctx context.Context) error { return s.lab.HealLink(ctx, a.Node) },
		)
	case model.UnplugPort:
		return s.hold(
			ctx, a, func() error { return s.lab.UnplugPort(ctx, a.Node) },
			func(ctx context.Context) error { return s.lab.PlugPort(ctx, a.Node) },
		)
	case model.CutAPI:
		return s.hold(
			ctx, a, func() error { return s.lab.CutAPI(ctx, a.Node) },
			func(ctx context.Context) error { return s.lab.HealAPI(ctx, a.Node) },
		)
	case model.PowerOff:
		return s.hold(
			ctx, a, func() error { return s.lab.PowerOff(ctx, a.Node) },
			func(ctx context.Context) error { return s.lab.PowerOn(ctx, a.Node) },
		)
	case model.StopAPI:
		return s.hold(
			ctx, a, func() error { return s.lab.StopControlPlane(ctx) },
			func(ctx context.Context) error { return s.lab.StartControlPlane(ctx) },
		)
	case model.FreezeAgent:
		return s.freeze(ctx, a, "^/purelb agent")
	case model.FreezeManager:
		return s.freeze(ctx, a, "^/purelb manager")
	case model.FreezeKubelet:
		return s.freeze(ctx, a, "kubelet --")
	case model.ReadOnlyDisk:
		return s.hold(
			ctx, a, func() error { return s.setImmutable(ctx, a.Node, "+i") },
			func(ctx context.Context) error { return s.setImmutable(ctx, a.Node, "-i") },
		)
	case model.Load:
		s.background.Go(func() {
			// It ends by its time.
			_, _ = s.lab.Exec(
				ctx, a.Node, "timeout", fmt.Sprintf("%.1f", a.Hold.Seconds()), "nice", "-n", "5", "sh", "-c", "while :; do :; done",
			)
		})
	case model.KillAgent:
		s.kill(ctx, a.Node, "^/purelb agent")
	case model.KillManager:
		s.noteManagers()
		s.kill(ctx, a.Node, "^/purelb manager")
	case model.KillLeader:
		s.noteManagers()
		s.killLeader(ctx)
	case model.KillKubelet:
		s.kill(ctx, a.Node, "kubelet --")
	case model.KillContainerd:
		s.kill(ctx, a.Node, "containerd --")
	case model.StripAddress:
		s.strip(ctx, a)
	case model.DeleteDummy:
		// There is none if the node has no Virtual addresses.
		_, _ = s.lab.Exec(ctx, a.Node, "ip", "link", "delete", "kube-lb0")
	default:
		return s.edit(ctx, a)
	}
	return nil
}

// hold begins a fault, and ends it after its time, or when the round ends.
func (s *soak) hold(ctx context.Context, a model.Action, begin func() error, end func(context.Context) error) error {
	name := string(a.Kind) + " " + a.Node
	s.setFault(name, faultTime{kind: a.Kind, node: a.Node})
	if err := begin(); err != nil {
		return err
	}
	stop := s.endFaults
	s.background.Go(func() {
		select {
		case <-stop:
		case <-ctx.Done():
		case <-time.After(a.Hold):
		}
		if err := end(context.WithoutCancel(ctx)); err != nil {
			s.say("  END OF %s: %s", name, err)
		}
		s.setFault(name, faultTime{kind: a.Kind, node: a.Node, ended: time.Now()})
		s.say("    end of %s", name)
	})
	return nil
}

func (s *soak) setFault(name string, f faultTime) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.faults[name] = f
}

// noteManagers says that a manager was ended a moment ago.
func (s *soak) noteManagers() {
	s.setFault("managers", faultTime{kind: model.KillManager, ended: time.Now()})
}

// freeze stops processes of a node, and lets them go on.
func (s *soak) freeze(ctx context.Context, a model.Action, pattern string) error {
	signal := func(ctx context.Context, name string) {
		// There may be no such process, and no such node.
		_, _ = s.lab.NodeExec(ctx, a.Node, "pkill", name, "-f", pattern)
	}
	return s.hold(ctx, a,
		func() error { signal(ctx, "-STOP"); return nil },
		func(ctx context.Context) error { signal(ctx, "-CONT"); return nil })
}

func (s *soak) kill(ctx context.Context, node, pattern string) {
	_, _ = s.lab.NodeExec(ctx, node, "pkill", "-9", "-f", pattern) // there may be none
}

func (s *soak) killLeader(ctx context.Context) {
	lease, pod := &coordinationv1.Lease{}, &corev1.Pod{}
	if s.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "manager.purelb.io"}, lease) != nil {
		return
	}
	name, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	if s.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: name}, pod) == nil {
		s.kill(ctx, pod.Spec.NodeName, "^/purelb manager")
	}
}

// setImmutable keeps the agent of a node from writing its checkpoint, or lets it.
func (s *soak) setImmutable(ctx context.Context, node, attribute string) error {
	folder := s.lab.NodeFiles(node, "/var/lib/purelb")
	_, err := s.lab.Exec(ctx, "fabric", "chattr", attribute, folder)
	return err
}

// strip takes an address off the interface of each node that has it.
func (s *soak) strip(ctx context.Context, a model.Action) {
	n, err := strconv.Atoi(a.Value)
	if err != nil {
		return
	}
	node := model.Nodes[n%len(model.Nodes)]
	held, err := s.held(ctx, node)
	if err != nil || len(held) == 0 {
		return
	}
	slices.SortFunc(held, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	h := held[n%len(held)]
	for _, link := range []string{"eth0", "kube-lb0"} {
		_, _ = s.lab.Exec(ctx, node, "ip", "address", "delete", h.String(), "dev", link)
	}
	s.say("    stripped %s from %s", h, node)
}

// edit does what a user or an administrator does. A refusal is an answer, too.
func (s *soak) edit(ctx context.Context, a model.Action) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := s.editOnce(ctx, a)
		switch {
		case err == nil:
			return nil
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || strings.Contains(err.Error(), "denied the request") ||
			strings.Contains(err.Error(), "is forbidden"):
			s.say("    refused: %s", firstLine(err))
			s.mutex.Lock()
			s.refused[string(a.Kind)]++
			s.mutex.Unlock()
			return nil
		case time.Now().After(deadline):
			return err
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line[:min(len(line), 400)]
}

// editOnce does what a user or an administrator does.
func (s *soak) editOnce(ctx context.Context, a model.Action) error {
	switch a.Kind {
	case model.CreateService, model.DeleteService, model.RecreateService, model.UpdateService:
		return s.editService(ctx, a)
	case model.Exclude, model.Include, model.OutOfService, model.InService, model.Cordon, model.Uncordon,
		model.SelectSecond:
		return s.editNode(ctx, a)
	case model.RollAgents, model.RollManagers, model.Upgrade, model.DeleteAgentPod, model.DeleteManagerPod:
		return s.replacePods(ctx, a)
	case model.ResizeGroup, model.MoveGroup:
		return s.applyGroup(ctx, a.Group)
	case model.EditAgent:
		return s.kubectl(
			ctx, "-n", systemNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p", `{"spec":`+a.Value+`}`,
		)
	case model.SecondAgent:
		second := &v1.LBNodeAgent{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "second"},
			Spec:       v1.LBNodeAgentSpec{NodeSelector: map[string]string{"soak/second": "true"}},
		}
		err := s.client.Create(ctx, second)
		if apierrors.IsAlreadyExists(err) {
			if err := s.client.Get(ctx, client.ObjectKeyFromObject(second), second); err == nil &&
				second.DeletionTimestamp == nil {
				return nil
			}
		}
		return err // one that is still being deleted: again
	case model.NoSecondAgent:
		return s.kubectl(ctx, "-n", systemNamespace, "delete", "lbnodeagent", "second", "--wait=false", "--ignore-not-found")
	case model.ScalePods:
		return s.kubectl(ctx, "-n", soakNamespace, "scale", "deployment/echo", "--replicas="+a.Value)
	case model.RollPods:
		return s.kubectl(ctx, "-n", soakNamespace, "rollout", "restart", "deployment/echo")
	case model.DeleteAnnouncement:
		return client.IgnoreNotFound(s.client.Delete(
			ctx, &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: a.Node}},
		))
	}
	return fmt.Errorf("nothing does %s", a.Kind)
}

// editService creates, changes or deletes a Service.
func (s *soak) editService(ctx context.Context, a model.Action) error {
	switch a.Kind {
	case model.CreateService:
		return client.IgnoreAlreadyExists(s.client.Create(ctx, serviceOf(a.Service)))
	case model.DeleteService:
		s.release(a.Service.Name, true)
		return client.IgnoreNotFound(s.client.Delete(ctx, serviceOf(a.Service)))
	case model.RecreateService:
		s.release(a.Service.Name, true)
		if err := client.IgnoreNotFound(s.client.Delete(ctx, serviceOf(a.Service))); err != nil {
			return err
		}
		return client.IgnoreAlreadyExists(s.client.Create(ctx, serviceOf(a.Service)))
	case model.UpdateService:
		return s.updateService(ctx, a)
	}
	return fmt.Errorf("nothing does %s", a.Kind)
}

// editNode changes labels and taints of a node, or drains it.
func (s *soak) editNode(ctx context.Context, a model.Action) error {
	switch a.Kind {
	case model.SelectSecond:
		s.disturbNode(a.Node)
		return s.kubectl(ctx, "label", "--overwrite", "node", a.Node, "soak/second="+a.Value)
	case model.Exclude:
		s.disturbNode(a.Node)
		return s.kubectl(ctx, "label", "--overwrite", "node", a.Node, corev1.LabelNodeExcludeBalancers+"=")
	case model.Include:
		return s.kubectl(ctx, "label", "node", a.Node, corev1.LabelNodeExcludeBalancers+"-")
	case model.OutOfService:
		s.disturbNode(a.Node)
		return s.kubectl(ctx, "taint", "--overwrite", "node", a.Node, corev1.TaintNodeOutOfService+"=soak:NoSchedule")
	case model.InService:
		err := s.kubectl(ctx, "taint", "node", a.Node, corev1.TaintNodeOutOfService+"-")
		if err != nil && strings.Contains(err.Error(), "not found") {
			return nil // a try before has removed it
		}
		return err
	case model.Cordon:
		if err := s.kubectl(ctx, "cordon", a.Node); err != nil {
			return err
		}
		s.background.Go(func() {
			// What a budget or a node that is away keeps from being evicted stays.
			_ = s.kubectl(ctx, "drain", a.Node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=20s")
		})
		return nil
	case model.Uncordon:
		return s.kubectl(ctx, "uncordon", a.Node)
	}
	return fmt.Errorf("nothing does %s", a.Kind)
}

// replacePods replaces pods of PureLB.
func (s *soak) replacePods(ctx context.Context, a model.Action) error {
	switch a.Kind {
	case model.RollAgents:
		return s.kubectl(ctx, "-n", systemNamespace, "rollout", "restart", "daemonset/purelb-agent-default")
	case model.RollManagers:
		s.noteManagers()
		return s.kubectl(ctx, "-n", systemNamespace, "rollout", "restart", "deployment/purelb-manager")
	case model.Upgrade:
		s.noteManagers()
		s.upgraded++
		return s.kubectl(
			ctx, "-n", systemNamespace, "set", "image", "deployment/purelb-manager", "manager="+images[s.upgraded%len(images)],
		)
	case model.DeleteAgentPod, model.DeleteManagerPod:
		prefix := map[model.Kind]string{
			model.DeleteAgentPod: "purelb-agent-", model.DeleteManagerPod: "purelb-manager-",
		}[a.Kind]
		if a.Kind == model.DeleteManagerPod {
			s.noteManagers()
		}
		return s.deletePods(
			ctx, func(p *corev1.Pod) bool { return p.Spec.NodeName == a.Node && strings.HasPrefix(p.Name, prefix) },
		)
	}
	return fmt.Errorf("nothing does %s", a.Kind)
}

// disturbNode says that a node may withdraw what it has.
func (s *soak) disturbNode(node string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for a, nodes := range s.virtual {
		s.virtual[a] = slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == node })
	}
}

// release says that a user's edit may take a Service's addresses away.
func (s *soak) release(service string, deleted bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, text := range s.owned[service] {
		s.watch.Unsettle(netip.MustParseAddr(text))
		delete(s.virtual, text)
	}
	if deleted {
		s.watch.Removed(service)
	} else {
		s.watch.Edited(service)
	}
}

// updateService writes a Service as its user wants it now. Changes of the port, the sharing
// key and the traffic policy take no address away.
func (s *soak) updateService(ctx context.Context, a model.Action) error {
	svc := &corev1.Service{}
	want := serviceOf(a.Service)
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(want), svc); err != nil {
		return err
	}
	keeps := strings.Contains(a.Value, "port") || strings.Contains(a.Value, "sharing")
	if !keeps {
		s.release(a.Service.Name, false)
	}
	for _, key := range []string{
		v1.AnnotationServiceGroup, v1.AnnotationAddresses, v1.AnnotationAllowSharedIP, v1.AnnotationAllowLocal,
	} {
		if value, ok := want.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, key, value)
		} else {
			delete(svc.Annotations, key)
		}
	}
	svc.Spec.Type, svc.Spec.IPFamilyPolicy = want.Spec.Type, want.Spec.IPFamilyPolicy
	if len(want.Spec.IPFamilies) != len(svc.Spec.IPFamilies) {
		svc.Spec.IPFamilies = want.Spec.IPFamilies
		svc.Spec.ClusterIPs = svc.Spec.ClusterIPs[:min(len(svc.Spec.ClusterIPs), len(want.Spec.IPFamilies))]
	}
	svc.Spec.ExternalTrafficPolicy = want.Spec.ExternalTrafficPolicy
	if want.Spec.Type == corev1.ServiceTypeClusterIP {
		svc.Spec.AllocateLoadBalancerNodePorts, svc.Spec.HealthCheckNodePort = nil, 0
		svc.Spec.ExternalTrafficPolicy = ""
	}
	if want.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		svc.Spec.HealthCheckNodePort = 0
	}
	if svc.Spec.Ports[0].Port != want.Spec.Ports[0].Port {
		svc.Spec.Ports = want.Spec.Ports
	}
	return s.client.Update(ctx, svc)
}

func serviceOf(m model.Service) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: soakNamespace, Name: m.Name, Annotations: map[string]string{v1.AnnotationServiceGroup: m.Group},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceType(m.Type), IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicy(m.Policy)),
			Selector: map[string]string{"app": "echo"},
			Ports:    []corev1.ServicePort{{Port: m.Port, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range m.Families {
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPFamily(f))
	}
	if m.Type == "LoadBalancer" {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		if m.Local {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if m.Local {
		svc.Annotations[v1.AnnotationAllowLocal] = "true"
	}
	if m.ShareKey != "" {
		svc.Annotations[v1.AnnotationAllowSharedIP] = m.ShareKey
	}
	if m.Request != "" {
		svc.Annotations[v1.AnnotationAddresses] = m.Request
	}
	return svc
}

// applyGroup creates or updates a ServiceGroup.
func (s *soak) applyGroup(ctx context.Context, g model.Group) error {
	pool := func(v6 bool) v1.AddressPool {
		v4Prefix, v6Prefix := model.Prefixes(g.Name)
		subnet := v4Prefix + "0/24"
		if v6 {
			subnet = v6Prefix + "/64"
		}
		p := v1.AddressPool{
			Subnet: subnet, Pool: model.AddressAt(g.Name, g.First, v6) + "-" + model.AddressAt(g.Name, g.First+g.Size-1, v6),
		}
		if g.Remote || g.Name == "other" {
			p.Aggregation = map[bool]v1.Aggregation{false: "/32", true: "/128"}[v6]
		}
		return p
	}
	set := v1.PoolSet{V4Pools: []v1.AddressPool{pool(false)}, V6Pools: []v1.AddressPool{pool(true)}}
	group := &v1.ServiceGroup{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: g.Name}, group)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	group.Namespace, group.Name = systemNamespace, g.Name
	delete(group.Annotations, v1.AnnotationAllowOrphans)
	if g.Orphans {
		metav1.SetMetaDataAnnotation(&group.ObjectMeta, v1.AnnotationAllowOrphans, "true")
	}
	if g.Remote {
		group.Spec.Remote = &v1.RemotePools{PoolSet: set}
	} else {
		group.Spec.Local = &v1.LocalPools{PoolSet: set}
	}
	if err != nil {
		return s.client.Create(ctx, group)
	}
	return s.client.Update(ctx, group)
}

func (s *soak) deletePods(ctx context.Context, which func(*corev1.Pod) bool) error {
	pods := &corev1.PodList{}
	if err := s.client.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if which(&pods.Items[i]) {
			errs = append(errs, client.IgnoreNotFound(s.client.Delete(ctx, &pods.Items[i])))
		}
	}
	return errors.Join(errs...)
}

// logFolder is where a node keeps the logs of its containers.
func (s *soak) logFolder(node string) string {
	return filepath.Join(s.lab.NodeFiles(node, "/var/log/pods"))
}
