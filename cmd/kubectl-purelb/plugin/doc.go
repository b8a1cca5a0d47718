// Package plugin is what `kubectl purelb` does: it reads the objects of a cluster once, explains
// what the manager decided about them and predicts what it would decide after a change.
//
// Each command is a function from a Cluster, the objects as they were read, to a value that is
// printed as text, JSON or YAML. The decisions themselves are those of the packages allocation,
// placement and agents, which the manager uses, too. A command reads what its user may read: of a
// kind that the user may not list it says so, and goes on without.
package plugin
