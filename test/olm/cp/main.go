// Command cp copies a file and makes the copy executable. It stands in for cp of a
// distribution in the image of OLM, which has nothing else: OLM calls it to hand a program to
// the container of a bundle. Only the last two arguments count.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("got %q, want a source and a target", args)
	}
	source, err := os.Open(args[len(args)-2])
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(args[len(args)-1], os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}
