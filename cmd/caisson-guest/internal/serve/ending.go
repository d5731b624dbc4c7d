package serve

import (
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// awaitEnd waits for the end of the command and of everything it started.
func (c *command) awaitEnd(p launch.Process, timeout <-chan struct{}, over <-chan wire.Exceeded) ending {
	if c.stopTransfer != nil {
		return c.awaitTransfer(p, timeout)
	}
	e := ending{}
	select {
	case e.exit = <-p.Exit:
		e.reaped = true
		if !c.s.o.Killer.Gone(p.Mark) {
			c.s.o.Killer.Kill(p.Mark, &e.report)
			e.report.AfterExit()
		}
		return e
	case <-c.cancelled:
		e.cancelled = true
	case <-timeout:
		e.timedOut = true
	case x := <-over:
		e.exceeded = &x
		c.killOnce.Do(func() { close(c.killed) }) // it may continue to grow
	}
	select {
	case <-c.killed:
	default:
		c.s.o.Killer.Terminate(p.Mark, &e.report)
	}
	if !c.waitGrace(&e, p) {
		c.s.o.Killer.Kill(p.Mark, &e.report)
	}
	if !e.reaped {
		select {
		case e.exit = <-p.Exit:
			e.reaped = true
		case <-time.After(pipeWait): // unkillable; the report says so
			e.report.Unreaped()
		}
	}
	return e
}

// waitGrace waits for the processes to end by themselves, and returns whether
// they did.
func (c *command) waitGrace(e *ending, p launch.Process) bool {
	done := p.Exit
	over := time.NewTimer(c.request.Grace)
	defer over.Stop()
	wait := time.Millisecond
	began, interval := time.Now(), 4*time.Millisecond
	for {
		if c.s.o.Killer.Gone(p.Mark) {
			return true
		}
		select {
		case e.exit = <-done:
			e.reaped = true
			done = nil
			c.s.o.Killer.TerminateOrphans(p.Mark, p.PID, &e.report)
		case <-over.C:
			return false
		case <-c.killed:
			return false
		case <-time.After(wait):
			wait = min(2*wait, 50*time.Millisecond)
			if time.Since(began) > interval { // a scan of 200 processes takes 150 ms in gVisor
				interval *= 2
				c.s.o.Killer.TerminateOrphans(p.Mark, p.PID, &e.report)
			}
		}
	}
}

type ending struct {
	exit                        reap.Exit
	reaped, cancelled, timedOut bool
	report                      kill.Report
	exceeded                    *wire.Exceeded
}

func (e *ending) isForced() bool { return e.cancelled || e.timedOut || e.exceeded != nil }

func (e *ending) toWire(wall time.Duration, method string) *wire.Exit {
	x := &wire.Exit{
		Code: -1, Cancelled: e.cancelled, TimedOut: e.timedOut, Exceeded: e.exceeded,
		Wall: wall, Kill: e.report.Wire(method),
	}
	status := e.exit.Status
	switch {
	case !e.reaped:
		x.Signal = int(unix.SIGKILL)
	case status.Signaled():
		x.Signal = int(status.Signal())
	default:
		x.Code = status.ExitStatus()
	}
	u := e.exit.Usage
	x.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	x.PeakMemory = u.Maxrss << 10 // the kernel counts KiB
	return x
}

// waitStreams waits for the end of the streams, when no process is left. A slow
// consumer has the rest of the command's time, or liveWait if the command was
// or is ended by force; then the rest becomes the tail.
func (c *command) waitStreams(ended <-chan struct{}, stdin io.Closer, forced bool, left time.Duration) {
	if c.stdin != nil {
		c.stdin.Break()
		_ = stdin.Close()
	}
	// Mostly the pipes have ended with the process, and need no timer.
	runtime.Gosched()
	select {
	case <-ended:
		return
	default:
	}
	for _, out := range c.out {
		out.Finish(pipeWait)
	}
	if !forced {
		patience := time.NewTimer(max(left, liveWait))
		defer patience.Stop()
		select {
		case <-ended:
			return
		case <-c.cancelled:
		case <-patience.C:
		}
	}
	patience := time.NewTimer(liveWait)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
		for _, out := range c.out {
			out.Abandon()
		}
		<-ended
	}
}

// counters are the kernel's counts for the whole container at a moment. The
// difference of two is what happened while a command ran.
type counters struct {
	oom, pids int64
	// orphans is the usage of processes that the guest reaped for others since
	// the last counters, launches the number of commands ever launched. alone
	// reports that exactly one runs.
	orphans  reap.Usage
	launches int64
	alone    bool
}

func (s *Session) readCounters() counters {
	f := counters{oom: s.o.OOM.Read(), pids: s.o.PIDs.Read(), orphans: s.o.Reaper.Orphans()}
	f.launches, f.alone = s.o.Killer.Launches()
	return f
}

// addTo adds to a command's exit what happened between f, before its launch,
// and then, after its end. The usage of its daemons, which the guest reaped,
// counts as its own if no other command ran beside it.
func (f counters) addTo(then counters, x *wire.Exit) {
	x.OOMKilled = then.oom > f.oom
	x.PIDsLimitHit = then.pids > f.pids
	if then.alone && then.launches == f.launches+1 {
		x.CPU += then.orphans.CPU
		x.PeakMemory = max(x.PeakMemory, then.orphans.Peak)
	}
}
