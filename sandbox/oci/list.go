package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

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
