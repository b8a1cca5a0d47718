//go:build race

package nodeagent

// slowness is how much longer everything may take in a test, here with the race detector.
const slowness = 6
