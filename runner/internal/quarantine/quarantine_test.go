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
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const evilConfig = "[core]\n\tfsmonitor = touch FIRED\n"

// bench is a workspace and its quarantine.
type bench struct {
	t         *testing.T
	dir       string
	git       sandbox.GitMode
	submounts []string
	// applying, if set, makes each change with do, or fails.
	applying func(op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error)
	// renewed counts the sandboxes without protected mounts.
	renewed int
	// repeated are the repositories that were made again.
	repeated []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{t: t, dir: t.TempDir()}
}

// opened returns a quarantine that has recorded nothing.
func (b *bench) opened() *Quarantine {
	b.t.Helper()
	held, err := os.Open(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { held.Close() })
	reader, err := workspace.NewReader(held, workspace.ReaderOptions{HostPath: b.dir})
	if err != nil {
		b.t.Fatal(err)
	}
	writer := workspace.NewWriter(held, workspace.WriterOptions{})
	return New(Options{
		Reader: reader, Submounts: b.submounts, Git: b.git, Log: zap.NewNop(),
		Repeated: func(path string) { b.repeated = append(b.repeated, path) },
		Renew: func() error {
			b.renewed++
			return nil
		},
		Change: func(ctx context.Context, op workspace.Op) (workspace.Change, error) {
			do := func() (workspace.Change, error) { return writer.Apply(ctx, op) }
			if b.applying != nil {
				return b.applying(op, do)
			}
			return do()
		},
	})
}

// recorded returns a quarantine that has recorded the workspace.
func (b *bench) recorded() *Quarantine {
	b.t.Helper()
	q := b.opened()
	q.Record(b.t.Context())
	return q
}

// change runs a script in the workspace.
func (b *bench) change(script string) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "sh", "-c", "set -e; "+script)
	cmd.Dir = b.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%s: %v: %s", script, err, out)
	}
}

func (b *bench) file(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) exists(name string) bool {
	b.t.Helper()
	_, err := os.Lstat(filepath.Join(b.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Fatal(err)
	}
	return err == nil
}

// renamed returns the old paths of renamed entries.
func (q *Quarantine) renamed() []string {
	return pathsOf(q.moves)
}

func pathsOf(moves map[string]record.Quarantined) []string {
	var out []string
	for _, m := range moves {
		out = append(out, m.Path)
	}
	slices.Sort(out)
	return out
}

// failures returns the reasons by path.
func (q *Quarantine) failures() map[string]string {
	out := map[string]string{}
	for p, f := range q.failed {
		out[p] = f.Why
	}
	return out
}

// TestQuarantineWithoutAnAnswer: a rename is noted even if the turns ended before the sandbox answered.
func TestQuarantineWithoutAnAnswer(t *testing.T) {
	b := newBench(t)
	q := b.recorded()
	b.change("mkdir .hg")
	b.applying = func(_ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		_, err := do()
		q.stopLooks(errTurnsOver)
		return workspace.Change{}, errors.Join(err, context.Canceled)
	}
	q.CheckAfterCommand(t.Context())
	b.applying = nil
	q.CheckAtEnd()
	if got := q.renamed(); !slices.Equal(got, []string{".hg"}) || len(q.failed) > 0 {
		t.Errorf("renamed %q, failed %v", got, q.failed)
	}
}

// TestQuarantineAfterACommand: new repositories are found after each command, changed ones only in a
// small workspace.
func TestQuarantineAfterACommand(t *testing.T) {
	for name, c := range map[string]struct {
		before  string
		entries int
		partial bool
		during  string
		want    []string
	}{
		"a small workspace":      {"", cheapEntries, false, "mkdir .hg sub sub/.hg; ln -s x .caisson", []string{".caisson", ".hg", "sub/.hg"}},
		"a large workspace":      {"", cheapEntries + 1, false, "mkdir .hg sub sub/.hg; ln -s x .caisson", []string{".caisson", ".hg", "sub/.hg"}},
		"a bare one":             {"mkdir -p b/refs", cheapEntries + 1, false, "mkdir b/objects; : >b/HEAD", []string{"b/HEAD"}},
		"a change":               {"mkdir -p sub/.git", cheapEntries, false, ": >sub/.git/config", []string{"sub/.git"}},
		"a change in a large":    {"mkdir -p sub/.git", cheapEntries + 1, false, ": >sub/.git/config", nil},
		"another one in a large": {"mkdir -p sub/.git", cheapEntries + 1, false, "mv sub old; mkdir -p sub/.git; : >sub/.git/config", []string{"old/.git", "sub/.git"}},
		"another bare one":       {"mkdir -p b/refs b/objects; : >b/HEAD", cheapEntries + 1, false, "mv b old; mkdir -p b/refs b/objects; : >b/HEAD; : >b/config", []string{"b/HEAD", "old/HEAD"}},
		"nothing new":            {"mkdir .hg", cheapEntries + 1, false, "mkdir .caisson", nil},
		"nothing":                {"", cheapEntries + 1, false, "", nil},
		"not looked at at first": {"", cheapEntries, true, "mkdir .hg", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.change(c.before)
			q := b.recorded()
			q.found.entries, q.found.whole = c.entries, !c.partial
			q.CheckAfterCommand(t.Context())
			b.change(c.during)
			q.CheckAfterCommand(t.Context())
			if diff := cmp.Diff(c.want, q.renamed()); diff != "" || len(q.failed) > 0 {
				t.Errorf("failed %v, renamed (-want +got):\n%s", q.failures(), diff)
			}
		})
	}
}

// TestLooksGoOn: a command doesn't wait longer for its look than it wants. Looks run one at a time, and
// begin after they were requested. The last look ends them.
func TestLooksGoOn(t *testing.T) {
	b := newBench(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	b.applying = func(_ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		begun <- struct{}{}
		<-goOn
		return do()
	}
	q := b.recorded()
	core, logged := observer.New(zap.WarnLevel)
	q.opts.Log = zap.New(core)
	over, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	b.change("mkdir -p a/.git")
	q.CheckAfterCommand(over)
	<-begun
	b.change("mkdir -p b/.git")
	q.CheckAfterCommand(over) // this look and the next one are the same
	waited := make(chan struct{})
	go func() {
		q.CheckAfterCommand(t.Context())
		close(waited)
	}()
	goOn <- struct{}{}
	select {
	case <-begun: // either within the first look, or in the second one
	case <-waited:
		t.Fatal("a look was over before it began")
	}
	goOn <- struct{}{}
	<-waited
	if got := q.renamed(); !slices.Equal(got, []string{"a/.git", "b/.git"}) || b.exists("b/.git") {
		t.Errorf("renamed %q", got)
	}
	b.change("mkdir -p c/.git")
	q.CheckAfterCommand(over)
	<-begun
	b.change("mkdir -p d/.git")
	q.CheckAfterCommand(over)
	go func() {
		goOn <- struct{}{}
		for range begun {
			goOn <- struct{}{}
		}
	}()
	q.CheckAtEnd()
	q.CheckAfterCommand(t.Context())
	close(begun)
	if len(q.failed) > 0 || b.exists("c/.git") || b.exists("d/.git") {
		t.Errorf("renamed %q, failed %v", q.renamed(), q.failures())
	}
	if logged.Len() > 0 {
		t.Errorf("the end of the turns is logged as %v", logged.All())
	}
}

// TestAWorkspaceThatGrows: however large a small workspace becomes, its original repositories are compared
// after each command.
func TestAWorkspaceThatGrows(t *testing.T) {
	b := newBench(t)
	b.change("mkdir -p sub/.git b/refs b/objects bare/refs bare/objects; : >b/HEAD; : >bare/HEAD")
	q := b.recorded()
	b.change(fmt.Sprintf("seq %d | xargs mkdir; rm -r b/objects; echo x >b/config", 2*cheapEntries))
	q.CheckAfterCommand(t.Context())
	if got := q.renamed(); len(got) > 0 || len(q.failed) > 0 {
		t.Errorf("renamed %q, failed %v", got, q.failures())
	}
	b.change("echo x >sub/.git/config; echo x >bare/config")
	q.CheckAfterCommand(t.Context())
	if got := q.renamed(); !slices.Equal(got, []string{"bare/HEAD", "sub/.git"}) || len(q.failed) > 0 {
		t.Errorf("renamed %q, failed %v", got, q.failures())
	}
}

// BenchmarkLook measures a look in a workspace where nothing changes.
func BenchmarkLook(b *testing.B) {
	for _, dirs := range []int{50_000, 200_000} {
		b.Run(fmt.Sprint(dirs), func(b *testing.B) {
			dir := b.TempDir()
			for i := range dirs {
				if err := os.MkdirAll(filepath.Join(dir, fmt.Sprint(i/5000), fmt.Sprint(i/50), fmt.Sprint(i)), 0o755); err != nil {
					b.Fatal(err)
				}
			}
			held, err := os.Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer held.Close()
			reader, err := workspace.NewReader(held, workspace.ReaderOptions{})
			if err != nil {
				b.Fatal(err)
			}
			q := New(Options{Reader: reader, Log: zap.NewNop()})
			q.Record(b.Context())
			<-time.After(4 * time.Second) // until a change advances each directory's time
			q.CheckAfterCommand(b.Context())
			for b.Loop() {
				q.CheckAfterCommand(b.Context())
			}
			if len(q.failed) > 0 {
				b.Error(q.failures())
			}
		})
	}
}

// TestAPlaceholderThatFills: an empty .git doesn't count until it is filled.
func TestAPlaceholderThatFills(t *testing.T) {
	for _, entries := range []int{cheapEntries, cheapEntries + 1} {
		b := newBench(t)
		q := b.recorded()
		q.found.entries = entries
		for i, step := range []string{"mkdir .git", "mkdir .git/objects .git/refs; : >.git/HEAD"} {
			b.change(step)
			q.CheckAfterCommand(t.Context())
			if got := b.exists(".git"); got != (i == 0) {
				t.Errorf("%d entries: after %q .git is there: %t", entries, step, got)
			}
		}
	}
}

// TestWhatIsQuarantined checks each rule about what is renamed, only reported, or ignored.
func TestWhatIsQuarantined(t *testing.T) {
	for name, c := range map[string]struct {
		git            sandbox.GitMode
		before, during string
		found          func(*repositories)
		renamed        []string
		failed         map[string]string
	}{
		"the placeholder of the sandbox":         {during: "mkdir .git"},
		"an empty .git below":                    {during: "mkdir -p sub/.git", renamed: []string{"sub/.git"}},
		"a .git directory":                       {during: "mkdir .git; : >.git/config", renamed: []string{".git"}},
		"a .git file":                            {during: "echo gitdir: evil >.git", renamed: []string{".git"}},
		"an own .git that its user changed":      {before: "mkdir .git; : >.git/config", during: "echo x >.git/config"},
		"work in an own .git with commits":       {git: sandbox.GitCommit, before: "mkdir .git; : >.git/config", during: ": >.git/index; : >.git/COMMIT_EDITMSG"},
		"a symlink in an own .git with commits":  {git: sandbox.GitCommit, before: "mkdir .git; : >.git/config", during: "ln -s /nowhere/x .git/packed-refs", renamed: []string{".git"}},
		"an own .hg that its user changed":       {git: sandbox.GitCommit, before: "mkdir .hg", during: "echo x >.hg/hgrc"},
		"a directory beside objects":             {during: "mkdir -p d/objects d/refs d/.git", renamed: []string{"d/.git"}},
		"a directory beside objects that was so": {before: "mkdir -p d/objects d/refs d/.git", during: "echo x >f"},
		"one that may have been there": {
			during: "mkdir -p sub/.git", found: func(r *repositories) { r.whole = false },
			failed: map[string]string{"sub/.git": whyUnsure},
		},
		"one that was there":                   {before: "mkdir -p sub/.git", during: "echo x >f", found: func(r *repositories) { r.whole = false }},
		"one that could not be looked at then": {before: "mkdir -p sub/.git", during: "echo x >sub/.git/config", found: func(r *repositories) { r.known["sub/.git"] = "" }, failed: map[string]string{"sub/.git": whyPartly}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.git = c.git
			b.change(c.before)
			q := b.recorded()
			if c.found != nil {
				c.found(q.found)
			}
			b.change(c.during)
			q.renameNew(t.Context(), true)
			if diff := cmp.Diff(c.renamed, q.renamed()); diff != "" {
				t.Errorf("renamed (-want +got):\n%s", diff)
			}
			if got := q.failures(); !maps.Equal(got, c.failed) {
				t.Errorf("failed %q, want %q", got, c.failed)
			}
		})
	}
}

// TestARenamedRepositoryIsNoBareOne: under its new name, git could take a .git directory for a bare
// repository.
func TestARenamedRepositoryIsNoBareOne(t *testing.T) {
	b := newBench(t)
	q := b.recorded()
	b.change("mkdir -p sub/.git/objects sub/.git/refs; echo 'ref: refs/heads/main' >sub/.git/HEAD")
	q.renameNew(t.Context(), false)
	list := q.List(t.Context())
	if len(list) != 1 || !regexp.MustCompile(`^sub/\.git\.quarantined-[0-9A-Z]{26}$`).MatchString(list[0].To) {
		t.Fatalf("renamed %+v", list)
	}
	if !b.exists(list[0].To+"/refs") || b.exists(list[0].To+"/HEAD") {
		t.Error("git takes what was renamed for a bare repository")
	}
}

// TestObeyedFilesAreQuarantinedAtTheEnd, since ordinary work may change them before.
func TestObeyedFilesAreQuarantinedAtTheEnd(t *testing.T) {
	b := newBench(t)
	b.change(`mkdir .git hooks; printf '[core]\n\thooksPath = hooks\n' >.git/config; : >hooks/pre-commit`)
	q := b.recorded()
	b.file("hooks/pre-commit", "touch FIRED\n")
	q.CheckAfterCommand(t.Context())
	if !b.exists("hooks/pre-commit") {
		t.Error("it was renamed after a command")
	}
	q.CheckAtEnd()
	if got := q.renamed(); b.exists("hooks/pre-commit") || !slices.Equal(got, []string{"hooks/pre-commit"}) || len(q.failed) > 0 {
		t.Errorf("renamed %q, failed %v", got, q.failures())
	}
}

// TestALookThatDoesNotEndIsReported, whatever it did before.
func TestALookThatDoesNotEndIsReported(t *testing.T) {
	b := newBench(t)
	b.change(`mkdir .git hooks; printf '[core]\n\thooksPath = hooks\n' >.git/config; : >hooks/pre-commit`)
	q := b.recorded()
	ctx, cancel := context.WithCancelCause(t.Context())
	b.applying = func(_ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		defer cancel(errSlow)
		return do()
	}
	b.file("hooks/pre-commit", "touch FIRED\n")
	want := map[string]string{".": "the look for repositories did not end: " + errSlow.Error()}
	for _, when := range []string{"behind the scan", "before it"} {
		q.renameNew(ctx, true)
		if got := q.failures(); !maps.Equal(got, want) {
			t.Errorf("%s: failed %q", when, got)
		}
		clear(q.failed)
	}
	if b.exists("hooks/pre-commit") {
		t.Error("control: nothing was renamed before the end")
	}
}

// TestFailedRenamesAreTriedAgain, and then in a sandbox that mounts nothing.
func TestFailedRenamesAreTriedAgain(t *testing.T) {
	for name, sandboxes := range map[string]int{"a passing failure": 0, "a mount": 1} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			fails := true
			b.applying = func(op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
				if fails && b.renewed == 0 {
					return workspace.Change{}, &workspace.Error{Kind: workspace.KindIO, Path: op.Path, Detail: "busy"}
				}
				return do()
			}
			q := b.recorded()
			b.file("sub/.git/config", evilConfig)
			q.CheckAfterCommand(t.Context())
			if !b.exists("sub/.git") || len(q.failed) != 1 {
				t.Fatalf("control: failed %v", q.failures())
			}
			fails = sandboxes > 0
			q.CheckAtEnd()
			if b.exists("sub/.git") || len(q.failed) > 0 || len(q.moves) != 1 {
				t.Errorf("renamed %q, failed %v", q.renamed(), q.failures())
			}
			if b.renewed != sandboxes {
				t.Errorf("%d sandboxes, want %d", b.renewed, sandboxes)
			}
		})
	}
}

// TestModesAreChangedWhereTheyForbid, but not if a rename failed otherwise.
func TestModesAreChangedWhereTheyForbid(t *testing.T) {
	for kind, want := range map[workspace.Kind]int{workspace.KindPermission: 3, workspace.KindIO: 0} {
		b := newBench(t)
		chmods := 0
		b.applying = func(op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
			if op.Kind == workspace.OpRename {
				return workspace.Change{}, &workspace.Error{Kind: kind, Path: op.Path, Detail: "no"}
			}
			chmods++
			return do()
		}
		q := b.recorded()
		b.file("sub/.git/config", evilConfig)
		if to := q.renamePath(t.Context(), "sub/.git", ""); to != "" || len(q.failed) != 1 || chmods != want {
			t.Errorf("%s: renamed to %q, failed %v, %d modes were set", kind, to, q.failures(), chmods)
		}
	}
}

// TestUnreadDirectories: an unreadable directory is reported unless it is the same as before, and closed
// to commands too.
func TestUnreadDirectories(t *testing.T) {
	b := newBench(t)
	b.change("mkdir private; chmod 600 private")
	q := b.recorded()
	st, err := q.opts.Reader.StatEntry(t.Context(), "private")
	if err != nil {
		t.Fatal(err)
	}
	same, other := closedOf(st), closedOf(st)
	other.changed--
	open := same
	open.mode = 0o700
	for name, c := range map[string]struct {
		found repositories
		want  string
	}{
		"new":                       {repositories{whole: true}, "it can't be looked into, so that there may be a repository in it: no"},
		"perhaps there before":      {repositories{}, whyUnsure + ": no"},
		"the same":                  {repositories{closed: map[string]closedDirectory{"private": same}}, ""},
		"changed":                   {repositories{closed: map[string]closedDirectory{"private": other}}, whyClosed},
		"changed and was open once": {repositories{closed: map[string]closedDirectory{"private": open}}, whyClosed},
	} {
		clear(q.failed)
		q.found = &c.found
		q.noteUnread(t.Context(), "private", errors.New("no"))
		if got := q.failed["private"].Why; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	clear(q.failed)
	q.found = &repositories{closed: map[string]closedDirectory{"gone": same}}
	if q.noteUnread(t.Context(), "gone", errors.New("no")); q.failed["gone"].Why != whyClosed {
		t.Error("a directory that is gone is vouched for")
	}
}

// TestSearchable: commands have the rights of the workspace's owner.
func TestSearchable(t *testing.T) {
	q := newBench(t).opened()
	self, other := uint32(os.Geteuid()), uint32(os.Geteuid()+1) //nolint:gosec // uids
	for d, want := range map[closedDirectory]bool{
		{uid: self, mode: 0o100}: true, {uid: self, mode: 0o677}: false,
		{uid: other, mode: 0o010}: true, {uid: other, mode: 0o001}: true, {uid: other, mode: 0o766}: false,
	} {
		if got := q.isSearchable(t.Context(), d); got != want {
			t.Errorf("%+v: %t", d, got)
		}
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if !q.isSearchable(ended, closedDirectory{uid: self}) {
		t.Error("a directory counts as closed to commands where their user is not known")
	}
}

// TestQuarantineIsBounded: beyond the bound, renames and failures are counted.
func TestQuarantineIsBounded(t *testing.T) {
	q := New(Options{})
	for i := range maxNoted + 3 {
		p := fmt.Sprint(i)
		q.addMove(record.Quarantined{Path: p, To: p + "-to"})
		q.addFailure(record.Quarantined{Path: p})
		q.pinMove(p, "why")
	}
	q.addFailure(record.Quarantined{Path: "0", Why: "again"})
	if len(q.moves) != maxNoted || q.moreMoved != 3 || len(q.failed) != maxNoted || q.moreFailed != 3 || len(q.pinned) != maxNoted || q.failed["0"].Why != "again" {
		t.Errorf("%d moves and %d more, %d failures and %d more, %d to be tried", len(q.moves), q.moreMoved, len(q.failed), q.moreFailed, len(q.pinned))
	}
}

// TestQuarantinedIsListed: failures come first. What is gone is no failure.
func TestQuarantinedIsListed(t *testing.T) {
	b := newBench(t)
	q := b.opened()
	b.change("mkdir -p stuck/.git")
	q.addFailure(record.Quarantined{Path: "stuck/.git", Why: "busy"})
	q.addFailure(record.Quarantined{Path: "gone/.git", Why: "busy"})
	q.addMove(record.Quarantined{Path: "b\xff/.git", To: "b\xff/.git-1"})
	q.addMove(record.Quarantined{Path: "a/.git", To: "a/.git-2"})
	q.addMove(record.Quarantined{Path: "a/.git", To: "a/.git-1"})
	q.moreFailed, q.moreMoved = 1, 1
	want := []record.Quarantined{
		{Path: "stuck/.git", Why: "busy"},
		{Path: ".", Why: "1 more in the workspace were not renamed either, or could not be looked at"},
		{Path: "a/.git", To: "a/.git-1"},
		{Path: "a/.git", To: "a/.git-2"},
		{Path: `b\xff/.git`, To: `b\xff/.git-1`},
		{Path: ".", To: ".", Why: "1 more were renamed"},
	}
	for range 2 {
		if diff := cmp.Diff(want, q.List(t.Context())); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
	}
}

func TestShowBytes(t *testing.T) {
	for name, want := range map[string]string{"é": "é", "a\x7f\x80": "a\x7f" + `\x80`, "é\xff": `\xc3\xa9\xff`} {
		if got := ShowBytes(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

// TestMountsOfALook recognises mounts in the workspace under any name.
func TestMountsOfALook(t *testing.T) {
	b := newBench(t)
	b.submounts = []string{"sub", filepath.Join(b.dir, "x"), "/elsewhere"}
	if diff := cmp.Diff([]string{"sub", "x"}, b.opened().newScanner().mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// TestRepeated: a repository that is made again after it was renamed is reported, others are not.
func TestRepeated(t *testing.T) {
	b := newBench(t)
	q := b.recorded()
	for _, name := range []string{"a", "b", "a"} {
		if len(b.repeated) > 0 {
			t.Errorf("before anything was repeated: %q", b.repeated)
		}
		b.file(name+"/.git/config", "[core]\n")
		q.CheckAfterCommand(t.Context())
	}
	if !slices.Equal(b.repeated, []string{"a/.git"}) || b.exists("a/.git") {
		t.Errorf("repeated: %q; a/.git is there: %t", b.repeated, b.exists("a/.git"))
	}
}
