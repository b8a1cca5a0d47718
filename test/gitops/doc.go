// Package gitops tests the manifests that install PureLB, and what tools that install them
// from a repository see: kustomizations, alerts, drift, and the health of objects. It is a
// module of its own because of what it has to import.
package gitops
