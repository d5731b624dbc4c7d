package guest_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

// daemons starts eight daemons that forked twice, left the session and ignore
// SIGTERM, says "up" when all run, and continues.
const daemons = `
for i in 1 2 3 4 5 6 7 8; do
	(setsid sh -c 'trap "" TERM INT HUP; echo; while :; do sleep 1000; done' &)
done | (for i in 1 2 3 4 5 6 7 8; do read x; done; echo up)
sleep 1000`

// signalled signals each write.
type signalled struct{ ch chan struct{} }

func (s signalled) Write(p []byte) (int, error) {
	select {
	case <-s.ch:
	default:
		close(s.ch)
	}
	return len(p), nil
}

// TestCancelDaemons is the case that process groups and parent links miss.
func TestCancelDaemons(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	up := signalled{make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", daemons}, Stdout: up, Grace: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	<-up.ch

	cancel()
	exit, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if exit.Kill.Method != "gid" || exit.Kill.Killed < 8 || exit.Kill.Left != 0 {
		t.Errorf("kill report is %+v", exit.Kill)
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// TestDaemonsAreDaemons is their control: without a guest, they survive the
// kill of the command's process group.
func TestDaemonsAreDaemons(t *testing.T) {
	mark := "GUESTTEST_MARK=" + t.TempDir()
	cmd := exec.Command("sh", "-c", daemons)
	cmd.Env = []string{"PATH=/usr/bin:/bin", mark}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	left := marked(t, mark)
	if len(left) < 8 {
		t.Errorf("a process group's kill leaves %d processes: the daemons are no daemons, and tests that kill them prove nothing", len(left))
	}
	for len(left) > 0 {
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		left = marked(t, mark)
	}
}

// marked finds the processes that have a variable in their environment.
func marked(t *testing.T, variable string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), variable) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func TestCancel(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	for _, tt := range []struct {
		name, script string
		grace        time.Duration
		status       sandbox.ExitStatus
		stdout       string
		check        func(sandbox.KillReport) bool
	}{
		{
			name: "ends on SIGTERM", script: "echo up; sleep 1000", grace: time.Minute,
			status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}, stdout: "up\n",
			check: func(k sandbox.KillReport) bool { return k.Terminated >= 1 && k.Killed == 0 },
		},
		{
			name: "cleans up on SIGTERM", script: "trap 'echo bye; exit 3' TERM; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo up; wait", grace: time.Minute,
			status: sandbox.ExitStatus{Code: 3, Cancelled: true}, stdout: "up\nbye\n",
			check: func(k sandbox.KillReport) bool { return k.Terminated >= 1 && k.Killed == 0 },
		},
		{
			name: "starts something on SIGTERM and leaves it", grace: time.Minute,
			script: "trap 'sleep 1000 & exit 3' TERM; echo up; while :; do sleep .01; done",
			status: sandbox.ExitStatus{Code: 3, Cancelled: true}, stdout: "up\n",
			check: func(k sandbox.KillReport) bool { return k.Terminated >= 2 && k.Killed == 0 },
		},
		{
			name: "needs another process to clean up", grace: time.Minute,
			script: "trap 'sleep .2 && echo bye; exit 3' TERM; echo up; while :; do sleep .01; done",
			status: sandbox.ExitStatus{Code: 3, Cancelled: true}, stdout: "up\nbye\n",
			check: func(k sandbox.KillReport) bool { return k.Killed == 0 },
		},
		{
			name: "ignores SIGTERM", script: "trap '' TERM INT HUP; echo up; (sleep 600 &) ; while :; do sleep 600; done", grace: 30 * time.Millisecond,
			status: sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}, stdout: "up\n",
			check: func(k sandbox.KillReport) bool { return k.Terminated >= 1 && k.Killed >= 1 },
		},
		{
			name: "is stopped", script: "(sleep .2; echo up) & kill -STOP $$; sleep 1000", grace: time.Minute,
			status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}, stdout: "up\n",
			check: func(k sandbox.KillReport) bool { return k.Killed == 0 },
		},
		{
			name: "stopped all", script: "echo up; kill -STOP -1; sleep 1000", grace: time.Minute,
			status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}, stdout: "up\n",
			check: func(sandbox.KillReport) bool { return true },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			up := signalled{make(chan struct{})}
			var out strings.Builder
			p, err := c.Start(ctx, sandbox.Command{
				Argv: []string{"sh", "-c", tt.script}, Grace: tt.grace,
				Stdout: writers{up, &out},
			})
			if err != nil {
				t.Fatal(err)
			}
			<-up.ch
			cancel()
			cancel()
			exit, err := p.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if exit.Status != tt.status || exit.Kill.Left != 0 || !tt.check(exit.Kill) {
				t.Errorf("ended with %v, %+v, want %v", exit.Status, exit.Kill, tt.status)
			}
			if out.String() != tt.stdout {
				t.Errorf("stdout is %q", out.String())
			}
			if left := g.Living(t); len(left) != 0 {
				t.Errorf("left are %v", left)
			}
			again, err := p.Wait()
			if err != nil || again.Status != exit.Status {
				t.Errorf("a second Wait says %+v, %v", again, err)
			}
		})
	}
}

type writers []interface{ Write([]byte) (int, error) }

func (w writers) Write(p []byte) (int, error) {
	for _, one := range slices.Backward(w) {
		if n, err := one.Write(p); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

func TestCancelBeforeAndAfter(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	cause := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := c.Start(ctx, sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, cause) {
		t.Errorf("a start that was cancelled before: %v", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	r := start(ctx, t, c, sandbox.Command{Argv: []string{"true"}})()
	cancel(cause)
	if !r.Status.Success() {
		t.Errorf("cancelled after its end: %+v", r)
	}
	// Cancelled at every moment of a short life.
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for range i * 500 {
				_ = ctx.Err()
			}
			cancel()
		}()
		p, err := c.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", "sleep 0.001"}})
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			continue
		}
		exit, err := p.Wait()
		if err != nil || exit.Kill.Left != 0 || !exit.Status.Success() && !exit.Status.Cancelled {
			t.Fatalf("ended with %+v, %v", exit, err)
		}
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func TestLeftAfterExit(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	for range 3 { // each counts its own
		r := sh(t, c, "(setsid sh -c 'trap \"\" TERM; sleep 1000' &) ; sleep 1000 & echo ok")
		if r.stdout != "ok\n" || !r.Status.Success() {
			t.Errorf("%+v", r)
		}
		if !r.Kill.AfterExit || r.Kill.Killed < 2 || r.Kill.Killed > 5 || r.Kill.Left != 0 || r.Kill.Method != "gid" {
			t.Errorf("kill report is %+v", r.Kill)
		}
	}
	if r := sh(t, c, "true"); r.Kill != (sandbox.KillReport{}) {
		t.Errorf("a command that leaves nothing reports %+v", r.Kill)
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// TestPipeHeldElsewhere: another command holds the pipe. Its end is not waited
// for, and nothing written is lost.
func TestPipeHeldElsewhere(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := start(t.Context(), t, c, sandbox.Command{Argv: []string{"sh", "-c", "echo $$ >pid; echo begun; while ! test -e held; do sleep 0.01; done; echo ended"}})
	thief := start(ctx, t, c, sandbox.Command{Argv: []string{"sh", "-c", "while ! test -s pid; do sleep 0.01; done; exec 9>/proc/$(cat pid)/fd/1; touch held; sleep 1000"}})
	r := first()
	if r.stdout != "begun\nended\n" || !r.Status.Success() || r.Kill.Killed != 0 {
		t.Errorf("%+v", r)
	}
	if len(g.Processes(t)) == 0 {
		t.Error("the thief is gone: this test proves nothing")
	}
	cancel()
	if r := thief(); !r.Status.Cancelled {
		t.Errorf("%+v", r)
	}
}

// TestZombies checks that orphans are reaped without the host.
func TestZombies(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	r := sh(t, c, "i=0; while [ $i -lt 500 ]; do (true &) ; i=$((i+1)); done; echo made")
	if r.stdout != "made\n" {
		t.Fatalf("%+v", r)
	}
	for deadline := time.Now().Add(time.Minute); len(g.Processes(t)) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("left are %v", g.Processes(t))
		}
	}
}

// TestLeaderGone: a process whose first thread has ended looks like a zombie,
// and must still be killed.
func TestLeaderGone(t *testing.T) {
	c, g := dial(t, guesttest.Options{Stage: true})
	up := signalled{make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(ctx, sandbox.Command{
		Argv:   []string{"sh", "-c", "setsid /.caisson/stage leaderless & sleep 1000"},
		Stdout: up, Grace: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-up.ch
	cancel()
	exit, err := p.Wait()
	if err != nil || exit.Kill.Left != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func TestSingleUser(t *testing.T) {
	// The test's guest is uid 0, and so are its commands then.
	c, g := dial(t, guesttest.Options{Workspace: t.TempDir()}, func(o *guest.Options) { o.Config.SingleUID = true })
	h := c.Hello()
	if h.KillMethod != "subreaper" || len(h.Lost) == 0 {
		t.Errorf("hello is %+v", h)
	}
	if err := guest.VerifyHardening(h, guest.Expectation{}); err == nil {
		t.Error("one user for all passes where it was not accepted")
	}
	if err := guest.VerifyHardening(h, guest.Expectation{SingleUID: true}); err != nil {
		t.Error(err)
	}
	if r := sh(t, c, "echo out; echo err >&2; exit 4"); r.stdout != "out\n" || r.stderr != "err\n" || r.Status.Code != 4 {
		t.Errorf("%+v", r)
	}
	if r := sh(t, c, "kill -9 $$"); r.Status.Signal != 9 {
		t.Errorf("%+v", r)
	}
	if r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"/nothing"}})(); r.Status.Code != 127 {
		t.Errorf("%+v", r)
	}
	if r := sh(t, c, "(setsid sleep 1000 &) ; echo ok"); r.stdout != "ok\n" || !r.Kill.AfterExit || r.Kill.Killed != 1 {
		t.Errorf("%+v", r)
	}
	up := signalled{make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", daemons}, Stdout: up, Grace: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	<-up.ch
	cancel()
	exit, err := p.Wait()
	if err != nil || exit.Kill.Method != "subreaper" || exit.Kill.Killed < 8 || exit.Kill.Left != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// TestNoGraceForWhatHarmsTheHost cancels a command that ignores SIGTERM because
// of the host's disk: a grace period of an hour does not pass. The control is
// that a plain cancellation waits for the command's own end.
func TestNoGraceForWhatHarmsTheHost(t *testing.T) {
	for name, cause := range map[string]error{
		"disk":  &limits.ExceededError{Kind: limits.KindDisk},
		"plain": nil,
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := dial(t, guesttest.Options{})
			up := signalled{make(chan struct{})}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			script := "trap 'trap \"\" TERM; sleep .2; exit 3' TERM; echo up; while :; do sleep .01; done"
			if cause != nil {
				script = "trap '' TERM; echo up; while :; do sleep .01; done"
			}
			p, err := c.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: up, Grace: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			<-up.ch
			cancel(cause)
			exit, err := p.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if killed := exit.Status.Signal == 9; killed != (cause != nil) || !exit.Status.Cancelled {
				t.Errorf("%+v", exit.Status)
			}
		})
	}
}
