//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fewFiles is how many files the small file system of TestFilesOfTheHost holds.
const fewFiles = 30_208

// TestFilesOfTheHost lets a command that ignores SIGTERM create as many files as
// it can on a file system that can hold few: it is ended while the host has
// room, and the model is told. The control takes all but the last: the same
// program without a sandbox.
func TestFilesOfTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to mount a small file system")
	}
	const fill = `perl -e '$SIG{TERM} = "IGNORE"; for ($i = 0; $i < 60000; $i++) { open(my $f, ">", "f$i") or last } print "$i files\n"'`
	mount := func(t *testing.T, dir string) {
		if err := unix.Mount("caisson-e2e", dir, "tmpfs", 0, "nr_inodes=30208,mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	left := func(t *testing.T, dir string) uint64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		return fs.Ffree
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		mount(t, m.workspace)
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t, []scriptCall{shell(fill)})...)...)
		out.want(t, 0)
		if n := left(t, m.workspace); n < fewFiles/100 {
			t.Errorf("%d of %d files are left", n, fewFiles)
		} else {
			t.Logf("%d of %d files are left", n, fewFiles)
		}
		if text := m.whole(t, out.records).results(t)[0].text(); !strings.Contains(text, "more files (inodes), which the host keeps") {
			t.Errorf("the model is told %q", text)
		}
	})
	t.Run("control", func(t *testing.T) {
		dir := t.TempDir()
		mount(t, dir)
		cmd := exec.Command("sh", "-c", fill)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if n := left(t, dir); n > 10 {
			t.Errorf("without a sandbox %d files are left: the program proves nothing", n)
		}
	})
}
