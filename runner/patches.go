package runner

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/moby/sys/atomicwriter"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// patchMarker marks a session's running patches on disk, and reports interrupted ones. It is
// safe for concurrent use.
type patchMarker struct {
	dir, workspace, mode string
	warn                 func(message string)
	log                  *zap.Logger

	mu      sync.Mutex
	started int
	running map[int][]string // paths of running patches
}

// markPatch records that a patch of paths begins. The returned function records that it was
// done or undone.
func (m *patchMarker) markPatch(paths []string) (unmark func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started++
	number := m.started
	if m.running == nil {
		m.running = map[int][]string{}
	}
	m.running[number] = paths
	if err := m.writeMark(); err != nil {
		delete(m.running, number)
		return nil, fmt.Errorf("mark patch: %w", err)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, number)
		if err := m.writeMark(); err != nil {
			m.log.Warn("remove the mark of a patch", zap.Error(err))
		}
	}, nil
}

func (m *patchMarker) writeMark() error {
	paths := m.listPaths()
	if len(paths) == 0 {
		return sessiondir.RemovePatchMark(m.dir)
	}
	text, err := json.Marshal(sessiondir.PatchMark{Workspace: m.workspace, Mode: m.mode, Paths: paths})
	if err != nil {
		return err
	}
	return atomicwriter.WriteFile(filepath.Join(m.dir, sessiondir.PatchMarkFile), text, 0o600)
}

func (m *patchMarker) listPaths() []string {
	var all []string
	for _, paths := range m.running {
		all = append(all, paths...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// reportLost warns of running patches after the sandbox was lost. In bind mode it removes the
// mark. In overlay mode the mark stays with the kept changes.
func (m *patchMarker) reportLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	paths := m.listPaths()
	switch {
	case len(paths) == 0:
	case sandbox.WorkspaceMode(m.mode).KeepsChanges():
		m.warn(sessiondir.CutOffNote("apply_patch", paths, "the session's diff"))
	default:
		m.warn(sessiondir.CutOffNote("apply_patch", paths, "git diff"))
		m.removeMark(m.dir)
	}
}

// reportKilled warns of patches of this workspace that were interrupted when the process of
// this or another session was killed, and removes their marks.
func (m *patchMarker) reportKilled() {
	if mark, ok := sessiondir.ReadPatchMark(m.dir); ok {
		m.warn(sessiondir.CutOffNote("apply_patch", mark.Paths, "the session's diff"))
		m.removeMark(m.dir)
	}
	for _, dir := range sessiondir.Siblings(m.dir) {
		mark, ok := sessiondir.ReadPatchMark(dir)
		if !ok || mark.Workspace != m.workspace || mark.Mode != string(sandbox.ModeBind) || sessiondir.LivesIn(dir) {
			continue
		}
		m.warn(sessiondir.CutOffNote("apply_patch of session "+filepath.Base(dir), mark.Paths, "git diff"))
		m.removeMark(dir)
	}
}

func (m *patchMarker) removeMark(dir string) {
	if err := sessiondir.RemovePatchMark(dir); err != nil {
		m.log.Warn("remove the mark of a patch", zap.Error(err))
	}
}
