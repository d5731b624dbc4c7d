package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/setid"
)

// newSpawner starts a spawner for a directory that the commands' user may
// enter.
func newSpawner(t *testing.T, separate bool) (*Spawner, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	t.Chdir(dir) // and back
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.Mkdir("own", 0o700), os.Chown("own", 10001, 10002), os.Mkdir("roots", 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Options{
		Commands:     identity.Commands{UID: 10001, GID: 10002, Separate: separate},
		IdentityBase: 50000, IdentityCount: 15, IdentityDir: filepath.Join(dir, "identities"),
		Workspace: dir, Null: null, MilliCPUs: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.root.Close(), unix.Close(s.dir) })
	return s, dir
}

// run runs a program to its end, with input if it is not empty.
func run(t *testing.T, s *Spawner, r Request, in string) (stdout, stderr string, status unix.WaitStatus) {
	t.Helper()
	r.Stdin = in != ""
	c, err := s.Spawn(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Close()
		if err := c.Stdout.Close(); err == nil {
			t.Error("a child's files are left open")
		}
	}()
	if in != "" {
		if _, err := io.WriteString(c.Stdin, in); err != nil {
			t.Error(err)
		}
		_ = c.Stdin.Close()
	}
	for _, f := range []*os.File{c.Stdout, c.Stderr} {
		if err := f.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
	}
	out, err := io.ReadAll(c.Stdout)
	errs, err2 := io.ReadAll(c.Stderr)
	_, err3 := unix.Wait4(c.PID, &status, 0, nil)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Error(err)
	}
	return string(out), string(errs), status
}

// TestSpawn checks a command's identity, and that it has no more than it was
// given.
func TestSpawn(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin"}
	for _, separate := range []bool{true, false} {
		s, dir := newSpawner(t, separate)
		status, _, _ := run(t, s, Request{Argv: []string{"cat", "/proc/self/status"}, Env: env, Group: 30000}, "")
		p := identity.Parse([]byte(status))
		apart := p.UID == [4]uint32{10001, 10001, 10001, 10001} && p.GID == [4]uint32{10002, 10002, 10002, 10002} &&
			len(p.Groups) == 1 && p.Groups[0] == 30000 && p.Permitted == 0 && p.Effective == 0
		if apart != separate || p.Bounding != 0 || p.Inheritable != 0 || p.Ambient != 0 || !p.NoNewPrivs || p.Seccomp != 2 {
			t.Errorf("separate %t: a command is %+v", separate, p)
		}
		if got := s.Lost(); len(got) != 0 {
			t.Errorf("lost is %q", got)
		}
		out, errs, code := run(t, s, Request{
			Argv: []string{"sh", "-c", "pwd; cat; cat /proc/self/oom_score_adj; nproc; echo $A; test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo leads; ls /proc/self/fd | wc -l; echo err >&2; exit 3"},
			Env:  append(env, "A=b"), Dir: "own/..",
		}, "in\n")
		// ls has its directory open besides 0, 1 and 2, and these tests'
		// inherited ones.
		if want := fmt.Sprintf("%s\nin\n1000\n1\nb\nleads\n%d\n", dir, 4+inherited(t)); out != want || errs != "err\n" || code.ExitStatus() != 3 {
			t.Errorf("separate %t: %q, %q, %v, want %q", separate, out, errs, code.ExitStatus(), want)
		}
		if text, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(text) == "1000\n" {
			t.Errorf("the guest's own score is %q, %v", text, err)
		}
		var all unix.CPUSet
		s.thread.Do(func() { _ = unix.SchedGetaffinity(0, &all) })
		if all.Count() != runtime.NumCPU() {
			t.Errorf("the spawner has %d processors", all.Count())
		}
		s.thread.Do(func() {
			if uid, gid := unix.Geteuid(), unix.Getegid(); uid != 0 || gid != 0 {
				t.Errorf("the spawner is user %d and group %d", uid, gid)
			}
		})
		if out, _, _ := run(t, s, Request{Argv: []string{"x", "a"}, Program: "/bin/echo", Env: env}, ""); out != "a\n" {
			t.Errorf("a program that is named: %q", out)
		}
	}
}

// inherited counts the descriptors from 3 on that programs inherit.
func inherited(t *testing.T) (n int) {
	t.Helper()
	for fd := uintptr(3); fd < 1000; fd++ {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			n++
		}
	}
	return n
}

// TestSpawnFails checks that directories and programs are looked up as the
// commands' user, and that failed starts leave no descriptor.
func TestSpawnFails(t *testing.T) {
	s, dir := newSpawner(t, true)
	env := []string{"PATH=/usr/bin:/bin:" + dir}
	if err := os.WriteFile("no-program", []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	var before int
	for round := range 3 {
		for _, tt := range []struct {
			r     Request
			found bool // Find says no error
			dir   bool // ErrDir
			code  int
		}{
			{r: Request{Argv: []string{"true"}, Dir: "roots"}, dir: true},
			{r: Request{Argv: []string{"true"}, Dir: "none"}, dir: true},
			{r: Request{Argv: []string{"no-such-program"}}, code: 127},
			{r: Request{Argv: []string{"./none"}}, found: true, code: 127},
			{r: Request{Argv: []string{"./roots/none"}}, found: true, code: 126},
			{r: Request{Argv: []string{"no-program"}}, found: true, code: 126},
		} {
			tt.r.Env = env
			program, err := s.Find(tt.r)
			if (err == nil) != tt.found || tt.found == (program == "") {
				t.Errorf("find %+v: %q, %v", tt.r, program, err)
			}
			_, err = s.Spawn(tt.r)
			failure, ok := errors.AsType[*Failure](err)
			if err == nil || errors.Is(err, ErrDir) != tt.dir || ok != (tt.code != 0) || ok && (failure.Code != tt.code || !strings.Contains(failure.Text, filepath.Base(tt.r.Argv[0]))) {
				t.Errorf("%+v: %v, want code %d", tt.r, err, tt.code)
			}
		}
		if round == 0 {
			before = filtertest.Descriptors(t)
		}
	}
	if after := filtertest.Descriptors(t); after > before {
		t.Errorf("%d descriptors are open, before %d", after, before)
	}
	failure, ok := errors.AsType[*Failure](s.Explain("tool", "/none", unix.ENOENT))
	if !ok || failure.Code != 127 {
		t.Errorf("explained as %+v", failure)
	}
}

// TestSpawnWithoutDescriptors checks that a program without pipes is not
// started, and leaves none open.
func TestSpawnWithoutDescriptors(t *testing.T) {
	s, _ := newSpawner(t, true)
	r := Request{Argv: []string{"true"}, Program: "/bin/true", Stdin: true}
	run(t, s, r, "")
	before := filtertest.Descriptors(t)
	for n := range 100 {
		var c Child
		var err error
		filtertest.WithDescriptors(t, n, func() { c, err = s.Spawn(r) })
		if err == nil && n > 0 {
			c.Close()
			if _, err := unix.Wait4(c.PID, nil, 0, nil); err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil || !errors.Is(err, unix.EMFILE) && !strings.Contains(err.Error(), unix.EMFILE.Error()) {
			t.Errorf("with %d descriptors: %v", n, err)
		}
		if now := filtertest.Descriptors(t); now > before {
			t.Errorf("with %d descriptors: %d are open, %d before", n, now, before)
		}
	}
	t.Error("nothing is started with 99 descriptors")
}

// TestEnterClosed checks that a directory that commands can read but not search
// is not entered.
func TestEnterClosed(t *testing.T) {
	s, dir := newSpawner(t, true)
	if err := os.Mkdir("closed", 0o744); err != nil {
		t.Fatal(err)
	}
	before := filtertest.Descriptors(t)
	for name, enter := range map[string]func(string) error{
		"openat2": func(dir string) error { return s.enterDirectory(dir, false) }, "root": s.enterByRoot, "names": s.enterByName,
	} {
		var err error
		s.thread.Do(func() { err = s.withIdentity(0, func() error { return enter("closed") }) })
		if !errors.Is(err, ErrDir) || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: error is %v", name, err)
		}
		if at, _ := os.Getwd(); at != dir {
			t.Errorf("%s: in %s", name, at)
		}
	}
	if now := filtertest.Descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// TestNewFails checks that a spawner needs a workspace that its commands can
// use.
func TestNewFails(t *testing.T) {
	_, dir := newSpawner(t, true)
	for name, tt := range map[string]struct {
		mode os.FileMode
		want error
		text string
	}{
		"none":       {want: os.ErrNotExist, text: "open workspace"},
		"unreadable": {mode: 0o711, want: os.ErrPermission, text: "open workspace"},
		"closed":     {mode: 0o744, want: os.ErrPermission, text: "enter workspace"},
	} {
		if tt.mode != 0 {
			if err := os.Mkdir(name, tt.mode); err != nil {
				t.Fatal(err)
			}
		}
		_, err := New(Options{Commands: identity.Commands{UID: 10001, GID: 10002, Separate: true}, Workspace: filepath.Join(dir, name)})
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

// TestNewUnprivileged checks that separating commands from the guest needs
// privileges. It runs again as another user.
func TestNewUnprivileged(t *testing.T) {
	if os.Getuid() == 0 {
		c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") // in a directory that the user can't enter
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 10001, Gid: 10002}}
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
			t.Errorf("as another user: %v\n%s", err, out)
		}
		return
	}
	if _, err := New(Options{Commands: identity.Commands{UID: 10003, GID: 10003, Separate: true}, Workspace: "/"}); !errors.Is(err, unix.EPERM) {
		t.Errorf("error is %v", err)
	}
}

// onThread runs f on its own thread with only these capabilities, under
// filters.
func onThread(t *testing.T, capabilities uint64, f func(), filters ...[]unix.SockFilter) {
	t.Helper()
	done := make(chan struct{})
	identity.Dedicate(func() {
		defer close(done)
		for _, filter := range filters {
			if err := identity.SetFilter(filter); err != nil {
				t.Error(err)
				return
			}
		}
		if capabilities != all {
			if err := identity.LimitCapabilities(capabilities); err != nil {
				t.Error(err)
				return
			}
		}
		f()
	})
	<-done
}

const all = ^uint64(0)

// TestPrepareFails checks that a thread that can't be restricted starts no
// commands.
func TestPrepareFails(t *testing.T) {
	_, dir := newSpawner(t, true)
	helper, err := identity.NewPool(identity.Commands{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		capabilities uint64
		filter       []unix.SockFilter
		shared       bool // commands are who the guest is
		want, lost   string
	}{
		"bounding set": {capabilities: 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID, want: "bounding set"},
		"groups":       {capabilities: 1 << unix.CAP_SETPCAP, want: "set groups"},
		"capabilities": {capabilities: all, filter: filtertest.Refuse(unix.EPERM, unix.SYS_CAPSET), want: "limit capabilities"},
		"privileges":   {capabilities: all, filter: filtertest.Refuse(unix.EPERM, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS), want: "set no_new_privs"},
		"filter":       {capabilities: all, filter: filtertest.Refuse(unix.EPERM, unix.SYS_SECCOMP), want: "install seccomp filter"},
		"identity":     {capabilities: 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETGID, want: "set effective uid"},
		"shared":       {capabilities: 0, shared: true, lost: "bounding set"},
	} {
		s := &Spawner{o: Options{Commands: identity.Commands{UID: 10001, GID: 10002, Separate: !tt.shared}, Workspace: dir}, helper: helper}
		var filters [][]unix.SockFilter
		if tt.filter != nil {
			filters = append(filters, tt.filter)
		}
		var err error
		onThread(t, tt.capabilities, func() { err = s.prepareThread() }, filters...)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one with %q", name, err, tt.want)
		}
		if lost := strings.Join(s.Lost(), ""); (lost == "") != (tt.lost == "") || !strings.Contains(lost, tt.lost) {
			t.Errorf("%s: lost is %q, want %q", name, lost, tt.lost)
		}
	}
}

// TestSetFilter checks that without notifications nothing gets a set-ID bit,
// and that a filter that can't be installed is an error.
func TestSetFilter(t *testing.T) {
	if setid.Choose() != filter.NotifySetID {
		t.Skip("needs a kernel with notifications")
	}
	_, dir := newSpawner(t, true)
	helper, err := identity.NewPool(identity.Commands{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s := &Spawner{helper: helper}
	absent := filtertest.Refuse(unix.EINVAL, unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES)
	for name, tt := range map[string]struct {
		listener bool // a filter with a listener is there
		filters  [][]unix.SockFilter
		want     error // of setFilter
		chmod    error // of setting the set-group-ID bit of a directory
	}{
		"notifications":    {},
		"no notifications": {filters: [][]unix.SockFilter{absent}, chmod: unix.EPERM},
		"another listener": {listener: true, chmod: unix.EPERM},
		"no notifications, no filter": {
			filters: [][]unix.SockFilter{absent, filtertest.Refuse(unix.ENOMEM, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER)},
			want:    unix.ENOMEM,
		},
		"no supervision": {filters: [][]unix.SockFilter{filtertest.Refuse(unix.ENOMEM, unix.SYS_FCNTL)}, want: unix.ENOMEM},
		"no filter": {
			filters: [][]unix.SockFilter{filtertest.Refuse(unix.ENOMEM, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER)},
			want:    unix.ENOMEM,
		},
	} {
		onThread(t, all, func() {
			if tt.listener {
				fd, err := identity.SetFilterWithListener([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
				if err != nil {
					t.Error(err)
				}
				defer unix.Close(fd)
			}
			err := s.setFilter()
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: error is %v, want %v", name, err, tt.want)
			}
			if err == nil {
				if err := unix.Chmod(dir, 0o2755); !errors.Is(err, tt.chmod) {
					t.Errorf("%s: change of a mode: %v, want %v", name, err, tt.chmod)
				}
			}
		}, tt.filters...)
	}
}
