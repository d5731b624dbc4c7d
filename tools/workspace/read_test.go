package workspace

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Acceptance A9: files that are not regular.
func TestSpecialFiles(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.must(unix.Mkfifo(l.path("fifo"), 0o644))
		listener, err := net.Listen("unix", l.path("socket"))
		l.must(err)
		defer func() { _ = listener.Close() }()
		names := map[string]Type{"fifo": TypeFIFO, "socket": TypeSocket}
		if os.Geteuid() == 0 {
			for name, dev := range map[string]uint64{"zero": unix.Mkdev(1, 5), "kmem": unix.Mkdev(1, 2)} {
				if unix.Mknod(l.path(name), unix.S_IFCHR|0o644, int(dev)) == nil { // root of a container may not
					names[name] = TypeDevice
				}
			}
			if unix.Mknod(l.path("block"), unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))) == nil {
				names["block"] = TypeDevice
			}
		}
		r, w := l.readerIn(walking, ReaderOptions{}), l.writerIn(walking)
		for name, typ := range names {
			if f, err := r.ReadFile(t.Context(), name, 0, 0); kindOf(err) != KindNotRegular {
				t.Errorf("read %s: %d bytes, %v; want %q", name, len(f.Data), err, KindNotRegular)
			}
			if info, err := r.Stat(t.Context(), name); err != nil || info.Type != typ {
				t.Errorf("stat %s: %+v, %v; want type %s", name, info, err, typ)
			}
			for _, op := range []Op{{Kind: OpWrite, Path: name, Content: []byte("x")}, {Kind: OpPatch, Path: name, Old: "a", New: "b"}} {
				if _, err := w.Apply(t.Context(), op); kindOf(err) != KindNotRegular {
					t.Errorf("%s %s: %v, want %q", op.Kind, name, err, KindNotRegular)
				}
			}
		}
		list, err := r.List(t.Context(), ".", 1)
		l.must(err)
		for _, e := range list.Entries {
			if e.Type != names[e.Path] || e.Size != 0 {
				t.Errorf("listed %+v, want type %s", e, names[e.Path])
			}
		}
		if len(list.Entries) != len(names) {
			t.Errorf("listed %d entries, want %d", len(list.Entries), len(names))
		}
		for name := range names {
			if _, err := w.Apply(t.Context(), Op{Kind: OpDelete, Path: name}); err != nil {
				t.Errorf("delete %s: %v", name, err)
			}
		}
	})
}

// The control of A9: a plain open of a FIFO waits for a writer. A writer that finds
// it there shows that.
func TestFIFOControl(t *testing.T) {
	l := newLayout(t)
	l.must(unix.Mkfifo(l.path("fifo"), 0o644))
	opened := make(chan error)
	go func() {
		f, err := os.Open(l.path("fifo"))
		if err == nil {
			err = f.Close()
		}
		opened <- err
	}()
	for {
		fd, err := unix.Open(l.path("fifo"), unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ENXIO) { // no call waits yet
			select {
			case <-opened:
				t.Fatal("control: a plain open of a FIFO did not wait")
			default:
			}
			runtime.Gosched()
			continue
		}
		l.must(err)
		l.must(<-opened)
		l.must(unix.Close(fd))
		return
	}
}

// Acceptance A11: sizes.
func TestSizes(t *testing.T) {
	l := newLayout(t)
	l.file("ten", "0123456789")
	l.file("empty", "")
	l.file("big", "")
	l.must(os.Truncate(l.path("big"), 1<<40))
	r := l.reader(ReaderOptions{maxFileBytes: 1 << 20})
	cases := []struct {
		path         string
		offset, most int64
		want         string // or its length, for big
		length       int
		size         int64
		truncated    bool
		kind         Kind
	}{
		{path: "ten", want: "0123456789", length: 10, size: 10},
		{path: "ten", most: 4, want: "0123", length: 4, size: 10, truncated: true},
		{path: "ten", offset: 4, most: 3, want: "456", length: 3, size: 10, truncated: true},
		{path: "ten", offset: 7, most: 3, want: "789", length: 3, size: 10},
		{path: "ten", offset: 10, size: 10},
		{path: "ten", offset: 11, size: 10},
		{path: "ten", offset: math.MaxInt64, most: math.MaxInt64, size: 10, kind: KindInvalid},
		{path: "ten", most: math.MaxInt64, want: "0123456789", length: 10, size: 10},
		{path: "ten", offset: -1, kind: KindInvalid},
		{path: "ten", most: -1, kind: KindInvalid},
		{path: "empty"},
		{path: "big", length: 1 << 20, size: 1 << 40, truncated: true},
		{path: "big", offset: 1<<40 - 3, length: 3, size: 1 << 40},
		{path: "big", offset: 1 << 41, size: 1 << 40},
	}
	for _, c := range cases {
		f, err := r.ReadFile(t.Context(), c.path, c.offset, c.most)
		if c.offset == math.MaxInt64 && err == nil {
			c.kind = "" // some file systems take such an offset: it is beyond the end
		}
		if kindOf(err) != c.kind {
			t.Errorf("read %s from %d, %d bytes: %v, want kind %q", c.path, c.offset, c.most, err, c.kind)
			continue
		}
		if err != nil {
			continue
		}
		if len(f.Data) != c.length || f.Size != c.size || f.Truncated != c.truncated || c.want != "" && string(f.Data) != c.want {
			t.Errorf("read %s from %d, %d bytes: %d bytes, size %d, truncated %v; want %d, %d, %v",
				c.path, c.offset, c.most, len(f.Data), f.Size, f.Truncated, c.length, c.size, c.truncated)
		}
	}
}

func TestReadsAllocateNoMoreThanTheyGive(t *testing.T) {
	l := newLayout(t)
	l.file("big", "")
	l.must(os.Truncate(l.path("big"), 1<<40))
	r := l.reader(ReaderOptions{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.ReadFile(t.Context(), "big", 0, math.MaxInt64)
	l.must(err)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > DefaultMaxFileBytes+1<<20 {
		t.Errorf("a read of a 1 TB file allocated %d bytes", got)
	}
	// The control: a plain read of the first 32 MiB is seen.
	file, err := os.Open(l.path("big"))
	l.must(err)
	defer func() { _ = file.Close() }()
	runtime.ReadMemStats(&before)
	_, err = io.ReadAll(io.LimitReader(file, 32<<20))
	l.must(err)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got <= DefaultMaxFileBytes+1<<20 {
		t.Errorf("control: a plain read allocated %d bytes only", got)
	}
}

// Files in /proc have a size of 0 but are not empty.
func TestSizeThatLies(t *testing.T) {
	l := newLayout(t)
	dir, err := os.Open("/proc/self")
	l.must(err)
	defer func() { _ = dir.Close() }()
	l.dir = dir
	f, err := l.reader(ReaderOptions{}).ReadFile(t.Context(), "status", 0, 0)
	if err != nil || !strings.HasPrefix(string(f.Data), "Name:") || f.Size != int64(len(f.Data)) || f.Truncated {
		t.Errorf("read of a file without a size: %d bytes, %+v, %v", len(f.Data), f.Info, err)
	}
	f, err = l.reader(ReaderOptions{}).ReadFile(t.Context(), "status", 0, 5)
	if err != nil || string(f.Data) != "Name:" || !f.Truncated {
		t.Errorf("read of its first 5 bytes: %q, %v, %v", f.Data, f.Truncated, err)
	}
}

// A file that shrinks after it was looked at, or grows while it is read.
func TestSizeThatMoves(t *testing.T) {
	l := newLayout(t)
	l.file("f", strings.Repeat("x", 1000))
	r := l.reader(ReaderOptions{maxFileBytes: 1 << 20})
	n, info, err := r.tree.openFile("f")
	l.must(err)
	defer n.close()
	l.must(os.Truncate(l.path("f"), 10))
	f := File{Info: info}
	l.must(f.readFrom(t.Context(), n, make([]byte, 1000), 1000))
	if len(f.Data) != 10 || f.Truncated {
		t.Errorf("read of a file that shrank: %d bytes, truncated %v", len(f.Data), f.Truncated)
	}

	grower, err := os.OpenFile(l.path("f"), os.O_WRONLY|os.O_APPEND, 0)
	l.must(err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		block := make([]byte, 1<<20)
		for written := 0; written < 256<<20; written += len(block) {
			select {
			case <-stop:
				return
			default:
				_, _ = grower.Write(block)
			}
		}
	}()
	for range 50 {
		f, err := r.ReadFile(t.Context(), "f", 0, 0)
		if err != nil || len(f.Data) > 1<<20 {
			t.Errorf("read of a growing file: %d bytes, %v", len(f.Data), err)
		}
	}
	close(stop)
	<-stopped
	l.must(grower.Close())
}

// Acceptance A19: modes and owners do not keep a host reader out.
func TestUnreadableModes(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.file("secret", "x")
	l.must(os.Chown(l.path("secret"), 10001, 10001))
	l.must(os.Chmod(l.path("secret"), 0))
	if got, err := read(l.reader(ReaderOptions{}), "secret"); got != "x" || err != nil {
		t.Errorf("read a file of mode 0 as root: %q, %v", got, err)
	}
}

func TestCancelledCallsGiveTheCause(t *testing.T) {
	l := newLayout(t)
	l.file("f", "x")
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for _, local := range []bool{true, false} {
		r := l.reader(ReaderOptions{})
		r.guard.local = local
		_, err := r.ReadFile(ctx, "f", 0, 0)
		if !errors.Is(err, cause) {
			t.Errorf("local %v: read: %v, want the cause", local, err)
		}
		if _, err := r.List(ctx, ".", 1); !errors.Is(err, cause) {
			t.Errorf("local %v: list: %v, want the cause", local, err)
		}
		if _, err := r.Search(ctx, ".", SearchOptions{}); !errors.Is(err, cause) {
			t.Errorf("local %v: search: %v, want the cause", local, err)
		}
	}
	w := l.writerIn(false)
	if _, err := w.Apply(ctx, Op{Kind: OpWrite, Path: "g"}); !errors.Is(err, cause) {
		t.Errorf("write: %v, want the cause", err)
	}
}

func TestExists(t *testing.T) {
	l := newLayout(t)
	l.file("f", "")
	l.link("out", "../outside")
	r := l.reader(ReaderOptions{})
	for p, want := range map[string]Kind{"f": "", "g": KindNotFound, ".": "", "out": KindEscape} {
		if _, err := r.Stat(t.Context(), p); kindOf(err) != want {
			t.Errorf("Stat(%q): %v, want %q", p, err, want)
		}
	}
	if info, err := r.Lstat(t.Context(), "out"); err != nil || info.Type != TypeSymlink {
		t.Errorf("Lstat of a link: %+v, %v", info, err)
	}
	if rel, err := r.Relative("a/../b//c"); rel != "b/c" || err != nil {
		t.Errorf("Relative: %q, %v", rel, err)
	}
	if err := r.Scope(t.Context(), "new/directory/file"); err != nil {
		t.Errorf("Scope of what does not exist yet: %v", err)
	}
	if err := r.Scope(t.Context(), "out/new/file"); kindOf(err) != KindEscape {
		t.Errorf("Scope of what does not exist outside: %v", err)
	}
}
