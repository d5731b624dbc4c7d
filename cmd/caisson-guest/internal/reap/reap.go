// Package reap waits for processes that the guest started, and for the orphans
// that every container's PID 1 inherits. Nothing else in the guest may call
// wait: os/exec beside it would lose statuses.
package reap

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is how a process that the guest started ended.
type Exit struct {
	Status unix.WaitStatus
	Usage  unix.Rusage
	Time   time.Time
}

// Loop is the wait loop. It is safe for concurrent use.
type Loop struct {
	mu      sync.Mutex
	waiting map[int]chan<- Exit
	killed  int
	orphans Usage
	next    chan struct{} // closed at the next reaped process; nil if nobody waits
	signals chan os.Signal
}

// New returns a Loop, subscribed to SIGCHLD. Call Run in a goroutine.
func New() *Loop {
	l := &Loop{waiting: map[int]chan<- Exit{}, signals: make(chan os.Signal, 1)}
	signal.Notify(l.signals, unix.SIGCHLD)
	return l
}

// Run reaps until the process ends.
func (l *Loop) Run() {
	for range l.signals {
		for {
			if more, _ := l.reapOne(); !more {
				break
			}
		}
	}
}

// reapOne reaps one ended process. more reports whether there was one,
// childless whether the guest has no children at all. It holds the lock during
// the wait, so that Start can't return a pid whose exit was thrown away.
func (l *Loop) reapOne() (more, childless bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e Exit
	pid, err := unix.Wait4(-1, &e.Status, unix.WNOHANG, &e.Usage)
	if err == unix.EINTR {
		return true, false
	}
	if err != nil || pid <= 0 {
		return false, err == unix.ECHILD
	}
	e.Time = time.Now()
	if exit, ok := l.waiting[pid]; ok {
		delete(l.waiting, pid)
		exit <- e
	} else {
		l.orphans.addRusage(e.Usage)
	}
	if e.Status.Signaled() && e.Status.Signal() == unix.SIGKILL {
		l.killed++
	}
	if l.next != nil {
		close(l.next)
		l.next = nil
	}
	return true, false
}

// drainBound bounds Drain: a chain of forks has no end.
const drainBound = 5 * time.Millisecond

// Drain reaps ended processes, and reports whether the guest then has no
// children. It is then alone in the container: every process descends from it,
// the PID 1 that orphans are reparented to, except those that the engine's own
// exec starts. The kernel answers that in one step, whatever forks meanwhile.
func (l *Loop) Drain() (childless bool) {
	for until := time.Now().Add(drainBound); time.Now().Before(until); {
		more, childless := l.reapOne()
		if !more {
			return childless
		}
	}
	return false
}

// Next returns a channel that is closed when the next process is reaped.
func (l *Loop) Next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.next
}

// Usage is the resource usage of processes that the guest reaped instead of
// their parents.
type Usage struct {
	CPU time.Duration
	// Peak is the largest resident set of one of them, in bytes.
	Peak int64
}

func (u *Usage) addRusage(r unix.Rusage) {
	u.CPU += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	u.Peak = max(u.Peak, r.Maxrss<<10) // the kernel counts KiB
}

// Orphans returns the usage of orphans since the last call.
func (l *Loop) Orphans() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.orphans
	l.orphans = Usage{}
	return u
}

// Killed returns the number of processes so far that ended by SIGKILL.
func (l *Loop) Killed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.killed
}

// Start calls start, which makes a process, and returns a channel that gets its
// exit.
func (l *Loop) Start(start func() (pid int, err error)) (<-chan Exit, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pid, err := start()
	if err != nil {
		return nil, err
	}
	exit := make(chan Exit, 1)
	l.waiting[pid] = exit
	return exit, nil
}
