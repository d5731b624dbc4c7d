package oci

import (
	"context"
	"errors"
	"fmt"
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
		waitForRun(e.Name)
		return b.runtime.delete(ctx, e.Name)
	case owner.KindCgroup:
		return removeCgroup("/"+e.Name, session)
	default:
		return false, fmt.Errorf("remove %s %s: this backend makes none", e.Kind, e)
	}
}

// waitForRun waits for a runtime that is still starting a container: it is not
// killed with the Caisson that called it, and finishes within a second. One that does
// not is killed.
func waitForRun(id string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || !strings.HasSuffix(string(data), "\x00"+id+"\x00") || !strings.Contains(string(data), "\x00--detach\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			continue
		}
		if p, err := openProcess(pid); err == nil {
			if !p.wait(callTime) {
				p.kill()
				p.wait(settle)
			}
			p.close()
		}
	}
}
