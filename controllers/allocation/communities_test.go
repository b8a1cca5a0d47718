package allocation_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

var allowedCommunities = &v1.RouteCommunities{
	Communities:      []v1.Community{"no-export", "65000:200", "65000:0100"},
	LargeCommunities: []v1.LargeCommunity{"65000:2:1", "65000:1:1"},
}

// TestGrantCommunities asks for communities in all forms, and gets values that are allowed alone.
func TestGrantCommunities(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, list string
		allowed    *v1.RouteCommunities
		want       string // what is granted, then what is refused
	}{
		{"nothing", "", allowedCommunities, "[] [] []"},
		{"spaces", "  ", allowedCommunities, "[] [] []"},
		{"one", "65000:200", allowedCommunities, "[65000:200] [] []"},
		{"of both kinds, with spaces", " 65000:1:1 ,no-export", allowedCommunities, "[no-export] [65000:1:1] []"},
		{"in any order, twice", "no-export,65000:200,no-export", allowedCommunities, "[65000:200 no-export] [] []"},
		{"with other digits", "065000:100", allowedCommunities, "[65000:0100] [] []"},
		{"a name by its number", "65535:65281", allowedCommunities, "[no-export] [] []"},
		{"one that is not allowed", "65000:200,blackhole", allowedCommunities, "[65000:200] [] [blackhole is not allowed]"},
		{"a large one that is not allowed", "65000:1:2", allowedCommunities, "[] [] [65000:1:2 is not allowed]"},
		{"a large one like a community", "65000:200:0", allowedCommunities, "[] [] [65000:200:0 is not allowed]"},
		{"an unknown name", "No-Export", allowedCommunities, `[] [] ["No-Export" is not a community]`},
		{"an empty one", "65000:200,", allowedCommunities, `[65000:200] [] ["" is not a community]`},
		{"too large a number", "65536:1", allowedCommunities, `[] [] ["65536:1" is not a community]`},
		{"a negative number", "65000:-1", allowedCommunities, `[] [] ["65000:-1" is not a community]`},
		{"unprintable", "\x1b[0m", allowedCommunities, `[] [] ["\x1b[0m" is not a community]`},
		{"long", strings.Repeat("9", 900), allowedCommunities,
			`[] [] ["` + strings.Repeat("9", 32) + `" is not a community]`},
		{"long, of zeros", strings.Repeat("0", 900) + ":1", allowedCommunities,
			"[] [] [" + strings.Repeat("0", 32) + " is not allowed]"},
		{"too long", "65000:200" + strings.Repeat(" ", 1024), allowedCommunities,
			"[] [] [it is too long: it may have 1024 bytes]"},
		{"of a group that allows none", "65000:200", nil, "[] [] [65000:200 is not allowed]"},
	} {
		granted, refused := allocation.GrantCommunities(row.list, row.allowed)
		if got := fmt.Sprint(granted.Communities, " ", granted.LargeCommunities, " ", refused); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// TestCommunitiesWarning says what a Service asks for in vain: in its condition and event, and at admission.
func TestCommunitiesWarning(t *testing.T) {
	t.Parallel()
	const name = "annotation purelb.io/bgp-communities: "
	spec := func(aggregation v1.Aggregation, allowed *v1.RouteCommunities) *v1.ServiceGroup {
		sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: "default"}}
		sg.Spec.Remote = &v1.RemotePools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{
			{Pool: "10.0.0.1-10.0.0.9", Subnet: "10.0.0.0/24", Aggregation: aggregation},
		}}}
		sg.Spec.BGP = &v1.ServiceGroupBGPSpec{AllowServices: allowed}
		return sg
	}
	single, shared, none := spec("/32", allowedCommunities), spec("/24", allowedCommunities), spec("/32", nil)
	shareable := spec("/32", allowedCommunities)
	shareable.Spec.ShareAcrossNamespaces = true
	asking := func(list string) *corev1.Service {
		svc := serviceAsking("purelb.io/bgp-communities="+list, "purelb.io/allow-shared-ip=key")
		svc.CreationTimestamp = metav1.Unix(1000, 0)
		return svc
	}
	policyLocal := asking("no-export")
	policyLocal.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	older := func(namespace string, seconds int64) *allocation.Service {
		s := sharer(namespace, "old", "key", "10.0.0.1")
		s.Created, s.Allocated.Key = time.Unix(seconds, 0), "key"
		return s
	}
	for _, row := range []struct {
		name  string
		sg    *v1.ServiceGroup
		svc   *corev1.Service
		inUse []*allocation.Service
		want  string
	}{
		{"allowed", single, asking("no-export"), nil, ""},
		{"nothing", none, asking(""), nil, ""},
		{"not allowed", single, asking("no-export,65000:1,x"), nil, name +
			`65000:1 is not allowed, "x" is not a community: ` +
			"spec.bgp.allowServices of ServiceGroup default says which the routes may have"},
		{"of a group that allows none", none, asking("no-export"), nil, name + "ServiceGroup default allows Services no " +
			"communities: it has no spec.bgp.allowServices"},
		{"a route to more addresses", shared, asking("no-export"), nil, name + "has no effect on a route to more addresses " +
			"than one, as ServiceGroup default has them (/24)"},
		{"with policy Local, a route of its own", shared, policyLocal, nil, ""},
		{"beside an older Service", single, asking("no-export"), []*allocation.Service{older("test", 999)}, name +
			"has no effect on 10.0.0.1: of the Services that share it, the oldest decides: Service test/old"},
		{"beside an older Service of another namespace", shareable, asking("no-export"),
			[]*allocation.Service{older("other", 999)}, name +
				"has no effect on 10.0.0.1: of the Services that share it, the oldest decides: a Service of another namespace"},
		{"beside a younger Service", single, asking("no-export"), []*allocation.Service{older("test", 1001)}, ""},
	} {
		inputs := allocation.Inputs{
			Catalog: allocation.NewCatalog([]v1.ServiceGroup{*row.sg}, "purelb-system"),
			InUse:   allocation.NewInUse(row.inUse...),
		}
		result := allocation.Allocate(allocation.RequestOf(row.svc), &inputs)
		if result.Warning != row.want || result.Reason != v1.ReasonAllocated {
			t.Errorf("%s: %s\n%q, want\n%q", row.name, result.Reason, result.Warning, row.want)
		}
		admission := allocation.Admission{Inputs: inputs, Namespace: "purelb-system"}
		if got := strings.Join(admission.Advise(row.svc), ";"); row.want != "" && !strings.Contains(got, row.want) {
			t.Errorf("%s: at admission %q", row.name, got)
		}
	}
}
