// Package webhooks answers the API server before objects are written: it
// refuses ServiceGroups and LBNodeAgents that could not work, or that would
// pull away addresses in use, and warns the authors of Services.
//
// It decides nothing itself. It reads from the manager's cache what an object
// is to be judged against, asks the functions by which the controllers judge,
// and puts their answers into the API server's terms. What it cannot see, such
// as two objects written at the same moment, the controllers report as
// conditions, in the same words.
//
// +kubebuilder:webhookconfiguration:mutating=false,name=purelb-validating
package webhooks
