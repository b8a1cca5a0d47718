// Package e2e tests PureLB as its users have it: installed by its manifests in
// the lab's cluster of three real nodes, with clients that fetch from it. Run
// it with make test-e2e, as root.
package e2e
