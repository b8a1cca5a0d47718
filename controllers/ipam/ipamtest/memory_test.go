package ipamtest_test

import (
	"net/netip"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

func TestMemoryConforms(t *testing.T) {
	ipamtest.Conformance(t, func(*testing.T) ipamtest.Fixture {
		m := &ipamtest.Memory{
			Pool: netipx.MustParseIPRange("10.0.0.1-10.0.0.9"), Subnet: netip.MustParsePrefix("10.0.0.0/24"),
		}
		return ipamtest.Fixture{
			Connect: func(_ *testing.T, installationID types.UID) ipam.System { return m.Of(installationID) },
			Family:  allocation.IPv4, Outside: netip.MustParseAddr("10.0.0.10"),
		}
	})
}
