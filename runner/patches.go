package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// patchMarker writes the mark of a session. It is safe for concurrent use.
type patchMarker struct {
	dir, workspace, mode string
	log                  *zap.Logger

	mu      sync.Mutex
	started int
	running map[int][]string // paths of the patches that have not ended
}

// mark records that a patch of paths begins. The function that it returns
// records that the patch was done or undone.
func (m *patchMarker) mark(paths []string) (unmark func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started++
	number := m.started
	if m.running == nil {
		m.running = map[int][]string{}
	}
	m.running[number] = paths
	if err := m.write(); err != nil {
		delete(m.running, number)
		return nil, fmt.Errorf("mark patch: %w", err)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, number)
		if err := m.write(); err != nil {
			m.log.Warn("remove the mark of a patch", zap.Error(err))
		}
	}, nil
}

// write replaces the file, or removes it if no patch is running.
func (m *patchMarker) write() error {
	path := filepath.Join(m.dir, sessiondir.PatchMarkFile)
	paths := m.paths()
	if len(paths) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(sessiondir.PatchMark{Workspace: m.workspace, Mode: m.mode, Paths: paths})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// paths returns the sorted paths of the patches that have not ended.
func (m *patchMarker) paths() []string {
	var all []string
	for _, paths := range m.running {
		all = append(all, paths...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// reportCutOffPatch warns of a patch of this session whose sandbox was lost. In
// bind mode it removes the mark. In overlay mode the mark stays with the changes
// that are kept; see [CutOffPatch].
func (s *Session) reportCutOffPatch() {
	m := s.exec.patches
	m.mu.Lock()
	defer m.mu.Unlock()
	paths := m.paths()
	switch {
	case len(paths) == 0:
	case s.overlaid():
		s.warn(sessiondir.CutOffNote("apply_patch", paths, "the session's diff"))
	default:
		s.warn(sessiondir.CutOffNote("apply_patch", paths, "git diff"))
		s.removeMark(s.dir)
	}
}

// reportCutOffPatches warns of the patches that were cut off in this workspace
// when the process of an earlier session was killed, and removes their marks.
func (s *Session) reportCutOffPatches() {
	for _, dir := range sessiondir.Siblings(s.dir) {
		mark, ok := sessiondir.ReadPatchMark(dir)
		if !ok || mark.Workspace != s.opts.Workspace.Path || mark.Mode != string(sandbox.ModeBind) || sessiondir.LivesIn(dir) {
			continue
		}
		s.warn(sessiondir.CutOffNote("apply_patch of session "+filepath.Base(dir), mark.Paths, "git diff"))
		s.removeMark(dir)
	}
}

func (s *Session) removeMark(dir string) {
	if err := sessiondir.RemovePatchMark(dir); err != nil {
		s.log.Warn("remove the mark of a patch", zap.Error(err))
	}
}

// warn records a warning. What can't be recorded ends the session at the next
// record.
func (s *Session) warn(message string) { _ = s.events.writeRecord(record.Warning{Message: message}) }
