package workmount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

const session = "ses_workmount"

// fixture is a state directory and a workspace beside it.
type fixture struct {
	Options
	dir string // of the workspace
}

func newFixture(t *testing.T, uid, gid int) *fixture {
	t.Helper()
	base := t.TempDir()
	f := &fixture{dir: filepath.Join(base, "workspace")}
	f.StateDir = filepath.Join(base, "state")
	f.Dir = filepath.Join(f.StateDir, "sessions", session)
	must(t, os.MkdirAll(f.Dir, 0o700))
	must(t, os.Mkdir(f.dir, 0o755))
	must(t, os.Chmod(base, 0o755))
	must(t, os.Chmod(filepath.Dir(base), 0o755)) // the test's own, too
	if uid != os.Geteuid() || gid != os.Getegid() {
		must(t, os.Chown(f.dir, uid, gid))
	}
	instance, err := ownership.Instance(f.StateDir)
	must(t, err)
	self, err := ownership.Self(instance)
	must(t, err)
	f.Cleanup, err = ownership.OpenCleanupList(ownership.CleanupOptions{StateDir: f.StateDir, Backend: "docker", Session: session, Owner: self, Dir: f.Dir})
	must(t, err)
	t.Cleanup(func() { f.Cleanup.Close() })
	f.Holder, err = os.Executable()
	must(t, err)
	f.UserNamespaces, f.Log = new(UserNamespaces), zap.NewNop()
	t.Cleanup(f.UserNamespaces.Close)
	f.hold(t)
	return f
}

func (f *fixture) hold(t *testing.T) {
	t.Helper()
	held, err := os.Open(f.dir)
	must(t, err)
	t.Cleanup(func() { held.Close() })
	f.Workspace = sandbox.Workspace{Path: f.dir, Dir: held}
}

// prepare prepares, and checks at the end that nothing is left.
func (f *fixture) prepare(t *testing.T) *Mounts {
	t.Helper()
	p, err := Prepare(t.Context(), f.Options)
	must(t, err)
	t.Cleanup(func() { f.closed(t, p) })
	return p
}

func (f *fixture) closed(t *testing.T, p *Mounts) {
	t.Helper()
	for range 2 { // idempotent
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	f.clean(t)
}

func (f *fixture) clean(t *testing.T) {
	t.Helper()
	if left := f.Cleanup.Entries(); len(left) > 0 {
		t.Errorf("the cleanup list still has %v", left)
	}
	missing(t, filepath.Join(f.Dir, mountsDir))
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(data), f.Dir+"/") {
		t.Errorf("a mount below %s is left", f.Dir)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
}

// as runs a shell command as another user, like a container's command.
func as(t *testing.T, uid, gid uint32, script string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func ownerOf(t *testing.T, path string) ids {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return ids{int(st.Uid), int(st.Gid)}
}

// open lets another user reach the staging mounts, which only root can.
func (f *fixture) open(t *testing.T) {
	t.Helper()
	for _, d := range []string{f.StateDir, filepath.Dir(f.Dir), f.Dir, filepath.Join(f.Dir, mountsDir)} {
		must(t, os.Chmod(d, 0o755))
	}
	t.Cleanup(func() { os.Chmod(f.StateDir, 0o700) })
}

func TestFilesBelongToTheOwner(t *testing.T) {
	needRoot(t)
	for _, owner := range []ids{{1000, 1000}, {0, 0}, {4321, 0}, {10001, 10001}, {10001, 77}} {
		t.Run(owner.String(), func(t *testing.T) {
			f := newFixture(t, owner.uid, owner.gid)
			write(t, filepath.Join(f.dir, "third"), "x")
			must(t, os.Chown(filepath.Join(f.dir, "third"), 2222, 3333))
			must(t, os.Mkdir(filepath.Join(f.dir, "shared"), 0o755))
			must(t, os.Chown(filepath.Join(f.dir, "shared"), owner.uid, 5555))
			must(t, os.Chmod(filepath.Join(f.dir, "shared"), 0o775|os.ModeSetgid))
			p := f.prepare(t)
			f.open(t)
			if !p.IDMapped || len(p.Lost) != 0 {
				t.Fatalf("mapped %v, lost %q", p.IDMapped, p.Lost)
			}
			if (ids{p.OwnerUID, p.OwnerGID}) != owner || (ids{p.CommandUID, p.CommandGID}) != commandIDs {
				t.Errorf("owner %d:%d, commands %d:%d", p.OwnerUID, p.OwnerGID, p.CommandUID, p.CommandGID)
			}
			mount := p.Binds[0].Source
			must(t, as(t, 10001, 10001, "cd "+mount+" && echo hi >made && mkdir directory && echo x >shared/inner"))
			if got := ownerOf(t, filepath.Join(f.dir, "made")); got != owner {
				t.Errorf("file made through the mount belongs to %v, want %v", got, owner)
			}
			if got := ownerOf(t, filepath.Join(f.dir, "directory")); got != owner {
				t.Errorf("directory made through the mount belongs to %v, want %v", got, owner)
			}
			if got, want := ownerOf(t, filepath.Join(f.dir, "shared/inner")), (ids{owner.uid, 5555}); got != want {
				t.Errorf("file in a setgid directory belongs to %v, want %v", got, want)
			}
			if got, want := ownerOf(t, filepath.Join(mount, "third")), (ids{2222, 3333}); got != want {
				t.Errorf("file of third ids shows as %v, want %v", got, want)
			}
			if err := as(t, 10001, 10001, "echo x >"+filepath.Join(mount, "third")); err == nil {
				t.Error("a third user's file could be written")
			}
			// Positive control: without the map the same write must fail or
			// assign the file to 10001, or the test proves nothing.
			if owner != commandIDs {
				must(t, os.Chmod(f.dir, 0o777))
				must(t, as(t, 10001, 10001, "echo hi >"+filepath.Join(f.dir, "control")))
				if got := ownerOf(t, filepath.Join(f.dir, "control")); got == owner {
					t.Errorf("control: a file made beside the mount belongs to %v too", got)
				}
			}
		})
	}
}

func TestMountFlags(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	write(t, filepath.Join(f.dir, ".git/config"), "")
	must(t, os.Mkdir(filepath.Join(f.dir, ".caisson"), 0o755))
	p := f.prepare(t)
	for i, want := range []struct {
		target   string
		readOnly bool
	}{{"/workspace", false}, {"/workspace/.git", true}, {"/workspace/.caisson", true}} {
		b := p.Binds[i]
		if b.Target != want.target || b.ReadOnly != want.readOnly || !b.Dir {
			t.Errorf("bind %d is %+v, want %+v", i, b, want)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(b.Source, &st))
		flags := int64(unix.ST_NOSUID | unix.ST_NODEV)
		if want.readOnly {
			flags |= unix.ST_RDONLY
		}
		if st.Flags&flags != flags {
			t.Errorf("%s has flags %#x, want %#x", b.Target, st.Flags, flags)
		}
	}
	must(t, p.RemoveStaging())
	must(t, p.RemoveStaging())
	f.clean(t)
}

// inNamespace runs a script as the commands' user, with the binds mounted over
// an empty directory $W in a new mount namespace.
func inNamespace(t *testing.T, p *Mounts, script string) error {
	t.Helper()
	var s strings.Builder
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	s.WriteString("set -e; mount --make-rprivate /; mkdir " + root + "/w\n")
	for _, b := range p.Binds {
		target := root + "/w" + strings.TrimPrefix(b.Target, "/workspace")
		fmt.Fprintf(&s, "mount --bind %s %s\n", b.Source, target)
	}
	s.WriteString("cd " + root + "/w\nexec setpriv --reuid 10001 --regid 10001 --clear-groups sh -c \"$SCRIPT\"\n")
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", s.String())
	cmd.Env = append(os.Environ(), "SCRIPT="+script)
	out, err := cmd.CombinedOutput()
	t.Logf("%s: %v\n%s", script, err, out)
	return err
}

func TestGitIsPinned(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv and unshare (util-linux)")
	}
	attacks := []string{
		"mv .git .git2", "rm -rf .git && test ! -e .git", "echo x >.git/config", "echo x >.git/hooks/post-checkout", "mkdir -p .git/modules/m",
		"echo ../evil >.git/commondir", "echo x >.git/config.worktree", "mkdir .git/worktrees/x", "ln -s /etc .git/info/x",
	}
	for _, tt := range []struct {
		name    string
		mode    sandbox.GitMode
		absent  bool
		allowed []string
		denied  []string
	}{
		{name: "read-only", mode: sandbox.GitReadOnly, denied: append([]string{"touch .git/index", "touch .git/objects/x"}, attacks...)},
		{name: "commit", mode: sandbox.GitCommit, denied: attacks, allowed: []string{"touch .git/index .git/objects/x .git/COMMIT_EDITMSG"}},
		{name: "absent", absent: true, denied: []string{"mv .git .git2", "touch .git/config", "rmdir .git"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, 1000, 1000)
			f.Git = tt.mode
			if !tt.absent {
				write(t, filepath.Join(f.dir, ".git/config"), "[core]\n")
				write(t, filepath.Join(f.dir, ".git/HEAD"), "ref: refs/heads/main\n")
				must(t, os.MkdirAll(filepath.Join(f.dir, ".git/objects"), 0o755))
				must(t, os.MkdirAll(filepath.Join(f.dir, ".git/hooks"), 0o755))
				must(t, exec.Command("chown", "-R", "1000:1000", f.dir).Run())
			}
			p := f.prepare(t)
			for _, a := range tt.allowed {
				if err := inNamespace(t, p, a); err != nil {
					t.Errorf("%q: %v", a, err)
				}
			}
			for _, a := range tt.denied {
				if inNamespace(t, p, a) == nil {
					t.Errorf("%q succeeded", a)
				}
			}
			// Positive control: with only the workspace bound, the attack
			// works.
			naive := &Mounts{Binds: p.Binds[:1]}
			if err := inNamespace(t, naive, "mv .git .git2 && mkdir -p .git/hooks && touch .git/hooks/x && rm -rf .git && mv .git2 .git"); err != nil {
				t.Errorf("control: the naive mount withstood the attack: %v", err)
			}
			f.closed(t, p)
			if tt.absent {
				missing(t, filepath.Join(f.dir, ".git"))
			}
			missing(t, filepath.Join(f.dir, ".git/commondir"))
			missing(t, filepath.Join(f.dir, ".git/modules"))
		})
	}
}

func TestPlaceholderBelongsToTheOwnerAndStaysIfChanged(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1001)
	p, err := Prepare(t.Context(), f.Options)
	must(t, err)
	git := filepath.Join(f.dir, ".git")
	if got := ownerOf(t, git); got != (ids{1000, 1001}) {
		t.Errorf("placeholder belongs to %v", got)
	}
	write(t, filepath.Join(git, "user"), "x")
	f.closed(t, p)
	if _, err := os.Stat(filepath.Join(git, "user")); err != nil {
		t.Errorf("the user's repository was removed: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		name string
		make func(t *testing.T, f *fixture)
		want string
	}{
		{"the root directory", func(t *testing.T, f *fixture) { f.dir = "/"; f.hold(t) }, "root directory"},
		{"a directory that holds the state directory", func(t *testing.T, f *fixture) { f.dir = filepath.Dir(f.StateDir); f.hold(t) }, "holds"},
		{"the state directory", func(t *testing.T, f *fixture) { f.dir = f.StateDir; f.hold(t) }, "must not change"},
		{"the directory of workspaces", func(t *testing.T, f *fixture) {
			f.dir = sandbox.WorkspacesDir(f.StateDir)
			must(t, os.Mkdir(f.dir, 0o700))
			f.hold(t)
		}, "lies in the state directory"},
		{"a directory in the state directory", func(t *testing.T, f *fixture) { f.dir = f.Dir; f.hold(t) }, "lies in the state directory"},
		{"home", func(t *testing.T, f *fixture) { f.Protect = []string{f.dir + "/."} }, "must not change"},
		{"a directory that holds home", func(t *testing.T, f *fixture) {
			must(t, os.Mkdir(filepath.Join(f.dir, "me"), 0o755))
			f.Protect = []string{filepath.Join(f.dir, "me")}
		}, "holds"},
		{"home behind a link", func(t *testing.T, f *fixture) {
			link := filepath.Join(filepath.Dir(f.dir), "link")
			must(t, os.Symlink(f.dir, link))
			f.Protect = []string{link}
		}, "must not change"},
		{"a removed directory", func(t *testing.T, f *fixture) { must(t, os.Remove(f.dir)) }, "removed"},
		{"a submount", func(t *testing.T, f *fixture) { mountTmpfs(t, filepath.Join(f.dir, "sub")) }, "sub"},
		{".git is a link", func(t *testing.T, f *fixture) { must(t, os.Symlink("/etc", filepath.Join(f.dir, ".git"))) }, "link"},
		{".git is a FIFO", func(t *testing.T, f *fixture) { must(t, unix.Mkfifo(filepath.Join(f.dir, ".git"), 0o644)) }, "special"},
		{".caisson is a link", func(t *testing.T, f *fixture) { must(t, os.Symlink("/etc", filepath.Join(f.dir, ".caisson"))) }, "link"},
		{"commondir elsewhere", func(t *testing.T, f *fixture) { write(t, filepath.Join(f.dir, ".git/commondir"), "../evil\n") }, "commondir"},
		{".git file into the workspace", func(t *testing.T, f *fixture) { write(t, filepath.Join(f.dir, ".git"), "gitdir: a/b\n") }, "a/b"},
		{".git file to the workspace", func(t *testing.T, f *fixture) { write(t, filepath.Join(f.dir, ".git"), "gitdir: .\n") }, "protected"},
		{".git file to what isn't there yet", func(t *testing.T, f *fixture) { write(t, filepath.Join(f.dir, ".git"), "gitdir: ../workspace/evil\n") }, "evil"},
		{".git file through a link", func(t *testing.T, f *fixture) {
			must(t, os.Symlink(f.dir, filepath.Join(filepath.Dir(f.dir), "elsewhere")))
			write(t, filepath.Join(f.dir, ".git"), "gitdir: ../elsewhere/evil\n")
		}, "evil"},
		{"hooks is a link into the workspace", func(t *testing.T, f *fixture) {
			must(t, os.Mkdir(filepath.Join(f.dir, ".git"), 0o755))
			must(t, os.Symlink("../hooks", filepath.Join(f.dir, ".git/hooks")))
		}, "hooks"},
		{"config is a link into the workspace by another way", func(t *testing.T, f *fixture) {
			must(t, os.Mkdir(filepath.Join(f.dir, ".git"), 0o755))
			must(t, os.Symlink(filepath.Dir(f.dir), filepath.Join(filepath.Dir(f.dir), "up")))
			must(t, os.Symlink(filepath.Join(filepath.Dir(f.dir), "up/workspace/config"), filepath.Join(f.dir, ".git/config")))
		}, "config"},
		{"a repository in the workspace with its configuration elsewhere", func(t *testing.T, f *fixture) {
			write(t, filepath.Join(f.dir, ".git"), "gitdir: repo\n")
			write(t, filepath.Join(f.dir, "repo/commondir"), "../common\n")
		}, "commondir"},
		{"hooks is a link, in commit mode", func(t *testing.T, f *fixture) {
			f.Git = sandbox.GitCommit
			must(t, os.Mkdir(filepath.Join(f.dir, ".git"), 0o755))
			must(t, os.Symlink("../hooks", filepath.Join(f.dir, ".git/hooks")))
		}, "hooks"},
		{"not writable by its owner", func(t *testing.T, f *fixture) { must(t, os.Chmod(f.dir, 0o555)) }, "can't write"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, 1000, 1000)
			tt.make(t, f)
			p, err := Prepare(t.Context(), f.Options)
			if p != nil {
				f.closed(t, p)
			}
			if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want ErrInvalid about %q", err, tt.want)
			}
			t.Log(err)
			f.clean(t)
		})
	}
}

func mountTmpfs(t *testing.T, path string) {
	t.Helper()
	must(t, os.Mkdir(path, 0o755))
	must(t, unix.Mount("tmpfs", path, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
}

func TestNamedSubmount(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	write(t, filepath.Join(f.dir, "sub.below"), "")
	mountTmpfs(t, filepath.Join(f.dir, "sub"))
	write(t, filepath.Join(f.dir, "sub/inner"), "x")
	must(t, os.Chown(filepath.Join(f.dir, "sub/inner"), 1000, 1000))
	f.Workspace.Submounts = []string{"./sub/"}
	p := f.prepare(t)
	var targets []string
	for _, b := range p.Binds {
		targets = append(targets, b.Target)
	}
	if diff := cmp.Diff([]string{"/workspace", "/workspace/sub", "/workspace/.git"}, targets); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(p.Binds[0].Source, "sub/inner")); err == nil {
		t.Error("the workspace's bind is recursive")
	}
	if got := ownerOf(t, filepath.Join(p.Binds[1].Source, "inner")); got != commandIDs {
		t.Errorf("file in the submount shows as %v, want %v", got, commandIDs)
	}
}

// TestDirectoryReplaced checks that the opened directory stays, whatever
// happens to its path.
func TestDirectoryReplaced(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	write(t, filepath.Join(f.dir, "mine"), "x")
	outside := t.TempDir()
	write(t, filepath.Join(outside, "canary"), "x")
	must(t, os.Rename(f.dir, f.dir+".old"))
	must(t, os.Symlink(outside, f.dir))
	p := f.prepare(t)
	if _, err := os.Stat(filepath.Join(p.Binds[0].Source, "mine")); err != nil {
		t.Errorf("the mount is not the held directory: %v", err)
	}
	// Positive control: the path leads outside.
	if _, err := os.Stat(filepath.Join(f.dir, "canary")); err != nil {
		t.Errorf("control: the path does not lead outside: %v", err)
	}
}

func TestInsideAnotherRepository(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	must(t, os.Mkdir(filepath.Join(filepath.Dir(f.dir), ".git"), 0o755))
	p := f.prepare(t)
	missing(t, filepath.Join(f.dir, ".git"))
	if !strings.Contains(strings.Join(p.Lost, "\n"), "lies in a repository") {
		t.Errorf("lost %q does not say so", p.Lost)
	}
}

func TestLinkedWorktree(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	write(t, filepath.Join(f.dir, ".git"), "gitdir: /somewhere/else/.git/worktrees/w\n")
	p := f.prepare(t)
	if b := p.Binds[1]; b.Target != "/workspace/.git" || !b.ReadOnly || b.Dir {
		t.Errorf("bind of the .git file is %+v", b)
	}
	if len(p.Lost) == 0 || !strings.Contains(strings.Join(p.Lost, "\n"), "git does not work") {
		t.Errorf("lost %q does not say so", p.Lost)
	}
}

// TestPlaceholderIsShared: two sessions on one workspace share the placeholder.
// The first that ends must not remove it, which would detach the other's bind.
func TestPlaceholderIsShared(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	second := new(fixture)
	*second = *f
	second.Dir = filepath.Join(f.StateDir, "sessions", "ses_second")
	must(t, os.Mkdir(second.Dir, 0o700))
	instance, err := ownership.Instance(f.StateDir)
	must(t, err)
	self, err := ownership.Self(instance)
	must(t, err)
	second.Cleanup, err = ownership.OpenCleanupList(ownership.CleanupOptions{StateDir: f.StateDir, Backend: "docker", Session: "ses_second", Owner: self, Dir: second.Dir})
	must(t, err)
	t.Cleanup(func() { second.Cleanup.Close() })
	for range 2 { // either may be the first to end
		f, second = second, f
		a, err := Prepare(t.Context(), f.Options)
		must(t, err)
		b, err := Prepare(t.Context(), second.Options)
		must(t, err)
		f.closed(t, a)
		git := filepath.Join(f.dir, ".git")
		if _, err := os.Lstat(git); err != nil {
			t.Fatalf("the placeholder is gone while it is in use: %v", err)
		}
		if bound := b.Binds[len(b.Binds)-1]; bound.Target != "/workspace/.git" || !bound.ReadOnly {
			t.Errorf("the second session's bind is %+v", bound)
		}
		second.closed(t, b)
		missing(t, git)
	}
	// Positive control: removing a mount point elsewhere does detach it.
	needRoot(t)
	point := filepath.Join(f.dir, "point")
	must(t, os.Mkdir(point, 0o755))
	holder := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", `mount --make-rprivate / && mount -t tmpfs none "$0" && echo ready && read x && grep -c " $0 " /proc/self/mountinfo`, point)
	in, err := holder.StdinPipe()
	must(t, err)
	out, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	must(t, err)
	must(t, os.Remove(point))
	_, err = io.WriteString(in, "go\n")
	must(t, err)
	if left, err := lines.ReadString('\n'); err != nil || left != "0\n" {
		t.Errorf("control: %q mounts are left on a removed mount point (%v)", left, err)
	}
	holder.Wait()
}

// TestSweepAfterAKill checks that a sweep undoes a session that was killed
// while it was made: staged mounts, their directory, the placeholder. The
// workspace keeps its files.
func TestSweepAfterAKill(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	write(t, filepath.Join(f.dir, "work"), "x")
	p, err := Prepare(t.Context(), f.Options)
	must(t, err)
	// Positive control: the workspace's file shows below the session's
	// directory.
	if _, err := os.Stat(filepath.Join(p.Binds[0].Source, "work")); err != nil {
		t.Fatalf("control: %v", err)
	}
	must(t, f.Cleanup.Close()) // with entries left: given up, as by the dead
	instance, err := ownership.Instance(f.StateDir)
	must(t, err)
	left, err := ownership.Sweep(t.Context(), ownership.SweepOptions{StateDir: f.StateDir, Backend: "docker", Instance: instance})
	must(t, err)
	kinds := map[string]int{}
	for _, l := range left {
		kinds[l.Kind]++
	}
	if diff := cmp.Diff(map[string]int{"mount": 2, "directory": 1, "placeholder": 1}, kinds); diff != "" {
		t.Errorf("swept (-want +got):\n%s", diff)
	}
	missing(t, filepath.Join(f.Dir, mountsDir))
	missing(t, filepath.Join(f.dir, ".git"))
	if _, err := os.Stat(filepath.Join(f.dir, "work")); err != nil {
		t.Errorf("the workspace lost its file: %v", err)
	}
}

// TestGitSwappedWhileItIsPrepared swaps .git for a symlink to a directory
// outside, again and again, while the workspace is prepared. It must be refused
// or the real one, never the outside.
func TestGitSwappedWhileItIsPrepared(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	git, link := filepath.Join(f.dir, ".git"), filepath.Join(f.dir, "link")
	write(t, filepath.Join(git, "config"), "")
	outside := t.TempDir()
	write(t, filepath.Join(outside, "canary"), "x")
	must(t, os.Symlink(outside, link))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, git, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	prepared, followed := 0, 0
	for i := 0; i < 100 || i < 20_000 && (followed == 0 || prepared == 0); i++ {
		// Positive control: a naive look at the path follows the link.
		if _, err := os.Stat(filepath.Join(git, "canary")); err == nil {
			followed++
		}
		p, err := Prepare(t.Context(), f.Options)
		if err != nil {
			continue
		}
		prepared++
		for _, b := range p.Binds {
			if _, err := os.Stat(filepath.Join(b.Source, "canary")); err == nil {
				t.Errorf("the mount of %s is the directory outside", b.Target)
			}
		}
		must(t, p.Close(t.Context()))
	}
	close(stop)
	<-stopped
	if followed == 0 || prepared == 0 {
		t.Errorf("control: %d looks followed the link, %d were prepared: the race was not run", followed, prepared)
	}
	t.Logf("%d followed, %d prepared", followed, prepared)
	f.clean(t)
}

// TestHarmlessLinksInARepository: links that lead where commands can't write
// are the user's.
func TestHarmlessLinksInARepository(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	must(t, os.MkdirAll(filepath.Join(f.dir, ".git/real-hooks"), 0o755))
	must(t, os.Symlink("real-hooks", filepath.Join(f.dir, ".git/hooks")))
	must(t, os.Symlink("/etc/gitconfig-of-the-machine", filepath.Join(f.dir, ".git/config")))
	f.prepare(t)
}

// TestConfigurationIsCovered checks that by path the workspace's configuration
// is covered, not shown: its name could be swapped for a symlink before the
// engine looks.
func TestConfigurationIsCovered(t *testing.T) {
	for _, isDir := range []bool{true, false} {
		f := newFixture(t, os.Geteuid(), os.Getegid())
		name := filepath.Join(f.dir, ownConfig)
		if isDir {
			name = filepath.Join(name, "config.yaml")
		}
		write(t, name, "secret")
		p, _, err := newMounts(f.Options, f.dir)
		must(t, err)
		p.Path = f.dir
		must(t, p.bindWanted(f.Options, identityPlan{}, []guard{{name: "."}, {name: ownConfig, readOnly: true}}))
		b := p.Binds[1]
		if b.Target != "/workspace/.caisson" || !b.ReadOnly || b.Dir != isDir || !strings.HasPrefix(b.Source, f.Dir) {
			t.Errorf("bind %+v", b)
		}
		if data, err := os.ReadFile(b.Source); !isDir && (err != nil || len(data) > 0) {
			t.Errorf("the cover holds %q (%v)", data, err)
		}
		if names, err := os.ReadDir(b.Source); isDir && (err != nil || len(names) > 0) {
			t.Errorf("the cover holds %v (%v)", names, err)
		}
		f.closed(t, p)
		missing(t, filepath.Join(f.Dir, coverDir))
	}
}
