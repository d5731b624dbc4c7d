package workspace

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// heap returns the bytes in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func textOf(entries []Entry) (text int64) {
	for _, e := range entries {
		text += e.textBytes()
	}
	return text
}

// TestTextIsBounded: few entries can hold much text, so memory is bounded in bytes.
// The controls are the same directories with the default.
func TestTextIsBounded(t *testing.T) {
	const links, files = 10_000, 2000
	l := newLayout(t)
	l.must(os.Mkdir(l.path("links"), 0o755))
	for i := range links {
		l.must(os.Symlink(strings.Repeat("x", 4000), l.path(fmt.Sprintf("links/%05d", i))))
	}
	deep := "deep"
	l.must(os.Mkdir(l.path(deep), 0o755))
	dir, err := unix.Open(l.path(deep), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	l.must(err)
	for range 15 {
		name := strings.Repeat("d", 250)
		l.must(unix.Mkdirat(dir, name, 0o755))
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		l.must(err)
		l.must(unix.Close(dir))
		dir = next
		deep += "/" + name
	}
	for i := range files {
		fd, err := unix.Openat(dir, fmt.Sprintf("%05d", i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		l.must(err)
		l.must(unix.Close(fd))
	}
	l.must(unix.Close(dir))

	for _, c := range []struct {
		path  string
		depth int
		all   int
	}{
		{"links", 1, links},
		{"deep", 20, 15 + files},
		{deep, 1, files},
	} {
		for _, most := range []int64{1 << 20, 0} {
			r := l.reader(ReaderOptions{maxTextBytes: most})
			limit, cut := int64(DefaultMaxTextBytes), most != 0
			if cut {
				limit = most
			}
			check := func(what string, entries []Entry, truncated bool, grown int64) {
				t.Helper()
				name := fmt.Sprintf("%s of %.8s, at most %d", what, c.path, most)
				if text := textOf(entries); text > limit {
					t.Errorf("%s: %d bytes of text", name, text)
				}
				if truncated != cut || !cut && len(entries) != c.all || cut && (len(entries) == 0 || len(entries) >= c.all) {
					t.Errorf("%s: %d of %d entries, truncated %v", name, len(entries), c.all, truncated)
				}
				// An entry takes about 128 bytes, and append may allocate twice as much.
				if cut && grown > 4<<20 {
					t.Errorf("%s: %d bytes are held", name, grown)
				}
				runtime.KeepAlive(entries)
			}
			before := heap()
			list, err := r.List(t.Context(), c.path, c.depth)
			l.must(err)
			check("list", list.Entries, list.Truncated, heap()-before)

			if c.depth == 1 {
				seen, more, err := r.ReadDir(t.Context(), c.path, false, Capacity{})
				l.must(err)
				check("reading", seen, more, 0)
			}
		}
	}
}

// TestNamesAreBounded: not even a directory's names are held beyond the capacity.
func TestNamesAreBounded(t *testing.T) {
	l := newLayout(t)
	for i := range 100 {
		l.file(fmt.Sprintf("%03d%s", i, strings.Repeat("n", 200)), "")
	}
	fd, err := unix.Open(l.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	l.must(err)
	defer unix.Close(fd)
	names, more, err := readNames(fd, 10*203)
	if len(names) != 10 || !more || err != nil {
		t.Errorf("%d names, more %v, %v", len(names), more, err)
	}
}
