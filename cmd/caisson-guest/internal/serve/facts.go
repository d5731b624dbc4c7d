package serve

import (
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// facts are what the kernel counted for the whole container up to a moment.
// The difference between two is what happened while a command ran.
type facts struct {
	oom, pids int64
	// orphans is what the guest reaped for others since the last facts, launches
	// the number of commands that were ever launched, and alone says that one runs.
	orphans  reap.Usage
	launches int64
	alone    bool
}

func (s *Session) facts() facts {
	f := facts{oom: s.o.OOM.Read(), pids: s.o.PIDs.Read(), orphans: s.o.Reaper.Orphans()}
	f.launches, f.alone = s.o.Killer.Launches()
	return f
}

// tell adds to a command's exit what happened between f, before its launch, and
// then, after its end. What its daemons used, which the guest reaped, counts as
// its own where no other command ran beside it.
func (f facts) tell(then facts, x *wire.Exit) {
	x.OOMKilled = then.oom > f.oom
	x.PIDsLimitHit = then.pids > f.pids
	if then.alone && then.launches == f.launches+1 {
		x.CPU += then.orphans.CPU
		x.PeakMemory = max(x.PeakMemory, then.orphans.Peak)
	}
}
