package doctor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// files writes files into a new folder and returns it.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// requireFinding looks for a finding whose detail has some words. If result is
// "", there must be none.
func requireFinding(t *testing.T, name string, findings []Finding, result Result, words string) {
	t.Helper()
	i := slices.IndexFunc(findings, func(f Finding) bool { return strings.Contains(f.Detail, words) })
	switch {
	case result == "" && i >= 0:
		t.Errorf("%s: %+v", name, findings[i])
	case result != "" && i < 0:
		t.Errorf("%s: no Finding says %q:\n%+v", name, words, findings)
	case i >= 0 && findings[i].Result != result:
		t.Errorf("%s: %q is %s, want %s", name, words, findings[i].Result, result)
	case i >= 0 && findings[i].Result != OK && findings[i].Result != Absent && findings[i].Hint == "" && findings[i].Advice == "" && findings[i].Err == nil:
		t.Errorf("%s: %q has no hint", name, words)
	case i >= 0 && findings[i].Result == Failed && findings[i].Fault == FaultNone && findings[i].Err == nil:
		t.Errorf("%s: %q failed without a fault", name, words)
	}
}

func TestDoctorMachine(t *testing.T) {
	good := machine{
		proc:     files(t, map[string]string{"sys/user/max_user_namespaces": "15000", "self/uid_map": "0 0 4294967295", "self/gid_map": "0 0 4294967295"}),
		Machine:  Machine{Cgroups: func() (Cgroups, error) { return Cgroups{Version: "v2", Swap: true}, nil }, UserNamespace: func() error { return nil }, Mount: func() error { return nil }, Landlock: func() (int, error) { return 6, nil }},
		features: []feature{{name: "openat2", needed: true, hint: "newer", try: func() error { return nil }}},
	}
	group := func(i Cgroups, err error) func(*machine) {
		return func(m *machine) { m.Cgroups = func() (Cgroups, error) { return i, err } }
	}
	sysctl := func(name, value string) func(*machine) {
		return func(m *machine) { m.proc = files(t, map[string]string{"sys/" + name: value}) }
	}
	user := func(more func(*machine)) func(*machine) {
		return func(m *machine) { m.uid = 1000; more(m) }
	}
	feat := func(needed bool) func(*machine) {
		return func(m *machine) {
			m.features = []feature{{name: "thing", needed: needed, lost: "something is lost", hint: "newer", try: func() error { return unix.ENOSYS }}}
		}
	}
	landlock := func(version int, err error) func(*machine) {
		return func(m *machine) { m.Landlock = func() (int, error) { return version, err } }
	}
	confined := func(more func(*machine)) func(*machine) {
		return func(m *machine) {
			m.UserNamespace = func() error { return unix.EPERM }
			m.Mount = m.UserNamespace
			more(m)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*machine)
		result Result
		words  string
	}{
		{"a kernel without what is needed", feat(true), Failed, "no thing (function not implemented): no sandbox can be started"},
		{"a kernel without what is used", feat(false), Warning, "something is lost"},
		{"no cgroups", group(Cgroups{Version: "none", Missing: []string{"cpu", "memory", "pids"}}, nil), Warning, "none are mounted; missing or not writable: cpu, memory, pids"},
		{"a controller is missing", group(Cgroups{Version: "hybrid", Missing: []string{"pids"}}, nil), Warning, "hybrid: limits by version 1, version 2 beside it; missing or not writable: pids"},
		{"a container's processes in the way", group(Cgroups{Version: "v2", Missing: []string{"cpu", "memory", "pids"}, Crowded: "/sys/fs/cgroup"}, nil), Warning, "the cgroup /sys/fs/cgroup contains processes"},
		{"no swap accounting", group(Cgroups{Version: "v1"}, nil), OK, "version 1; swap is not accounted for"},
		{"cgroups can't be read", group(Cgroups{}, errors.New("no /proc")), Warning, "no /proc"},
		{"no cgroup is delegated to an ordinary user", user(group(Cgroups{Version: "v2", Missing: []string{"cpu"}}, nil)), OK, "none with cpu, memory and pids is delegated to this user"},
		{"cgroups that were delegated to an ordinary user", user(group(Cgroups{Version: "v2", Swap: true}, nil)), OK, "version 2; cpu, memory, pids and swap can be limited"},
		{"no user namespaces, root", sysctl("user/max_user_namespaces", "0"), Warning, "run as the owner's own uid"},
		{"no user namespaces, a user", user(sysctl("user/max_user_namespaces", "0")), Warning, "for an ordinary user, gvisor runs without namespaces, and runc can't be used"},
		{"Debian's switch, a user", user(sysctl("kernel/unprivileged_userns_clone", "0")), Warning, "kernel.unprivileged_userns_clone is 0"},
		{"Ubuntu's switch, a user", user(sysctl("kernel/apparmor_restrict_unprivileged_userns", "1")), Warning, "kernel.apparmor_restrict_unprivileged_userns is 1"},
		{"Ubuntu's switch, root", sysctl("kernel/apparmor_restrict_unprivileged_userns", "1"), "", "apparmor_restrict"},
		{"a container's root", confined(func(*machine) {}), Warning, "root may not mount here: gvisor runs without namespaces"},
		{"a container's user", user(confined(func(*machine) {})), Warning, "none can be made (operation not permitted): gvisor runs without"},
		{"root who may mount, and make no namespace", func(m *machine) { m.UserNamespace = func() error { return unix.EPERM } }, Warning, "none can be made: operation not permitted"},
		{"a container without limits", confined(group(Cgroups{Version: "v2", Missing: []string{"cpu"}}, nil)), Warning, "has only the limits of the container that Caisson runs in, which has none for memory"},
		{"a container with limits", user(confined(group(Cgroups{Version: "v2", Crowded: "/sys/fs/cgroup", Job: sandbox.AttestedLimits{MemoryBytes: 512 << 20}}, nil))), OK, "that Caisson runs in: 512.0 MiB of memory, processes without a limit"},
		{"a container with cgroups of its own", confined(group(Cgroups{Version: "v2", Swap: true}, nil)), OK, "cpu, memory, pids and swap can be limited"},
		{"Landlock", confined(func(*machine) {}), OK, "version 6"},
		{"no Landlock in a container", confined(landlock(0, unix.EOPNOTSUPP)), Warning, "none that gvisor can use (operation not supported)"},
		{"no Landlock for a user without namespaces", user(func(m *machine) { sysctl("user/max_user_namespaces", "0")(m); landlock(0, unix.ENOSYS)(m) }), Warning, "none that gvisor can use"},
		{"no Landlock elsewhere", landlock(0, unix.ENOSYS), Absent, "none that gvisor can use (function not implemented)"},
		{"root of a small user namespace", func(m *machine) { m.proc = files(t, map[string]string{"self/uid_map": "0 1000 1\n1 100000 5000\n"}) }, Warning, "without id 10001, which commands have (uid_map"},
		{"root of a large user namespace", func(m *machine) {
			m.proc = files(t, map[string]string{"self/uid_map": "0 1000 1\n1 100000 65536\n", "self/gid_map": "0 1000 1\n1 100000 65536\n"})
		}, OK, "root; commands run as uid 10001"},
		{"a container's user, and files", user(confined(func(*machine) {})), OK, "uid 1000; gvisor shows this user's files as the commands' own"},
		{"an ordinary user", user(func(*machine) {}), OK, "uid 1000; gvisor and runc have this one uid"},
	} {
		m := good
		tt.change(&m)
		requireFinding(t, tt.name, m.check(), tt.result, tt.words)
	}
	for _, f := range good.check() {
		if f.Result != OK {
			t.Errorf("control: a good machine has %+v", f)
		}
	}
	if found := CheckMachine(good.Machine); len(found) < 5 {
		t.Errorf("of this machine: %+v", found)
	}
}

// A kernel that refuses mounts to this process has id-mapped ones: that root may
// not mount is told once, and is no loss with gvisor.
func TestForbiddenFeature(t *testing.T) {
	for errno, lost := range map[unix.Errno]bool{unix.EPERM: false, unix.ENOSYS: true} {
		m := machine{proc: t.TempDir(), features: kernelFeatures(func() error { return errno })}
		if got := slices.ContainsFunc(m.checkKernel(), func(f Finding) bool { return strings.Contains(f.Detail, "no id-mapped mounts") }); got != lost {
			t.Errorf("%v: lost %v, want %v", errno, got, lost)
		}
	}
}

// TestKernelFeatures tries all features, which old kernels and containers lack.
func TestKernelFeatures(t *testing.T) {
	for _, f := range kernelFeatures(func() error { return nil }) {
		if err := f.try(); err != nil {
			t.Logf("%s: %v", f.name, err)
		}
	}
}

func TestRuntimeAdvisory(t *testing.T) {
	for text, warned := range map[string]bool{
		"1.1.5+ds1": true, "1.0.0-rc93": true, "1.2.7": true, "1.2.8": false, "1.2.10": false, "1.3.2": true, "1.3.3": false,
		"1.4.0-rc.2": true, "1.4.0-rc.3": false, "1.4.0": false, "1.5.1": false, "2.0.0": false, "unknown": true,
		"runc version 1.1.15": true,
	} {
		f, got := checkAdvisories("runc", sandbox.Info{Runtime: "runc", RuntimeVersion: text})
		if got != warned || got && (f.Result != Warning || f.Advice == "") {
			t.Errorf("runc %s: warned %v, want %v: %+v", text, got, warned, f)
		}
	}
	if f, got := checkAdvisories("gvisor", sandbox.Info{Runtime: "runsc", RuntimeVersion: "1.1.5"}); got {
		t.Errorf("runsc: %+v", f)
	}
}

// The sockets that answer outside are the control of what is not reached
// inside.
func TestDoctorNetwork(t *testing.T) {
	all := openListeners(t.Context())
	if len(all) < 2 {
		t.Fatalf("%d sockets", len(all))
	}
	for _, b := range all {
		defer b.listener.Close()
		if !b.answers(t.Context()) {
			t.Errorf("%s does not answer", b.name)
		}
	}
	all[0].listener.Close()
	if all[0].answers(t.Context()) {
		t.Error("a closed socket answers")
	}
	for _, tt := range []struct {
		name       string
		answer     func(target string) string
		interfaces []string
		result     Result
		words      string
	}{
		{"nothing reached", func(string) string { return "ENETUNREACH" }, []string{"lo"}, OK, "blocked"},
		{"all reached", func(string) string { return "ok" }, []string{"lo"}, Failed, "reached 127.0.0.1"},
		{"one reached", func(target string) string {
			if strings.HasPrefix(target, "abstract:") {
				return "ok"
			}
			return "ECONNREFUSED"
		}, []string{"lo"}, Failed, "reached an abstract socket"},
		{"an interface", func(string) string { return "ETIMEDOUT" }, []string{"lo", "eth0"}, Failed, "besides lo: eth0"},
		{"no answer", func(string) string { return "" }, []string{"lo"}, Failed, "reports nothing about"},
	} {
		r := wire.Reach{Interfaces: tt.interfaces, Results: map[string]string{}}
		for _, b := range all {
			if text := tt.answer(b.target.String()); text != "" {
				r.Results[b.target.String()] = text
			}
		}
		requireFinding(t, tt.name, []Finding{compareReach(all, r)}, tt.result, tt.words)
	}
}

// No address of the machine is listed twice, and none is link-local.
func TestDoctorAddresses(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range listAddresses() {
		if seen[a.String()] || a.IsLinkLocalUnicast() {
			t.Errorf("%s", a)
		}
		seen[a.String()] = true
	}
	if ip := net.IPv4(127, 0, 0, 1); !seen[ip.String()] {
		t.Errorf("%v", seen)
	}
}

// A state directory that another user can replace, by its name or behind a
// symlink, is a warning.
func TestReplaceableStateIsAWarning(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "middle", "state")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(filepath.Dir(dir), link)); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		for _, path := range []string{dir, filepath.Join(link, "state")} {
			f := CheckState(path, nil)
			if found := strings.Contains(f.Detail, "other users can replace"); found != (want != "") || found && (f.Result != Warning || !strings.Contains(f.Detail, want) || f.Hint == "") {
				t.Errorf("%s: %+v, want %q", path, f, want)
			}
		}
	}
	check("")
	for mode, want := range map[os.FileMode]string{0o777: "all users can write " + parent, 0o777 | os.ModeSticky: "", 0o775: "", 0o755: ""} {
		if err := os.Chmod(parent, mode); err != nil {
			t.Fatal(err)
		}
		check(want)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(parent, 4711, -1); err != nil {
			t.Fatal(err)
		}
		check("belongs to uid 4711")
	}
}

// A state directory from which no guest can be executed is a failure with a
// hint.
func TestStateOnNoExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	dir := t.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, and the mount with it
		if err := errors.Join(
			unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
			unix.Mount("noexec", dir, "tmpfs", unix.MS_NOEXEC, "mode=0700"),
		); err != nil {
			t.Logf("not tried: %v", err)
			return
		}
		if f := CheckState(dir, nil); f.Result != Failed || f.Hint != runner.ProgramHint(f.Err) || f.Hint == "" || !errors.As(f.Err, new(*programs.NoExecError)) {
			t.Errorf("finding %+v", f)
		}
	}()
	<-done
}
