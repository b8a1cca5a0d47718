package agents_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

func TestOutOfScope(t *testing.T) {
	a := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "a"}}
	if err := agents.OutOfScopeError(a, "purelb-system"); err != nil {
		t.Error(err)
	}
	if err := agents.OutOfScopeError(a, "other"); err == nil || err.Field != "metadata.namespace" ||
		!strings.Contains(err.Detail, "namespace other") {
		t.Errorf("in another namespace: %v", err)
	}
}

// TestValidate names the fields that are faulty.
func TestValidate(t *testing.T) {
	lifetimes := func(valid, preferred *int32) *v1.InterfaceAddressConfig {
		return &v1.InterfaceAddressConfig{ValidLifetime: valid, PreferredLifetime: preferred}
	}
	local := func(l v1.LBNodeAgentLocal) v1.LBNodeAgentSpec { return v1.LBNodeAgentSpec{Local: &l} }
	onInterface := func(c *v1.InterfaceAddressConfig) v1.LBNodeAgentSpec {
		return local(v1.LBNodeAgentLocal{AddressConfig: &v1.AddressConfig{LocalInterface: c}})
	}
	onDummy := func(c *v1.InterfaceAddressConfig) v1.LBNodeAgentSpec {
		return local(v1.LBNodeAgentLocal{AddressConfig: &v1.AddressConfig{DummyInterface: c}})
	}
	const (
		localPreferred = "spec.local.addressConfig.localInterface.preferredLifetime"
		dummyPreferred = "spec.local.addressConfig.dummyInterface.preferredLifetime"
	)
	for _, row := range []struct {
		name string
		spec v1.LBNodeAgentSpec
		want []string // fields
	}{
		{"a label that can exist", v1.LBNodeAgentSpec{NodeSelector: map[string]string{"example.com/a": "b"}}, nil},
		{
			"a label that no node can have", v1.LBNodeAgentSpec{NodeSelector: map[string]string{"a b": "c"}},
			[]string{"spec.nodeSelector"},
		},
		{
			"the label that says which agent a node runs",
			v1.LBNodeAgentSpec{NodeSelector: map[string]string{v1.LabelAgent: "a"}}, []string{"spec.nodeSelector"},
		},
		{
			"a value that no node can have", v1.LBNodeAgentSpec{NodeSelector: map[string]string{"a": "b c"}},
			[]string{"spec.nodeSelector[a]"},
		},

		{"the default interface", local(v1.LBNodeAgentLocal{LocalInterface: "default"}), nil},
		{"a regular expression", local(v1.LBNodeAgentLocal{LocalInterface: "en.*|eth0"}), nil},
		{"no regular expression", local(v1.LBNodeAgentLocal{LocalInterface: "en["}), []string{"spec.local.localInterface"}},

		{
			"names of interfaces",
			local(v1.LBNodeAgentLocal{Interfaces: []v1.InterfaceName{"eth0", "a23456789012345"}, DummyInterface: "kube-lb0"}),
			nil,
		},
		{
			"a name of 16 bytes", local(v1.LBNodeAgentLocal{Interfaces: []v1.InterfaceName{"eth0", "a234567890123456"}}),
			[]string{"spec.local.interfaces[1]"},
		},
		{
			"a name of 15 letters and 16 bytes", local(v1.LBNodeAgentLocal{Interfaces: []v1.InterfaceName{"ä23456789012345"}}),
			[]string{"spec.local.interfaces[0]"},
		},
		{
			"names that the kernel refuses", local(v1.LBNodeAgentLocal{Interfaces: []v1.InterfaceName{".", ".."}}),
			[]string{"spec.local.interfaces[0]", "spec.local.interfaces[1]"},
		},
		{
			"such a virtual interface", local(v1.LBNodeAgentLocal{DummyInterface: "a234567890123456"}),
			[]string{"spec.local.dummyInterface"},
		},
		{
			"a template of names", local(v1.LBNodeAgentLocal{DummyInterface: "lb%d"}), []string{"spec.local.dummyInterface"},
		},

		{"equal lifetimes", onInterface(lifetimes(ptr.To[int32](100), ptr.To[int32](100))), nil},
		{
			"preferred for longer than valid", onInterface(lifetimes(ptr.To[int32](100), ptr.To[int32](101))),
			[]string{localPreferred},
		},
		{"valid for ever", onInterface(lifetimes(ptr.To[int32](0), ptr.To[int32](100000))), nil},
		{"as long as the default", onInterface(lifetimes(nil, ptr.To[int32](300))), nil},
		{"longer than the default", onInterface(lifetimes(nil, ptr.To[int32](301))), []string{localPreferred}},
		{"only a valid lifetime", onInterface(lifetimes(ptr.To[int32](1), nil)), nil},
		{"the virtual interface's default has no end", onDummy(lifetimes(nil, ptr.To[int32](100000))), nil},
		{"longer there than valid", onDummy(lifetimes(ptr.To[int32](100), ptr.To[int32](101))), []string{dummyPreferred}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, err := range agents.Validate(&v1.LBNodeAgent{Spec: row.spec}) {
				if got = append(got, err.Field); err.Detail == "" {
					t.Errorf("%s: no reason", err.Field)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("faulty fields (-want +got):\n%s", diff)
			}
		})
	}
}
