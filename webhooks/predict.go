package webhooks

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// PredictAdmission is what the webhooks answer about an object that is to be created, or changed if before is
// not nil, in a cluster that reader reads. It is for programs that predict the answer. An object of
// which the webhooks are not asked gets none.
func PredictAdmission(
	ctx context.Context, reader client.Reader, o Options, before, after client.Object,
) (admission.Warnings, error) {
	switch object := after.(type) {
	case *v1.ServiceGroup:
		return validate(ctx, &serviceGroupValidator{reader: reader, Options: o}, before, object)
	case *v1.LBNodeAgent:
		return validate(ctx, &lbNodeAgentValidator{reader: reader, apiReader: reader, Options: o}, before, object)
	case *v1.BGPPeer:
		return validate(ctx, &bgpPeerValidator{reader: reader, Options: o}, before, object)
	case *corev1.Service:
		return validate(ctx, &serviceValidator{reader: reader, Options: o}, before, object)
	}
	return nil, nil
}

func validate[T client.Object](
	ctx context.Context, webhook admission.Validator[T], before client.Object, after T,
) (admission.Warnings, error) {
	if old, isChange := before.(T); isChange {
		return webhook.ValidateUpdate(ctx, old, after)
	}
	return webhook.ValidateCreate(ctx, after)
}
