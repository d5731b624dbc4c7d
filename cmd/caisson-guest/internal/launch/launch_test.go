package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ShimWord {
		if os.Getenv(noReport) != "" {
			unix.CloseOnExec(shimReport)
			unix.CloseOnExec(shimControl)
			_ = exec.Command(os.Args[2], os.Args[4:]...).Start()
			<-time.After(time.Hour) // a select without cases would end as a deadlock
		}
		os.Exit(Shim(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// newDirect returns a Direct for commands of the tests' own user.
var newDirect = sync.OnceValues(func() (Direct, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return Direct{}, err
	}
	spawner, err := spawn.New(spawn.Options{Workspace: "/", Null: null})
	loop := reap.New()
	go loop.Run()
	return Direct{Spawner: spawner, Reaper: loop}, err
})

func direct(t *testing.T) Direct {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	d, err := newDirect()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func shimmedBy(t *testing.T, executable string) Shimmed {
	t.Helper()
	return Shimmed{Direct: direct(t), Shims: kill.NewShims(), Executable: executable}
}

func sh(script string) spawn.Request {
	return spawn.Request{Argv: []string{"sh", "-c", script}, Env: os.Environ()}
}

func read(t *testing.T, f *os.File) string {
	t.Helper()
	if err := f.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	out, err := io.ReadAll(f)
	if err != nil {
		t.Error(err)
	}
	return string(out)
}

// settled waits until the process has no more descriptors than before.
func settled(t *testing.T, before int) {
	t.Helper()
	now := 0
	for range 400 {
		if now = filtertest.Descriptors(t); now <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d descriptors are open, %d before", now, before)
}

// TestLaunch checks that commands are the same either way, except for their
// parent. The shim can't be traced, inherits daemons and exits without being
// killed.
func TestLaunch(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	const script = `echo $$; cut -d' ' -f6 /proc/$$/stat; echo $PPID; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; cat /proc/$PPID/environ >/dev/null 2>&1 && echo open; echo err >&2; exit 3`
	var counts [2]string
	before := filtertest.Descriptors(t)
	for i, launch := range []func(spawn.Request) (Process, error){s.Direct.Launch, s.Launch} {
		p, err := launch(sh(script))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(read(t, p.Stdout), "\n")
		if len(lines) < 5 {
			t.Fatalf("it says %q", lines)
		}
		pid, parent := strconv.Itoa(p.PID), os.Getpid()
		if i == 1 {
			parent = p.Mark.Shim
		}
		counts[i] = lines[4]
		if want := []string{pid, pid, strconv.Itoa(parent), os.DevNull}; strings.Join(lines[:4], " ") != strings.Join(want, " ") {
			t.Errorf("it says %q, want %q", lines, want)
		}
		if i == 1 && len(lines) != 6 {
			t.Errorf("the environment of the shim can be read: %q", lines)
		}
		if errs := read(t, p.Stderr); errs != "err\n" {
			t.Errorf("its errors are %q", errs)
		}
		if e := <-p.Exit; e.Status != 3<<8 {
			t.Errorf("it ends with %v", e.Status)
		}
		killed := s.Reaper.Killed()
		p.Close()
		p.Release()
		if s.Reaper.Killed() != killed || unix.Kill(p.PID, 0) != unix.ESRCH || i == 1 && unix.Kill(p.Mark.Shim, 0) != unix.ESRCH {
			t.Error("the shim did not leave")
		}
		settled(t, before)
	}
	if counts[0] != counts[1] {
		t.Errorf("a command has %s descriptors, below a shim %s", counts[0], counts[1])
	}
}

// TestLaunchOnATerminal checks that the command has the terminal either way, and
// that it ends with the command, not with the shim.
func TestLaunchOnATerminal(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	before := filtertest.Descriptors(t)
	for _, launch := range []func(spawn.Request) (Process, error){s.Direct.Launch, s.Launch} {
		r := sh("tty </dev/tty; ps -o tty= -p $PPID; test $(cut -d' ' -f8 /proc/$$/stat) = $$ && echo foreground")
		r.Terminal = &wire.TerminalSize{}
		p, err := launch(r)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout)
		lines := strings.Split(string(out), "\r\n")
		if !errors.Is(err, unix.EIO) || len(lines) != 4 || lines[0] == strings.TrimSpace(lines[1]) || lines[2] != "foreground" {
			t.Errorf("it says %q, %v", lines, err)
		}
		if e := <-p.Exit; e.Status != 0 {
			t.Errorf("it ends with %v", e.Status)
		}
		p.Close()
		p.Release()
		settled(t, before)
	}
}

// TestDaemons checks that a command's daemon falls to its shim. A shim that
// does not exit is killed and forgotten.
func TestDaemons(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	before := filtertest.Descriptors(t)
	p, err := s.Launch(sh("(setsid sleep 1000 >/dev/null & echo $!)"))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(read(t, p.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exit
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", daemon))
	if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", p.Mark.Shim)) {
		t.Errorf("the daemon's parent is not %d: %s, %v", p.Mark.Shim, status, err)
	}
	if err := errors.Join(unix.Kill(daemon, unix.SIGKILL), unix.Kill(p.Mark.Shim, unix.SIGSTOP)); err != nil {
		t.Error(err)
	}
	stray := func() bool { // to the killer, as it is not a shim that it knows
		proc := t.TempDir()
		dir := filepath.Join(proc, strconv.Itoa(p.Mark.Shim))
		status := fmt.Sprintf("State:\tS\nPPid:\t%d\n", os.Getpid())
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o600)); err != nil {
			t.Fatal(err)
		}
		return kill.NewAt(proc, kill.MethodSubreaper, s.Reaper, s.Shims).Alive(kill.Mark{Shim: 1 << 23}) == 1
	}
	if stray() {
		t.Error("the shim is not known")
	}
	for range 1000 {
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Mark.Shim)); err != nil || strings.Contains(string(status), "\nState:\tT") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	killed := s.Reaper.Killed()
	p.Close()
	p.Release()
	if s.Reaper.Killed() != killed+1 || unix.Kill(p.Mark.Shim, 0) != unix.ESRCH || !stray() {
		t.Error("the shim is left")
	}
	settled(t, before)
}

// noReport is a variable with which a shim starts its command and reports
// nothing.
const noReport = "SHIM_REPORTS_NOTHING"

// TestShimKilledFirst checks that a command that kills its shim before the shim
// has reported anything counts as killed, and that the end of the command finds
// and kills it. The control is that it runs until then.
func TestShimKilledFirst(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // as PID 1 of a container
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	before := filtertest.Descriptors(t)
	ready := filepath.Join(t.TempDir(), "ready")
	r := sh(`echo $$ >` + ready + `; kill -9 $PPID; exec sleep 1000`)
	r.Env = append(r.Env, noReport+"=1")
	p, err := s.Launch(r)
	if err != nil {
		t.Fatal(err)
	}
	if e := <-p.Exit; !e.Status.Signaled() || e.Status.Signal() != syscall.SIGKILL {
		t.Errorf("it ends with %v", e.Status)
	}
	text, err := os.ReadFile(ready)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(daemon, 0); err != nil {
		t.Errorf("control: the command does not run: %v", err)
	}
	killer := kill.New(kill.MethodSubreaper, s.Reaper, s.Shims)
	var report kill.Report
	killer.Kill(p.Mark, &report)
	// It is dead at once, and exists until its parent has reaped it.
	for i := 0; err == nil && i < 400; i++ {
		if err = unix.Kill(daemon, 0); err == nil {
			time.Sleep(5 * time.Millisecond)
		}
	}
	if !errors.Is(err, unix.ESRCH) || report.Left() != 0 {
		t.Errorf("the command is left: %v, %d", err, report.Left())
	}
	p.Close()
	p.Release()
	settled(t, before)
}

// TestLaunchFails checks that failed starts leave nothing.
func TestLaunchFails(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	dir := t.TempDir()
	noProgram := filepath.Join(dir, "no-program")
	if err := os.WriteFile(noProgram, []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := filtertest.Descriptors(t)
	for name, tt := range map[string]struct {
		launch  func(spawn.Request) (Process, error)
		program string
		code    int // of a spawn.Failure
		want    string
	}{
		"direct":       {s.Direct.Launch, "/none", 127, "not found"},
		"not found":    {s.Launch, "none", 127, "not found"},
		"not executed": {s.Launch, noProgram, 126, "exec format error"},
		"not there":    {s.Launch, "/none", 127, "not found"},
		"no guest":     {shimmedBy(t, "/none").Launch, "/bin/true", 127, "not found"},
		"no shim":      {shimmedBy(t, "/bin/true").Launch, "/bin/true", 0, "start shim: it ended with status 0 before"},
	} {
		killed := s.Reaper.Killed()
		_, err := tt.launch(spawn.Request{Argv: []string{tt.program}, Env: os.Environ()})
		failure, ok := errors.AsType[*spawn.Failure](err)
		if err == nil || ok != (tt.code != 0) || ok && failure.Code != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if s.Reaper.Killed() != killed {
			t.Errorf("%s: the shim did not leave", name)
		}
		settled(t, before)
	}
}

// TestLaunchWithoutDescriptors checks that a shim without pipes is not started.
func TestLaunchWithoutDescriptors(t *testing.T) {
	s := shimmedBy(t, "/proc/self/exe")
	r := sh("exit 3")
	r.Program = "/bin/sh"
	p, err := s.Launch(r) // the next ones find their directory entered
	if err != nil {
		t.Fatal(err)
	}
	<-p.Exit
	p.Close()
	p.Release()
	before := filtertest.Descriptors(t)
	for n := range 4 {
		var err error
		filtertest.WithDescriptors(t, n, func() { _, err = s.Launch(r) })
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "make pipe") {
			t.Errorf("with %d descriptors: %v", n, err)
		}
		settled(t, before)
	}
}

// TestShimRefused checks that a shim does not start if it could be traced or
// would get no orphans.
func TestShimRefused(t *testing.T) {
	defer func(was bool) {
		if err := identity.SetDumpable(was); err != nil {
			t.Error(err)
		}
	}(identity.Dumpable())
	for _, call := range []uint32{unix.PR_SET_DUMPABLE, unix.PR_SET_CHILD_SUBREAPER} {
		code := make(chan int)
		identity.Dedicate(func() {
			if err := errors.Join(identity.NoNewPrivileges(), identity.SetFilter(filtertest.Refuse(syscall.EPERM, unix.SYS_PRCTL, call))); err != nil {
				t.Error(err)
			}
			code <- Shim([]string{"/bin/true", "true"})
		})
		if got := <-code; got != 2 {
			t.Errorf("without prctl %d: %d", call, got)
		}
	}
}
