package allocation

import (
	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Admission is what ServiceGroups and Services are checked against before they are
// stored: the inputs of allocations, from which the manager will decide about them.
type Admission struct {
	Inputs
	// Namespace is the manager's: ServiceGroups elsewhere have no effect.
	Namespace string
	// Groups are all ServiceGroups of that namespace as they are stored.
	Groups []v1.ServiceGroup
}
