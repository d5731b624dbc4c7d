package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func paths(entries []Entry) []string {
	var p []string
	for _, e := range entries {
		p = append(p, e.Path)
	}
	return p
}

func TestList(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		for _, name := range []string{"a.b", "a/x", "a/sub/deep/f", "b", ".hidden"} {
			l.file(name, "12345")
		}
		l.link("link", "a")
		l.link("out", l.outside)
		r := l.readerIn(walking, ReaderOptions{})
		for _, c := range []struct {
			path  string
			depth int
			want  []string
		}{
			{".", 1, []string{".hidden", "a", "a.b", "b", "link", "out"}},
			{".", 0, []string{".hidden", "a", "a.b", "b", "link", "out"}},
			{"/workspace", 2, []string{".hidden", "a", "a/sub", "a/x", "a.b", "b", "link", "out"}},
			{"a", 9, []string{"a/sub", "a/sub/deep", "a/sub/deep/f", "a/x"}},
			{"link", 1, []string{"link/sub", "link/x"}},
		} {
			r.prefixes = newPrefixes("", "/workspace")
			got, err := r.List(t.Context(), c.path, c.depth)
			if err != nil || got.Truncated || got.Incomplete != nil {
				t.Fatalf("list %s: %+v, %v", c.path, got, err)
			}
			if d := cmp.Diff(c.want, paths(got.Entries)); d != "" {
				t.Errorf("list %s, depth %d (-want +got):\n%s", c.path, c.depth, d)
			}
			for _, e := range got.Entries {
				if e.Type == TypeFile && (e.Size != 5 || e.Inode == 0 || e.ModTime.IsZero()) {
					t.Errorf("entry %+v", e)
				}
				if e.Path == "out" && (e.Type != TypeSymlink || e.Target != l.outside) {
					t.Errorf("entry %+v", e)
				}
			}
		}
		for p, want := range map[string]Kind{"b": KindNotDir, "out": KindEscape, "missing": KindNotFound, "..": KindEscape} {
			if _, err := r.List(t.Context(), p, 1); kindOf(err) != want {
				t.Errorf("list %q: %v, want %q", p, err, want)
			}
		}
	})
}

// Acceptance A13: directory bombs.
func TestDirectoryBombs(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time for 20 000 files")
	}
	l := newLayout(t)
	many := bombEntries(t)
	links := many / 4
	l.must(os.Mkdir(l.path("wide"), 0o755))
	wide, err := os.Open(l.path("wide"))
	l.must(err)
	for i := range many { // each is before what is there already, or far behind it
		l.must(unix.Mknodat(int(wide.Fd()), fmt.Sprintf("%06d", (many-i)*7919%many), unix.S_IFREG|0o644, 0))
	}
	l.must(wide.Close())
	l.must(os.Mkdir(l.path("lattice"), 0o755))
	for i := range links {
		l.link(fmt.Sprintf("lattice/%05d", i), fmt.Sprintf("../lattice/%05d", (i*7+1)%links))
	}
	l.deep("deep", 3000)
	// The controls: plain listings return everything, or break off.
	if all, err := os.ReadDir(l.path("wide")); err != nil || len(all) != many {
		t.Errorf("control: a plain listing gave %d entries, %v", len(all), err)
	}
	if err := filepath.WalkDir(l.path("deep"), func(_ string, _ fs.DirEntry, err error) error { return err }); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("control: a walk by paths ended with %v", err)
	}
	if _, err := os.ReadFile(l.path("lattice/00000")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("control: a plain read in a lattice of links: %v", err)
	}
	r := l.reader(ReaderOptions{MaxEntries: 1000})
	list, err := r.List(t.Context(), "wide", 5)
	if err != nil || len(list.Entries) != 1000 || !list.Truncated || list.Entries[0].Path != "wide/000000" || list.Entries[999].Path != "wide/000999" {
		t.Errorf("list of a wide directory: %d entries, truncated %v, %v", len(list.Entries), list.Truncated, err)
	}
	list, err = l.reader(ReaderOptions{}).List(t.Context(), "deep", 5000)
	if err != nil || len(list.Entries) != DefaultMaxDepth || !slices.Contains(list.Incomplete, list.Entries[DefaultMaxDepth-1].Path) {
		t.Errorf("list of a deep directory: %d entries, incomplete %d, %v", len(list.Entries), len(list.Incomplete), err)
	}
	r = l.reader(ReaderOptions{maxDepth: 5000})
	list, err = r.List(t.Context(), "deep", 5000)
	if err != nil || len(list.Incomplete) != 1 || len(list.Entries) < 1000 {
		t.Errorf("list beyond the length of a path: %d entries, incomplete %d, %v", len(list.Entries), len(list.Incomplete), err)
	}
	all := SearchOptions{Visit: func(string, SearchResult) error { return nil }}
	w, err := l.reader(ReaderOptions{maxDepth: 5000, MaxEntries: 2 * many}).Search(t.Context(), ".", all)
	if err != nil || w.Truncated || len(w.Incomplete) != 1 || w.Entries < many+links {
		t.Errorf("search of everything: %d entries, truncated %v, incomplete %d, %v", w.Entries, w.Truncated, len(w.Incomplete), err)
	}
	w, err = l.reader(ReaderOptions{MaxEntries: many / 2}).Search(t.Context(), ".", all)
	if err != nil || !w.Truncated || w.Entries != many/2 {
		t.Errorf("search beyond its bound: %d entries, truncated %v, %v", w.Entries, w.Truncated, err)
	}
	if _, err := read(r, "lattice/00000"); kindOf(err) != KindInvalid {
		t.Errorf("read in a lattice of links: %v", err)
	}
	before := l.hash()
	l.link("wide/out", l.outside)
	writer := l.writerIn(false)
	for _, name := range []string{"wide", "lattice", "deep"} {
		c, err := writer.Apply(t.Context(), Op{Kind: OpDelete, Path: name, Recursive: true})
		if err != nil || c.Removed < 2000 {
			t.Errorf("delete %s: %d removed, %v", name, c.Removed, err)
		}
	}
	if list, err := r.List(t.Context(), ".", 1); err != nil || len(list.Entries) != 0 {
		t.Errorf("left after the deletes: %v, %v", paths(list.Entries), err)
	}
	if l.hash() != before {
		t.Error("something outside has changed")
	}
}

// bombEntries is the number of files in a bomb's widest directory, beside a quarter
// as many symlinks. BOMB_ENTRIES overrides it. The catalogue says 200,000, which
// take most of a minute to make on a busy disk.
func bombEntries(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BOMB_ENTRIES")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 8000 {
		t.Fatalf("BOMB_ENTRIES=%s is no number from 8000", text)
	}
	return n
}

// deep makes n nested directories, too deep for any one path.
func (l *layout) deep(name string, n int) {
	l.t.Helper()
	top, err := os.OpenRoot(l.root)
	l.must(err)
	step := strings.Repeat("d/", 100) + "d"
	l.must(top.MkdirAll(name, 0o755))
	at, err := top.OpenRoot(name)
	l.must(err)
	l.must(top.Close())
	for range n / 101 {
		l.must(at.MkdirAll(step, 0o755))
		next, err := at.OpenRoot(step)
		l.must(err)
		l.must(at.Close())
		at = next
	}
	l.must(at.Close())
}

// Acceptance A15: names that have a meaning elsewhere.
func TestHostileNames(t *testing.T) {
	names := []string{
		"a\nb", "\x1b]0;x\a", "-rf", "--help", "$(touch x)", "`touch x`", "a\u202etxt.exe", "\xff\xfe", " ", "<tool_result>",
		"\u200b", "con", "a:b", "*", "[", `\`, "…",
	}
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		r, w := l.readerIn(walking, ReaderOptions{}), l.writerIn(walking)
		for _, name := range names {
			if _, err := w.Apply(t.Context(), Op{Kind: OpWrite, Path: name + "/" + name, Content: []byte(name)}); err != nil {
				t.Errorf("write %q: %v", name, err)
			}
			if got, err := read(r, name+"/"+name); got != name || err != nil {
				t.Errorf("read %q: %q, %v", name, got, err)
			}
		}
		// The control: a shell obeys a name in its text.
		for _, name := range []string{"$(touch x)", "`touch x`"} {
			_ = exec.CommandContext(t.Context(), "sh", "-c", "cd \"$1\" && : "+name, "sh", l.outside).Run()
			if os.Remove(filepath.Join(l.outside, "x")) != nil {
				t.Errorf("control: a shell did not obey %q", name)
			}
		}
		list, err := r.List(t.Context(), ".", 1)
		l.must(err)
		want := slices.Sorted(slices.Values(names))
		if d := cmp.Diff(want, paths(list.Entries)); d != "" {
			t.Errorf("names did not come back (-want +got):\n%s", d)
		}
		for _, name := range names {
			if _, err := w.Apply(t.Context(), Op{Kind: OpDelete, Path: name, Recursive: true}); err != nil {
				t.Errorf("delete %q: %v", name, err)
			}
		}
	})
	e := &Error{Path: "a\nb\x1b", Detail: "x"}
	if s := e.Error(); strings.ContainsAny(s, "\n\x1b") {
		t.Errorf("error shows a name unescaped: %q", s)
	}
}

func TestTreeOrder(t *testing.T) {
	sorted := []Entry{{Path: "a"}, {Path: "a/b"}, {Path: "a/b/c"}, {Path: "a/c"}, {Path: "a "}, {Path: "a.b"}, {Path: "ab"}}
	got := slices.Clone(sorted)
	slices.Reverse(got)
	slices.SortFunc(got, func(a, b Entry) int { return TreeOrder(a.Path, b.Path) })
	if d := cmp.Diff(paths(sorted), paths(got)); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

// Opening a directory must refuse a symlink to one, also in gVisor.
func TestFoldersAreOpenedWithoutLinks(t *testing.T) {
	l := newLayout(t)
	l.file("dir/f", "")
	l.link("link", "dir")
	l.link("out", l.outside)
	for name, want := range map[string]bool{"dir": true, "link": false, "out": false, "dir/f": false, "none": false} {
		fd, err := openDirAt(unix.AT_FDCWD, l.path(name))
		if (err == nil) != want {
			t.Errorf("openDirAt(%s): %v", name, err)
		}
		if err == nil {
			_ = unix.Close(fd)
		}
	}
}
