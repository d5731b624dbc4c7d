//go:build linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const evilConfig = "[core]\n\tfsmonitor = touch FIRED\n"

// looked opens a session whose sandbox runs and whose workspace is recorded.
func (b *bench) looked() *Session {
	b.t.Helper()
	s := b.opened()
	if _, err := s.exec.waitReady(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// change runs a script in the workspace.
func (b *bench) change(script string) {
	b.t.Helper()
	if out := b.host("set -e; " + script); !regexp.MustCompile(`\(<nil>\)$`).MatchString(out) {
		b.t.Fatalf("%s: %s", script, out)
	}
}

// renamed returns the old paths of what was renamed.
func (q *quarantine) renamed() []string {
	return slices.Sorted(slices.Values(paths(slices.Collect(maps.Values(q.moves)))))
}

// failures returns the reasons by path.
func (q *quarantine) failures() map[string]string {
	out := map[string]string{}
	for p, f := range q.failed {
		out[p] = f.Why
	}
	return out
}

// TestQuarantineAfterACommand: in a large workspace only what is at the top is
// looked for after each command.
func TestQuarantineAfterACommand(t *testing.T) {
	for name, c := range map[string]struct {
		before  string
		entries int
		partial bool
		during  string
		want    []string
	}{
		"a small workspace":      {"", cheapEntries, false, "mkdir .hg sub sub/.hg; ln -s x .caisson", []string{".caisson", ".hg", "sub/.hg"}},
		"a large workspace":      {"", cheapEntries + 1, false, "mkdir .hg sub sub/.hg; ln -s x .caisson", []string{".caisson", ".hg"}},
		"nothing new":            {"mkdir .hg", cheapEntries + 1, false, "mkdir .caisson", nil},
		"nothing":                {"", cheapEntries + 1, false, "", nil},
		"not looked at at first": {"", cheapEntries, true, "mkdir .hg", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, plantTurns)
			b.change(c.before)
			s := b.looked()
			bindOf(s).quarantine.found.entries, bindOf(s).quarantine.found.whole = c.entries, !c.partial
			b.change(c.during)
			s.tracker.checkAfterCommand(t.Context())
			if diff := cmp.Diff(c.want, bindOf(s).quarantine.renamed()); diff != "" || len(bindOf(s).quarantine.failed) > 0 {
				t.Errorf("failed %v, renamed (-want +got):\n%s", bindOf(s).quarantine.failures(), diff)
			}
		})
	}
}

// TestWhatIsQuarantined: each rule of what is renamed, what is only reported, and
// what is left alone.
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
			b := newBench(t, plantTurns)
			b.opts.Git = c.git
			b.change(c.before)
			s := b.looked()
			if c.found != nil {
				c.found(bindOf(s).quarantine.found)
			}
			b.change(c.during)
			bindOf(s).quarantine.renameNew(t.Context(), true)
			if diff := cmp.Diff(c.renamed, bindOf(s).quarantine.renamed()); diff != "" {
				t.Errorf("renamed (-want +got):\n%s", diff)
			}
			if got := bindOf(s).quarantine.failures(); !maps.Equal(got, c.failed) {
				t.Errorf("failed %q, want %q", got, c.failed)
			}
		})
	}
}

// TestARenamedRepositoryIsNoBareOne: under its new name a .git is a directory that
// git takes for a bare repository.
func TestARenamedRepositoryIsNoBareOne(t *testing.T) {
	b := newBench(t, plantTurns)
	s := b.looked()
	b.change("mkdir -p sub/.git/objects sub/.git/refs; echo 'ref: refs/heads/main' >sub/.git/HEAD")
	bindOf(s).quarantine.renameNew(t.Context(), false)
	list := bindOf(s).quarantine.list(t.Context())
	if len(list) != 1 || !regexp.MustCompile(`^sub/\.git\.quarantined-[0-9A-Z]{26}$`).MatchString(list[0].To) {
		t.Fatalf("renamed %+v", list)
	}
	if !b.exists(list[0].To+"/refs") || b.exists(list[0].To+"/HEAD") {
		t.Error("git takes what was renamed for a bare repository")
	}
}

// TestObeyedFilesAreQuarantinedAtTheEnd: ordinary work may change them meanwhile.
func TestObeyedFilesAreQuarantinedAtTheEnd(t *testing.T) {
	b := newBench(t, plantTurns)
	b.change(`mkdir .git hooks; printf '[core]\n\thooksPath = hooks\n' >.git/config; : >hooks/pre-commit`)
	s := b.looked()
	b.file("hooks/pre-commit", "touch FIRED\n")
	s.tracker.checkAfterCommand(t.Context())
	if !b.exists("hooks/pre-commit") {
		t.Error("it was renamed after a command")
	}
	s.tracker.checkAtEnd()
	if got := bindOf(s).quarantine.renamed(); b.exists("hooks/pre-commit") || !slices.Equal(got, []string{"hooks/pre-commit"}) || len(bindOf(s).quarantine.failed) > 0 {
		t.Errorf("renamed %q, failed %v", got, bindOf(s).quarantine.failures())
	}
}

// TestALookThatDoesNotEndIsReported: whatever it did before.
func TestALookThatDoesNotEndIsReported(t *testing.T) {
	b := newBench(t, plantTurns)
	b.change(`mkdir .git hooks; printf '[core]\n\thooksPath = hooks\n' >.git/config; : >hooks/pre-commit`)
	s := b.looked()
	ctx, cancel := context.WithCancelCause(t.Context())
	b.backend.applying = func(_ *fakeBox, _ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		defer cancel(errSlow)
		return do()
	}
	b.file("hooks/pre-commit", "touch FIRED\n")
	want := map[string]string{".": "the look for repositories did not end: " + errSlow.Error()}
	for _, when := range []string{"behind the scan", "before it"} {
		bindOf(s).quarantine.renameNew(ctx, true)
		if got := bindOf(s).quarantine.failures(); !maps.Equal(got, want) {
			t.Errorf("%s: failed %q", when, got)
		}
		bindOf(s).quarantine.failed = nil
	}
	if b.exists("hooks/pre-commit") {
		t.Error("control: nothing was renamed before the end")
	}
}

// TestQuarantineNeedsASandbox: where no command can have changed the workspace, what
// is new in it is its user's.
func TestQuarantineNeedsASandbox(t *testing.T) {
	b := newBench(t, plantTurns)
	s := b.looked()
	b.file("sub/.git/config", evilConfig)
	s.box.usable = false
	s.tracker.checkAtEnd()
	if !b.exists("sub/.git") {
		t.Error("the user's repository was renamed")
	}
	s.box.usable = true
	s.tracker.checkAtEnd()
	if b.exists("sub/.git") {
		t.Error("control: nothing was renamed in a session with commands")
	}
	b = newBench(t, plantTurns).overlaid()
	s = b.looked()
	b.file("sub/.git/config", evilConfig)
	s.tracker.checkAfterCommand(t.Context())
	s.tracker.checkAtEnd()
	if !b.exists("sub/.git") {
		t.Error("the user's repository was renamed by an overlay session")
	}
}

// TestFailedRenamesAreTriedAgain: once more, and then in a sandbox that mounts nothing.
func TestFailedRenamesAreTriedAgain(t *testing.T) {
	for name, boxes := range map[string]int{"a passing failure": 1, "a mount": 2} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, plantTurns)
			fails := true
			b.backend.applying = func(box *fakeBox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
				if fails && box.number == 0 {
					return workspace.Change{}, &workspace.Error{Kind: workspace.KindIO, Path: op.Path, Detail: "busy"}
				}
				return do()
			}
			s := b.looked()
			b.file("sub/.git/config", evilConfig)
			s.tracker.checkAfterCommand(t.Context())
			if !b.exists("sub/.git") || len(bindOf(s).quarantine.failed) != 1 {
				t.Fatalf("control: failed %v", bindOf(s).quarantine.failures())
			}
			fails = boxes > 1
			s.tracker.checkAtEnd()
			if b.exists("sub/.git") || len(bindOf(s).quarantine.failed) > 0 || len(bindOf(s).quarantine.moves) != 1 {
				t.Errorf("renamed %q, failed %v", bindOf(s).quarantine.renamed(), bindOf(s).quarantine.failures())
			}
			if n := len(b.backend.boxes); n != boxes || b.backend.boxes[n-1].spec.Workspace.Unguarded != (boxes > 1) {
				t.Errorf("%d sandboxes, want %d", n, boxes)
			}
		})
	}
}

// TestModesAreChangedWhereTheyForbid: and not where a rename failed otherwise, or
// where nothing is to be opened.
func TestModesAreChangedWhereTheyForbid(t *testing.T) {
	for name, c := range map[string]struct {
		kind   workspace.Kind
		doors  bool
		chmods int
	}{"forbidden": {workspace.KindPermission, true, 3}, "busy": {workspace.KindIO, true, 0}, "forbidden at the top": {workspace.KindPermission, false, 0}} {
		b := newBench(t, plantTurns)
		chmods := 0
		b.backend.applying = func(_ *fakeBox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
			if op.Kind == workspace.OpRename {
				return workspace.Change{}, &workspace.Error{Kind: c.kind, Path: op.Path, Detail: "no"}
			}
			chmods++
			return do()
		}
		s := b.looked()
		b.file("sub/.git/config", evilConfig)
		var doors *closedDirectories
		if c.doors {
			doors = bindOf(s).quarantine.closedDirectories()
		}
		if to := bindOf(s).quarantine.move(t.Context(), "sub/.git", "", doors); to != "" || len(bindOf(s).quarantine.failed) != 1 || chmods != c.chmods {
			t.Errorf("%s: renamed to %q, failed %v, %d modes were set", name, to, bindOf(s).quarantine.failures(), chmods)
		}
	}
}

// TestUnreadDirectories: a directory that can't be looked into is reported unless
// it was the same one before, and closed to commands as well.
func TestUnreadDirectories(t *testing.T) {
	b := newBench(t, plantTurns)
	b.change("mkdir private; chmod 600 private")
	s := b.looked()
	st, err := bindOf(s).original.StatEntry(t.Context(), "private")
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
		bindOf(s).quarantine.found, bindOf(s).quarantine.failed = &c.found, nil
		bindOf(s).quarantine.noteUnread(t.Context(), "private", errors.New("no"))
		if got := bindOf(s).quarantine.failed["private"].Why; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	bindOf(s).quarantine.found, bindOf(s).quarantine.failed = &repositories{closed: map[string]closedDirectory{"gone": same}}, nil
	if bindOf(s).quarantine.noteUnread(t.Context(), "gone", errors.New("no")); bindOf(s).quarantine.failed["gone"].Why != whyClosed {
		t.Error("a directory that is gone is vouched for")
	}
}

// TestSearchable: commands have the rights of the workspace's owner.
func TestSearchable(t *testing.T) {
	s := newBench(t, plantTurns).opened()
	self, other := uint32(os.Geteuid()), uint32(os.Geteuid()+1) //nolint:gosec // uids
	for d, want := range map[closedDirectory]bool{
		{uid: self, mode: 0o100}: true, {uid: self, mode: 0o677}: false,
		{uid: other, mode: 0o010}: true, {uid: other, mode: 0o001}: true, {uid: other, mode: 0o766}: false,
	} {
		if got := bindOf(s).quarantine.isSearchable(d); got != want {
			t.Errorf("%+v: %t", d, got)
		}
	}
	gone, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	bindOf(s).quarantine.dir = gone
	if !bindOf(s).quarantine.isSearchable(closedDirectory{uid: self}) {
		t.Error("a directory counts as closed to commands where their user is not known")
	}
}

// TestQuarantineIsBounded: beyond the bound, renames and failures are counted.
func TestQuarantineIsBounded(t *testing.T) {
	var q quarantine
	for i := range maxNoted + 3 {
		p := fmt.Sprint(i)
		q.done(record.Quarantined{Path: p, To: p + "-to"})
		q.fail(record.Quarantined{Path: p})
		q.pin(p, "why")
	}
	q.fail(record.Quarantined{Path: "0", Why: "again"})
	if len(q.moves) != maxNoted || q.moreMoved != 3 || len(q.failed) != maxNoted || q.moreFailed != 3 || len(q.pinned) != maxNoted || q.failed["0"].Why != "again" {
		t.Errorf("%d moves and %d more, %d failures and %d more, %d to be tried", len(q.moves), q.moreMoved, len(q.failed), q.moreFailed, len(q.pinned))
	}
}

// TestQuarantinedIsListed: failures come first; what is gone is no failure.
func TestQuarantinedIsListed(t *testing.T) {
	b := newBench(t, plantTurns)
	s := b.opened()
	b.change("mkdir -p stuck/.git")
	bindOf(s).quarantine.fail(record.Quarantined{Path: "stuck/.git", Why: "busy"})
	bindOf(s).quarantine.fail(record.Quarantined{Path: "gone/.git", Why: "busy"})
	bindOf(s).quarantine.done(record.Quarantined{Path: "b\xff/.git", To: "b\xff/.git-1"})
	bindOf(s).quarantine.done(record.Quarantined{Path: "a/.git", To: "a/.git-2"})
	bindOf(s).quarantine.done(record.Quarantined{Path: "a/.git", To: "a/.git-1"})
	bindOf(s).quarantine.moreFailed, bindOf(s).quarantine.moreMoved = 1, 1
	want := []record.Quarantined{
		{Path: "stuck/.git", Why: "busy"},
		{Path: ".", Why: "1 more in the workspace were not renamed either, or could not be looked at"},
		{Path: "a/.git", To: "a/.git-1"},
		{Path: "a/.git", To: "a/.git-2"},
		{Path: `b\xff/.git`, To: `b\xff/.git-1`},
		{Path: ".", To: ".", Why: "1 more were renamed"},
	}
	for range 2 {
		if diff := cmp.Diff(want, bindOf(s).quarantine.list(t.Context())); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
	}
}

func TestShowBytes(t *testing.T) {
	for name, want := range map[string]string{"é": "é", "a\x7f\x80": "a\x7f" + `\x80`, "é\xff": `\xc3\xa9\xff`} {
		if got := showBytes(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

// TestMountsOfALook: those in the workspace, however they are named.
func TestMountsOfALook(t *testing.T) {
	b := newBench(t, plantTurns)
	b.opts.Submounts = []string{"sub", filepath.Join(b.dir, "x"), "/elsewhere"}
	if diff := cmp.Diff([]string{"sub", "x"}, bindOf(b.opened()).quarantine.repositoryLook().mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}
