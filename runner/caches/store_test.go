package caches

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var self = Owner{os.Geteuid(), os.Getegid()}

// open opens caches and closes them again, and returns their directories.
func open(t *testing.T, s *Store, workspace string, owner Owner, targets ...string) []string {
	t.Helper()
	l, err := s.Open(workspace, owner, targets)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, d := range l.Dirs {
		paths = append(paths, d.Path)
	}
	return paths
}

// A workspace's caches are the same in each of its sessions; another workspace
// or owner has others.
func TestCachesBelongToOneWorkspace(t *testing.T) {
	s := NewStore(t.TempDir())
	first := open(t, s, "/w", self, "/home/agent/.npm", "/home/agent/go/pkg/mod")
	if diff := cmp.Diff(first, open(t, s, "/w", self, "/home/agent/.npm", "/home/agent/go/pkg/mod")); diff != "" {
		t.Error(diff)
	}
	for _, path := range append(open(t, s, "/w/x", self, "/home/agent/.npm"), open(t, s, "/w", Owner{self.UID + 1, self.GID}, "/home/agent/.npm")...) {
		if path == first[0] {
			t.Errorf("%s is shared", path)
		}
	}
	info, err := os.Lstat(first[0])
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A cache is not opened through a symlink.
func TestOpenRefusesWhatIsNoDirectory(t *testing.T) {
	s := NewStore(t.TempDir())
	path := open(t, s, "/w", self, "/home/agent/.npm")[0]
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), path); err != nil {
		t.Fatal(err)
	}
	if l, err := s.Open("/w", self, []string{"/home/agent/.npm"}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("%v, %v", l, err)
	}
}

// Listing and removing caches touch nothing outside, whatever commands have
// planted in them: symlinks to a directory and to a file, and directories that
// their owner can't enter.
func TestPlantedEntriesAreNotFollowed(t *testing.T) {
	s := NewStore(t.TempDir())
	path := open(t, s, "/w", self, "/home/agent/.npm")[0]
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "big"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "big"), "up": "../../.."} {
		if err := os.Symlink(target, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(path, "closed")
	if err := errors.Join(os.MkdirAll(filepath.Join(closed, "inner"), 0o700), os.WriteFile(filepath.Join(path, "own"), make([]byte, 70), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	want := Entry{ID: filepath.Base(filepath.Dir(path)), Workspace: "/w", Caches: []string{"~/.npm"}, Bytes: 70, Used: list[0].Used}
	if diff := cmp.Diff(want, list[0]); diff != "" {
		t.Error(diff)
	}
	if err := s.Remove(list[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "big")); err != nil {
		t.Error("a file outside was removed:", err)
	}
	if err := s.Remove(list[0].ID); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Error(left, err)
	}
}

// A cache's file is the same for each session, readable by all, no cache
// itself, and removed with the caches.
func TestConfigFile(t *testing.T) {
	s := NewStore(t.TempDir())
	c, err := Parse("apt")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := s.Open("/w", self, c.Targets)
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.OpenConfig(*c.Config)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(d.Path, "apt.conf")
		text, err := os.ReadFile(file)
		if err != nil || string(text) != c.Config.Text || d.Target != "/.caisson-apt" {
			t.Errorf("%q, %v at %s", text, err, d.Target)
		}
		for path, want := range map[string]fs.FileMode{d.Path: fs.ModeDir | 0o755, file: 0o644} {
			if info, err := os.Stat(path); err != nil || info.Mode() != want {
				t.Errorf("%s: %v, %v", path, info.Mode(), err)
			}
		}
		if err := os.WriteFile(file, []byte("of another version"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := d.File.Stat(); err == nil {
			t.Error("the lease left the directory open")
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if diff := cmp.Diff([]string{"~/.cache/apt"}, list[0].Caches); diff != "" {
		t.Error(diff)
	}
	if err := s.Remove(list[0].ID); err != nil {
		t.Error(err)
	}
}

// Caches that a session has open are neither removed nor expired. Caches that
// no session used for a time are, with what an interrupted removal left.
func TestRemoveLeavesUsedCaches(t *testing.T) {
	s := NewStore(t.TempDir())
	l, err := s.Open("/live", self, []string{"/home/agent/.npm"})
	if err != nil {
		t.Fatal(err)
	}
	live := filepath.Base(filepath.Dir(l.Dirs[0].Path))
	if err := s.Remove(live); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	open(t, s, "/new", self)
	old := open(t, s, "/old", self, "/home/agent/.npm")[0]
	before := time.Now().Add(-48 * time.Hour)
	for _, id := range []string{live, filepath.Base(filepath.Dir(old))} {
		if err := os.Chtimes(filepath.Join(s.dir, id+lockSuffix), before, before); err != nil {
			t.Fatal(err)
		}
	}
	cut := filepath.Join(s.dir, removedPrefix+"x")
	if err := os.MkdirAll(filepath.Join(cut, "y"), 0o700); err != nil {
		t.Fatal(err)
	}
	removed, err := s.Expire(24 * time.Hour)
	if diff := cmp.Diff([]string{"/old"}, removed); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for path, stays := range map[string]bool{l.Dirs[0].Path: true, filepath.Dir(old): false, cut: false} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || !list[0].InUse || list[1].InUse {
		t.Errorf("%+v, %v", list, err)
	}
	if err := errors.Join(l.Close(), s.Remove(live)); err != nil {
		t.Error(err)
	}
	if err := s.Remove("../caches"); err == nil {
		t.Error("an id that is a path was taken")
	}
}

func TestParse(t *testing.T) {
	for name, want := range map[string]string{
		"go": "", "npm": "", "pip": "", "cargo": "", "maven": "", "apt": "", "~/.gradle": "", "~/.cache/ms-playwright": "",
		"bazel":                         "unknown cache",
		"/var/cache":                    "unknown cache",
		"~":                             "unknown cache",
		"~/":                            "not a directory below the home",
		"~/.":                           "not a directory below the home",
		"~/../x":                        "not a directory below the home",
		"~/a//b":                        "not a directory below the home",
		"~/a/":                          "not a directory below the home",
		"~/a\nb":                        "not a directory below the home",
		"~/a:b":                         "not a directory below the home",
		"~/" + strings.Repeat("a", 100): "more than 70 bytes",
	} {
		c, err := Parse(name)
		switch {
		case want == "" && (err != nil || c.Name != name || len(c.Targets) == 0):
			t.Errorf("%s: %+v, %v", name, c, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestTargets(t *testing.T) {
	list, err := ParseList([]string{"npm", "go", "~/.npm"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Targets(list)
	if diff := cmp.Diff([]string{"/home/agent/.cache/go-build", "/home/agent/.npm", "/home/agent/go/pkg/mod"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for text, names := range map[string][]string{
		"the cache ~/.cache/go-build lies in the cache ~/.cache: keep one of them": {"go", "~/.cache"},
		"unknown cache": {"go", "bazel"},
	} {
		if _, err := ParseList(names); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", names, err)
		}
	}
}

func TestParseUse(t *testing.T) {
	for name, want := range map[string]Use{"": Writable, "writable": Writable, "frozen": Frozen, "none": None} {
		if got, err := ParseUse(name); got != want || err != nil {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if got, err := ParseUse("forzen"); err == nil || got != "" {
		t.Errorf("%q, %v", got, err)
	}
}

// An archive replaces only its own server's others. Nothing replaces it if
// writing fails or there is nothing to write. It is listed and removed with the
// caches.
func TestArchive(t *testing.T) {
	s := NewStore(t.TempDir())
	l, err := s.Open("/w", self, nil)
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("the disk is full")
	write := func(server, key, text string, fails error) {
		t.Helper()
		err := WriteArchive(l.Archive(server, key), func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return errors.Join(err, fails)
		})
		if !errors.Is(err, fails) {
			t.Errorf("%s %s: %v", server, key, err)
		}
	}
	write("one", "old", "1", nil)
	write("one-b", "old", "22", nil)
	write("one", "new", "333", nil)
	write("one", "new", "4444", failure)
	write("one", "new", "", nil)
	names, err := os.ReadDir(l.dir)
	got := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(l.dir, name.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[name.Name()] = string(text)
	}
	delete(got, recordFile)
	if diff := cmp.Diff(map[string]string{"one.new.tar": "333", "one-b.old.tar": "22"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if diff := cmp.Diff([]string{"MCP server one-b", "MCP server one"}, list[0].Caches); diff != "" || list[0].Bytes != 5 {
		t.Error(diff, list[0].Bytes)
	}
	if err := errors.Join(l.Close(), s.Remove(list[0].ID)); err != nil {
		t.Error(err)
	}
}
