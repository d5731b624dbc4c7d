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

// RemoveEntry removes one entry of a dead session. It checks the name against
// the session, because a cleanup list is a file that can be damaged.
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

// waitForRun waits for a runtime that is still starting a container. It
// survives the Caisson that started it and finishes within a second. If it does
// not end within most, it is killed. Cancelling ctx kills nothing.
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
		if r.isStarting(pid, id) { // the number still belongs to it
			err = p.waitOrKill(ctx, deadline)
		}
		p.close()
		if err != nil {
			return err
		}
	}
	return nil
}

const step = 50 * time.Millisecond

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

// isStarting reports whether a process is the runtime starting a container, or
// about to become it. A command line alone proves nothing: every process
// chooses its own, also those in sandboxes. But these have their own PID
// namespace, or are not on the host.
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

// execTime bounds the wait for a process's command line, which is empty for a
// moment after exec.
const execTime = 500 * time.Millisecond

func isStartOf(line, id string) bool {
	return strings.HasSuffix(line, "\x00"+id+"\x00") && strings.Contains(line, "\x00--detach\x00")
}

// mayStart reports whether the process with the /proc directory dir runs a
// runtime, or a program that becomes one, outside of sandboxes.
func (r *runtimeClient) mayStart(dir string) bool {
	space, err := os.Readlink(filepath.Join(dir, "ns/pid"))
	own, ownErr := os.Readlink("/proc/self/ns/pid")
	if err != nil || ownErr != nil || space != own {
		return false
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		return false // a kernel thread, or it has ended
	}
	exe = strings.TrimSuffix(exe, " (deleted)") // updated meanwhile
	if path, err := filepath.EvalSymlinks(r.path); err == nil && exe == path || isScript(r.path) {
		return true
	}
	self, err := os.Executable() // it makes the mounts, then becomes the runtime
	return err == nil && exe == self
}

// isScript reports whether a runtime is a script that may run any other.
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

// queryState asks the runtime for a container's state: gone if the runtime does
// not know it, unknown if it can't read its files.
func (r *runtimeClient) queryState(ctx context.Context, id string) (sandbox.ListedState, error) {
	if len(r.listFiles(id)) == 0 {
		return sandbox.ListedGone, nil
	}
	out, err := r.callRuntime(ctx, r.root, "state", id)
	if err != nil {
		if len(r.listFiles(id)) == 0 {
			return sandbox.ListedGone, nil
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
