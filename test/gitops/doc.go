// Package gitops has the tests of what is installed, and of what tools that
// install it from a repository see: kustomizations, alerts, and what an object's
// health is taken for. It is a module of its own, for what it has to import.
package gitops
