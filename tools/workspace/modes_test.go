package workspace

import (
	"os"
	"testing"
)

// modes runs a test with both ways to resolve: openat2, and the walk that replaces
// it.
func modes(t *testing.T, f func(t *testing.T, walking bool)) {
	t.Helper()
	t.Run("openat2", func(t *testing.T) { f(t, false) })
	t.Run("walk", func(t *testing.T) { f(t, true) })
}

func (l *layout) readerIn(walking bool, o ReaderOptions) *Reader {
	l.t.Helper()
	r := l.reader(o)
	l.set(r.tree, walking)
	return r
}

func (l *layout) writerIn(walking bool) *Writer {
	l.t.Helper()
	w := NewWriter(l.dir, WriterOptions{HostPath: l.root, ContainerPath: "/workspace"})
	l.must(w.broken)
	l.set(w.tree, walking)
	return w
}

// set chooses the way. A kernel without openat2 has only one.
func (l *layout) set(t *tree, walking bool) {
	l.t.Helper()
	if !walking && t.walking.Load() {
		l.t.Skip("needs openat2 (Linux 5.6)")
	}
	t.walking.Store(walking)
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
