package workspace

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRead4KiB compares reads of a 4 KiB file two directories deep: by the
// standard library and by the Reader.
func BenchmarkRead4KiB(b *testing.B) {
	l := newLayout(b)
	l.file("x/y/f", strings.Repeat("x", 4096))
	r := l.reader(ReaderOptions{})
	ctx := context.Background()
	b.Run("os.ReadFile", func(b *testing.B) {
		for b.Loop() {
			if _, err := os.ReadFile(l.path("x/y/f")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Reader.ReadFile", func(b *testing.B) {
		for b.Loop() {
			if _, err := r.ReadFile(ctx, "x/y/f", 0, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Reader.ReadFile guarded", func(b *testing.B) {
		r := l.reader(ReaderOptions{})
		r.guard.local = false
		for b.Loop() {
			if _, err := r.ReadFile(ctx, "x/y/f", 0, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Reader.ReadFile walk", func(b *testing.B) {
		r := l.readerIn(true, ReaderOptions{})
		for b.Loop() {
			if _, err := r.ReadFile(ctx, "x/y/f", 0, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWrite measures a write, mostly its sync, against a bare one.
func BenchmarkWrite(b *testing.B) {
	l := newLayout(b)
	w := l.writerIn(false)
	content := []byte(strings.Repeat("x", 4096))
	b.Run("plain with fsync and rename", func(b *testing.B) {
		for b.Loop() {
			f, err := os.Create(l.path("temp"))
			l.must(err)
			_, err = f.Write(content)
			l.must(err)
			l.must(unix.Fsync(int(f.Fd())))
			l.must(f.Close())
			l.must(os.Rename(l.path("temp"), l.path("f")))
		}
	})
	b.Run("Writer", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.Apply(context.Background(), Op{Kind: OpWrite, Path: "f", Content: content}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
