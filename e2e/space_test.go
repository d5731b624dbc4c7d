package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner"
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

// heldMore is how much more memory a session may hold at its peak than one that
// does nothing.
const heldMore = 64 << 20

// TestManyLongNames lets a command make 100,000 files below 14 directories with
// names of 250 bytes: 350 MB of paths. What caisson holds and reports is bounded,
// all of them are counted, and what a host would run is listed. The control is
// that the paths are there.
func TestManyLongNames(t *testing.T) {
	t.Parallel()
	const files = 100_000
	count := files
	if testing.Short() {
		count = 20_000
	}
	fill := fmt.Sprintf(`echo evil > Makefile; perl -e '$n = "d" x 250; for (1..14) { mkdir $n or die; chdir $n or die } for ($i = 0; $i < %d; $i++) { open(my $f, ">", sprintf("f%%06d", $i)) or die }'`, count)
	backend := anyBackend(t)
	for _, mode := range []string{"bind", "overlay"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			run := func(command string) (*machine, outcome, int64) {
				m := newMachine(t)
				args := append([]string{"--backend", backend, "--mode", mode}, m.playing(t, []scriptCall{shell(command)})...)
				r := m.start(t, taskArgs(m, args...)...)
				peak := watchMemory(r.process.Process.Pid, "VmHWM")
				out := r.wait(t, 5*time.Minute)
				out.want(t, 0)
				out.records = readRecords(t, out.stdout)
				return m, out, <-peak
			}
			_, _, idle := run("true")
			m, out, peak := run(fill)
			t.Logf("%d MiB, and %d MiB where nothing is done", peak>>20, idle>>20)
			if idle == 0 || peak > idle+heldMore {
				t.Errorf("%d MiB are held, and %d MiB where nothing is done", peak>>20, idle>>20)
			}
			dir := filepath.Join(m.stateDir(), "sessions", out.records[0].Session)
			text, err := os.ReadFile(filepath.Join(dir, "report.json"))
			if err != nil || len(text) > 8<<20 {
				t.Errorf("a report of %d bytes, %v", len(text), err)
			}
			report := parse[runner.Report](t, text)
			if n := report.ChangedCount.Files; n != count+1 || len(report.Changed)+report.ChangedOmitted != n {
				t.Errorf("%d files are counted, %d are listed and %d are not", n, len(report.Changed), report.ChangedOmitted)
			}
			if len(report.HostExecuted) != 1 || report.HostExecuted[0].Path != "Makefile" {
				t.Errorf("a host would run %v", report.HostExecuted)
			}
		})
	}
}
