package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/klauspost/compress/zstd"
)

func writeProgramFile(t *testing.T, path string) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600))
	must(t, os.Chmod(path, 0o755))
	return path
}

func TestFindOrder(t *testing.T) {
	dir := t.TempDir()
	own, onPath, configured := filepath.Join(dir, "own"), filepath.Join(dir, "path"), filepath.Join(dir, "opt/guest")
	f := Finder{
		Executable: func() (string, error) { return writeProgramFile(t, filepath.Join(own, "caisson")), nil },
		Path:       "relative" + string(filepath.ListSeparator) + onPath,
	}
	t.Chdir(dir)
	writeProgramFile(t, filepath.Join(dir, "relative/guest"))
	find := func(configured *string) string {
		t.Helper()
		path, err := f.Find(configured, "guest")
		if err != nil {
			return err.Error()
		}
		return path
	}
	if got := find(nil); !strings.HasPrefix(got, "find guest: it is not there; tried ") {
		t.Errorf("nothing there: %s", got)
	}
	want := writeProgramFile(t, filepath.Join(onPath, "guest"))
	if got := find(nil); got != want {
		t.Errorf("on PATH: %s, want %s", got, want)
	}
	writeProgramFile(t, configured)
	if got := find(&configured); got != configured {
		t.Errorf("configured: %s", got)
	}
	want = writeProgramFile(t, filepath.Join(own, "guest"))
	if got := find(&configured); got != want {
		t.Errorf("beside the program: %s, want %s", got, want)
	}
}

func TestFindRefuses(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	path := writeProgramFile(t, filepath.Join(bin, "runsc"))
	none := func() (string, error) { return "", errors.New("unknown") }
	for name, tt := range map[string]struct {
		finder Finder
		mode   fs.FileMode
		want   string // "" is found
	}{
		"found":              {Finder{}, 0o755, ""},
		"writable by all":    {Finder{}, 0o757, "every user can write it"},
		"not executable":     {Finder{}, 0o644, "not an executable file"},
		"in the workspace":   {Finder{Writable: func() []string { return []string{"", dir} }}, 0o755, "commands in the sandbox can write to"},
		"beside a workspace": {Finder{Writable: func() []string { return []string{t.TempDir()} }}, 0o755, ""},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.Chmod(path, tt.mode))
			tt.finder.Executable, tt.finder.Path = none, bin
			got, err := tt.finder.Find(nil, "runsc")
			if tt.want == "" {
				if err != nil || got != path {
					t.Fatalf("found %q, %v", got, err)
				}
				return
			}
			if missing, ok := errors.AsType[*NotFoundError](err); !ok || missing.Name != "runsc" || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("found %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func embed(t *testing.T, sum string) {
	t.Helper()
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	must(t, err)
	if _, err := w.Write([]byte("program")); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	old := files
	files = fstest.MapFS{
		"files/SHA256SUMS": {Data: []byte(sum + "  guest\n")},
		"files/guest.zst":  {Data: packed.Bytes()},
	}
	t.Cleanup(func() { files = old })
}

func sumOf(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

func TestEmbedded(t *testing.T) {
	embed(t, sumOf("program"))
	cache := filepath.Join(t.TempDir(), "programs")
	f := Finder{Executable: os.Executable, Cache: cache, Path: filepath.Dir(writeProgramFile(t, filepath.Join(t.TempDir(), "guest")))}
	if got := fmt.Sprint(Embedded()); got != "[guest]" {
		t.Errorf("embedded %s", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := f.Find(nil, "guest")
			if text, readErr := os.ReadFile(path); err != nil || string(text) != "program" {
				t.Errorf("found %q with %q, %v, %v", path, text, err, readErr)
			}
		})
	}
	wg.Wait()
	path := filepath.Join(cache, sumOf("program"), "guest")
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
	before, err := os.Stat(path)
	if err != nil || before.Mode() != 0o555 {
		t.Fatalf("mode %v, %v", before.Mode(), err)
	}
	if _, err := f.Find(nil, "guest"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("unpacked again, %v", err)
	}

	// A copy with another time is kept once it was read.
	must(t, os.Chtimes(path, time.Time{}, time.Now()))
	if _, err := f.Find(nil, "guest"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("unpacked again, or its time is %v, %v", after.ModTime(), err)
	}

	// A file that was removed, changed or made writable is unpacked again.
	for name, change := range map[string]func() error{
		"removed":  func() error { return os.Remove(path) },
		"writable": func() error { return errors.Join(os.Chmod(path, 0o700), os.WriteFile(path, []byte("other"), 0o700)) },
		"changed": func() error {
			return errors.Join(os.Chmod(path, 0o700), os.WriteFile(path, []byte("PROGRAM"), 0o700), os.Chmod(path, 0o555))
		},
		"truncated": func() error {
			return errors.Join(os.Chmod(path, 0o700), os.Truncate(path, 3), os.Chmod(path, 0o555))
		},
	} {
		must(t, change())
		if _, err := f.Find(nil, "guest"); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "program" {
			t.Errorf("%s: it holds %q, %v", name, text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o555 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

func TestEmbeddedRefused(t *testing.T) {
	none := func() (string, error) { return "", errors.New("unknown") }
	t.Run("checksum", func(t *testing.T) {
		embed(t, sumOf("other"))
		cache := t.TempDir()
		_, err := (&Finder{Executable: none, Cache: cache}).Find(nil, "guest")
		if e, ok := errors.AsType[*UnpackError](err); !ok || e.Name != "guest" || !strings.Contains(err.Error(), "unpack guest: its checksum differs") {
			t.Errorf("error %v", err)
		}
		if entries, _ := os.ReadDir(filepath.Join(cache, sumOf("other"))); len(entries) != 0 {
			t.Errorf("%d files are left", len(entries))
		}
	})
	t.Run("cache of others", func(t *testing.T) {
		embed(t, sumOf("program"))
		cache := filepath.Join(t.TempDir(), "programs")
		must(t, os.Mkdir(cache, 0o700))
		must(t, os.Chmod(cache, 0o777))
		if _, err := (&Finder{Executable: none, Cache: cache}).Find(nil, "guest"); err == nil || !strings.Contains(err.Error(), "only its owner") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no cache", func(t *testing.T) {
		embed(t, sumOf("program"))
		if _, err := (&Finder{Executable: none}).Find(nil, "guest"); err == nil || !strings.Contains(err.Error(), "no cache directory") {
			t.Errorf("error %v", err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
