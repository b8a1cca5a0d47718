package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

const netboxGroupFile = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: nb, namespace: purelb-system}
spec: {netbox: {url: 'https://netbox.example', tokenSecretRef: {name: netbox, key: token},
  v4: {prefixes: [192.168.1.128/26]}, aggregation: default}}
`

const netboxGroupStatus = `
status:
  type: netbox
  conditions:
  - {type: Ready, status: "True", reason: Accepted, message: ok, lastTransitionTime: "2026-01-02T03:04:05Z"}
  - {type: Reachable, status: "False", reason: IPAMRefused, message: NetBox refuses the token,
      lastTransitionTime: "2026-01-02T03:04:05Z"}
  - {type: Drift, status: "True", reason: RecordsDiffer, message: 40 records are of no Service,
      lastTransitionTime: "2026-01-02T03:04:05Z"}
  pools: [{range: 192.168.1.128-192.168.1.191, subnet: 192.168.1.128/26, recorded: 60, allocated: 1, capacity: 62}]
`

const netboxService = `
apiVersion: v1
kind: Service
metadata: {name: nbweb, namespace: shop, creationTimestamp: "2026-01-02T03:04:05Z",
  annotations: {purelb.io/service-group: nb}}
spec: {type: LoadBalancer, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, externalTrafficPolicy: Cluster,
  ports: [{name: http, protocol: TCP, port: 80}]}
status:
  loadBalancer: {ingress: [{ip: '192.168.1.130', ipMode: VIP}]}
  conditions:
  - {type: purelb.io/Allocated, status: "True", reason: Allocated, message: "192.168.1.130 from pool nb",
      lastTransitionTime: "2026-01-02T03:04:05Z"}
  - {type: purelb.io/Announced, status: "True", reason: Announced, message: "all announcements are made",
      lastTransitionTime: "2026-01-02T03:04:05Z"}
  - {type: purelb.io/AllocationRecord, status: "True", reason: Recorded,
      message: "192.168.1.130 group=nb type=netbox key=", lastTransitionTime: "2026-01-02T03:04:05Z"}
`

// withNetbox adds a ServiceGroup that takes addresses from NetBox, and a Service that has one.
func withNetbox(t *testing.T) func(*Objects) {
	t.Helper()
	var sg v1.ServiceGroup
	var svc corev1.Service
	for text, into := range map[string]any{netboxGroupFile + netboxGroupStatus: &sg, netboxService: &svc} {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	return func(o *Objects) {
		o.ServiceGroups = append(o.ServiceGroups, sg)
		o.Services = append(o.Services[:3:3], svc)
		o.BGPPeers = nil
	}
}

func textOf(t *testing.T, result interface {
	WriteText(w io.Writer, style Style) error
}) string {
	t.Helper()
	var out bytes.Buffer
	if err := result.WriteText(&out, Style{Wide: true}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// forget takes a kind out of what was read.
func forget(o *Objects, kind string) {
	o.Unread = append(o.Unread, Unread{kind, kind + " is forbidden"})
	switch kind {
	case kindServiceGroups:
		o.ServiceGroups = nil
	case kindLBNodeAgents:
		o.LBNodeAgents = nil
	case kindAnnouncements:
		o.Announcements = nil
	case kindCommons:
		o.Commons = nil
	case kindBGPPeers:
		o.BGPPeers = nil
	case kindNodeRoutings:
		o.NodeRoutings = nil
	case kindServices:
		o.Services = nil
	case kindNodes:
		o.Nodes = nil
	case kindEndpointSlices:
		o.EndpointSlices = nil
	case kindDeployments:
		o.Deployments = nil
	case kindPods:
		o.Pods = nil
	case kindLeases:
		o.Leases = nil
	}
}

// No answer that depends on what could not be read sounds as if it had been read.
func TestUnread(t *testing.T) {
	type answer struct {
		text   string
		unread []Unread
	}
	for command, ask := range map[string]struct {
		answer func(*Cluster) answer
		needs  []string
	}{
		"status": {func(c *Cluster) answer {
			s := StatusOf(c)
			if (s.Health == Unknown) != (len(s.Unread) > 0) {
				t.Errorf("%v is unread, and the health is %s", s.Unread, s.Health)
			}
			return answer{s.Summary, s.Unread}
		}, []string{
			kindServiceGroups, kindServices, kindNodes, kindAnnouncements, kindDeployments, kindLBNodeAgents, kindCommons,
			kindBGPPeers,
		}},
		"where": {func(c *Cluster) answer {
			w := LocateAddress(c, netip.MustParseAddr("192.168.1.242"))
			return answer{w.Summary, w.Unread}
		}, []string{kindServiceGroups, kindServices, kindNodes, kindAnnouncements, kindDeployments, kindCommons}},
		"plan lose": {func(c *Cluster) answer {
			plans := must(PlanLoseEach(c))(t)
			return answer{textOf(t, plans), plans.Unread}
		}, []string{
			kindServiceGroups, kindServices, kindNodes, kindAnnouncements, kindDeployments, kindLBNodeAgents, kindCommons,
			kindEndpointSlices, kindLeases,
		}},
		"plan apply": {func(c *Cluster) answer {
			plans := must(OnePlan(PlanApply(t.Context(), c, filesOf(t, groupFile))))(t)
			return answer{plans.Plans[0].Summary, plans.Unread}
		}, []string{
			kindServiceGroups, kindServices, kindNodes, kindAnnouncements, kindDeployments, kindLBNodeAgents, kindCommons,
			kindEndpointSlices, kindLeases, kindBGPPeers,
		}},
		"pools": {func(c *Cluster) answer {
			pools := PoolListOf(c)
			return answer{textOf(t, pools), pools.Unread}
		}, []string{kindServiceGroups, kindServices, kindNodes, kindAnnouncements, kindDeployments}},
		"bgp": {func(c *Cluster) answer {
			bgp := BGPStateOf(c)
			return answer{textOf(t, bgp), bgp.Unread}
		}, []string{kindBGPPeers, kindNodeRoutings}},
		"version": {func(c *Cluster) answer {
			versions := VersionsOf(c, "v1")
			return answer{textOf(t, versions), versions.Unread}
		}, []string{kindPods}},
	} {
		for _, kind := range []string{kindServiceGroups, kindLBNodeAgents, kindAnnouncements, kindCommons, kindBGPPeers,
			kindNodeRoutings,
			kindServices, kindNodes, kindEndpointSlices, kindDeployments, kindPods, kindLeases} {
			t.Run(command+" without "+kind, func(t *testing.T) {
				got := ask.answer(clusterOf(t, func(o *Objects) { forget(o, kind) }))
				if !slices.Contains(ask.needs, kind) {
					if len(got.unread) > 0 {
						t.Errorf("unread is %v, on which nothing depends", got.unread)
					}
					return
				}
				if len(got.unread) != 1 || got.unread[0].Kind != kind || !strings.Contains(got.text, kind) {
					t.Errorf("unread is %v: %s", got.unread, got.text)
				}
			})
		}
	}
	c := clusterOf(t, func(o *Objects) { forget(o, kindEndpointSlices) })
	if e := must(ExplainService(c, "shop", "web"))(t); len(e.Unread) != 1 ||
		!strings.Contains(e.Summary, "EndpointSlices cannot be read") {
		t.Errorf("%v: %s", e.Unread, e.Summary)
	}
}

// A release that has no BGP yet can be looked at, and a cluster without PureLB says so.
func TestOldRelease(t *testing.T) {
	scheme := must(NewScheme())(t)
	without := func(missing ...string) client.Client {
		return interceptor.NewClient(clientfake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if slices.Contains(missing, strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1.")) {
					return &meta.NoKindMatchError{
						GroupKind: schema.GroupKind{Group: "purelb.io", Kind: "X"}, SearchedVersions: []string{"v1"},
					}
				}
				return c.List(ctx, list, options...)
			},
		})
	}
	if o := must(ReadObjects(t.Context(), without("BGPPeerList", "NodeRoutingList"),
		"purelb-system", ""))(t); len(o.Unread) > 0 {
		t.Errorf("without BGP: %v", o.Unread)
	}
	o := must(ReadObjects(t.Context(), without("ServiceGroupList"), "purelb-system", ""))(t)
	if status := StatusOf(must(NewCluster(t.Context(), o, "purelb-system"))(t)); status.Health != Unknown ||
		!strings.Contains(textOf(t, status), "the API server does not know this kind") {
		t.Errorf("without PureLB: %s", textOf(t, status))
	}
}

// A cluster without PureLB is not one of which something cannot be read.
func TestNotInstalled(t *testing.T) {
	empty := clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t)).Build()
	none := interceptor.NewClient(empty, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if reflect.TypeOf(list).Elem().PkgPath() == reflect.TypeFor[v1.ServiceGroup]().PkgPath() {
				return &meta.NoKindMatchError{SearchedVersions: []string{"v1"}}
			}
			return c.List(ctx, list, options...)
		},
	})
	if _, err := ReadObjects(t.Context(), none, "purelb-system", ""); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("read: %v", err)
	}
	if _, err := Drain(t.Context(), none, "purelb-system", "node1", io.Discard); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("drain: %v", err)
	}
}

// Who may not list all Services gets those of one namespace.
func TestServicesOfOneNamespace(t *testing.T) {
	services := []client.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web"}},
	}
	may := interceptor.NewClient(
		clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t)).WithObjects(services...).Build(), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				var wanted client.ListOptions
				wanted.ApplyOptions(options)
				if _, isServices := list.(*corev1.ServiceList); isServices && wanted.Namespace != "shop" {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))
				}
				return c.List(ctx, list, options...)
			},
		},
	)
	for own, want := range map[string]int{"shop": 1, "other": 0, "": 0} {
		o := must(ReadObjects(t.Context(), may, "purelb-system", own))(t)
		if len(o.Services) != want || !o.isUnread(kindServices) {
			t.Errorf("of %q: %d Services, unread: %v", own, len(o.Services), o.Unread)
		}
	}
}

// PureLB in another namespace than the one that was named is not a PureLB without anything to say.
func TestOtherNamespace(t *testing.T) {
	_, err := NewCluster(t.Context(), readObjectsOf(t, "testdata/cluster.yaml"), "metallb-system")
	if err == nil || !strings.Contains(err.Error(), "--purelb-namespace=purelb-system") {
		t.Errorf("error is %v", err)
	}
	o := readObjectsOf(t, "testdata/cluster.yaml")
	o.Deployments = nil
	if status := StatusOf(must(NewCluster(t.Context(), o, "purelb-system"))(t)); status.Health != Critical {
		t.Errorf("without a manager: %s", status.Summary)
	}
}

// Whose clock is ahead takes no other node for dead, and whose clock is behind is not dead.
func TestObserveLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		clocks := map[string]time.Duration{"ahead": time.Minute, "right": 0, "behind": -5 * time.Second}
		lease := func(node string, renewed time.Time) *coordinationv1.Lease {
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: v1.LeasePrefix + node},
				Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(3)), RenewTime: &metav1.MicroTime{Time: renewed}}}
		}
		// Other software may name its Lease as a node.
		othersNamed := func(name string) *coordinationv1.Lease {
			l := lease("", start.Add(time.Second))
			l.Name = name
			return l
		}
		// An agent may say that its Lease lasts for ever.
		lasting := func(l *coordinationv1.Lease) *coordinationv1.Lease {
			l.Spec.LeaseDurationSeconds = new(int32(math.MaxInt32))
			return l
		}
		api := clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t)).WithObjects(
			lease("ahead", start.Add(time.Minute)), lease("right", start), lease("behind", start.Add(-5*time.Second)),
			lease("dead", start), othersNamed("dead"), lease("long-dead", start.Add(-time.Hour)),
			lasting(lease("boaster", start)), lasting(lease("other-boaster", start)), &v1.Announcement{
				ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "boaster"},
				Spec:       v1.AnnouncementSpec{NodeName: "boaster", HeartbeatSeconds: 1},
			}).Build()
		o := must(ReadObjects(ctx, api, "purelb-system", ""))(t)
		var agents sync.WaitGroup
		defer agents.Wait()
		defer cancel()
		agents.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Second)
				for node, wrong := range clocks {
					renewed := &coordinationv1.Lease{
						ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: v1.LeasePrefix + node},
					}
					patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().Add(wrong).UTC().Format(metav1.RFC3339Micro))
					if err := api.Patch(context.Background(), renewed,
						client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
						t.Error(err)
					}
				}
			}
		})
		if err := o.ObserveLeases(ctx, api, "purelb-system"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited > time.Minute { // of the test's own time
			t.Errorf("waited for %s", waited)
		}
		for node, want := range map[string]bool{
			"ahead": false, "right": false, "behind": false, "dead": true, "long-dead": true,
			"boaster": true, "other-boaster": true,
		} {
			if o.NotRenewing[node] != want {
				t.Errorf("%s is silent: %v", node, o.NotRenewing[node])
			}
		}
	})
}

// A file with a ServiceGroup that is in use has no status; the API server keeps the one there is.
func TestPlanApplyExternal(t *testing.T) {
	for name, file := range map[string]string{
		"unchanged": netboxGroupFile,
		"another dnsName": strings.Replace(
			netboxGroupFile, "aggregation: default", "aggregation: default, dnsName: 'a.example'", 1,
		),
		"one prefix more":  strings.Replace(netboxGroupFile, "[192.168.1.128/26]", "[192.168.1.128/26, 192.168.1.64/26]", 1),
		"a status of none": netboxGroupFile + "status: {type: remote, allocatedIPv4: 77}",
	} {
		t.Run(name, func(t *testing.T) {
			plan := must(PlanApply(t.Context(), clusterOf(t, withNetbox(t)), filesOf(t, file)))(t)
			if plan.Breaks || len(plan.Moves) > 0 {
				t.Errorf("%s: %v %v", plan.Summary, plan.Refusals, plan.Moves)
			}
		})
	}
}

// An LBNodeAgent that takes over all nodes has them hand over what they have one after another: no address is
// without a node meanwhile or at the end, unless one node alone may have it.
func TestPlanOfNewLBNodeAgent(t *testing.T) {
	const file = `
apiVersion: purelb.io/v1
kind: LBNodeAgent
metadata: {name: new, namespace: purelb-system}
spec: {nodeSelector: {kubernetes.io/os: linux}}
`
	c := clusterOf(t)
	plan := must(PlanApply(t.Context(), c, filesOf(t, file)))(t)
	if plan.Breaks || len(plan.Refusals) > 0 {
		t.Errorf("%s: %v %v", plan.Summary, plan.Refusals, plan.Moves)
	}
	for _, m := range plan.Moves {
		if m.How != string(placement.Handover) {
			t.Errorf("%s: %v to %v: %s %s", m.Address, m.From, m.To, m.How, m.Reason)
		}
	}
	alone := must(PlanApply(t.Context(), clusterOf(t, expire("node2"), expire("node3")), filesOf(t, file)))(t)
	if !strings.Contains(alone.Summary, "moved after an outage") {
		t.Errorf("one node alone: %s: %v", alone.Summary, alone.Moves)
	}
	// A selector of the label that PureLB sets itself would change it for ever.
	loop := strings.Replace(file, "kubernetes.io/os: linux", "purelb.io/agent: default", 1)
	must(PlanApply(t.Context(), c, filesOf(t, loop)))(t)
	// Each step takes one node of those that are alive.
	changed := *c.Objects
	changed.LBNodeAgents = append(slices.Clone(changed.LBNodeAgents), v1.LBNodeAgent{
		ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "new"},
		Spec:       v1.LBNodeAgentSpec{NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}},
	})
	steps, after, err := rollOut(t.Context(), &changed, "purelb-system")
	if err != nil {
		t.Fatal(err)
	}
	var leaving []string
	for i := range steps {
		names := ""
		for _, n := range steps[i].Nodes {
			if n.IsLeaving {
				names += n.Name + " "
			}
		}
		leaving = append(leaving, names)
	}
	if want := []string{"node1 ", "node2 ", "node3 ", "", ""}; !slices.Equal(leaving, want) {
		t.Errorf("nodes leave in steps %q, want %q", leaving, want)
	}
	for i := range after.Nodes {
		if got := after.Nodes[i].Labels[v1.LabelAgent]; got != "new" {
			t.Errorf("%s runs the agent of %s", after.Nodes[i].Name, got)
		}
	}
}

// What the API server or a webhook would refuse is refused by plan apply and by validate, in the
// same words.
func TestRefusals(t *testing.T) {
	const twoRoutes = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: one, namespace: purelb-system}
spec: {remote: {v4pools: [{pool: 172.31.0.0-172.31.0.9, subnet: 172.31.0.0/24, aggregation: /24}]}, bgp: {med: 5}}
---
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: two, namespace: purelb-system}
spec: {remote: {v4pools: [{pool: 172.31.0.20-172.31.0.29, subnet: 172.31.0.0/24, aggregation: /24}]}, bgp: {med: 7}}
`
	const peer = `
apiVersion: purelb.io/v1
kind: BGPPeer
metadata: {name: p, namespace: default}
spec: {peerASN: 65000, myASN: 65001, peerAddress: 192.168.1.1}
`
	for name, row := range map[string]struct{ file, want string }{
		"a list that is none": {
			strings.Replace(shrunkGroupFile, "[{pool: 192.168.1.242, subnet: 192.168.1.0/24}]", "oops", 1), "spec.local.v4pools",
		},
		"another version": {strings.Replace(shrunkGroupFile, "purelb.io/v1", "purelb.io/v2", 1), "purelb.io/v2"},
		"an unknown kind": {
			strings.Replace(shrunkGroupFile, "kind: ServiceGroup", "kind: ServiceGruop", 1), "ServiceGruop",
		},
		"a misspelt field": {strings.Replace(shrunkGroupFile, "{pool:", "{poool: 1, pool:", 1), "poool"},
		"an agent elsewhere": {
			strings.Replace(strings.Replace(smallAgentFile, "purelb-system", "shop", 1), "default", "other", 1),
			"only LBNodeAgents in namespace purelb-system count",
		},
		"a peer elsewhere": {peer, "only BGPPeers in namespace purelb-system count"},
		"a peer with a bad address": {
			strings.Replace(
				strings.Replace(peer, "namespace: default", "namespace: purelb-system", 1), "192.168.1.1}", "127.0.0.1}", 1,
			),
			"must be the address of one host on the network",
		},
		"two settings for one route": {twoRoutes, "are in the same network 172.31.0.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := must(PlanApply(t.Context(), clusterOf(t), filesOf(t, row.file)))(t)
			if !plan.Breaks || plan.Summary != "would be refused" ||
				!strings.Contains(strings.Join(plan.Refusals, "\n"), row.want) {
				t.Errorf("plan apply: %s: %q", plan.Summary, plan.Refusals)
			}
			validation := must(Validate(t.Context(), filesOf(t, row.file), "purelb-system"))(t)
			if text := textOf(t, validation); validation.Errors == 0 || !strings.Contains(text, row.want) {
				t.Errorf("validate: %s", text)
			}
		})
	}
}

// What is wrong with an object by itself is told, whatever else is in the files.
func TestValidateAlone(t *testing.T) {
	const service = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {%s}}
spec: {type: LoadBalancer, loadBalancerIP: %q, ports: [{port: 80}]}
`
	const announcement = `
apiVersion: purelb.io/v1
kind: Announcement
metadata: {name: node1, namespace: purelb-system}
spec: {nodeName: node1, lbNodeAgent: default}
`
	addresses := func(list string) string { return fmt.Sprintf(service, v1.AnnotationAddresses+": '"+list+"'", "") }
	for name, row := range map[string]struct{ file, want string }{
		"an address that is none":       {addresses("1.2.3"), v1.AnnotationAddresses + `: "1.2.3" is not an address`},
		"two addresses of a family":     {addresses("10.0.0.1,10.0.0.2"), "are both IPv4"},
		"an address in the field":       {fmt.Sprintf(service, "", "1.2.3"), `loadBalancerIP: "1.2.3" is not an address`},
		"an annotation that is unknown": {fmt.Sprintf(service, "purelb.io/adresses: 10.0.0.1", ""), "did you mean"},
		"a sharing key without end": {
			fmt.Sprintf(service, v1.AnnotationAllowSharedIP+": "+strings.Repeat("k", 300), ""), "is too long",
		},
		"an Announcement": {announcement, "the manager alone writes objects of this kind"},
	} {
		t.Run(name, func(t *testing.T) {
			validation := must(Validate(t.Context(), filesOf(t, row.file), "purelb-system"))(t)
			if text := textOf(t, validation); validation.Warnings == 0 || validation.Errors > 0 ||
				!strings.Contains(text, row.want) {
				t.Error(text)
			}
		})
	}
	if v := must(Validate(t.Context(), filesOf(t, addresses("10.0.0.1, fd00::1")), "purelb-system"))(t); v.Warnings > 0 {
		t.Error(textOf(t, v))
	}
}

// A Service that does not say its families is checked as one that has any of them, or that of the addresses that it
// asks for.
func TestValidateWithoutFamilies(t *testing.T) {
	const service = `
apiVersion: purelb.io/v1
kind: ServiceGroup
metadata: {name: default, namespace: purelb-system}
spec: {local: {v4pools: [{pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {%s: %q, %s: %q}}
spec: {type: LoadBalancer, %s, ports: [{port: 80}]}
`
	const (
		single  = "ipFamilyPolicy: SingleStack"
		prefers = "ipFamilyPolicy: PreferDualStack"
		outside = " is in no pool of a ServiceGroup that is ready"
	)
	for _, row := range []struct{ families, group, addresses, want string }{
		{single, "", "", ""},
		{single, "", "10.0.0.5", ""},
		{single, "", "10.0.0.10", "10.0.0.10" + outside},
		{single, "", "fd00::5", "fd00::5" + outside},
		{single, "", "10.0.0.5, fd00::5", "fd00::5 is IPv6, which is not in spec.ipFamilies"},
		{single, "defaul", "", "did you mean default?"},
		{prefers, "", "10.0.0.5", ""},
		{prefers, "", "10.0.0.10", "10.0.0.10" + outside},
		{prefers + ", ipFamilies: [IPv4]", "", "10.0.0.5", ""},
		{prefers + ", ipFamilies: [IPv4]", "", "fd00::5", "fd00::5" + outside},
		{"ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4]", "", "fd00::5", "fd00::5" + outside},
		{"ipFamilyPolicy: RequireDualStack", "", "", ""}, // that a group has no address left is no warning
		{"ipFamilies: [IPv4]", "", "fd00::5", "fd00::5 is IPv6, which is not in spec.ipFamilies"},
	} {
		file := fmt.Sprintf(
			service, v1.AnnotationServiceGroup, row.group, v1.AnnotationAddresses, row.addresses, row.families,
		)
		v := must(Validate(t.Context(), filesOf(t, file), "purelb-system"))(t)
		text := textOf(t, v)
		if v.Errors > 0 || (v.Warnings > 0) != (row.want != "") || !strings.Contains(text, row.want) {
			t.Errorf("%v: %s", row, text)
		}
	}
}

// An object that is twice in the files is an error, whichever way it names its namespace.
func TestValidateDuplicates(t *testing.T) {
	without := strings.Replace(groupFile, ", namespace: purelb-system", "", 1)
	elsewhere := strings.Replace(groupFile, "purelb-system", "shop", 1)
	for name, row := range map[string]struct {
		file   string
		errors int
	}{
		"twice": {groupFile + "---\n" + groupFile, 1}, "thrice": {groupFile + "---\n" + groupFile + "---\n" + groupFile, 2},
		"once without a namespace": {groupFile + "---\n" + without, 1},
		"in another namespace":     {groupFile + "---\n" + elsewhere, 0},
	} {
		v := must(Validate(t.Context(), filesOf(t, row.file), "purelb-system"))(t)
		n := 0
		for _, f := range v.Findings {
			if strings.Contains(f.Message, "it is in standard input already") {
				n++
			}
		}
		if n != row.errors {
			t.Errorf("%s: %s", name, textOf(t, v))
		}
	}
}

// A ServiceGroup of an external IPAM system is shown with its state, and with what others have there.
func TestExternalPools(t *testing.T) {
	c := clusterOf(t, withNetbox(t))
	pools := PoolsOf(c)
	i := slices.IndexFunc(pools, func(p Pool) bool { return p.Group == "nb" })
	if p := pools[i]; p.IPv4.String() != "60/62" || len(p.Ranges) != 1 || p.Ranges[0].Used != 60 ||
		p.Ranges[0].Announce != v1.AnnounceLocal || len(p.Problems) != 2 {
		t.Errorf("%+v", p)
	}
	text := textOf(t, StatusOf(c))
	for _, want := range []string{
		"Reachable is False: NetBox refuses the token", "Drift is True: 40 records are of no Service",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("status does not say %q:\n%s", want, text)
		}
	}
	w := LocateAddress(c, netip.MustParseAddr("192.168.1.150"))
	if w.Summary != "is of no Service; whether it is free, the "+
		"external IPAM system knows" {
		t.Errorf("192.168.1.150 %s", w.Summary)
	}
}

// A Service that names no ServiceGroup is told why it has addresses of one that is not the default one.
func TestWhyUnnamed(t *testing.T) {
	explain := func(change func(*v1.ServiceGroup)) string {
		e, err := ExplainService(clusterOf(t, forTenants, func(o *Objects) { change(&o.ServiceGroups[1]) }), "shop", "edge")
		if err != nil {
			t.Fatal(err)
		}
		return e.Group + ": " + e.WhyGroup
	}
	address := ""
	for _, s := range clusterOf(t).Services {
		if s.Name == "edge" {
			address = s.Status.LoadBalancer.Ingress[0].IP
		}
	}
	for want, change := range map[string]func(*v1.ServiceGroup){
		"routed: the Service names none, and this one has autoAssign: true": func(*v1.ServiceGroup) {},
		"routed: the Service names none, and an address of this one is reserved for it": func(sg *v1.ServiceGroup) {
			sg.Spec.Reservations = []v1.Reservation{{Address: address, Service: "shop/edge"}}
		},
		"routed: the Service named it, or an address of it, before; it names none now": func(sg *v1.ServiceGroup) {
			sg.Spec.AutoAssign = nil
		},
		"routed: its addresses are of it; it now asks for default; " +
			"the group is gone, and the Service keeps what it has": func(sg *v1.ServiceGroup) {
			sg.Name = "gone"
		},
	} {
		if got := explain(change); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// Of a namespace that PureLB shares with others, a support bundle has nothing of them.
func TestSupportBundleOfSharedNamespace(t *testing.T) {
	c := clusterOf(t, func(o *Objects) {
		o.Deployments[0].Spec.Template.Annotations = map[string]string{"vault.example/template": "hunter2-annotation"}
		o.Pods[0].Spec.Containers = append(
			o.Pods[0].Spec.Containers, corev1.Container{Name: "injected", Args: []string{"--key=hunter2-sidecar"}},
		)
		o.Pods[0].Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", Env: []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2-ephemeral"}}}}}
		o.Pods = append(o.Pods,
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "billing-db-0", Namespace: "purelb-system"}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "db", Args: []string{"--admin-password=hunter2-arg"}}}}})
	})
	var out bytes.Buffer
	if err := WriteSupportBundle(t.Context(), &out, c, nil, fake.NewClientset(&c.Pods[0], &c.Pods[1]),
		time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	contents := unpacked(t, &out)
	for name, text := range contents {
		for _, others := range []string{"hunter2", "billing-db"} {
			if strings.Contains(text, others) || strings.Contains(name, others) {
				t.Errorf("%s has %s:\n%s", name, others, text)
			}
		}
	}
	if _, isThere := contents["purelb-support/logs/purelb-manager-1-manager.log"]; !isThere {
		t.Errorf("the manager's log is not in %v", slices.Sorted(maps.Keys(contents)))
	}
}

// Of a long log the end is kept.
func TestLastOf(t *testing.T) {
	for _, size := range []int{0, 1, 99, 100, 101, 250} {
		text := strings.Repeat("0123456789", size)
		got, err := lastOf(strings.NewReader(text), 1000)
		if err != nil || string(got) != text[max(0, len(text)-1000):] {
			t.Errorf("of %d bytes: %d, %v", len(text), len(got), err)
		}
	}
}

// A drain that could not see its own end changes nothing.
func TestDrainChangesNothing(t *testing.T) {
	scheme := must(NewScheme())(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	agent := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "purelb-system"}}
	forbidden := interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		if _, isAnnouncements := list.(*v1.AnnouncementList); isAnnouncements {
			return apierrors.NewForbidden(
				schema.GroupResource{Group: "purelb.io", Resource: "announcements"}, "", errors.New("no"),
			)
		}
		return c.List(ctx, list, options...)
	}}
	for name, row := range map[string]struct {
		api       client.Client
		namespace string
		want      string
	}{
		"its user may not list Announcements": {interceptor.NewClient(
			clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(node.DeepCopy(), agent.DeepCopy()).Build(), forbidden,
		),
			"purelb-system", "announcements.purelb.io is forbidden"},
		"PureLB is elsewhere": {clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(
			node.DeepCopy(), agent.DeepCopy(),
		).Build(),
			"metallb-system", "--purelb-namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			_, err := Drain(t.Context(), row.api, row.namespace, "node1", &out)
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "node1 is as it was") ||
				out.Len() > 0 {
				t.Errorf("%v\n%s", err, out.String())
			}
			var now corev1.Node
			if err := row.api.Get(t.Context(), client.ObjectKeyFromObject(node), &now); err != nil || len(now.Labels) > 0 {
				t.Errorf("labels are %v (%v)", now.Labels, err)
			}
		})
	}
}

// Undrain removes one label, although it has seen no other: somebody else adds one meanwhile.
func TestUndrainLeavesOtherLabels(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node1", Labels: map[string]string{corev1.LabelNodeExcludeBalancers: drainedLabelValue},
		},
	}
	api := clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t)).WithObjects(node).Build()
	late := interceptor.NewClient(api, interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, options ...client.PatchOption,
		) error {
			labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
			if err := c.Patch(
				ctx, labelled, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"rack":"a"}}}`)),
			); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, options...)
		},
	})
	if _, err := Undrain(t.Context(), late, "node1", false, io.Discard); err != nil {
		t.Fatal(err)
	}
	var now corev1.Node
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(node), &now); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(now.Labels, map[string]string{"rack": "a"}) {
		t.Errorf("labels are %v", now.Labels)
	}
}
