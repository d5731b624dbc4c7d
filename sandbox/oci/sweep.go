package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// RemoveUnlisted removes nothing: a runtime does not record owners.
func (driver) RemoveUnlisted(context.Context) ([]sandbox.Orphan, error) { return nil, nil }

// Prune removes nothing: the lifecycle prunes the cache.
func (driver) Prune(context.Context) error { return nil }

// RemoveEntry removes one entry of a dead session. Names are checked against
// the session, because a cleanup list is a file, and files can be damaged.
func (d driver) RemoveEntry(ctx context.Context, session string, e ownership.Entry) (bool, error) {
	switch e.Kind {
	case ownership.KindContainer:
		if e.Name != cgroupPrefix+session {
			return false, fmt.Errorf("remove container %q: not the one of session %s", e.Name, session)
		}
		if err := d.backend.runtime.waitForRun(ctx, e.Name, callTime); err != nil {
			return false, fmt.Errorf("remove container %q: %w", e.Name, err)
		}
		return d.backend.runtime.deleteContainer(ctx, e.Name)
	case ownership.KindCgroup:
		return removeCgroup("/"+e.Name, session)
	default:
		return false, fmt.Errorf("remove %s %s: this backend makes none", e.Kind, e)
	}
}

// waitForRun waits for a runtime that is still starting a container: it is not
// killed with the Caisson that started it, and finishes within a second. One
// that does not end within most is killed. Cancelling ctx kills nothing.
func (r *runtimeClient) waitForRun(ctx context.Context, id string, most time.Duration) error {
	deadline := time.Now().Add(most)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil || !r.isStarting(pid, id) {
			continue
		}
		p, err := openProcess(pid)
		if err != nil {
			continue // it has ended
		}
		if r.isStarting(pid, id) { // the number is still its own
			err = p.waitOrKill(ctx, deadline)
		}
		p.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// step is the interval in which a wait checks its context.
const step = 50 * time.Millisecond

// waitOrKill waits for the end, and kills the process at the deadline.
func (p *hostProcess) waitOrKill(ctx context.Context, deadline time.Time) error {
	for !p.waitFor(min(step, time.Until(deadline))) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			p.sendKill()
			p.waitFor(settleTime)
			return nil
		}
	}
	return nil
}

// isStarting reports whether a process is the runtime that starts a container,
// or what becomes it. A command line alone proves nothing: every process
// chooses its own, and so do those in sandboxes, which have a PID namespace of
// their own.
func (r *runtimeClient) isStarting(pid int, id string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	for deadline := time.Now().Add(execTime); ; pauseBriefly() {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) > 0 && !isStartOf(string(line), id) || !r.mayStart(dir) {
			return false
		}
		if len(line) > 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// execTime bounds the wait for the command line of a process, which is empty for
// a moment after the process has got its program.
const execTime = 500 * time.Millisecond

// isStartOf reports whether a command line is that of a runtime that starts a
// container.
func isStartOf(line, id string) bool {
	return strings.HasSuffix(line, "\x00"+id+"\x00") && strings.Contains(line, "\x00--detach\x00")
}

// mayStart reports whether a process, of which dir is the directory in /proc,
// has the program of a runtime, or of what becomes one, and is in no sandbox.
func (r *runtimeClient) mayStart(dir string) bool {
	space, err := os.Readlink(filepath.Join(dir, "ns/pid"))
	own, ownErr := os.Readlink("/proc/self/ns/pid")
	if err != nil || ownErr != nil || space != own {
		return false
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		return false // also a kernel thread, and a process that has ended
	}
	exe = strings.TrimSuffix(exe, " (deleted)") // an update came between
	if path, err := filepath.EvalSymlinks(r.path); err == nil && exe == path || isScript(r.path) {
		return true
	}
	self, err := os.Executable() // it makes the mounts, and becomes the runtime
	return err == nil && exe == self
}

// isScript reports whether a runtime is a script around another one, whose path
// is not known.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var begin [2]byte
	_, err = io.ReadFull(f, begin[:])
	return err == nil && string(begin[:]) == "#!"
}

// Inspect asks the runtime about each sandbox.
func (d driver) Inspect(ctx context.Context, listed map[string]*lifecycle.Listed) error {
	var errs []error
	for _, l := range listed {
		var err error
		l.State, err = d.backend.runtime.queryState(ctx, l.Container)
		errs = append(errs, err)
		if l.State == sandbox.ListedRunning || l.State == sandbox.ListedPaused {
			l.MemoryBytes = chargedMemory(l.Entries)
		}
	}
	return errors.Join(errs...)
}

// chargedMemory returns the memory that the session's cgroup is charged with,
// or 0 if it has none.
func chargedMemory(entries []ownership.NumberedEntry) int64 {
	for _, e := range entries {
		if e.Kind != ownership.KindCgroup {
			continue
		}
		for _, file := range []string{"memory.current", "memory.usage_in_bytes"} {
			if text := readText(filepath.Join("/", e.Name), file); text != "" {
				return parseNumber(text)
			}
		}
	}
	return 0
}

// queryState asks the runtime for the state of a container. One that it does
// not know is gone; one whose files it can't read is unknown.
func (r *runtimeClient) queryState(ctx context.Context, id string) (sandbox.ListedState, error) {
	if len(r.listFiles(id)) == 0 {
		return sandbox.ListedGone, nil
	}
	out, err := r.callRuntime(ctx, r.root, "state", id)
	if err != nil {
		if len(r.listFiles(id)) == 0 {
			return sandbox.ListedGone, nil // it ended meanwhile
		}
		return sandbox.ListedUnknown, fmt.Errorf("container %s: %w", id, err)
	}
	var state struct {
		Status sandbox.ListedState `json:"status"`
	}
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		return sandbox.ListedUnknown, fmt.Errorf("container %s: the runtime's answer: %w: %w", id, sandbox.ErrUnavailable, err)
	}
	switch state.Status {
	case sandbox.ListedCreated, sandbox.ListedRunning, sandbox.ListedPaused, sandbox.ListedStopped:
		return state.Status, nil
	case "creating":
		return sandbox.ListedCreated, nil
	}
	return sandbox.ListedUnknown, nil
}
