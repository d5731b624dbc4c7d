package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const plantTurns = "  - calls: [{tool: shell, input: {command: plant}}]\n  - text: done\n"

const evilConfig = "[core]\n\tfsmonitor = touch FIRED\n"

// looked opens a session with a running sandbox and a recorded workspace.
func (b *bench) looked() *Session {
	b.t.Helper()
	s := b.opened()
	s.sandbox.EnsureStarted()
	s.sandbox.WaitStarted(b.t.Context())
	if s.sandbox.IsUntouched() && b.backend.OnCreate == nil {
		b.t.Fatal("the sandbox did not start")
	}
	if err := s.tracker.WaitRecorded(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// plants makes a repository whose configuration runs a program.
func (b *bench) plants(name string) fakesandbox.Script {
	return func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.file(name+"/config", "[core]\n\tfsmonitor = touch FIRED\n")
		return sandbox.ExitStatus{}
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

func paths(list []record.Quarantined) []string {
	var out []string
	for _, q := range list {
		out = append(out, q.Path)
	}
	return out
}

func TestNewRepositoriesAreQuarantined(t *testing.T) {
	b := newBench(t, plantTurns)
	b.file("old/.git/config", "[core]\n")
	b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		b.file("link/.git", "gitdir: ../evil\n")
		for _, name := range []string{"HEAD", "objects/x", "refs/x", "config"} {
			b.file("bare/"+name, "x")
		}
		return b.plants("sub/.git")(ctx, box, cmd)
	}
	r, _ := b.run(t.Context())
	if diff := cmp.Diff([]string{"bare/HEAD", "link/.git", "sub/.git"}, paths(r.Quarantined)); diff != "" {
		t.Errorf("quarantined (-want +got):\n%s", diff)
	}
	for _, q := range r.Quarantined {
		if b.exists(q.Path) || !b.exists(q.To) {
			t.Errorf("%+v was not renamed", q)
		}
	}
	if !b.exists("old/.git/config") {
		t.Error("a repository that was there before was touched")
	}
}

// TestBareRepositoriesAreQuarantined: any directory, even the workspace, can become one, and git then
// obeys a configuration in the open.
func TestBareRepositoriesAreQuarantined(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git on the host")
	}
	for name, tt := range map[string]struct {
		plant       []string // contents by name, in turns
		where, want string
	}{
		"at the top": {
			plant: []string{"HEAD", "ref: refs/heads/main\n", "objects/x", "", "refs/x", "", "config", bareConfig},
			where: ".", want: "HEAD",
		},
		"in a folder of the user's": {
			plant: []string{"src/HEAD", "ref: refs/heads/main\n", "src/objects/x", "", "src/refs/x", "", "src/config", bareConfig},
			where: "src", want: "src/HEAD",
		},
		"whose objects are elsewhere": {
			plant: []string{
				"HEAD", "ref: refs/heads/main\n", "commondir", "c\n", "config.worktree", "[core]\n\tbare = false\n\tworktree = .\n",
				"c/objects/x", "", "c/refs/x", "", "c/config", "[core]\n\trepositoryformatversion = 1\n\tfsmonitor = touch FIRED;\n[extensions]\n\tworktreeConfig = true\n",
			},
			where: ".", want: "HEAD",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fires := func(b *bench) bool {
				cmd := exec.CommandContext(t.Context(), git, "status")
				cmd.Dir = filepath.Join(b.dir, tt.where)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(b.dir)}
				out, err := cmd.CombinedOutput()
				t.Logf("git status: %v: %s", err, out)
				return b.exists("FIRED") || b.exists("src/FIRED")
			}
			b := newBench(t, plantTurns)
			b.file("src/main.c", "the user's")
			plant := func() {
				for i := 0; i < len(tt.plant); i += 2 {
					b.file(tt.plant[i], tt.plant[i+1])
				}
			}
			b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
				plant()
				return sandbox.ExitStatus{}
			}
			r, _ := b.run(t.Context())
			if diff := cmp.Diff([]string{tt.want}, paths(r.Quarantined)); diff != "" {
				t.Errorf("quarantined (-want +got):\n%s", diff)
			}
			if fires(b) {
				t.Error("the host's git ran what a session wrote")
			}
			plant() // the control
			if !fires(b) {
				t.Error("control: git runs nothing of a repository that is left as it is")
			}
		})
	}
}

const bareConfig = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = touch FIRED;\n"

// TestAnInterruptionLeavesNoRepository: somebody interrupts the renaming, which commands can make take
// long. The end renames the rest.
func TestAnInterruptionLeavesNoRepository(t *testing.T) {
	b := newBench(t, plantTurns)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	gone := make(chan struct{})
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		for i := range 60 {
			b.file(fmt.Sprintf("r%02d/.git/config", i), "[core]\n\tfsmonitor = touch FIRED\n")
		}
		go func() {
			defer close(gone)
			for b.exists("r00/.git") {
				runtime.Gosched()
			}
			cancel(errors.New("interrupted"))
		}()
		return sandbox.ExitStatus{}
	}
	b.run(ctx)
	<-gone
	for i := range 60 {
		if name := fmt.Sprintf("r%02d/.git", i); b.exists(name) {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestChangedRepositoriesAreQuarantined: existing repositories are the user's, but not a command's
// changes in them.
func TestChangedRepositoriesAreQuarantined(t *testing.T) {
	b := newBench(t, plantTurns)
	for _, repo := range []string{"same", "config", "hook", "modules", "replaced", "moved"} {
		b.file(repo+"/.git/config", "[core]\n")
		b.file(repo+"/.git/HEAD", "ref: refs/heads/main\n")
		b.file(repo+"/.git/hooks/pre-commit.sample", "#!/bin/sh\n")
		b.file(repo+"/.git/modules/m/config", "[core]\n")
	}
	b.file("submodule/.git", "gitdir: ../.git/modules/submodule\n")
	b.file("linked/.git", "gitdir: ../.git/modules/linked\n")
	for _, name := range []string{"HEAD", "objects/x", "refs/x", "config"} {
		b.file("bare/"+name, "x")
	}
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		// Git may change these freely.
		b.file("same/.git/HEAD", "ref: refs/heads/other\n")
		b.file("same/.git/objects/aa/bb", "object")
		b.file("same/.git/index", "index")
		b.file("config/.git/config", "[core]\n\tfsmonitor = touch FIRED\n")
		b.file("hook/.git/hooks/post-checkout", "touch FIRED\n")
		b.file("modules/.git/modules/m/config", "[core]\n\tpager = touch FIRED\n")
		b.file("submodule/.git", "gitdir: ../evil\n")
		b.file("bare/hooks/post-receive", "touch FIRED\n")
		for _, err := range []error{
			os.RemoveAll(filepath.Join(b.dir, "replaced/.git")), os.Symlink("../evil", filepath.Join(b.dir, "replaced/.git")),
			os.Rename(filepath.Join(b.dir, "moved"), filepath.Join(b.dir, "away")), os.Mkdir(filepath.Join(b.dir, "moved"), 0o755),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	want := []string{"away/.git", "bare/HEAD", "config/.git", "hook/.git", "modules/.git", "replaced/.git", "submodule/.git"}
	if diff := cmp.Diff(want, paths(r.Quarantined)); diff != "" {
		t.Errorf("quarantined (-want +got):\n%s", diff)
	}
	for _, q := range r.Quarantined {
		if b.exists(q.Path) || !b.exists(q.To) {
			t.Errorf("%+v was not renamed", q)
		}
	}
	if !b.exists("same/.git/index") || !b.exists("linked/.git") {
		t.Error("a repository that obeys what it did was touched")
	}
}

func TestTakingTheSandboxDownDoesNotHelp(t *testing.T) {
	for name, ofLimits := range map[string]bool{"of its limits": true, "otherwise": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, plantTurns)
			b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
				b.plants("sub/.git")(ctx, box, cmd)
				return fakesandbox.EndSandbox(ofLimits)(ctx, box, cmd)
			}
			r, _ := b.run(t.Context())
			if b.exists("sub/.git") || len(r.Quarantined) != 1 || r.Quarantined[0].To == "" {
				t.Errorf("ended %d with %+v", r.ExitStatus, r.Quarantined)
			}
		})
	}
}

// TestWhatAKilledSessionLeftIsNamed: after a simulated SIGKILL, the next session on the workspace warns.
func TestWhatAKilledSessionLeftIsNamed(t *testing.T) {
	b := newBench(t, plantTurns)
	b.file("old/.git/config", "")
	s, err := Open(t.Context(), b.opts)
	if err != nil {
		t.Fatal(err)
	}
	s.tracker.StartRecording(t.Context())
	if err := s.tracker.WaitRecorded(t.Context()); err != nil {
		t.Fatal(err)
	}
	lists, err := filepath.Glob(filepath.Join(s.dir, "repositories*"))
	if err != nil || len(lists) != 1 {
		t.Fatal(lists, err)
	}
	held := lists[0]
	if found, err := sessiondir.TakeNewRepositories(filepath.Join(filepath.Dir(s.dir), "ses_other"), b.opts.Workspace.Path, []string{"new"}); len(found) > 0 || err != nil {
		t.Error("a live session's list was taken for a dead one's")
	}
	text, err := os.ReadFile(held)
	if err != nil {
		t.Fatal(err)
	}
	s.tracker.ReleaseState()
	s.rec.Close()
	if err := os.WriteFile(held, text, 0o600); err != nil { // what SIGKILL leaves
		t.Fatal(err)
	}
	b.file("sub/.git/config", "")

	next := newBench(t, "  - text: done\n")
	next.opts.Workspace = b.opts.Workspace
	next.opts.Dir, err = sessiondir.Create(filepath.Dir(filepath.Dir(s.dir)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer next.opts.Dir.Close()
	_, records := next.run(t.Context())
	warnings := of[record.Warning](t, records)
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0].Message, "sub/.git appeared while the session "+s.opts.Dir.Session) {
		t.Errorf("warnings %+v", warnings)
	}
	if _, err := os.Stat(held); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the dead session is not forgotten")
	}
}

// TestAnUnfinishedRebaseIsQuarantined: if commands may write to the workspace's repository, unfinished
// operations are renamed, but not the repository.
func TestAnUnfinishedRebaseIsQuarantined(t *testing.T) {
	b := newBench(t, plantTurns)
	b.opts.Git = sandbox.GitCommit
	b.file(".git/config", "[filter \"x\"]\n\tclean = . ./x\n\tsmudge = . ./x | cat\n")
	b.file(".git/sequencer/todo", "the user's\n")
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.file(".git/rebase-merge/git-rebase-todo", "exec touch FIRED\n")
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	if len(r.Quarantined) != 1 || r.Quarantined[0].Path != ".git/rebase-merge" || !b.exists(r.Quarantined[0].To) || b.exists(".git/rebase-merge") {
		t.Errorf("%+v", r.Quarantined)
	}
	if !b.exists(".git/sequencer/todo") {
		t.Error("the user's own is renamed")
	}
	warnings := of[record.Warning](t, records)
	if len(warnings) != 1 || !strings.Contains(warnings[0].Message, "shell text of its configuration: filter.x.smudge in .git/config. ") {
		t.Errorf("warnings %+v", warnings)
	}
}

// TestTheWorkspacesRepositoryIsLookedAtToo: in commit mode, commands write to it, and an entry that
// leads git elsewhere disables the whole repository.
func TestTheWorkspacesRepositoryIsLookedAtToo(t *testing.T) {
	for mode, want := range map[sandbox.GitMode][]string{sandbox.GitCommit: {".git"}, sandbox.GitReadOnly: nil} {
		b := newBench(t, plantTurns)
		b.opts.Git = mode
		b.file(".git/config", "")
		b.file(".git/HEAD", "ref: refs/heads/main\n")
		b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
			b.file(".git/index", "")
			b.file(".git/COMMIT_EDITMSG", "")
			if mode == sandbox.GitCommit {
				if err := os.Symlink("/nowhere/x", filepath.Join(b.dir, ".git/packed-refs")); err != nil {
					t.Error(err)
				}
			}
			return sandbox.ExitStatus{}
		}
		r, _ := b.run(t.Context())
		if diff := cmp.Diff(want, paths(r.Quarantined)); diff != "" {
			t.Errorf("%s: quarantined (-want +got):\n%s", mode, diff)
		}
	}
}

// TestQuarantineNeedsASandbox: if no command can have changed the workspace, new entries are the
// user's.
func TestQuarantineNeedsASandbox(t *testing.T) {
	b := newBench(t, plantTurns)
	b.backend.OnCreate = func(context.Context, int) error { return sandbox.ErrUnavailable }
	s := b.looked()
	b.file("sub/.git/config", evilConfig)
	s.tracker.CheckAtEnd()
	if !b.exists("sub/.git") {
		t.Error("the user's repository was renamed")
	}
	b = newBench(t, plantTurns)
	s = b.looked()
	b.file("sub/.git/config", evilConfig)
	s.tracker.CheckAtEnd()
	if b.exists("sub/.git") {
		t.Error("control: nothing was renamed in a session with commands")
	}
	b = newBench(t, plantTurns).overlaid()
	s = b.looked()
	b.file("sub/.git/config", evilConfig)
	s.tracker.CheckAfterCommand(t.Context())
	s.tracker.CheckAtEnd()
	if !b.exists("sub/.git") {
		t.Error("the user's repository was renamed by an overlay session")
	}
}

// TestLinkedWorktreesAreToldOf, once, in both modes. Other .git files are not.
func TestLinkedWorktreesAreToldOf(t *testing.T) {
	for git, want := range map[string]int{"gitdir: /home/u/p/.git/worktrees/w\n": 1, "gitdir: ../.git/modules/sub\n": 0, "": 0} {
		for _, overlaid := range []bool{false, true} {
			b := newBench(t, plantTurns)
			if overlaid {
				b = b.overlaid()
			}
			if git != "" {
				b.file(".git", git)
			}
			_, records := b.run(t.Context())
			got := 0
			for _, w := range of[record.Warning](t, records) {
				if strings.Contains(w.Message, "linked worktree") {
					got++
				}
			}
			if got != want {
				t.Errorf("%q, overlay %t: %d warnings", git, overlaid, got)
			}
		}
	}
}

// TestPinnedRenamesNeedAFreshSandbox: a rename that a mount may prevent is made in a sandbox that
// mounts nothing over the repositories.
func TestPinnedRenamesNeedAFreshSandbox(t *testing.T) {
	b := newBench(t, plantTurns)
	b.backend.OnApply = func(box *fakesandbox.Sandbox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		if box.Number == 0 {
			return workspace.Change{}, &workspace.Error{Kind: workspace.KindIO, Path: op.Path, Detail: "busy"}
		}
		return do()
	}
	s := b.looked()
	b.file("sub/.git/config", evilConfig)
	s.tracker.CheckAfterCommand(t.Context())
	s.tracker.CheckAtEnd()
	if n := len(b.backend.Sandboxes); b.exists("sub/.git") || n != 2 || !b.backend.Sandboxes[n-1].Spec.Workspace.Unguarded {
		t.Errorf("%d sandboxes, and sub/.git is there: %t", n, b.exists("sub/.git"))
	}
}
