package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// chooseIsolation returns the isolation of the next sandbox. If the options allow
// either and this is IsolationProcess, why says what forbids namespaces. It
// returns an error if the options or the kind of runtime need namespaces and
// this process may not make them.
func (b *Backend) chooseIsolation() (_ sandbox.Isolation, why string, err error) {
	if b.options.Isolation == sandbox.IsolationProcess {
		return sandbox.IsolationProcess, "", nil
	}
	err = b.checkNamespaces()
	if err != nil && b.options.Kind == GVisor && b.options.Isolation == "" {
		why = "this system lets ordinary users make none"
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			why = fmt.Sprintf("this process may not make any (%v)", errno)
		}
		return sandbox.IsolationProcess, why, nil
	}
	return sandbox.IsolationNamespaces, "", err
}

// lostNamespaces describes what a sandbox of gVisor without namespaces lacks.
func lostNamespaces() []string {
	text := "Namespaces: gVisor's kernel and its file server are processes of this user in the namespaces of Caisson, with "
	switch version, err := Landlock(); {
	case err != nil:
		text += fmt.Sprintf("only seccomp around the file server, because no Landlock can confine it (%v): that needs Linux 5.19 or newer, with Landlock enabled.", err)
	case version < signalsVersion:
		text += "seccomp and Landlock around them, which keeps their signals inside only from Linux 6.12 on."
	default:
		text += "seccomp and Landlock around them."
	}
	if !hasSandboxUsers() {
		text += " Other processes of this user can end them and read the memory of the sandbox."
	}
	return []string{text}
}

// hasSandboxUsers reports whether runsc can give each sandbox a user of its own,
// as it does if it may (hostns.SandboxID): other sandboxes and jobs could
// otherwise trace what runs commands.
func hasSandboxUsers() bool {
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil || data[0].Effective&need != need {
		return false
	}
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		text, err := os.ReadFile(file)
		var inside, outside, size int64
		if _, scanErr := fmt.Sscan(string(text), &inside, &outside, &size); err != nil || scanErr != nil || inside > 0 || size < sandboxUsersEnd {
			return false
		}
	}
	return true
}

// sandboxUsersEnd is above every user of hostns.SandboxID: its first one and the
// largest PID.
const sandboxUsersEnd = 0x7900_0000 + 1<<22

// signalsVersion is the first version of Landlock that restricts signals
// (landlock(7), LANDLOCK_SCOPE_SIGNAL).
const signalsVersion = 6

// Landlock returns the version of the kernel's Landlock. hostns, which is built
// into gVisor's module, has a copy. It fails if there is none that can confine
// gVisor without namespaces: before Linux 5.19, a file can't be moved to another
// directory under it.
func Landlock() (version int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno != 0:
		return 0, errno
	case n < 2:
		return int(n), fmt.Errorf("%w: its version is %d, not at least 2", sandbox.ErrUnsupported, n)
	}
	return int(n), nil
}

// checkNamespaces returns an error if this process may not make the namespaces
// and mounts of a sandbox.
func (b *Backend) checkNamespaces() error {
	if !b.rootless {
		return checkMounts()
	}
	for _, s := range []struct{ file, off, hint string }{
		{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"},
		{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns for the runtime"},
	} {
		data, err := os.ReadFile("/proc/sys/" + s.file)
		if err == nil && strings.TrimSpace(string(data)) == s.off {
			return fmt.Errorf("this system lets ordinary users make no user namespaces: %w: as root: %s", sandbox.ErrUnavailable, s.hint)
		}
	}
	return checkUserNamespace()
}

// Variables for tests.
var (
	tryUserNamespace = TryUserNamespace
	tryMount         = TryMount
)

// checkMounts returns sandbox.ErrNoNamespaces if this process may not mount.
// The runtimes must, if Caisson is root.
func checkMounts() error {
	if err := tryMount(); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w: root may not mount here: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, err)
	}
	return nil
}

func checkUserNamespace() error {
	if err := tryUserNamespace(); err != nil {
		return fmt.Errorf("%w: %w: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, err)
	}
	return nil
}

// explainFailure adds the cause to a failed start if the runtime's message is
// unclear.
func explainFailure(err error) error {
	if !errors.Is(err, sandbox.ErrUnavailable) && !errors.Is(err, sandbox.ErrUnsupported) || errors.Is(err, sandbox.ErrNoNamespaces) {
		return err
	}
	cause := checkUserNamespace()
	if cause == nil && (strings.Contains(err.Error(), `error mounting "proc"`) || strings.Contains(err.Error(), "pivot_root failed")) {
		// runc: a container's masked /proc forbids mounting another. runsc: a
		// seccomp profile forbids pivot_root, which shows only inside.
		cause = sandbox.ErrNoNamespaces
	}
	if cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// takeLease makes every other open of a file wait until dropLease or until the
// holder ends. Not every file system supports it.
func takeLease(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return err
}

func dropLease(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}

// startInCgroups starts a program inside cgroups from its first instruction. On
// v2 the kernel can do that. On v1 a child starts in the cgroups of the thread
// that forks it, so we move a thread there. It ends afterwards, because it may
// not move back to a cgroup of root's.
func startInCgroups(dirs []string, cmd *exec.Cmd) error {
	result := make(chan error)
	thread := 0
	workmount.Dedicate(func() {
		thread = unix.Gettid()
		result <- startHere(dirs, cmd)
	})
	err := <-result
	ended := fmt.Sprintf("/proc/self/task/%d", thread)
	for deadline := time.Now().Add(settleTime); time.Now().Before(deadline); pauseBriefly() {
		if _, err := os.Stat(ended); err != nil {
			break
		}
	}
	return err
}

func startHere(dirs []string, cmd *exec.Cmd) error {
	for _, dir := range dirs {
		if hasFile(dir, "tasks") {
			if err := writeCgroup(dir, "tasks", "0"); err != nil {
				return fmt.Errorf("enter cgroup %s: %w", dir, err)
			}
			continue
		}
		f, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("enter cgroup %s: %w", dir, err)
		}
		defer func() { _ = f.Close() }()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	return cmd.Start()
}

func isWritable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// onCgroupFS reports whether a directory is on a cgroup file system, or
// fs.ErrNotExist if it is missing.
func onCgroupFS(dir string) (bool, error) {
	var fsys unix.Statfs_t
	if err := unix.Statfs(dir, &fsys); errors.Is(err, unix.ENOENT) {
		return false, fs.ErrNotExist
	} else if err != nil {
		return false, err
	}
	return fsys.Type == unix.CGROUP_SUPER_MAGIC || fsys.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// pauseBriefly waits for a millisecond: a dead process may still be counted for
// a moment.
func pauseBriefly() {
	_, _ = unix.Poll(nil, 1)
}

// oomScore returns the oom_score_adj of a container's processes. Like
// harden.OOMScore it makes the kernel choose them before Caisson, whose own is
// given. Kubernetes sets that to up to 1000, which nobody without privileges may
// lower.
func oomScore(own string) int {
	n, _ := strconv.Atoi(own)
	return min(n+harden.OOMScore, 1000)
}

// hardLimit returns this process's hard limit if it can't raise it, otherwise
// -1. The limit nproc is enforced by the sandbox's own kernel, so it has no
// ceiling.
func (b *Backend) hardLimit(name string) int64 {
	which := map[string]int{
		"core": unix.RLIMIT_CORE, "fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE,
		"nofile": unix.RLIMIT_NOFILE, "stack": unix.RLIMIT_STACK,
	}
	id, ok := which[name]
	var l unix.Rlimit
	if !ok || !b.rootless || unix.Getrlimit(id, &l) != nil || l.Max > 1<<62 {
		return -1
	}
	return int64(l.Max)
}
