package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/oci"
)

// machine is where the doctor looks at the system: tests write their own.
type machine struct {
	// proc and etc are /proc and /etc.
	proc, etc string
	uid       int
	cgroups   func() (oci.CgroupInfo, error)
	features  []feature
}

func thisMachine() machine {
	return machine{proc: "/proc", etc: "/etc", uid: os.Geteuid(), cgroups: oci.Cgroups, features: kernelFeatures()}
}

// feature is one thing that Caisson needs of the kernel, or uses where it is
// there.
type feature struct {
	name string
	// try says why it is not there, or nil.
	try func() error
	// rootOnly says that it matters only where Caisson runs as root.
	rootOnly bool
	// needed says that no sandbox starts without it; otherwise lost says what
	// is lost.
	needed bool
	lost   string
	mend   string
	// denied is the hint where the kernel has the feature and refuses it to this
	// process (EPERM).
	denied string
}

// examine checks the machine itself.
func (m machine) examine() []finding {
	findings := []finding{m.system()}
	if runtime.GOOS != "linux" {
		return findings
	}
	findings = append(findings, m.kernel()...)
	return append(findings, m.cgroup(), m.namespaces(), m.identities())
}

func (m machine) system() finding {
	detail := fmt.Sprintf("%s/%s, %s, uid %d", runtime.GOOS, runtime.GOARCH, m.release(), m.uid)
	if runtime.GOOS != "linux" {
		return finding{Check: "system", Result: resultWarning, Detail: detail, Mend: "Only the docker backend works here."}
	}
	return finding{Check: "system", Result: resultOK, Detail: detail}
}

func (m machine) release() string {
	text := m.read("sys/kernel/osrelease")
	if text == "" {
		return "kernel unknown"
	}
	return "kernel " + text
}

// read gives the first line of a file below /proc, "" where it can't be read.
func (m machine) read(name string) string {
	text, err := os.ReadFile(filepath.Join(m.proc, name))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

// kernel tries each feature. What is there is said in one line.
func (m machine) kernel() []finding {
	const check = "kernel"
	var have []string
	var missing []finding
	for _, f := range m.features {
		if f.rootOnly && m.uid != 0 {
			continue
		}
		err := f.try()
		if err == nil {
			have = append(have, f.name)
			continue
		}
		found := finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("no %s (%v): %s", f.name, err, f.lost), Mend: f.mend}
		if errors.Is(err, fs.ErrPermission) && f.denied != "" {
			found.Mend = f.denied
		}
		if f.needed {
			found.Result, found.status = resultFailed, runner.ExitSandboxStart
			found.Detail = fmt.Sprintf("no %s (%v): no sandbox can be started", f.name, err)
		}
		missing = append(missing, found)
	}
	if len(have) > 0 {
		missing = append([]finding{{Check: check, Result: resultOK, Detail: strings.Join(have, ", ")}}, missing...)
	}
	return missing
}

// cgroup says what can be limited by the runtimes that Caisson starts itself.
func (m machine) cgroup() finding {
	const check = "cgroups"
	info, err := m.cgroups()
	if err != nil {
		return finding{Check: check, Result: resultWarning, Detail: err.Error(), Mend: "Mount /proc and /sys/fs/cgroup, or use the docker backend: its engine sets the limits."}
	}
	detail := "version " + strings.TrimPrefix(info.Version, "v")
	if info.Version == "hybrid" {
		detail = "hybrid: limits by version 1, version 2 beside it"
	}
	if info.Version == "none" {
		detail = "none are mounted"
	}
	switch {
	case m.uid != 0: // also below a cgroup that systemd delegated to the user
		return finding{Check: check, Result: resultOK, Detail: detail + "; as an ordinary user gvisor and runc make none, and limit neither memory nor CPU time (docker does)"}
	case info.Crowded != "":
		return finding{
			Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s; the cgroup %s holds processes itself, and version 2 limits nothing below such a one, so gvisor and runc limit none of memory, processes and CPU time", detail, info.Crowded),
			Mend: "Move its processes into a cgroup below it before Caisson starts, as images with a Docker engine do in a container (mkdir init there, and write each line of cgroup.procs into init/cgroup.procs), or use the docker backend.",
		}
	case len(info.Missing) > 0:
		return finding{
			Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s; missing or not writable: %s, so gvisor and runc limit none of memory, processes and CPU time", detail, strings.Join(info.Missing, ", ")),
			Mend: "Enable these controllers (on version 2 in cgroup.subtree_control of the cgroups above), or use the docker backend where its engine can limit.",
		}
	case !info.Swap:
		detail += "; swap is not accounted for, so memory's limit does not count it"
	default:
		detail += "; cpu, memory, pids and swap can be limited"
	}
	return finding{Check: check, Result: resultOK, Detail: detail}
}

// sysctls forbid user namespaces to ordinary users, or to all.
var sysctls = []struct{ file, off, mend string }{
	{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"},
	{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
	{"kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns for the runtime"},
}

// namespaces says whether user namespaces can be made: ordinary users' sandboxes
// consist of them, root's map the workspace's owner with one.
func (m machine) namespaces() finding {
	const check = "user namespaces"
	for i, s := range sysctls {
		if m.uid == 0 && i > 0 {
			break // these bind ordinary users
		}
		if m.read("sys/"+s.file) != s.off {
			continue
		}
		f := finding{Check: check, Result: resultWarning, Mend: "As root: " + s.mend + "."}
		f.Detail = strings.ReplaceAll(s.file, "/", ".") + " is " + s.off + ": gvisor and runc can't be used by an ordinary user"
		if m.uid == 0 {
			f.Detail = strings.ReplaceAll(s.file, "/", ".") + " is " + s.off + ": a workspace's files can't be mapped to its owner, so that commands run as the owner's own uid"
		}
		return f
	}
	if err := oci.TryUserNamespace(); err != nil {
		return finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("none can be made: %v", err), Mend: runner.NamespacesHint}
	}
	return finding{Check: check, Result: resultOK, Detail: "can be made"}
}

// identities says as whom sandboxes and the files that they make would be.
func (m machine) identities() finding {
	const check = "identities"
	if m.uid != 0 {
		return finding{
			Check: check, Result: resultOK,
			Detail: fmt.Sprintf("uid %d; gvisor and runc have this one uid in the sandbox, and %s", m.uid, m.subordinate()),
		}
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		if id := sandbox.CommandUID; !mapped(m.readAll("self/"+name), id) {
			return finding{
				Check: check, Result: resultWarning, status: runner.ExitSandboxStart,
				Detail: fmt.Sprintf("Caisson is root in a user namespace in which id %d, that of commands, is not (%s of /proc/self)", id, name),
				Mend:   "Run it where this id is mapped: as root of the machine, or with a larger range in /etc/subuid and /etc/subgid for whoever made the namespace.",
			}
		}
	}
	return finding{
		Check: check, Result: resultOK,
		Detail: fmt.Sprintf("root; commands run as uid %d, and what they make belongs to the workspace's owner; subordinate ids are not needed", sandbox.CommandUID),
	}
}

// subordinate says whether the user has subordinate ids.
func (m machine) subordinate() string {
	var lacks []string
	for _, name := range []string{"subuid", "subgid"} {
		text, err := os.ReadFile(filepath.Join(m.etc, name))
		if err != nil || !hasRange(string(text), m.uid, m.userName()) {
			lacks = append(lacks, filepath.Join("/etc", name))
		}
	}
	if len(lacks) == 0 {
		return "the ranges in /etc/subuid and /etc/subgid are not used"
	}
	return "none in " + strings.Join(lacks, " and ") + " are needed"
}

// userName is the user's name in /etc/passwd, "" where there is none.
func (m machine) userName() string {
	text, err := os.ReadFile(filepath.Join(m.etc, "passwd"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(m.uid) {
			return f[0]
		}
	}
	return ""
}

// hasRange looks for a line NAME:FIRST:COUNT of a user (subuid(5)).
func hasRange(text string, uid int, name string) bool {
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 3 && (f[0] == strconv.Itoa(uid) || name != "" && f[0] == name) {
			return true
		}
	}
	return false
}

func (m machine) readAll(name string) string {
	text, err := os.ReadFile(filepath.Join(m.proc, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// mapped says whether an id is in a map of /proc (user_namespaces(7)); where
// there is no map there are no namespaces, and every id is.
func mapped(text string, id int) bool {
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
