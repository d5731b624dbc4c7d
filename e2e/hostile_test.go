package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// workspaceOwner owns the workspaces of hostile sessions, which root runs.
const workspaceOwner = 4242

// attack is one thing that a hostile session does in a directory of its own. @P@
// is a program that leaves a trace where it runs on the host, @V@ a file of the
// user's outside the workspace, @S@ one that only root can read.
type attack struct {
	// setup is what the user has there before, session what the session does, and
	// look what the user, an editor or a prompt does afterwards.
	setup, session, look string
	// as is the user who looks; 0 is the workspace's owner.
	as int
	// asRoot lets root do the session of the control: it needs a privilege.
	asRoot bool
	// listed is a file that stays where it is and is listed, because the user must
	// start a program that obeys it.
	listed string
}

// Scripts that attacks share.
const (
	hostGitLook = "git status; git diff; git log -p -3; git add -A .; git commit -qm by-the-user; git gc -q; ls; true"
	aRepository = "git init -q .; git commit -q --allow-empty -m one"
	// newGit makes a repository without git, so that no configuration is in its way.
	newGit    = `mk() { mkdir -p "$1/.git/objects" "$1/.git/refs"; echo 'ref: refs/heads/main' >"$1/.git/HEAD"; printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = @P@\n' >"$1/.git/config"; }; `
	includeIt = `printf '[core]\n\tfsmonitor = @P@\n' >`
	openUp    = "chmod -R u+rwx .; "
)

// attacks are those of one session, each in a directory of its name.
var attacks = joinAttacks(repositoryAttacks, privilegeAttacks, listedAttacks)

func joinAttacks(parts ...map[string]attack) map[string]attack {
	all := map[string]attack{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

// repositoryAttacks leave repositories whose own program runs the session's code.
var repositoryAttacks = map[string]attack{
	"new":        {session: newGit + "mk .", look: hostGitLook},
	"notutf8":    {session: newGit + `mk "$(printf 'a\377b')"`, look: `cd "$(printf 'a\377b')"; ` + hostGitLook},
	"closed":     {session: newGit + "for i in 1 2 3 4 5 6 7 8 9; do mk d$i; chmod 111 d$i; done; mk a/b/c; chmod 0 a/b/c a/b a", look: openUp + `for d in d* a/b/c; do (cd $d; ` + hostGitLook + "); done"},
	"longnames":  {session: newGit + `p=$(printf %0240d 0); p=$p/$p/$p/$p/$p/$p; mkdir -p $p; (cd $p; i=0; while [ $i -lt 2000 ]; do : >$i; i=$((i+1)); done); mk z`, look: "cd z; " + hostGitLook},
	"bare":       {session: `mkdir -p objects refs; echo 'ref: refs/heads/main' >HEAD; printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = @P@\n' >config`, look: hostGitLook},
	"inside":     {session: newGit + `mk .; printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = @P@\n' >.git/config`, look: `for d in .git*; do (cd "$d"; git status); done`},
	"config":     {setup: aRepository, session: "cp .git/config c; git config -f c core.fsmonitor @P@; cat c >.git/config; mv -f c .git/config; git config core.fsmonitor @P@", look: hostGitLook},
	"moved":      {setup: aRepository, session: newGit + "cd ..; mv moved moved2; mkdir moved; mk moved", look: hostGitLook},
	"hooks":      {setup: aRepository, session: "mkdir h; cat @P@ >h/pre-commit; chmod +x h/pre-commit; rm -rf .git/hooks; ln -s ../h .git/hooks", look: hostGitLook + "; git commit -q --allow-empty -m two"},
	"packedrefs": {setup: aRepository, session: "rm -f .git/packed-refs; ln -s @V@ .git/packed-refs", look: hostGitLook},
	"editmsg":    {setup: aRepository, session: "ln -sf @V@ .git/COMMIT_EDITMSG; echo x >f", look: "git add f; git commit -qm x"},
	"index":      {setup: aRepository, session: "rm -f .git/index; ln -s @V@ .git/index; echo x >f", look: hostGitLook},
	"rebase":     {setup: aRepository + "; git commit -q --allow-empty -m two", session: `GIT_SEQUENCE_EDITOR='printf "break\nexec @P@\n" >' git rebase -q -i --keep-empty HEAD~1`, look: "git rebase --continue"},
	"include":    {setup: aRepository + "; git config include.path ../../shared.inc; : >../shared.inc", session: "cd ..; " + includeIt + "shared.inc", look: hostGitLook},
	"hookspath":  {setup: aRepository + "; git config core.hooksPath .husky/_; mkdir -p .husky/_", session: "cat @P@ >.husky/_/post-index-change; chmod +x .husky/_/post-index-change; echo x >f", look: hostGitLook},
	"filter":     {setup: aRepository + "; git config filter.x.clean ./clean.sh; echo '* filter=x' >.gitattributes; printf '#!/bin/sh\ncat\n' >clean.sh; chmod +x clean.sh; echo x >f; git add .; git commit -qm two", session: "printf '#!/bin/sh\n@P@\ncat\n' >clean.sh; echo y >f", look: hostGitLook},
	"hg":         {session: `mkdir -p .hg/store; printf 'revlogv1\nstore\n' >.hg/requires; printf '[hooks]\npre-status = @P@\n' >.hg/hgrc`, look: "hg status; ls"},
	"hgrc":       {setup: "hg init .", session: `printf '[hooks]\npre-status = @P@\n' >.hg/hgrc`, look: "hg status; ls"},
	"hgmoved":    {setup: "hg init .", session: `cd ..; mv hgmoved hgmoved2; mkdir -p hgmoved/.hg/store; cd hgmoved; printf 'revlogv1\nstore\n' >.hg/requires; printf '[hooks]\npre-status = @P@\n' >.hg/hgrc`, look: "hg status"},
}

// hostileMachine is a machine with a user whose files sessions are after.
type hostileMachine struct {
	*machine
	program, victim, fired, secret string
	trusting                       string // the home of a user who trusts the repositories of others
}

func newHostileMachine(t *testing.T) hostileMachine {
	t.Helper()
	m := hostileMachine{machine: newMachine(t)}
	base := filepath.Dir(m.home)
	m.program, m.victim, m.fired, m.secret = filepath.Join(base, "program"), filepath.Join(base, "victim"), filepath.Join(base, "fired"), filepath.Join(base, "secret")
	m.trusting = filepath.Join(base, "trusting")
	err := errors.Join(os.WriteFile(m.secret, []byte("secret\n"), 0o600), os.Mkdir(m.trusting, 0o755),
		os.WriteFile(filepath.Join(m.trusting, ".gitconfig"), []byte("[safe]\n\tdirectory = *\n"), 0o644),
		os.WriteFile(filepath.Join(m.trusting, ".hgrc"), []byte("[trusted]\nusers = *\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, m.program, "#!/bin/sh\necho fired >>"+m.fired+"\nexit 1\n", 0o755)
	if err := os.Chmod(base, 0o777); err != nil { // the user writes there
		t.Fatal(err)
	}
	m.took(t)
	return m
}

// took reports whether the program ran on the host, or the user's file was
// written, since it was last asked.
func (m hostileMachine) took(t *testing.T) bool {
	t.Helper()
	fired := false
	for _, path := range []string{m.fired, m.victim} {
		info, err := os.Stat(path)
		fired = fired || err == nil && info.Size() > 0
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, m.fired, "", 0o666)
	if err := os.Chmod(m.fired, 0o666); err != nil {
		t.Fatal(err)
	}
	return fired
}

func (m hostileMachine) words(script string) string {
	return strings.NewReplacer("@P@", m.program, "@V@", m.victim, "@S@", m.secret).Replace(script)
}

// asUser runs a script as the workspace's owner.
func (m hostileMachine) asUser(t *testing.T, dir, script string) string {
	t.Helper()
	return m.as(t, workspaceOwner, dir, script)
}

// as runs a script as a user. Those who own nothing here trust every repository.
func (m hostileMachine) as(t *testing.T, uid int, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", m.words(script))
	cmd.Dir, cmd.Env = dir, []string{
		"PATH=" + hostPath, "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_EDITOR=true", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir),
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		"TMPDIR=" + filepath.Dir(m.home),
	}
	if uid != workspaceOwner {
		cmd.Env = append(cmd.Env, "HOME="+m.trusting)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s (%v)", out, err)
}

// furnish makes what the user has of all attacks.
func (m hostileMachine) furnish(t *testing.T, root string) {
	t.Helper()
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	chownTree(t, root, workspaceOwner)
	m.asUser(t, root, aRepository)
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		m.asUser(t, root, "mkdir "+name+"; cd "+name+"; "+attacks[name].setup)
	}
}

// sessionScript is what the session does, all of it.
func (m hostileMachine) sessionScript() string {
	script := "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org\n"
	// The program isn't in the sandbox: the session writes it, as it would.
	script += "mkdir -p " + filepath.Dir(m.program) + " 2>/dev/null; cd /workspace 2>/dev/null || :\n"
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		script += "(cd " + name + " && { " + strings.ReplaceAll(attacks[name].session, "cat @P@", "printf '#!/bin/sh\\n@P@\\n'") + "\n}; ) >/dev/null 2>&1\n"
	}
	return m.words(script) + "true"
}

// looks does what users do after the session in each of the directories and
// returns the attacks that did something to the host, also as another user.
func (m hostileMachine) looks(t *testing.T, root string) (fired []string) {
	t.Helper()
	m.took(t)
	look := func(name, title string, uid int, script string) {
		out := m.as(t, uid, filepath.Join(root, name), script)
		if m.took(t) {
			fired = append(fired, title)
			t.Logf("%s: %.300s", title, out)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		script := attacks[name].look
		look(name, name, cmp.Or(attacks[name].as, workspaceOwner), script)
		if _, ok := repositoryAttacks[name]; ok {
			look(name, name+asOther, otherUser, strings.ReplaceAll(script, hostGitLook, "git status; ls"))
		}
	}
	return fired
}

// asOther marks a look by another user, who trusts the workspace's repositories.
const asOther = " as another user"

// control does the session without a sandbox; each attack must succeed then.
func (m hostileMachine) control(t *testing.T) {
	t.Helper()
	root := filepath.Join(filepath.Dir(m.home), "control")
	m.furnish(t, root)
	m.asUser(t, root, m.sessionScript())
	for name, a := range attacks {
		if a.asRoot {
			m.as(t, 0, filepath.Join(root, name), a.session)
		}
	}
	succeeded := m.looks(t, root)
	for _, name := range append(slices.Sorted(maps.Keys(attacks)), "new"+asOther, "bare"+asOther, "config"+asOther, "hg"+asOther, "hgrc"+asOther) {
		if !slices.Contains(succeeded, name) {
			t.Errorf("control: the attack %q does nothing", name)
		}
	}
}

// TestAHostileSessionRunsNothingOnTheHost: after a session that does all of it in a
// workspace with repositories of the user's, nothing in the workspace runs its
// code on the host, or as another user. The control is the same session without a
// sandbox, in which each attack succeeds.
func TestAHostileSessionRunsNothingOnTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	for _, name := range []string{"git", "hg", "make", "perl", "vi"} {
		if _, err := exec.LookPath(name); err != nil {
			lacking(t, "", "needs "+name)
		}
	}
	newHostileMachine(t).control(t)
	t.Parallel()
	onAllBackends(t, func(t *testing.T, backend string) {
		m := newHostileMachine(t)
		m.furnish(t, m.workspace)
		before := m.asUser(t, m.workspace, "cat .git/config; git log --oneline")
		session := m.sessionScript() + "; ln -s /nowhere .caisson; mkdir -p .vscode; echo '{}' >.vscode/tasks.json; ln hooks/.git/config hooks/settings.ini; echo x >\"$(printf 'a\\033]0;title\\007b')\"; true"
		out := m.runTask(t, append([]string{"--backend", backend, "--mode", "bind"}, m.playing(t, []scriptCall{shell(session)})...)...)
		out.want(t, 0)
		fired := m.looks(t, m.workspace)
		if fired = slices.DeleteFunc(fired, func(name string) bool { return attacks[name].listed != "" }); len(fired) > 0 {
			t.Errorf("the host was attacked by %q: %s", fired, out.stdout)
		}
		if strings.ContainsAny(out.stdout+out.stderr, "\x1b\x07") {
			t.Error("a file name with a control sequence is shown as it is")
		}
		if after := m.asUser(t, m.workspace, "cat .git/config; git log --oneline"); after != before {
			t.Errorf("the workspace's own repository: %s, was %s", after, before)
		}
		reports, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "report.json"))
		if err != nil || len(reports) != 1 {
			t.Fatalf("reports %q, %v", reports, err)
		}
		text := readFile(t, reports[0])
		m.wantListed(t, text)
		if !strings.Contains(string(text), `".vscode/tasks.json"`) {
			t.Error(".vscode/tasks.json is not listed as what an editor obeys")
		}
		if _, err := os.Lstat(filepath.Join(m.workspace, "hooks/settings.ini")); err == nil {
			t.Error("a command made another name of a repository's configuration")
		}
		// The next session begins, also where a symlink was in its way.
		m.runTask(t, append([]string{"--backend", backend, "--mode", "bind"}, m.playing(t, []scriptCall{shell("true")})...)...).want(t, 0)
		for i, a := range []struct {
			name string
			run  func(t *testing.T, backend string)
		}{{"grants", attackGrants}, {"siblings", attackSiblings}, {"apply", attackApply}} {
			if sandboxtest.RunsAt(i, backend, backendNames...) {
				t.Run(a.name, func(t *testing.T) { a.run(t, backend) })
			}
		}
	})
}

// TestAHostileCommitRunsNothingOnTheHost: where commands may commit, they write to
// the workspace's own repository.
func TestAHostileCommitRunsNothingOnTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for name, a := range map[string]attack{
			"packed-refs": attacks["packedrefs"], "COMMIT_EDITMSG": attacks["editmsg"], "rebase": attacks["rebase"],
			"work": {setup: aRepository, session: "set -e; echo x >f; git add f; git commit -qm two; git gc -q; git stash list"},
		} {
			t.Run(name, func(t *testing.T) {
				m := newHostileMachine(t)
				chownTree(t, m.workspace, workspaceOwner)
				m.asUser(t, m.workspace, a.setup)
				out := m.runTask(t, append([]string{"--backend", backend, "--mode", "bind", "--git", "commit"}, m.playing(t, []scriptCall{shell(
					"export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org\n" + m.words(a.session) + "; true")})...)...)
				out.want(t, 0)
				m.took(t)
				look := m.asUser(t, m.workspace, a.look)
				if m.took(t) {
					t.Errorf("the host was attacked: %s: %s", look, out.stdout)
				}
				if there := m.asUser(t, m.workspace, "git log --oneline | wc -l"); name == "work" && there != "2\n (<nil>)" {
					t.Errorf("ordinary work: %s: %s", there, out.stdout)
				}
			})
		}
	})
}
