package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTree returns a reader of a directory.
func openTree(t *testing.T, root string) *Reader {
	t.Helper()
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	r, err := NewReader(dir, ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestScan: a scan visits more than a bounded list, stays in the workspace, and
// tells each directory its marks.
func TestScan(t *testing.T) {
	root := t.TempDir()
	make := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 50 {
		dir := fmt.Sprintf("d%d/\xff", i)
		make(os.MkdirAll(filepath.Join(root, dir), 0o755))
		want = append(want, filepath.Dir(dir), dir)
		for j := range 50 {
			name := fmt.Sprintf("%s/%d", dir, j)
			make(os.WriteFile(filepath.Join(root, name), nil, 0o644))
			want = append(want, name)
		}
	}
	make(os.Symlink("/etc", filepath.Join(root, "out")))
	want = append(want, "out")
	slices.Sort(want)
	held, err := os.Open(root)
	make(err)
	defer held.Close()
	r, err := NewReader(held, ReaderOptions{MaxEntries: 10, maxTextBytes: 100, maxDepth: 1})
	make(err)

	var got []string
	left := map[string]uint8{}
	err = r.Scan(t.Context(), ".", ScanOptions{
		Visit: func(e *ScanEntry) (uint8, string) {
			got = append(got, e.Path())
			if st, err := e.Stat(); err != nil || st.Type != e.Type || st.Links == 0 {
				t.Errorf("%q: %+v, %v", e.Path(), st, err)
			}
			mark := uint8(0)
			if string(e.Name()) == "7" {
				mark = 4
			}
			if e.Type == TypeDir {
				return mark, e.Path()
			}
			return mark, ""
		},
		Leave:  func(dir *ScanDirectory) { left[dir.Path] = dir.Marks },
		Unread: func(dir string, err error) { t.Errorf("%q: %v", dir, err) },
	})
	make(err)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("visited %d entries, want %d", len(got), len(want))
	}
	if left["d3/\xff"] != 4 || left["d3"] != 0 || len(left) != 101 {
		t.Errorf("%d directories were left: %v", len(left), left)
	}
	list, err := r.List(t.Context(), ".", 3)
	if err != nil || !list.Truncated {
		t.Errorf("control: a list has it all: %+v, %v", list, err)
	}

	// An entry renamed during its visit is entered by its new name. No symlink is
	// followed.
	got = nil
	make(r.Scan(t.Context(), "d1", ScanOptions{
		Visit: func(e *ScanEntry) (uint8, string) {
			got = append(got, e.Path())
			if e.Type != TypeDir {
				return 0, ""
			}
			make(os.Rename(filepath.Join(root, e.Path()), filepath.Join(root, "d1/renamed")))
			return 0, "d1/renamed"
		},
		Unread: func(dir string, err error) { t.Errorf("%q: %v", dir, err) },
	}))
	if len(got) != 51 || !slices.Contains(got, "d1/renamed/7") {
		t.Errorf("visited %q", got)
	}
	visited := false
	make(r.Scan(t.Context(), "out", ScanOptions{Visit: func(*ScanEntry) (uint8, string) { visited = true; return 0, "" }, Unread: func(string, error) {}}))
	if visited {
		t.Error("a symlink was followed")
	}
}

// TestScanSince: a scan that knows an earlier one reads exactly the directories
// that changed, however they got there.
func TestScanSince(t *testing.T) {
	tick, most := changeTick, maxSeen
	t.Cleanup(func() { changeTick, maxSeen = tick, most })
	changeTick = 0
	root := t.TempDir()
	r := openTree(t, root)
	// The file system's time must advance between a scan and a change.
	change := func(script string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", `cd "$0"; was=$(mktemp "$0.XXXX"); until now=$(mktemp "$0.XXXX"); test "$now" -nt "$was"; do rm "$now"; done; rm "$was" "$now"; `+script, root).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	var since SeenDirs
	scan := func(since *SeenDirs) (visited string, marks map[string]uint8) {
		t.Helper()
		var all []string
		marks = map[string]uint8{}
		err := r.Scan(t.Context(), ".", ScanOptions{
			Since: since,
			Visit: func(e *ScanEntry) (uint8, string) {
				all = append(all, e.Path())
				mark := uint8(0)
				if string(e.Name()) == "mark" {
					mark = 1
				}
				if e.Type == TypeDir {
					return mark, e.Path()
				}
				return mark, ""
			},
			Leave:  func(dir *ScanDirectory) { marks[dir.Path] = dir.Marks },
			Unread: func(dir string, err error) { t.Errorf("%q: %v", dir, err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return strings.Join(all, " "), marks
	}
	change("mkdir -p a/b/c d/e; touch a/b/mark d/e/f x")
	change("")
	if visited, _ := scan(&since); visited != "a a/b a/b/c a/b/mark d d/e d/e/f x" {
		t.Fatalf("at first visited %q", visited)
	}
	for _, c := range []struct{ script, want string }{
		{"", ""},
		{"echo x >x; echo x >d/e/f; chmod 600 x", ""},
		{"mkdir -p a/b/c/new/.git", "a/b/c/new a/b/c/new/.git"},
		{"mkdir -p d/e/.git; rmdir d/e/.git; mkdir d/e/.git; touch -d @1 d/e", "d/e/.git d/e/f"},
		{"mv a z; mkdir z/b/g; mv d a", "a a/e a/e/.git a/e/f x z z/b z/b/c z/b/c/new z/b/c/new/.git z/b/g z/b/mark"},
		{"mv a q; mv z a; mv q z; mv a/b/c/new a/b/new", "a a/b a/b/c a/b/g a/b/mark a/b/new a/b/new/.git x z z/e z/e/.git z/e/f"},
		{"mv z/e/.git .; ln -s a/b l; rm -r a/b/g; ln -s c a/b/g", ".git a a/b/c a/b/g a/b/mark a/b/new l x z z/e/f"},
	} {
		change(c.script)
		visited, marks := scan(&since)
		all, want := scan(nil)
		for must := range strings.FieldsSeq(c.want) {
			if !slices.Contains(strings.Fields(visited), must) {
				t.Errorf("%s: visited %q, not %s", c.script, visited, must)
			}
			if _, left := marks[path.Dir(must)]; !left {
				t.Errorf("%s: no marks of the directory of %s", c.script, must)
			}
		}
		for dir, mark := range marks {
			if mark != want[dir] {
				t.Errorf("%s: the marks of %s are %d, want %d", c.script, dir, mark, want[dir])
			}
		}
		if c.want == "" && visited != "" {
			t.Errorf("%s: visited %q of %q", c.script, visited, all)
		}
	}
	change("")
	scan(&since)
	if visited, _ := scan(&since); visited != "" {
		t.Errorf("control: visited %q where nothing changed", visited)
	}
	changeTick, maxSeen = 0, 2
	since = SeenDirs{}
	scan(&since)
	for _, name := range []string{"one", "two"} {
		change("for dir in $(find . -type d); do mkdir $dir/" + name + "; done")
		visited, _ := scan(&since)
		if all, _ := scan(nil); strings.Count(visited, name) != strings.Count(all, name) || since.held != maxSeen {
			t.Errorf("visited %q of %q, and %d directories are held", visited, all, since.held)
		}
	}
	for name, set := range map[string]func(){
		"where a change may leave the time as it is": func() { changeTick = time.Hour },
		"beyond the bound":                           func() { maxSeen = 0 },
	} {
		changeTick, maxSeen = 0, most
		set()
		var since SeenDirs
		scan(&since)
		visited, _ := scan(&since)
		if all, _ := scan(nil); visited != all {
			t.Errorf("%s: visited %q of %q", name, visited, all)
		}
	}
}

// TestScanGoesOn: an interrupted scan keeps what it has read, and an unchanged
// directory without subdirectories is not even opened.
func TestScanGoesOn(t *testing.T) {
	tick := changeTick
	t.Cleanup(func() { changeTick = tick })
	changeTick = 0
	root := t.TempDir()
	const dirs, most = 1000, 400 // more than one batch
	for i := range dirs {
		if err := os.MkdirAll(filepath.Join(root, "a", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := openTree(t, root)
	var since SeenDirs
	// scan returns how many directories it read. It stops after most.
	scan := func() (read int) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		err := r.Scan(ctx, ".", ScanOptions{
			Since: &since,
			Visit: func(e *ScanEntry) (uint8, string) { return 0, e.Path() },
			Leave: func(dir *ScanDirectory) {
				if strings.HasPrefix(dir.Path, "a/") {
					if read++; read == most {
						cancel(errGone)
					}
				}
			},
			Unread: func(dir string, err error) { t.Errorf("%q: %v", dir, err) },
		})
		if (err != nil) != (read == most) {
			t.Errorf("a scan of %d directories ended with %v", read, err)
		}
		return read
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for i := range dirs {
		if _, err := unix.InotifyAddWatch(watch, filepath.Join(root, "a", fmt.Sprint(i)), unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	opened := func() (n int) {
		buf := make([]byte, 2*dirs*unix.SizeofInotifyEvent)
		n, err := unix.Read(watch, buf)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return max(0, n) / unix.SizeofInotifyEvent
	}
	for _, want := range []int{most, most, dirs - 2*most, 0} {
		if read := scan(); read != want {
			t.Errorf("read %d directories, want %d", read, want)
		}
		if got := opened(); got != want {
			t.Errorf("opened %d directories, want %d", got, want)
		}
	}
	if since.held != dirs+1 {
		t.Errorf("%d directories are held", since.held)
	}
	if err := os.WriteFile(filepath.Join(root, "a", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	err = r.Scan(ctx, ".", ScanOptions{
		Since: &since,
		Visit: func(e *ScanEntry) (uint8, string) {
			cancel(errGone)
			return 0, e.Path()
		},
		Unread: func(string, error) {},
	})
	if err == nil {
		t.Error("control: a scan was not interrupted")
	}
	if scan(); opened() > 0 {
		t.Error("a scan that was interrupted at once has forgotten directories")
	}
}

// TestScanKeepsNothing: the memory of a scan does not grow with the tree.
func TestScanKeepsNothing(t *testing.T) {
	root := t.TempDir()
	long := strings.Repeat("n", 200)
	const files = 20_000
	for i := range files {
		if err := os.Symlink("x", filepath.Join(root, fmt.Sprint(long, i))); err != nil {
			t.Fatal(err)
		}
	}
	r := openTree(t, root)
	var most, entries uint64
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	err := r.Scan(t.Context(), ".", ScanOptions{
		Visit: func(*ScanEntry) (uint8, string) {
			if entries++; entries%5000 == 0 {
				var now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
			}
			return 0, ""
		},
		Unread: func(dir string, err error) { t.Errorf("%q: %v", dir, err) },
	})
	if err != nil || entries != files || most > 1<<20 {
		t.Errorf("%d entries, %d bytes are held: %v", entries, most, err)
	}
	if _, err := os.Lstat(filepath.Join(root, fmt.Sprint(long, files-1))); errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func BenchmarkScan(b *testing.B) {
	root := b.TempDir()
	for i := range 100 {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	held, err := os.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	defer held.Close()
	r, err := NewReader(held, ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		entries := 0
		err := r.Scan(b.Context(), ".", ScanOptions{
			Visit: func(e *ScanEntry) (uint8, string) {
				entries++
				if e.Type == TypeDir {
					return 0, e.Path()
				}
				return 0, ""
			},
			Unread: func(string, error) {},
		})
		if err != nil || entries != 10_100 {
			b.Fatal(entries, err)
		}
	}
}

// TestScanInParallel: a parallel scan visits the same entries, several directories
// at a time, and calls no function after it has returned.
func TestScanInParallel(t *testing.T) {
	root := t.TempDir()
	for i := range 300 {
		dir := filepath.Join(root, fmt.Sprint(i%4), fmt.Sprint(i%20), fmt.Sprint(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range i % 7 {
			if err := errors.Join(os.WriteFile(filepath.Join(dir, fmt.Sprint("f", j)), make([]byte, i), 0o644), os.Symlink(fmt.Sprint(i, j), filepath.Join(dir, fmt.Sprint("l", j)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := openTree(t, root)
	// scan returns the visited entries, and the directories that were left with
	// theirs.
	scan := func(ctx context.Context, o ScanOptions, each func(e *ScanEntry)) (visited map[string]ScanStat, left map[string]int, err error) {
		visited, left = map[string]ScanStat{}, map[string]int{}
		var mu sync.Mutex
		returned := false
		o.Visit = func(e *ScanEntry) (uint8, string) {
			each(e)
			st, err := e.Stat()
			n, _ := e.Dir.Value.(int)
			e.Dir.Value = n + 1
			mu.Lock()
			defer mu.Unlock()
			if _, twice := visited[e.Path()]; twice || err != nil && ctx.Err() == nil || returned {
				t.Errorf("%s: twice %t, after the end %t, %v", e.Path(), twice, returned, err)
			}
			if visited[e.Path()] = st; e.Type == TypeDir {
				return 0, e.Path()
			}
			return 0, ""
		}
		o.Leave = func(d *ScanDirectory) {
			mu.Lock()
			defer mu.Unlock()
			left[d.Path], _ = d.Value.(int)
		}
		o.Unread = func(dir string, err error) { t.Errorf("%q: %v", dir, err) }
		err = r.Scan(ctx, ".", o)
		mu.Lock()
		defer mu.Unlock()
		returned = true
		return visited, left, err
	}
	none := func(*ScanEntry) {}
	want, wantLeft, err := scan(t.Context(), ScanOptions{}, none)
	if err != nil || len(want) < 1500 {
		t.Fatal(len(want), err)
	}
	for range 20 {
		got, left, err := scan(t.Context(), ScanOptions{Parallel: true, Stat: true}, none)
		if err != nil || !maps.Equal(got, want) || !maps.Equal(left, wantLeft) {
			t.Errorf("visited %d entries of %d, left %d directories of %d: %v", len(got), len(want), len(left), len(wantLeft), err)
		}
	}
	if runtime.GOMAXPROCS(0) > 1 {
		// The first visits in two directories wait for each other.
		var mu sync.Mutex
		tops, met := map[string]bool{}, make(chan struct{})
		if _, _, err := scan(t.Context(), ScanOptions{Parallel: true}, func(e *ScanEntry) {
			top, _, below := strings.Cut(e.Path(), "/")
			mu.Lock()
			wait := below && !tops[top] && len(tops) < 2
			if below {
				tops[top] = true
			}
			mu.Unlock()
			if !wait {
				return
			}
			select {
			case met <- struct{}{}:
			case <-met:
			case <-time.After(time.Minute):
				t.Error("no two directories are scanned at a time")
			}
		}); err != nil {
			t.Error(err)
		}
	}
	// An interrupted scan can be continued.
	tick := changeTick
	t.Cleanup(func() { changeTick = tick })
	changeTick = 0
	var since SeenDirs
	ctx, cancel := context.WithCancelCause(t.Context())
	var visits atomic.Int32
	_, before, err := scan(ctx, ScanOptions{Parallel: true, Since: &since}, func(*ScanEntry) {
		if visits.Add(1) == 800 {
			cancel(errGone)
		}
	})
	if !errors.Is(err, errGone) {
		t.Errorf("an interrupted scan: %v", err)
	}
	_, after, err := scan(t.Context(), ScanOptions{Parallel: true, Since: &since}, none)
	if err != nil || len(before)+len(after) != len(wantLeft) {
		t.Errorf("left %d and %d directories of %d: %v", len(before), len(after), len(wantLeft), err)
	}
	if _, left, err := scan(t.Context(), ScanOptions{Parallel: true, Since: &since}, none); err != nil || len(left) != 0 || since.held != len(wantLeft)-1 {
		t.Errorf("where nothing changed: left %d directories of %d, holds %d: %v", len(left), len(wantLeft), since.held, err)
	}
}
