// Package e2e tests PureLB as users run it: installed by its manifests in the lab's
// cluster of three real nodes, with clients that fetch from its addresses. Run the tests
// with make test-e2e, as root.
package e2e
