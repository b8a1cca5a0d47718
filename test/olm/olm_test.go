package olm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	operatorsv1 "github.com/operator-framework/api/pkg/operators/v1"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	oldVersion = "purelb.v0.1.0"
	newVersion = "purelb.v0.2.0"
	// didYouMean is in what the webhook of ServiceGroups says of testdata/broken.yaml.
	didYouMean = "did you mean 172.32.100.225-172.32.100.229?"
)

// The tests share one installation, one after the other: each begins with what the one before
// has left.
var _ = Describe("OLM", Ordered, func() {
	var svc *corev1.Service
	var addresses []netip.Addr

	It("installs PureLB from a catalogue", func(ctx SpecContext) {
		began := time.Now()
		subscribe(ctx, oldVersion)
		report("%s is installed", oldVersion, began)
		createLBNodeAgent(ctx, oldVersion)
		applyGroup(ctx)
		svc = createService(ctx, "first")
		addresses = waitForAnswers(ctx, svc)
		report("a Service answers, %s", oldVersion, began)
		out, err := tryKubectl(ctx, "apply", "-f", root+"test/e2e/testdata/broken.yaml")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring(didYouMean))
	}, SpecTimeout(10*time.Minute))

	It("gives nobody the right to write Announcements", func(ctx SpecContext) {
		const editor = "--as=editor"
		kubectl(ctx, "-n", purelbNamespace, "create", "rolebinding", "editor", "--clusterrole=edit", "--user=editor")
		DeferCleanup(
			func(ctx SpecContext) { kubectl(ctx, "-n", purelbNamespace, "delete", "rolebinding", "editor") }, NodeTimeout(soon),
		)
		eventually(ctx, soon, func(g Gomega) { // OLM adds its roles to edit, which a controller aggregates
			out, _ := tryKubectl(ctx, editor, "-n", purelbNamespace, "auth", "can-i", "delete", "announcements")
			g.Expect(strings.TrimSpace(out)).To(Equal("yes"), "otherwise this test shows nothing")
		})
		list := func() string {
			return kubectl(ctx, "-n", purelbNamespace, "get", "announcements,commonannouncements",
				"-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation} `+
					`{.metadata.labels} {.metadata.annotations} {.metadata.finalizers}{"\n"}{end}`)
		}
		before := list()
		for _, args := range [][]string{
			{"delete", "announcements", "--all"},
			{"delete", "announcement", "node1"},
			{"annotate", "announcements", "--all", "a=b"},
			{"label", "announcement", "node1", "a=b"},
			{"patch", "announcement", "node1", "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/stay"]}}`},
			{"patch", "announcement", "node1", "--type=merge", "-p", `{"spec":{"addresses":[]}}`},
		} {
			out, err := tryKubectl(ctx, append([]string{editor, "-n", purelbNamespace}, args...)...)
			Expect(err).To(HaveOccurred(), "%q", args)
			Expect(out).To(ContainSubstring("PureLB's manager"), "%q", args)
		}
		Expect(list()).To(Equal(before))
	}, SpecTimeout(4*time.Minute))

	It("rotates the certificate", func(ctx SpecContext) {
		key := client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-manager-service-cert"}
		old := &corev1.Secret{}
		Expect(kubeClient.Get(ctx, key, old)).To(Succeed())
		underLoad(ctx, "certificate rotated", addresses, func() {
			Expect(kubeClient.Delete(ctx, old)).To(Succeed())
			eventually(ctx, later, func(g Gomega) {
				secret := &corev1.Secret{}
				g.Expect(kubeClient.Get(ctx, key, secret)).To(Succeed())
				g.Expect(secret.UID).NotTo(Equal(old.UID))
			})
			waitForVersion(ctx, oldVersion)
			waitForWebhook(ctx)
		})
	}, SpecTimeout(10*time.Minute))

	It("upgrades without a lost request", func(ctx SpecContext) {
		underLoad(ctx, "upgraded", addresses, func() {
			install(ctx, newVersion)
			waitForAgents(ctx)
			waitForWebhook(ctx)
			eventually(ctx, later, func(g Gomega) {
				images := strings.Fields(kubectl(ctx, "-n", purelbNamespace, "get", "pods", "-l",
					"app.kubernetes.io/part-of=purelb",
					"-o", "jsonpath={.items[*].spec.containers[*].image}"))
				g.Expect(images).To(And(HaveLen(5), HaveEach("purelb.io/purelb:v0.2.0")))
				g.Expect(apierrors.IsNotFound(kubeClient.Get(
					ctx, client.ObjectKey{Namespace: purelbNamespace, Name: oldVersion}, &v1alpha1.ClusterServiceVersion{},
				))).To(BeTrue())
			})
		})
		Expect(eventsWithReason(ctx, v1.EventFailover)).To(BeEmpty())
	}, SpecTimeout(10*time.Minute))

	It("removes PureLB in the order that the documents ask for", func(ctx SpecContext) {
		began := time.Now()
		out, err := tryKubectl(ctx, "-n", purelbNamespace, "delete", "lbnodeagents", "--all", "--timeout=60s")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring(v1.AnnotationAllowWithdrawal+"=true"), "nobody has said that it is meant")
		kubectl(ctx, "-n", purelbNamespace, "annotate", "lbnodeagents", "--all", v1.AnnotationAllowWithdrawal+"=true")
		kubectl(ctx, "-n", purelbNamespace, "delete", "lbnodeagents", "--all", "--timeout=60s")
		unsubscribe(ctx)
		eventually(ctx, soon, func(g Gomega) {
			g.Expect(findLeftovers(ctx)).To(ConsistOf(documentedLeftovers()))
			for _, address := range addresses {
				g.Expect(holders(ctx, address)).To(BeEmpty())
			}
		})
		report("%s is removed", newVersion, began)
	}, SpecTimeout(5*time.Minute))

	It("installs PureLB over what is left", func(ctx SpecContext) {
		subscribe(ctx, newVersion)
		createLBNodeAgent(ctx, newVersion)
		Expect(waitForAnswers(ctx, svc)).To(Equal(addresses), "the Service has its addresses again")
	}, SpecTimeout(10*time.Minute))

	It("installs PureLB anew beside agents whose service account has gone", func(ctx SpecContext) {
		before := agentPods(ctx)
		account := serviceAccountUID(ctx)
		underLoad(ctx, "removed beside LBNodeAgents, and installed again", addresses, func() {
			unsubscribe(ctx)
			eventually(ctx, soon, func(g Gomega) { g.Expect(serviceAccountUID(ctx)).To(BeEmpty()) })
			subscribe(ctx, newVersion)
			eventually(ctx, later, func(g Gomega) {
				g.Expect(serviceAccountUID(ctx)).NotTo(BeElementOf("", account))
				for pod := range agentPods(ctx) {
					g.Expect(before).NotTo(HaveKey(pod), "its token is that of an account which does not exist")
				}
			})
			waitForAgents(ctx)
		})
		second := createService(ctx, "second")
		waitForAnswers(ctx, second)
		Expect(kubeClient.Delete(ctx, second)).To(Succeed())
		expectRenewals(ctx)
	}, SpecTimeout(10*time.Minute))

	It("finishes a removal in the wrong order when PureLB is installed again", func(ctx SpecContext) {
		unsubscribe(ctx)
		eventually(ctx, soon, func(g Gomega) { g.Expect(managerPods(ctx)).To(BeEmpty()) })
		// Until OLM has removed the webhooks, too, the API server asks for a manager that is gone.
		eventually(ctx, later, func(g Gomega) {
			out, err := tryKubectl(ctx, "-n", purelbNamespace, "delete", "lbnodeagents", "--all", "--wait=false")
			g.Expect(err).NotTo(HaveOccurred(), out)
		})
		agent := &v1.LBNodeAgent{}
		Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "default"}, agent)).To(Succeed())
		Expect(agent.Finalizers).NotTo(BeEmpty(), "the LBNodeAgent waits for a manager")
		expectAnswers(ctx, addresses)
		subscribe(ctx, newVersion)
		eventually(ctx, later, func(g Gomega) {
			g.Expect(apierrors.IsNotFound(kubeClient.Get(ctx, client.ObjectKeyFromObject(agent), agent))).To(BeTrue())
			for _, address := range addresses {
				g.Expect(holders(ctx, address)).To(BeEmpty())
			}
		})
		createLBNodeAgent(ctx, newVersion)
		waitForAnswers(ctx, svc)
	}, SpecTimeout(10*time.Minute))

	It("loses the namespace when only that is deleted, until the finalizers are removed", func(ctx SpecContext) {
		kubectl(ctx, "delete", "namespace", purelbNamespace, "--wait=false")
		eventually(ctx, later, func(g Gomega) { g.Expect(managerPods(ctx)).To(BeEmpty()) })
		namespace := &corev1.Namespace{}
		Expect(kubeClient.Get(ctx, client.ObjectKey{Name: purelbNamespace}, namespace)).To(Succeed())
		Expect(namespace.Status.Phase).To(Equal(corev1.NamespaceTerminating))
		// Until OLM has removed the webhooks, too, the API server asks for a manager that is gone.
		eventually(ctx, later, func(g Gomega) {
			out, err := tryKubectl(
				ctx, "-n", purelbNamespace, "patch", "lbnodeagent", "default", "--type=merge", "-p",
				`{"metadata":{"finalizers":null}}`,
			)
			g.Expect(err).NotTo(HaveOccurred(), out)
		})
		eventually(ctx, later, func(g Gomega) {
			g.Expect(apierrors.IsNotFound(kubeClient.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))).To(BeTrue())
		})
		kubectl(ctx, "label", "nodes", "--all", v1.LabelAgent+"-")
	}, SpecTimeout(10*time.Minute))
})

// subscribe installs a version by the manifests of docs/how-to/olm.md, with plans that have to
// be approved, and waits until OLM has installed it.
func subscribe(ctx context.Context, version string) {
	GinkgoHelper()
	kubectl(ctx, "apply", "-f", root+"config/manager/namespace.yaml")
	group, subscription := documentedSubscription()
	Expect(client.IgnoreAlreadyExists(kubeClient.Create(ctx, group))).To(Succeed())
	subscription.Spec.StartingCSV = version
	subscription.Spec.InstallPlanApproval = v1alpha1.ApprovalManual
	Expect(kubeClient.Create(ctx, subscription)).To(Succeed())
	install(ctx, version)
}

// documentedSubscription reads the manifests that docs/how-to/olm.md shows.
func documentedSubscription() (*operatorsv1.OperatorGroup, *v1alpha1.Subscription) {
	GinkgoHelper()
	page, err := os.ReadFile(root + "docs/how-to/olm.md")
	Expect(err).NotTo(HaveOccurred())
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		first, second, both := strings.Cut(block, "---\n")
		if !both || !strings.Contains(second, "kind: Subscription") {
			continue
		}
		group, subscription := &operatorsv1.OperatorGroup{}, &v1alpha1.Subscription{}
		Expect(yaml.UnmarshalStrict([]byte(first), group)).To(Succeed())
		Expect(yaml.UnmarshalStrict([]byte(second), subscription)).To(Succeed())
		return group, subscription
	}
	Fail("docs/how-to/olm.md shows no Subscription")
	return nil, nil
}

// install approves each plan that installs a version, until OLM says that it has installed that
// version and the managers are as OLM wants them. OLM may make a second plan: when a Subscription
// is new, it can fail to take over the plan of the one before.
func install(ctx context.Context, version string) {
	GinkgoHelper()
	eventually(ctx, later, func(g Gomega) {
		approvePlans(ctx, g, version)
		expectVersion(ctx, g, version)
	}, version)
}

// approvePlans approves the plans that install a version and wait for approval.
func approvePlans(ctx context.Context, g Gomega, version string) {
	var plans v1alpha1.InstallPlanList
	g.Expect(kubeClient.List(ctx, &plans, client.InNamespace(purelbNamespace))).To(Succeed())
	for i := range plans.Items {
		plan := &plans.Items[i]
		if plan.Status.Phase == v1alpha1.InstallPlanPhaseRequiresApproval && !plan.Spec.Approved &&
			slices.Contains(plan.Spec.ClusterServiceVersionNames, version) {
			plan.Spec.Approved = true
			g.Expect(kubeClient.Update(ctx, plan)).To(Succeed())
		}
	}
}

// waitForVersion waits until OLM says that it has installed a version, and the managers are as
// OLM wants them.
func waitForVersion(ctx context.Context, version string) {
	GinkgoHelper()
	eventually(ctx, later, func(g Gomega) { expectVersion(ctx, g, version) }, version)
}

func expectVersion(ctx context.Context, g Gomega, version string) {
	csv := &v1alpha1.ClusterServiceVersion{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: version}, csv)).To(Succeed())
	g.Expect(csv.Status.Phase).To(Equal(v1alpha1.CSVPhaseSucceeded), "%s: %s", csv.Status.Reason, csv.Status.Message)
	managers := &appsv1.Deployment{}
	g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-manager"}, managers)).
		To(Succeed())
	s := managers.Status
	g.Expect([]int64{s.ObservedGeneration, int64(s.UpdatedReplicas), int64(s.AvailableReplicas), int64(s.Replicas)}).
		To(Equal([]int64{managers.Generation, 2, 2, 2}))
}

// waitForAgents waits until all agents run as they are to, and renew their Leases.
func waitForAgents(ctx context.Context) {
	GinkgoHelper()
	eventually(ctx, later, func(g Gomega) {
		agent := &v1.LBNodeAgent{}
		g.Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "default"}, agent)).To(Succeed())
		g.Expect(agent.Status.Conditions).
			To(ContainElement(And(HaveField("Type", "Ready"), HaveField("Status", metav1.ConditionTrue),
				HaveField("ObservedGeneration", agent.Generation), HaveField("Message", "3 of 3 agents are ready"))))
	})
	kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "daemonset/purelb-agent-default", "--timeout=120s")
}

// waitForWebhook waits until the API server asks the manager about a ServiceGroup.
func waitForWebhook(ctx context.Context) {
	GinkgoHelper()
	eventually(ctx, later, func(g Gomega) {
		out, err := tryKubectl(ctx, "apply", "-f", root+"test/e2e/testdata/broken.yaml")
		g.Expect(err).To(HaveOccurred())
		g.Expect(out).To(ContainSubstring(didYouMean))
	})
}

// createLBNodeAgent creates the LBNodeAgent that consoles offer to create, and waits until its
// agents are ready.
func createLBNodeAgent(ctx context.Context, version string) {
	GinkgoHelper()
	csv := &v1alpha1.ClusterServiceVersion{}
	Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: version}, csv)).To(Succeed())
	u := &unstructured.Unstructured{}
	Expect(json.Unmarshal([]byte(csv.Annotations["operatorframework.io/initialization-resource"]), &u.Object)).
		To(Succeed())
	eventually(ctx, soon, func(g Gomega) { // the API server may not know the webhooks' Service yet
		g.Expect(client.IgnoreAlreadyExists(kubeClient.Create(ctx, u))).To(Succeed())
	})
	waitForAgents(ctx)
}

// applyGroup applies the ServiceGroup of the test's Services.
func applyGroup(ctx context.Context) {
	GinkgoHelper()
	eventually(ctx, soon, func(g Gomega) {
		out, err := tryKubectl(ctx, "apply", "-f", root+"test/e2e/testdata/localdual.yaml")
		g.Expect(err).NotTo(HaveOccurred(), out)
	})
}

// unsubscribe deletes the Subscription and the ClusterServiceVersions, as consoles do, and
// waits until OLM has removed the managers.
func unsubscribe(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "-n", purelbNamespace, "delete", "subscription.operators.coreos.com", "purelb")
	kubectl(ctx, "-n", purelbNamespace, "delete", "clusterserviceversions", "--all", "--timeout=120s")
	eventually(ctx, later, func(g Gomega) { g.Expect(managerPods(ctx)).To(BeEmpty()) })
}

func managerPods(ctx context.Context) map[string]bool { return pods(ctx, "purelb-manager") }
func agentPods(ctx context.Context) map[string]bool   { return pods(ctx, "purelb-agent") }

// pods returns the UIDs of pods that are not being deleted.
func pods(ctx context.Context, name string) map[string]bool {
	GinkgoHelper()
	var list corev1.PodList
	Expect(kubeClient.List(
		ctx, &list, client.InNamespace(purelbNamespace), client.MatchingLabels{"app.kubernetes.io/name": name},
	)).To(Succeed())
	uids := map[string]bool{}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			uids[string(list.Items[i].UID)] = true
		}
	}
	return uids
}

// serviceAccountUID returns the UID of the agents' service account, or "" if there is none.
func serviceAccountUID(ctx context.Context) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{}
	err := kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: "purelb-agent"}, account)
	Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
	return string(account.UID)
}

// expectRenewals waits until each agent has renewed its Lease.
func expectRenewals(ctx context.Context) {
	GinkgoHelper()
	for _, n := range testLab.Nodes() {
		renewed := func() time.Time {
			lease := &coordinationv1.Lease{}
			Expect(kubeClient.Get(ctx, client.ObjectKey{Namespace: purelbNamespace, Name: v1.LeasePrefix + n.Name}, lease)).
				To(Succeed())
			Expect(lease.Spec.RenewTime).NotTo(BeNil())
			return lease.Spec.RenewTime.Time
		}
		Eventually(renewed).WithContext(ctx).WithTimeout(soon).Should(BeTemporally(">", renewed()), n.Name)
	}
}

// eventsWithReason returns the notes of events.
func eventsWithReason(ctx context.Context, reason string) []string {
	GinkgoHelper()
	var list eventsv1.EventList
	Expect(kubeClient.List(ctx, &list)).To(Succeed())
	var notes []string
	for i := range list.Items {
		if list.Items[i].Reason == reason {
			notes = append(notes, list.Items[i].Note)
		}
	}
	return notes
}

// findLeftovers returns all objects in PureLB's namespace but events, and all objects of the
// whole cluster and of kube-system that have PureLB's name.
func findLeftovers(ctx context.Context) []string {
	GinkgoHelper()
	var found []string
	list := func(namespaced bool, keep func(name string) bool, args ...string) {
		kinds := strings.Fields(kubectl(
			ctx, "api-resources", "--verbs=list", "-o", "name", fmt.Sprintf("--namespaced=%t", namespaced),
		))
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { // the last two are deprecated: kubectl would warn
			return slices.Contains([]string{"events", "events.events.k8s.io", "endpoints", "componentstatuses"}, kind)
		})
		for name := range strings.FieldsSeq(kubectl(ctx,
			append([]string{"get", strings.Join(kinds, ","), "-o", "name", "--ignore-not-found"}, args...)...)) {
			if keep(name) {
				found = append(found, name)
			}
		}
	}
	isPureLBs := func(name string) bool { return strings.Contains(name, "purelb") }
	list(true, func(string) bool { return true }, "-n", purelbNamespace)
	list(false, isPureLBs)
	list(true, isPureLBs, "-n", "kube-system")
	for i, name := range found {
		if strings.Contains(name, "/olm.og.purelb.") { // its end is computed by OLM
			found[i] = name[:strings.LastIndex(name, "-")]
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// documentedLeftovers are the objects that docs/how-to/olm.md says stay behind in a namespace
// that stays, and what every namespace has.
func documentedLeftovers() []string {
	names := []string{
		"configmap/kube-root-ca.crt", "serviceaccount/default", "namespace/purelb-system",
		"servicegroup.purelb.io/localdual", "operatorgroup.operators.coreos.com/purelb",
		"lease.coordination.k8s.io/manager.purelb.io",
		"apiservice.apiregistration.k8s.io/v1.purelb.io", "clusterrole.rbac.authorization.k8s.io/olm.og.purelb.admin",
		"clusterrole.rbac.authorization.k8s.io/olm.og.purelb.edit",
		"clusterrole.rbac.authorization.k8s.io/olm.og.purelb.view",
		"operator.operators.coreos.com/purelb.purelb-system",
		"rolebinding.rbac.authorization.k8s.io/purelb-manager-service-auth-reader",
	}
	for _, policy := range []string{
		"purelb-agents", "purelb-announcements", "purelb-crds", "purelb-nodes", "purelb-speakers",
	} {
		names = append(
			names, "validatingadmissionpolicy.admissionregistration.k8s.io/"+policy,
			"validatingadmissionpolicybinding.admissionregistration.k8s.io/"+policy,
		)
	}
	for _, flow := range []string{"purelb-agents", "purelb-manager"} {
		names = append(names, "flowschema.flowcontrol.apiserver.k8s.io/"+flow)
	}
	for _, crd := range []string{
		"announcements", "bgppeers", "commonannouncements", "lbnodeagents", "noderoutings", "servicegroups",
	} {
		names = append(names, "customresourcedefinition.apiextensions.k8s.io/"+crd+".purelb.io")
		for _, role := range []string{"admin", "crdview", "edit", "view"} {
			names = append(names, "clusterrole.rbac.authorization.k8s.io/"+crd+".purelb.io-v1-"+role)
		}
	}
	return names
}
