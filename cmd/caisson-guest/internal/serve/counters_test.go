package serve

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestTell checks that a command's exit has the counts of the time it ran, and
// orphans' usage if no other command ran beside it.
func TestTell(t *testing.T) {
	before := counters{oom: 5, pids: 6, launches: 7}
	orphans := reap.Usage{CPU: time.Second, Peak: 300}
	for name, tt := range map[string]struct {
		then counters
		want wire.Exit
	}{
		"nothing":           {counters{oom: 5, pids: 6, launches: 8}, wire.Exit{CPU: time.Minute, PeakMemory: 200}},
		"memory":            {counters{oom: 6, pids: 6, launches: 8}, wire.Exit{OOMKilled: true, CPU: time.Minute, PeakMemory: 200}},
		"processes":         {counters{oom: 5, pids: 7, launches: 8}, wire.Exit{PIDsLimitHit: true, CPU: time.Minute, PeakMemory: 200}},
		"alone":             {counters{oom: 5, pids: 6, launches: 8, alone: true, orphans: orphans}, wire.Exit{CPU: time.Minute + time.Second, PeakMemory: 300}},
		"beside one":        {counters{oom: 5, pids: 6, launches: 8, orphans: orphans}, wire.Exit{CPU: time.Minute, PeakMemory: 200}},
		"beside one before": {counters{oom: 5, pids: 6, launches: 9, alone: true, orphans: orphans}, wire.Exit{CPU: time.Minute, PeakMemory: 200}},
	} {
		x := wire.Exit{CPU: time.Minute, PeakMemory: 200}
		before.addTo(tt.then, &x)
		if diff := cmp.Diff(tt.want, x); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFacts(t *testing.T) {
	loop := reap.New()
	killer := kill.NewAt(t.TempDir(), kill.MethodGroup, loop, nil)
	if err := killer.Launch(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	s := &Session{o: Options{Killer: killer, Reaper: loop}}
	if f := s.readCounters(); f.launches != 1 || !f.alone {
		t.Errorf("facts are %+v", f)
	}
}
