package admission

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
)

func startProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	_, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	return cmd
}

// stopProcess stops a process, as Ctrl-Z does, and waits until it is stopped.
func stopProcess(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	must(t, err)
	if !status.Stopped() {
		t.Fatalf("status %v", status)
	}
}

// A process that is stopped while it holds the head or slots must not block
// other starts. A running one must.
func TestStoppedHolderIsSkipped(t *testing.T) {
	for name, locks := range map[string][]string{"the head": {"runc.head"}, "all slots": {"runc-0.slot", "runc-1.slot"}} {
		t.Run(name, func(t *testing.T) {
			s := newSemaphore(t, Options{Starts: 2, Wait: 100 * time.Millisecond})
			must(t, s.makeDir())
			holder := startProcess(t)
			for _, name := range locks {
				lock, err := state.TryAcquire(s.file(name))
				must(t, err)
				t.Cleanup(func() { lock.Release() })
				must(t, os.WriteFile(lock.Path(), []byte(strconv.Itoa(holder.Process.Pid)+"\n"), 0o600))
			}
			if _, err := s.Acquire(t.Context(), Request{}); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("behind a process that runs: %v", err)
			}
			stopProcess(t, holder)
			patient := newSemaphore(t, Options{StateDir: s.opts.StateDir, Starts: 2})
			first, second := acquire(t, patient), acquire(t, patient)
			// The bound holds for running processes.
			if _, err := s.Acquire(t.Context(), Request{}); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("a third: %v", err)
			}
			first.Close()
			second.Close()
		})
	}
}

func TestLocksNameHolder(t *testing.T) {
	s := newSemaphore(t, Options{Starts: 1})
	acquire(t, s)
	for _, name := range []string{"runc.head", "runc-0.slot"} {
		data, err := os.ReadFile(filepath.Join(s.dir, name))
		must(t, err)
		if strings.TrimSpace(string(data)) != strconv.Itoa(os.Getpid()) {
			t.Errorf("%s: %q", name, data)
		}
	}
}
