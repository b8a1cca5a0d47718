//go:build !race

package nodeagent

// slowness is how much longer everything may take in a test.
const slowness = 1
