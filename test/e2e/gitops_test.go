package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("What is installed", func() {
	It("equals what was applied", Label(smokeLabel), func(ctx SpecContext) {
		for _, dir := range []string{"../../config/default", "../../config/samples", "../../config/samples/pool"} {
			out, err := tryKubectl(ctx, "diff", "-k", dir)
			Expect(err).NotTo(HaveOccurred(), "%s: %s", dir, out) // kubectl diff fails where something differs
		}
	}, SpecTimeout(smokeLimit))
})
