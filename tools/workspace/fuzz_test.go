package workspace

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzResolve resolves any path in a workspace full of escaping symlinks. Both ways
// to resolve must agree and never return the canary. Writes must not change the
// outside.
func FuzzResolve(f *testing.F) {
	seeds := []string{"f", "d/f", "up/outside/canary", "abs/canary", "d/up/../../outside/canary", "self/self/f", "loop", "d/../f/", "dangling", "fifo/x", "d/back/d/f"}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	l := newLayout(f)
	l.file("f", "inside")
	l.file("d/f", "inside")
	l.link("up", "..")
	l.link("d/up", "../..")
	l.link("d/back", "..")
	l.link("abs", l.outside)
	l.link("self", ".")
	l.link("loop", "loop")
	l.link("dangling", "../outside/new")
	l.control("abs/canary")
	by := l.reader(ReaderOptions{})
	walk := l.readerIn(true, ReaderOptions{})
	w := l.writerIn(by.tree.walking.Load())
	before := l.hash()
	f.Fuzz(func(t *testing.T, name string) {
		l := l.with(t)
		one, err1 := read(by, name)
		two, err2 := read(walk, name)
		if one != two || kindOf(err1) != kindOf(err2) {
			t.Errorf("%q: openat2 gave %q, %v; the walk gave %q, %v", name, one, err1, two, err2)
		}
		for _, got := range []string{one, two} {
			if strings.Contains(got, l.canary) {
				t.Errorf("%q gave the canary", name)
			}
		}
		if strings.Contains(name, "loop") || len(name) > 100 {
			return
		}
		c, err := w.Apply(context.Background(), Op{Kind: OpWrite, Path: name, Content: []byte("inside")})
		if l.hash() != before {
			t.Fatalf("write to %q changed something outside", name)
		}
		if err != nil || !c.Created {
			return
		}
		if got, err := read(by, name); got != "inside" {
			t.Errorf("wrote %q, read %q, %v", name, got, err)
		}
		top, _, _ := strings.Cut(c.Path, "/")
		if fi, err := os.Lstat(filepath.Join(l.root, top)); err == nil && fi.Mode()&os.ModeSymlink == 0 && top != "d" {
			_ = os.RemoveAll(filepath.Join(l.root, top))
		}
	})
}

// FuzzDirent passes any bytes to the parser of directory records.
func FuzzDirent(f *testing.F) {
	record := func(name string) []byte {
		size := (direntHeader + len(name) + 1 + 7) &^ 7
		b := make([]byte, size)
		binary.NativeEndian.PutUint16(b[16:], uint16(size))
		b[18] = 8
		copy(b[direntHeader:], name)
		return b
	}
	seeds := [][]byte{record("a"), append(record(".."), record("name")...), record(""), {1, 2, 3}}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, buf []byte) {
		for rest := buf; len(rest) > 0; {
			d, next := nextDirent(rest)
			if len(next) >= len(rest) {
				t.Fatal("the parser does not go on")
			}
			if strings.Contains(d.name, "\x00") {
				t.Errorf("name %q holds a NUL", d.name)
			}
			rest = next
		}
	})
	d, _ := nextDirent(record("name"))
	if d.name != "name" || d.typ != TypeFile {
		f.Errorf("a good record gave %+v", d)
	}
}
