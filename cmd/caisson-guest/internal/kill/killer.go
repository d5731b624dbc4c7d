package kill

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The methods of finding a command's processes.
const (
	MethodGroup     = "gid"
	MethodSubreaper = "subreaper"
)

// Mark distinguishes a command's processes from all others.
type Mark struct {
	// Group is the supplementary group, for MethodGroup.
	Group uint32
	// Shim is the pid of the command's subreaper, for MethodSubreaper.
	Shim int
}

// Children is the interface to the guest's wait loop.
type Children interface {
	// Drain reaps ended processes and reports whether the guest has no children
	// left, and so is alone in the container.
	Drain() (childless bool)
	// Next returns a channel that is closed when the next process is reaped.
	Next() <-chan struct{}
	// Killed returns the number of processes so far that ended by SIGKILL.
	Killed() int
}

// Killer ends commands. It is safe for concurrent use.
type Killer struct {
	proc     string
	method   string
	self     int
	children Children
	// byDescriptor reports that the kernel sends signals through a descriptor
	// of /proc/PID (Linux 5.1; not gVisor), which can't hit a reused pid.
	byDescriptor bool
	shims        *Shims
	// scanning makes scans take turns, so that they need one thread.
	scanning sync.Mutex
	// launching excludes starts while everything is stopped.
	launching sync.RWMutex
	// commands is how many commands are launched and not over, launches how
	// many ever were launched.
	commands, launches atomic.Int64
}

// New returns a Killer that finds processes by method. shims is for
// MethodSubreaper only.
func New(method string, children Children, shims *Shims) *Killer {
	return NewAt("/proc", method, children, shims)
}

// NewAt is New with another directory than /proc, for tests.
func NewAt(proc, method string, children Children, shims *Shims) *Killer {
	k := &Killer{proc: proc, method: method, self: os.Getpid(), children: children, shims: shims}
	if dir, err := unix.Open(proc+"/self", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		k.byDescriptor = unix.PidfdSendSignal(dir, 0, nil, 0) == nil
		_ = unix.Close(dir)
	}
	return k
}

// Method returns how processes are found.
func (k *Killer) Method() string { return k.method }

// visitProcesses visits a command's living processes.
func (k *Killer) visitProcesses(m Mark, visit func(*process)) error {
	k.scanning.Lock()
	defer k.scanning.Unlock()
	if k.method == MethodSubreaper {
		return k.shims.visitDescendants(k.proc, k.self, m, visit)
	}
	return scanProcesses(k.proc, k.self, func(p *process) {
		if !p.dead && p.hasGroup(m.Group) {
			visit(p)
		}
	})
}

// emptyScans is how many scans in a row must find nothing. New pids are higher
// than existing ones, so a scan in their order meets forked children. But once
// per round of all pids a child's pid is lower, and if its parent then ends,
// the scan could miss both. That can't happen twice in a row.
const emptyScans = 2

// steadyScans is how often scans are repeated that prove nothing because
// processes come and go: one in ten beside a parallel build.
const steadyScans = 20

// Gone reports whether nothing of a command is left. If it is the only command,
// that needs no scan.
func (k *Killer) Gone(m Mark) bool {
	if k.self == 1 && k.children.Drain() {
		return true
	}
	return !k.isOnly() && k.Alive(m) == 0
}

// Alive returns the number of a command's living processes, or -1 if /proc
// can't be read or processes come and go.
func (k *Killer) Alive(m Mark) int {
	empty := 0
	for range steadyScans {
		n := 0
		err := k.visitProcesses(m, func(*process) { n++ })
		switch {
		case n > 0:
			return n
		case err != nil:
			empty = 0
		default:
			empty++
		}
		if empty == emptyScans {
			return 0
		}
	}
	return -1
}

// sendSignal signals a process that a scan met. It first checks the process
// again through a descriptor, so that it doesn't hit another command's process
// that reused the pid.
func (k *Killer) sendSignal(p *process, sig unix.Signal) {
	if k.method != MethodGroup || !k.byDescriptor {
		_ = unix.Kill(p.pid, sig) // it may be gone, which is as good
		return
	}
	dir, err := unix.Open(k.proc+"/"+strconv.Itoa(p.pid), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	now, ok := readStatus(dir, p.pid, "status", make([]byte, 4096))
	if ok && string(now.groups) == string(p.groups) {
		_ = unix.PidfdSendSignal(dir, sig, nil, 0)
	}
}

// Terminate sends SIGTERM once to each process of a command, including new
// ones, and wakes stopped ones so that they can act on it.
func (k *Killer) Terminate(m Mark, r *Report) {
	if k.terminateAll(r) {
		return
	}
	for range terminatePasses {
		fresh := 0
		err := k.visitProcesses(m, func(p *process) {
			if r.addTerminated(p.pid) {
				fresh++
				k.sendSignal(p, unix.SIGTERM)
			}
			if p.stopped {
				k.sendSignal(p, unix.SIGCONT)
			}
		})
		if fresh == 0 || errors.Is(err, errChased) {
			return
		}
	}
}

// TerminateOrphans sends SIGTERM to a command's processes that have had none
// and whose parent has ended, except leader, the command's own.
//
// If a process holds SIGTERM back while it forks, as shells do around vfork
// (dash 0.5.12), it ends of it afterwards, and its child never gets one. A
// shell's child that has not executed yet drops it. So a process that would die
// of a SIGTERM but lives gets another, all others only one. What a living
// process starts to clean up after itself is left alone.
func (k *Killer) TerminateOrphans(m Mark, leader int, r *Report) {
	_ = k.visitProcesses(m, func(p *process) {
		if p.pid == leader || p.parent != k.self && p.parent != m.Shim {
			return
		}
		if !r.addTerminated(p.pid) && !p.mortal {
			return
		}
		k.sendSignal(p, unix.SIGTERM)
		if p.stopped {
			k.sendSignal(p, unix.SIGCONT)
		}
	})
}

// terminatePasses bounds the passes of Terminate: against a fork bomb SIGTERM
// is a courtesy, and Kill follows.
const terminatePasses = 4

// Continue wakes a command's stopped processes.
func (k *Killer) Continue(m Mark) {
	_ = k.visitProcesses(m, func(p *process) { k.sendSignal(p, unix.SIGCONT) })
}

const (
	// killBound bounds the killing: only a process that hangs in the kernel (a
	// stuck file system) outlives SIGKILL for so long.
	killBound = 5 * time.Second
	// gentlePasses is how many passes may find new processes before everything
	// is stopped: two do, except for processes that fork faster than scans.
	gentlePasses = 3
)

// Kill sends SIGKILL to all processes of a command until none is left.
//
// If it is the only command, one system call kills everything except the guest.
// Otherwise scans find its processes. They never meet processes that fork and
// end faster than a scan follows. If scans keep finding new processes, one
// system call that no fork can slip through stops every process in the
// container, so that a scan sees all of them. Other commands' processes
// continue afterwards.
func (k *Killer) Kill(m Mark, r *Report) {
	start := time.Now()
	if !k.killAll(r, start) && !k.killGently(m, r, start) {
		k.launching.Lock()
		k.killStopped(m, r, start)
		k.launching.Unlock()
	}
	r.setDuration(start)
}

// killPass is one scan that kills the processes it finds. It returns how many
// these were, how many of them were new, whether the scan proves that there are
// no others, and whether it was given up.
func (k *Killer) killPass(m Mark, r *Report) (alive, fresh int, steady, chased bool) {
	err := k.visitProcesses(m, func(p *process) {
		alive++
		if r.addKilled(p.pid) {
			fresh++
		}
		k.sendSignal(p, unix.SIGKILL)
	})
	r.left = alive
	return alive, fresh, err == nil, errors.Is(err, errChased)
}

// killGently returns false if its passes were not enough.
func (k *Killer) killGently(m Mark, r *Report, start time.Time) bool {
	found, empty := 0, 0
	for scans := 0; scans < steadyScans; {
		next := k.children.Next()
		alive, fresh, steady, chased := k.killPass(m, r)
		switch {
		case alive == 0 && k.self == 1 && k.children.Drain():
			return true
		case alive > 0:
			empty = 0
			if fresh > 0 {
				found++
			}
			if found == gentlePasses || chased || time.Since(start) > killBound {
				return false
			}
			pause(next, time.Millisecond) // killed processes need the processor to end
			continue
		case chased:
			return false
		case !steady:
			empty = 0
		default:
			if empty++; empty == emptyScans {
				return true
			}
		}
		scans++
	}
	return false
}

// killStopped keeps everything else stopped until nothing is left, or for
// killBound.
func (k *Killer) killStopped(m Mark, r *Report, start time.Time) {
	defer k.toAll(unix.SIGCONT)
	wait := 200 * time.Microsecond
	for empty := 0; empty < emptyScans; {
		next := k.children.Next()
		for range stops {
			k.toAll(unix.SIGSTOP)
		}
		alive, _, steady, _ := k.killPass(m, r)
		if alive == 0 && steady {
			empty++
			continue
		}
		empty = 0
		if time.Since(start) > killBound {
			r.left = max(alive, 1)
			return
		}
		pause(next, wait)
		wait = min(2*wait, 5*time.Millisecond)
	}
}

// stops is how often everything is stopped in a row. gVisor signals the
// processes that exist when the call begins (runsc 20260905), and a fork under
// way adds one. Of 40 chains of forks, on a machine at a load of 40, those that
// three calls missed kept ahead of the scan in 15 of 16 tries, with 16 calls in
// 7.
const stops = 16

// toAll signals every process of the container except the guest.
func (k *Killer) toAll(sig unix.Signal) {
	if k.self == 1 { // or it would be every process of the machine
		_ = unix.Kill(-1, sig)
	}
}

// Launch runs start, which makes a command's process. Nothing is stopped
// meanwhile: a child stopped before it has executed would stop the guest's own
// thread. If start succeeds, Over must be called when nothing of the command is
// left.
func (k *Killer) Launch(start func() error) error {
	k.launching.RLock()
	defer k.launching.RUnlock()
	k.launches.Add(1)
	k.commands.Add(1)
	err := start()
	if err != nil {
		k.commands.Add(-1)
	}
	return err
}

// Over records that a launched command has ended. It must not be called if one
// of its processes could not be killed.
func (k *Killer) Over() { k.commands.Add(-1) }

// Launches returns how many commands ever were launched, and whether exactly
// one runs.
func (k *Killer) Launches() (n int64, one bool) { return k.launches.Load(), k.commands.Load() == 1 }

// pause waits for next, at most for most.
func pause(next <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-next:
	case <-timer.C:
	}
}

// Usage is what a command's processes use at a moment.
type Usage struct {
	// Tasks is the number of processes and threads, Memory what they have in
	// memory, in bytes, without memory shared with files.
	Tasks  int
	Memory int64
}

// Usages returns the usage of commands, by one scan for all of them.
func (k *Killer) Usages(marks []Mark) map[Mark]Usage {
	all := map[Mark]Usage{}
	add := func(m Mark, p *process) {
		u := all[m]
		u.Tasks += p.threads
		u.Memory += p.memory
		all[m] = u
	}
	if k.method == MethodSubreaper {
		for _, m := range marks {
			_ = k.visitProcesses(m, func(p *process) { add(m, p) }) // the next scan may succeed
		}
		return all
	}
	k.scanning.Lock()
	defer k.scanning.Unlock()
	_ = scanProcesses(k.proc, k.self, func(p *process) {
		if p.dead {
			return
		}
		for _, m := range marks {
			if p.hasGroup(m.Group) {
				add(m, p)
				return
			}
		}
	})
	return all
}

// Report collects the proof of one command's end. It is not safe for concurrent
// use.
type Report struct {
	// terminated are the processes listed before they got SIGTERM, killed those
	// that scans met.
	terminated, killed map[int]struct{}
	// allKilled is how many were reaped after a SIGKILL to all.
	allKilled int
	afterExit bool
	left      int
	time      time.Duration
}

// maxReported bounds the remembered pids: a chain of forks has no end.
const maxReported = 1 << 16

// addTerminated reports whether a process was not listed before.
func (r *Report) addTerminated(pid int) bool {
	if _, ok := r.terminated[pid]; ok || len(r.terminated) == maxReported {
		return false
	}
	if r.terminated == nil {
		r.terminated = map[int]struct{}{}
	}
	r.terminated[pid] = struct{}{}
	return true
}

// addKilled reports whether a process was not met before.
func (r *Report) addKilled(pid int) bool {
	if _, ok := r.killed[pid]; ok || len(r.killed) == maxReported {
		return !ok
	}
	if r.killed == nil {
		r.killed = map[int]struct{}{}
	}
	r.killed[pid] = struct{}{}
	return true
}

func (r *Report) killCount() int { return len(r.killed) + r.allKilled }

func (r *Report) setDuration(start time.Time) {
	if r.killCount() > 0 {
		r.time += time.Since(start)
	}
}

// Left returns the number of processes that could not be killed.
func (r *Report) Left() int { return r.left }

// Unreaped records that the command's own process was killed but did not end.
func (r *Report) Unreaped() { r.left = max(r.left, 1) }

// AfterExit records that the killed processes had outlived the command itself.
func (r *Report) AfterExit() { r.afterExit = r.killCount() > 0 || r.left > 0 }

// Wire returns the report, with the method if anything was signalled.
func (r *Report) Wire(method string) wire.Kill {
	k := wire.Kill{
		Terminated: len(r.terminated), Killed: r.killCount(),
		AfterExit: r.afterExit, Left: r.left, KillTime: r.time,
	}
	if k.Terminated > 0 || k.Killed > 0 || k.Left > 0 {
		k.Method = method
	}
	return k
}

// isOnly reports whether exactly one command runs.
func (k *Killer) isOnly() bool {
	return k.method == MethodGroup && k.self == 1 && k.commands.Load() == 1
}

// runAlone runs f while one command runs and none can be launched. It returns
// false, without running f, if it can't do that at once.
func (k *Killer) runAlone(f func()) bool {
	if !k.isOnly() || !k.launching.TryLock() {
		return false
	}
	defer k.launching.Unlock()
	if !k.isOnly() {
		return false
	}
	f()
	return true
}

// terminateAll sends SIGTERM to everything except the guest, and wakes stopped
// processes, if it all belongs to one command. Processes forked between the
// listing and the signal get it too, but are not counted.
func (k *Killer) terminateAll(r *Report) bool {
	return k.runAlone(func() {
		_ = listProcesses(k.proc, k.self, func(_, pid int, _ string) { r.addTerminated(pid) })
		_ = unix.Kill(-1, unix.SIGTERM)
		_ = unix.Kill(-1, unix.SIGCONT)
	})
}

// killAll kills everything except the guest, if it all belongs to one command,
// and waits until all is reaped, or for killBound.
//
// Linux signals all processes in one step that no fork slips through. gVisor
// signals the processes that exist when the call begins. So the call is
// repeated until the guest has no children; each one takes far less time than a
// fork.
func (k *Killer) killAll(r *Report, start time.Time) bool {
	return k.runAlone(func() {
		before := k.children.Killed()
		for wait := 500 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
			next := k.children.Next()
			_ = unix.Kill(-1, unix.SIGKILL)
			if k.children.Drain() {
				r.left = 0
				break
			}
			if time.Since(start) > killBound {
				r.left = max(1, countProcesses(k.proc, k.self))
				break
			}
			pause(next, wait)
		}
		r.allKilled = k.children.Killed() - before
	})
}
