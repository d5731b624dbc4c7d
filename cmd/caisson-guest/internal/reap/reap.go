// Package reap waits for processes: for those that the guest started, and for
// the orphans that every container's PID 1 inherits. It is the only place in
// the guest that calls wait; os/exec beside it would lose statuses.
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
	orphans int
	signals chan os.Signal
}

// New makes a Loop and subscribes it to SIGCHLD. Call Run in a goroutine.
func New() *Loop {
	l := &Loop{waiting: map[int]chan<- Exit{}, signals: make(chan os.Signal, 1)}
	signal.Notify(l.signals, unix.SIGCHLD)
	return l
}

// Run reaps until the process ends.
func (l *Loop) Run() {
	for range l.signals {
		for l.reapOne() {
		}
	}
}

// reapOne takes one process that has ended, if there is one. The lock is held
// over the wait, so that Start can't return a pid whose exit was thrown away.
func (l *Loop) reapOne() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e Exit
	pid, err := unix.Wait4(-1, &e.Status, unix.WNOHANG, &e.Usage)
	if err == unix.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	e.Time = time.Now()
	if exit, ok := l.waiting[pid]; ok {
		delete(l.waiting, pid)
		exit <- e
	} else {
		l.orphans++
	}
	return true
}

// Start calls start, which makes a process, and returns a channel that gets
// its exit.
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

// Orphans is the number of processes that were reaped for others.
func (l *Loop) Orphans() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orphans
}
