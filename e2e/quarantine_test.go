package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// plantings are what a command does once it has made a repository in a folder of
// the workspace, in that folder and above it, so that it is not renamed. Each
// leaves the way open to who knows the name.
var plantings = map[string]struct{ dir, script string }{
	"open":            {"sub", ":"},
	"not writable":    {"sub", "chmod 555 sub"},
	"not listable":    {"sub", "chmod 311 sub"},
	"no search":       {"sub", "chmod 000 sub"},
	"chain":           {"a/b/c/d", "chmod 555 a/b/c/d a/b/c a/b a"},
	"chain unseen":    {"a/b/c/d", "chmod 111 a/b/c/d a/b/c a/b a"},
	"sticky":          {"sub", "chmod 1555 sub"},
	"below what is 0": {"a/b", "chmod 555 a/b; chmod 000 a"},
}

// modesOf are the modes of the folders above a repository.
func modesOf(t *testing.T, root, dir string) string {
	t.Helper()
	var all []string
	for ; dir != "."; dir = filepath.Dir(dir) {
		info, err := os.Lstat(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(dir, " ", info.Mode()))
	}
	return strings.Join(all, "\n")
}

// TestNewRepositoriesRunNothing: whatever modes a command gives the folders above
// a repository that it made, the owner's git does not run what that says, and the
// modes stay. The control is the same done without a sandbox.
func TestNewRepositoriesRunNothing(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for _, u := range []struct{ runner, owner int }{{0, 4242}, {ordinary, ordinary}} {
			for name, p := range plantings {
				t.Run(fmt.Sprintf("runner %d/%s", u.runner, name), func(t *testing.T) {
					m := newMachine(t)
					if u.runner != 0 {
						m.become(t, uint32(u.runner), uint32(u.runner), engineGroups(t, backend)...)
					}
					program, fired := filepath.Join(filepath.Dir(m.home), "program"), filepath.Join(filepath.Dir(m.home), "fired")
					for path, content := range map[string]string{program: "#!/bin/sh\necho fired >>" + fired + "\nexit 1\n", fired: ""} {
						writeFile(t, path, content, 0o777)
						if err := os.Chmod(path, 0o777); err != nil {
							t.Fatal(err)
						}
					}
					control := filepath.Join(filepath.Dir(m.home), "control")
					if err := os.Mkdir(control, 0o755); err != nil {
						t.Fatal(err)
					}
					chownTree(t, m.workspace, u.owner)
					chownTree(t, control, u.owner)
					plant := fmt.Sprintf(`set -e; mkdir -p %[1]s/.git/objects %[1]s/.git/refs; echo 'ref: refs/heads/main' >%[1]s/.git/HEAD
						printf '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = %[2]s\n' >%[1]s/.git/config; touch %[1]s/f; %[3]s`, p.dir, program, p.script)
					asOwner := func(dir, script string) {
						cmd := exec.Command("sh", "-c", script)
						cmd.Dir, cmd.Env = dir, []string{"PATH=" + hostPath, "HOME=/nonexistent", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir)}
						cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.owner), Gid: uint32(u.owner)}}
						out, err := cmd.CombinedOutput()
						t.Logf("%s: %v %s", dir, err, out)
					}
					// Who looks at what they can't enter opens it first.
					look := "for d in a a/b; do [ ! -d $d ] || [ -x $d ] || chmod u+x $d; done; [ -x " + p.dir + " ] || chmod u+x " + p.dir + "; cd " + p.dir + " && git status"
					ran := func() bool {
						content := readFile(t, fired)
						return len(content) > 0
					}
					asOwner(control, plant)
					modes := modesOf(t, control, p.dir)
					asOwner(control, look)
					if !ran() {
						t.Fatal("the control does not run the program")
					}
					if err := os.Truncate(fired, 0); err != nil {
						t.Fatal(err)
					}

					out := m.runTask(t, append([]string{"--backend", backend, "--mode", "bind"}, m.playing(t, []scriptCall{shell(plant)})...)...)
					if out.status != 0 && u.runner != 0 && backend != "docker" {
						lacking(t, backend, fmt.Sprintf("this user can't run %s here: %s", backend, out.stderr))
					}
					out.want(t, 0)
					if got := modesOf(t, m.workspace, p.dir); got != modes {
						t.Errorf("modes are\n%s\nwant\n%s", got, modes)
					}
					if _, err := os.Lstat(filepath.Join(m.workspace, p.dir, ".git")); err == nil {
						t.Errorf("%s/.git is still there: %s", p.dir, tail(out.stdout, 1))
					}
					asOwner(m.workspace, look)
					if ran() {
						t.Error("the owner's git ran the program")
					}
				})
			}
		}
	})
}
