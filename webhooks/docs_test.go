package webhooks_test

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// TestDocs compares the messages of all tables with the headings of
// docs/reference/admission.md: each is explained there, and nothing else is.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/admission.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]*regexp.Regexp{}
	used := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if message, ok := strings.CutPrefix(strings.TrimSpace(line), "### `"); ok {
			message = strings.TrimSuffix(message, "`")
			pattern := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(regexp.QuoteMeta(message), "(?s:.+|)")
			headings[message] = regexp.MustCompile("^" + pattern + "$")
		}
	}
	for _, message := range append(messages(), rareMessages(t)...) {
		found := false
		for heading, pattern := range headings {
			if pattern.MatchString(message) {
				found, used[heading] = true, true
			}
		}
		if !found {
			t.Errorf("not in docs/reference/admission.md: %s", message)
		}
	}
	for heading := range headings {
		if !used[heading] {
			t.Errorf("in docs/reference/admission.md, but in no table of messages: %s", heading)
		}
	}
}

// messages is all warnings and reasons of the tables, without the values of
// fields.
func messages() []string {
	var all []string
	add := func(a answer) {
		all = append(all, a.warnings...)
		for _, c := range a.refused {
			if message, ok := reason(c); ok {
				all = append(all, message)
			}
		}
		if a.forbidden != "" {
			all = append(all, a.forbidden)
		}
	}
	for _, row := range createRows() {
		add(row.want)
	}
	for _, row := range updateRows() {
		add(row.want)
	}
	for _, row := range deleteRows() {
		add(row.want)
	}
	for _, row := range agentRows() {
		add(row.want)
	}
	for _, a := range []answer{deletionRefused, deletionAllowed, changeRefused, changeAllowed} {
		add(a)
	}
	for _, row := range append(peerRows(), routedRows()...) {
		add(row.want)
	}
	for _, row := range serviceRows() {
		add(warns(row.warnings...))
	}
	for _, a := range seedAnswers {
		add(a)
	}
	add(warns(overrides, heldByAnother, unnamed, addsHostRoutes, notOnLink))
	add(answer{refused: []cause{notHere, agentNotHere, peerNotHere}})
	return all
}

// rareMessages is what admission says of ServiceGroup "g" and of Service test/x in clusters that the tables do not
// have, such as one in which a hundred Services share an address. The tests of package allocation show when admission
// says it.
func rareMessages(t *testing.T) (all []string) {
	t.Helper()
	const pool = "remote: {pool: 10.0.0.1-10.0.0.9, subnet: 10.0.0.0/24}"
	groupOf := func(spec string) (sg v1.ServiceGroup) {
		t.Helper()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(group("g", spec).Object, &sg); err != nil {
			t.Fatal(err)
		}
		return sg
	}
	// holder has 10.0.0.1, and was given it by a sharing key.
	holder := func(namespace, name, key, givenByKey string) *allocation.Service {
		addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		return &allocation.Service{
			Namespace: namespace, Name: name, IsOurs: true, Created: time.Unix(1, 0), SharingKey: key, Addresses: addrs,
			Allocated: allocation.Record{Addresses: addrs, Group: "g", Type: v1.PoolTypeRemote, Key: givenByKey},
		}
	}
	var hundred []*allocation.Service
	for i := range allocation.MaxSharers {
		hundred = append(hundred, holder(user, fmt.Sprintf("s%d", i), "key", "key"))
	}
	for _, row := range []struct {
		spec   string
		others []*allocation.Service
		// has is the address that the Service has, and givenByKey the key by which it was given it.
		has, givenByKey string
		asks            []string // annotations
	}{
		{pool, hundred, "", "", []string{"allow-shared-ip", "key"}},
		{
			pool, []*allocation.Service{holder(user, "a", "new", "old"), holder(user, "b", "old", "old")}, "", "",
			[]string{"allow-shared-ip", "new"},
		},
		{
			pool + "\nshareAcrossNamespaces: true",
			[]*allocation.Service{holder(other, "a", "new", "old"), holder(other, "b", "old", "old")}, "", "",
			[]string{"allow-shared-ip", "new"},
		},
		{
			pool, []*allocation.Service{holder(user, "a", "", "")}, "", "",
			[]string{"allow-shared-ip", "key", "addresses", "10.0.0.1"},
		},
		{
			pool, []*allocation.Service{holder(user, "a", "key", "key")}, "10.0.0.1", "key",
			[]string{"addresses", "10.0.0.1"},
		},
		{
			pool, []*allocation.Service{holder(user, "a", "key", "key")}, "10.0.0.2", "",
			[]string{"allow-shared-ip", "key"},
		},
		{pool + "\nreservations: [{address: 10.0.0.2, service: test/web}]", nil, "10.0.0.2", "", nil},
		{
			pool + "\nallowedNamespaces: {from: Selector, selector: {matchLabels: {tier: gold}}}", nil, "10.0.0.2", "", nil,
		},
	} {
		svc := service("x", "g", 80)
		svc.CreationTimestamp, svc.Spec.IPFamilies = metav1.Unix(2, 0), []corev1.IPFamily{corev1.IPv4Protocol}
		annotated(row.asks...)(svc)
		if row.has != "" {
			meta.SetStatusCondition(&svc.Status.Conditions, metav1.Condition{
				Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Reason: v1.ReasonRecorded,
				Message: row.has + " group=g type=remote key=" + row.givenByKey,
			})
		}
		a := allocation.Admission{Namespace: namespace, Inputs: allocation.Inputs{
			Catalog: allocation.NewCatalog([]v1.ServiceGroup{groupOf(row.spec)}, namespace),
			InUse:   allocation.NewInUse(row.others...), NamespaceLabels: map[string]map[string]string{user: {}},
		}}
		all = append(all, a.Advise(svc)...)
	}

	netbox := func(host string) v1.ServiceGroup {
		return groupOf(
			"netbox: {url: 'https://" + host + "', tokenSecretRef: {name: a, key: b}, v4: {prefixes: [10.0.0.0/24]}}",
		)
	}
	before, after := netbox("one.example"), netbox("two.example")
	used := holder(user, "a", "", "")
	used.Allocated.Type = v1.PoolTypeNetbox
	a := allocation.Admission{
		Namespace: namespace, Groups: []v1.ServiceGroup{before}, Inputs: allocation.Inputs{InUse: allocation.NewInUse(used)},
	}
	for _, annotations := range []map[string]string{nil, {v1.AnnotationAllowOrphans: "true"}} {
		after.Annotations = annotations
		warnings, errs := a.AdmitUpdate(&before, &after)
		all = append(all, warnings...)
		for _, err := range errs {
			all = append(all, err.Detail)
		}
	}

	// Two groups have one address, and one network.
	sg, other := groupOf(pool), groupOf("remote: {pool: 10.0.0.9-10.0.0.12, subnet: 10.0.0.0/24}\nbgp: {prepend: 1}")
	other.Name = "other"
	changed := groupOf(pool + "\nautoAssign: true")
	groups := []v1.ServiceGroup{sg, other}
	a = allocation.Admission{
		Namespace: namespace, Groups: groups, Inputs: allocation.Inputs{InUse: allocation.NewInUse()},
	}
	overlapping, _ := a.AdmitUpdate(&sg, &changed)
	sharing, _ := routing.AdmitGroup(&sg, &changed, groups, nil, nil)
	if len(overlapping) == 0 || len(sharing) == 0 {
		t.Errorf("warnings: %q and %q", overlapping, sharing)
	}
	return slices.Concat(all, overlapping, sharing)
}

var value = regexp.MustCompile(`^(Forbidden|Invalid value): ("(\\.|[^"\\])*": |-?[0-9]+: )?`)

// reason is the message of a cause without the value of the field, if the
// message is PureLB's.
func reason(c cause) (string, bool) {
	message := value.ReplaceAllString(c.message, "")
	foreign := strings.Contains(message, "in body should") || c.field == "metadata.name"
	return message, !foreign
}
