package overlay

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools/workspace"
)

// sendCopy makes a copy of what the layers show, as a sandbox gets it.
func (w *testEnv) sendCopy() (string, *Copy) {
	w.t.Helper()
	dir := w.t.TempDir()
	read, write := io.Pipe()
	go func() {
		write.CloseWithError(WriteTree(w.t.Context(), write, w.layers.Dir(), w.layers.Lowers(), w.dir, DefaultCopyBounds))
	}()
	must(w.t, archive.Unpack(read, dir, archive.Bounds{}))
	held, err := os.Open(dir)
	must(w.t, err)
	w.t.Cleanup(func() { held.Close() })
	r, err := workspace.NewReader(held, workspace.ReaderOptions{})
	must(w.t, err)
	c, err := OpenCopy(w.t.Context(), w.layers.Dir(), r, CopyBounds{Bytes: 64 << 20, Entries: 10_000})
	must(w.t, err)
	return dir, c
}

// requireSame fails unless the kernel shows by the layers what a copy contains.
func (w *testEnv) requireSame(dir string) {
	w.t.Helper()
	w.mount()
	want, got := describeTree(w.t, dir), describeTree(w.t, w.merged)
	w.unmount()
	if d := cmp.Diff(want, got); d != "" {
		w.t.Fatalf("the layers differ from the copy (-copy +layers):\n%s", d)
	}
}

// TestCollectIsTheCopy: the layers show what commands left in a copy, whatever
// they do, however often it is collected, and in a fresh sandbox too.
func TestCollectIsTheCopy(t *testing.T) {
	steps := []string{
		"echo two >>a.txt", "chmod 700 run.sh || :; touch touched", "rm -rf gone", "mkdir -p gone; echo again >gone/h", "mkdir -p added/empty; rm -rf src/deep",
		"ln -sfn src link", "rm -rf tofile; mkdir tofile; echo f >tofile/f", "rm -rf todir; echo file >todir", "rm -rf todir tofile; mkdir todir; echo p >todir/p",
		"[ ! -d src ] || mv src elsewhere$RANDOM", "mkdir -p src/deep; echo other >src/deep/o.c; chmod 750 src/deep", "echo odd >$'na\\nme\\xff'",
		"rm -f l1 l2; echo l1 >l1; ln l1 l2; mkdir -p added; ln -f l1 added/l3", "rm -f h1", "echo more >>h2", "mkdir -p shut; echo in >shut/in; chmod 500 shut",
		"printf abc >same; touch -d @1000 same", "printf xyz >same; touch -d @1000 same", "rm -rf *", "truncate -s 3M big; echo end >>big", "chmod 711 .", "rm -rf .git; mkdir .git; echo x >.git/HEAD",
	}
	for seed := range uint64(randomCopies) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0+"\nmkdir .git; echo ref >.git/HEAD") })
		w.unmount()
		for range 1 + random.IntN(3) {
			if random.IntN(2) > 0 {
				must(t, w.layers.Freeze(t.Context(), w.frozen()))
			}
			dir, c := w.sendCopy()
			w.requireSame(dir)
			for range 1 + random.IntN(3) {
				script := ""
				for range random.IntN(5) {
					script += steps[random.IntN(len(steps))] + "\n"
				}
				runScript(t, dir, script)
				t.Logf("%d: %q", seed, script)
				must(t, c.Collect(t.Context()))
				w.requireSame(dir)
			}
		}
	}
}

// randomCopies is the number of random sessions of TestCollectIsTheCopy.
const randomCopies = 8

// TestCollectListsChanges: changes, conflicts and apply are those of an overlay.
func TestCollectListsChanges(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, tree0+"\nmkdir .caisson; echo c >.caisson/config.yaml; mkfifo pipe")
	})
	w.unmount()
	dir, c := w.sendCopy()
	must(t, c.Collect(t.Context()))
	w.requireChanges()
	runScript(t, dir, `[ ! -e .caisson ]; [ ! -e pipe ]; echo two >>a.txt; rm -r gone; rm h1; mkdir .caisson; echo x >.caisson/y; echo new >src/new.c; chmod 711 run.sh; touch touched`)
	must(t, c.Collect(t.Context()))
	runScript(t, w.original, "echo mine >>a.txt")
	w.requireChanges("modified a.txt CONFLICT", "deleted gone/", "deleted gone/h", "deleted gone/in/", "deleted gone/in/g", "deleted h1", "mode run.sh", "added src/new.c")
	if r := w.apply(ApplyOptions{Rest: true}); len(r.Failed) > 0 || len(r.Conflicts) != 1 {
		t.Errorf("applied %+v", r)
	}
	runScript(t, w.original, `[ ! -e gone ]; [ ! -e h1 ]; [ "$(cat src/new.c)" = new ]; [ "$(cat .caisson/config.yaml)" = c ]; [ -p pipe ]`)
}

// TestCopyIsBounded: a directory that is too large is not sent, nor is too much
// collected.
func TestCopyIsBounded(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, "mkdir large many small; truncate -s 3M large/f; for i in $(seq 30); do : >many/$i; done; echo x >small/f")
	})
	w.unmount()
	err := WriteTree(t.Context(), io.Discard, w.layers.Dir(), nil, w.dir, CopyBounds{Bytes: 1 << 20, Entries: 10})
	e, ok := errors.AsType[*SizeError](err)
	if !ok || e.Entries != 36 || len(e.Largest) != 3 || !strings.HasPrefix(e.Largest[0], `"many"`) && !strings.HasPrefix(e.Largest[0], `"large"`) {
		t.Errorf("%v", err)
	}
	dir, c := w.sendCopy()
	runScript(t, dir, "echo kept >kept")
	must(t, c.Collect(t.Context()))
	c.most = CopyBounds{Bytes: 1000, Entries: 100}
	runScript(t, dir, "head -c 2000 /dev/urandom >more; rm kept")
	if e, ok := errors.AsType[*IncompleteError](c.Collect(t.Context())); !ok || e.Count != 1 || e.Unread[0] != "more" {
		t.Errorf("too many bytes were collected: %v", e)
	}
	w.requireChanges()
	runScript(t, dir, "rm more; echo kept >kept")
	must(t, c.Collect(t.Context()))
	runScript(t, dir, "for i in $(seq 100); do : >$i; done")
	if err := c.Collect(t.Context()); err == nil {
		t.Error("too many entries were collected")
	}
	w.requireChanges("added kept")
	if left, err := filepath.Glob(filepath.Join(w.layers.Dir(), UpperDir+"?*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// TestCollectUnread: what can't be read is reported, and is no deletion.
func TestCollectUnread(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	w.unmount()
	dir, c := w.sendCopy()
	runScript(t, dir, "echo x >>a.txt; mkdir -p closed/in")
	must(t, unix.Mount("none", filepath.Join(dir, "gone"), "tmpfs", 0, "mode=755")) // a Reader enters no other mount
	defer func() { must(t, unix.Unmount(filepath.Join(dir, "gone"), 0)) }()
	err := c.Collect(t.Context())
	if e, ok := errors.AsType[*IncompleteError](err); !ok || e.Count != 1 || e.Unread[0] != "gone" {
		t.Errorf("%v", err)
	}
	w.requireChanges("modified a.txt", "added closed/", "added closed/in/")
}

// TestCollectHostile: what is special, huge or deep harms nothing and hides nothing
// else.
func TestCollectHostile(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0+"\nmkdir sub; echo s >sub/f") })
	w.unmount()
	dir, c := w.sendCopy()
	deep := strings.Repeat("d/", 1990)
	runScript(t, dir, `rm a.txt; mknod a.txt c 0 0; rm h1; mkfifo h1; rm -r sub; mknod sub c 1 3; truncate -s 1T huge; echo small >small
		echo odd >$'na\nme\xff\\'; mkdir -p `+deep+`; ln -s /etc/passwd out; : >empty; chmod 0 empty`)
	err := c.Collect(t.Context())
	if e, ok := errors.AsType[*IncompleteError](err); !ok || !slices.Contains(e.Unread, "huge") {
		t.Errorf("%v", err)
	}
	list, err := w.layers.Changes(t.Context(), w.dir, ReadOptions{})
	must(t, err)
	got := map[string]Kind{}
	for _, change := range list.List {
		got[change.Path] = change.Kind
	}
	for path, want := range map[string]Kind{
		"a.txt": Deleted, "h1": Typed, "sub": Deleted, "sub/f": Deleted, "small": Added, "na\nme\xff\\": Added, "d": Added, "out": Added, "empty": Added,
	} {
		if got[path] != want {
			t.Errorf("%q is %q, want %q", path, got[path], want)
		}
	}
	if _, ok := got["huge"]; ok {
		t.Error("a file that was left out is a change")
	}
	if target, err := os.Readlink(filepath.Join(w.layers.Dir(), UpperDir, "out")); err != nil || target != "/etc/passwd" {
		t.Errorf("%q, %v", target, err)
	}
}

// swappingReader replaces a directory by a symlink out of the copy once it has been
// listed, as a command may.
type swappingReader struct {
	CopyReader
	dir, out string
	once     sync.Once
}

func (r *swappingReader) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	r.once.Do(func() {
		_ = os.RemoveAll(filepath.Join(r.dir, "src"))
		_ = os.Symlink(r.out, filepath.Join(r.dir, "src"))
	})
	return r.CopyReader.ReadFile(ctx, path, offset, most)
}

// TestCollectWhileReplaced: a directory that becomes a symlink while it is collected
// leads nowhere, neither in the copy nor in the layer.
func TestCollectWhileReplaced(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	w.unmount()
	dir, c := w.sendCopy()
	out := t.TempDir()
	runScript(t, out, "echo secret >new.c; echo secret >x.c")
	runScript(t, dir, "echo new >src/new.c; echo x >src/x.c")
	c.reader = &swappingReader{CopyReader: c.reader, dir: dir, out: out}
	if err := c.Collect(t.Context()); !errors.As(err, new(*IncompleteError)) {
		t.Errorf("%v", err)
	}
	must(t, filepath.WalkDir(w.layers.Dir(), func(path string, d fs.DirEntry, err error) error {
		if text, readErr := os.ReadFile(path); err == nil && d.Type().IsRegular() && readErr == nil && strings.Contains(string(text), "secret") {
			t.Errorf("%s is from outside", path)
		}
		return err
	}))
	must(t, c.Collect(t.Context()))
	w.requireSame(dir)
}
