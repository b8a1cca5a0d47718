package lab

import (
	"context"
	"io"

	"github.com/purelb/purelb-operator/test/lab/internal/vm"
)

// RunVM runs statically linked test binaries as root in a virtual machine with a kernel of
// Debian, which knows the link type dummy, and writes to console what the machine prints. It uses
// the options CacheDir and Say only.
func RunVM(ctx context.Context, options Options, console io.Writer, binaries ...string) error {
	if err := options.setDefaults(); err != nil {
		return err
	}
	return vm.Run(ctx, vm.Options{CacheDir: options.CacheDir, Binaries: binaries, Console: console, Say: options.Say})
}
