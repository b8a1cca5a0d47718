package plugin

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Bounds of the log of one container in a support bundle: its last lines, and of these the last bytes.
const (
	maxLogLines = 50_000
	maxLogBytes = 4 << 20
)

// keptAnnotationPrefix begins the annotations that a support bundle has: those of PureLB. Others may be
// anything that a user wrote.
const keptAnnotationPrefix = "purelb.io/"

// redactedValue stands for what a support bundle does not have.
const redactedValue = "redacted"

// BundleOutcome is what came of writing a support bundle.
type BundleOutcome struct {
	File string `json:"file"`
	// Unread are the kinds that are not in it.
	Unread []Unread `json:"unread,omitempty"`
}

// WriteSupportBundle writes a gzipped tar with PureLB's objects, the Services that PureLB serves,
// Nodes, Leases and events of PureLB's namespace, and PureLB's pods with their logs. It has no Secrets
// and no ConfigMaps, and nothing of other pods and Deployments; annotations of others than PureLB,
// managed fields, environment variables, and what containers that are not PureLB's are told to run are
// left out. logs may be nil: then there are none.
func WriteSupportBundle(
	ctx context.Context, w io.Writer, c *Cluster, events []corev1.Event, logs kubernetes.Interface, now time.Time,
) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	add := func(name string, data []byte) error {
		header := &tar.Header{Name: "purelb-support/" + name, Mode: 0o644, Size: int64(len(data)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(data)
		return err
	}
	ours := slices.DeleteFunc(slices.Clone(c.Services), func(svc corev1.Service) bool { return !c.isOurs(&svc) })
	for _, kind := range []struct {
		name    string
		objects any
	}{
		{"servicegroups.yaml", redacted(c.ServiceGroups)}, {"lbnodeagents.yaml", redacted(c.LBNodeAgents)},
		{"announcements.yaml", redacted(slices.Concat(c.Announcements, c.Standbys, c.Askings))},
		{"commonannouncements.yaml", redacted(c.Commons)},
		{"bgppeers.yaml", redacted(c.BGPPeers)}, {"noderoutings.yaml", redacted(c.NodeRoutings)},
		{"services.yaml", redacted(ours)}, {"nodes.yaml", redacted(c.Nodes)}, {"leases.yaml", redacted(c.Leases)},
		{"deployments.yaml", redactedDeployments(c)}, {"pods.yaml", redactedPods(c)}, {"events.yaml", redacted(events)},
		{"status.yaml", StatusOf(c)}, {"unread.yaml", c.Unread},
	} {
		data, err := yaml.Marshal(kind.objects)
		if err == nil {
			err = add(kind.name, data)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", kind.name, err)
		}
	}
	for _, pod := range podsOf(c) {
		if logs == nil {
			break
		}
		for _, container := range pod.Spec.Containers {
			if err := addLogs(ctx, add, logs, &pod, container.Name); err != nil {
				return err
			}
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

// podsOf returns PureLB's pods: other programs may share its namespace.
func podsOf(c *Cluster) []corev1.Pod {
	return slices.DeleteFunc(
		slices.Clone(c.Pods), func(pod corev1.Pod) bool { return pod.Labels["app.kubernetes.io/part-of"] != "purelb" },
	)
}

// redacted copies objects without what a support bundle does not have.
func redacted[T any, P interface {
	*T
	client.Object
	DeepCopy() *T
}](objects []T) []T {
	out := make([]T, 0, len(objects))
	for i := range objects {
		copied := P(P(&objects[i]).DeepCopy())
		copied.SetManagedFields(nil)
		kept := map[string]string{}
		for key, value := range copied.GetAnnotations() {
			if len(key) > len(keptAnnotationPrefix) && key[:len(keptAnnotationPrefix)] == keptAnnotationPrefix {
				kept[key] = value
			}
		}
		copied.SetAnnotations(kept)
		out = append(out, *copied)
	}
	return out
}

func redactedPods(c *Cluster) []corev1.Pod {
	pods := redacted(podsOf(c))
	for i := range pods {
		redactContainers(&pods[i].Spec)
	}
	return pods
}

func redactedDeployments(c *Cluster) any {
	deployments := redacted(slices.DeleteFunc(
		slices.Clone(c.Deployments), func(d appsv1.Deployment) bool { return d.Name != managerName },
	))
	for i := range deployments {
		deployments[i].Spec.Template.Annotations = nil
		redactContainers(&deployments[i].Spec.Template.Spec)
	}
	return deployments
}

// ownContainers are the names of the containers whose command lines a support bundle has.
var ownContainers = []string{"manager", "agent", "speaker"}

// redactContainers removes the values of environment variables, and of containers that others have
// added what they are told to run.
func redactContainers(spec *corev1.PodSpec) {
	spec.EphemeralContainers = nil
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			container := &containers[i]
			for k := range container.Env {
				if container.Env[k].Value != "" {
					container.Env[k].Value = redactedValue
				}
			}
			if !slices.Contains(ownContainers, container.Name) {
				container.Command, container.Args, container.Lifecycle = nil, []string{redactedValue}, nil
				container.LivenessProbe, container.ReadinessProbe, container.StartupProbe = nil, nil, nil
			}
		}
	}
}

// addLogs adds the logs of one container, of this run and of the one before. A log that cannot be
// read says why.
func addLogs(
	ctx context.Context, add func(name string, data []byte) error, logs kubernetes.Interface, pod *corev1.Pod,
	container string,
) error {
	for _, previous := range []bool{false, true} {
		name := "logs/" + pod.Name + "-" + container + ".log"
		if previous {
			name = "logs/" + pod.Name + "-" + container + ".previous.log"
		}
		lines := int64(maxLogLines)
		stream, err := logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: container, Previous: previous, TailLines: &lines, Timestamps: true}).Stream(ctx)
		var data []byte
		if err == nil {
			data, err = lastOf(stream, maxLogBytes)
			err = errors.Join(err, stream.Close())
		} else if previous {
			continue // most have none
		}
		if err != nil {
			data = append(data, "cannot be read: "+err.Error()+"\n"...)
		}
		if err := add(name, data); err != nil {
			return err
		}
	}
	return nil
}

// lastOf returns the last bytes of what it reads, at most size of them.
func lastOf(r io.Reader, size int) ([]byte, error) {
	var data []byte
	part := make([]byte, 64<<10)
	for {
		n, err := r.Read(part)
		data = append(data, part[:n]...)
		if len(data) > 2*size {
			data = append(data[:0], data[len(data)-size:]...)
		}
		switch {
		case errors.Is(err, io.EOF):
			return data[max(0, len(data)-size):], nil
		case err != nil:
			return data[max(0, len(data)-size):], err
		}
	}
}
