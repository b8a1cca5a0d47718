package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/echo"
	"github.com/purelb/purelb-operator/test/lab"
)

// The lab keeps 10.77.0.100-254 free on the nodes' link. They are cut into blocks, and
// each space has one. The blocks are used in turn, so addresses come again only long after
// the space that had them is gone.
const (
	firstFreeIPv4  = 100
	blockSize      = 8
	numberOfBlocks = 19
)

// spaceLabel marks namespaces and ServiceGroups of spaces, with the namespace as its value.
const spaceLabel = "e2e-space"

// spacesMade is how many spaces the suite has made.
var spacesMade int

// space is what one spec has of its own: a namespace, addresses, ServiceGroups and echo
// servers. When the spec ends they are removed.
type space struct {
	// namespace has the spec's Services and servers.
	namespace string
	// block says which addresses are the spec's: below numberOfBlocks.
	block int
	// hasEcho is true if the echo servers have been started.
	hasEcho bool
	// sentinels is how often waitForManager was called.
	sentinels int
}

// newSpace makes a space for a spec, and removes it when the spec ends.
func newSpace(ctx context.Context) *space {
	GinkgoHelper()
	s := &space{}
	Eventually(func() error {
		spacesMade++ // an earlier run in the same lab may have left a namespace that is ending
		s.namespace, s.block = fmt.Sprintf("e2e-%d", spacesMade), spacesMade%numberOfBlocks
		return kubeClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: s.namespace, Labels: map[string]string{spaceLabel: s.namespace},
		}})
	}).WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		err := s.remove(ctx)
		if err != nil {
			collectEvidence(ctx, CurrentSpecReport().FullText()+" cleanup")
		}
		Expect(err).NotTo(HaveOccurred(), "what the spec leaves behind")
	}, NodeTimeout(spaceRemovalLimit+evidenceLimit))
	return s
}

// v4 returns an IPv4 address of the space on the nodes' link; i is below blockSize.
func (s *space) v4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, 0, byte(firstFreeIPv4 + s.block*blockSize + i)})
}

// v6 returns an IPv6 address of the space on the nodes' link; i is below blockSize.
func (s *space) v6(i int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:77::e2e:%x:10%x", s.block, i))
}

// v4Range returns a range of the space's IPv4 addresses on the nodes' link.
func (s *space) v4Range(first, last int) v1.AddressPool {
	return v1.AddressPool{Subnet: "10.77.0.0/24", Pool: fmt.Sprintf("%s-%s", s.v4(first), s.v4(last))}
}

// v6Range returns a range of the space's IPv6 addresses on the nodes' link.
func (s *space) v6Range(first, last int) v1.AddressPool {
	return v1.AddressPool{Subnet: "fd00:77::/64", Pool: fmt.Sprintf("%s-%s", s.v6(first), s.v6(last))}
}

// virtualV4 returns the space's IPv4 subnet that no node is in.
func (s *space) virtualV4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 28, byte(s.block), 0}), 24)
}

// virtualV6 returns the space's IPv6 subnet that no node is in.
func (s *space) virtualV6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fc00:370:155:%x::/64", s.block))
}

// manyV6 returns the range for specs with many addresses on the nodes' link.
func (s *space) manyV6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:77::e2f:0:%x:0/112", s.block))
}

// owns reports whether an address is one of the space's.
func (s *space) owns(addr netip.Addr) bool {
	return !addr.Less(s.v4(0)) && !s.v4(blockSize-1).Less(addr) && addr.Is4() ||
		!addr.Less(s.v6(0)) && !s.v6(blockSize-1).Less(addr) && addr.Is6() ||
		s.virtualV4().Contains(addr) || s.virtualV6().Contains(addr) || s.manyV6().Contains(addr)
}

// name returns a name of the space for an object that is not in the space's namespace.
func (s *space) name(what string) string { return s.namespace + "-" + what }

// createGroup creates a ServiceGroup, and returns its name. It is removed with the space.
func (s *space) createGroup(ctx context.Context, what string, spec v1.ServiceGroupSpec) string {
	GinkgoHelper()
	sg := &v1.ServiceGroup{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.name(what), Namespace: purelbNamespace, Labels: map[string]string{spaceLabel: s.namespace},
		},
		Spec: spec,
	}
	// After a spec that cut a node off, that node's manager restarts, and the API server may
	// still call its webhook.
	Eventually(func() error { return kubeClient.Create(ctx, sg) }).
		WithContext(ctx).WithTimeout(waitLimit).WithPolling(pollInterval).Should(Succeed())
	return sg.Name
}

// createLocalGroup creates a ServiceGroup with Local addresses, and returns its name.
func (s *space) createLocalGroup(ctx context.Context, what string, set v1.PoolSet) string {
	GinkgoHelper()
	return s.createGroup(ctx, what, v1.ServiceGroupSpec{Local: &v1.LocalPools{PoolSet: set}})
}

// localGroup creates a ServiceGroup with four Local addresses of each family, and returns
// its name.
func (s *space) localGroup(ctx context.Context) string {
	GinkgoHelper()
	return s.createLocalGroup(ctx, "local", v1.PoolSet{
		V4Pools: []v1.AddressPool{s.v4Range(0, 3)}, V6Pools: []v1.AddressPool{s.v6Range(0, 3)},
	})
}

// Which addresses of the virtual subnets virtualGroup takes.
func (s *space) firstVirtualV4() netip.Addr {
	b := s.virtualV4().Addr().As4()
	b[3] = 225
	return netip.AddrFrom4(b)
}

func (s *space) firstVirtualV6() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fc00:370:155:%x:8000::", s.block))
}

// virtualGroup creates a ServiceGroup with some Virtual addresses of each family, which have
// the mask of a host, and returns its name.
func (s *space) virtualGroup(ctx context.Context) string {
	GinkgoHelper()
	first := s.firstVirtualV4()
	return s.createLocalGroup(ctx, "virtual", v1.PoolSet{
		V4Pools: []v1.AddressPool{
			{Subnet: s.virtualV4().String(), Pool: fmt.Sprintf("%s-%s", first, first.Next().Next().Next()), Aggregation: "/32"},
		},
		V6Pools: []v1.AddressPool{
			{Subnet: s.virtualV6().String(), Pool: s.firstVirtualV6().String() + "/126", Aggregation: "/128"},
		},
	})
}

// createService creates a Service of the space's echo servers, which it starts if need be.
// The Service asks for addresses of both families of a ServiceGroup.
func (s *space) createService(
	ctx context.Context, name, group string, change ...func(*corev1.Service),
) *corev1.Service {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.namespace,
			Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeLoadBalancer,
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
			Selector:       map[string]string{"app": "echo"},
			Ports:          []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(echoPort)}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	if !s.hasEcho && svc.Spec.Selector["app"] == "echo" {
		s.hasEcho = true
		Expect(kubeClient.Create(ctx, echo.Deployment(s.namespace, lab.EchoImage))).To(Succeed())
	}
	Expect(kubeClient.Create(ctx, svc)).To(Succeed())
	return svc
}

// changeServers changes the pods of the space's echo servers.
func (s *space) changeServers(ctx context.Context, change func(*corev1.PodSpec)) {
	GinkgoHelper()
	d := echo.Deployment(s.namespace, lab.EchoImage)
	Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
	patch := client.MergeFrom(d.DeepCopy())
	change(&d.Spec.Template.Spec)
	Expect(kubeClient.Patch(ctx, d, patch)).To(Succeed())
}

// waitForManager waits until the manager has handled all that was written before: it serves a
// Service that is created now. The space's last two IPv4 addresses are for this.
func (s *space) waitForManager(ctx context.Context) {
	GinkgoHelper()
	s.sentinels++
	group := s.createLocalGroup(ctx, fmt.Sprintf("sentinel-%d", s.sentinels), v1.PoolSet{
		V4Pools: []v1.AddressPool{s.v4Range(blockSize-s.sentinels, blockSize-s.sentinels)},
	})
	svc := s.createService(ctx, fmt.Sprintf("sentinel-%d", s.sentinels), group, singleStack)
	waitForAddresses(ctx, svc, 1)
	waitUntilAnnounced(ctx, svc)
}

// kubectl runs kubectl in the namespace of the space.
func (s *space) kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	return kubectl(ctx, append([]string{"-n", s.namespace}, args...)...)
}

// startServers starts servers of a name of their own, and waits until they are ready. Their
// pods have the label app with that name.
func (s *space) startServers(ctx context.Context, name string, replicas int32, change ...func(*corev1.PodSpec)) {
	GinkgoHelper()
	labels := map[string]string{"app": name}
	d := echo.Deployment(s.namespace, lab.EchoImage)
	d.Name, d.Spec.Replicas = name, ptr.To(replicas)
	d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = labels, labels
	d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels = labels
	for _, f := range change {
		f(&d.Spec.Template.Spec)
	}
	Expect(kubeClient.Create(ctx, d)).To(Succeed())
	s.kubectl(ctx, "rollout", "status", "deployment/"+name, "--timeout=180s")
}

// servesUntilRoutesFollow lets servers serve on for a while after they are told to end.
func servesUntilRoutesFollow(pod *corev1.PodSpec) {
	pod.TerminationGracePeriodSeconds = ptr.To[int64](10)
	pod.Containers[0].Lifecycle = &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}},
	}
}

// withServers makes a Service one of the servers that startServers starts by this name.
func withServers(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Selector = map[string]string{"app": name} }
}

// waitForServers waits until each echo server of a namespace answers each node, by each of
// its addresses. Pods are ready before their network is: a node's bridge for pods is made with
// its first pod, and solicits no neighbour by IPv6 until the kernel has looked for duplicates
// of the bridge's own addresses.
func waitForServers(ctx context.Context, namespace string) {
	GinkgoHelper()
	kubectl(ctx, "-n", namespace, "rollout", "status", "deployment/echo", "--timeout=180s")
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(kubeClient.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{"app": "echo"})).
			To(Succeed())
		answering := 0
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
				continue
			}
			g.Expect(pod.Status.PodIPs).To(HaveLen(2), "addresses of pod %s", pod.Name)
			for _, ip := range pod.Status.PodIPs {
				for _, node := range nodeNames() {
					at := netip.AddrPortFrom(netip.MustParseAddr(ip.IP), echoPort)
					page, err := fetchPort(ctx, node, at)
					g.Expect(err).NotTo(HaveOccurred(), "%s from %s", at, node)
					g.Expect(podOfPage(page)).To(Equal(pod.Name))
				}
			}
			answering++
		}
		g.Expect(answering).To(Equal(3))
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
}

// spaceRemovalLimit bounds how long a space may take to go.
const spaceRemovalLimit = 3 * waitLimit

// remove deletes what the space has, and waits until its addresses are withdrawn everywhere. The
// namespace may end later: nothing in it concerns PureLB any more.
func (s *space) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, spaceRemovalLimit)
	defer cancel()
	return errors.Join(
		pollUntil(ctx, "the Services of "+s.namespace+" are deleted", s.deleteServices),
		pollUntil(ctx, "the addresses of "+s.namespace+" are withdrawn", s.checkWithdrawn),
		pollUntil(ctx, "the ServiceGroups of "+s.namespace+" are deleted", s.deleteGroups),
		client.IgnoreNotFound(kubeClient.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})),
	)
}

// pollUntil tries until there is no error, and returns the last error when it gives up.
func pollUntil(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // what was wrong before the time was over says more
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, last)
		case <-time.After(pollInterval):
		}
	}
}

// deleteServices deletes the Services of the space, and returns an error while there are any.
func (s *space) deleteServices(ctx context.Context) error {
	list := &corev1.ServiceList{}
	if err := kubeClient.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			errs = append(errs, client.IgnoreNotFound(kubeClient.Delete(ctx, &list.Items[i])))
		}
	}
	if len(list.Items) > 0 {
		errs = append(errs, fmt.Errorf("%d Services are left", len(list.Items)))
	}
	return errors.Join(errs...)
}

// deleteGroups deletes the ServiceGroups of the space, and returns an error while there are any.
func (s *space) deleteGroups(ctx context.Context) error {
	list := &v1.ServiceGroupList{}
	if err := kubeClient.List(
		ctx, list, client.InNamespace(purelbNamespace), client.MatchingLabels{spaceLabel: s.namespace},
	); err != nil {
		return ignoreNotInstalled(err)
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, client.IgnoreNotFound(kubeClient.Delete(ctx, &list.Items[i])))
	}
	if len(list.Items) > 0 {
		errs = append(errs, fmt.Errorf("%d ServiceGroups are left", len(list.Items)))
	}
	return errors.Join(errs...)
}

// ignoreNotInstalled returns no error where the API server does not know PureLB's kinds, as
// PureLB is not installed.
func ignoreNotInstalled(err error) error {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

// checkWithdrawn returns an error while a node has an address of the space, or while an
// Announcement or a CommonAnnouncement names one.
func (s *space) checkWithdrawn(ctx context.Context) error {
	var left []string
	for _, node := range nodeNames() {
		addrs, err := testLab.Addresses(ctx, node)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if s.owns(a.Prefix.Addr()) {
				left = append(left, node+"/"+a.Link+" has "+a.Prefix.String())
			}
		}
	}
	announced, err := s.findAnnounced(ctx)
	if err != nil {
		return err
	}
	if left = append(left, announced...); len(left) > 0 {
		return errors.New(strings.Join(left, "; "))
	}
	return nil
}

// findAnnounced returns what Announcements and CommonAnnouncements say of the space.
func (s *space) findAnnounced(ctx context.Context) ([]string, error) {
	isOurs := func(e v1.AnnouncedAddress) bool {
		addr, err := netip.ParseAddr(e.Address)
		return strings.HasPrefix(e.ServiceGroup, s.namespace+"-") || err == nil && s.owns(addr) ||
			slices.ContainsFunc(e.Services, func(svc string) bool { return strings.HasPrefix(svc, s.namespace+"/") })
	}
	var found []string
	list := &v1.AnnouncementList{}
	if err := kubeClient.List(ctx, list, client.InNamespace(purelbNamespace)); err != nil {
		return nil, ignoreNotInstalled(err)
	}
	for _, a := range list.Items {
		for _, e := range a.Spec.Addresses {
			if isOurs(e) {
				found = append(found, fmt.Sprintf("Announcement %s has %s", a.Name, e.Address))
			}
		}
		for _, st := range a.Status.Addresses {
			if addr, err := netip.ParseAddr(st.Address); err == nil && s.owns(addr) {
				found = append(found, fmt.Sprintf("the status of Announcement %s has %s", a.Name, st.Address))
			}
		}
	}
	common := &v1.CommonAnnouncementList{}
	if err := kubeClient.List(ctx, common, client.InNamespace(purelbNamespace)); err != nil {
		return nil, ignoreNotInstalled(err)
	}
	for _, a := range common.Items {
		for _, e := range a.Spec.Addresses {
			if isOurs(e) {
				found = append(found, fmt.Sprintf("CommonAnnouncement %s has %s", a.Name, e.Address))
			}
		}
	}
	return found, nil
}

// removeSpaces removes what a run that did not end properly has left in the lab, and waits
// until it is gone.
func removeSpaces(ctx context.Context) {
	GinkgoHelper()
	namespaces := &corev1.NamespaceList{}
	Expect(kubeClient.List(ctx, namespaces, client.HasLabels{spaceLabel})).To(Succeed())
	groups := &v1.ServiceGroupList{}
	Expect(kubeClient.List(ctx, groups, client.InNamespace(purelbNamespace), client.HasLabels{spaceLabel})).To(Succeed())
	left := map[string]bool{}
	for _, n := range namespaces.Items {
		left[n.Name] = true
	}
	for _, g := range groups.Items {
		left[g.Labels[spaceLabel]] = true
	}
	for name := range left {
		s := &space{namespace: name}
		if _, err := fmt.Sscanf(name, "e2e-%d", &s.block); err != nil {
			Fail("the namespace " + name + " has the label of the tests: " + err.Error())
		}
		s.block %= numberOfBlocks
		Expect(s.remove(ctx)).To(Succeed(), "what an earlier run has left")
	}
}
