package allocation_test

import (
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestAdmitShrunkGroup takes ranges away from a ServiceGroup. What Services have stays in a
// range, whatever the group's author has forgotten.
func TestAdmitShrunkGroup(t *testing.T) {
	const inUse = "10.0.0.1 10.0.0.4 fd00::2"
	sg := groupMadeAt(t, "a", 1,
		"local: {v4pools: [{pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24}, {pool: 10.0.1.1-10.0.1.5, subnet: 10.0.1.0/24}], "+
			"v6pool: {pool: 'fd00::1-fd00::5', subnet: 'fd00::/64'}}")
	refusal := func(what string) string {
		return "spec: Forbidden: leaves " + what + " outside every pool: keep them in one, or " + orphanCure
	}
	const v6, v4 = ", v6pool: {pool: 'fd00::1-fd00::5', subnet: 'fd00::/64'}}",
		"local: {pool: 10.0.0.1-10.0.0.5, subnet: 10.0.0.0/24"
	for _, row := range []struct{ name, spec, want string }{
		{"a range that is free goes", v4 + v6, ""},
		{
			"free ends go",
			"local: {pool: 10.0.0.1-10.0.0.4, subnet: 10.0.0.0/24, v6pool: {pool: 'fd00::2', subnet: 'fd00::/64'}}", "",
		},
		{
			"the first goes", "local: {pool: 10.0.0.2-10.0.0.5, subnet: 10.0.0.0/24" + v6,
			refusal("1 address in use by 1 Service (test/s1)"),
		},
		{
			"the last goes", "local: {pool: 10.0.0.1-10.0.0.3, subnet: 10.0.0.0/24" + v6,
			refusal("1 address in use by 1 Service (test/s2)"),
		},
		{
			"a range goes", "local: {pool: 10.0.1.1-10.0.1.5, subnet: 10.0.1.0/24" + v6,
			refusal("2 addresses in use by 2 Services (test/s1, test/s2)"),
		},
		{"a family goes", v4 + "}", refusal("1 address in use by 1 Service (test/s3)")},
		{
			"all ranges are others", "local: {pool: 10.0.2.1-10.0.2.5, subnet: 10.0.2.0/24}",
			refusal("3 addresses in use by 3 Services (test/s1, test/s2, test/s3)"),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			after := sg.DeepCopy()
			after.Spec = group(t, "a", row.spec).Spec
			got := ""
			if _, errs := admissionOf(inUse, sg).AdmitUpdate(&sg, after); len(errs) > 0 {
				got = errs.ToAggregate().Error()
			}
			if got != row.want {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
			after.Annotations = map[string]string{v1.AnnotationAllowOrphans: "true"}
			warnings, errs := admissionOf(inUse, sg).AdmitUpdate(&sg, after)
			if len(errs) > 0 || (len(warnings) > 0) != (row.want != "") {
				t.Errorf("with the annotation that allows it: %v, warnings %q", errs, warnings)
			}
		})
	}
}
