package footprint

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTrimKeepsWhatWasWritten has a part of the program's file in memory that was written to, and then made
// read-only, as the dynamic linker does with addresses of functions of shared libraries (RELRO): they are still there
// after Trim.
func TestTrimKeepsWhatWasWritten(t *testing.T) {
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	page := os.Getpagesize()
	memory, err := unix.Mmap(int(program.Fd()), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	}()
	const written = "an address"
	copy(memory[page:], written)
	if err := unix.Mprotect(memory, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if got := string(memory[page:][:len(written)]); got != written {
		t.Errorf("what was written is %q after Trim", got)
	}
}

func TestUnwrittenRegions(t *testing.T) {
	const smaps = `00400000-01542000 r-xp 00000000 fe:00 1234                              /purelb
Size:              17672 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
01542000-025fa000 r--p 01142000 fe:00 1234                              /purelb
Anonymous:             0 kB
Swap:                  0 kB
025fa000-025fb000 r--p 021fa000 fe:00 1234                              /purelb
Anonymous:             4 kB
Swap:                  0 kB
025fb000-025fc000 r--p 021fb000 fe:00 1234                              /purelb
Anonymous:             0 kB
Swap:                  4 kB
025fc000-02684000 rw-p 021fc000 fe:00 1234                              /purelb
Anonymous:             8 kB
02684000-046e5000 rw-p 00000000 00:00 0
02700000-02701000 r--p 00000000 fe:00 1234                              /purelb (deleted)
c000000000-c000800000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--s 00000000 fe:00 1234                      /purelb
7f0000010000-7f0000020000 r-xp 00000000 fe:00 99                        /lib/libc.so.6
7ffd8a9f2000-7ffd8a9f4000 r-xp 00000000 00:00 0                         [vdso]
Anonymous:             4 kB
`
	got, err := unwrittenRegions(strings.NewReader(smaps), "/purelb")
	want := []region{{0x400000, 0x1542000}, {0x1542000, 0x25fa000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x, %v; want %x", got, err, want)
	}
	if _, err := unwrittenRegions(strings.NewReader("x-y r-xp 00000000 fe:00 1 /purelb\n"), "/purelb"); err == nil {
		t.Error("no error for invalid addresses")
	}
}

// TestTrim checks that less memory is resident after Trim.
func TestTrim(t *testing.T) {
	mapAllPages(t)
	before := residentFileKB(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	after := residentFileKB(t)
	t.Logf("%d kB of files are resident, before %d", after, before)
	if after > before*9/10 { // this program is small, and the pages in use are mapped again
		t.Errorf("%d kB of files are resident, before %d", after, before)
	}
}

func TestTrimmer(t *testing.T) {
	trimmer := Trimmer{After: time.Millisecond, OnError: func(err error) { t.Error(err) }}
	if err := trimmer.Start(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trimmer.After = time.Hour
	if err := trimmer.Start(ctx); err != nil {
		t.Error(err)
	}
}

// mapAllPages maps all of the program's code and constants.
func mapAllPages(t *testing.T) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	regions, err := unwrittenRegions(maps, program)
	if err != nil || len(regions) == 0 {
		t.Fatalf("%d regions, %v", len(regions), err)
	}
	for _, r := range regions {
		if err := r.advise(unix.MADV_POPULATE_READ); err != nil { // Linux 5.14
			t.Fatal(err)
		}
	}
}

// residentFileKB returns how many kB of mapped files are resident: RssFile of
// proc_pid_status(5), and RssShmem for a file in a tmpfs.
func residentFileKB(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "RssFile" && name != "RssShmem" {
			continue
		}
		kB, err := strconv.Atoi(strings.Fields(value)[0])
		if err != nil {
			t.Fatal(err)
		}
		sum += kB
	}
	if sum == 0 {
		t.Fatal("nothing is resident")
	}
	return sum
}
