package reap

import (
	"errors"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// patience bounds waiting.
const patience = 10 * time.Second

// newLoop returns a Loop that gets no signals once the test is over.
func newLoop(t *testing.T) *Loop {
	t.Helper()
	l := New()
	t.Cleanup(func() { signal.Stop(l.signals) })
	return l
}

func run(t *testing.T, l *Loop) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		l.Run()
		close(ended)
	}()
	t.Cleanup(func() {
		signal.Stop(l.signals)
		close(l.signals)
		<-ended
	})
}

// forkShell starts a script. Package os/exec would wait for it.
func forkShell(script string) (pid int, err error) {
	return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, 1, 2},
	})
}

// forkEnded is forkShell, but returns when the script has ended, not reaped.
func forkEnded(script string) (pid int, err error) {
	pid, err = forkShell(script)
	if err != nil {
		return 0, err
	}
	for {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return pid, err
		}
	}
}

func wait[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatal("nothing comes")
	}
	return v
}

// drain calls Drain until no child is left. A single call may be cut short.
func drain(t *testing.T, l *Loop) {
	t.Helper()
	for began := time.Now(); !l.Drain(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("children are left")
		}
	}
}

// TestRun checks that the exits of all started processes are delivered with
// their usage, however few signals come.
func TestRun(t *testing.T) {
	l := newLoop(t)
	var exits []<-chan Exit
	scripts := []struct {
		script string
		want   unix.WaitStatus
	}{
		{"exit 3", 3 << 8},
		{"exit 9", 9 << 8},
		{"kill -TERM $$", unix.WaitStatus(unix.SIGTERM)},
		{"kill -KILL $$", unix.WaitStatus(unix.SIGKILL)},
		{"exit 0", 0},
		{"kill -KILL $$", unix.WaitStatus(unix.SIGKILL)},
	}
	for _, s := range scripts {
		exit, err := l.Start(func() (int, error) { return forkEnded(s.script) })
		if err != nil {
			t.Fatal(err)
		}
		exits = append(exits, exit)
	}
	began := time.Now()
	run(t, l)
	for i, s := range scripts {
		e := wait(t, exits[i])
		if e.Status != s.want || e.Time.Before(began) || e.Time.After(time.Now()) || e.Usage.Maxrss == 0 {
			t.Errorf("%s: exit is %+v, want status %v", s.script, e, s.want)
		}
	}
	if n := l.Killed(); n != 2 {
		t.Errorf("%d processes ended by SIGKILL, want 2", n)
	}
	if u := l.Orphans(); u != (Usage{}) {
		t.Errorf("orphans used %+v", u)
	}
	if len(l.waiting) != 0 {
		t.Errorf("exits are awaited of %v", l.waiting)
	}
}

// TestStart checks that the exit of a process that ends before its start has
// returned is delivered, also while the loop runs.
func TestStart(t *testing.T) {
	l := newLoop(t)
	run(t, l)
	exit, err := l.Start(func() (int, error) { return forkEnded("exit 5") })
	if err != nil {
		t.Fatal(err)
	}
	if e := wait(t, exit); e.Status.ExitStatus() != 5 {
		t.Errorf("exit is %+v", e)
	}
	failure := errors.New("failure")
	if exit, err = l.Start(func() (int, error) { return 0, failure }); !errors.Is(err, failure) || exit != nil {
		t.Errorf("a start that fails returns %v, %v", exit, err)
	}
}

// TestOrphans checks that an orphan is reaped, and its usage reported once.
func TestOrphans(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	l := newLoop(t)
	run(t, l)
	if _, err := l.Start(func() (int, error) { return forkEnded("sleep .02 & exit") }); err != nil {
		t.Fatal(err)
	}
	var u Usage
	for u.Peak == 0 {
		next := l.Next()
		if u = l.Orphans(); u.Peak == 0 {
			wait(t, next)
		}
	}
	if u := l.Orphans(); u != (Usage{}) {
		t.Errorf("then orphans used %+v", u)
	}
}

// TestNext checks that each channel is closed when one process has been reaped.
func TestNext(t *testing.T) {
	l := newLoop(t)
	for range 2 {
		next := l.Next()
		if next == nil || l.Next() != next {
			t.Fatal("there is not one channel")
		}
		select {
		case <-next:
			t.Error("it is closed before a process is reaped")
		default:
		}
		for range 2 {
			if _, err := forkEnded("exit"); err != nil {
				t.Fatal(err)
			}
		}
		drain(t, l)
		wait(t, next)
	}
}

// TestReapOne checks that it takes one ended process at a time, and
// distinguishes a running one from none.
func TestReapOne(t *testing.T) {
	l := newLoop(t)
	reaps := func(name string, wantMore, wantChildless bool) {
		t.Helper()
		if more, childless := l.reapOne(); more != wantMore || childless != wantChildless {
			t.Errorf("%s: more %t, childless %t", name, more, childless)
		}
	}
	reaps("no child", false, true)
	pid, err := forkShell("exec sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	reaps("one runs", false, false)
	for range 2 {
		if _, err := forkEnded("exit"); err != nil {
			t.Fatal(err)
		}
	}
	reaps("two have ended", true, false)
	reaps("one has ended", true, false)
	reaps("one runs again", false, false)
	if l.Drain() {
		t.Error("Drain reports that none is left")
	}
	if u := l.Orphans(); u.Peak == 0 {
		t.Errorf("the orphans used %+v", u)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drain(t, l)
	if n := l.Killed(); n != 1 {
		t.Errorf("%d processes ended by SIGKILL, want 1", n)
	}
}

// TestDrainGivesUp checks that Drain ends even if reaping does not, and then
// proves nothing. An interrupted wait is repeated.
func TestDrainGivesUp(t *testing.T) {
	l := newLoop(t)
	done := make(chan struct{})
	identity.Dedicate(func() {
		defer close(done)
		if err := errors.Join(identity.NoNewPrivileges(), identity.SetFilter(filtertest.Refuse(unix.EINTR, unix.SYS_WAIT4))); err != nil {
			t.Error(err)
			return
		}
		if more, childless := l.reapOne(); !more || childless {
			t.Errorf("an interrupted wait: more %t, childless %t", more, childless)
		}
		began := time.Now()
		childless := l.Drain()
		if took := time.Since(began); childless || took < drainBound {
			t.Errorf("Drain returns %t after %v", childless, took)
		}
	})
	wait(t, done)
}

// TestUsage checks that times add up, and the peak is the largest.
func TestUsage(t *testing.T) {
	var u Usage
	for _, r := range []unix.Rusage{
		{Utime: unix.Timeval{Sec: 1}, Stime: unix.Timeval{Usec: 2}, Maxrss: 3},
		{Utime: unix.Timeval{Sec: 2}, Stime: unix.Timeval{Usec: 5}, Maxrss: 7},
		{Maxrss: 5},
	} {
		u.addRusage(r)
	}
	if want := (Usage{CPU: 3*time.Second + 7*time.Microsecond, Peak: 7 << 10}); u != want {
		t.Errorf("usage is %+v, want %+v", u, want)
	}
}
