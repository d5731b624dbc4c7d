package approval

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/limits/state"
)

// anyState is a file of any JSON value, which is its only entry.
func anyState(path string) *stateFile[any] {
	return &stateFile[any]{
		path: path, what: "answers", now: time.Now,
		parse: func(text []byte) (v any, err error) {
			err = json.Unmarshal(text, &v)
			return v, err
		},
		entries: func(v any) []any {
			if v == nil {
				return nil
			}
			return []any{v}
		},
	}
}

func TestStateFileBounds(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"largest":   {"1" + strings.Repeat(" ", maxStateBytes-1), ""},
		"too large": {"1" + strings.Repeat(" ", maxStateBytes), "not a regular file of at most 4194304 bytes"},
		"deepest":   {strings.Repeat("[", 8) + strings.Repeat("]", 8), ""},
		"too deep":  {strings.Repeat("[", 9) + strings.Repeat("]", 9), "nested deeper than 8"},
	} {
		s := anyState(filepath.Join(t.TempDir(), "f"))
		writeGrants(t, s.path, tt.text)
		v, err := s.load()
		if tt.want == "" && (v == nil || err != nil) || tt.want != "" && (v != nil || err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

// TestStateFileLooksWithoutAFolder: to look makes no folder.
func TestStateFileLooksWithoutAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	if v, err := anyState(filepath.Join(dir, "f")).load(); v != nil || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

// TestStateFileFailures: what can't be read, locked, encoded or written is an error,
// and changes nothing.
func TestStateFileFailures(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("1"), 0o600), os.Mkdir(filepath.Join(dir, "locked.lock"), 0o700)); err != nil {
		t.Fatal(err)
	}
	below := anyState(filepath.Join(file, "f"))
	edit := func(any) any { return 2 }
	fail := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := below.read()
	fail(err, "read answers: ")
	fail(below.changeLocked(edit), "read answers: ")
	_, err = below.load()
	fail(err, "not a directory")
	fail(withLock(filepath.Join(dir, "locked"), func() error { return nil }), "is a directory")
	taken := anyState(filepath.Join(dir, "taken"))
	taken.now = func() time.Time { // between the look at the file and its replacement
		if err := os.MkdirAll(filepath.Join(taken.path, "x"), 0o700); err != nil {
			t.Error(err)
		}
		return time.Now()
	}
	fail(taken.change(edit), "write answers: ")
	if left, err := filepath.Glob(filepath.Join(dir, ".tmp-*")); len(left) != 0 || err != nil {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	_, err = anyState("/proc/self/mem").read()
	fail(err, "read answers: ")
}

// TestStateFileIsHeld: a lock that another process keeps is an error that says so.
func TestStateFileIsHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	other := flock.New(path + ".lock")
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := withLock(path, func() error { return errors.New("it ran") })
		if !errors.Is(err, state.ErrHeld) || !strings.Contains(err.Error(), path) || time.Since(begun) != lockTime {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// TestStateFileEncodes: content that can't be encoded is not stored, nor logged.
func TestStateFileEncodes(t *testing.T) {
	none := func(any) any { return nil }
	bad := func(any) any { return make(chan int) }
	for name, tt := range map[string]struct {
		change func(*stateFile[any])
		edit   func(any) any
	}{
		"before": {func(s *stateFile[any]) { s.parse = func([]byte) (any, error) { return make(chan int), nil } }, none},
		"after":  {func(*stateFile[any]) {}, bad},
		"whole":  {func(s *stateFile[any]) { s.entries = func(v any) []any { _, ok := v.(chan int); return []any{ok} } }, bad},
	} {
		s := anyState(filepath.Join(t.TempDir(), "f"))
		writeGrants(t, s.path, "1")
		tt.change(s)
		if err := s.change(tt.edit); err == nil || !strings.Contains(err.Error(), "encode answers: ") {
			t.Errorf("%s: %v", name, err)
		}
		text, err := os.ReadFile(s.path)
		if _, missing := os.Lstat(filepath.Join(filepath.Dir(s.path), ChangeLogFile)); string(text) != "1" || err != nil || !errors.Is(missing, fs.ErrNotExist) {
			t.Errorf("%s: the file is %q, %v; the log: %v", name, text, err, missing)
		}
	}
}

// TestQuarantineThatFails: a file that can't be moved aside stays, and the error says so.
func TestQuarantineThatFails(t *testing.T) {
	g, path := testGrants(t)
	writeGrants(t, path, "x")
	if err := os.Mkdir(path+".corrupt-20261120T090000.000000005", 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := g.List()
	corrupt, ok := errors.AsType[*CorruptError](err)
	if !ok || corrupt.Quarantine != "" || !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "not JSON") || !strings.HasPrefix(err.Error(), "read approvals "+path+": ") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(path); string(text) != "x" || err != nil {
		t.Errorf("the file is %q, %v", text, err)
	}
}
