package results

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// serviceVariable names a bucket on a running service, such as s3://test. AWS's
// variables name the service and its keys.
const serviceVariable = "CAISSON_TEST_S3"

// stores opens an empty store of each available kind.
func stores(t *testing.T, test func(t *testing.T, s Store)) {
	locations := map[string]string{"directory": filepath.Join(t.TempDir(), "a", "b")}
	if s3 := os.Getenv(serviceVariable); s3 != "" {
		locations["s3"] = fmt.Sprintf("%s/%s-%d", s3, strings.ToLower(t.Name()), os.Getpid())
	}
	for kind, location := range locations {
		t.Run(kind, func(t *testing.T) {
			s, err := Open(t.Context(), location, os.LookupEnv)
			if err != nil {
				t.Fatal(err)
			}
			test(t, s)
		})
	}
}

func put(ctx context.Context, s Store, name, text string) error {
	return s.Put(ctx, name, strings.NewReader(text), int64(len(text)))
}

func read(t *testing.T, s Store, name string) string {
	t.Helper()
	r, err := s.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestStore: an object is created once, read unchanged, and listed.
func TestStore(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		ctx := t.Context()
		large := strings.Repeat("0123456789abcdef", 2<<20) // 32 MiB: more than a part of an upload
		for name, text := range map[string]string{"trials/a": "first", "trials/b_-.1": "", "claims/a": large} {
			if has, err := s.Has(ctx, name); has || err != nil {
				t.Errorf("%s before: %v, %v", name, has, err)
			}
			if err := put(ctx, s, name, text); err != nil {
				t.Fatal(err)
			}
			if err := put(ctx, s, name, "second"); !errors.Is(err, ErrExists) {
				t.Errorf("%s again: %v", name, err)
			}
			if has, err := s.Has(ctx, name); !has || err != nil {
				t.Errorf("%s: %v, %v", name, has, err)
			}
			if got := read(t, s, name); got != text {
				t.Errorf("%s has %d bytes, want %d", name, len(got), len(text))
			}
		}
		if names, err := s.List(ctx, "trials"); err != nil || fmt.Sprint(names) != "[a b_-.1]" {
			t.Errorf("list: %v, %v", names, err)
		}
		if names, err := s.List(ctx, "none"); err != nil || len(names) > 0 {
			t.Errorf("list nothing: %v, %v", names, err)
		}
		if _, err := s.Get(ctx, "trials/c"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing: %v", err)
		}
		for _, name := range []string{"", "a", "a/b/c", "../a", "a/..", "a/.b", "a/ b", "a/b\x00"} {
			if err := put(ctx, s, name, ""); err == nil || errors.Is(err, ErrExists) {
				t.Errorf("name %q: %v", name, err)
			}
		}
	})
}

// TestOneWins: if many create the same object, one succeeds, and its content stays.
func TestOneWins(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		for round := range 20 {
			name := fmt.Sprintf("trials/%d", round)
			var won atomic.Int64
			var winner sync.Map
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					text := strings.Repeat(fmt.Sprint(i), 1000+i)
					switch err := put(t.Context(), s, name, text); {
					case err == nil:
						won.Add(1)
						winner.Store("text", text)
					case !errors.Is(err, ErrExists):
						t.Error(err)
					}
				})
			}
			all.Wait()
			want, _ := winner.Load("text")
			if got := read(t, s, name); won.Load() != 1 || got != want {
				t.Errorf("%s: %d won, and it begins with %.10q", name, won.Load(), got)
			}
		}
	})
}

// TestInterrupted: content that can't be read completely leaves nothing behind.
func TestInterrupted(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		if err := s.Put(t.Context(), "trials/a", strings.NewReader("short"), 10); err == nil {
			t.Error("less than its size: no error")
		}
		if has, err := s.Has(t.Context(), "trials/a"); has || err != nil {
			t.Errorf("%v, %v", has, err)
		}
		if d, ok := s.(directory); ok {
			if entries, err := os.ReadDir(filepath.Join(d.dir, "trials")); err != nil || len(entries) > 0 {
				t.Errorf("left %v, %v", entries, err)
			}
		}
	})
}

// forgetful is a store that replaces objects, like a service that ignores conditions.
type forgetful struct{ Store }

func (f forgetful) Put(context.Context, string, io.ReadSeeker, int64) error { return nil }

// TestUnconditional: a store that replaces objects is refused.
func TestUnconditional(t *testing.T) {
	if err := checkConditional(t.Context(), forgetful{}); !errors.Is(err, ErrUnconditional) {
		t.Error(err)
	}
}

func TestOpenInvalid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, bool) { return "", false }
	for _, location := range []string{file, "s3://", "s3:///prefix", "gs://bucket", "s3://user:secret@bucket", "s3://bucket?region=a", "http://host/bucket"} {
		if s, err := Open(t.Context(), location, none); err == nil {
			t.Errorf("%s: %v", location, s)
		}
	}
	if _, err := openBucket("b", "", func(string) (string, bool) { return "ftp://host", true }); err == nil || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Error(err)
	}
}

func openTestDirectory(t *testing.T) (s Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), dir, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// TestPlanted: files that another user plants lead nowhere outside, and nothing blocks
// on them.
func TestPlanted(t *testing.T) {
	s, dir := openTestDirectory(t)
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(
		os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "a"), []byte("secret"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "claims")), os.Mkdir(filepath.Join(dir, "trials"), 0o755),
		os.Symlink(filepath.Join(outside, "a"), filepath.Join(dir, "trials", "a")), os.Symlink(filepath.Join(outside, "new"), filepath.Join(dir, "trials", "new")),
		syscall.Mkfifo(filepath.Join(dir, "trials", "pipe"), 0o644), os.Mkdir(filepath.Join(dir, "trials", "dir"), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), s, "claims/b", "x"); err == nil {
		t.Error("an object was created outside")
	}
	if err := put(t.Context(), s, "trials/new", "x"); !errors.Is(err, ErrExists) {
		t.Errorf("at a symlink: %v", err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	for _, name := range []string{"claims/a", "trials/a", "trials/pipe", "trials/dir"} {
		if r, err := s.Get(t.Context(), name); err == nil {
			text, _ := io.ReadAll(r)
			t.Errorf("%s: %q", name, text)
		}
	}
	if _, err := s.List(t.Context(), "claims"); err == nil {
		t.Error("a directory outside was listed")
	}
}

// TestLeftParts: what a machine that died while writing left is no object, and is
// removed eventually.
func TestLeftParts(t *testing.T) {
	s, dir := openTestDirectory(t)
	old, young := filepath.Join(dir, "store", partPrefix+"old"), filepath.Join(dir, "store", partPrefix+"young")
	err := errors.Join(os.WriteFile(old, nil, 0o600), os.WriteFile(young, nil, 0o600), os.Chtimes(old, time.Time{}, time.Now().Add(-2*partAge)))
	if err != nil {
		t.Fatal(err)
	}
	if names, err := s.List(t.Context(), "store"); err != nil || fmt.Sprint(names) != "[version-1]" {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := Open(t.Context(), dir, os.LookupEnv); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "store", partPrefix+"*")); err != nil || fmt.Sprint(left) != fmt.Sprint([]string{young}) {
		t.Errorf("%v, %v", left, err)
	}
}
