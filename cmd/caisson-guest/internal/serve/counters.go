package serve

import (
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// counters holds the kernel's counts for the whole container up to a moment.
// Two of them are compared to get the events while a command ran.
type counters struct {
	oom, pids int64
	// orphans is the usage of processes that the guest reaped for others since
	// the last counters, launches the number of commands that were ever
	// launched. alone reports whether exactly one runs.
	orphans  reap.Usage
	launches int64
	alone    bool
}

func (s *Session) readCounters() counters {
	f := counters{oom: s.o.OOM.Read(), pids: s.o.PIDs.Read(), orphans: s.o.Reaper.Orphans()}
	f.launches, f.alone = s.o.Killer.Launches()
	return f
}

// addTo adds to a command's exit what happened between then, before its launch,
// and f, after its end. The usage of its daemons, which the guest reaped,
// counts as its own if no other command ran beside it.
func (f counters) addTo(then counters, x *wire.Exit) {
	x.OOMKilled = then.oom > f.oom
	x.PIDsLimitHit = then.pids > f.pids
	if then.alone && then.launches == f.launches+1 {
		x.CPU += then.orphans.CPU
		x.PeakMemory = max(x.PeakMemory, then.orphans.Peak)
	}
}
