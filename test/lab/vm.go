package lab

import (
	"context"

	"github.com/purelb/purelb-operator/test/lab/internal/vm"
)

// RunVM runs statically linked test binaries as root in a virtual machine with a kernel of
// Debian, which knows the link type dummy. It uses the options CacheDir and Say only.
func RunVM(ctx context.Context, options Options, binaries ...string) error {
	if err := options.setDefaults(); err != nil {
		return err
	}
	return vm.Run(ctx, vm.Options{CacheDir: options.CacheDir, Binaries: binaries, Say: options.Say})
}
