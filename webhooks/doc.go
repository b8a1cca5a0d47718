// Package webhooks answers the API server before objects are stored: it
// refuses ServiceGroups, LBNodeAgents and BGPPeers that could not work, or that would leave
// allocated addresses outside every pool or without a node to announce them, and warns the
// authors of Services.
//
// The webhooks decide nothing themselves. They read from the manager's cache what an
// object is checked against, call the functions by which the controllers decide, and put
// the answers into the API server's terms: the advice on a Service is a dry run of its
// allocation. A webhook cannot see everything, such as two objects that are stored at
// the same moment. The controllers report that in conditions, in the same words.
//
// +kubebuilder:webhookconfiguration:mutating=false,name=purelb-validating
package webhooks
