package quarantine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// TestConfigurationIsReadAsGitReadsIt: a key or value that we read differently from git is a program
// that a session could change unnoticed.
func TestConfigurationIsReadAsGitReadsIt(t *testing.T) {
	const config = "; a comment\n# another that does not go on \\\n[core]\n\thooksPath = \"a b\" # c\n\tfsmonitor = x\\\\y \\\"q\\\" ; rest \\\n" +
		"\tPager = \"less # no ; comment\" -R\r\n\teditor = vi \\\r\n  -n\nsshCommand = ends in\\\\\nAskPass=p\n\tgitproxy = a # b \"\n\n" +
		"[diff \"My.Driver]x\"] command = run\n[ diff \"a\\\"]b\" ]\n textconv = t\n[filter \"A\"]\n\tclean = a\\tb\\nc  \n\tsmudge\n\tprocess =\n" +
		"[includeIf \"gitdir:~/x\"]\n\tpath = ~/p\n[Old.Style]\n\tname = \"  kept  \"x\n\tlast = v"
	want := []string{
		"core.hookspath=a b", `core.fsmonitor=x\y "q"`, "core.pager=less # no ; comment -R", "core.editor=vi   -n", `core.sshcommand=ends in\`, "core.askpass=p",
		"core.gitproxy=a", "diff.my.driver]x.command=run", `diff.a\"]b.textconv=t`, "filter.a.clean=a\tb\nc", "filter.a.smudge=", "filter.a.process=",
		"includeif.gitdir:~/x.path=~/p", "old.style.name=kept  x", "old.style.last=v",
	}
	var got []string
	for key, value := range configValues(strings.ReplaceAll(config, "[ diff", "[diff")) {
		got = append(got, key+"="+value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range configValues(config) {
		break // a caller may stop
	}
	for text, want := range map[string]string{"[a\nb = c": ".b=c", "[a \"]\nb = c\n[d]e=f": ".b=c d.e=f", "[a": "", "x = y\\": `.x=y\`, "a.b": ".a.b=", "=x": ".=x", "[]a=b": ".a=b", `x = y\"`: `.x=y"`} {
		var got []string
		for key, value := range configValues(text) {
			got = append(got, key+"="+value)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git on the host")
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "[ diff \"a\\\"]b\" ]", "[diff \"a\\\"]b\"]")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), git, "config", "-f", file, "--list", "-z").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var gits []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		gits = append(gits, strings.ToLower(key)+"="+strings.TrimSpace(value))
	}
	for i := range want { // the escapes of a subsection are left in
		want[i] = strings.Replace(want[i], `a\"]b`, `a"]b`, 1)
	}
	if diff := cmp.Diff(gits, want); diff != "" {
		t.Errorf("git reads it otherwise (-git +want):\n%s", diff)
	}
}

// lookAt makes files in a new directory, which is also the user's home, and returns it with a scanner.
// A name that ends in / is a directory.
func lookAt(t *testing.T, files map[string]string) (string, *scanner) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		err := error(nil)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(p, 0o755)
		} else {
			err = os.WriteFile(p, []byte(strings.ReplaceAll(text, "$DIR", dir)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	r, err := workspace.NewReader(held, workspace.ReaderOptions{HostPath: dir})
	if err != nil {
		t.Fatal(err)
	}
	return dir, &scanner{reader: r}
}

// TestFilesThatConfigurationNames finds the workspace's files that git would obey or run because of a
// configuration, and no others.
func TestFilesThatConfigurationNames(t *testing.T) {
	files := map[string]string{
		"r/.git/config": "[include]\n\tpath = ../../one.inc\n\tpath = ~/home.inc\n\tpath = ~other/x\n\tpath = %(prefix)/x\n\tpath = /etc/x\n\tpath =\n" +
			"[includeIf \"gitdir:x\"]\n\tpath = $DIR/absolute.inc\n[includeIf]\n\tother = no.inc\n[other]\n\tpath = no.inc\n" +
			"[core]\n\tfsmonitor = sh ./watch.sh -x missing missing/too dir file .\n\tbare = file2\n",
		"one.inc": "[include]\n\tpath = two.inc\n", "two.inc": "[diff \"x\"]\n\tcommand = \"'tools/run' $(named)\"\n", "file2": "",
		"r/dir/x": "", "r/file": "", "r/watch.sh": "", "r/tools/run": "", "r/named": "",
		"r/.git/modules/a/b/config": "[filter \"x\"]\n\tclean = ./f\n", "r/a/b/f": "",
		"h/.git/config": "[core]\n\thooksPath = ../hooks\n[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n[filter \"m\"]\n\tsmudge = DIR=.. make\n" +
			"[alias]\n\tx = !make; true\n[credential]\n\thelper = store\n\thelper = !./c secret\n\thelper = !make\n",
		"hooks/helper": "", "hooks/sub/x": "",
		"top/config": "[core]\n\tpager = ./p\n", "top/HEAD": "", "top/objects/": "", "top/refs/": "",
		".git/config": "[core]\n\teditor = ./e .git/hooks/x\n\thooksPath = .git/h\n", ".git/rebase-apply/x": "",
		"m/.hg/hgrc": "[core]\n\teditor = ./e2\n", ".caisson/config.yaml": "", "s/.git": "gitdir: ../elsewhere\n",
		"n/a/.git/HEAD": "", "n/.hgx/y": "", ".HG/x": "", "n/.caisson-x": "",
		"fake/.git/x": "", "fake/objects/": "", "fake/refs/": "", "m/.hg/config": "[core]\n\teditor = ./e3\n",
	}
	dir, l := lookAt(t, files)
	if err := os.Symlink("nowhere", filepath.Join(dir, "n/.caisson")); err != nil {
		t.Fatal(err)
	}
	r, err := findRepositories(t.Context(), l, sandbox.GitReadOnly, nil)
	if err != nil {
		t.Fatal(err)
	}
	known := []string{".HG", ".git", "fake/.git", "h/.git", "m/.hg", "n/.caisson", "n/a/.git", "r/.git", "s/.git", "top"}
	if diff := cmp.Diff(known, r.listPaths()); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{".HG", "top", "fake/.git", "h/.git", "m/.hg", "r/.git", "s/.git", "n/a/.git"}, r.listNested()); diff != "" {
		t.Errorf("to be guarded, those nearest to the top first (-want +got):\n%s", diff)
	}
	want := []string{
		"absolute.inc", "e", "h/c", "hooks/helper", "home.inc", "one.inc", "r/a/b/f", "r/file", "r/missing/too", "r/named", "r/tools/run", "r/watch.sh", "top/p", "two.inc",
	}
	for _, name := range gitHooks {
		want = append(want, "hooks/"+name)
	}
	slices.Sort(want)
	var got []string
	for p, f := range r.obeyed {
		got = append(got, p)
		if f.why == "" || f.state == "" {
			t.Errorf("%s: %+v", p, f)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("obeyed (-want +got):\n%s", diff)
	}
	scripts := []string{"filter.m.smudge in h/.git/config", "credential.helper in h/.git/config", "diff.x.command in two.inc"}
	if diff := cmp.Diff(scripts, r.scripts); diff != "" {
		t.Errorf("keys with shell text (-want +got):\n%s", diff)
	}
	for _, git := range []sandbox.GitMode{sandbox.GitReadOnly, sandbox.GitCommit} {
		if got := slices.Contains(skippedEntries(".git", git), "hooks"); got != (git == sandbox.GitCommit) || skippedEntries("r/.git", git) != nil {
			t.Errorf("%v: skips hooks: %t", git, got)
		}
	}
	commit, err := findRepositories(t.Context(), &scanner{reader: l.reader}, sandbox.GitCommit, nil)
	if err != nil || !maps.Equal(commit.obeyed, r.obeyed) {
		t.Errorf("where commands may commit, other files are obeyed: %v, %v", commit, err)
	}
	if !r.whole || r.entries < len(files) || r.entries != l.entries || len(r.unfinished) != 1 || !r.unfinished[".git/rebase-apply"] {
		t.Errorf("whole: %t, %d entries, unfinished %v", r.whole, r.entries, r.unfinished)
	}
	if why := r.obeyed["two.inc"].why; why != "include.path in one.inc" {
		t.Errorf("obeyed as %q", why)
	}

	changes := map[string]string{"r/watch.sh": "x", "home.inc": "[core]", "r/tools/run": "y", "unrelated": "z"}
	for name, text := range changes {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Remove(filepath.Join(dir, "r/file")), os.Rename(filepath.Join(dir, "hooks"), filepath.Join(dir, "hooks2")), os.Symlink("hooks2", filepath.Join(dir, "hooks")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	renamed := map[string]bool{}
	l.changedObeyed(t.Context(), r.obeyed, func(entrance, why string) {
		renamed[entrance] = true
		if !strings.Contains(why, " in ") {
			t.Errorf("%s: %q", entrance, why)
		}
	})
	if diff := cmp.Diff(map[string]bool{"r/watch.sh": true, "home.inc": true, "r/tools/run": true, "hooks": true}, renamed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// TestIncludesAreBounded: reading ends for configuration that includes itself or names very many files.
func TestIncludesAreBounded(t *testing.T) {
	files := map[string]string{".git/config": "[include]\n\tpath = ../1.inc\n"}
	for i := range 20 {
		files[strings.Repeat("x", i)+"1.inc"] = "[include]\n\tpath = " + strings.Repeat("x", i+1) + "1.inc\n"
	}
	var words []string
	for i := range maxObeyed + 10 {
		words = append(words, fmt.Sprint("./f", i))
	}
	files["many/.git/config"] = "[core]\n\tfsmonitor = " + strings.Join(words, " ") + "\n"
	for i := range maxScripts + 1 {
		files["many/.git/config"] += fmt.Sprintf("[filter \"%d\"]\n\tclean = a | b\n", i)
	}
	hooks := len(gitHooks)
	for name, n := range map[string]int{"few": maxObeyed / 2, "too-many": maxObeyed/2 + 1} {
		files[name+"/.git/config"] = "[core]\n\thooksPath = ../hooks-" + name + "\n[include]\n\tpath = ~/x\n"
		for i := range n {
			files[fmt.Sprintf("hooks-%s/%d", name, i)] = ""
		}
	}
	_, l := lookAt(t, files)
	t.Setenv("HOME", "") // so that nothing is in it
	for repo, want := range map[string]int{".git": maxIncludes, "many/.git": maxObeyed, "few/.git": maxObeyed/2 + hooks, "too-many/.git": hooks} {
		obeyed := map[string]obeyedFile{}
		l.addObeyed(t.Context(), repo, []string{repo + "/config"}, obeyed)
		if len(obeyed) != want {
			t.Errorf("%s: %d files, want %d", repo, len(obeyed), want)
		}
	}
	if len(l.scripts) != maxScripts || l.moreScripts != 1 {
		t.Errorf("%d keys with shell text and %d more, want %d and 1", len(l.scripts), l.moreScripts, maxScripts)
	}
}

func TestWorktreeOf(t *testing.T) {
	for _, c := range [][3]string{
		{"r/.git", "r/.git/config", "r"},
		{"r/.git", "r/.git/modules/a/b/config", "r/a/b"},
		{".git", ".git/config", "."},
		{"bare", "bare/config", "bare"},
		{"r/.GIT", "r/.GIT/config", "r"},
		{"r/.git", "r/common/config", "r"},
		{"bare", "bare/modules/a/config", "bare"},
		{"r/.git", "other/.git/config", "r"},
	} {
		if got := worktreeOf(c[0], c[1]); got != c[2] {
			t.Errorf("of %s in %s: %s, want %s", c[1], c[0], got, c[2])
		}
	}
}

// TestBareRepositories: git wants HEAD, and objects and refs here or where commondir says.
func TestBareRepositories(t *testing.T) {
	for marks := range uint8(16) {
		head, objects, refs, common := marks&markHead != 0, marks&markObjects != 0, marks&markRefs != 0, marks&markCommon != 0
		if got, want := isBare(marks), head && (common || objects && refs); got != want {
			t.Errorf("%04b: %t", marks, got)
		}
	}
	if markOf([]byte("HEAD"))|markOf([]byte("objects"))|markOf([]byte("refs"))|markOf([]byte("commondir")) != 15 || markOf([]byte("config")) != 0 {
		t.Error("marks of names")
	}
	for dir, want := range map[string]string{"": "", "a": "a/HEAD", ".": "HEAD", "a/.git": "a/.git", ".hg": ".hg", "b/.caisson": "b/.caisson"} {
		if got := entryToRename(dir); dir != "" && got != want {
			t.Errorf("entrance of %s: %s, want %s", dir, got, want)
		}
	}
}

// TestWhatALookCovers: below a closed directory, or after an incomplete look, a repository may be the
// user's.
func TestWhatALookCovers(t *testing.T) {
	open := repositories{whole: true}
	closed := repositories{whole: true, closed: map[string]closedDirectory{"a/b": {}}}
	for p, want := range map[string]bool{"x": true, "a/.git": true, "a/b": true, "a/b/.git": false, "a/b/c/.git": false, "a/bc/.git": true} {
		if !open.coversPath(p) || closed.coversPath(p) != want || new(repositories).coversPath(p) {
			t.Errorf("%s: %t, %t", p, open.coversPath(p), closed.coversPath(p))
		}
	}
}

// TestWhatALookKeepsIsBounded: a look with more than it can keep is incomplete, and so is one that can't
// identify a closed directory.
func TestWhatALookKeepsIsBounded(t *testing.T) {
	empty := func() *repositories {
		return &repositories{known: map[string]string{}, closed: map[string]closedDirectory{}, whole: true}
	}
	r := empty()
	for i := range maxRepositories + 1 {
		if !r.whole {
			t.Fatalf("not whole with %d repositories", i)
		}
		r.addRepository(fmt.Sprint(i))
	}
	if r.whole || len(r.known) != maxRepositories {
		t.Errorf("whole: %t, with %d repositories", r.whole, len(r.known))
	}
	r = empty()
	for i := range maxClosed + 1 {
		if !r.whole {
			t.Fatalf("not whole with %d closed directories", i)
		}
		r.addClosed(fmt.Sprint(i), workspace.ScanStat{Inode: uint64(i)}, nil)
	}
	if r.whole || len(r.closed) != maxClosed || r.closed["7"].inode != 7 {
		t.Errorf("whole: %t, with %d closed directories", r.whole, len(r.closed))
	}
	r = empty()
	if r.addClosed("gone", workspace.ScanStat{}, fs.ErrNotExist); r.whole || len(r.closed) != 0 {
		t.Errorf("whole: %t, %v", r.whole, r.closed)
	}
}

// endingContext ends when its error is requested the (left+1)th time.
type endingContext struct {
	context.Context
	cancel context.CancelFunc
	left   int
	mu     *sync.Mutex
}

func (c *endingContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left < 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// TestALookThatEnds: wherever its context ends, a look returns its result or an error.
func TestALookThatEnds(t *testing.T) {
	_, l := lookAt(t, map[string]string{".git/config": "", ".git/hooks/x": "", "r/.git/objects/x": "", "r/.git/config": ""})
	failed := 0
	for left := 0; ; left++ {
		inner, cancel := context.WithCancel(t.Context())
		r, err := findRepositories(&endingContext{inner, cancel, left, new(sync.Mutex)}, l, sandbox.GitReadOnly, nil)
		ended := inner.Err() != nil
		cancel()
		if (r == nil) != (err != nil) {
			t.Errorf("ended after %d: %v, %v", left, r, err)
		}
		if err != nil {
			failed++
		}
		if !ended {
			break
		}
	}
	t.Log(failed, "looks failed")
	if failed == 0 {
		t.Error("no look failed")
	}
}

// TestWhatOrdinaryWorkWrites: the entries that may differ after a session include none that git or hg
// obeys.
func TestWhatOrdinaryWorkWrites(t *testing.T) {
	for _, c := range []struct {
		repository, rest string
		dir, want        bool
	}{
		{".git", "HEAD", false, true},
		{".git", "HEAD", true, false},
		{".git", "config", false, false},
		{".git", "hooks/pre-commit", false, false},
		{".git", "hooks", true, false},
		{"r/.git", "objects/ab/0123", false, true},
		{"r/.git", "objects/ab", true, true},
		{"r/.git", "objects/info/alternates", false, false},
		{"r/.git", "refs/heads", true, true},
		{"r/.git", "info/exclude", false, false},
		{"r/.git", "index.lock", false, true},
		{".git", "worktrees/w/HEAD", false, true},
		{".git", "worktrees/w/gitdir", false, false},
		{".git", "worktrees/w/config.worktree", false, false},
		{".git", "worktrees/HEAD", false, false},
		{".git", "worktrees/HEAD", true, false},
		{".git", "worktrees", true, false},
		{".git", "worktrees/w/logs", true, true},
		{".git", "modules/m/HEAD", false, true},
		{".git", "modules/m/config", false, false},
		{".git", "modules/a/refs/config", false, false},
		{".git", "modules/a/b/index", false, true},
		{".git", "modules/m/objects/info/packs", false, true},
		{".git", "modules/m/info/exclude", false, false},
		{".git", "modules/HEAD", false, false},
		{".git", "modules/config/HEAD", false, true},
		{".git", "modules/m/objects/ab", true, true},
		{".git", "modules/m/hooks/refs/x", false, false},
		{".git", "modules/m/words", false, false},
		{".git", "modules", true, false},
		{".git", "modules/m", true, false},

		{".git", "modules/m/objects/config/refs/x", false, true},
		{".hg", "dirstate", false, true},
		{".hg", "hgrc", false, false},
		{".HG", "store/data/x.i", false, true},
		{".hg", "store", true, true},
		{".hg", "store", false, false},
		{".hg", "dirstate", true, false},
		{".hg", "HEAD", false, false},
		{"bare", "HEAD", false, true},
	} {
		if got := mayDiffer(c.repository, c.rest, c.dir); got != c.want {
			t.Errorf("%s in %s, a directory: %t: %t, want %t", c.rest, c.repository, c.dir, got, c.want)
		}
	}
	for _, c := range []struct {
		p    string
		git  sandbox.GitMode
		want bool
	}{{".git", sandbox.GitCommit, true}, {".git", sandbox.GitReadOnly, false}, {"a/.git", sandbox.GitCommit, false}} {
		if got := skippedEntries(c.p, c.git); (len(got) > 0) != c.want || c.want && !slices.Contains(got, "hooks") {
			t.Errorf("%s, %s: %q", c.p, c.git, got)
		}
	}
}

// TestProtectedRepositoriesAreNotRead: objects count only if commands can write them.
func TestProtectedRepositoriesAreNotRead(t *testing.T) {
	dir, l := lookAt(t, map[string]string{".git/config": "[core]\n\teditor = ./e\n", ".git/HEAD": "", ".git/objects/aa/x": "", "e": ""})
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, filepath.Join(dir, ".git/objects"), unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		Options
		want bool
	}{
		{Options{Git: sandbox.GitReadOnly}, false},
		{Options{Git: sandbox.GitCommit}, true},
		{Options{Unguarded: true}, true},
	} {
		c.Reader, c.Log = l.reader, zap.NewNop()
		q := New(c.Options)
		if known := q.Record(t.Context()); !slices.Equal(known, []string{".git"}) || q.found.obeyed["e"].why == "" {
			t.Errorf("%v: known are %q, obeyed %v", c.Git, known, q.found.obeyed)
		}
		n, err := unix.Read(watch, make([]byte, 1<<16))
		if got := n > 0; got != c.want || err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%v, unguarded %t: objects were read: %t, %v", c.Git, c.Unguarded, got, err)
		}
	}
}
