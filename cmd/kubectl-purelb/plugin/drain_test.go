package plugin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// onNode is the Announcement of a node with some addresses: those that the node is to have and, after
// a colon, those that its agent reports Announced. The word "shared" stands for the shared entries.
func onNode(node, text string) *v1.Announcement {
	a := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: "purelb-system"}}
	a.Spec.NodeName = node
	desired, reported, _ := strings.Cut(text, ":")
	for address := range strings.FieldsSeq(desired) {
		if address == "shared" {
			a.Spec.IncludeCommonAnnouncements = true
			continue
		}
		a.Spec.Addresses = append(a.Spec.Addresses, v1.AnnouncedAddress{Address: address})
	}
	for address := range strings.FieldsSeq(reported) {
		if address == "shared" {
			a.Status.CommonAnnouncementsRevision = new(int64(7))
			continue
		}
		a.Status.Addresses = append(a.Status.Addresses, v1.AddressStatus{Address: address, State: v1.StateAnnounced})
	}
	return a
}

// apiOf is an API server that has a node with labels, an LBNodeAgent and Announcements.
func apiOf(t *testing.T, labels map[string]string, announcements ...client.Object) client.WithWatch {
	t.Helper()
	return clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t)).WithObjects(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: labels}},
		&v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "purelb-system"}},
	).WithObjects(announcements...).Build()
}

// Drain labels the node, says what is left on it each time that this changes, and ends when nothing is.
func TestDrain(t *testing.T) {
	const labelled = "node node1 is labelled node.kubernetes.io/exclude-from-external-load-balancers\n"
	const done = "node node1 announces nothing any more\n"
	forbidden := apierrors.NewForbidden(
		schema.GroupResource{Group: "purelb.io", Resource: "announcements"}, "", errors.New("no"),
	)
	for name, row := range map[string]struct {
		// label of the node, if it is excluded already.
		label string
		// has is what is on the node, second after second; the last one stays.
		has []string
		// fails is the error of the API server from the second second on, which is for one second.
		fails error
		// want is what drain writes, and wantErr its error.
		want, wantErr string
	}{
		"a node that has nothing": {has: []string{""}, want: labelled + done},
		"a node that somebody excluded before": {
			label: "by-hand", has: []string{""},
			want: "node node1 is already labelled node.kubernetes.io/exclude-from-external-load-balancers\n" + done,
		},
		"addresses that go one after another": {
			has: []string{"10.0.0.1 10.0.0.2:10.0.0.1 10.0.0.2", "10.0.0.2:10.0.0.2", ""},
			want: labelled + "2 addresses left on node node1: 10.0.0.1, 10.0.0.2\n" +
				"1 address left on node node1: 10.0.0.2\n" + done,
		},
		"an address that the agent has yet to withdraw": {
			has: []string{":10.0.0.1", ""}, want: labelled + "1 address left on node node1: 10.0.0.1\n" + done,
		},
		"an address that the agent has yet to announce": {
			has: []string{"10.0.0.1", ""}, want: labelled + "1 address left on node node1: 10.0.0.1\n" + done,
		},
		"shared entries, which the agent withdraws last": {
			has:  []string{"shared:shared", ":shared", ""},
			want: labelled + "1 address left on node node1: the Virtual addresses of all nodes\n" + done,
		},
		"an address that no other node takes": {
			has: []string{"10.0.0.1"}, want: labelled + "1 address left on node node1: 10.0.0.1\n",
			wantErr: "node node1 still has 10.0.0.1; the label stays",
		},
		"an API server that is away for a second": {
			has: []string{"10.0.0.1", "10.0.0.1", ""}, fails: apierrors.NewServiceUnavailable("starting"),
			want: labelled + "1 address left on node node1: 10.0.0.1\n" + done,
		},
		"a right that is taken away": {
			has: []string{"10.0.0.1"}, fails: forbidden,
			want: labelled + "1 address left on node node1: 10.0.0.1\n", wantErr: "announcements.purelb.io is forbidden",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				labels := map[string]string{"rack": "a"}
				if row.label != "" {
					labels[corev1.LabelNodeExcludeBalancers] = row.label
				}
				start := time.Now()
				seconds := func() int { return int(time.Since(start) / time.Second) }
				api := interceptor.NewClient(apiOf(t, labels), interceptor.Funcs{
					List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
						announcements, isAnnouncements := list.(*v1.AnnouncementList)
						switch {
						case !isAnnouncements:
							return c.List(ctx, list, options...)
						case row.fails != nil && seconds() == 1:
							return row.fails
						}
						now := row.has[min(seconds(), len(row.has)-1)]
						announcements.Items = []v1.Announcement{*onNode("node1", now), *onNode("node2", "10.0.0.9 shared")}
						return nil
					},
				})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var out bytes.Buffer
				result, err := Drain(ctx, api, "purelb-system", "node1", &out)
				if out.String() != row.want {
					t.Errorf("got:\n%swant:\n%s", out.String(), row.want)
				}
				if row.wantErr == "" && err != nil ||
					row.wantErr != "" && (err == nil || !strings.Contains(err.Error(), row.wantErr)) {
					t.Errorf("error is %v, want %q", err, row.wantErr)
				}
				if left := err != nil; left != (len(result.Left) > 0) || result.Node != "node1" {
					t.Errorf("result is %+v", result)
				}
				if err == nil && seconds() < len(row.has)-1 {
					t.Errorf("it ends after %s, with addresses left", time.Since(start))
				}
				labels[corev1.LabelNodeExcludeBalancers] = cmp.Or(row.label, drainedLabelValue)
				checkLabels(t, api, labels)
			})
		})
	}
}

// Undrain removes the label of drain, and that of somebody else if it is forced to.
func TestUndrain(t *testing.T) {
	const free = "node node1 may be given addresses again; none moves back by itself\n"
	for name, row := range map[string]struct {
		node, label   string
		isForced      bool
		keeps         bool
		want, wantErr string
	}{
		"a drained node": {label: drainedLabelValue, want: free},
		"a node that is not drained": {
			want: "node node1 is not labelled " + corev1.LabelNodeExcludeBalancers + "\n",
		},
		"a node that somebody excluded":        {label: "by-hand", keeps: true, wantErr: "use --force to remove it"},
		"a node that somebody excluded, force": {label: "by-hand", isForced: true, want: free},
		"no such node":                         {node: "node9", wantErr: `nodes "node9" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{"rack": "a"}
			if row.label != "" {
				labels[corev1.LabelNodeExcludeBalancers] = row.label
			}
			api := apiOf(t, labels)
			var out bytes.Buffer
			result, err := Undrain(t.Context(), api, cmp.Or(row.node, "node1"), row.isForced, &out)
			if out.String() != row.want {
				t.Errorf("got:\n%swant:\n%s", out.String(), row.want)
			}
			if row.wantErr == "" && err != nil ||
				row.wantErr != "" && (err == nil || !strings.Contains(err.Error(), row.wantErr)) {
				t.Errorf("error is %v, want %q", err, row.wantErr)
			}
			if wasDrained := row.label != ""; err == nil && result.WasDrained != wasDrained {
				t.Errorf("result is %+v", result)
			}
			if !row.keeps {
				delete(labels, corev1.LabelNodeExcludeBalancers)
			}
			checkLabels(t, api, labels)
		})
	}
}

// checkLabels compares the labels of node1.
func checkLabels(t *testing.T, api client.Client, want map[string]string) {
	t.Helper()
	var node corev1.Node
	if err := api.Get(t.Context(), client.ObjectKey{Name: "node1"}, &node); err != nil || !maps.Equal(node.Labels, want) {
		t.Errorf("labels are %v, want %v (%v)", node.Labels, want, err)
	}
}
