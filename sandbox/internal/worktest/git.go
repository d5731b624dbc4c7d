package worktest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
)

// makeRepository makes a repository of uid with two commits, a submodule and an
// uncommitted file.
func makeRepository(t testing.TB, dir string, uid int) {
	t.Helper()
	mustGit(t, dir, uid, `set -e; umask 022
		git init -q -b main .; echo one >a; echo one >b.t; mkdir d; echo d >d/f; git add .; git commit -qm one; echo two >>a; git commit -qam two
		git init -q -b main ../library; cd ../library; echo l >l; git add .; git commit -qm l; cd "$OLDPWD"
		git -c protocol.file.allow=always submodule --quiet add ../library sub; git commit -qm sub; rm -rf ../library; echo not committed >>b.t`)
}

// gitEnvironment is the environment of commands, and of a host's user without a
// git configuration. Both can commit.
func gitEnvironment(home string) []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C", "GIT_PAGER=cat",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
	}
}

// mustGit runs a script on the host as the workspace's owner.
func mustGit(t testing.TB, dir string, uid int, script string) string {
	t.Helper()
	out, err := hostGit(t, dir, uid, script)
	if err != nil {
		t.Fatalf("%s: %v: %s", firstLine(script), err, out)
	}
	return out
}

func hostGit(t testing.TB, dir string, uid int, script string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", script)
	cmd.Dir, cmd.Env = dir, gitEnvironment("/nonexistent")
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// GitModes are the ways of protecting a repository.
var GitModes = map[string]func(*sandbox.Spec){
	"ro":      func(s *sandbox.Spec) { s.Git = sandbox.GitReadOnly },
	"commit":  func(s *sandbox.Spec) { s.Git = sandbox.GitCommit },
	"overlay": func(s *sandbox.Spec) { s.Workspace.Mode = sandbox.ModeOverlay },
}

// Git works in a repository as usual, or reads it if it is read-only, in a
// sandbox that open creates. It checks that the host's repository changes only
// in mode commit.
func Git(t *testing.T, uid int, mode string, open func(t *testing.T, dir string) sandbox.Sandbox) {
	needRoot(t)
	dir := filepath.Join(hostDirectory(t, uid), "workspace")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Chown(dir, uid, uid))
	makeRepository(t, dir, uid)
	s := open(t, dir)
	before := mustGit(t, dir, uid, "git log --oneline --all; git status --short")
	if mode == "ro" {
		gitRead(t, s)
	} else {
		gitCommits(t, s)
	}
	after := mustGit(t, dir, uid, "git fsck --strict; git log --oneline --all; git status --short")
	if changed := !strings.Contains(after, before); changed != (mode == "commit") {
		t.Errorf("the host's repository: changed %v:\n%s\n%s", changed, before, after)
	}
}

// LinkedWorktree reads a linked worktree's repository in a sandbox that open
// creates, and checks that commands can't write it.
func LinkedWorktree(t *testing.T, uid int, open func(t *testing.T, dir string) sandbox.Sandbox) {
	needRoot(t)
	base := hostDirectory(t, uid)
	repository, dir := filepath.Join(base, "repository"), filepath.Join(base, "tree")
	must(t, os.Mkdir(repository, 0o755))
	must(t, os.Chown(repository, uid, uid))
	mustGit(t, repository, uid, `set -e; git init -q -b main .; echo one >a; git add .; git commit -qm one; git worktree add -q ../tree -b side; echo more >>../tree/a`)
	before := Tree(t, repository)
	s := open(t, dir)
	out, exit := gitInside(t, s, "set -e; cd /workspace; git status --short; git log --oneline | wc -l; git branch --show-current; git diff | tail -1; git blame a >/dev/null")
	if out != " M a\n1\nside\n+more\n" {
		t.Errorf("reading: %v: %q", exit.Status, out)
	}
	if out, exit := gitInside(t, s, "cd /workspace; git add a || git stash || git branch x || git config a.b c || echo x >/.caisson/git/hooks/pre-commit || echo x >.git || mv .git .git2"); exit.Status.Success() {
		t.Errorf("writing: %s", out)
	}
	must(t, s.Destroy(context.WithoutCancel(t.Context())))
	if diff := cmp.Diff(before, Tree(t, repository)); diff != "" {
		t.Errorf("the repository was changed: %s", diff)
	}
	if out := mustGit(t, dir, uid, "git status --short; git branch --show-current"); out != " M a\nside\n" {
		t.Errorf("the host's git: %q", out)
	}
}

// gitWork is ordinary work in a repository.
const gitWork = `set -e; cd /workspace
	git status --short; git add b.t; git commit -qm three; git branch side; git switch -q side; echo s >side.txt; git add side.txt; git commit -qm side
	git switch -q main; echo m >main.txt; git add main.txt; git commit -qm main; git merge -q -m merged side; git tag v1; git tag -a -m t v2
	echo dirty >>a; git stash -q; git stash pop -q; git checkout -q a; git mv d/f d/g; git commit -qm moved; git rebase -q --onto HEAD~1 HEAD~1 main
	git gc -q; git fsck --strict >/dev/null; git log --oneline | wc -l; git show --stat HEAD >/dev/null; git diff HEAD~2 --stat >/dev/null; git clean -fdqn`

func gitCommits(t *testing.T, s sandbox.Sandbox) {
	t.Helper()
	out, exit := gitInside(t, s, gitWork)
	if !exit.Status.Success() || !strings.HasSuffix(out, "8\n") {
		t.Errorf("ordinary work: %v: %s", exit.Status, out)
	}
}

// gitInside runs a script that can commit.
func gitInside(t *testing.T, s sandbox.Sandbox, script string) (string, sandbox.Exit) {
	t.Helper()
	return Shell(t, s, "export "+strings.Join(gitEnvironment("/home/agent")[2:], " ")+"\n"+script)
}

// hostile are sessions that try to make the host's git execute $M.
var hostile = map[string]string{
	"fsmonitor":            `git config core.fsmonitor "$M"`,
	"fsmonitor by hand":    `printf '[core]\n\tfsmonitor = %s\n' "$M" >>.git/config`,
	"hooksPath":            `mkdir h; cp "$M" h/post-index-change; git config core.hooksPath h; touch a`,
	"hook":                 `mkdir -p .git/hooks; cp "$M" .git/hooks/post-index-change; touch a`,
	"filter":               `git config filter.x.clean "$M"; echo '* filter=x' >.gitattributes; echo x >>a`,
	"process filter":       `git config filter.x.process "$M"; echo '* filter=x' >.gitattributes; echo x >>a`,
	"info/attributes":      `mkdir -p .git/info; echo '* filter=x' >.git/info/attributes; git config filter.x.clean "$M"; echo x >>a`,
	"textconv":             `git config diff.x.textconv "$M"; echo '*.t diff=x' >.gitattributes`,
	"diff driver":          `git config diff.x.command "$M"; echo '*.t diff=x' >.gitattributes`,
	"external diff":        `git config diff.external "$M"`,
	"include":              `git config include.path ../evil.cfg; printf '[core]\n\tfsmonitor = %s\n' "$M" >evil.cfg`,
	"includeIf":            `git config includeIf.gitdir:**.path ../evil.cfg; printf '[core]\n\tfsmonitor = %s\n' "$M" >evil.cfg`,
	"worktree config":      `git config extensions.worktreeConfig true; printf '[core]\n\tfsmonitor = %s\n' "$M" >.git/config.worktree`,
	"commondir":            `cp -r .git evil; git config -f evil/config core.fsmonitor "$M"; echo ../evil >.git/commondir`,
	"gitdir file":          `cp -r .git evil; git config -f evil/config core.fsmonitor "$M"; mv .git .git2; echo 'gitdir: evil' >.git`,
	"gitdir link":          `cp -r .git evil; git config -f evil/config core.fsmonitor "$M"; mv .git .git2; ln -s evil .git`,
	"moved away":           `mv .git .git2; cp -r .git2 .git; git config -f .git/config core.fsmonitor "$M"`,
	"removed":              `cp -r .git evil; rm -rf .git; mv evil .git; git config -f .git/config core.fsmonitor "$M"`,
	"exchanged":            `cp -r .git evil; git config -f evil/config core.fsmonitor "$M"; python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b".git", -100, b"evil", 2)'`,
	"a submodule's config": `git config -f .git/modules/sub/config core.fsmonitor "$M"; git config -f .git/modules/sub/config core.hooksPath /`,
	"a submodule's name":   `mv .git/modules .git/m2; cp -r .git/m2 .git/modules; git config -f .git/modules/sub/config core.fsmonitor "$M"`,
	"config by a link":     `cp .git/config evil; git config -f evil core.fsmonitor "$M"; rm -f .git/config; ln -s ../evil .git/config`,
	"config renamed over":  `cp .git/config evil; git config -f evil core.fsmonitor "$M"; mv -f evil .git/config`,
	"hooks renamed over":   `mv .git/hooks .git/h2; mkdir -p .git/hooks; cp "$M" .git/hooks/post-index-change; touch a`,
}

// harmless are sessions that don't make the host's git execute anything, protected
// or not.
var harmless = map[string]string{
	"driver that the config lacks":   `echo '* filter=absent diff=absent merge=absent' >.gitattributes; echo x >>a`,
	"alternates":                     `mkdir -p evil/info evil/pack; echo ../../evil >.git/objects/info/alternates || true`,
	"bare repository in a directory": `git init -q --bare bare; git config -f bare/config core.fsmonitor "$M"`,
	"excludes":                       `mkdir -p .git/info; echo '*' >.git/info/exclude || true`,
	"environment file":               `echo "GIT_DIR=evil" >.env; echo "export GIT_EXTERNAL_DIFF=$M" >.envrc`,
}

// userGit contains the git commands of a host's user or their prompt.
const userGit = "git status; git status --short; git diff; git diff HEAD; git log -p -3; git branch; git stash list; git show; git describe --all --dirty; true"

// marker is a program that leaves a trace if it is executed on the host.
type marker struct{ program, fired string }

func newMarker(t *testing.T, dir string) marker {
	t.Helper()
	m := marker{filepath.Join(dir, "marker"), filepath.Join(dir, "fired")}
	must(t, os.WriteFile(m.program, []byte("#!/bin/sh\necho fired >>"+m.fired+"\nexit 1\n"), 0o755))
	must(t, os.WriteFile(m.fired, nil, 0o666))
	must(t, os.Chmod(m.fired, 0o666))
	return m
}

// checkFired reports whether the marker fired since the last call.
func (m marker) checkFired(t *testing.T) bool {
	t.Helper()
	data, err := os.ReadFile(m.fired)
	must(t, err)
	must(t, os.Truncate(m.fired, 0))
	return len(data) > 0
}

// writeScript returns a hostile session's script. The marker's program is not
// in the sandbox, so the script writes it there first, as a session would.
func (m marker) writeScript(hostile string) string {
	return "M=" + m.program + "\ncat >prog <<'EOF'\n#!/bin/sh\necho fired >>" + m.fired + "\nexit 1\nEOF\nchmod 755 prog\n" +
		"cp() { if [ \"$1\" = \"$M\" ]; then command cp prog \"$2\"; else command cp \"$@\"; fi; }\n" + hostile + "\n"
}

// Hostile runs each session of the tables in a sandbox that open creates on a
// new repository, and uses the host's repository as a user would: nothing may
// be executed.
func Hostile(t *testing.T, uid int, open func(t *testing.T, dir string) sandbox.Sandbox) {
	needRoot(t)
	eachHostile(t, uid, func(t *testing.T, m marker, dir, _, script string) {
		s := open(t, dir)
		gitInside(t, s, "cd /workspace\n"+m.writeScript(script))
		// While the session lasts, and after it.
		for _, wait := range []func(){func() {}, func() { must(t, s.Destroy(context.WithoutCancel(t.Context()))) }} {
			wait()
			out, err := hostGit(t, dir, uid, userGit)
			if m.checkFired(t) {
				t.Errorf("the host's git ran a session's program: %v %s", err, out)
			}
			if _, gone := os.Stat(filepath.Join(dir, ".git/HEAD")); gone != nil {
				continue // if commands may write it, they may destroy it
			}
			if err != nil || strings.Contains(out, "fatal:") {
				t.Errorf("the host's git: %v: %s", err, out)
			}
		}
	})
}

// checkControls runs Hostile's sessions on the host. The hostile ones must run the
// marker; the harmless ones, and no session at all, must not. Otherwise Hostile
// proves nothing.
func checkControls(t *testing.T, uid int) {
	eachHostile(t, uid, func(t *testing.T, m marker, dir, name, script string) {
		_, fires := hostile[name]
		_, _ = hostGit(t, dir, uid, userGit) // only the marker counts
		if m.checkFired(t) {
			t.Error("the marker fires without a hostile session")
		}
		_, _ = hostGit(t, dir, uid, m.writeScript(script)) // the next run shows it
		m.checkFired(t)
		_, _ = hostGit(t, dir, uid, userGit) // a git that was led astray may fail
		if got := m.checkFired(t); got != fires {
			t.Errorf("fired %v, want %v", got, fires)
		}
	})
}

// eachHostile calls f for each row of the tables with a new repository.
func eachHostile(t *testing.T, uid int, f func(t *testing.T, m marker, dir, name, script string)) {
	base := hostDirectory(t, uid)
	m := newMarker(t, base)
	template := filepath.Join(base, "template")
	must(t, os.Mkdir(template, 0o755))
	must(t, os.Chown(template, uid, uid))
	makeRepository(t, template, uid)
	for _, table := range []map[string]string{hostile, harmless} {
		for name, script := range table {
			t.Run(name, func(t *testing.T) {
				Run(t, base, "rm -rf workspace; cp -a template workspace")
				f(t, m, filepath.Join(base, "workspace"), name, script)
			})
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
}

// hostDirectory returns a directory that uid and every other user can enter.
func hostDirectory(t *testing.T, uid int) string {
	t.Helper()
	base := t.TempDir()
	for dir := base; dir != os.TempDir() && strings.HasPrefix(dir, os.TempDir()); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.Chown(base, uid, uid))
	return base
}

// gitRead checks that a repository can be read and not written.
func gitRead(t *testing.T, s sandbox.Sandbox) {
	t.Helper()
	out, exit := gitInside(t, s, "set -e; cd /workspace; git status --short; git log --oneline | wc -l; git diff --stat; git show HEAD >/dev/null; git blame a >/dev/null")
	if !exit.Status.Success() || !strings.Contains(out, "M b.t\n3\n") {
		t.Errorf("reading: %v: %s", exit.Status, out)
	}
	if out, exit := gitInside(t, s, "cd /workspace; git add b.t || git commit -qam x || git stash || git tag x"); exit.Status.Success() {
		t.Errorf("writing: %s", out)
	}
}
