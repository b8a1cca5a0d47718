package nodeagent

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/yaml"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/test/apiserver"
)

// apiServerLimit is how long an API server may take to start or to stop, and then the agent to do what
// it has to: a machine may be busy.
const apiServerLimit = 2 * time.Minute

// The whole agent, against a real API server, with no more rights than
// config/rbac gives it.
func TestAPIServer(t *testing.T) {
	apiserver.Mark(t)
	g := NewWithT(t)
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.UseDevMode(true)))
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{"../config/crd/bases"}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: apiServerLimit, ControlPlaneStopTimeout: apiServerLimit,
	}
	config, err := env.Start()
	if err != nil {
		t.Fatalf("this test needs the API server of KUBEBUILDER_ASSETS, which make test-unit sets: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin := administrator(t, config, env)
	create := func(objects ...client.Object) {
		t.Helper()
		for _, o := range objects {
			g.Expect(admin.Create(t.Context(), o)).To(Succeed())
		}
	}
	other := announcementOf("node2", local("192.0.2.2"))
	other.Spec.NodeName = "node2"
	const sentinel = "node1-sentinel"
	create(
		settings(), lease(), announcementOf("node1", local("192.0.2.1"), local("2001:db8::1"), virtual("198.51.100.1")),
		announcementOf(sentinel), other,
	)

	user, err := env.AddUser(envtest.User{Name: "agent"}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	options, err := ManagerOptions("node1", namespace, "default")
	g.Expect(err).NotTo(HaveOccurred())
	options.Metrics.BindAddress = "0"
	selectors := &watchSelectors{}
	userConfig := user.Config()
	userConfig.Wrap(selectors.record)
	mgr, err := ctrl.NewManager(userConfig, options)
	g.Expect(err).NotTo(HaveOccurred())
	kernel := linktest.New(plan.NetworkInterface{Name: "eth0", MAC: "02:00:00:00:00:0a", IsUp: true})
	kernel.Put(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever,
	})
	kernel.AddRoute(plan.Route{
		Interface: "eth0", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.254"),
	})
	link := &neighbours{start: time.Now(), stations: map[string]neigh.MAC{}}
	agent := &Agent{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Kernel: kernel, Neighbours: link,
		Metrics: NewMetrics(prometheus.NewRegistry()), NodeName: "node1", Namespace: namespace, LBNodeAgentName: "default",
	}
	g.Expect(agent.SetupWithManager(mgr)).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(ctx) }()

	w := &world{Agent: &Agent{Client: admin}, t: t}
	within := func(what string, check func() bool) {
		t.Helper()
		g.Eventually(check).WithTimeout(apiServerLimit).WithPolling(50*time.Millisecond).Should(BeTrue(), what)
	}
	// update changes an Announcement, on which the agent may report meanwhile, and returns the
	// generation that it has then.
	update := func(name string, change func(*purelbv1.AnnouncementSpec)) (generation int64) {
		t.Helper()
		g.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			ann := w.get(name)
			change(&ann.Spec)
			err := admin.Update(ctx, ann)
			generation = ann.Generation
			return err
		})).To(Succeed())
		return generation
	}
	// handleAll returns when the agent has written all that follows from what happened before: it
	// handles events in order, and a change of another Announcement comes after them. What it
	// writes for all Announcements at once is written before it handles a second change.
	handleAll := func() {
		t.Helper()
		for range 2 {
			generation := update(sentinel, func(s *purelbv1.AnnouncementSpec) { s.HeartbeatSeconds = 3 - s.HeartbeatSeconds })
			within("the agent has handled a change of another Announcement", func() bool {
				return w.get(sentinel).Status.ObservedGeneration == generation
			})
		}
	}
	within("the addresses are announced", func() bool {
		return w.states("node1") == "192.0.2.1 Announced, 198.51.100.1 Announced, 2001:db8::1 Announced"
	})
	status := w.get("node1").Status
	g.Expect(status.Interfaces).To(HaveLen(1))
	g.Expect(status.Conditions).To(HaveLen(1))
	g.Expect(status.Conditions[0].Status).To(Equal(metav1.ConditionTrue))
	within("the Lease is renewed", func() bool {
		l := lease()
		return admin.Get(ctx, client.ObjectKeyFromObject(l), l) == nil && l.Spec.RenewTime != nil
	})
	g.Expect(w.get("node2").Status.Addresses).To(BeEmpty())

	// Said once: once all is done, nothing more is written.
	expectNoMoreWritten := func() {
		t.Helper()
		handleAll()
		version := w.get("node1").ResourceVersion
		handleAll()
		g.Expect(w.get("node1").ResourceVersion).To(Equal(version))
	}
	expectNoMoreWritten()

	// A status that is wrong, as one that was compared with a cache that was
	// behind, is put right, whoever wrote it.
	wrong := w.get("node1")
	wrong.Status.Addresses[0].State, wrong.Status.Announced = purelbv1.StatePending, 2
	g.Expect(admin.Status().Update(ctx, wrong)).To(Succeed())
	within("the status is right again", func() bool {
		return w.states("node1") == "192.0.2.1 Announced, 198.51.100.1 Announced, 2001:db8::1 Announced" &&
			w.get("node1").Status.Announced == 3
	})

	// An interface that is down is marked so in the facts.
	isDown := func() bool { return w.get("node1").Status.Interfaces[0].Down }
	kernel.SetLinkUp("eth0", false)
	within("the facts say that it is down", isDown)
	kernel.SetLinkUp("eth0", true)
	within("the facts say that it is up", func() bool { return !isDown() })
	expectNoMoreWritten()

	// Another has one of them: it is reported, and the condition with it.
	link.set("192.0.2.3", stranger)
	update("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses[:1], local("192.0.2.3")) })
	within("the conflict is reported, and what is no longer asked for is gone", func() bool {
		return w.states("node1") == "192.0.2.1 Announced, 192.0.2.3 Conflict Answered02:00:00:00:00:02"
	})
	g.Expect(w.get("node1").Status.Conditions).To(HaveLen(2))
	link.unset("192.0.2.3")
	within("the condition goes with the conflict", func() bool { return len(w.get("node1").Status.Conditions) == 1 })

	// An address that another program strips is back.
	kernel.Strip("eth0", netip.MustParsePrefix("192.0.2.1/32"))
	holds := func(prefix string) bool {
		o, _ := kernel.Observe()
		for _, a := range o.Addresses {
			if a.Prefix.String() == prefix && a.IsOurs {
				return true
			}
		}
		return false
	}
	within("the stripped address is back", func() bool { return holds("192.0.2.1/32") })

	// An Announcement that is gone withdraws nothing, nor for a while one in its place that does
	// not ask for what is there.
	gone := func() {
		t.Helper()
		g.Expect(admin.Delete(ctx, w.get("node1"))).To(Succeed())
		handleAll()
		g.Expect(holds("192.0.2.1/32")).To(BeTrue())
		g.Expect(holds("192.0.2.3/32")).To(BeTrue())
	}
	gone()
	create(announcementOf("node1", local("192.0.2.3")))
	within("what is asked for is reported", func() bool { return w.states("node1") == "192.0.2.3 Announced" })
	g.Expect(holds("192.0.2.1/32")).To(BeTrue())
	update("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, local("192.0.2.1")) })
	within("it is reported again", func() bool { return w.states("node1") == "192.0.2.1 Announced, 192.0.2.3 Announced" })

	// While the node has one Announcement, the agent watches it by its name, and all of them once there are more.
	g.Expect(admin.Delete(ctx, w.get(sentinel))).To(Succeed())
	update("node1", func(s *purelbv1.AnnouncementSpec) { s.Sole = true })
	within("the agent watches by name", func() bool { return selectors.last() == "metadata.name=node1" })
	update("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(s.Addresses, virtual("198.51.100.1")) })
	within("it sees a change", func() bool {
		return w.states("node1") == "192.0.2.1 Announced, 192.0.2.3 Announced, 198.51.100.1 Announced"
	})
	update("node1", func(s *purelbv1.AnnouncementSpec) { s.Sole = false })
	create(announcementOf(sentinel, local("192.0.2.4")))
	within("it sees another Announcement", func() bool { return w.states(sentinel) == "192.0.2.4 Announced" })
	within("it watches all of them", func() bool { return selectors.last() == "spec.nodeName=node1" })

	// Stopping withdraws nothing.
	gone()
	stop()
	g.Expect(<-stopped).To(Succeed())
	g.Expect(holds("192.0.2.1/32")).To(BeTrue())
}

// watchSelectors notes by which field selectors Announcements are watched.
type watchSelectors struct {
	mu  sync.Mutex
	all []string
}

// record returns a transport that notes what it sends.
func (w *watchSelectors) record(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if q := r.URL.Query(); strings.HasSuffix(r.URL.Path, "/announcements") && q.Get("watch") == "true" {
			w.mu.Lock()
			w.all = append(w.all, q.Get("fieldSelector"))
			w.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// last returns the field selector of the last watch.
func (w *watchSelectors) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return ""
	}
	return w.all[len(w.all)-1]
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// administrator makes the namespace, and a user named agent who has the role
// that config/rbac gives the agent.
func administrator(t *testing.T, config *rest.Config, env *envtest.Environment) client.Client {
	t.Helper()
	g := NewWithT(t)
	scheme := env.Scheme
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(purelbv1.AddToScheme(scheme)).To(Succeed())
	admin, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := os.ReadFile("../config/rbac/agent_role.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.Role{} // the first of its documents
	g.Expect(yaml.Unmarshal(manifest, role)).To(Succeed())
	g.Expect(role.Kind).To(Equal("Role"))
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		role,
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "agent"}},
		},
	} {
		g.Expect(admin.Create(t.Context(), o)).To(Succeed())
	}
	return admin
}
