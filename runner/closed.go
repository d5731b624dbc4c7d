package runner

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// maxOpened bounds the folders that one look opens.
	maxOpened = 10_000
	// restoreTime bounds giving them their modes back, whatever interrupted the look.
	restoreTime = 30 * time.Second
	// ownerAll and ownerSearch are mode bits of a folder.
	ownerAll, ownerSearch = 0o700, 0o100
)

// closedFolders are folders whose modes keep a repository from being found or
// renamed, which a command can do to its own. They are opened for their owner
// inside the sandbox, by the identity that made them, and closed again. What
// belongs to somebody else stays as it is: commands can't have made it.
type closedFolders struct {
	set func(ctx context.Context, dir string, mode uint32, add bool) (was uint32, err error)
	log *zap.Logger

	opened []openedFolder // in order, the ones above first
	tried  map[string]uint32
}

type openedFolder struct {
	path string
	mode uint32 // as it was
}

func (s *Session) closedFolders() *closedFolders {
	return &closedFolders{set: s.chmod, log: s.log, tried: map[string]uint32{}}
}

// open gives the owner bits on a folder, once, and says whether that changed any.
func (c *closedFolders) open(ctx context.Context, dir string, bits uint32) bool {
	if len(c.opened) >= maxOpened || c.tried[dir]&bits == bits {
		return false
	}
	c.tried[dir] |= bits
	was, err := c.set(ctx, dir, bits, true)
	if err != nil {
		c.log.Warn("open folder for a look", zap.String("path", dir), zap.Error(err))
		return false
	}
	if was&bits == bits {
		return false
	}
	c.opened = append(c.opened, openedFolder{dir, was})
	return true
}

// openAbove makes the folder of p writable and those above it passable; those
// for which that is so are not touched.
func (c *closedFolders) openAbove(ctx context.Context, p string) (changed bool) {
	dir := path.Dir(p)
	for _, above := range ancestors(dir) {
		changed = c.open(ctx, above, ownerSearch) || changed
	}
	return c.open(ctx, dir, ownerAll) || changed
}

// ancestors are the folders above dir, the workspace first.
func ancestors(dir string) []string {
	var out []string
	for dir != "." {
		dir = path.Dir(dir)
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}

// restore gives all their modes back, those below first.
func (c *closedFolders) restore(ctx context.Context) {
	if len(c.opened) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), restoreTime, errSlow)
	defer cancel()
	for _, f := range slices.Backward(c.opened) {
		if _, err := c.set(ctx, f.path, f.mode, false); err != nil {
			c.log.Warn("close folder again", zap.String("path", f.path), zap.Error(err))
		}
	}
	c.opened = nil
}

// lookInto takes a snapshot, and opens the folders that could not be read then
// and could before, or are new, until there are none that can be. What stays
// closed is in the snapshot's unread.
func (s *Session) lookInto(ctx context.Context, c *closedFolders) (*snapshot, error) {
	for {
		now, err := takeSnapshot(ctx, s.reader)
		closed := []string{"."}
		if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindPermission {
			if err != nil {
				return nil, err
			}
			if closed = now.unread; len(closed) >= unreadFolders {
				closed = slices.Concat(closed, now.folders) // any of them may be one
			}
		}
		changed := false
		for _, dir := range closed {
			if s.before.knowsInside(dir) {
				changed = c.open(ctx, dir, ownerAll) || changed
			}
		}
		if !changed {
			return now, err
		}
	}
}

// knowsInside says whether the walk saw what there was in dir, or that there
// was no such folder.
func (s *snapshot) knowsInside(dir string) bool {
	if dir == "." {
		return s.whole
	}
	return s.knows(dir + "/")
}

// hides says whether p may be there unseen, in a folder that could not be read.
func (s *snapshot) hides(p string) bool {
	return len(s.unread) >= unreadFolders || slices.ContainsFunc(s.unread, func(dir string) bool {
		return dir == "." || p == dir || strings.HasPrefix(p, dir+"/")
	})
}

// chmod sets a folder's mode inside the sandbox and gives the one that it had.
func (s *Session) chmod(ctx context.Context, dir string, mode uint32, add bool) (uint32, error) {
	change, err := s.changeInside(ctx, workspace.Op{Kind: workspace.OpChmod, Path: dir, Mode: mode, Add: add})
	return change.Mode, err
}

// changeInside makes a change, in a fresh container where there is none any more.
func (s *Session) changeInside(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	change, err := s.exec.Apply(ctx, op)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Reason == replacedReason {
		change, err = s.exec.Apply(ctx, op)
	}
	if errors.Is(err, tools.ErrSandboxLost) {
		if err = s.box.revive(); err == nil {
			change, err = s.exec.Apply(ctx, op)
		}
	}
	return change, err
}

// denied says whether a change failed of modes or owners.
func denied(err error) bool {
	e, ok := errors.AsType[*workspace.Error](err)
	return ok && e.Kind == workspace.KindPermission
}
