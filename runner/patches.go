package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gofrs/flock"
	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/workspace"
)

// patchesDir is the folder, in a session's own, of its patches that are not over:
// <ulid>.json. It is there only while there are any, so that looking for those of
// many sessions costs little. One of a session whose process is dead was cut off;
// one that could not be ended is renamed to end in leftSuffix, for its user.
const (
	patchesDir  = "patches"
	patchSuffix = ".json"
	leftSuffix  = ".left.json"
)

// keptPatch is the content of such a file.
type keptPatch struct {
	Workspace string       `json:"workspace"`
	Mode      string       `json:"mode"`
	Patch     file.Pending `json:"patch"`
}

// patchJournal keeps the patches of a session that have begun. It is safe for
// concurrent use.
type patchJournal struct {
	dir, workspace, mode string
	log                  *zap.Logger

	mu   sync.Mutex
	open []string // paths
}

// Begin keeps a patch, on the disk.
func (j *patchJournal) Begin(p file.Pending) (forget func(), err error) {
	text, err := json.Marshal(keptPatch{Workspace: j.workspace, Mode: j.mode, Patch: p})
	if err != nil {
		return nil, fmt.Errorf("keep patch: %w", err)
	}
	j.mu.Lock() // nobody removes the folder meanwhile
	defer j.mu.Unlock()
	path := filepath.Join(j.dir, patchesDir, ulid.Make().String()+patchSuffix)
	err = os.Mkdir(filepath.Dir(path), 0o700)
	made := err == nil
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = writeSynced(path, text)
	}
	if err == nil && made {
		err = syncDir(j.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("keep patch: %w", err)
	}
	j.open = append(j.open, path)
	return func() { j.forget(path) }, nil
}

func (j *patchJournal) forget(path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := removePatch(path); err != nil {
		// It is found to be over when it is looked at again.
		j.log.Warn("forget patch", zap.Error(err))
	}
	j.open = slices.DeleteFunc(j.open, func(p string) bool { return p == path })
}

// removePatch removes a patch, and the folder where it was the last one.
func removePatch(path string) error {
	err := ignoreMissing(os.Remove(path))
	_ = os.Remove(filepath.Dir(path)) // it may hold others
	return err
}

// left gives the patches that are not over, the last one first.
func (j *patchJournal) left() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := slices.Clone(j.open)
	slices.Reverse(out)
	return out
}

// writeSynced makes a file that is whole or not there, whatever happens.
func writeSynced(path string, text []byte) (err error) {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // nothing was written through it
	if err := dir.Sync(); err != nil && !unsyncable(err) {
		return err
	}
	return nil
}

// inside makes changes in the sandbox, for package file.
type inside func(context.Context, workspace.Op) (workspace.Change, error)

// Apply makes one change.
func (f inside) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	return f(ctx, op)
}

// endPatches ends what is left of this session's patches, in a fresh container
// where the old one is lost.
func (s *Session) endPatches() {
	left := s.exec.patches.left()
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), quarantineTime, errSlow)
	defer cancel()
	for _, path := range left {
		s.endPatch(ctx, path, "The sandbox was lost in the middle of a patch", inside(s.changeInside))
	}
}

// endPatchesOfTheDead ends the patches that sessions left in this workspace whose
// process was killed, before anything else is done in it: what this one then sees
// is all of a patch or nothing. An overlay leaves the workspace as it is, so that
// its session only says so.
func (s *Session) endPatchesOfTheDead(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, quarantineTime, errSlow)
	defer cancel()
	for _, path := range s.cutOff() {
		session := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if s.overlaid() {
			s.warn(fmt.Sprintf("The session %s was killed in the middle of a patch: what is seen here may be a part of it. The next session in bind mode ends it.", session))
			continue
		}
		s.endPatch(ctx, path, fmt.Sprintf("The session %s was killed in the middle of a patch", session), func(ctx context.Context, op workspace.Op) (workspace.Change, error) {
			l, err := s.box.running(ctx)
			if err != nil {
				return workspace.Change{}, err
			}
			change, err := l.box.Apply(ctx, op)
			return change, s.box.check(l, err)
		})
	}
}

// endPatch ends one patch, in one process at a time, and says what became of it.
// One that can't be ended now is left for the next session.
func (s *Session) endPatch(ctx context.Context, path, what string, apply inside) {
	lock := flock.New(path, flock.SetFlag(os.O_RDWR))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return // another session is at it, or was
	}
	defer func() { _ = lock.Close() }() // nothing was written through it
	kept, err := readPatch(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.warn(fmt.Sprintf("%s, and what it was can't be read: %v. Look at the workspace.", what, err))
		s.settle(os.Rename(path, strings.TrimSuffix(path, patchSuffix)+leftSuffix))
		return
	}
	done, err := file.Recover(ctx, s.reader, apply, kept.Patch)
	switch {
	case err != nil:
		s.log.Warn("end patch", zap.Error(err))
		s.warn(what + ", and some of its files may be changed and others not. The next session on this workspace ends it.")
		return
	case done.Outcome == file.Left:
		aside := strings.TrimSuffix(path, patchSuffix) + leftSuffix
		s.warn(fmt.Sprintf("%s. It is left part done, because somebody went on with its files or one of them can't be changed: %s. What they held before it is in %s, in base64.",
			what, listedNames(done.Notes), aside))
		s.settle(os.Rename(path, aside))
		return
	case len(done.Changed) == 0: // it had not begun, or was over
	case done.Outcome == file.Undone:
		s.warn(fmt.Sprintf("%s. It was undone: every file is as it was before the patch; %s had been changed.", what, listedNames(done.Changed)))
	default:
		s.warn(fmt.Sprintf("%s. It was completed: what was missing were deletes of %s.", what, listedNames(done.Changed)))
	}
	s.exec.patches.forget(path)
}

// settle logs what could not be done about a patch that is over.
func (s *Session) settle(err error) {
	if err != nil {
		s.log.Warn("forget patch", zap.Error(err))
	}
}

// warn records a warning. What can't be recorded ends the session at the next
// record.
func (s *Session) warn(message string) { _ = s.journal.write(Warning{Message: message}) }

// listedNames lists the first few.
func listedNames(names []string) string {
	const most = 20
	if over := len(names) - most; over > 0 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", over)
	}
	return strings.Join(names, ", ")
}

func readPatch(path string) (keptPatch, error) {
	var p keptPatch
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// cutOff lists the patches in this workspace that sessions left whose process is
// dead, the last one first.
func (s *Session) cutOff() []string {
	folders, err := os.ReadDir(filepath.Dir(s.dir))
	if err != nil {
		return nil
	}
	slices.Reverse(folders) // ids sort by time
	var out []string
	for _, folder := range folders[:min(len(folders), inventories)] {
		dir := filepath.Join(filepath.Dir(s.dir), folder.Name())
		found := pendingPatches(dir)
		if len(found) == 0 || lives(dir) {
			continue
		}
		for _, path := range slices.Backward(found) {
			p, err := readPatch(path)
			if err == nil && p.Workspace == s.opts.Workspace.Path && p.Mode == string(sandbox.ModeBind) {
				out = append(out, path)
			}
		}
	}
	return out
}

// pendingPatches lists the patches in a session's folder that are not over.
func pendingPatches(dir string) []string {
	entries, err := os.ReadDir(filepath.Join(dir, patchesDir))
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), patchSuffix) && !strings.HasSuffix(e.Name(), leftSuffix) {
			found = append(found, filepath.Join(dir, patchesDir, e.Name()))
		}
	}
	return found
}

// CutOffPatch says whether a session, whose process is dead, ended in the middle
// of a patch and nobody has ended that since.
func CutOffPatch(stateDir, session string) bool {
	dir := SessionDir(stateDir, session)
	return len(pendingPatches(dir)) > 0 && !lives(dir)
}

// waitsInWorkspace says whether a patch in a session's folder is to be ended in a
// workspace that is still there.
func waitsInWorkspace(dir string) bool {
	return slices.ContainsFunc(pendingPatches(dir), func(path string) bool {
		p, err := readPatch(path)
		if err != nil || p.Mode != string(sandbox.ModeBind) {
			return false
		}
		_, err = os.Stat(p.Workspace)
		return err == nil
	})
}
