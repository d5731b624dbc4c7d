package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// Machine has the checks that need the backends' packages.
type Machine struct {
	// Cgroups reads the cgroups that sandboxes would be in.
	Cgroups func() (Cgroups, error)
	// UserNamespace creates a user namespace, and Mount an id-mapped mount.
	// Both drop it.
	UserNamespace, Mount func() error
	// Landlock returns its version. It fails if there is none that gvisor can
	// use.
	Landlock func() (int, error)
}

// Cgroups are the limits that this process can set. The fields are as in
// CgroupInfo of sandbox/oci.
type Cgroups struct {
	Version string
	Missing []string
	Crowded string
	Swap    bool
	Job     sandbox.AttestedLimits
}

// CheckMachine checks the kernel, the cgroups, the namespaces and the user IDs.
func CheckMachine(m Machine) []Finding {
	return machine{Machine: m, proc: "/proc", uid: os.Geteuid(), features: kernelFeatures(m.Mount)}.check()
}

// machine is the system as the checks see it. Tests replace it.
type machine struct {
	Machine
	proc     string // /proc
	uid      int
	features []feature
}

// feature is a kernel feature that Caisson needs, or uses if present.
type feature struct {
	name string
	// try returns the error of using it.
	try func() error
	// rootOnly reports that only root uses it.
	rootOnly bool
	// needed reports that no sandbox starts without it. Otherwise lost
	// describes the loss.
	needed bool
	lost   string
	hint   string
	advice Advice
}

func (m machine) check() []Finding {
	findings := append([]Finding{m.checkSystem()}, m.checkKernel()...)
	namespaces, confined := m.checkNamespaces()
	return append(findings, m.checkCgroups(confined), namespaces, m.checkLandlock(confined), m.checkIdentities(confined))
}

func (m machine) checkSystem() Finding {
	kernel := cmp.Or(m.readLine("sys/kernel/osrelease"), "unknown")
	return Finding{Check: "system", Result: OK, Detail: fmt.Sprintf("%s/%s, kernel %s, uid %d", runtime.GOOS, runtime.GOARCH, kernel, m.uid)}
}

// readFile returns the content of a file in /proc, or "" if it can't be read.
func (m machine) readFile(name string) string {
	text, err := os.ReadFile(filepath.Join(m.proc, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// readLine returns the first line of a file in /proc, or "" if it can't be read.
func (m machine) readLine(name string) string {
	line, _, _ := strings.Cut(m.readFile(name), "\n")
	return strings.TrimSpace(line)
}

// checkKernel tries each feature. All working ones share one finding.
func (m machine) checkKernel() []Finding {
	const check = "kernel"
	var have []string
	var missing []Finding
	for _, f := range m.features {
		if f.rootOnly && m.uid != 0 {
			continue
		}
		err := f.try()
		if err == nil {
			have = append(have, f.name)
			continue
		}
		found := Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("no %s (%v): %s", f.name, err, f.lost), Hint: f.hint, Advice: f.advice}
		if f.needed {
			found.Result, found.Fault = Failed, FaultSandbox
			found.Detail = fmt.Sprintf("no %s (%v): no sandbox can be started", f.name, err)
		}
		missing = append(missing, found)
	}
	if len(have) > 0 {
		missing = append([]Finding{{Check: check, Result: OK, Detail: strings.Join(have, ", ")}}, missing...)
	}
	return missing
}

// checkCgroups checks which limits a sandbox would have. confined is as
// [machine.checkNamespaces] returns it.
func (m machine) checkCgroups(confined bool) Finding {
	const check = "cgroups"
	info, err := m.Cgroups()
	if err != nil {
		return Finding{Check: check, Result: Warning, Detail: err.Error(), Hint: "Mount /proc and /sys/fs/cgroup, or use the docker backend: its engine sets the limits."}
	}
	detail := "version " + strings.TrimPrefix(info.Version, "v")
	if info.Version == "hybrid" {
		detail = "hybrid: limits by version 1, version 2 beside it"
	}
	if info.Version == "none" {
		detail = "none are mounted"
	}
	confined = confined && (info.Crowded != "" || len(info.Missing) > 0)
	switch {
	case confined && info.Job.MemoryBytes == 0:
		return Finding{
			Check: check, Result: Warning, Detail: detail + "; gvisor without namespaces has only the limits of the container that Caisson runs in, which has none for memory",
			Hint: "Limit the container: docker run --memory and --pids-limit, or resources.limits of a pod.",
		}
	case confined:
		return Finding{Check: check, Result: OK, Detail: detail + "; gvisor without namespaces has the limits of the container that Caisson runs in: " + describeLimits(info.Job)}
	case m.uid != 0 && (info.Crowded != "" || len(info.Missing) > 0):
		return Finding{Check: check, Result: OK, Detail: detail + "; none with cpu, memory and pids is delegated to this user, so gvisor and runc limit neither memory nor CPU time (docker does); " +
			"a scope of systemd's user instance with Delegate=yes has one"}
	case info.Crowded != "":
		return Finding{
			Check: check, Result: Warning, Detail: fmt.Sprintf("%s; the cgroup %s contains processes, and version 2 limits nothing below such a cgroup, so gvisor and runc limit none of memory, processes and CPU time", detail, info.Crowded),
			Hint: "Move its processes into a cgroup below it before Caisson starts, as images with a Docker engine do in a container (mkdir init there, and write each line of cgroup.procs into init/cgroup.procs), or use the docker backend.",
		}
	case len(info.Missing) > 0:
		return Finding{
			Check: check, Result: Warning, Detail: fmt.Sprintf("%s; missing or not writable: %s, so gvisor and runc limit none of memory, processes and CPU time", detail, strings.Join(info.Missing, ", ")),
			Hint: "Enable these controllers (on version 2 in cgroup.subtree_control of the cgroups above), or use the docker backend where its engine can limit.",
		}
	case !info.Swap:
		detail += "; swap is not accounted for, so memory's limit does not count it"
	default:
		detail += "; cpu, memory, pids and swap can be limited"
	}
	return Finding{Check: check, Result: OK, Detail: detail}
}

// sysctls forbid user namespaces to ordinary users, or to all.
var sysctls = []struct{ file, off, fix string }{
	{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"},
	{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
	{"kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns for the runtime"},
}

// checkNamespaces checks whether user namespaces can be created. Ordinary
// users' sandboxes consist of them; root's map the workspace's owner with one.
// confined reports that no sandbox can have namespaces: gvisor then runs
// without.
func (m machine) checkNamespaces() (_ Finding, confined bool) {
	const check = "user namespaces"
	confined = m.uid == 0 && errors.Is(m.Mount(), fs.ErrPermission)
	for i, s := range sysctls {
		if m.uid == 0 && i > 0 {
			break // these bind ordinary users
		}
		if m.readLine("sys/"+s.file) != s.off {
			continue
		}
		f := Finding{Check: check, Result: Warning, Hint: "As root: " + s.fix + "."}
		f.Detail = strings.ReplaceAll(s.file, "/", ".") + " is " + s.off + ": for an ordinary user, gvisor runs without namespaces, and runc can't be used"
		if m.uid == 0 {
			f.Detail = strings.ReplaceAll(s.file, "/", ".") + " is " + s.off + ": a workspace's files can't be mapped to its owner, so commands run as the owner's own uid"
			return f, confined
		}
		return f, true
	}
	err := m.UserNamespace()
	switch {
	case confined:
		return Finding{Check: check, Result: Warning, Detail: "root may not mount here: gvisor runs without namespaces, and runc can't be used", Advice: AdviseNamespaces}, true
	case err != nil && m.uid != 0:
		return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("none can be made (%v): gvisor runs without, and runc can't be used", err), Advice: AdviseNamespaces}, true
	case err != nil:
		return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("none can be made: %v", err), Advice: AdviseNamespaces}, false
	}
	return Finding{Check: check, Result: OK, Detail: "can be made"}, false
}

// checkLandlock checks what gvisor uses instead of namespaces.
func (m machine) checkLandlock(confined bool) Finding {
	const check = "landlock"
	version, err := m.Landlock()
	switch {
	case err == nil:
		return Finding{Check: check, Result: OK, Detail: fmt.Sprintf("version %d", version)}
	case !confined:
		return Finding{Check: check, Result: Absent, Detail: fmt.Sprintf("none that gvisor can use (%v); with namespaces, it needs none", err)}
	}
	return Finding{
		Check: check, Result: Warning, Detail: fmt.Sprintf("none that gvisor can use (%v): it has neither this nor namespaces to keep its file server from this user's other files", err),
		Hint: "Use Linux 5.19 or newer with landlock among its security modules (lsm=), and a seccomp profile that allows it.",
	}
}

// checkIdentities checks the user IDs of commands in sandboxes and of their
// files.
func (m machine) checkIdentities(confined bool) Finding {
	const check = "identities"
	if m.uid != 0 && confined {
		return Finding{
			Check: check, Result: OK,
			Detail: fmt.Sprintf("uid %d; gvisor shows this user's files as the commands' own, and subordinate ids are not needed", m.uid),
		}
	}
	if m.uid != 0 {
		return Finding{
			Check: check, Result: OK,
			Detail: fmt.Sprintf("uid %d; gvisor and runc have this one uid in the sandbox, and subordinate ids are not needed", m.uid),
		}
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		if id := sandbox.CommandUID; !isMapped(m.readFile("self/"+name), id) {
			return Finding{
				Check: check, Result: Warning, Fault: FaultSandbox,
				Detail: fmt.Sprintf("Caisson is root in a user namespace without id %d, which commands have (%s of /proc/self)", id, name),
				Hint:   "Run it where this id is mapped: as root of the machine, or with a larger range in /etc/subuid and /etc/subgid for the user who made the namespace.",
			}
		}
	}
	return Finding{
		Check: check, Result: OK,
		Detail: fmt.Sprintf("root; commands run as uid %d, and what they make belongs to the workspace's owner; subordinate ids are not needed", sandbox.CommandUID),
	}
}

// isMapped reports whether an ID is in a map of /proc (user_namespaces(7)).
// Without a map, as without namespaces, every ID is.
func isMapped(text string, id int) bool {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err := strconv.Atoi(f[0])
		count, countErr := strconv.Atoi(f[2])
		if errors.Join(err, countErr) == nil && id >= first && id-first < count {
			return true
		}
	}
	return text == ""
}

// kernelFeatures returns the Linux features that the packages below sandbox
// use.
func kernelFeatures(tryMount func() error) []feature {
	newer := func(version string) string { return "Use Linux " + version + " or newer." }
	return []feature{
		{name: "openat2", needed: true, hint: newer("5.6"), try: func() error {
			fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{name: "pidfd_open", needed: true, hint: newer("5.3"), try: func() error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{
			name: "seccomp filters", hint: "Use a kernel with CONFIG_SECCOMP_FILTER; gvisor does without.",
			lost: "docker and runc would have no system call filter, and start nothing",
			// A kernel with filters tries to read one from address 0
			// (seccomp(2)).
			try: func() error {
				if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0); !errors.Is(err, unix.EFAULT) {
					return err
				}
				return nil
			},
		},
		{
			name: "id-mapped mounts", rootOnly: true, hint: newer("5.12"),
			lost: "commands run as the workspace's owner's own uid, and can't run in a workspace of root's",
			try: func() error {
				err := tryMount()
				if errors.Is(err, fs.ErrPermission) {
					return nil // the kernel has them; checkNamespaces says that root may not mount
				}
				return err
			},
		},
		{
			name: "overlay", advice: AdviseOverlay,
			lost: "overlay mode can't be used by runc, and by gvisor only without namespaces",
			try: func() error {
				text, err := os.ReadFile("/proc/filesystems")
				if err == nil && !strings.Contains(string(text), "\toverlay\n") {
					err = errors.New("it is not in /proc/filesystems")
				}
				return err
			},
		},
	}
}
