package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// execCuts is how many commands TestExecCut runs on each backend; EXEC_CUTS overrides it.
const execCuts = 6

// TestExecCut kills and interrupts `caisson exec` at random moments, from its start to
// after its end. What is interrupted leaves nothing; what is killed leaves nothing once
// the next command has run.
func TestExecCut(t *testing.T) {
	cuts := fromEnv(t, "EXEC_CUTS", execCuts)
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		args := []string{"exec", "--workspace", m.workspace, "--backend", backend, "--", "true"}
		m.run(t, args...).want(t, 0) // which fills the caches
		begun := time.Now()
		m.run(t, args...).want(t, 0)
		whole := time.Since(begun)
		ends := map[int]int{}
		for i := range cuts {
			signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGINT}[i%2]
			run := m.start(t, args...)
			select {
			case <-time.After(rand.N(whole + whole/10)):
				_ = run.process.Process.Signal(signal) // it may have ended
			case <-run.ended:
			}
			out := run.wait(t, deadline)
			ends[out.status]++
			if died := out.signal == signal; !died && out.status != 0 && out.status != 130 {
				t.Errorf("after %v: status %d, %s", signal, out.status, out.stderr)
			}
			if signal != syscall.SIGINT {
				m.run(t, args...).want(t, 0)
			}
			m.wantNothingLeft(t)
			m.wantNoTraces(t)
		}
		t.Logf("statuses of %d commands, -1 by a signal: %v", cuts, ends)
	})
}

// wantNoTraces fails the test if the workspace has any file, or a session a cleanup list.
func (m *machine) wantNoTraces(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{filepath.Join(m.workspace, "*"), filepath.Join(m.workspace, ".*"), filepath.Join(m.stateDir(), "cleanup", "ses_*")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			t.Errorf("left: %q", found)
		}
	}
	entries, err := os.ReadDir(filepath.Join(m.stateDir(), "oci", "runc"))
	if err == nil && len(entries) > 0 {
		t.Errorf("left of runc: %v", entries)
	}
}
