package kill

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// asInit reports whether the test is PID 1 of a PID namespace. If not, it runs
// the test in one and fails with it.
func asInit(t *testing.T) bool {
	t.Helper()
	const variable = "KILL_TEST_INIT"
	if os.Getenv(variable) != "" {
		if os.Getpid() != 1 {
			t.Fatal("this is not a PID namespace of its own")
		}
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: a PID namespace")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	c.Env = append(os.Environ(), variable+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := c.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("as PID 1: %v\n%s", err, out)
	}
	return false
}

// child is a process in the namespace of which the test is PID 1.
type child int

func startChild(t *testing.T) child {
	t.Helper()
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return child(c.Process.Pid)
}

// changed waits until wait4 reports the wanted change.
func (c child) changed(t *testing.T, options int, wanted func(unix.WaitStatus) bool) bool {
	t.Helper()
	for range 200 {
		var status unix.WaitStatus
		pid, err := unix.Wait4(int(c), &status, options|unix.WNOHANG, nil)
		if err != nil {
			t.Error(err)
			return false
		}
		if pid == int(c) {
			return wanted(status)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

func (c child) stopped(t *testing.T) bool {
	t.Helper()
	return c.changed(t, unix.WUNTRACED, unix.WaitStatus.Stopped)
}

func (c child) continued(t *testing.T) bool {
	t.Helper()
	return c.changed(t, unix.WCONTINUED, unix.WaitStatus.Continued)
}

func (c child) killed(t *testing.T) bool {
	t.Helper()
	return c.changed(t, 0, func(s unix.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGKILL })
}

// initChildren is the wait loop of a guest that is PID 1. It counts calls of
// Next, and reports no children from the call childless on, or never if that is
// 0.
type initChildren struct {
	childless, calls, ended int
	next                    func(call int)
}

func (c *initChildren) Drain() bool { return c.childless > 0 && c.calls >= c.childless }

func (c *initChildren) Killed() int { return c.ended * (c.calls + 1) }

func (c *initChildren) Next() <-chan struct{} {
	c.calls++
	if c.next != nil {
		c.next(c.calls)
	}
	return nil
}

func launch(t *testing.T, k *Killer, commands int) {
	t.Helper()
	for range commands {
		if err := k.Launch(func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

// TestKillStops checks that processes that fork and end ahead of each scan are
// killed while all processes are stopped. Other commands' processes are stopped
// too while something is left, and continue afterwards. Nothing else ends such
// a chain of forks: each scan meets its next process until it is stopped.
func TestKillStops(t *testing.T) {
	if !asInit(t) {
		return
	}
	const member = "State:\tS\nGroups:\t5\n"
	proc := fakeProc(t, map[int]string{noPID: member})
	other := startChild(t)
	stopped := false
	children := &initChildren{next: func(call int) {
		_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID+call-1)))
		if call > gentlePasses+1 && !stopped {
			if stopped = other.stopped(t); !stopped {
				t.Error("no process is stopped")
			}
			return
		}
		if !stopped {
			writeStatus(t, proc, noPID+call, member)
		}
	}}
	k := NewAt(proc, MethodGroup, children, nil)
	launch(t, k, 2)
	var r Report
	k.Kill(Mark{Group: 5}, &r)
	if !stopped || r.Left() != 0 || r.killCount() != gentlePasses+1 {
		t.Errorf("stopped %t, %d left, %d killed, want %d", stopped, r.Left(), r.killCount(), gentlePasses+1)
	}
	if !other.continued(t) {
		t.Error("the process of another command does not go on")
	}
}

// TestKillAsksForChildren checks that, beside other commands, the guest's wait
// loop proves that nothing is left after one empty scan.
func TestKillAsksForChildren(t *testing.T) {
	if !asInit(t) {
		return
	}
	for name, tt := range map[string]struct {
		alive            bool // something is there at the first scan
		childless, calls int
	}{
		"no children":                        {childless: 1, calls: 1},
		"children":                           {calls: 2},
		"something is there and no children": {alive: true, childless: 1, calls: 2},
	} {
		proc := fakeProc(t, nil)
		if tt.alive {
			writeStatus(t, proc, noPID, "State:\tS\nGroups:\t5\n")
		}
		children := &initChildren{childless: tt.childless, next: func(call int) {
			if call == 2 {
				_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID)))
			}
		}}
		k := NewAt(proc, MethodGroup, children, nil)
		launch(t, k, 2)
		var r Report
		k.Kill(Mark{Group: 5}, &r)
		if children.calls != tt.calls || r.Left() != 0 {
			t.Errorf("%s: %d scans, %d left, want %d scans", name, children.calls, r.Left(), tt.calls)
		}
	}
}

// TestKillAll checks that the only command is killed with everything in the
// container, without a scan, and no other command or method is.
func TestKillAll(t *testing.T) {
	if !asInit(t) {
		return
	}
	for name, tt := range map[string]struct {
		commands int
		method   string
		all      bool
	}{
		"one command":  {commands: 1, method: MethodGroup, all: true},
		"two commands": {commands: 2, method: MethodGroup},
		"subreaper":    {commands: 1, method: MethodSubreaper},
	} {
		t.Run(name, func(t *testing.T) {
			c := startChild(t)
			children := &initChildren{childless: 3, ended: 1}
			k := NewAt(fakeProc(t, nil), tt.method, children, NewShims())
			launch(t, k, tt.commands)
			r := Report{left: 1} // of an earlier call
			k.Kill(Mark{Group: 5}, &r)
			calls, kills := 2, 0
			if tt.all {
				calls, kills = 3, 3
			}
			if children.calls != calls || r.killCount() != kills || r.Left() != 0 {
				t.Errorf("%d looks, %d killed, %d left, want %d and %d", children.calls, r.killCount(), r.Left(), calls, kills)
			}
			if !tt.all {
				if err := unix.Kill(int(c), unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			if !c.killed(t) {
				t.Error("the process is not killed")
			}
			// The lock is free: another command can start.
			launch(t, k, 1)
		})
	}
}

// TestTerminateAll checks that the only command's processes get SIGTERM, and
// continue if they were stopped.
func TestTerminateAll(t *testing.T) {
	if !asInit(t) {
		return
	}
	c := startChild(t)
	if err := unix.Kill(int(c), unix.SIGSTOP); err != nil || !c.stopped(t) {
		t.Fatal("the process is not stopped", err)
	}
	k := NewAt(fakeProc(t, map[int]string{noPID: "State:\tS\n"}), MethodGroup, &initChildren{}, nil)
	launch(t, k, 1)
	var r Report
	k.Terminate(Mark{Group: 5}, &r)
	if !c.changed(t, 0, func(s unix.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGTERM }) {
		t.Error("the process did not end of SIGTERM")
	}
	if w := r.Wire(MethodGroup); w.Terminated != 1 {
		t.Errorf("report is %+v", w)
	}
}

// TestGoneAlone checks that the wait loop alone proves the only command's end,
// and that beside other commands scans do too.
func TestGoneAlone(t *testing.T) {
	if !asInit(t) {
		return
	}
	for name, tt := range map[string]struct {
		commands, childless int
		want                bool
	}{
		"alone, children":      {commands: 1},
		"alone, childless":     {commands: 1, childless: 1, want: true},
		"beside one, children": {commands: 2, want: true},
	} {
		children := &initChildren{childless: tt.childless, calls: 1}
		k := NewAt(fakeProc(t, nil), MethodGroup, children, nil)
		launch(t, k, tt.commands)
		if got := k.Gone(Mark{Group: 5}); got != tt.want {
			t.Errorf("%s: gone %t", name, got)
		}
	}
}

// TestKillAllGivesUp checks that processes that outlive SIGKILL are reported.
func TestKillAllGivesUp(t *testing.T) {
	if !asInit(t) {
		return
	}
	for left, status := range map[int]map[int]string{1: nil, 2: {noPID: "", noPID + 1: ""}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			k := NewAt(fakeProc(t, status), MethodGroup, &initChildren{}, nil)
			launch(t, k, 1)
			var r Report
			k.Kill(Mark{Group: 5}, &r)
			if took := time.Since(start); r.Left() != left || took < killBound || took > killBound+10*time.Millisecond {
				t.Errorf("%d left after %v, want %d", r.Left(), took, left)
			}
		})
	}
}
