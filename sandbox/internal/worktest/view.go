package worktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-run/caisson/tools/workspace"
)

// canary is the content of files outside the workspace, which no view may
// return.
const canary = "canary-7d1f0e9a"

// Layout fills the workspace dir with symlinks of every sort, special files,
// odd names and many entries, for View. It also makes "outside" beside it.
func Layout(t testing.TB, dir string) {
	t.Helper()
	outside := filepath.Join(filepath.Dir(dir), "outside")
	must(t, os.MkdirAll(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "canary"), []byte(canary), 0o644))
	for _, name := range []string{"a/sub", "b/c", "d", "many", "deep/1/2/3/4"} {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for name, text := range map[string]string{
		"a/f": "inside", "empty": "", "new\nline": "n", "esc\x1b[2J": "e", "\xff\xfe": "bytes", "-rf": "dash", "deep/1/2/3/4/f": "deep",
		"a/.hidden": "h", "a.b": "sorted after a/",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for i := range 300 {
		must(t, os.WriteFile(filepath.Join(dir, "many", fmt.Sprintf("%03d", i)), []byte("x"), 0o644))
	}
	for _, l := range links {
		must(t, os.Symlink(strings.NewReplacer("{root}", dir, "{outside}", outside).Replace(l[1]), filepath.Join(dir, l[0])))
	}
	big, err := os.Create(filepath.Join(dir, "big"))
	must(t, err)
	must(t, big.Truncate(1<<40))
	must(t, big.Close())
	must(t, os.WriteFile(filepath.Join(dir, "large"), []byte(strings.Repeat("0123456789abcdef", 300_000)), 0o644))
	makeSpecial(t, dir)
	socket, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", shortSocket(t, dir))
	must(t, err)
	t.Cleanup(func() { socket.Close() })
}

// shortSocket returns a path for a socket in dir that fits into an address.
func shortSocket(t testing.TB, dir string) string {
	t.Helper()
	if name := filepath.Join(dir, "socket"); len(name) < 100 {
		return name
	}
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/socket", f.Fd())
}

// links are the symlinks of the acceptance catalogue's case 2.
var links = [][2]string{
	{"to-file", "a/f"},
	{"to-directory", "a"},
	{"slash", "a/"},
	{"file-slash", "a/f/"},
	{"a/up", "../a/f"},
	{"d/d", ".."},
	{"l1", "l2"},
	{"l2", "l3"},
	{"l3", "a/f"},
	{"b/l1", "c/l2"},
	{"b/c/l2", "../../a"},
	{"past", "../outside/canary"},
	{"directory-outside", "../outside"},
	{"absolute", "{outside}/canary"},
	{"absolute-directory", "{outside}"},
	{"absolute-inside", "{root}/a/f"},
	{"container-inside", "/workspace/a/f"},
	{"b/up", "../a"},
	{"up-after-link", "b/up/../../outside/canary"},
	{"itself", "itself"},
	{"circle1", "circle2"},
	{"circle2", "circle1"},
	{"dangling", "nothing"},
	{"proc-root", "/proc/self/root"},
	{"proc-cwd", "/proc/self/cwd/a/f"},
	{"stdin", "/dev/stdin"},
}

// paths are the paths of a Layout to read, with the kind of error of each.
var paths = map[string]workspace.Kind{
	"a/f": "", "to-file": "", "to-directory/f": "", "slash/f": "", "file-slash": workspace.KindNotDir, "a/up": "", "d/d/a/f": "", "l1": "", "b/l1/f": "",
	"past": workspace.KindEscape, "directory-outside/canary": workspace.KindEscape, "absolute": workspace.KindEscape,
	"absolute-directory/canary": workspace.KindEscape, "absolute-inside": workspace.KindEscape, "container-inside": workspace.KindEscape,
	"up-after-link": workspace.KindEscape, "itself": workspace.KindInvalid, "circle1/x": workspace.KindInvalid, "dangling": workspace.KindNotFound,
	"proc-root": workspace.KindEscape, "proc-cwd": workspace.KindEscape, "stdin": workspace.KindEscape,
	"a/f/x": workspace.KindNotDir, "a": workspace.KindIsDir, ".": workspace.KindIsDir, "": workspace.KindInvalid, "..": workspace.KindEscape,
	"../outside/canary": workspace.KindEscape, "/etc/passwd": workspace.KindEscape, "//etc/passwd": workspace.KindEscape,
	"a/../../x": workspace.KindEscape, "a\x00f": workspace.KindInvalid, "/workspace/a/f": "", "/workspace/../etc/passwd": workspace.KindEscape,
	"/workspaces/a/f": workspace.KindEscape, strings.Repeat("x", 256): workspace.KindInvalid, strings.Repeat("x/", 2500): workspace.KindInvalid,
	"empty": "", "new\nline": "", "esc\x1b[2J": "", "\xff\xfe": "", "-rf": "", "nothing/at/all": workspace.KindNotFound,
	"fifo": workspace.KindNotRegular, "socket": workspace.KindNotRegular, "deep/1/2/3/4/f": "",
}

// View checks that v returns for a Layout the same as a Reader of the
// directory, and that it is correct.
func View(t *testing.T, dir string, v workspace.View) {
	held, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { held.Close() })
	r, err := workspace.NewReader(held, workspace.ReaderOptions{HostPath: dir, ContainerPath: "/workspace"})
	must(t, err)
	all := []string{"device", dir + "/a/f", dir + "-2/a"}
	for p := range paths {
		all = append(all, p)
	}
	slices.Sort(all)
	for _, p := range all {
		t.Run(fmt.Sprintf("%.40q", p), func(t *testing.T) {
			got, err := v.ReadFile(t.Context(), p, 0, 0)
			if want, ok := paths[p]; ok && kindOf(err) != want {
				t.Errorf("read: %q %v, want kind %q", got.Data, err, want)
			}
			if strings.Contains(fmt.Sprintf("%q %v", got.Data, err), canary) {
				t.Error("the canary came out")
			}
			if p == "device" { // a mount without devices refuses it earlier
				if kind := kindOf(err); kind != workspace.KindNotRegular && kind != workspace.KindPermission && os.Geteuid() == 0 {
					t.Errorf("read: %v", err)
				}
			} else {
				sameOne(t, "read", p, readWith(v), readWith(r))
			}
			sameOne(t, "stat", p, v.Stat, r.Stat)
			sameOne(t, "lstat", p, v.Lstat, r.Lstat)
			sameOne(t, "scope", p, errorOnly(v.Scope), errorOnly(r.Scope))
			sameOne(t, "relative", p, spellWith(v), spellWith(r))
			for _, depth := range []int{0, 1, 3, 1000} {
				sameOne(t, fmt.Sprintf("list %d deep", depth), p, listWith(v, depth), listWith(r, depth))
			}
		})
	}
	t.Run("pieces", func(t *testing.T) { comparePieces(t, v, r) })
	t.Run("decisions", func(t *testing.T) { checkDecisions(t, v) })
	t.Run("search", func(t *testing.T) { SearchSeesList(t, v) })
	t.Run("cancelled", func(t *testing.T) { checkCancelled(t, v) })
}

func comparePieces(t *testing.T, v, r workspace.View) {
	for _, p := range []string{"large", "a/f", "empty", "big"} {
		for _, at := range [][2]int64{{0, 0}, {0, 1}, {3, 2}, {3, 1 << 20}, {1 << 22, 0}, {1 << 22, 1 << 22}, {1 << 40, 5}, {1<<63 - 1, 1<<63 - 1}, {-1, 0}, {0, -1}} {
			name := fmt.Sprintf("%s at %v", p, at)
			got, err := v.ReadFile(t.Context(), p, at[0], at[1])
			want, wantErr := r.ReadFile(t.Context(), p, at[0], at[1])
			compareResults(t, name, got, err, want, wantErr)
		}
	}
}

// checkDecisions checks what a search's Visit may return, and that it may use the view.
func checkDecisions(t *testing.T, v workspace.View) {
	t.Helper()
	for _, want := range []error{nil, errors.New("stop")} {
		n := 0
		_, err := v.Search(t.Context(), ".", workspace.SearchOptions{Visit: func(name string, _ workspace.SearchResult) error {
			if n++; n > 1 {
				t.Errorf("%q is visited after the end", name)
			}
			if _, err := v.Lstat(t.Context(), name); err != nil {
				t.Error(err)
			}
			if want != nil {
				return want
			}
			return workspace.SkipAll
		}})
		if n != 1 || !errors.Is(err, want) {
			t.Errorf("search: %v after %d visits, want %v", err, n, want)
		}
	}
}

func checkCancelled(t *testing.T, v workspace.View) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	n := 0
	_, err := v.Search(ctx, ".", workspace.SearchOptions{Visit: func(string, workspace.SearchResult) error {
		if n++; n == 3 {
			cancel(why)
		}
		return nil
	}})
	if !errors.Is(err, why) {
		t.Errorf("search: %v", err)
	}
	if _, err := v.ReadFile(ctx, "large", 0, 0); !errors.Is(err, why) {
		t.Errorf("read: %v", err)
	}
	if got, err := v.ReadFile(t.Context(), "a/f", 0, 0); err != nil || string(got.Data) != "inside" {
		t.Errorf("read afterwards: %q %v", got.Data, err)
	}
}

func sameOne[T any](t *testing.T, what, p string, got, want func(context.Context, string) (T, error)) {
	t.Helper()
	g, gErr := got(t.Context(), p)
	w, wErr := want(t.Context(), p)
	compareResults(t, what, g, gErr, w, wErr)
}

// compareResults ignores inodes and their times of change: an overlay has its
// own.
func compareResults(t *testing.T, what string, got any, gotErr error, want any, wantErr error) {
	t.Helper()
	if kindOf(gotErr) != kindOf(wantErr) || gotErr != nil && gotErr.Error() != wantErr.Error() {
		t.Errorf("%s: error %v, want %v", what, gotErr, wantErr)
	}
	// The root of an overlay is the upper layer's, which was made for it.
	if got, ok := got.(workspace.Info); ok && got.Path == "." {
		w := want.(workspace.Info)
		w.ModTime, w.Inode = got.ModTime, got.Inode
		want = w
	}
	ignore := cmp.Options{cmpopts.IgnoreFields(workspace.Entry{}, "Inode", "ChangeTime"), cmpopts.IgnoreFields(workspace.Info{}, "Inode"), cmp.Comparer(bytes.Equal)}
	if diff := cmp.Diff(want, got, ignore); diff != "" && gotErr == nil {
		t.Errorf("%s: %.2000s", what, diff)
	}
}

func kindOf(err error) workspace.Kind {
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		return e.Kind
	}
	if err != nil {
		return "another"
	}
	return ""
}

func errorOnly(f func(context.Context, string) error) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, p string) (bool, error) { return true, f(ctx, p) }
}

func spellWith(v workspace.View) func(context.Context, string) (string, error) {
	return func(_ context.Context, p string) (string, error) { return v.Relative(p) }
}

func readWith(v workspace.View) func(context.Context, string) (workspace.File, error) {
	return func(ctx context.Context, p string) (workspace.File, error) { return v.ReadFile(ctx, p, 0, 1<<20) }
}

func listWith(v workspace.View, depth int) func(context.Context, string) (workspace.Listing, error) {
	return func(ctx context.Context, p string) (workspace.Listing, error) { return v.List(ctx, p, depth) }
}

// SearchSeesList checks that a search of a view finds the same files and contents as
// a list.
func SearchSeesList(t *testing.T, v workspace.View) {
	t.Helper()
	const most = 1 << 20
	content := func(f workspace.File, err error) string {
		if f.Size > most {
			f.Data = nil
		}
		return fmt.Sprintf("%d %q %q", f.Size, f.Data, kindOf(err))
	}
	for _, start := range []string{".", "a", "keep", "opaque", "elsewhere", "elsewhere/sub", "to-directory", "many", "nothing"} {
		var want, got []string
		list, wantErr := v.List(t.Context(), start, workspace.DefaultMaxDepth)
		for _, e := range list.Entries {
			if e.Type == workspace.TypeFile {
				f, err := v.ReadFile(t.Context(), e.Path, 0, most)
				want = append(want, e.Path+" "+content(f, err))
			}
		}
		searched, err := v.Search(t.Context(), start, workspace.SearchOptions{
			MaxFile: most,
			Examine: func(_ context.Context, name string, f workspace.File, err error) workspace.SearchResult {
				return workspace.SearchResult{Value: content(f, err)}
			},
			Visit: func(name string, f workspace.SearchResult) error {
				got = append(got, name+" "+f.Value.(string))
				return nil
			},
		})
		if kindOf(err) != kindOf(wantErr) || searched.Truncated != list.Truncated || !slices.Equal(searched.Incomplete, list.Incomplete) {
			t.Errorf("search of %s: %+v %v; the list: %+v %v", start, searched, err, list, wantErr)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("search of %s, unlike the list: %.2000s", start, diff)
		}
	}
}

// Control reads the layout's escapes as a naive reader would. Each must reach
// the canary, or View proves nothing.
func Control(t *testing.T, dir string) {
	t.Helper()
	for _, p := range []string{"past", "directory-outside/canary", "absolute", "absolute-directory/canary", "../outside/canary"} {
		if b, err := os.ReadFile(filepath.Join(dir, p)); string(b) != canary {
			t.Errorf("control: %s: %q %v", p, b, err)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "fifo")); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Errorf("control: %v %v", info, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
