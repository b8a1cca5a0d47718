//go:build tools

package kube

// This keeps in go.mod what the program in the tests' image needs.
import _ "k8s.io/kubernetes/test/images/agnhost"
