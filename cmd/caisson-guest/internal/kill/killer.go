package kill

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The methods by which a command's processes are found.
const (
	MethodGroup     = "gid"
	MethodSubreaper = "subreaper"
)

// Mark is what tells one command's processes from all others.
type Mark struct {
	// Group is the supplementary group, for MethodGroup.
	Group uint32
	// Shim is the pid of the command's subreaper, for MethodSubreaper.
	Shim int
}

// Killer ends commands. It is safe for concurrent use.
type Killer struct {
	method string
	self   int
	// byDescriptor says that the kernel sends signals through a descriptor of
	// /proc/PID (Linux 5.1; not gVisor), which can't meet a reused pid.
	byDescriptor bool
	shims        *Shims
	// scanning makes scans take turns, so that they need one thread.
	scanning sync.Mutex
	// launching excludes starts from the time in which everything is stopped.
	launching sync.RWMutex
}

// New makes a Killer that finds processes by method. Shims is for
// MethodSubreaper only.
func New(method string, shims *Shims) *Killer {
	k := &Killer{method: method, self: os.Getpid(), shims: shims}
	if dir, err := unix.Open("/proc/self", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		k.byDescriptor = unix.PidfdSendSignal(dir, 0, nil, 0) == nil
		_ = unix.Close(dir)
	}
	return k
}

// Method is how processes are found.
func (k *Killer) Method() string { return k.method }

// each visits the living processes of a command.
func (k *Killer) each(m Mark, visit func(*process)) error {
	k.scanning.Lock()
	defer k.scanning.Unlock()
	if k.method == MethodSubreaper {
		return k.shims.each(k.self, m, visit)
	}
	return scan(k.self, func(p *process) {
		if !p.dead && p.hasGroup(m.Group) {
			visit(p)
		}
	})
}

// alone says that the guest is the container's only process. Signal 0 to all
// processes that there are signals none; it takes a microsecond where a scan of
// /proc takes forty.
func (k *Killer) alone() bool {
	return k.self == 1 && unix.Kill(-1, 0) == unix.ESRCH
}

// emptyScans is how many scans in a row must find nothing. New pids are higher
// than those that exist, so a scan in their order meets what is forked before
// it; but once in a round of all pids a child's is lower, and a parent that
// then ends could be missed with it. That can't happen twice in a row.
const emptyScans = 2

// steadyScans is how often a look is repeated whose scans are no proof, because
// processes come and go; a parallel build beside it makes one in ten such.
const steadyScans = 20

// Alive is the number of a command's living processes, or -1 where that can't
// be told, for /proc that can't be read or processes that come and go.
func (k *Killer) Alive(m Mark) int {
	if k.alone() {
		return 0
	}
	empty := 0
	for range steadyScans {
		n := 0
		err := k.each(m, func(*process) { n++ })
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

// signal sends a signal to a process that a scan met. It looks again through a
// descriptor first, so that a pid that was given to another command's process
// meanwhile is not hit.
func (k *Killer) signal(p *process, sig unix.Signal) {
	if k.method != MethodGroup || !k.byDescriptor {
		_ = unix.Kill(p.pid, sig) // it is gone, which is as good
		return
	}
	dir, err := unix.Open("/proc/"+strconv.Itoa(p.pid), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	now, ok := read(dir, p.pid, "status", make([]byte, 4096))
	if ok && string(now.groups) == string(p.groups) {
		_ = unix.PidfdSendSignal(dir, sig, nil, 0)
	}
}

// Terminate sends SIGTERM, once each, to all processes of a command, including
// those that are made while it runs, and wakes those that are stopped so that
// they can act on it.
func (k *Killer) Terminate(m Mark, r *Report) {
	for range terminatePasses {
		fresh := 0
		err := k.each(m, func(p *process) {
			if r.terminate(p.pid) {
				fresh++
				k.signal(p, unix.SIGTERM)
			}
			if p.stopped {
				k.signal(p, unix.SIGCONT)
			}
		})
		if fresh == 0 || errors.Is(err, errChased) {
			return
		}
	}
}

// terminatePasses bounds the passes of Terminate: against a fork bomb SIGTERM
// is a courtesy, and Kill comes.
const terminatePasses = 4

// Continue wakes a command's stopped processes.
func (k *Killer) Continue(m Mark) {
	_ = k.each(m, func(p *process) { k.signal(p, unix.SIGCONT) })
}

// Bounds of Kill.
const (
	// killBound is when it gives up: only a process that hangs in the kernel (a
	// stuck file system) outlives SIGKILL for so long.
	killBound = 5 * time.Second
	// gentlePasses is how many passes may find something before everything is
	// stopped: two do for all but what forks faster than it is scanned.
	gentlePasses = 3
)

// Kill sends SIGKILL to all processes of a command until scans find none.
//
// What forks and ends faster than a scan follows is never met by one. So after
// a few passes every process in the container is stopped, by one system call
// that no fork can slip through; then a scan sees what there is. Processes of
// other commands go on when it is over.
func (k *Killer) Kill(m Mark, r *Report) {
	start := time.Now()
	if !k.killGently(m, r) {
		k.launching.Lock()
		k.killStopped(m, r, start)
		k.launching.Unlock()
	}
	r.finish(start)
}

// pass is one scan that kills what it finds. It says how many those were,
// whether it proves that there are no others, and whether it came to no end.
func (k *Killer) pass(m Mark, r *Report) (alive int, steady, chased bool) {
	err := k.each(m, func(p *process) {
		alive++
		r.kill(p.pid)
		k.signal(p, unix.SIGKILL)
	})
	r.left = alive
	return alive, err == nil, errors.Is(err, errChased)
}

// killGently is false if some passes were not enough.
func (k *Killer) killGently(m Mark, r *Report) bool {
	found, empty := 0, 0
	for range steadyScans {
		alive, steady, chased := k.pass(m, r)
		switch {
		case alive == 0 && k.alone():
			return true
		case alive > 0:
			empty = 0
			if found++; found == gentlePasses || chased {
				return false
			}
			<-time.After(100 * time.Microsecond << found)
		case chased:
			return false
		case !steady:
			empty = 0
		default:
			if empty++; empty == emptyScans {
				return true
			}
		}
	}
	return false
}

// killStopped keeps everything else stopped until nothing is left, or killBound.
func (k *Killer) killStopped(m Mark, r *Report, start time.Time) {
	defer k.toAll(unix.SIGCONT)
	wait := 200 * time.Microsecond
	for empty := 0; empty < emptyScans; {
		k.toAll(unix.SIGSTOP)
		alive, steady, _ := k.pass(m, r)
		if alive == 0 && steady {
			empty++
			continue
		}
		empty = 0
		if time.Since(start) > killBound {
			r.left = max(alive, 1)
			return
		}
		<-time.After(wait) // what was killed needs the processor to end
		wait = min(2*wait, 5*time.Millisecond)
	}
}

// toAll signals every process of the container but the guest.
func (k *Killer) toAll(sig unix.Signal) {
	if k.self == 1 { // elsewhere it would be every process of the machine
		_ = unix.Kill(-1, sig)
	}
}

// Launching must be held while a process is made: a child that is stopped
// before it has executed would stop the guest's own thread.
func (k *Killer) Launching() sync.Locker { return k.launching.RLocker() }

// Report collects the proof of one command's end. It is for one goroutine.
type Report struct {
	terminated, killed map[int]struct{}
	afterExit          bool
	left               int
	time               time.Duration
}

// maxReported bounds the pids that a report remembers; a chain of forks has no end.
const maxReported = 1 << 16

func (r *Report) terminate(pid int) bool {
	if _, ok := r.terminated[pid]; ok || len(r.terminated) == maxReported {
		return false
	}
	if r.terminated == nil {
		r.terminated = map[int]struct{}{}
	}
	r.terminated[pid] = struct{}{}
	return true
}

func (r *Report) kill(pid int) {
	if r.killed == nil {
		r.killed = map[int]struct{}{}
	}
	if len(r.killed) < maxReported {
		r.killed[pid] = struct{}{}
	}
}

func (r *Report) finish(start time.Time) {
	if len(r.killed) > 0 {
		r.time += time.Since(start)
	}
}

// Left is the number of processes that could not be killed.
func (r *Report) Left() int { return r.left }

// Unreaped says that the command's own process was killed but did not end.
func (r *Report) Unreaped() { r.left = max(r.left, 1) }

// AfterExit says that what was killed had been left when the command itself had
// ended.
func (r *Report) AfterExit() { r.afterExit = len(r.killed) > 0 || r.left > 0 }

// Wire gives the report; the method is named where anything was signalled.
func (r *Report) Wire(method string) wire.Kill {
	k := wire.Kill{
		Terminated: len(r.terminated), Killed: len(r.killed),
		AfterExit: r.afterExit, Left: r.left, KillTime: r.time,
	}
	if k.Terminated > 0 || k.Killed > 0 || k.Left > 0 {
		k.Method = method
	}
	return k
}
