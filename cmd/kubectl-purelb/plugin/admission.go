package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/webhooks"
)

// objectToAdmit returns what the webhooks are asked about: a ServiceGroup, an LBNodeAgent or a BGPPeer of a file as the
// API server would store it, with defaults, and in namespace if it names none; or a Service that may be PureLB's as
// it is in the file. It is nil for any other object, and for one that the API server would refuse, for the
// reasons that are returned.
func (s schemas) objectToAdmit(ctx context.Context, f *FileObject, namespace string) (client.Object, []error) {
	object := f.Object.DeepCopy()
	gvk := object.GroupVersionKind()
	var into client.Object
	switch {
	case gvk.Group == v1.GroupVersion.Group:
		schema := s[gvk.Kind]
		if gvk.Version != v1.GroupVersion.Version || schema == nil {
			return nil, []error{
				fmt.Errorf("there is no kind %s in %s: kubectl api-resources lists what there is", gvk.Kind, gvk.GroupVersion()),
			}
		}
		if object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		delete(object.Object, "status") // which is written by itself
		var errs []error
		for _, err := range schema.defaultAndCheck(ctx, object) {
			errs = append(errs, err)
		}
		if len(errs) > 0 {
			return nil, errs
		}
		switch gvk.Kind {
		case "ServiceGroup":
			into = &v1.ServiceGroup{}
		case "LBNodeAgent":
			into = &v1.LBNodeAgent{}
		case "BGPPeer":
			into = &v1.BGPPeer{}
		default: // nobody but PureLB writes it, and no webhook is asked
			return nil, nil
		}
	case gvk == corev1.SchemeGroupVersion.WithKind("Service"):
		into = &corev1.Service{}
	default:
		return nil, nil
	}
	text, err := object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return nil, []error{err}
	}
	if svc, isService := into.(*corev1.Service); isService && !controllers.IsOurs(svc, true) {
		return nil, nil
	}
	return into, nil
}

// predictAdmission is what the webhooks would answer about an object that is to be created, or changed if
// before is not nil, in the cluster that reader has: warnings, and a text for each refused field.
func predictAdmission(
	ctx context.Context, reader client.Reader, o webhooks.Options, before, after client.Object,
) (warnings, refusals []string, err error) {
	warnings, err = webhooks.PredictAdmission(ctx, reader, o, before, after)
	var answer apierrors.APIStatus
	switch {
	case err == nil:
	case apierrors.IsInvalid(err) && errors.As(err, &answer) && answer.Status().Details != nil:
		for _, cause := range answer.Status().Details.Causes {
			refusals = append(refusals, cause.Field+": "+cause.Message)
		}
	case apierrors.IsForbidden(err):
		refusals = []string{err.Error()}
	default:
		return nil, nil, err
	}
	return warnings, refusals, nil
}
