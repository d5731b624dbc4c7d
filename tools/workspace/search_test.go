package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// looked is the result of a search, or of the walk that it is compared with.
type looked struct {
	Found      []string
	Truncated  bool
	Incomplete []string
	Kind       Kind
}

// lineRules leave out the names listed in the rules files of the directory and
// those above it.
type lineRules []string

func (r lineRules) Enter(_ string, file []byte) Rules {
	return append(slices.Clip(r), strings.Fields(string(file))...)
}

func (r lineRules) Skip(_, name string, _ bool) bool { return slices.Contains(r, name) }

// reference does what Search must do, one directory and file after another.
type reference struct {
	looked
	ctx  context.Context //nolint:containedctx // of one call
	r    *Reader
	o    SearchOptions
	left Capacity
}

func walkAndRead(ctx context.Context, r *Reader, start string, o SearchOptions) looked {
	w := reference{ctx: ctx, r: r, o: o, left: Capacity{Entries: o.MaxEntries}.cappedAt(r.options.capacity())}
	info, err := r.Stat(ctx, start)
	switch {
	case err != nil:
	case info.Type == TypeDir:
		err = w.walk(info.Path, 1, o.Rules)
	default:
		w.add(info.Path)
	}
	w.Kind = kindOf(err)
	return w.looked
}

func (w *reference) walk(dir string, depth int, rules Rules) error {
	entries, more, err := w.r.ReadDir(w.ctx, dir, depth == 1, w.left)
	if err != nil {
		return err
	}
	w.Truncated = w.Truncated || more
	w.left.Entries -= len(entries)
	for _, e := range entries {
		if rules != nil && rules.Skip(dir, path.Base(e.Path), e.Type == TypeDir) {
			continue
		}
		switch {
		case e.Type != TypeDir:
			if w.o.Examine == nil || e.Type == TypeFile {
				w.add(e.Path)
			}
		case depth == w.r.options.maxDepth:
			w.Incomplete = addIncomplete(w.Incomplete, e.Path)
		case w.left.Entries == 0:
			w.Truncated = true
		default:
			below := rules
			if rules != nil {
				f, _ := w.r.ReadFile(w.ctx, e.Path+"/"+w.o.RulesFile, 0, w.o.MaxRules)
				below = rules.Enter(e.Path, f.Data)
			}
			if err := w.walk(e.Path, depth+1, below); err != nil {
				w.Incomplete = addIncomplete(w.Incomplete, e.Path)
			}
		}
	}
	return nil
}

func (w *reference) add(name string) {
	if w.o.Match != nil && !w.o.Match(path.Dir(name), path.Base(name)) {
		return
	}
	text := ""
	if w.o.Examine != nil {
		f, err := w.r.ReadFile(w.ctx, name, 0, w.o.MaxFile)
		if f.Size > w.o.MaxFile {
			f.Data = nil
		}
		text = fmt.Sprint(w.o.Examine(w.ctx, name, f, err).Value)
	}
	w.Found = append(w.Found, name+" "+text)
}

func search(ctx context.Context, r *Reader, start string, o SearchOptions) looked {
	var l looked
	o.Visit = func(name string, f SearchResult) error {
		text := ""
		if o.Examine != nil {
			text = fmt.Sprint(f.Value)
		}
		l.Found = append(l.Found, name+" "+text)
		return nil
	}
	walked, err := r.Search(ctx, start, o)
	l.Truncated, l.Incomplete, l.Kind = walked.Truncated, walked.Incomplete, kindOf(err)
	return l
}

func contentOf(_ context.Context, name string, f File, err error) SearchResult {
	return SearchResult{Value: fmt.Sprintf("%q %q %d %s", name, f.Data, f.Size, kindOf(err)), Bytes: 100 << 10}
}

// TestSearchIsAWalk: on any tree a search finds the same as a sequential walk, in
// the same order, within the same bounds.
func TestSearchIsAWalk(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		rapid.Check(t, func(rt *rapid.T) {
			l := newLayout(t)
			name := rapid.SampledFrom([]string{"a", "b", "c", "a.b", "\xff", "rules", "Z"})
			dirs := []string{"."}
			for range rapid.IntRange(0, 40).Draw(rt, "entries") {
				parent := rapid.SampledFrom(dirs).Draw(rt, "parent")
				p := l.path(path.Join(parent, name.Draw(rt, "name")))
				switch rapid.IntRange(0, 9).Draw(rt, "type") {
				case 0, 1, 2, 3:
					if os.Mkdir(p, 0o755) == nil {
						rel, _ := filepath.Rel(l.root, p)
						dirs = append(dirs, rel)
					}
				case 4:
					_ = os.Symlink(rapid.SampledFrom([]string{"a", "../a", "../../outside", "/etc", "."}).Draw(rt, "target"), p)
				case 5:
					_ = unix.Mkfifo(p, 0o644)
				default:
					text := rapid.SampledFrom([]string{"", "a", "b\nc", "rules", strings.Repeat("x", 5000), strings.Repeat("y", 70_000)}).Draw(rt, "text")
					if _, err := os.Lstat(p); err != nil {
						l.must(os.WriteFile(p, []byte(text), 0o644))
					}
				}
			}
			r := l.readerIn(walking, ReaderOptions{maxDepth: rapid.SampledFrom([]int{0, 2}).Draw(rt, "depth")})
			o := SearchOptions{MaxEntries: rapid.SampledFrom([]int{0, 1, 5, 20}).Draw(rt, "most"), MaxFile: 60_000}
			if rapid.Bool().Draw(rt, "rules") {
				o.Rules, o.RulesFile, o.MaxRules = lineRules{"c"}, "rules", 100
			}
			if rapid.Bool().Draw(rt, "match") {
				o.Match = func(_, name string) bool { return name != "b" }
			}
			if rapid.Bool().Draw(rt, "examine") {
				o.Examine = contentOf
			}
			start := rapid.SampledFrom(append(dirs, "a", "none", "rules")).Draw(rt, "start")
			want := walkAndRead(t.Context(), r, start, o)
			if d := cmp.Diff(want, search(t.Context(), r, start, o)); d != "" {
				rt.Errorf("search of %q, unlike the walk (-walk +search):\n%s", start, d)
			}
			l.leaks("search", want)
			if walking { // the temporary directories are many
				l.must(os.RemoveAll(l.root))
			}
		})
	})
}

// TestSearchReadsAhead: the order is by path, whatever runs first, and a search
// that ends early leaves nothing open.
func TestSearchReadsAhead(t *testing.T) {
	l := newLayout(t)
	for i := range 2000 {
		l.file(fmt.Sprintf("%d/%d/%d", i%7, i%13, i), fmt.Sprint(i))
	}
	r := l.reader(ReaderOptions{})
	o := SearchOptions{MaxFile: 1 << 20, Examine: contentOf}
	want := walkAndRead(t.Context(), r, ".", o)
	if len(want.Found) != 2000 {
		t.Fatalf("%d found", len(want.Found))
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	before := openFiles(t)
	for range 5 {
		if d := cmp.Diff(want, search(t.Context(), r, ".", o)); d != "" {
			t.Fatalf("unlike the walk: %s", d)
		}
		n := 0
		o.Visit = func(string, SearchResult) error {
			if n++; n == 300 {
				return SkipAll
			}
			return nil
		}
		if _, err := r.Search(t.Context(), ".", o); err != nil || n != 300 {
			t.Errorf("stopped: %d visited, %v", n, err)
		}
		why := errors.New("why")
		o.Visit = func(string, SearchResult) error { return why }
		if _, err := r.Search(t.Context(), ".", o); !errors.Is(err, why) {
			t.Errorf("failed: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		o.Visit = func(string, SearchResult) error { cancel(why); return nil }
		if _, err := r.Search(ctx, ".", o); !errors.Is(err, why) {
			t.Errorf("cancelled: %v", err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestSearchPanics: a panic in a goroutine of the search becomes one in the
// caller's, where the dispatcher recovers it.
func TestSearchPanics(t *testing.T) {
	l := newLayout(t)
	for i := range 100 {
		l.file(fmt.Sprintf("%d/f", i), "x")
	}
	r := l.reader(ReaderOptions{})
	defer func() {
		if got := recover(); got != "examined" {
			t.Errorf("panicked with %v", got)
		}
	}()
	_, err := r.Search(t.Context(), ".", SearchOptions{
		MaxFile: 1, Examine: func(context.Context, string, File, error) SearchResult { panic("examined") },
		Visit: func(string, SearchResult) error { return nil },
	})
	t.Errorf("returned %v", err)
}

// TestSearchOfAStuckFileSystem: a call that is given up may come back any time;
// until then what it uses stays open.
func TestSearchOfAStuckFileSystem(t *testing.T) {
	l := newLayout(t)
	l.file("a/f", "x")
	r := l.reader(ReaderOptions{Deadline: 20 * time.Millisecond})
	r.guard.local = false
	before := openFiles(t)
	h := newDirHandle()
	l.must(h.openDir(r.tree, nil, ".", ""))
	if !h.acquire() {
		t.Fatal("closed")
	}
	h.release() // the search's; a call still holds it
	if got := openFiles(t); got != before+1 {
		t.Errorf("%d descriptors, not one more than %d", got, before)
	}
	h.release()
	if got := openFiles(t); got != before || h.acquire() {
		t.Errorf("%d descriptors, not %d, or it could be used again", got, before)
	}
	if got := search(t.Context(), r, ".", SearchOptions{}); len(got.Found) != 1 {
		t.Errorf("found %+v", got)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
