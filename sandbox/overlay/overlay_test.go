package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// testEnv is a workspace under a real overlay of the kernel, so that the tests
// read an upper layer that the kernel wrote.
type testEnv struct {
	t        *testing.T
	original string // the workspace
	merged   string // what commands see
	layers   *Layers
	dir      *os.File
	mounted  bool
}

// newTestEnv creates a workspace, calls before with its path, and mounts the
// overlay.
func newTestEnv(t *testing.T, before func(dir string)) *testEnv {
	t.Helper()
	if os.Getuid() != 0 {
		if strings.TrimSpace(os.Getenv("REQUIRE_BACKENDS")) != "" {
			t.Fatal("mounting an overlay needs root, and REQUIRE_BACKENDS is set")
		}
		t.Skip("mounting an overlay needs root")
	}
	return newTestEnvIn(t, t.TempDir(), before)
}

// newTestEnvIn is newTestEnv in an empty directory.
func newTestEnvIn(t *testing.T, root string, before func(dir string)) *testEnv {
	t.Helper()
	w := &testEnv{t: t, original: filepath.Join(root, "workspace"), merged: filepath.Join(root, "merged")}
	for _, dir := range []string{w.original, w.merged} {
		must(t, os.Mkdir(dir, 0o755))
	}
	if before != nil {
		before(w.original)
	}
	dir, err := os.Open(w.original)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	w.dir = dir
	w.layers, err = Create(filepath.Join(root, "layers"), CreateOptions{Session: "ses_test", Path: w.original, Workspace: dir})
	must(t, err)
	t.Cleanup(func() { w.layers.Close() })
	must(t, w.layers.Record(t.Context(), dir))
	w.mount()
	t.Cleanup(w.unmount)
	return w
}

func (w *testEnv) mount() {
	w.t.Helper()
	dir := w.layers.Dir()
	lowers := strings.Join(append(w.layers.Lowers(), w.original), ":")
	must(w.t, unix.Mount("overlay", w.merged, "overlay", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf(
		"lowerdir=%s,upperdir=%s,workdir=%s,userxattr", lowers, filepath.Join(dir, UpperDir), filepath.Join(dir, WorkDir))))
	w.mounted = true
}

func (w *testEnv) unmount() {
	if w.mounted {
		w.mounted = false
		if err := unix.Unmount(w.merged, 0); err != nil {
			w.t.Errorf("unmount: %v", err)
		}
	}
}

// listChanges returns one line per change.
func (w *testEnv) listChanges() []string {
	w.t.Helper()
	c, err := w.layers.Changes(w.t.Context(), w.dir, ReadOptions{})
	must(w.t, err)
	var out []string
	for _, c := range c.List {
		line := fmt.Sprintf("%s %s", c.Kind, quote(c.Path))
		if c.Kind == Typed {
			line += fmt.Sprintf(" %s->%s", c.Was, c.Now)
		} else if c.Was == "dir" || c.Now == "dir" {
			line += "/"
		}
		if c.Conflict != "" {
			line += " CONFLICT"
		}
		if c.LeftOut != "" {
			line += " LEFT"
		}
		out = append(out, line)
	}
	return out
}

func (w *testEnv) requireChanges(lines ...string) {
	w.t.Helper()
	if diff := cmp.Diff(lines, w.listChanges()); diff != "" {
		w.t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func (w *testEnv) apply(o ApplyOptions) *Result {
	w.t.Helper()
	w.unmount()
	r, err := w.layers.Apply(w.t.Context(), w.dir, o)
	must(w.t, err)
	return r
}

// runScript runs a shell script in a directory.
func runScript(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamesOfGuardedFiles checks that a new name of a file in .git or .caisson,
// outside of it, becomes a separate file. A session in bind mode could write to
// the guarded file by that name. Other files keep their names.
func TestNamesOfGuardedFiles(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `mkdir -p .git/hooks sub/.git .caisson; echo c > .git/config; echo h > .git/hooks/h; echo s > sub/.git/config; echo y > .caisson/config.yaml; echo f > free`)
	})
	runScript(t, w.merged, `ln .git/config a; ln .git/hooks/h b; ln sub/.git/config c; ln .caisson/config.yaml d; echo n > .git/HEAD; ln .git/HEAD e; ln .git/HEAD .git/other; ln free also`)
	if r := w.apply(ApplyOptions{}); r.State != Applied {
		t.Errorf("%+v", r)
	}
	for name, want := range map[string]struct {
		content string
		names   uint64
	}{"a": {"c\n", 1}, "b": {"h\n", 1}, "c": {"s\n", 1}, "d": {"y\n", 1}, "e": {"n\n", 1}, ".git/HEAD": {"n\n", 1}, "also": {"f\n", 2}} {
		data, err := os.ReadFile(filepath.Join(w.original, name))
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(w.original, name), &st))
		if string(data) != want.content || fmt.Sprint(st.Nlink) != fmt.Sprint(want.names) { // of another type on arm64
			t.Errorf("%s holds %q and has %d names, want %q and %d", name, data, st.Nlink, want.content, want.names)
		}
	}
}

// describeAttributes returns the user's extended attributes of a file as text.
func describeAttributes(t testing.TB, path string) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	must(t, err)
	var out string
	names := strings.Split(string(buf[:n]), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, overlayPrefix) {
			n, err := unix.Lgetxattr(path, name, buf)
			must(t, err)
			out += fmt.Sprintf(" %s=%q", name, buf[:n])
		}
	}
	return out
}

// describeTree returns a tree as text: type, mode, owner, number of names,
// content, attributes.
func describeTree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			fmt.Fprintf(&b, " links %d size %d", st.Nlink, st.Size)
			if st.Size < 1<<20 {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, " %q", text)
			}
		case unix.S_IFLNK:
			target, _ := os.Readlink(path)
			fmt.Fprintf(&b, " -> %q", target)
		case unix.S_IFDIR:
		default:
			fmt.Fprintf(&b, " rdev %d", st.Rdev)
		}
		b.WriteString(describeAttributes(t, path) + "\n")
		return nil
	})
	must(t, err)
	return b.String()
}

const tree0 = `
	echo one > a.txt; printf 'x\ny\n' > run.sh; chmod 755 run.sh
	mkdir -p src/deep gone/in; echo s > src/s.c; echo d > src/deep/d.c; echo g > gone/in/g; echo h > gone/h
	ln -s a.txt link; echo hl > h1; ln h1 h2; echo t > tofile; mkdir todir; echo in > todir/x; echo same > touched`

func TestChangesAreWhatTheKernelWrote(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	w.requireChanges()
	runScript(t, w.merged, `
		echo two >> a.txt; chmod 700 run.sh; touch touched; rm -r gone; echo new > src/new.c; mkdir -p added/empty
		ln -sfn src link; rm tofile; mkdir tofile; echo f > tofile/f; rm -r todir; echo file > todir
		mkfifo pipe; mv src/s.c src/moved.c; rm -r src/deep; mkdir src/deep; echo other > src/deep/o.c; chmod 750 src/deep
		echo $'odd' > $'na\nme'; ln a.txt hard; : > seen; rm seen; chmod 711 .`)
	w.requireChanges(
		`mode ./`,
		`modified a.txt`,
		`added added/`,
		`added added/empty/`,
		`deleted gone/`,
		`deleted gone/h`,
		`deleted gone/in/`,
		`deleted gone/in/g`,
		`added hard`,
		`modified link`,
		`added "na\nme"`,
		`added pipe LEFT`,
		`mode run.sh`,
		`mode src/deep/`,
		`deleted src/deep/d.c`,
		`added src/deep/o.c`,
		`added src/moved.c`,
		`added src/new.c`,
		`deleted src/s.c`,
		`type todir dir->file`,
		`deleted todir/x`,
		`type tofile file->dir`,
		`added tofile/f`,
	)
}

// TestApplyGivesWhatCommandsSaw compares the directory after an apply with the
// merged view before it.
func TestApplyGivesWhatCommandsSaw(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, tree0+`
			echo third > third; chown 4242:4343 third; mkdir shared; chgrp 77 shared; chmod 2775 shared; echo x > shared/old; chmod 444 shared/old`)
	})
	runScript(t, w.merged, `
		echo two >> a.txt; chmod 700 run.sh; rm -r gone; mkdir -p added/empty; ln -sfn src link; rm tofile; mkdir tofile; echo f > tofile/f
		rm -r todir; echo file > todir; mv src/s.c src/moved.c; rm -r src/deep; mkdir src/deep; echo other > src/deep/o.c
		echo odd > $'na\nme'; echo l1 > l1; ln l1 l2; ln l1 added/l3; echo more >> third; echo n > shared/new; mkdir shared/sub; echo deep > shared/sub/f
		chmod 600 shared/old; mkdir shut; echo in > shut/in; chmod 500 shut; ln -s /etc/passwd abs; ln -s ../../.. up; truncate -s 1T big; echo end >> big
		ln src/deep/o.c o.c; touch -d @1234567890 a.txt; ln touched touched2`)
	want := describeTree(t, w.merged)
	r := w.apply(ApplyOptions{LinksOut: true})
	if diff := cmp.Diff(want, describeTree(t, w.original)); diff != "" {
		t.Errorf("(-merged +applied):\n%s", diff)
	}
	if r.State != Applied || len(r.Applied) == 0 {
		t.Errorf("result %+v", r)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(w.original, "big"), &st))
	if st.Blocks*512 > 1<<20 {
		t.Errorf("a terabyte of nothing takes %d bytes", st.Blocks*512)
	}
	must(t, unix.Stat(filepath.Join(w.original, "a.txt"), &st))
	if st.Mtim.Sec != 1234567890 {
		t.Errorf("modification time %d is not the session's", st.Mtim.Sec)
	}
	if left, err := os.ReadDir(w.layers.Dir()); err != nil || !slices.EqualFunc(left, []string{lockFile, stateFile}, func(e os.DirEntry, name string) bool { return e.Name() == name }) {
		t.Errorf("left in the layers: %v, %v", left, err)
	}
	again, err := Open(w.layers.Dir())
	must(t, err)
	if again.Info().State != Applied {
		t.Errorf("state %s", again.Info().State)
	}
	must(t, w.layers.Close())
	if _, err := again.Apply(t.Context(), w.dir, ApplyOptions{}); !errors.Is(err, ErrGone) {
		t.Errorf("a second apply: %v", err)
	}
}

func TestConflictsRefuseAllOrTheirOwn(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	runScript(t, w.merged, `echo agent >> a.txt; echo agent > new; rm src/s.c; rm -r gone; echo agent > src/fine.c; rm tofile; mkdir tofile; echo f > tofile/f; echo both > both; rm h1; chmod 700 run.sh touched`)
	w.unmount()
	// The user works meanwhile. One change keeps size and time.
	runScript(t, w.original, `printf 'ONE\n' > a.txt.x; touch -r a.txt a.txt.x; cat a.txt.x > a.txt; touch -r a.txt.x a.txt; rm a.txt.x
		echo user > new; echo user >> src/s.c; echo user > gone/in/user; rm tofile; echo both > both; echo user > unrelated
		printf 'x\ny\n' > run.sh.x; chmod 755 run.sh.x; mv run.sh.x run.sh; echo same > touched; chmod 640 touched`)
	before := describeTree(t, w.original)
	w.requireChanges(
		`modified a.txt CONFLICT`,
		`deleted gone/ CONFLICT`,
		`deleted gone/h`,
		`deleted gone/in/ CONFLICT`,
		`deleted gone/in/g`,
		`deleted gone/in/user CONFLICT`,
		`deleted h1`,
		`modified new CONFLICT`,
		`mode run.sh`,
		`added src/fine.c`,
		`deleted src/s.c CONFLICT`,
		`added tofile/ CONFLICT`,
		`added tofile/f CONFLICT`,
		`mode touched CONFLICT`,
	)
	r := w.apply(ApplyOptions{})
	if !r.Refused || len(r.Applied) != 0 || len(r.Conflicts) != 9 {
		t.Errorf("%d conflicts, %d applied, refused %v", len(r.Conflicts), len(r.Applied), r.Refused)
	}
	if diff := cmp.Diff(before, describeTree(t, w.original)); diff != "" {
		t.Errorf("a refused apply changed (-before +after):\n%s", diff)
	}
	r = w.apply(ApplyOptions{Rest: true})
	var applied []string
	for _, c := range r.Applied {
		applied = append(applied, c.Path)
	}
	if diff := cmp.Diff([]string{"gone/h", "gone/in/g", "h1", "run.sh", "src/fine.c"}, applied); diff != "" || r.State != Kept {
		t.Errorf("state %s, applied (-want +got):\n%s", r.State, diff)
	}
	if text, _ := os.ReadFile(filepath.Join(w.original, "a.txt")); string(text) != "ONE\n" {
		t.Errorf("the user's file is %q", text)
	}
	// Later changes by the user to applied files are no changes of the session.
	runScript(t, w.original, `echo user >> src/fine.c`)
	if got := w.listChanges(); slices.ContainsFunc(got, func(l string) bool { return strings.Contains(l, "fine.c") }) {
		t.Errorf("changes: %q", got)
	}
}

// passTick waits until the kernel gives files a later time than before.
func passTick() { time.Sleep(20 * time.Millisecond) }

// TestRecordBesideCommands: the user changes files after commands may run and before
// the walk reaches them. The control are files that only the session changed.
func TestRecordBesideCommands(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `for f in both session later mode; do echo old > $f; done; mkdir -p in/place in/other quiet/busy; echo p > in/place/f; echo o > in/other/f; echo b > quiet/busy/f; echo q > quiet/f`)
	})
	runScript(t, w.merged, `for f in both session later new in/place/f quiet/busy/f quiet/f; do echo agent >> $f; done; chmod 700 mode; rm -r in/other`)
	w.unmount()
	passTick()
	runScript(t, w.original, `echo user > both; echo user > new; chmod 640 mode; mv in/place in/gone; mv in/other in/place; : > quiet/busy/new`)
	must(t, w.layers.Record(t.Context(), w.dir))
	runScript(t, w.original, `echo user > later`)
	w.requireChanges(
		`modified both CONFLICT`,
		`modified in/place/f CONFLICT`,
		`modified later CONFLICT`,
		`mode mode CONFLICT`,
		`modified new CONFLICT`,
		`modified quiet/busy/f`,
		`modified quiet/f`,
		`modified session`,
	)
}

// TestTimeIsRecorded: with the time alone, the user's changes since are conflicts.
func TestTimeIsRecorded(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, `for f in both session gone; do echo old > $f; done`) })
	must(t, w.layers.RecordTime())
	if same, err := w.layers.IsUnchanged(w.dir); err != nil || !same {
		t.Errorf("before any change: %v, %v", same, err)
	}
	runScript(t, w.merged, `for f in both session new; do echo agent > $f; done; rm gone`)
	if same, err := w.layers.IsUnchanged(w.dir); err != nil || same {
		t.Errorf("after changes: %v, %v", same, err)
	}
	w.unmount()
	passTick()
	runScript(t, w.original, `echo user > both; echo user > new; echo user > gone`)
	w.requireChanges(`modified both CONFLICT`, `deleted gone CONFLICT`, `modified new CONFLICT`, `modified session`)
}

// A file system that keeps seconds gives a file of half past a second the whole one.
func TestIsLater(t *testing.T) {
	const second = int64(time.Second)
	for _, c := range []struct {
		ctime, since int64
		later        bool
	}{
		{9*second + 4, 9*second + 5, false},
		{9*second + 5, 9*second + 5, false},
		{9*second + 6, 9*second + 5, true},
		{9 * second, 9*second + 5, true},
		{8 * second, 9*second + 5, false},
	} {
		if got := isLater(c.ctime, c.since); got != c.later {
			t.Errorf("%d after %d: %v", c.ctime, c.since, got)
		}
	}
}

// TestKilledApplyEndsTheSame stops an apply before each of its steps, repeats
// it, and compares the result with that of an apply that was not stopped.
func TestKilledApplyEndsTheSame(t *testing.T) {
	script := `echo two >> a.txt; chmod 700 run.sh; rm -r gone; mkdir -p added/empty; ln -sfn src link; rm tofile; mkdir tofile; echo f > tofile/f; chmod 711 tofile
		rm -r todir; echo file > todir; rm -r src/deep; mkdir src/deep; echo o > src/deep/o.c; echo h >> h1; echo h >> h2; echo l1 > l1; ln l1 l2; rm touched; ln -s x touched`
	errKilled := errors.New("killed")
	for at := 0; ; at++ {
		w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
		runScript(t, w.merged, script)
		want := describeTree(t, w.merged)
		w.unmount()
		killed := false
		_, err := w.layers.Apply(t.Context(), w.dir, ApplyOptions{step: func(done int) error {
			if done == at {
				killed = true
				return errKilled
			}
			return nil
		}})
		if !killed {
			must(t, err)
			if at < 20 {
				t.Fatalf("only %d steps: the test shows little", at)
			}
			return
		}
		if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		// A kill during a write leaves incomplete temporary files.
		j, err := readApplyLog(w.layers)
		must(t, err)
		runScript(t, w.original, "echo torn > "+tempName(j.runs[0], 7)+"; for d in tofile src/deep; do test ! -d $d || echo torn > $d/"+tempName(j.runs[0], 8)+"; done")
		must(t, w.layers.Close())
		again, err := Open(w.layers.Dir())
		must(t, err)
		r, err := again.Apply(t.Context(), w.dir, ApplyOptions{})
		must(t, err)
		if r.State != Applied {
			t.Errorf("killed before step %d: %d conflicts: %+v", at, len(r.Conflicts), r.Conflicts)
		}
		if diff := cmp.Diff(want, describeTree(t, w.original)); diff != "" {
			t.Errorf("killed before step %d (-want +got):\n%s", at, diff)
		}
		must(t, again.Close())
	}
}

func TestGitIsAppliedButForWhatItObeys(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `git init -q .; git config user.email a@b; git config user.name n; echo 1 > f; git add f; git commit -qm one; mkdir plain.git; cd plain.git; git init -q --bare .`)
	})
	runScript(t, w.merged, `
		echo 2 >> f; git commit -qam two; git branch side; git gc -q
		git config core.fsmonitor 'touch /tmp/never'; printf '#!/bin/sh\ntouch /tmp/never\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
		echo '* filter=x' > .git/info/attributes; echo . > .git/commondir; mkdir .git/rebase-merge; echo 'exec id' > .git/rebase-merge/git-rebase-todo
		mkdir nested; (cd nested; git init -q .; echo n > n; git add n); mkdir evil; cp -r .git evil/repo; mkdir sub; echo 'gitdir: ../evil/repo' > sub/.git
		mkdir -p .git/modules/lib/z/objects/aa .git/modules/lib/z/hooks evilmods; echo o > .git/modules/lib/z/objects/aa/bb; echo c > .git/modules/lib/z/config; echo h > .git/modules/lib/z/hooks/h; ln -s ../evilmods .git/link
		git config -f plain.git/config core.fsmonitor x; mkdir .caisson; echo 'policy: x' > .caisson/config.yaml; mkdir config; echo c > config/c`)
	got := w.listChanges()
	left := func(path string) bool {
		return slices.ContainsFunc(got, func(l string) bool {
			return strings.HasSuffix(l, " LEFT") && strings.Contains(l, " "+path+" ") || strings.HasSuffix(l, " "+path+"/ LEFT")
		})
	}
	for _, p := range []string{
		".git/config", ".git/hooks/pre-commit", ".git/info/attributes", ".git/commondir", ".git/rebase-merge/git-rebase-todo",
		"nested/.git/config", "evil/repo/config", "evil/repo/hooks/pre-commit", "sub/.git", "plain.git/config", ".caisson/config.yaml",
		".git/modules/lib/z/config", ".git/modules/lib/z/hooks/h", ".git/link",
	} {
		if !left(p) {
			t.Errorf("%s would be applied; changes:\n%s", p, strings.Join(got, "\n"))
		}
	}
	for _, p := range []string{".git/HEAD", ".git/index", "nested/.git/HEAD", "config/c", ".git/refs/heads/side", ".git/packed-refs", ".git/modules/lib/z/objects/aa/bb"} {
		if left(p) {
			t.Errorf("%s is left out", p)
		}
	}
	r := w.apply(ApplyOptions{})
	if r.State != Kept || len(r.LeftOut) == 0 {
		t.Errorf("state %s, %d left out", r.State, len(r.LeftOut))
	}
	runScript(t, w.original, `test "$(git log --format=%s | head -1)" = two; git rev-parse side; git fsck; test -z "$(git status --porcelain f)"; test ! -e .git/hooks/pre-commit
		! git config core.fsmonitor; cd nested; git status; ! git config core.fsmonitor`)
	r = w.apply(ApplyOptions{GitConfig: true})
	runScript(t, w.original, `test -x .git/hooks/pre-commit; grep -q fsmonitor .git/config`)
	if got := r.LeftOut; len(got) != 2 { // .caisson and what is in it
		t.Errorf("left out: %+v", got)
	}
}

// TestNoRepositoryInTheOpen checks that a session can't turn a directory, even
// the workspace itself, into a bare repository whose configuration runs a
// program. The parts that complete it are left out, whichever comes last. As a
// control, applying all of them runs the program.
func TestNoRepositoryInTheOpen(t *testing.T) {
	const config = `printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = touch FIRED;\n' > config; `
	for name, tt := range map[string]struct{ before, session string }{
		"whole":                      {"", config + `mkdir objects refs; echo x > objects/x; echo x > refs/x; echo 'ref: refs/heads/main' > HEAD`},
		"its HEAD last":              {config + `mkdir objects refs`, `echo 'ref: refs/heads/main' > HEAD`},
		"its objects and refs last":  {config + `echo 'ref: refs/heads/main' > HEAD`, `mkdir objects refs; echo x > objects/x; echo x > refs/x`},
		"its refs last as a program": {config + `mkdir objects; echo 'ref: refs/heads/main' > HEAD`, `echo x > refs; chmod +x refs`},
		"its objects elsewhere": {"", `mkdir -p c/objects c/refs; echo x > c/objects/x; echo x > c/refs/x; echo c > commondir; echo 'ref: refs/heads/main' > HEAD
			printf '[core]\n\tbare = false\n\tworktree = .\n' > config.worktree
			printf '[core]\n\trepositoryformatversion = 1\n\tfsmonitor = touch FIRED;\n[extensions]\n\tworktreeConfig = true\n' > c/config`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, func(dir string) { runScript(t, dir, tt.before+"\necho f > f") })
			runScript(t, w.merged, tt.session)
			status := `export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CEILING_DIRECTORIES="$(dirname "$PWD")"; git status || true; `
			diff, _, _ := w.readDiff(DiffOptions{})
			patched := t.TempDir()
			must(t, os.WriteFile(filepath.Join(patched, "diff"), []byte(diff), 0o600))
			runScript(t, patched, "cp -a "+w.original+" w; cd w; ! grep -q ^--- ../diff || patch -s -p1 < ../diff; "+status+"test ! -e FIRED")
			w.apply(ApplyOptions{})
			runScript(t, w.original, status+"test ! -e FIRED")
			w.apply(ApplyOptions{GitConfig: true})
			runScript(t, w.original, status+"test -e FIRED")
		})
	}
}

func TestMovedRepositoryStays(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `git init -q .; git config user.email a@b; git config user.name n; echo 1 > f; git add f; git commit -qm one`)
	})
	runScript(t, w.merged, `mv .git .git2; git --git-dir .git2 config core.pager x; echo 'gitdir: .git2' > .git`)
	r := w.apply(ApplyOptions{})
	runScript(t, w.original, `git status; git fsck; test -d .git; test ! -e .git2/config; test ! -e .git2/hooks`)
	if r.State != Kept {
		t.Error("nothing was left out")
	}
}

// TestHostileLayer fills the upper layer directly with entries that no kernel
// would write, and checks that nothing outside changes.
func TestHostileLayer(t *testing.T) {
	outside := t.TempDir()
	runScript(t, outside, `echo secret > canary; mkdir dir; echo d > dir/d`)
	w := newTestEnv(t, func(dir string) { runScript(t, dir, `mkdir sub links; echo s > sub/s; echo x > links/x; echo c > c`) })
	w.unmount()
	upper := filepath.Join(w.layers.Dir(), UpperDir)
	runScript(t, upper, fmt.Sprintf(`
		ln -s %[1]s sub; ln -s %[1]s/canary c; mkfifo fifo; mknod zero c 1 5; mknod disk b 7 0; ln -s / root; truncate -s 1T huge
		echo setuid > su; chmod 6755 su; mkdir sticky; chmod 3777 sticky; echo owned > owned; chown 0:4242 owned
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
		printf x > $'\e]0;x\a'; printf x > $'\xff\xfe'; printf x > '-rf'; printf x > $'tab\there "quoted" \\'; printf x > $'--- a\n+++ b'
		mkdir many; cd many; for i in $(seq 500); do : > f$i; done; cd ..
		d=$(printf 'd%%.0s' $(seq 250)); for i in $(seq 20); do mkdir $d; cd $d; done`, outside))
	before := describeTree(t, outside)
	var text strings.Builder
	c, err := w.layers.Changes(t.Context(), w.dir, ReadOptions{})
	must(t, err)
	_, err = w.layers.Diff(t.Context(), w.dir, c, &text, DiffOptions{})
	must(t, err)
	if len(c.Unread) == 0 || !strings.Contains(text.String(), "can't be read: what changed there is not known") {
		t.Errorf("no report of a directory that is too deep: %q", c.Unread)
	}
	for line := range strings.Lines(text.String()) {
		if strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\x1b\a") || strings.HasPrefix(line, "--- a\n") {
			t.Errorf("a name is not quoted: %q", line)
		}
	}
	r := w.apply(ApplyOptions{LinksOut: true})
	if diff := cmp.Diff(before, describeTree(t, outside)); diff != "" {
		t.Errorf("outside changed (-before +after):\n%s", diff)
	}
	runScript(t, w.original, `test -L sub; test -L c; test -L root; test ! -e fifo; test ! -e zero; test ! -e disk; test ! -e sock; test -e ./-rf
		test "$(stat -c %a su)" = 755; test "$(stat -c %a sticky)" = 777; test "$(stat -c %g owned)" = "$(stat -c %g .)"; test "$(ls many | wc -l)" = 500`)
	if r.State != Kept {
		t.Errorf("state %s although something was left out", r.State)
	}
	for _, name := range []string{"fifo", "zero", "disk", "sock"} {
		if !slices.ContainsFunc(r.LeftOut, func(c Change) bool { return c.Path == name }) {
			t.Errorf("%s is not listed as left out", name)
		}
	}
}

// TestLinksOfTheOriginal replaces a directory of the original by a symlink.
// Changes of the directory must not follow it.
func TestLinksOfTheOriginal(t *testing.T) {
	outside := t.TempDir()
	runScript(t, outside, `echo secret > f`)
	w := newTestEnv(t, func(dir string) { runScript(t, dir, `mkdir d; echo f > d/f`) })
	runScript(t, w.merged, `echo agent > d/f; echo agent > d/new`)
	w.unmount()
	runScript(t, w.original, `rm -r d; ln -s `+outside+` d`)
	before := describeTree(t, outside)
	r := w.apply(ApplyOptions{Rest: true})
	if diff := cmp.Diff(before, describeTree(t, outside)); diff != "" {
		t.Errorf("outside changed (-before +after):\n%s", diff)
	}
	if len(r.Applied) != 0 {
		t.Errorf("applied %+v", r.Applied)
	}
	// The control: a plain copy of the layer follows the symlink.
	runScript(t, filepath.Join(w.layers.Dir(), UpperDir), `find . -type f | while read -r f; do cp "$f" `+w.original+`/"$f"; done`)
	if diff := cmp.Diff(before, describeTree(t, outside)); diff == "" {
		t.Error("control: a plain copy did not reach outside")
	}
}

func TestLocks(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, tree0) })
	runScript(t, w.merged, `echo x > x`)
	other, err := Open(w.layers.Dir())
	must(t, err)
	if _, err := other.Apply(t.Context(), w.dir, ApplyOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("apply of a session that runs: %v", err)
	}
	w.unmount()
	must(t, w.layers.Close())
	release, err := lockDirectory(w.dir)
	must(t, err)
	if _, err := other.Apply(t.Context(), w.dir, ApplyOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("apply beside another one: %v", err)
	}
	release()
	elsewhere, err := os.Open(t.TempDir())
	must(t, err)
	defer elsewhere.Close()
	if _, err := other.Apply(t.Context(), elsewhere, ApplyOptions{}); !errors.Is(err, ErrOther) {
		t.Errorf("apply to another directory: %v", err)
	}
	if _, err := other.Apply(t.Context(), w.dir, ApplyOptions{}); err != nil {
		t.Error(err)
	}
	must(t, other.Close())
}

func TestDiscardRemovesAll(t *testing.T) {
	w := newTestEnv(t, nil)
	runScript(t, w.merged, `mkdir -p a/b; echo x > a/b/c; chmod 000 a/b a`)
	w.unmount()
	must(t, w.layers.End(Discarded))
	if _, err := os.Lstat(filepath.Join(w.layers.Dir(), UpperDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("upper is left: %v", err)
	}
	// A later Sweep removes what an interrupted End left.
	must(t, os.MkdirAll(filepath.Join(w.layers.Dir(), UpperDir, "left"), 0o755))
	must(t, w.layers.Close())
	again, err := Open(w.layers.Dir())
	must(t, err)
	must(t, again.Sweep())
	must(t, again.Close())
	if _, err := os.Lstat(filepath.Join(w.layers.Dir(), UpperDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("upper is left after a sweep: %v", err)
	}
	if _, err := w.layers.Changes(context.Background(), w.dir, ReadOptions{}); !errors.Is(err, ErrGone) {
		t.Errorf("changes of what was discarded: %v", err)
	}
}

// TestFullDiskTearsNothing applies changes to a file system that is too small.
// Existing files stay whole, the error names the cause, and the rest follows
// once there is room.
func TestFullDiskTearsNothing(t *testing.T) {
	var dir string
	w := newTestEnv(t, func(original string) {
		dir = original
		must(t, unix.Mount("tmpfs", original, "tmpfs", 0, "size=1m,mode=755"))
		t.Cleanup(func() {
			if err := unix.Unmount(original, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		runScript(t, original, `for i in $(seq 10); do echo old > f$i; done`)
	})
	runScript(t, w.merged, `for i in $(seq 10); do head -c 200000 /dev/zero | tr '\0' $i > f$i; done`)
	want := describeTree(t, w.merged)
	w.unmount()
	r, err := w.layers.Apply(t.Context(), w.dir, ApplyOptions{})
	if !errors.Is(err, unix.ENOSPC) || r == nil || len(r.Failed) != 1 || r.State != Kept {
		t.Fatalf("apply to a full file system: %v, %+v", err, r)
	}
	for i := 1; i <= 10; i++ {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("f%d", i)))
		must(t, err)
		if len(text) != 200000 && string(text) != "old\n" {
			t.Errorf("f%d is torn: %d bytes", i, len(text))
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".caisson-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"))
	r, err = w.layers.Apply(t.Context(), w.dir, ApplyOptions{})
	if err != nil || r.State != Applied {
		t.Fatalf("apply with room: %v, %+v", err, r)
	}
	if diff := cmp.Diff(want, describeTree(t, w.original)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestStateThatCantBeWritten records a directory without enough room for the
// record.
func TestStateThatCantBeWritten(t *testing.T) {
	w := newTestEnv(t, func(dir string) { runScript(t, dir, `for i in $(seq 2000); do : > file-with-a-long-name-$i; done`) })
	small := t.TempDir()
	must(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=64k,mode=700"))
	defer func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	l, err := Create(filepath.Join(small, "layers"), CreateOptions{Session: "ses_x", Path: w.original, Workspace: w.dir})
	must(t, err)
	defer l.Close()
	if err := l.Record(t.Context(), w.dir); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("record without room: %v", err)
	}
	if again, err := Open(l.Dir()); err != nil || again.Info().Recorded {
		t.Errorf("layers without a complete record count as recorded: %v", err)
	}
}

// TestLinksOutAreLeftOut checks that symlinks which lead out of the workspace,
// in whatever way, are only applied on request. As a control, symlinks that
// stay inside are applied.
func TestLinksOutAreLeftOut(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `mkdir -p a/b; echo x > a/x; ln -s / away; ln -s a/b short; echo f > was`)
	})
	runScript(t, w.merged, `
		ln -s /etc/passwd absolute; ln -s ../x up; ln -s a/../../x lexical; ln -s away/etc/passwd through; ln -sf ../../x a/b/deep2; ln -s ../../../x a/b/out
		ln -s short/../../x dots; ln -s own/x chained; ln -s /etc own; rm was; ln -s /etc/passwd was; ln -s ../.ssh/authorized_keys dangling
		ln -s a/x inside; ln -s ../x a/b/deep; ln -s short/../x kept; ln -s nothing none; ln -s loop loop; mkdir .caisson; ln -s / .caisson/link`)
	r := w.apply(ApplyOptions{})
	left := map[string]string{}
	for _, c := range r.LeftOut {
		left[c.Path] = c.LeftOut
	}
	for _, out := range []string{"absolute", "up", "lexical", "through", "a/b/out", "chained", "own", "was", "dangling"} {
		if !strings.Contains(left[out], "leads out of the workspace, to ") {
			t.Errorf("%s: %q", out, left[out])
		}
	}
	runScript(t, w.original, `for l in inside a/b/deep a/b/deep2 kept none loop dots; do test -L $l; done; for l in absolute up lexical through a/b/out chained own dangling; do test ! -L $l; done; test -f was`)
	if r.State != Kept {
		t.Errorf("state %s", r.State)
	}
	r = w.apply(ApplyOptions{LinksOut: true})
	runScript(t, w.original, `for l in absolute up lexical through a/b/out chained own was dangling; do test -L $l; done; test ! -e .caisson/link`)
	if len(r.LeftOut) == 0 || !strings.HasPrefix(r.LeftOut[0].Path, ".caisson") {
		t.Errorf("left out: %v", r.LeftOut)
	}
}
