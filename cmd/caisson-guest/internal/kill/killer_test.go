package kill

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// noPID is above any pid, so signals to it and the next ones hit nothing.
const noPID = 1 << 23

func fakeProc(t *testing.T, status map[int]string) string {
	t.Helper()
	dir := t.TempDir()
	for pid, text := range status {
		writeStatus(t, dir, pid, text)
	}
	for _, other := range []string{"self", "sys", "1a"} {
		if err := os.Mkdir(filepath.Join(dir, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func writeStatus(t *testing.T, proc string, pid int, text string) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "status"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestScan(t *testing.T) {
	status := map[int]string{7: "State:\tS\n", 1: "x"}
	for pid := range 400 { // more than one reading of the directory returns
		status[1000+pid] = "PPid:\t" + strconv.Itoa(pid) + "\n"
	}
	proc := fakeProc(t, status)
	before := filtertest.Descriptors(t)
	got := map[int]int{}
	if err := scanProcesses(proc, 7, func(p *process) { got[p.pid] = p.parent }); err != nil {
		t.Error(err)
	}
	if len(got) != 401 || got[1399] != 399 || got[1] != 0 {
		t.Errorf("%d processes were visited: %v", len(got), got)
	}
	if n := countProcesses(proc, 7); n != 401 {
		t.Errorf("%d processes are counted", n)
	}
	if now := filtertest.Descriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
}

// TestScanProvesNothing checks that unreadable processes are reported, whatever
// else was found.
func TestScanProvesNothing(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"no status":    func(dir string) error { return os.Remove(filepath.Join(dir, "status")) },
		"empty status": func(dir string) error { return os.WriteFile(filepath.Join(dir, "status"), nil, 0o600) },
		"a directory": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "status")), os.Mkdir(filepath.Join(dir, "status"), 0o700))
		},
	} {
		proc := fakeProc(t, map[int]string{2: "State:\tS\n", 3: "State:\tS\n"})
		if err := spoil(filepath.Join(proc, "3")); err != nil {
			t.Fatal(err)
		}
		var got []int
		err := scanProcesses(proc, 1, func(p *process) { got = append(got, p.pid) })
		if !errors.Is(err, errUnsteady) || errors.Is(err, errChased) || !slices.Equal(got, []int{2}) {
			t.Errorf("%s: %v, visited %v", name, err, got)
		}
	}
	for _, directory := range []string{"/nonexistent", "/proc/self/status"} {
		if err := scanProcesses(directory, 1, func(*process) {}); err == nil || errors.Is(err, errUnsteady) {
			t.Errorf("scan of %s: %v", directory, err)
		}
	}
}

// TestScanOfFolderThatFails checks that a directory that can't be listed to its
// end proves nothing.
func TestScanOfFolderThatFails(t *testing.T) {
	proc := fakeProc(t, map[int]string{2: "State:\tS\n"})
	for failure, want := range map[unix.Errno]error{unix.EIO: unix.EIO, unix.EINTR: errChased} {
		done := make(chan error)
		identity.Dedicate(func() {
			if err := errors.Join(identity.NoNewPrivileges(), identity.SetFilter(filtertest.Refuse(failure, unix.SYS_GETDENTS64))); err != nil {
				t.Error(err)
			}
			done <- scanProcesses(proc, 1, func(p *process) { t.Errorf("%v: visited %d", failure, p.pid) })
		})
		if err := <-done; !errors.Is(err, want) {
			t.Errorf("%v: error is %v, want %v", failure, err, want)
		}
	}
}

// TestKillOfChasedScan checks that a scan without an end is repeated with all
// processes stopped.
func TestKillOfChasedScan(t *testing.T) {
	const other = "Groups:\t6\n"
	proc := fakeProc(t, nil)
	statuses(t, proc, noPID, []string{other, other, other}, func(i int) {
		if i == 0 {
			time.Sleep(scanBound + scanBound/10)
		}
	})
	children := &reaper{after: func(int) {}}
	var r Report
	NewAt(proc, MethodGroup, children, nil).Kill(Mark{Group: 5}, &r)
	if children.passes != 3 || r.Left() != 0 {
		t.Errorf("%d scans, %d left, want 3 scans", children.passes, r.Left())
	}
}

func TestScanIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := map[int]string{}
		for pid := range 400 {
			status[1000+pid] = "State:\tS\n"
		}
		visited := 0
		err := scanProcesses(fakeProc(t, status), 1, func(*process) {
			visited++
			time.Sleep(scanBound / 10)
		})
		if !errors.Is(err, errChased) || visited == 400 {
			t.Errorf("%v after %d processes", err, visited)
		}
	})
}

func TestReport(t *testing.T) {
	var r Report
	for _, want := range []bool{true, false} {
		if r.addTerminated(5) != want || r.addKilled(6) != want {
			t.Errorf("a process is new: want %t", want)
		}
	}
	r.allKilled = 3
	r.left = 1
	r.setDuration(time.Now().Add(-time.Hour))
	r.setDuration(time.Now().Add(-time.Hour))
	got := r.Wire("gid")
	if got.KillTime < 2*time.Hour || got.KillTime > 3*time.Hour {
		t.Errorf("kill time %v", got.KillTime)
	}
	got.KillTime = 0
	if want := (wire.Kill{Method: "gid", Terminated: 1, Killed: 4, Left: 1}); got != want {
		t.Errorf("report is %+v, want %+v", got, want)
	}
	var none Report
	none.setDuration(time.Now().Add(-time.Hour))
	if got := none.Wire("gid"); got != (wire.Kill{}) {
		t.Errorf("a report of nothing is %+v", got)
	}
}

func TestReportNamesTheMethod(t *testing.T) {
	one := map[int]struct{}{1: {}}
	for name, r := range map[string]Report{"terminated": {terminated: one}, "killed": {killed: one}, "left": {left: 1}, "all": {allKilled: 1}} {
		if got := r.Wire("gid").Method; got != "gid" {
			t.Errorf("%s: method %q", name, got)
		}
	}
}

func TestReportAfterExit(t *testing.T) {
	for _, tt := range []struct {
		killed, left int
		want         bool
	}{{0, 0, false}, {1, 0, true}, {0, 1, true}, {1, 1, true}} {
		r := Report{allKilled: tt.killed, left: tt.left}
		r.AfterExit()
		if got := r.Wire("gid").AfterExit; got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
		r.Unreaped()
		if r.Left() != 1 {
			t.Errorf("%+v: %d left after one was not reaped", tt, r.Left())
		}
	}
}

func TestReportIsBounded(t *testing.T) {
	var r Report
	for pid := range maxReported {
		r.addTerminated(pid)
		r.addKilled(pid)
	}
	if r.addTerminated(maxReported) || !r.addKilled(maxReported) || r.addKilled(0) || len(r.terminated) != maxReported || len(r.killed) != maxReported {
		t.Errorf("%d and %d processes are remembered", len(r.terminated), len(r.killed))
	}
}

func TestShims(t *testing.T) {
	proc := fakeProc(t, map[int]string{
		1: "State:\tS\n", 10: "PPid:\t1\nGroups:\t5\n", 11: "PPid:\t10\nGroups:\t5\n", 12: "State:\tZ\nPPid:\t10\n", 13: "PPid:\t11\n",
		20: "PPid:\t1\n", 21: "PPid:\t20\n", 30: "PPid:\t1\n", 40: "PPid:\t99\n",
	})
	s := NewShims()
	for _, pid := range []int{10, 20} {
		if err := s.Start(func() (int, error) { return pid, nil }); err != nil {
			t.Fatal(err)
		}
	}
	failed := errors.New("failed")
	if err := s.Start(func() (int, error) { return 11, failed }); !errors.Is(err, failed) {
		t.Errorf("Start() = %v", err)
	}
	k := &Killer{proc: proc, method: MethodSubreaper, self: 1, shims: s}
	for range 2 {
		got := map[int]bool{}
		if err := k.visitProcesses(Mark{Shim: 10}, func(p *process) {
			got[p.pid] = true
			if p.groups != nil {
				t.Errorf("process %d has groups of another scan: %s", p.pid, p.groups)
			}
		}); err != nil {
			t.Error(err)
		}
		if want := map[int]bool{11: true, 13: true, 30: true}; !maps.Equal(got, want) {
			t.Errorf("visited %v, want %v", got, want)
		}
	}
	if err := os.Remove(filepath.Join(proc, "30", "status")); err != nil {
		t.Fatal(err)
	}
	if err := k.visitProcesses(Mark{Shim: 10}, func(p *process) { t.Errorf("visited %d after a scan that proves nothing", p.pid) }); !errors.Is(err, errUnsteady) {
		t.Errorf("each() = %v", err)
	}
}

// reaper is the wait loop of a guest. It removes a process from a directory
// like /proc after some passes.
type reaper struct {
	passes int
	after  func(pass int)
}

func (*reaper) Drain() bool { return false }
func (*reaper) Killed() int { return 0 }
func (r *reaper) Next() <-chan struct{} {
	r.passes++
	r.after(r.passes)
	return nil
}

func TestAlive(t *testing.T) {
	const member, zombie, other = "State:\tS\nGroups:\t5\n", "State:\tZ\nGroups:\t5\n", "State:\tS\nGroups:\t6\n"
	for name, tt := range map[string]struct {
		status map[int]string
		want   int
	}{
		"none":              {status: map[int]string{2: other, 3: zombie}},
		"two":               {status: map[int]string{2: member, 3: member, 4: other}, want: 2},
		"one, and unsteady": {status: map[int]string{2: member, 3: ""}, want: 1},
		"unsteady":          {status: map[int]string{2: other, 3: ""}, want: -1},
	} {
		k := NewAt(fakeProc(t, tt.status), MethodGroup, nil, nil)
		if got := k.Alive(Mark{Group: 5}); got != tt.want {
			t.Errorf("%s: %d alive, want %d", name, got, tt.want)
		}
		if got := k.Gone(Mark{Group: 5}); got != (tt.want == 0) {
			t.Errorf("%s: gone %t", name, got)
		}
	}
	if got := NewAt("/nonexistent", MethodGroup, nil, nil).Alive(Mark{Group: 5}); got != -1 {
		t.Errorf("%d alive where /proc can't be read", got)
	}
}

// TestKillWaits checks that Kill returns when the processes that it met have
// ended, or at its bound.
func TestKillWaits(t *testing.T) {
	const member = "State:\tS\nGroups:\t5\n"
	for name, tt := range map[string]struct {
		// after changes the directory once that pass begins.
		after        func(t *testing.T, proc string, pass int)
		left, killed int
		passes       int
		took         time.Duration
	}{
		"gone at the third pass": {
			after: func(_ *testing.T, proc string, pass int) {
				if pass == 3 {
					_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID)))
				}
			},
			killed: 1, passes: 4, took: 2 * time.Millisecond,
		},
		"another at the second pass": {
			after: func(t *testing.T, proc string, pass int) {
				_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID)))
				if pass == 2 {
					writeStatus(t, proc, noPID, member)
				}
			},
			killed: 1, passes: 4, took: time.Millisecond,
		},
		"it stays": {
			after: func(*testing.T, string, int) {},
			left:  1, killed: 1, passes: 5003, took: killBound + time.Millisecond,
		},
		"it can't be read": {
			after: func(t *testing.T, proc string, _ int) { writeStatus(t, proc, noPID, "") },
			left:  1, passes: 1025, took: 5001200 * time.Microsecond,
		},
		"a chain of forks": {
			after: func(t *testing.T, proc string, pass int) {
				_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID+pass-1)))
				if pass < 20 || pass == 21 {
					writeStatus(t, proc, noPID+pass, member)
				}
			},
			killed: 20, passes: 23, took: 68200 * time.Microsecond,
		},
		"forks, and again once stopped": {
			after: func(t *testing.T, proc string, pass int) {
				_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID+pass-1)))
				if pass <= gentlePasses || pass == 5 {
					writeStatus(t, proc, noPID+pass, member)
				}
			},
			killed: 4, passes: 7, took: 2200 * time.Microsecond,
		},
		"unsteady, then gone": {
			after: func(t *testing.T, proc string, pass int) {
				switch pass {
				case 1, 3:
					writeStatus(t, proc, noPID, "")
				default:
					_ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID)))
				}
			},
			passes: 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				proc := fakeProc(t, map[int]string{noPID: member})
				children := &reaper{after: func(pass int) { tt.after(t, proc, pass) }}
				k := NewAt(proc, MethodGroup, children, nil)
				_ = k.Launch(func() error { return nil }) // it holds nothing afterwards
				var r Report
				start := time.Now()
				k.Kill(Mark{Group: 5}, &r)
				took := time.Since(start)
				if r.Left() != tt.left || r.killCount() != tt.killed {
					t.Errorf("%d killed and %d left, want %d and %d", r.killCount(), r.Left(), tt.killed, tt.left)
				}
				if children.passes != tt.passes || took != tt.took {
					t.Errorf("%d passes in %v, want %d in %v", children.passes, took, tt.passes, tt.took)
				}
				if tt.killed > 0 && r.time != took {
					t.Errorf("it took %v and is reported as %v", took, r.time)
				}
				// The lock is free: another command can start.
				if err := k.Launch(func() error { return nil }); err != nil {
					t.Error(err)
				}
				// Processes that could not be killed are forgotten once gone.
				tt.after = func(t *testing.T, proc string, _ int) { _ = os.RemoveAll(filepath.Join(proc, strconv.Itoa(noPID))) }
				k.Kill(Mark{Group: 5}, &r)
				if r.Left() != 0 {
					t.Errorf("%d are left, and there are none", r.Left())
				}
			})
		})
	}
}

func TestLaunches(t *testing.T) {
	k := NewAt("/proc", MethodGroup, nil, nil)
	failed := errors.New("failed")
	if err := k.Launch(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Launch() = %v", err)
	}
	for i, want := range []bool{false, true, false} {
		if n, one := k.Launches(); n != int64(1+i) || one != want {
			t.Errorf("%d launches, one %t, want %d, %t", n, one, 1+i, want)
		}
		if err := k.Launch(func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
	k.Over()
	k.Over()
	if n, one := k.Launches(); n != 4 || !one {
		t.Errorf("%d launches, one %t after two of three are over", n, one)
	}
}

func sleeper(t *testing.T, group uint32, script string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a process gets a supplementary group")
	}
	c := exec.Command("sh", "-c", script)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: 10001, Gid: 10001, Groups: []uint32{group}}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
		_ = c.Wait()
	})
	return c
}

// waitState waits until a process is in one of the states of /proc/PID/status.
func waitState(t *testing.T, pid int, states string) {
	t.Helper()
	var state string
	for range 1000 {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, after, _ := strings.Cut(string(text), "State:\t")
		if state = after[:min(1, len(after))]; state != "" && strings.Contains(states, state) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("process %d is in state %s, want %s", pid, state, states)
}

// TestSignalOfAReusedPID checks that a process with other groups than the scan
// saw is taken for another one.
func TestSignalOfAReusedPID(t *testing.T) {
	const group = 54322
	c := sleeper(t, group, "exec sleep 1000")
	before := filtertest.Descriptors(t)
	k := New(MethodGroup, nil, nil)
	dir, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	err = unix.PidfdSendSignal(int(dir.Fd()), 0, nil, 0)
	_ = dir.Close()
	if k.byDescriptor != (err == nil) {
		t.Errorf("signals are sent by descriptor: %t, the kernel says %v", k.byDescriptor, err)
	}
	if err != nil {
		t.Skip("the kernel sends no signals by descriptor")
	}
	k.sendSignal(&process{pid: c.Process.Pid, groups: []byte("54323")}, unix.SIGSTOP)
	time.Sleep(20 * time.Millisecond)
	waitState(t, c.Process.Pid, "SR")
	k.sendSignal(&process{pid: c.Process.Pid, groups: []byte(strconv.Itoa(group))}, unix.SIGSTOP)
	waitState(t, c.Process.Pid, "T")
	if now := filtertest.Descriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
	k.Continue(Mark{Group: group})
	waitState(t, c.Process.Pid, "SR")
	// Without a descriptor, and with the other method, the pid decides.
	k.byDescriptor = false
	k.sendSignal(&process{pid: c.Process.Pid}, unix.SIGSTOP)
	waitState(t, c.Process.Pid, "T")
}

// TestKillSends checks that Kill itself ends processes that ignore SIGTERM.
func TestKillSends(t *testing.T) {
	const group = 54326
	c := sleeper(t, group, "trap '' TERM; sleep 1000; :")
	k, mark := New(MethodGroup, &reaper{after: func(int) {}}, nil), Mark{Group: group}
	var r Report
	k.Kill(mark, &r)
	waitState(t, c.Process.Pid, "Z")
	if w := r.Wire(k.Method()); w.Killed == 0 || w.Left != 0 || w.KillTime <= 0 {
		t.Errorf("report is %+v", w)
	}
}

// statuses makes a process whose status is the next text at each read. It calls
// during, if not nil, once that text is read. Reads beyond the texts wait
// forever.
func statuses(t *testing.T, proc string, pid int, texts []string, during func(i int)) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	path := filepath.Join(dir, "status")
	next := func() {
		if err := errors.Join(unix.Mkfifo(path+".next", 0o600), os.Rename(path+".next", path)); err != nil {
			t.Error(err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	next()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, text := range texts {
			f, err := os.OpenFile(path, os.O_WRONLY, 0) // waits for a reader
			if err != nil {
				t.Error(err)
				return
			}
			next()
			if during != nil {
				during(i)
			}
			_, _ = f.WriteString(text)
			_ = f.Close()
		}
	}()
	t.Cleanup(func() {
		for { // texts that were not asked for
			if f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				_ = f.Close()
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// TestAliveNeedsTwoEmptyScans: in a row, and with nothing unsteady between.
func TestAliveNeedsTwoEmptyScans(t *testing.T) {
	const member, other = "Groups:\t5\n", "Groups:\t6\n"
	for name, tt := range map[string]struct {
		texts []string
		want  int
	}{
		"two":                   {texts: []string{other, other}},
		"one":                   {texts: []string{other, member}, want: 1},
		"unsteady between them": {texts: []string{other, "", other, member}, want: 1},
		"unsteady at first":     {texts: []string{"", other, other}},
	} {
		proc := fakeProc(t, nil)
		statuses(t, proc, noPID, tt.texts, nil)
		if got := NewAt(proc, MethodGroup, nil, nil).Alive(Mark{Group: 5}); got != tt.want {
			t.Errorf("%s: %d alive, want %d", name, got, tt.want)
		}
	}
}

// TestTerminateMeetsWhatIsForked checks that passes continue while they find
// new processes.
func TestTerminateMeetsWhatIsForked(t *testing.T) {
	const member = "Groups:\t5\n"
	proc := fakeProc(t, nil)
	passes := make(chan int, 4)
	statuses(t, proc, noPID, []string{member, member, member, member}, func(i int) {
		passes <- i
		if i == 0 {
			writeStatus(t, proc, noPID+1, member)
		}
	})
	var r Report
	NewAt(proc, MethodGroup, nil, nil).Terminate(Mark{Group: 5}, &r)
	if got := r.Wire("gid").Terminated; got != 2 || len(passes) > 3 {
		t.Errorf("%d processes had a SIGTERM in %d passes, want 2 in 3", got, len(passes))
	}
}

func TestTerminateWakes(t *testing.T) {
	const group = 54324
	c := sleeper(t, group, "kill -STOP $$; exec sleep 1000")
	waitState(t, c.Process.Pid, "T")
	k, mark := New(MethodGroup, nil, nil), Mark{Group: group}
	var r Report
	k.Terminate(mark, &r)
	waitState(t, c.Process.Pid, "Z")
	if w := r.Wire(k.Method()); w.Terminated != 1 {
		t.Errorf("report is %+v", w)
	}
}

// TestTerminateOrphans checks that only processes without a parent of the
// command get a signal, once each unless they would die of it.
func TestTerminateOrphans(t *testing.T) {
	const group = 54325
	leader := sleeper(t, group, "exec sleep 1000")
	orphan := sleeper(t, group, "exec sleep 1000")
	stopped := sleeper(t, group, "kill -STOP $$; exec sleep 1000")
	cleaning := sleeper(t, group, "trap 'exit 3' TERM; sleep 1000 & wait")
	waitState(t, stopped.Process.Pid, "T")
	k, mark := New(MethodGroup, nil, nil), Mark{Group: group}
	for range 500 { // until the shell has its trap and its child
		if k.Alive(mark) == 5 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	var r Report
	for _, c := range []*exec.Cmd{orphan, stopped, cleaning} {
		r.addTerminated(c.Process.Pid)
	}
	k.TerminateOrphans(mark, leader.Process.Pid, &r)
	waitState(t, orphan.Process.Pid, "Z")
	waitState(t, stopped.Process.Pid, "Z")
	waitState(t, leader.Process.Pid, "S")
	waitState(t, cleaning.Process.Pid, "S")
	if n := k.Alive(mark); n != 3 {
		t.Errorf("%d are alive, want the leader, the shell and its child", n)
	}
	var fresh Report
	k.TerminateOrphans(mark, leader.Process.Pid, &fresh)
	waitState(t, cleaning.Process.Pid, "Z")
	if w := fresh.Wire(k.Method()); w.Terminated != 1 {
		t.Errorf("report is %+v", w)
	}
}
