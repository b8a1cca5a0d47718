//go:build proof

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestProofNetboxAway bounds how long Services wait when NetBox is back.
func TestProofNetboxAway(t *testing.T) {
	took := playNetboxAway(newExternalWorld(t))
	NewWithT(t).Expect(took).To(BeNumerically("<", 2*time.Second))
}

// TestProofNetboxSlow bounds by how much a slow NetBox slows the Services of other groups.
func TestProofNetboxSlow(t *testing.T) {
	before, during := playNetboxSlow(newExternalWorld(t))
	NewWithT(t).Expect(during).To(BeNumerically("<", 2*before+time.Second))
}
