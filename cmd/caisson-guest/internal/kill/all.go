package kill

import (
	"time"

	"golang.org/x/sys/unix"
)

// isOnly reports whether exactly one command runs.
func (k *Killer) isOnly() bool {
	return k.method == MethodGroup && k.self == 1 && k.commands.Load() == 1
}

// runAlone runs f while one command runs and none can be launched. It returns
// false, without running f, if that is not possible at once.
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

// terminateAll sends SIGTERM to everything but the guest, and wakes what is
// stopped, if that is one command's. What is forked between the listing and the
// signal gets it too, but is not counted.
func (k *Killer) terminateAll(r *Report) bool {
	return k.runAlone(func() {
		_ = listProcesses(k.proc, k.self, func(_, pid int, _ string) { r.addTerminated(pid) })
		_ = unix.Kill(-1, unix.SIGTERM)
		_ = unix.Kill(-1, unix.SIGCONT)
	})
}

// killAll kills everything but the guest, if that is one command's, and waits
// until all is reaped, or for killBound.
//
// Linux signals all processes in one step, which no fork slips through. gVisor
// signals what there was when the call began: the call is repeated until the
// guest has no children, and each one takes far less than a fork does.
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
