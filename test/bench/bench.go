package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/bench/report"
	"github.com/purelb/purelb-operator/test/lab"
)

const (
	systemNamespace = "purelb-system" // where PureLB is installed
	benchNamespace  = "bench"         // where the Services are
	waitLimit       = 5 * time.Minute // how long waitUntil waits: what takes longer is broken
)

// bench is what all sections of the measurements share.
type bench struct {
	options
	cases     *regexp.Regexp
	lab       *lab.Lab
	client    client.WithWatch
	clientset *kubernetes.Clientset
}

// say prints a line of progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// addRows prints rows and adds them to the files of results.
func (b *bench) addRows(rows ...report.Row) error {
	for _, row := range rows {
		b.say("%s: %s (%d): %v", row.Section, row.Case, row.N, row.Values)
	}
	return report.Add(b.out, rows...)
}

// open attaches to the lab and installs PureLB and the echo servers in it.
func (b *bench) open(ctx context.Context) error {
	bed, err := lab.Open(lab.DefaultStateDir)
	if err != nil {
		return err
	}
	if err := bed.Check(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", bed.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit but the API server's
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make the scheme: %w", err)
	}
	if b.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if b.clientset, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	b.lab = bed
	return b.install(ctx)
}

// install installs PureLB with its pools, and the echo servers.
func (b *bench) install(ctx context.Context) error {
	b.say("installing PureLB")
	for _, args := range [][]string{
		{"apply", "-k", filepath.Join(b.root, "config/default")},
		{"-n", systemNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=180s"},
		{"apply", "-f", filepath.Join(b.root, "config/samples/lbnodeagent.yaml")},
		{"apply", "-f", "groups.yaml"},
		{"-n", systemNamespace, "wait", "lbnodeagent/default", "--for=condition=Ready", "--timeout=180s"},
	} {
		if err := b.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	if err := b.addSubnets(ctx); err != nil {
		return err
	}
	if b.profile {
		if err := b.serveProfiles(ctx); err != nil {
			return err
		}
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchNamespace}}, echoDeployment(),
	} {
		if err := client.IgnoreAlreadyExists(b.client.Create(ctx, object)); err != nil {
			return fmt.Errorf("create %s: %w", object.GetName(), err)
		}
	}
	return b.kubectl(ctx, "-n", benchNamespace, "rollout", "status", "deployment/echo", "--timeout=180s")
}

// addSubnets gives the nodes' link a second subnet, which has room for any number of Local
// addresses, and gives the client a route to the Virtual addresses through all nodes.
func (b *bench) addSubnets(ctx context.Context) error {
	var errs []error
	for _, host := range append(b.nodeNames(), lab.Client) {
		h := b.findHost(host)
		octets := h.IPv4.Addr().As4()
		_, err := b.lab.Exec(ctx, host, "ip", "address", "replace", fmt.Sprintf("10.79.0.%d/16", octets[3]), "dev", "eth0")
		errs = append(errs, err)
	}
	for _, family := range []string{"-4", "-6"} {
		args := []string{"ip", family, "route", "replace", virtualSubnet[family]}
		for _, node := range b.nodeNames() {
			address := b.findHost(node).IPv4.Addr()
			if family == "-6" {
				address = b.findHost(node).IPv6.Addr()
			}
			args = append(args, "nexthop", "via", address.String())
		}
		_, err := b.lab.Exec(ctx, lab.Client, args...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// virtualSubnet is the subnet of the ServiceGroup virtual in groups.yaml, by the option
// of ip(8) for its family.
var virtualSubnet = map[string]string{"-4": "172.30.0.0/16", "-6": "fd00:30::/64"}

func (b *bench) nodeNames() []string {
	var names []string
	for _, n := range b.lab.Nodes() {
		names = append(names, n.Name)
	}
	return names
}

func (b *bench) findHost(name string) lab.Host {
	for _, h := range b.lab.Hosts() {
		if h.Name == name {
			return h
		}
	}
	return lab.Host{}
}

// kubectl runs kubectl in the lab.
func (b *bench) kubectl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, b.lab.Kubectl(),
		append([]string{"--kubeconfig", b.lab.Kubeconfig()}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// waitUntil calls check at each interval until it returns nil. The error says that it
// waited for what, and check's last error.
func waitUntil(ctx context.Context, interval time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// newService returns a Service that asks for addresses of a ServiceGroup.
func newService(name, group string, dual bool) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: benchNamespace, Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeLoadBalancer,
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			Selector:       map[string]string{"app": "echo"},
			Ports:          []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if dual {
		svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	return svc
}

// echoDeployment returns the servers behind the Services.
func echoDeployment() *appsv1.Deployment {
	labels := map[string]string{"app": "echo"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "echo", Namespace: benchNamespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
					}},
					Containers: []corev1.Container{{
						Name: "echo", Image: lab.EchoImage, ImagePullPolicy: corev1.PullNever,
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
							HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}},
					}},
				},
			},
		},
	}
}
