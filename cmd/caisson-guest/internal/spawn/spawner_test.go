package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// newSpawner starts a spawner for a folder that the commands' user may enter.
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
	s, err := New(Options{UID: 10001, GID: 10002, Separate: separate, Workspace: dir, Null: null, MilliCPUs: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.work) })
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
	defer c.Close()
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

// TestSpawn: a command is who it must be, and has no more than it was given.
func TestSpawn(t *testing.T) {
	env := []string{"PATH=/usr/bin:/bin"}
	for _, separate := range []bool{true, false} {
		s, dir := newSpawner(t, separate)
		status, _, _ := run(t, s, Request{Argv: []string{"cat", "/proc/self/status"}, Env: env, Group: 30000}, "")
		p := identity.Parse([]byte(status)).Identity
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
		// ls has its directory open beside 0, 1 and 2, and what these tests inherited.
		if want := fmt.Sprintf("%s\nin\n1000\n1\nb\nleads\n%d\n", dir, 4+inherited(t)); out != want || errs != "err\n" || code.ExitStatus() != 3 {
			t.Errorf("separate %t: %q, %q, %v, want %q", separate, out, errs, code.ExitStatus(), want)
		}
		if text, err := os.ReadFile("/proc/self/oom_score_adj"); err != nil || string(text) == "1000\n" {
			t.Errorf("the guest's own score is %q, %v", text, err)
		}
		var all unix.CPUSet
		s.do(func() { _ = unix.SchedGetaffinity(0, &all) })
		if all.Count() != runtime.NumCPU() {
			t.Errorf("the spawner has %d processors", all.Count())
		}
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

// TestSpawnFails: folders and programs are looked for as the commands' user,
// and what does not start leaves no descriptor.
func TestSpawnFails(t *testing.T) {
	s, dir := newSpawner(t, true)
	env := []string{"PATH=/usr/bin:/bin:" + dir}
	if err := os.WriteFile("no-program", []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
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
			before = count()
		}
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors are open, before %d", after, before)
	}
}

// TestNewFails: a spawner that has no workspace is none.
func TestNewFails(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Chdir(t.TempDir())
	if _, err := New(Options{UID: 10001, GID: 10002, Separate: true, Workspace: "none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}
