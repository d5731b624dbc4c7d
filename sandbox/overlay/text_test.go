package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

const manyLinks = 1000

// makeLongLinks creates symlinks in dir with targets of 4,000 bytes: 4 MB in
// all.
func makeLongLinks(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	for i := range manyLinks {
		must(t, os.Symlink(strings.Repeat("x", 4000), filepath.Join(dir, fmt.Sprintf("%05d", i))))
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestChangesAreBoundedInBytes reads layers with room for 256 KiB of text. The
// control has room for MaxTextBytes.
func TestChangesAreBoundedInBytes(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, upper, lower string){
		"added":            func(t *testing.T, upper, _ string) { makeLongLinks(t, filepath.Join(upper, "d")) },
		"of one directory": func(t *testing.T, upper, _ string) { makeLongLinks(t, upper) },
		"file for a dir": func(t *testing.T, upper, lower string) {
			makeLongLinks(t, filepath.Join(lower, "d"))
			must(t, os.WriteFile(filepath.Join(upper, "d"), nil, 0o644))
		},
		"hidden": func(t *testing.T, upper, lower string) {
			makeLongLinks(t, filepath.Join(lower, "d"))
			must(t, os.Mkdir(filepath.Join(upper, "d"), 0o755))
			must(t, unix.Setxattr(filepath.Join(upper, "d"), overlayfs.OpaqueAttribute, []byte("y"), 0))
		},
		"nested": func(t *testing.T, upper, lower string) {
			// Each directory precedes the symlinks beside it.
			for _, dir := range []string{"d", "d/0", "d/0/0"} {
				makeLongLinks(t, filepath.Join(lower, dir, "z"))
			}
			must(t, os.WriteFile(filepath.Join(upper, "d"), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			upper, lower := t.TempDir(), t.TempDir()
			prepare(t, upper, lower)
			up, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(up)
			low, err := unix.Open(lower, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(low)

			const room = 256 << 10
			before := heapBytes()
			s := scan{ctx: t.Context(), upper: stack{{fd: up}}, lower: tree{low}, limits: ReadOptions{MaxTextBytes: room}.withDefaults()}
			must(t, s.scanTree())
			if grown := heapBytes() - before; !s.Truncated || grown > 4*room || len(s.List) == 0 || len(s.List) > manyLinks {
				t.Errorf("%d changes, truncated %v, %d bytes are held", len(s.List), s.Truncated, grown)
			}
			whole := scan{ctx: t.Context(), upper: stack{{fd: up}}, lower: tree{low}, limits: ReadOptions{}.withDefaults()}
			must(t, whole.scanTree())
			text := 0
			for _, c := range whole.List {
				text += countText(c.Path, c.was, c.now)
			}
			if whole.Truncated || len(whole.List) < manyLinks || whole.textBytes != text || s.Omitted == 0 || countFiles(s.List)+s.Omitted != countFiles(whole.List) {
				t.Errorf("control: %d changes, truncated %v, counted %d bytes of %d", len(whole.List), whole.Truncated, whole.textBytes, text)
			}
			runtime.KeepAlive(&s)
		})
	}
}

// countFiles counts the changes of files and symlinks.
func countFiles(list []Change) (n int) {
	for i := range list {
		if list[i].File() {
			n++
		}
	}
	return n
}

// TestFirstChangesHaveRoom checks that changes with priority are kept whatever
// else changed, and in whatever order the file system lists them.
func TestFirstChangesHaveRoom(t *testing.T) {
	upper, lower := t.TempDir(), t.TempDir()
	makeLongLinks(t, upper)
	for i := range 5 {
		must(t, os.WriteFile(filepath.Join(upper, fmt.Sprintf("%d.mk", i)), nil, 0o644))
	}
	up, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(up)
	low, err := unix.Open(lower, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(low)
	for _, first := range []bool{true, false} {
		o := ReadOptions{MaxEntries: 10}
		if first {
			o.First = func(path string) bool { return strings.HasSuffix(path, ".mk") }
		}
		s := scan{ctx: t.Context(), upper: stack{{fd: up}}, lower: tree{low}, limits: o.withDefaults()}
		must(t, s.scanTree())
		found := 0
		for _, c := range s.List {
			if strings.HasSuffix(c.Path, ".mk") {
				found++
			}
		}
		if !s.Truncated || len(s.List) != 10 || len(s.List)+s.Omitted != manyLinks+5 || first && found != 5 {
			t.Errorf("first %v: %d of %d changes are first ones, %d are omitted", first, found, len(s.List), s.Omitted)
		}
		if !first && found == 5 {
			t.Log("control: the file system has them first anyway")
		}
	}
}

// TestRecordIsBoundedInBytes checks that the record is bounded, and that it
// contains the hash of a long target.
func TestRecordIsBoundedInBytes(t *testing.T) {
	dir := t.TempDir()
	makeLongLinks(t, dir)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	record := func(text int) recorder {
		r := recorder{tree: tree{fd}, textBytes: text, encode: func(any) error { return nil }}
		must(t, r.recordTree(t.Context()))
		return r
	}
	if r := record(0); r.truncated || r.count != manyLinks || r.textBytes > manyLinks*100 {
		t.Errorf("%d stamps with %d bytes of text, cut %v", r.count, r.textBytes, r.truncated)
	}
	if r := record(MaxTextBytes - 10_000); !r.truncated || r.count == 0 || r.count >= manyLinks {
		t.Errorf("with little room: %d stamps, cut %v", r.count, r.truncated)
	}
	var r recorder
	for range 1000 {
		r.addUnread(strings.Repeat("u", 1000))
	}
	if !r.truncated || len(r.unread) != maxUnreadBytes/1000 {
		t.Errorf("%d directories that can't be read, cut %v", len(r.unread), r.truncated)
	}
}

// TestLongTargetsDiffer checks that targets are distinguished even by their
// last byte, also by a stamp with the whole target.
func TestLongTargetsDiffer(t *testing.T) {
	long := strings.Repeat("x", 4000)
	link := func(target string) *node { return &node{typ: workspace.TypeSymlink, target: target} }
	for _, s := range []stamp{stampOf("a", link(long)), {Type: workspace.TypeSymlink, Target: []byte(long)}} {
		if !s.matches(link(long), false) || s.matches(link(long[1:]+"y"), false) || s.matches(link("x"), false) {
			t.Errorf("a stamp with %d bytes of target does not distinguish targets", len(s.Target))
		}
	}
	if s := stampOf("a", link("short")); string(s.Target) != "short" {
		t.Errorf("target %q", s.Target)
	}
}
