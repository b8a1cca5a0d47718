package lab

import (
	"context"
	"fmt"
	"os"

	"github.com/purelb/purelb-operator/test/lab/internal/debian"
)

// DebianRoot returns a folder with a Debian system for a chroot, which has the network programs of
// a node: systemd-networkd, NetworkManager, a DHCP client and a DHCP server. It uses the options
// CacheDir and Say only.
func DebianRoot(ctx context.Context, options Options) (string, error) {
	if err := options.setDefaults(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(options.CacheDir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return debian.Root(ctx, options.CacheDir, options.Say)
}
