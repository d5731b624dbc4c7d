package kill

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, status  string
		dead, stopped bool
		parent        int
		group, mortal bool
	}{
		{name: "mortal", status: "SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\nSigCgt:\t0000000180000002\n", mortal: true},
		{name: "catches SIGTERM", status: "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000004000\n"},
		{name: "ignores SIGTERM", status: "SigBlk:\t0000000000000000\nSigIgn:\t0000000000004000\nSigCgt:\t0000000000000000\n"},
		{name: "holds SIGTERM back", status: "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"},
		{name: "half told", status: "SigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"},
		{name: "runs", status: "Name:\tsh\nState:\tR (running)\nPPid:\t7\nGroups:\t1 30000 \nThreads:\t1\n", parent: 7, group: true},
		{name: "stopped", status: "State:\tT (stopped)\nGroups:\t30000\n", stopped: true, group: true},
		{name: "zombie", status: "State:\tZ (zombie)\nGroups:\t30000 \nThreads:\t1\n", dead: true, group: true},
		{name: "leader gone", status: "State:\tZ (zombie)\nGroups:\t30000 \nThreads:\t2\n", group: true},
		{name: "longer gid", status: "State:\tS\nGroups:\t300000 \n"},
		{name: "shorter gid", status: "State:\tS\nGroups:\t3000 \n"},
		{name: "many blanks", status: "Groups:\t1  30000\n", group: true},
		{name: "states alone", status: "State:\tT\n", stopped: true},
		{name: "zombie alone", status: "State:\tZ\n", dead: true},
		{name: "dead alone", status: "State:\tX\n", dead: true},
		{name: "no state", status: "State:\nGroups:\t30000\n", group: true},
		{name: "no groups", status: "State:\tS\nGroups:\t \n"},
		{name: "a name that looks like it", status: "Name:\tGroups:30000\nState:\tS\nGroups:\t\n"},
	} {
		p := parseStatus(1, []byte(tt.status))
		if p.dead != tt.dead || p.stopped != tt.stopped || p.parent != tt.parent || p.hasGroup(30000) != tt.group || p.mortal != tt.mortal {
			t.Errorf("%s: %+v, in group %v", tt.name, p, p.hasGroup(30000))
		}
	}
}

// TestKill runs the method on real processes, beside one that it must not hit.
func TestKill(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a process gets a supplementary group")
	}
	const group = 54321
	sleep := func(groups ...uint32) *exec.Cmd {
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 10001, Gid: 10001, Groups: groups}}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		return c
	}
	marked, other := sleep(group), sleep(group+1)
	k := New(MethodGroup, &reaper{after: func(int) {}}, nil)
	mark := Mark{Group: group}
	if n := k.Alive(mark); n != 1 {
		t.Fatalf("%d processes are found", n)
	}
	var r Report
	k.Terminate(mark, &r)
	k.Kill(mark, &r)
	if w := r.Wire(k.Method()); w.Method != "gid" || w.Terminated != 1 || w.Left != 0 {
		t.Errorf("report is %+v", w)
	}
	if n := k.Alive(mark); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	_ = marked.Wait()
	if err := unix.Kill(other.Process.Pid, 0); err != nil {
		t.Errorf("the process beside it: %v", err)
	}
	var none Report
	k.Kill(mark, &none)
	if w := none.Wire(k.Method()); w.Method != "" || w.Killed != 0 || w.KillTime != 0 {
		t.Errorf("a kill of nothing reports %+v", w)
	}
}

func TestOwner(t *testing.T) {
	s := NewShims()
	s.Add(10)
	s.Add(20)
	all := map[int]process{
		10: {pid: 10, parent: 1}, 11: {pid: 11, parent: 10}, 12: {pid: 12, parent: 11},
		20: {pid: 20, parent: 1}, 21: {pid: 21, parent: 20},
		30: {pid: 30, parent: 1}, // its shim was killed
		31: {pid: 31, parent: 30},
		40: {pid: 40, parent: 99}, // its parent ended during the scan
		50: {pid: 50, parent: 51}, 51: {pid: 51, parent: 50},
	}
	for pid, want := range map[int]int{11: 10, 12: 10, 21: 20, 30: 1, 31: 1, 40: 0, 50: 0} {
		if got := s.ownerOf(all, 1, pid); got != want {
			t.Errorf("process %d belongs to %d, want %d", pid, got, want)
		}
	}
	chain := map[int]process{2: {pid: 2, parent: 1}, 3: {pid: 3, parent: 2}, 4: {pid: 4, parent: 3}}
	if got := s.ownerOf(chain, 1, 4); got != 1 {
		t.Errorf("the last of a chain belongs to %d", got)
	}
	s.Remove(10)
	if got := s.ownerOf(all, 1, 12); got != 1 {
		t.Errorf("without its shim it belongs to %d", got)
	}
}
