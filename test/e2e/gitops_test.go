package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("What is installed", func() {
	It("differs in nothing from what was applied", func(ctx SpecContext) {
		for _, dir := range []string{"../../config/default", "../../config/samples"} {
			out, err := run(ctx, "diff", "-k", dir)
			Expect(err).NotTo(HaveOccurred(), "%s: %s", dir, out) // it fails where something differs
		}
	}, SpecTimeout(soon))
})
