package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// hostEnvironment is the environment of a user without configuration.
func hostEnvironment(b *bench) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + b.home(), "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C", "HGPLAIN=", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(b.dir),
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_EDITOR=true",
		"FIRED=" + filepath.Join(b.home(), "fired"), "B=" + b.dir,
	}
}

// home is a directory outside the workspace for the traces of programs that ran.
func (b *bench) home() string {
	dir := b.dir + "-home"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	return dir
}

// host runs a script in the workspace as its user would.
func (b *bench) host(script string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "/bin/sh", "-c", script)
	cmd.Dir, cmd.Env = b.dir, hostEnvironment(b)
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s (%v)", out, err)
}

// fired reports whether, since the last call, a program of the session ran on the host or a user's
// file outside the workspace was written.
func (b *bench) fired() bool {
	b.t.Helper()
	fired := false
	for _, name := range []string{"fired", "victim"} {
		path := filepath.Join(b.home(), name)
		if info, err := os.Stat(path); err == nil {
			fired = fired || info.Size() > 0
			if err := os.Remove(path); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return fired
}

const (
	// gitLook runs git commands of a user or a prompt in a repository.
	gitLook = "git status; git diff; git log -p -3; git add -A . ; git commit -qm by-the-user; git gc -q; true"
	// fires is a program that leaves a trace.
	fires = `printf '#!/bin/sh\necho fired >>"$FIRED"\nexit 1\n'`
)

// hostileRepositories are sessions on a user's repositories: the setup, what the session does, and
// what the user does then.
var hostileRepositories = map[string]struct {
	setup, session, look string
	// want are the prefixes of what is renamed.
	want []string
}{
	"packed-refs leads out": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one`,
		session: `cd r; git update-ref 'refs/heads/$(touch${IFS}x)' HEAD; rm -f .git/packed-refs; ln -s "$FIRED" .git/packed-refs; ln -s "$HOME/victim" .git/packed-refs.lock || true; rm .git/packed-refs.lock`,
		look:    "cd r; " + gitLook, want: []string{"r/.git"},
	},
	"COMMIT_EDITMSG leads out": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one`,
		session: `cd r; ln -sf "$HOME/victim" .git/COMMIT_EDITMSG; echo 'touch x' >.git/SQUASH_MSG; echo x >f`,
		look:    "cd r; git add f; git commit -q", want: []string{"r/.git"},
	},
	"a dangling index": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one`,
		session: `cd r; rm -f .git/index; ln -s "$HOME/victim" .git/index; echo x >f`,
		look:    "cd r; " + gitLook, want: []string{"r/.git"},
	},
	"a log with another name": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one; : >"$B/victim"`,
		session: `cd r; rm .git/logs/HEAD; ln ../victim .git/logs/HEAD`,
		look:    `cd r; git commit -q --allow-empty -m two; [ -s ../victim ] && echo x >"$FIRED"`, want: []string{"r/.git"},
	},
	"hooks made a symlink": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one`,
		session: `cd r; mkdir h; ` + fires + ` >h/pre-commit; chmod +x h/pre-commit; rm -rf .git/hooks; ln -s ../h .git/hooks`,
		look:    "cd r; git commit -q --allow-empty -m two", want: []string{"r/.git"},
	},
	"info made a symlink": {
		setup:   `git init -q r; cd r; git config filter.x.clean 'echo fired >>"$FIRED"; cat'; echo x >f; git add .; git commit -qm one`,
		session: `cd r; mkdir i; echo '* filter=x' >i/attributes; rm -rf .git/info; ln -s ../i .git/info; echo y >f`,
		look:    "cd r; " + gitLook, want: []string{"r/.git"},
	},
	"an included file": {
		setup:   `git init -q r; cd r; git config include.path ../../team.inc; printf '[user]\n\tname = a\n' >../team.inc; git commit -q --allow-empty -m one`,
		session: `printf '[core]\n\tfsmonitor = %s\n' "$B/p" >team.inc; ` + fires + ` >p; chmod +x p`,
		look:    "cd r; " + gitLook, want: []string{"team.inc"},
	},
	"an included file of the workspace's own repository": {
		setup:   `git init -q .; git config include.path ../conf/team.inc; mkdir conf; printf '[user]\n\tname = a\n' >conf/team.inc; git commit -q --allow-empty -m one`,
		session: `mv conf conf2; mkdir conf; printf '[core]\n\tfsmonitor = %s\n' "$B/p" >conf/team.inc; ` + fires + ` >p; chmod +x p`,
		look:    gitLook, want: []string{"conf/team.inc"},
	},
	"an included file that was not there": {
		setup:   `git init -q .; git config include.path ../local.inc; git commit -q --allow-empty -m one`,
		session: `printf '[core]\n\tfsmonitor = %s\n' "$B/p" >local.inc; ` + fires + ` >p; chmod +x p`,
		look:    gitLook, want: []string{"local.inc"},
	},
	"what an included file includes": {
		setup:   `git init -q .; git config include.path ../a.inc; printf '[include]\n\tpath = b.inc\n' >a.inc; git commit -q --allow-empty -m one`,
		session: `printf '[core]\n\tfsmonitor = %s\n' "$B/p" >b.inc; ` + fires + ` >p; chmod +x p`,
		look:    gitLook, want: []string{"b.inc"},
	},
	"an included file by a symlink": {
		setup:   `git init -q .; git config include.path ../conf/team.inc; mkdir conf; : >conf/team.inc; git commit -q --allow-empty -m one`,
		session: `mkdir conf2; printf '[core]\n\tfsmonitor = %s\n' "$B/p" >conf2/team.inc; rm -rf conf; ln -s conf2 conf; ` + fires + ` >p; chmod +x p`,
		look:    gitLook, want: []string{"conf"},
	},
	"hooksPath": {
		setup:   `git init -q .; git config core.hooksPath .husky/_; mkdir -p .husky/_; git commit -q --allow-empty -m one`,
		session: fires + ` >.husky/_/post-index-change; chmod +x .husky/_/post-index-change; echo x >f`,
		look:    gitLook, want: []string{".husky/_/post-index-change"},
	},
	"hooksPath that is changed": {
		setup:   `git init -q r; cd r; git config core.hooksPath ../hooks; mkdir ../hooks; printf '#!/bin/sh\n. "$(dirname "$0")/h"\n' >../hooks/pre-commit; : >../hooks/h; chmod +x ../hooks/*; git commit -q --allow-empty -m one`,
		session: fires + ` >hooks/h`,
		look:    "cd r; git commit -q --allow-empty -m two", want: []string{"hooks/h"},
	},
	"fsmonitor": {
		setup:   `git init -q .; git config core.fsmonitor ./tools/watch; mkdir tools; printf '#!/bin/sh\nexit 1\n' >tools/watch; chmod +x tools/watch; git commit -q --allow-empty -m one`,
		session: fires + ` >tools/watch`,
		look:    gitLook, want: []string{"tools/watch"},
	},
	"a filter": {
		setup:   `git init -q r; cd r; git config filter.x.clean 'sh ../filter.sh'; echo cat >../filter.sh; echo '* filter=x' >.gitattributes; echo x >f; git add .; git commit -qm one`,
		session: `(` + fires + `; echo cat) >filter.sh; echo y >r/f`,
		look:    "cd r; " + gitLook, want: []string{"filter.sh"},
	},
	"a rebase to be continued": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one; git commit -q --allow-empty -m two`,
		session: `cd r; GIT_SEQUENCE_EDITOR='printf "break\nexec echo fired >>\"\$FIRED\"\n" >' git rebase -q -i --keep-empty HEAD~1`,
		look:    "cd r; git rebase --continue", want: []string{"r/.git"},
	},
	"below a name that is not UTF-8": {
		session: `d=$(printf 'a\377b'); git init -q "$d"; ` + fires + ` >p; chmod +x p; git -C "$d" config core.fsmonitor "$B/p"`,
		look:    `cd "$(printf 'a\377b')"; ` + gitLook, want: []string{`a\xffb/.git`},
	},
	"in what was quarantined": {
		session: `git init -q r; cd r; git config core.worktree ..; git config core.fsmonitor "$B/p"; ` + fires + ` >../p; chmod +x ../p`,
		look:    `for d in r/.git*; do (cd "$d" && git status); done`, want: []string{"r/.git"},
	},
	"a submodule named as what may differ": {
		setup:   `mkdir l; git init -q l; git -C l commit -q --allow-empty -m l; git init -q r; cd r; git -c protocol.file.allow=always submodule --quiet add --name a/refs ../l sub; git commit -qm one`,
		session: `cd r; git config -f .git/modules/a/refs/config core.fsmonitor "$B/p"; ` + fires + ` >../p; chmod +x ../p`,
		look:    "cd r; " + gitLook, want: []string{"r/.git", "r/sub/.git"},
	},
	"a commondir": {
		setup:   `git init -q r; cd r; git commit -q --allow-empty -m one; cp -r .git ../common; rm ../common/HEAD; echo ../../common >.git/commondir; git status`,
		session: `git config -f common/config core.fsmonitor "$B/p"; ` + fires + ` >p; chmod +x p`,
		look:    "cd r; " + gitLook, want: []string{"r/.git"},
	},
	"a Mercurial repository": {
		session: `hg init r; printf '[hooks]\npre-status = echo fired >>"$FIRED"\n' >r/.hg/hgrc`,
		look:    "cd r; hg status", want: []string{"r/.hg"},
	},
	"a Mercurial repository at the top": {
		session: `hg init .; printf '[hooks]\npre-status = echo fired >>"$FIRED"\n' >.hg/hgrc`,
		look:    "hg status", want: []string{".hg"},
	},
	"a Mercurial repository's configuration": {
		setup:   `hg init r`,
		session: `printf '[hooks]\npre-status = echo fired >>"$FIRED"\n' >r/.hg/hgrc`,
		look:    "cd r; hg status", want: []string{"r/.hg"},
	},
	"where a Mercurial repository's configuration is shared": {
		setup:   `hg init r; hg init s`,
		session: `printf '[hooks]\npre-status = echo fired >>"$FIRED"\n' >s/.hg/hgrc; hg init q; printf '[hooks]\npre-status = echo fired >>"$FIRED"\n' >q/.hg/hgrc`,
		look:    "cd s && hg status; cd ../q && hg status", want: []string{"q/.hg", "s/.hg"},
	},
}

// TestHostileRepositoriesRunNothing: whatever a session makes of repositories, nothing of it runs on
// the host or writes outside the workspace. The control does the same without a session.
func TestHostileRepositoriesRunNothing(t *testing.T) {
	for _, name := range []string{"git", "hg"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs git and hg on the host")
		}
	}
	for name, tt := range hostileRepositories {
		t.Run(name, func(t *testing.T) {
			control := newBench(t, plantTurns)
			control.host(tt.setup)
			control.fired()
			control.host(tt.session)
			control.fired()
			if out := control.host(tt.look); !control.fired() {
				t.Fatalf("control: nothing runs where the repository is left as it is: %s", out)
			}
			b := newBench(t, plantTurns)
			setup := b.host(tt.setup)
			var session string
			b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
				session = b.host(tt.session)
				return sandbox.ExitStatus{}
			}
			r := b.ends()
			b.fired()
			out := b.host(tt.look)
			if b.fired() {
				t.Errorf("the host ran what a session wrote: %s\nbefore: %s\nthe session: %s", out, setup, session)
			}
			got := slices.Compact(slices.Sorted(slices.Values(paths(r.Quarantined))))
			if !slices.Equal(got, tt.want) || r.ExitStatus != OutcomeDone {
				t.Errorf("status %d, quarantined %+v, want %q", r.ExitStatus, r.Quarantined, tt.want)
			}
		})
	}
}

// harmlessRepositories are sessions after which nothing is renamed.
var harmlessRepositories = map[string]struct{ setup, session string }{
	"work in a nested repository": {
		setup: `git init -q r; cd r; echo x >f; git add .; git commit -qm one`,
		session: `cd r; set -e; echo y >f; git add .; git commit -qm two; git branch side; git tag v1; git tag -a -m t v2; echo z >f; git stash -q; git stash pop -q
			git switch -qc topic; git commit -qam three; git switch -q -; git merge -q topic; git gc -q; git commit-graph write 2>/dev/null; git bisect start; git bisect reset; git notes add -m n; git repack -adq; git pack-refs --all`,
	},
	"hard links of a local clone": {
		setup:   `git init -q r; cd r; echo x >f; git add .; git commit -qm one; git clone -q . ../c`,
		session: `cd c; echo y >f; git commit -qam two`,
	},
	"work in a Mercurial repository": {
		setup:   `hg init r; cd r; echo x >f; hg --config ui.username=a commit -qAm one`,
		session: `cd r; set -e; echo y >f; hg --config ui.username=a commit -qm two; hg update -q 0; hg bookmark b; hg status`,
	},
	"symlinks that were there": {
		setup:   `git init -q r; cd r; mkdir ../o; mv .git/objects ../o/; ln -s ../../o/objects .git/objects; git commit -q --allow-empty -m one`,
		session: `cd r; git commit -q --allow-empty -m two`,
	},
	"an included file that stays": {
		setup:   `git init -q .; git config include.path ../team.inc; : >team.inc; git config core.hooksPath hooks; mkdir hooks; : >hooks/pre-commit`,
		session: `cp team.inc t; mv t team.inc; echo x >f; mkdir -p src; echo y >src/main.c`,
	},
	"a directory without search for anybody": {setup: `mkdir d; chmod 600 d`, session: `echo x >f`},
}

// TestOrdinaryWorkIsNotQuarantined: otherwise nobody would read the reports.
func TestOrdinaryWorkIsNotQuarantined(t *testing.T) {
	for _, name := range []string{"git", "hg"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs git and hg on the host")
		}
	}
	for name, tt := range harmlessRepositories {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, plantTurns)
			b.host(tt.setup)
			var session string
			b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
				session = b.host(tt.session)
				return sandbox.ExitStatus{}
			}
			r := b.ends()
			if len(r.Quarantined) > 0 || r.ExitStatus != OutcomeDone {
				t.Errorf("status %d, quarantined %+v: %s", r.ExitStatus, r.Quarantined, session)
			}
			if !strings.HasSuffix(session, "(<nil>)") {
				t.Errorf("the session failed: %s", session)
			}
		})
	}
}

// TestNoBoundHidesARepository: there are more bytes of names than a walk takes, and more unreadable
// directories than a list holds.
func TestNoBoundHidesARepository(t *testing.T) {
	t.Run("names", func(t *testing.T) {
		b := newBench(t, plantTurns)
		long := strings.Repeat("n", 250)
		b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			deep := filepath.Join(slices.Repeat([]string{long}, 14)...)
			if err := os.MkdirAll(filepath.Join(b.dir, deep), 0o755); err != nil {
				t.Error(err)
				return sandbox.ExitStatus{Code: 1}
			}
			for i := range workspace.DefaultMaxTextBytes/len(deep) + 100 {
				if err := os.Symlink("x", filepath.Join(b.dir, deep, fmt.Sprint(i))); err != nil {
					t.Error(err)
					break
				}
			}
			return b.plants("zzz/.git")(ctx, box, cmd)
		}
		r := b.ends()
		if b.exists("zzz/.git") || !slices.Contains(paths(r.Quarantined), "zzz/.git") || r.ExitStatus != OutcomeDone {
			t.Errorf("status %d, quarantined %+v", r.ExitStatus, r.Quarantined)
		}
		if r.Incomplete {
			t.Error("the report is incomplete")
		}
		dir, err := workspace.OpenDir(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		reader, err := workspace.NewReader(dir, workspace.ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := reader.List(t.Context(), ".", workspace.DefaultMaxDepth)
		if err != nil || !list.Truncated {
			t.Errorf("control: a list has all of it: %d entries, %v", len(list.Entries), err)
		}
	})
	t.Run("closed directories", func(t *testing.T) {
		if asUser(t) {
			return
		}
		const many = 10_000
		b := newBench(t, plantTurns)
		b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			for i := range many {
				dir := filepath.Join(b.dir, fmt.Sprint("d", i))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Error(err)
				}
				if i == many/2 {
					b.plants(fmt.Sprint("d", i, "/.git"))(ctx, box, cmd)
				}
				if err := os.Chmod(dir, 0o111); err != nil {
					t.Error(err)
				}
			}
			return sandbox.ExitStatus{}
		}
		r := b.ends()
		had := b.openUp()
		if repo := fmt.Sprint("d", many/2, "/.git"); b.exists(repo) || !slices.Equal(paths(r.Quarantined), []string{repo}) || r.ExitStatus != OutcomeDone {
			t.Errorf("status %d, quarantined %+v", r.ExitStatus, r.Quarantined)
		}
		for dir, mode := range had {
			if dir != "." && !strings.Contains(dir, "/") && mode != 0o111 {
				t.Fatalf("%s has mode %v", dir, mode)
			}
		}
	})
}

// TestWhatIsNotVouchedForComesFirst: what could not be renamed or examined is listed first and in
// full, and has its own exit status.
func TestWhatIsNotVouchedForComesFirst(t *testing.T) {
	b := newBench(t, plantTurns)
	b.backend.OnApply = func(_ *fakesandbox.Sandbox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		if strings.HasPrefix(op.Path, "stuck") {
			return workspace.Change{}, &workspace.Error{Kind: workspace.KindIO, Path: op.Path, Detail: "no"}
		}
		return do()
	}
	b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		for i := range record.MaxListed + 20 {
			b.plants(fmt.Sprintf("a%03d/.git", i))(ctx, box, cmd)
			b.plants(fmt.Sprintf("stuck%03d/.git", i))(ctx, box, cmd)
		}
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	if r.ExitStatus != OutcomeUnvouched {
		t.Errorf("status %d", r.ExitStatus)
	}
	ended := of[record.SessionEnded](t, records)[0]
	if len(ended.Quarantined) != record.MaxListed+20 {
		t.Errorf("%d are listed", len(ended.Quarantined))
	}
	for _, q := range ended.Quarantined {
		if q.To != "" || !strings.HasPrefix(q.Path, "stuck") {
			t.Errorf("listed first: %+v", q)
		}
	}
	if len(r.Quarantined) != 2*(record.MaxListed+20) {
		t.Errorf("%d in all", len(r.Quarantined))
	}
}

// TestAPathThatIsTooLongIsReported: entries too deep for any path are not vouched for.
func TestAPathThatIsTooLongIsReported(t *testing.T) {
	b := newBench(t, plantTurns)
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		dir, err := unix.Open(b.dir, unix.O_DIRECTORY, 0)
		for range 20 {
			name := strings.Repeat("n", 250)
			err = errors.Join(err, unix.Mkdirat(dir, name, 0o755))
			below, opened := unix.Openat(dir, name, unix.O_DIRECTORY, 0)
			err = errors.Join(err, opened, unix.Close(dir))
			dir = below
		}
		if err = errors.Join(err, unix.Mkdirat(dir, ".git", 0o755), unix.Close(dir)); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r := b.ends()
	if r.ExitStatus != OutcomeUnvouched || len(r.Quarantined) != 1 || r.Quarantined[0].To != "" {
		t.Errorf("status %d, %+v", r.ExitStatus, r.Quarantined)
	}
}

// TestASymlinkedConfigurationIsQuarantined: no session could begin where .caisson can't be protected.
func TestASymlinkedConfigurationIsQuarantined(t *testing.T) {
	b := newBench(t, plantTurns)
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.host(`ln -s /nowhere .caisson; mkdir sub; mkfifo sub/.caisson; mkdir own; mkdir own/.caisson`)
		return sandbox.ExitStatus{}
	}
	r := b.ends()
	if want := []string{".caisson", "sub/.caisson"}; !slices.Equal(paths(r.Quarantined), want) || b.exists(".caisson") || !b.exists("own/.caisson") {
		t.Errorf("quarantined %+v, want %q", r.Quarantined, want)
	}
}

// TestExitStatusOfAnUnvouchedWorkspace: it beats success, limits and missing approvals, but not an
// interruption.
func TestExitStatusOfAnUnvouchedWorkspace(t *testing.T) {
	left := []record.Quarantined{{Path: "a/.git", Why: "no"}}
	for reason, want := range map[string]int{"answered": 58, "no_turn": 58, "limit": 58, "no_approver": 58, "cancelled": 130, "sandbox_lost": 45, "provider_failed": 1} {
		var r Report
		r.Reason, r.Quarantined = loop.StopReason(reason), left
		if got := OutcomeCode(r); got != want {
			t.Errorf("%s: %d, want %d", reason, got, want)
		}
		r.Unapproved, r.Quarantined = 1, []record.Quarantined{{Path: "a/.git", To: "b"}}
		if got := OutcomeCode(r); got == 58 {
			t.Errorf("%s: renamed, and %d", reason, got)
		}
	}
}
