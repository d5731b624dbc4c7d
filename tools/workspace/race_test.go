package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raceLimit bounds how long a race may take on a busy machine to show something.
const raceLimit = 2 * time.Minute

// raceTime is the least duration of a race. RACE_TIME overrides it (the catalogue
// says 60s).
func raceTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("RACE_TIME")
	if text == "" {
		return time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > raceLimit {
		t.Fatalf("RACE_TIME=%s is no time of at most %v", text, raceLimit)
	}
	return d
}

// exchange swaps two entries of the workspace until the test ends, so that a check
// is outdated at once.
func (l *layout) exchange(a, b string) (stop func()) {
	l.t.Helper()
	var ended atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for !ended.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, l.path(a), unix.AT_FDCWD, l.path(b), unix.RENAME_EXCHANGE); err != nil {
				l.t.Errorf("exchange: %v", err)
				return
			}
		}
	})
	return func() {
		ended.Store(true)
		running.Wait()
	}
}

// race repeats f until it returns true, but at least for least.
func race(least time.Duration, f func() (enough bool)) (times int, got bool) {
	start := time.Now()
	for {
		times++
		enough := f()
		took := time.Since(start)
		if enough && took >= least || took >= raceLimit {
			return times, enough
		}
	}
}

// checkedRead resolves symlinks, checks, and then opens: right in every static
// case, and wrong under a race.
func (l *layout) checkedRead(name string) string {
	real, err := filepath.EvalSymlinks(l.path(name))
	if err != nil {
		return ""
	}
	if rel, err := filepath.Rel(l.root, real); err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	b, _ := os.ReadFile(l.path(name))
	return string(b)
}

func newRace(t *testing.T) (l *layout, stop func()) {
	t.Helper()
	l = newLayout(t)
	l.file("sub/canary", "decoy")
	l.file("sub/sized", "1234567")
	// A size that nothing inside has, to recognise it in a listing.
	l.must(os.WriteFile(filepath.Join(l.outside, "sized"), make([]byte, 7654321), 0o600))
	l.link("swap", "../outside")
	return l, l.exchange("sub", "swap")
}

// Acceptance A6 and the reads of A8: a directory is swapped with a symlink to
// outside.
func TestRaceReads(t *testing.T) {
	l, stop := newRace(t)
	if n, hit := race(0, func() bool { return l.checkedRead("sub/canary") == l.canary }); !hit {
		t.Errorf("control: the check-then-open reader was not hit in %d reads", n)
	}
	stop()
	modes(t, func(t *testing.T, walking bool) {
		l, stop := newRace(t)
		defer stop()
		r := l.readerIn(walking, ReaderOptions{})
		seen := map[string]int{}
		n, both := race(raceTime(t), func() bool {
			got, err := read(r, "sub/canary")
			l.leaks("read", fmt.Sprint(got, err))
			seen[fmt.Sprint("read ", kindOf(err))]++
			list, err := r.List(t.Context(), "sub", 2)
			seen[fmt.Sprint("list ", kindOf(err))]++
			for _, e := range list.Entries {
				if e.Size == 7654321 || e.Size == int64(len(l.canary)) {
					t.Errorf("listed %+v, which is outside", e)
				}
			}
			for _, start := range []string{".", "sub"} {
				o := SearchOptions{MaxFile: 10 << 20, Examine: func(_ context.Context, _ string, f File, _ error) SearchResult {
					return SearchResult{Value: f}
				}}
				o.Visit = func(name string, found SearchResult) error {
					f := found.Value.(File)
					l.leaks("search", string(f.Data))
					if f.Size == 7654321 || f.Size == int64(len(l.canary)) {
						t.Errorf("searched %s, which is outside", name)
					}
					return nil
				}
				_, err = r.Search(t.Context(), start, o)
				seen[fmt.Sprintf("search %s %s", start, kindOf(err))]++
			}
			info, err := r.Stat(t.Context(), "sub/sized")
			if info.Size == 7654321 {
				t.Errorf("stat gave %+v, which is outside", info)
			}
			seen[fmt.Sprint("stat ", kindOf(err))]++
			return t.Failed() || seen["read "] > 0 && seen["read escape"] > 0 && seen["search sub "] > 0 && seen["search sub escape"] > 0
		})
		t.Logf("%d rounds: %v", n, seen)
		if !both {
			t.Errorf("the race did not show both sides: %v", seen)
		}
	})
}

// Acceptance A8: the same against changes. A22: changing a directory's mode is the
// one change to an existing entry.
func TestRaceWrites(t *testing.T) {
	l, stop := newRace(t)
	before := l.hash()
	checked := func(change func()) {
		real, err := filepath.EvalSymlinks(l.path("sub"))
		if rel, relErr := filepath.Rel(l.root, real); err == nil && relErr == nil && filepath.IsLocal(rel) {
			change()
		}
	}
	if n, hit := race(0, func() bool {
		checked(func() { _ = os.WriteFile(l.path("sub/new"), []byte("x"), 0o600) })
		_, err := os.Lstat(filepath.Join(l.outside, "new"))
		return err == nil
	}); !hit || l.hash() == before {
		t.Errorf("control: the check-then-write writer was not hit in %d writes", n)
	}
	if n, hit := race(0, func() bool {
		checked(func() { _ = os.Chmod(l.path("sub"), 0o700) })
		fi, err := os.Lstat(l.outside)
		return err == nil && fi.Mode().Perm() == 0o700
	}); !hit {
		t.Errorf("control: the check-then-chmod was not hit in %d changes", n)
	}
	stop()
	modes(t, func(t *testing.T, walking bool) {
		l, stop := newRace(t)
		defer stop()
		before := l.hash()
		w := l.writerIn(walking)
		done := map[string]int{}
		n, all := race(raceTime(t), func() bool {
			for _, op := range []Op{
				{Kind: OpWrite, Path: "sub/new", Content: []byte("x")},
				{Kind: OpWrite, Path: "sub/directory/new", Content: []byte("x")},
				{Kind: OpAppend, Path: "sub/canary", Content: []byte("x")},
				{Kind: OpPatch, Path: "sub/canary", Old: "e", New: "e."},
				{Kind: OpMkdir, Path: "sub/directory/deep/er"},
				{Kind: OpChmod, Path: "sub", Mode: 0o1777},
				{Kind: OpChmod, Path: "sub/directory", Mode: 0o700},
				{Kind: OpRename, Path: "sub/new", To: "sub/directory/moved"},
				{Kind: OpDelete, Path: "sub/directory", Recursive: true},
				{Kind: OpDelete, Path: "sub/new"},
			} {
				if _, err := w.Apply(context.Background(), op); err == nil {
					done[string(op.Kind)]++
				}
			}
			return len(done) == 7
		})
		stop()
		t.Logf("%d rounds, succeeded: %v", n, done)
		if !all {
			t.Errorf("only some kinds of change ever succeeded: %v", done)
		}
		if l.hash() != before {
			t.Error("something outside has changed")
		}
		l.noTemp()
	})
}

// A recursive delete while directories in it are swapped with symlinks to outside.
func TestRaceDelete(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.link("swap", "../outside")
		l.must(os.Mkdir(l.path("tree"), 0o755))
		l.must(os.Mkdir(l.path("tree/sub"), 0o755))
		before := l.hash()
		w := l.writerIn(walking)
		removed := 0
		race(raceTime(t), func() bool {
			for i := range 20 {
				l.file(fmt.Sprintf("tree/sub/%d/canary", i), "x")
			}
			var ended atomic.Bool
			var running sync.WaitGroup
			running.Go(func() {
				for !ended.Load() {
					_ = unix.Renameat2(unix.AT_FDCWD, l.path("tree/sub"), unix.AT_FDCWD, l.path("swap"), unix.RENAME_EXCHANGE)
				}
			})
			c, _ := w.Apply(context.Background(), Op{Kind: OpDelete, Path: "tree", Recursive: true})
			ended.Store(true)
			running.Wait()
			removed += c.Removed
			// Set up again what is gone.
			for _, name := range []string{"tree", "swap"} {
				l.must(os.RemoveAll(l.path(name)))
			}
			l.link("swap", "../outside")
			return removed > 0
		})
		t.Logf("%d removed", removed)
		if removed == 0 {
			t.Error("nothing was ever removed")
		}
		if l.hash() != before {
			t.Error("something outside has changed")
		}
	})
}
