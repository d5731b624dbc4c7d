package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// Sweep removes what sandboxes of dead owners left: the runtime's state of
// their containers, cgroups with what still runs in them, mounts, folders and
// placeholders. Sandboxes of other live processes are not touched.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Leftover, error) {
	instance, err := owner.Instance(b.options.StateDir)
	if err != nil {
		return nil, fmt.Errorf("sweep %s sandboxes: %w", b.Name(), err)
	}
	left, err := owner.Sweep(ctx, owner.SweepOptions{
		StateDir: b.options.StateDir, Backend: b.Name(), Instance: instance, Undo: b.undo,
	})
	if err := errors.Join(err, pruneCache(b.cacheDir(), time.Now())); err != nil {
		return left, fmt.Errorf("sweep %s sandboxes: %w", b.Name(), err)
	}
	return left, nil
}

// Pending says whether sessions of this kind left notes below the state folder,
// so that a Sweep has anything to look at. It asks no runtime.
func Pending(stateDir string, k Kind) bool { return owner.Pending(stateDir, string(k)) }

// undo removes one thing of a dead session. Names are checked against the
// session: a journal is a file, and files can be damaged.
func (b *Backend) undo(ctx context.Context, session string, e owner.Entry) (bool, error) {
	switch e.Kind {
	case owner.KindContainer:
		if e.Name != cgroupPrefix+session {
			return false, fmt.Errorf("remove container %q: not the one of session %s", e.Name, session)
		}
		if err := b.runtime.waitForRun(ctx, e.Name, callTime); err != nil {
			return false, fmt.Errorf("remove container %q: %w", e.Name, err)
		}
		return b.runtime.delete(ctx, e.Name)
	case owner.KindCgroup:
		return removeCgroup("/"+e.Name, session)
	default:
		return false, fmt.Errorf("remove %s %s: this backend makes none", e.Kind, e)
	}
}

// waitForRun waits for a runtime that is still starting a container: it is not
// killed with the Caisson that called it, and finishes within a second. What does
// not end within most is killed. Cancelling ctx kills nothing.
func (r *runtimeClient) waitForRun(ctx context.Context, id string, most time.Duration) error {
	deadline := time.Now().Add(most)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil || !r.starts(pid, id) {
			continue
		}
		p, err := openProcess(pid)
		if err != nil {
			continue // it has ended
		}
		if r.starts(pid, id) { // the number is still its own
			err = p.outlast(ctx, deadline)
		}
		p.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// step is how long a wait does not look at its context.
const step = 50 * time.Millisecond

// outlast waits for the end, and kills the process at the deadline.
func (p *hostProcess) outlast(ctx context.Context, deadline time.Time) error {
	for !p.wait(min(step, time.Until(deadline))) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			p.kill()
			p.wait(settle)
			return nil
		}
	}
	return nil
}

// starts says whether a process is the runtime that starts a container, or what
// becomes it. A command line alone proves nothing: every process chooses its own,
// those in sandboxes too, which have a PID namespace of their own.
func (r *runtimeClient) starts(pid int, id string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || !strings.HasSuffix(string(line), "\x00"+id+"\x00") || !strings.Contains(string(line), "\x00--detach\x00") {
		return false
	}
	space, err := os.Readlink(filepath.Join(dir, "ns/pid"))
	own, ownErr := os.Readlink("/proc/self/ns/pid")
	if err != nil || ownErr != nil || space != own {
		return false
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		return false
	}
	exe = strings.TrimSuffix(exe, " (deleted)") // an update came between
	if path, err := filepath.EvalSymlinks(r.path); err == nil && exe == path || isScript(r.path) {
		return true
	}
	self, err := os.Executable() // it makes the mounts, and becomes the runtime
	return err == nil && exe == self
}

// isScript says that a runtime is a script around another one, whose path is not
// known.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var begin [2]byte
	_, err = io.ReadFull(f, begin[:])
	return err == nil && string(begin[:]) == "#!"
}
