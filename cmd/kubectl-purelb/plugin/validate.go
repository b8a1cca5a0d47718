package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/webhooks"
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
// but them. namespace is the manager's, and that of objects of PureLB's kinds that name none.
func Validate(ctx context.Context, files *Files, namespace string) (*Validation, error) {
	all, err := loadSchemas()
	if err != nil {
		return nil, err
	}
	v := &Validation{Findings: []Finding{}}
	for i := range files.Broken {
		b := &files.Broken[i]
		v.Errors++
		v.Findings = append(v.Findings, Finding{b.File, b.String(), "error", b.Why.Error()})
	}
	fileOf := map[string]string{} // by object
	together := &Objects{}
	objects := make([]client.Object, len(files.Objects))
	for i := range files.Objects {
		f := &files.Objects[i]
		object, errs := all.objectToAdmit(ctx, f, namespace)
		if object == nil && len(errs) == 0 && f.Object.GroupVersionKind().Group != v1.GroupVersion.Group {
			v.Skipped++
			continue
		}
		v.Checked++
		for _, err := range errs {
			v.refuse(f, err.Error())
		}
		if file, isAgain := fileOf[f.key(namespace)]; isAgain {
			v.refuse(f, "it is in "+file+" already: only what is applied last counts")
		} else {
			fileOf[f.key(namespace)] = f.File
		}
		if isWrittenByManager(f) {
			v.warn(f, "the manager alone writes objects of this kind: what others apply is refused")
		}
		objects[i] = object
		together.put(object)
	}
	options := webhooks.Options{Namespace: namespace, IsDefaultLoadBalancer: true}
	forServices := &Objects{ServiceGroups: openToAll(together.ServiceGroups)}
	for i, object := range objects {
		f, reader := &files.Objects[i], together
		if object == nil {
			continue
		}
		if svc, isService := object.(*corev1.Service); isService {
			if len(forServices.ServiceGroups) == 0 { // they are not in the files
				v.warn(f, allocation.AdviseWithoutGroups(svc)...)
				continue
			}
			reader = forServices
		}
		var warnings, refusals []string
		if svc, isService := object.(*corev1.Service); isService {
			warnings, err = predictForAnyFamilies(ctx, reader, options, svc)
		} else {
			warnings, refusals, err = predictAdmission(ctx, reader, options, nil, object)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		v.refuse(f, refusals...)
		switch object.(type) {
		case *v1.ServiceGroup, *corev1.Service:
			v.warn(f, warnings...)
		default: // warnings about the cluster's nodes, of which nothing is known
		}
	}
	return v, nil
}

// predictForAnyFamilies is what predictAdmission returns of a Service whatever families it gets of those that it may
// get. These are the cluster's, which is not known, if the Service does not say spec.ipFamilies. Where something is
// wrong with each, and nothing with all, it is what is wrong with the first.
func predictForAnyFamilies(
	ctx context.Context, reader client.Reader, o webhooks.Options, svc *corev1.Service,
) (warnings []string, err error) {
	var first []string
	for i, families := range possibleFamilies(svc) {
		asStored := svc.DeepCopy()
		asStored.Spec.IPFamilies = families
		of, _, err := predictAdmission(ctx, reader, o, nil, asStored) // no Service is refused
		switch {
		case err != nil:
			return nil, err
		case len(of) == 0:
			return nil, nil
		case i == 0:
			first, warnings = of, slices.Clone(of)
		default:
			warnings = slices.DeleteFunc(warnings, func(s string) bool { return !slices.Contains(of, s) })
		}
	}
	if len(warnings) == 0 {
		return first, nil
	}
	return warnings, nil
}

// possibleFamilies lists the values of spec.ipFamilies that the API server may store of a Service, but for their order.
// Those are left out that the addresses that the Service asks for rule out, unless they rule out all.
func possibleFamilies(svc *corev1.Service) [][]corev1.IPFamily {
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	possible := [][]corev1.IPFamily{both[:1], both[1:]}
	switch len(svc.Spec.IPFamilies) {
	case 0:
	case 1:
		possible = [][]corev1.IPFamily{svc.Spec.IPFamilies}
	default:
		return [][]corev1.IPFamily{svc.Spec.IPFamilies}
	}
	switch ptr.Deref(svc.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack) {
	case corev1.IPFamilyPolicyRequireDualStack:
		return [][]corev1.IPFamily{both}
	case corev1.IPFamilyPolicyPreferDualStack:
		possible = append(possible, both)
	}
	request := allocation.RequestOf(svc)
	request.Families = nil
	requested, _ := request.AddressesByFamily()
	isRuledOut := func(families []corev1.IPFamily) bool {
		for family := range requested {
			if !slices.Contains(families, family) {
				return true
			}
		}
		return false
	}
	if remaining := slices.DeleteFunc(slices.Clone(possible), isRuledOut); len(remaining) > 0 {
		return remaining
	}
	return possible
}

// key tells an object of a file from all others. Objects of PureLB's kinds that name no namespace are in
// that of the manager.
func (f *FileObject) key(namespace string) string {
	kind := f.Object.GroupVersionKind().GroupKind()
	if f.Object.GetNamespace() != "" || kind.Group != v1.GroupVersion.Group {
		namespace = f.Object.GetNamespace()
	}
	return fmt.Sprintf("%s %s/%s", kind, namespace, f.Object.GetName())
}

// isWrittenByManager reports whether an object is of a kind that admission lets nobody but the manager
// write.
func isWrittenByManager(f *FileObject) bool {
	kind := f.Object.GroupVersionKind()
	return kind.Group == v1.GroupVersion.Group &&
		slices.Contains([]string{"Announcement", "CommonAnnouncement", "NodeRouting"}, kind.Kind)
}

// openToAll copies ServiceGroups without saying whose Services may use them: the labels of
// namespaces are the cluster's.
func openToAll(groups []v1.ServiceGroup) []v1.ServiceGroup {
	open := slices.Clone(groups)
	for i := range open {
		open[i].Spec.AllowedNamespaces = nil
	}
	return open
}

func (v *Validation) refuse(f *FileObject, refusals ...string) {
	for _, refusal := range refusals {
		v.Errors++
		v.Findings = append(v.Findings, Finding{f.File, f.String(), "error", refusal})
	}
}

func (v *Validation) warn(f *FileObject, warnings ...string) {
	for _, warning := range warnings {
		v.Warnings++
		v.Findings = append(v.Findings, Finding{f.File, f.String(), "warning", warning})
	}
}

// WriteText writes one line for each finding, and one with the counts.
func (v *Validation) WriteText(w io.Writer, style Style) error {
	t := newTextWriter(w, style)
	for _, f := range v.Findings {
		health := Degraded
		if f.Severity == "error" {
			health = Critical
		}
		where := printableLine(f.File + ": " + f.Object + ":")
		t.writeLine(where + " " + t.health(health, f.Severity) + ": " + printableLine(f.Message))
	}
	t.line(fmt.Sprintf(
		"%s checked, %d of other kinds skipped: %s, %s", count(v.Checked, "object"), v.Skipped, count(v.Errors, "error"),
		count(v.Warnings, "warning"),
	))
	return t.flush()
}
