package kill

import (
	"os"
	"strconv"
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

// Alive is the number of a command's living processes, or -1 where /proc can't
// be read.
func (k *Killer) Alive(m Mark) int {
	if k.alone() {
		return 0
	}
	n := 0
	if err := k.each(m, func(*process) { n++ }); err != nil {
		return -1
	}
	return n
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
		_ = k.each(m, func(p *process) {
			if r.terminate(p.pid) {
				fresh++
				k.signal(p, unix.SIGTERM)
			}
			if p.stopped {
				k.signal(p, unix.SIGCONT)
			}
		})
		if fresh == 0 {
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

// killBound is when Kill gives up: only a process that hangs in the kernel (a
// stuck file system) outlives SIGKILL for so long.
const killBound = 5 * time.Second

// Kill sends SIGKILL to all processes of a command until a scan finds none.
func (k *Killer) Kill(m Mark, r *Report) {
	start := time.Now()
	wait := 100 * time.Microsecond
	for {
		alive := 0
		err := k.each(m, func(p *process) {
			alive++
			r.kill(p.pid)
			k.signal(p, unix.SIGKILL)
		})
		if alive == 0 && err == nil {
			r.finish(0, start)
			return
		}
		if time.Since(start) > killBound {
			r.finish(max(alive, 1), start)
			return
		}
		time.Sleep(wait)
		wait = min(2*wait, 5*time.Millisecond)
	}
}

// Report collects the proof of one command's end. It is for one goroutine.
type Report struct {
	terminated, killed map[int]struct{}
	afterExit          bool
	left               int
	time               time.Duration
}

func (r *Report) terminate(pid int) bool {
	if _, ok := r.terminated[pid]; ok {
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
	r.killed[pid] = struct{}{}
}

func (r *Report) finish(left int, start time.Time) {
	r.left = left
	if len(r.killed) > 0 {
		r.time += time.Since(start)
	}
}

// Left is the number of processes that could not be killed.
func (r *Report) Left() int { return r.left }

// Unreaped says that the command's own process was killed but did not end.
func (r *Report) Unreaped() { r.left = max(r.left, 1) }

// AfterExit says that processes were left when the command itself had ended.
func (r *Report) AfterExit() { r.afterExit = true }

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
