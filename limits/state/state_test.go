package state

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), []byte("1234"), 0o600))
	must(t, os.Mkdir(at("directory"), 0o700))
	must(t, os.Symlink("file", at("symlink")))
	must(t, os.WriteFile(at("long"), []byte("12345"), 0o600))
	for name, want := range map[string]error{
		"file": nil, "long": ErrDamaged, "directory": ErrDamaged, "symlink": ErrDamaged, "none": fs.ErrNotExist,
	} {
		text, err := Read(at(name), 4)
		if !errors.Is(err, want) || err == nil && string(text) != "1234" || err != nil && text != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := Read("/proc/self/mem", 4); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a file that can't be read: %v", err)
	}
}

// TestReadWhileReplaced checks that a reader without a lock gets one of the contents,
// complete.
func TestReadWhileReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	texts := []string{strings.Repeat("a", 5000), strings.Repeat("b", 4000)}
	must(t, Replace(path, []byte(texts[0])))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 2000 {
				if text, err := Read(path, 5000); err != nil || !slices.Contains(texts, string(text)) {
					t.Errorf("%d bytes, %v", len(text), err)
					return
				}
			}
		})
	}
	for i := range 40 {
		if err := Replace(path, []byte(texts[i%2])); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestDecode(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"a":1}`: true, `{"a":1}` + "\n": true, `{"a":1}{}`: false, `{"a":1} x`: false, `{"b":1}`: false, `{"a":1`: false, ``: false,
	} {
		var v struct {
			A int `json:"a"`
		}
		if err := Decode([]byte(text), &v); (err == nil) != ok || ok && v.A != 1 {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
}

// TestReplace checks that a file is replaced as a whole or stays.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two"} {
		must(t, Replace(path, []byte(text)))
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		must(t, errors.Join(err, statErr))
		if string(got) != text || info.Mode().Perm() != 0o600 {
			t.Errorf("%q with mode %v", got, info.Mode())
		}
	}
	must(t, os.MkdirAll(filepath.Join(dir, "taken", "x"), 0o700))
	for _, path := range []string{filepath.Join(dir, "none", "f"), filepath.Join(path, "f"), filepath.Join(dir, "taken")} {
		if err := Replace(path, nil); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if err := ReplaceJSON(path, make(chan int)); err == nil {
		t.Error("a channel was written")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "two" {
		t.Errorf("the file is %q, %v", text, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".tmp-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestSyncDir(t *testing.T) {
	if err := SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that does not exist: %v", err)
	}
	must(t, SyncDir("/proc")) // EINVAL
}

// TestLock counts with several concurrent holders, with lock files that stay and ones
// that each holder removes: nobody may hold a removed file.
func TestLock(t *testing.T) {
	for _, remove := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "a", "lock")
		var count atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 25 {
					l, err := Acquire(t.Context(), path, time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					before := count.Load()
					runtime.Gosched()
					count.Store(before + 1)
					end := l.Release
					if remove {
						end = l.Remove
					}
					if err := end(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if count.Load() != 8*25 {
			t.Errorf("remove %v: counted %d", remove, count.Load())
		}
	}
}

func TestLockStates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held := func(want bool) {
		t.Helper()
		if got, err := IsHeld(path); got != want || err != nil {
			t.Errorf("held: %v, %v, want %v", got, err, want)
		}
	}
	held(false)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("IsHeld made the file: %v", err)
	}
	one, err := AcquireShared(t.Context(), path, 0)
	must(t, err)
	two, err := AcquireShared(t.Context(), path, 0)
	must(t, err)
	must(t, one.Release())
	held(true)
	if _, err := TryAcquire(path); !errors.Is(err, ErrHeld) {
		t.Errorf("under a shared lock: %v", err)
	}
	must(t, two.Release())
	must(t, two.Release())
	held(false)
	must(t, (*Lock)(nil).Release())
	if _, err := TryAcquire(filepath.Join(filepath.Dir(path), "none", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a missing directory: %v", err)
	}
}

// TestLockWait checks the bounds of a wait.
func TestLockWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryAcquire(path)
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := Acquire(t.Context(), path, 5*time.Second)
		if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), path) || time.Since(begun) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(over) })
		if _, err := Acquire(ctx, path, Forever); !errors.Is(err, over) {
			t.Errorf("after the context: %v", err)
		}
	})
	must(t, l.Release())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Acquire(ctx, path, Forever); !errors.Is(err, context.Canceled) {
		t.Errorf("a free lock after the context: %v", err)
	}
}

// TestExpire checks what Expire removes, and that MarkUsed prevents it.
func TestExpire(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-10 * time.Hour)
	for _, name := range []string{"old", "used", "other"} {
		must(t, os.MkdirAll(filepath.Join(dir, name, "x"), 0o700))
		must(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	MarkUsed(filepath.Join(dir, "used"))
	MarkUsed(filepath.Join(dir, "none"))
	mine := func(name string) bool { return name != "other" }
	must(t, Expire(dir, time.Now().Add(-2*time.Hour), mine))
	must(t, Expire(filepath.Join(dir, "none"), time.Now(), mine))
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 2 || entries[0].Name() != "other" || entries[1].Name() != "used" {
		t.Errorf("left: %v", entries)
	}
}

// TestCheckDir checks that only the user's own directories are trusted.
func TestCheckDir(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	for name, mode := range map[string]os.FileMode{"ours": 0o700, "readable": 0o755, "group": 0o720, "all": 0o702, "theirs": 0o700} {
		must(t, errors.Join(os.Mkdir(at(name), 0o700), os.Chmod(at(name), mode)))
	}
	must(t, os.WriteFile(at("file"), nil, 0o600))
	must(t, os.Symlink("ours", at("symlink")))
	tests := map[string]string{
		"ours": "", "readable": "", "group": "other users", "all": "other users", "none": "can't be read", "file": "is not a directory", "symlink": "is not a directory",
	}
	if os.Geteuid() == 0 { // only root can make a directory of another user
		must(t, os.Chown(at("theirs"), 65534, 65534))
		tests["theirs"] = "belongs to another user"
	}
	for name, want := range tests {
		root, openErr := OpenDir(at(name))
		if openErr == nil {
			must(t, root.Close())
		}
		for _, err := range []error{CheckDir(at(name)), openErr} {
			e, ok := errors.AsType[*DirError](err)
			if (err == nil) != (want == "") || err != nil && (!ok || !strings.Contains(e.Error(), want)) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}
