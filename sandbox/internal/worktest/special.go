package worktest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// makeSpecial makes a FIFO and, as root, a device.
func makeSpecial(t testing.TB, dir string) {
	t.Helper()
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) // zero(4)
	}
}
