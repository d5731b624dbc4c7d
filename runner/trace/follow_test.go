package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// TestShowFollows shows a session while it writes: first what was there, then
// what comes, up to its end.
func TestShowFollows(t *testing.T) {
	for name, o := range map[string]ShowOptions{"story": {}, "records": {JSON: true}} {
		w := newWriter(t, t.TempDir())
		w.created("a task that is followed")
		w.turn = "trn_01JD0000000000000000000000"
		s, err := Find(w.state, w.id)
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Open(filepath.Join(w.dir, sessiondir.LogFile))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX); err != nil { // it lives
			t.Fatal(err)
		}
		later := []func(){
			func() { w.put(time.Second, record.ActorSystem, record.Warning{Message: "the first of the later ones"}) },
			func() {}, // nothing new
			func() {
				w.put(time.Second, record.ActorSystem, record.Warning{Message: "the second"})
				w.put(time.Second, record.ActorSystem, record.SessionEnded{Reason: "answered", Changed: []record.Changed{}, HostExecuted: []record.HostExecuted{}, Denials: []record.Denial{}})
			},
		}
		var out bytes.Buffer
		o.Again = func() bool {
			if !strings.Contains(out.String(), "a task that is followed") {
				t.Errorf("%s: waits before what is there is shown: %q", name, &out)
			}
			if len(later) == 0 {
				t.Errorf("%s: waits behind the end", name)
				return false
			}
			later[0]()
			later = later[1:]
			return true
		}
		over, err := Show(&out, s, o)
		if err != nil || over.Ended == nil || over.Damage != "" {
			t.Errorf("%s: %+v, %v", name, over, err)
		}
		first, second := strings.Index(out.String(), "the first of the later ones"), strings.Index(out.String(), "the second")
		if first < 0 || second < first || strings.Count(out.String(), "the second") != 1 {
			t.Errorf("%s: shown is %s", name, &out)
		}
		// Control: without Again it ends at the end.
		out.Reset()
		o.Again = nil
		if _, err := Show(&out, s, o); err != nil || !strings.Contains(out.String(), "the second") {
			t.Errorf("%s, later: %s, %v", name, &out, err)
		}
	}
}
