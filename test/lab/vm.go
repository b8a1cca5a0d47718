package lab

import (
	"context"

	"github.com/purelb/purelb-operator/test/lab/internal/vm"
)

// RunVM runs test binaries, linked statically, as root in a virtual machine with
// a kernel of Debian's, which knows the link type dummy. Of the options it looks
// at CacheDir and Say.
func RunVM(ctx context.Context, options Options, binaries ...string) error {
	if err := options.setDefaults(); err != nil {
		return err
	}
	return vm.Run(ctx, vm.Options{CacheDir: options.CacheDir, Binaries: binaries, Say: options.Say})
}
