package workspace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// layout is a workspace beside an outside directory with the canary: 32 random
// bytes in hex that must never be returned.
type layout struct {
	t       testing.TB
	root    string // the workspace
	outside string
	canary  string
	dir     *os.File
}

func newLayout(t testing.TB) *layout {
	t.Helper()
	var secret [32]byte
	_, _ = rand.Read(secret[:])
	base := t.TempDir()
	l := &layout{t: t, root: filepath.Join(base, "ws"), outside: filepath.Join(base, "outside"), canary: hex.EncodeToString(secret[:])}
	l.must(os.Mkdir(l.root, 0o755))
	l.must(os.Mkdir(l.outside, 0o755))
	l.must(os.WriteFile(filepath.Join(l.outside, "canary"), []byte(l.canary), 0o644))
	l.must(os.MkdirAll(filepath.Join(l.outside, "directory"), 0o755))
	dir, err := OpenDir(l.root)
	l.must(err)
	t.Cleanup(func() {
		_ = dir.Close()
		// The test's clean-up needs access to everything.
		_ = filepath.WalkDir(l.root, func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	l.dir = dir
	return l
}

// with is the same layout for another test.
func (l layout) with(t testing.TB) *layout {
	l.t = t
	return &l
}

func (l *layout) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *layout) path(name string) string { return filepath.Join(l.root, name) }

func (l *layout) file(name, content string) {
	l.t.Helper()
	l.must(os.MkdirAll(filepath.Dir(l.path(name)), 0o755))
	l.must(os.WriteFile(l.path(name), []byte(content), 0o644))
}

func (l *layout) link(name, target string) {
	l.t.Helper()
	l.must(os.MkdirAll(filepath.Dir(l.path(name)), 0o755))
	l.must(os.Symlink(target, l.path(name)))
}

func (l *layout) reader(o ReaderOptions) *Reader {
	l.t.Helper()
	r, err := NewReader(l.dir, o)
	l.must(err)
	return r
}

// leaks fails the test if text contains the canary.
func (l *layout) leaks(what string, text any) {
	l.t.Helper()
	if strings.Contains(fmt.Sprintf("%s %v %q", text, text, text), l.canary) {
		l.t.Errorf("%s gave the canary", what)
	}
}

// hash covers names, types, modes, symlinks and contents of everything outside.
func (l *layout) hash() string {
	l.t.Helper()
	sum := sha256.New()
	l.must(filepath.WalkDir(l.outside, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		target, _ := os.Readlink(p)
		var content []byte
		if fi.Mode().IsRegular() {
			content, _ = os.ReadFile(p)
		}
		fmt.Fprintf(sum, "%q %v %q %x\n", p, fi.Mode(), target, content)
		return nil
	}))
	return hex.EncodeToString(sum.Sum(nil))
}

// naiveRead is the wrong way: a check of the spelling, then an open.
func (l *layout) naiveRead(name string) string {
	p := filepath.Clean(filepath.Join(l.root, name))
	if !strings.HasPrefix(p, l.root) {
		return ""
	}
	b, err := os.ReadFile(p)
	if err != nil {
		return ""
	}
	return string(b)
}

// control fails the test if even a naive reader does not get the canary: then the
// case would show nothing.
func (l *layout) control(name string) {
	l.t.Helper()
	if !strings.Contains(l.naiveRead(name), l.canary) {
		l.t.Errorf("control: the naive reader did not reach the canary through %q", name)
	}
}

// kindOf returns the kind of an error, "" for nil and "?" for another error.
func kindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := asError(err); ok {
		return e.Kind
	}
	return "?"
}

func asError(err error) (*Error, bool) {
	e, ok := err.(*Error) //nolint:errorlint // methods give it unwrapped
	return e, ok
}

func read(r *Reader, name string) (string, error) {
	f, err := r.ReadFile(context.Background(), name, 0, 0)
	return string(f.Data), err
}
