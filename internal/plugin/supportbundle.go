package plugin

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// maxLogBytes bounds what a support bundle has of the log of one container.
const maxLogBytes = 4 << 20

// annotationsKept are the annotations that a support bundle has: those of PureLB. Others may be
// anything that a user wrote.
const annotationsKept = "purelb.io/"

// WriteSupportBundle writes a gzipped tar with PureLB's objects, the Services that PureLB serves,
// Nodes, Leases, events and logs of PureLB's namespace. It has no Secrets and no ConfigMaps;
// annotations of others than PureLB, managed fields, and environment variables of pods are left
// out. logs may be nil: then there are none.
func WriteSupportBundle(ctx context.Context, w io.Writer, c *Cluster, events []corev1.Event, logs kubernetes.Interface, now time.Time) error {
	files := map[string][]byte{}
	add := func(name string, objects any) error {
		data, err := yaml.Marshal(objects)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		files[name] = data
		return nil
	}
	ours := slices.DeleteFunc(slices.Clone(c.Services), func(svc corev1.Service) bool { return !c.isOurs(&svc) })
	for _, kind := range []struct {
		name    string
		objects any
	}{
		{"servicegroups.yaml", redacted(c.ServiceGroups)}, {"lbnodeagents.yaml", redacted(c.LBNodeAgents)},
		{"announcements.yaml", redacted(c.Announcements)}, {"commonannouncements.yaml", redacted(c.Commons)},
		{"bgppeers.yaml", redacted(c.BGPPeers)}, {"noderoutings.yaml", redacted(c.NodeRoutings)},
		{"services.yaml", redacted(ours)}, {"nodes.yaml", redacted(c.Nodes)}, {"leases.yaml", redacted(c.Leases)},
		{"deployments.yaml", redactedDeployments(c)}, {"pods.yaml", redactedPods(c)}, {"events.yaml", redacted(events)},
		{"status.yaml", StatusOf(c)}, {"unread.yaml", c.Unread},
	} {
		if err := add(kind.name, kind.objects); err != nil {
			return err
		}
	}
	if logs != nil {
		for i := range c.Pods {
			addLogs(ctx, files, logs, &c.Pods[i])
		}
	}
	return writeTar(w, files, now)
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
			if len(key) > len(annotationsKept) && key[:len(annotationsKept)] == annotationsKept {
				kept[key] = value
			}
		}
		copied.SetAnnotations(kept)
		out = append(out, *copied)
	}
	return out
}

func redactedPods(c *Cluster) []corev1.Pod {
	pods := redacted(c.Pods)
	for i := range pods {
		redactContainers(&pods[i].Spec)
	}
	return pods
}

func redactedDeployments(c *Cluster) any {
	deployments := redacted(c.Deployments)
	for i := range deployments {
		redactContainers(&deployments[i].Spec.Template.Spec)
	}
	return deployments
}

// redactContainers removes the values of environment variables.
func redactContainers(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for k := range containers[i].Env {
				if containers[i].Env[k].Value != "" {
					containers[i].Env[k].Value = "redacted"
				}
			}
		}
	}
}

// addLogs adds the logs of one pod, of this run and of the one before. A log that cannot be read
// says why.
func addLogs(ctx context.Context, files map[string][]byte, logs kubernetes.Interface, pod *corev1.Pod) {
	for _, container := range pod.Spec.Containers {
		for name, previous := range map[string]bool{".log": false, ".previous.log": true} {
			limit := int64(maxLogBytes)
			data, err := logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: container.Name, Previous: previous, LimitBytes: &limit, Timestamps: true}).DoRaw(ctx)
			switch {
			case err == nil:
			case previous:
				continue // most have none
			default:
				data = []byte("cannot be read: " + err.Error() + "\n")
			}
			files["logs/"+pod.Name+"-"+container.Name+name] = data
		}
	}
}

func writeTar(w io.Writer, files map[string][]byte, now time.Time) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: "purelb-support/" + name, Mode: 0o644, Size: int64(len(files[name])), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(files[name]); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}
