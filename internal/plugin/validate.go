package plugin

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// Finding is what admission would say of one object.
type Finding struct {
	File   string `json:"file"`
	Object string `json:"object"`
	// Severity is "error" for what would be refused, and "warning".
	Severity string `json:"severity"`
	Message  string `json:"message"`
}

// Validation is what admission would say of files.
type Validation struct {
	Checked  int       `json:"checked"` // objects of PureLB's kinds, and Services of type LoadBalancer
	Skipped  int       `json:"skipped"` // objects of other kinds
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Validate checks files as the API server and PureLB's webhooks would, if the cluster had nothing
// but them. namespace is the manager's, and that of objects that name none.
func Validate(ctx context.Context, files *Files, namespace string) (*Validation, error) {
	all, err := loadSchemas()
	if err != nil {
		return nil, err
	}
	v := &validator{Validation: Validation{Findings: []Finding{}}, schemas: all, namespace: namespace}
	groups := make([]v1.ServiceGroup, 0, len(files.ServiceGroups))
	for i := range files.ServiceGroups {
		sg := *files.ServiceGroups[i].DeepCopy()
		sg.Namespace = orElse(sg.Namespace, namespace)
		groups = append(groups, sg)
	}
	v.admission = &allocation.Admission{Namespace: namespace, Groups: groups}
	v.admission.Catalog = allocation.NewCatalog(groups, namespace)
	v.admission.InUse = allocation.NewInUse()
	for i := range files.Objects {
		v.check(ctx, &files.Objects[i])
	}
	return &v.Validation, nil
}

type validator struct {
	Validation
	schemas   schemas
	namespace string
	admission *allocation.Admission
}

func (v *validator) check(ctx context.Context, f *FileObject) {
	switch f.Object.GetAPIVersion() {
	case v1.GroupVersion.String():
		v.checkOurs(ctx, f)
	case "v1":
		var svc corev1.Service
		if f.Object.GetKind() != "Service" || runtime.DefaultUnstructuredConverter.FromUnstructured(f.Object.Object, &svc) != nil || !controllers.IsOurs(&svc, true) {
			v.Skipped++
			return
		}
		v.Checked++
		if len(v.admission.Catalog) > 0 { // else the groups are not in the files
			v.warn(f, v.admission.Advise(&svc)...)
		}
	default:
		v.Skipped++
	}
}

// checkOurs checks an object of one of PureLB's kinds.
func (v *validator) checkOurs(ctx context.Context, f *FileObject) {
	v.Checked++
	schema := v.schemas[f.Object.GetKind()]
	if schema == nil {
		v.refuse(f, fmt.Errorf("%s has no kind %s", f.Object.GetAPIVersion(), f.Object.GetKind()))
		return
	}
	before := v.Errors
	for _, err := range schema.check(ctx, f.Object.DeepCopy()) {
		v.refuse(f, err)
	}
	if f.err != nil && v.Errors == before {
		v.refuse(f, f.err)
	}
	if v.Errors > before || f.err != nil {
		return
	}
	object := f.Object.DeepCopy()
	object.SetNamespace(orElse(object.GetNamespace(), v.namespace))
	switch object.GetKind() {
	case "ServiceGroup":
		var sg v1.ServiceGroup
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &sg); err != nil {
			v.refuse(f, err)
			return
		}
		warnings, errs := v.admission.AdmitCreate(&sg)
		v.warn(f, warnings...)
		for _, err := range errs {
			v.refuse(f, err)
		}
	case "LBNodeAgent":
		var a v1.LBNodeAgent
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &a); err != nil {
			v.refuse(f, err)
			return
		}
		if err := agents.OutOfScope(&a, v.namespace); err != nil {
			v.refuse(f, err)
		}
		for _, err := range agents.Validate(&a) {
			v.refuse(f, err)
		}
	}
}

func (v *validator) refuse(f *FileObject, err error) {
	v.Errors++
	v.Findings = append(v.Findings, Finding{f.File, f.String(), "error", err.Error()})
}

func (v *validator) warn(f *FileObject, warnings ...string) {
	for _, warning := range warnings {
		v.Warnings++
		v.Findings = append(v.Findings, Finding{f.File, f.String(), "warning", warning})
	}
}

// WriteText writes one line for each finding, and one with the counts.
func (v *Validation) WriteText(w io.Writer, style Style) error {
	t := newText(w, style)
	for _, f := range v.Findings {
		health := Degraded
		if f.Severity == "error" {
			health = Critical
		}
		t.line(fmt.Sprintf("%s: %s: %s: %s", f.File, f.Object, t.health(health, f.Severity), f.Message))
	}
	t.line(fmt.Sprintf("%s checked, %d of other kinds skipped: %s, %s", count(v.Checked, "object"), v.Skipped, count(v.Errors, "error"), count(v.Warnings, "warning")))
	return t.flush()
}
