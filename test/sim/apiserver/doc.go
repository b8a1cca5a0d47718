// Package apiserver is an API server in memory, for the simulation of a cluster: objects with versions,
// conflicts, finalizers, the status subresource, merge patches and server-side apply, and caches that
// learn of changes when the simulation lets them.
//
// It behaves as the real one does in what the product's components rely on, which contract_test.go
// holds against a real one. It knows no admission, no validation of fields, no defaults and no garbage
// collection.
//
// It starts no goroutine and asks only time.Now: whoever calls it decides what happens when. All
// its answers and changes follow from the calls, in their order.
package apiserver
