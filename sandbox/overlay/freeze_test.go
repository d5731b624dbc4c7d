package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// frozen returns the directory of the frozen layers of a test.
func (w *testEnv) frozen() string { return filepath.Join(filepath.Dir(w.layers.Dir()), "frozen") }

// freeze freezes the upper layer and mounts the overlay again.
func (w *testEnv) freeze() {
	w.t.Helper()
	w.unmount()
	must(w.t, w.layers.Freeze(w.t.Context(), w.frozen()))
	w.mount()
}

// fork returns an overlay of another session above the frozen layers.
func (w *testEnv) fork(session string) *testEnv {
	w.t.Helper()
	f := &testEnv{t: w.t, original: w.original, merged: w.merged + "-" + session, dir: w.dir}
	must(w.t, os.Mkdir(f.merged, 0o755))
	var err error
	f.layers, err = w.layers.Fork(w.layers.Dir()+"-"+session, session)
	must(w.t, err)
	w.t.Cleanup(func() { f.layers.Close() })
	f.mount()
	w.t.Cleanup(f.unmount)
	return f
}

// frozenLayers returns how many frozen layers there are.
func (w *testEnv) frozenLayers() int {
	w.t.Helper()
	names, err := os.ReadDir(w.frozen())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	return len(names)
}

// steps are changes of three stages, of which each hides, restores or removes
// what those before it made.
var steps = []string{
	`echo two >> a.txt; rm -r gone; rm h1 h2; mkdir -p tomove/sub; echo r > tomove/sub/f; mkdir made made/sub; echo m > made/sub/f; echo 1 > first; rm -r src/deep; rm tofile; mkdir tofile
		mkdir shut; echo in > shut/in; chmod 500 shut; ln -s a.txt l1; echo big > again; python3 -c 'import os; os.setxattr("made", "user.note", b"kept"); os.setxattr("again", "user.of", b"file")'`,
	`rm a.txt; mv tomove renamed; mkdir gone; echo new > gone/new; rm -r made; echo file > made; mkdir src/deep; echo o > src/deep/o.c; rmdir tofile; echo back > tofile
		rm first; echo n > run2.sh; chmod 750 src; ln -sfn src l1; mv again moved; : > $'na\nme'`,
	`echo back > a.txt; mv renamed/sub tomove; rm made; mkdir made; echo third > made/other; rm -r gone; echo more >> src/deep/o.c; rm -r todir; echo file > todir
		mkfifo pipe; ln run2.sh run3.sh; truncate -s 1T huge; chmod 711 .`,
}

// TestStackIsOneLayer makes the same changes in one layer and in three, and
// compares the merged directories, the changes, the diff, and the directory
// after an apply.
func TestStackIsOneLayer(t *testing.T) {
	prepare := func(dir string) { runScript(t, dir, tree0) }
	one, many := newTestEnv(t, prepare), newTestEnv(t, prepare)
	for i, step := range steps {
		if i > 0 {
			many.freeze()
		}
		runScript(t, one.merged, step)
		runScript(t, many.merged, step)
	}
	many.freeze()
	fork := many.fork("fork")
	want := describeTree(t, one.merged)
	for name, env := range map[string]*testEnv{"of the session": many, "of a fork": fork} {
		if diff := cmp.Diff(want, describeTree(t, env.merged)); diff != "" {
			t.Errorf("merged %s (-one +many):\n%s", name, diff)
		}
		if diff := cmp.Diff(one.listChanges(), env.listChanges()); diff != "" {
			t.Errorf("changes %s (-one +many):\n%s", name, diff)
		}
		if diff := cmp.Diff(one.diff(), env.diff()); diff != "" {
			t.Errorf("diff %s (-one +many):\n%s", name, diff)
		}
	}
	if n := many.frozenLayers(); n != 3 {
		t.Errorf("%d frozen layers", n)
	}
	runScript(t, fork.merged, `rm pipe`) // it would be left out
	want = withoutAttributes(describeTree(t, fork.merged))
	if r := fork.apply(ApplyOptions{}); r.State != Applied {
		t.Errorf("applied: %+v", r)
	}
	if diff := cmp.Diff(want, describeTree(t, fork.original)); diff != "" {
		t.Errorf("(-merged +applied):\n%s", diff)
	}
	if n := many.frozenLayers(); n != 3 {
		t.Errorf("%d frozen layers, which the session needs", n)
	}
	many.unmount()
	must(t, many.layers.End(Discarded))
	if n := many.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}

// diff returns the diff of the changes.
func (w *testEnv) diff() string {
	w.t.Helper()
	var text strings.Builder
	c, err := w.layers.Changes(w.t.Context(), w.dir, ReadOptions{})
	must(w.t, err)
	_, err = w.layers.Diff(w.t.Context(), w.dir, c, &text, DiffOptions{})
	must(w.t, err)
	return text.String()
}

// TestForksAreApart: what one fork, or the session itself, writes after the
// freeze is in no other, and a conflict is one of the first session's start.
func TestForksAreApart(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	runScript(t, w.merged, `echo common > common; rm h1`)
	w.freeze()
	a, b := w.fork("a"), w.fork("b")
	runScript(t, a.merged, `echo a > common; echo a > own; rm h2`)
	runScript(t, b.merged, `rm common; rm a.txt`)
	runScript(t, w.merged, `echo parent >> run.sh`)
	runScript(t, w.original, `echo user >> a.txt`)
	w.requireChanges(`added common`, `deleted h1`, `modified run.sh`)
	a.requireChanges(`added common`, `deleted h1`, `deleted h2`, `added own`)
	b.requireChanges(`deleted a.txt CONFLICT`, `deleted h1`)
	if got, err := os.ReadFile(filepath.Join(w.merged, "common")); err != nil || string(got) != "common\n" {
		t.Errorf("the session's: %q, %v", got, err)
	}
	if info := a.layers.Info(); info.Session != "a" || !info.Began.After(w.layers.Info().Began) || !info.BaseAt.Equal(w.layers.Info().BaseAt) {
		t.Errorf("the fork is %+v", info)
	}
	// The last one that needs the layer removes it, also where a session's
	// directory was just removed.
	for _, env := range []*testEnv{w, b} {
		env.unmount()
		must(t, env.layers.End(Discarded))
	}
	if n := w.frozenLayers(); n != 1 {
		t.Errorf("%d frozen layers, and a fork needs one", n)
	}
	must(t, SweepFrozen(w.frozen()))
	a.requireChanges(`added common`, `deleted h1`, `deleted h2`, `added own`)
	a.unmount()
	must(t, workspace.RemoveTree(a.layers.Dir()))
	must(t, SweepFrozen(w.frozen()))
	if n := w.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}

// TestFreezeWithoutChanges makes no layer, and needs the lock.
func TestFreezeWithoutChanges(t *testing.T) {
	w := newTestEnv(t, nil)
	for range 3 {
		w.freeze()
	}
	if n := len(w.layers.Lowers()); n != 1 {
		t.Errorf("%d frozen layers", n)
	}
	runScript(t, w.merged, `chmod 700 .`)
	w.freeze()
	if n := len(w.layers.Lowers()); n != 2 {
		t.Errorf("%d frozen layers after a change of the mode alone", n)
	}
	w.unmount()
	release, err := lockLayers(w.layers.dir) // as a sandbox does
	must(t, err)
	if err := w.layers.Freeze(t.Context(), w.frozen()); !errors.Is(err, ErrBusy) {
		t.Errorf("while it is mounted: %v", err)
	}
	release()
	must(t, w.layers.Close())
	if err := w.layers.Freeze(t.Context(), w.frozen()); !errors.Is(err, ErrBusy) {
		t.Errorf("without the lock: %v", err)
	}
}

// TestKilledFreeze puts the layers into the states between the steps of a
// freeze. Each has the same changes, and leaves nothing.
func TestKilledFreeze(t *testing.T) {
	for name, undo := range map[string]func(t *testing.T, l *Layers, frozen string){
		"no new upper layer": func(t *testing.T, l *Layers, _ string) { must(t, os.Remove(filepath.Join(l.dir, UpperDir))) },
		"nothing moved": func(t *testing.T, l *Layers, frozen string) {
			must(t, os.Remove(filepath.Join(l.dir, UpperDir)))
			must(t, os.Rename(filepath.Join(frozen, UpperDir), filepath.Join(l.dir, UpperDir)))
		},
		"only listed": func(t *testing.T, l *Layers, frozen string) {
			must(t, os.Remove(filepath.Join(l.dir, UpperDir)))
			must(t, os.Rename(filepath.Join(frozen, UpperDir), filepath.Join(l.dir, UpperDir)))
			must(t, errors.Join(os.RemoveAll(frozen), os.Remove(filepath.Join(l.dir, lowersDir, filepath.Base(frozen)))))
		},
		"control": func(*testing.T, *Layers, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
			runScript(t, w.merged, `echo first > first; rm h1; rm -r gone`)
			w.freeze()
			runScript(t, w.merged, `rm first; echo second > second; chmod 711 .`)
			want := w.listChanges()
			w.freeze()
			w.unmount()
			must(t, w.layers.Close())
			undo(t, w.layers, filepath.Dir(w.layers.Lowers()[0]))
			var err error
			w.layers, err = Open(w.layers.Dir())
			must(t, err)
			w.requireChanges(want...)
			must(t, errors.Join(w.layers.Lock(), w.layers.End(Discarded)))
			if n := w.frozenLayers(); n != 0 {
				t.Errorf("%d frozen layers are left", n)
			}
		})
	}
}

// withoutLinks removes the numbers of names from a description: files of merged
// layers have one for each layer.
func withoutLinks(tree string) string {
	return regexp.MustCompile(` links \d+`).ReplaceAllString(tree, "")
}

// withoutAttributes removes extended attributes, which are not applied, from a
// description.
func withoutAttributes(tree string) string {
	return regexp.MustCompile(` user\.\S+="[^"]*"`).ReplaceAllString(tree, "")
}

// TestMerge freezes more often than there may be layers, with content that only a
// hostile command makes.
func TestMerge(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0+`; mkdir shared; echo x > shared/x`) })
	other := []*testEnv{}
	for i := range MaxLowers + 2 {
		runScript(t, w.merged, fmt.Sprintf(`echo %[1]d > f%[1]d; rm -f f$((%[1]d - 3)); rm -rf shared; mkdir shared; echo %[1]d > shared/y%[1]d; chmod %[2]d shared`, i, 700+i%2*55))
		switch i {
		case 2:
			runScript(t, w.merged, steps[0]+`; truncate -s 1T huge; mkfifo pipe; ln f2 $'new\nname "'; mkdir closed; echo in > closed/in; chmod 0 closed
				python3 -c 'import os, socket; socket.socket(socket.AF_UNIX).bind("sock"); os.setxattr("closed", "user.any", b"v" * 3000)'`)
			for path, names := range map[string][]string{"made": {"redirect", "whiteout"}, "src": {"opaque", "redirect"}, "again": {"metacopy", "redirect"}} {
				for _, name := range names { // the kernel refuses its own marks, or keeps them under another name
					_ = unix.Setxattr(filepath.Join(w.merged, path), overlayPrefix+name, []byte("y"), 0)
				}
			}
			w.unmount()
			runScript(t, filepath.Join(w.layers.Dir(), UpperDir), `mknod zero c 1 5; mknod disk b 7 0; ln -s / root; mknod src/nothing c 0 0`)
			w.mount()
		case 5:
			runScript(t, w.merged, steps[1])
		}
		want, tree := w.listChanges(), withoutLinks(describeTree(t, w.merged))
		w.freeze()
		switch n := len(w.layers.Lowers()); i {
		case MaxLowers - 1:
			other = append(other, w.fork("before"))
		case MaxLowers: // one too many
			if n != 2 {
				t.Errorf("%d frozen layers after the merge", n)
			}
		}
		if diff := cmp.Diff(want, w.listChanges()); diff != "" {
			t.Fatalf("changes after freeze %d:\n%s", i, diff)
		}
		if diff := cmp.Diff(tree, withoutLinks(describeTree(t, w.merged))); diff != "" {
			t.Fatalf("merged after freeze %d:\n%s", i, diff)
		}
	}
	if value := make([]byte, 4000); true {
		if n, err := unix.Getxattr(filepath.Join(w.merged, "closed"), "user.any", value); err != nil || n != 3000 {
			t.Errorf("attribute of %d bytes, %v", n, err)
		}
	}
	if n := len(other[0].layers.Lowers()); n != MaxLowers || len(other[0].listChanges()) == 0 {
		t.Errorf("the fork from before the merge has %d layers", n)
	}
	for _, env := range append(other, w) {
		env.unmount()
		must(t, env.layers.End(Discarded))
	}
	if n := w.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}

// TestMergeFails: where layers can't be merged, all stays as it was.
func TestMergeFails(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	w.unmount()
	upper := filepath.Join(w.layers.Dir(), UpperDir)
	runScript(t, upper, `for i in $(seq 300); do mkdir d; cd d; done`)
	for _, name := range []string{"first", "second", "third"} {
		must(t, os.WriteFile(filepath.Join(upper, name), nil, 0o644))
		must(t, w.layers.Freeze(t.Context(), w.frozen()))
	}
	want, before := w.listChanges(), w.layers.Lowers()
	if err := mergeLowers(t.Context(), w.layers); err == nil || !strings.Contains(err.Error(), "too many directories") {
		t.Errorf("merged: %v", err)
	}
	if !slices.Equal(before, w.layers.Lowers()) || w.frozenLayers() != len(before) {
		t.Errorf("layers %q, %d in all", w.layers.Lowers(), w.frozenLayers())
	}
	w.requireChanges(want...)
}
