package diskwatch

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/workspace"
)

const unlimited = math.MaxInt64

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hostileTree makes 3 MiB in files that a naive count misses, counts twice, or follows out of the tree.
func hostileTree(t *testing.T) *os.File {
	t.Helper()
	base := t.TempDir()
	must(t, os.Chmod(base, 0o755))
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	tree := filepath.Join(base, "tree")
	must(t, os.MkdirAll(filepath.Join(tree, "closed/deeper"), 0o755))
	mib := bytes.Repeat([]byte("x"), 1<<20)
	for _, name := range []string{"tree/one", "tree/closed/deeper/two", "tree/closed/three", "outside"} {
		must(t, os.WriteFile(filepath.Join(base, name), mib, 0o644))
	}
	must(t, os.Link(filepath.Join(tree, "one"), filepath.Join(tree, "closed/one-again")))
	must(t, os.Symlink(base, filepath.Join(tree, "out")))
	must(t, os.Symlink(filepath.Join(base, "outside"), filepath.Join(tree, "out-file")))
	must(t, os.Truncate(filepath.Join(tree, "one"), 1<<40)) // sparse
	must(t, os.Chmod(filepath.Join(tree, "closed/deeper"), 0))
	must(t, os.Chmod(filepath.Join(tree, "closed"), 0))
	dir, err := openDir(tree)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestCountUse(t *testing.T) {
	const files = 8 // closed, deeper, one, one-again, two, three, out, out-file
	check := func(t *testing.T, got use) {
		t.Helper()
		if got.files != files || got.bytes < 3<<20 || got.bytes > 3<<20+200<<10 {
			t.Errorf("used %+v, want %d files and little more than 3 MiB", got, files)
		}
	}
	dir := hostileTree(t)
	check(t, countUse(dir, use{unlimited, unlimited}))
	check(t, countUse(dir, use{unlimited, unlimited}))
	if got := countUse(dir, use{1 << 20, unlimited}); got.bytes <= 1<<20 {
		t.Errorf("used %+v, more than 1 MiB is there", got)
	}
	if os.Geteuid() != 0 {
		return
	}
	// The same as an ordinary user, to whom the directories are closed.
	must(t, filepath.WalkDir(dir.Name(), func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 4242, 4242))
	}))
	got := make(chan use)
	go func() {
		runtime.LockOSThread() // the thread and its identity end with the goroutine
		_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 4242, 4242, 4242)
		got <- countUse(dir, use{unlimited, unlimited})
	}()
	check(t, <-got)
}

// TestCountUseOfHiddenFiles checks that an unreadable directory exceeds the bound.
func TestCountUseOfHiddenFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: another user")
	}
	base := t.TempDir()
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	must(t, os.Chmod(base, 0o755))
	must(t, os.Mkdir(filepath.Join(base, "closed"), 0o700))
	dir, err := openDir(base)
	must(t, err)
	defer dir.Close()
	if got := countUse(dir, use{unlimited, 1000}); got.files != 1 {
		t.Errorf("used %+v as root", got)
	}
	got := make(chan use)
	go func() {
		runtime.LockOSThread() // the thread and its identity end with the goroutine
		_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 4242, 4242, 4242)
		got <- countUse(dir, use{unlimited, 1000})
	}()
	if got := <-got; got.files != 1001 {
		t.Errorf("used %+v as another user, want more than the bound", got)
	}
}

// TestDeviceOfEntries checks that entries have their device, which countUse needs to tell files with
// the same inode apart.
func TestDeviceOfEntries(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	defer f.Close()
	r, err := workspace.NewReader(f, workspace.ReaderOptions{})
	must(t, err)
	st, err := r.StatEntry(t.Context(), ".")
	must(t, err)
	var want unix.Stat_t
	must(t, unix.Stat(dir, &want))
	if st.Device != want.Dev || st.Device == 0 {
		t.Errorf("device %d, want %d", st.Device, want.Dev)
	}
}

// Directories too deep to count exceed the bound.
func TestCountUseOfDeepTree(t *testing.T) {
	base := t.TempDir()
	at := base
	for range maxDepth + 2 {
		at = filepath.Join(at, "d")
	}
	must(t, os.MkdirAll(at, 0o755))
	dir, err := openDir(base)
	must(t, err)
	defer dir.Close()
	if got := countUse(dir, use{unlimited - 1, 1000}); got.files != 1001 {
		t.Errorf("used %+v", got)
	}
}

// TestBound ends a command that exceeds the bound, and lets the next one remove files.
func TestBound(t *testing.T) {
	home := t.TempDir()
	const most = 4 << 20
	b, err := NewBound("/home/agent", home, most)
	must(t, err)
	defer b.Close()
	w := New(Reserve, func() Room { return UnknownRoom }, nil)
	ctx, stop := w.WatchContext(t.Context(), b)
	select {
	case <-ctx.Done():
		t.Fatalf("ended with an empty home: %v", context.Cause(ctx))
	case <-time.After(2 * walkInterval):
	}
	big := filepath.Join(home, "big")
	must(t, os.WriteFile(big, make([]byte, 2*most), 0o600))
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not ended")
	}
	var e *limits.ExceededError
	if !errors.As(context.Cause(ctx), &e) || e.Kind != limits.KindDisk || e.Dir != "/home/agent" || e.Limit != most || e.Used <= most || e.Files { // it may be counted before it is whole
		t.Errorf("ended with %v", context.Cause(ctx))
	}
	stop()

	ctx, stop = w.WatchContext(t.Context(), b)
	defer stop()
	must(t, os.Remove(big))
	must(t, os.WriteFile(filepath.Join(home, "small"), make([]byte, 1<<20), 0o600))
	select {
	case <-ctx.Done():
		t.Errorf("nothing can be removed: %v", context.Cause(ctx))
	case <-time.After(2 * walkInterval):
	}
}
