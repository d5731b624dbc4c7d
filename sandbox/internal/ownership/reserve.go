package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
)

// placeholderLock serialises the placeholder operations of all sessions of a
// state directory.
const placeholderLock = ".placeholders.lock"

// Reserve makes a placeholder in the workspace, after adding it to the list,
// and returns its number. It shares a placeholder of another session, which
// stays until the last of them releases it: removing it earlier would detach it
// from the other's container (rmdir in mount_namespaces(7)). Reserve returns
// fs.ErrExist if another file has the name.
func (j *CleanupList) Reserve(ctx context.Context, workspace *os.File, p Placeholder) (int, error) {
	lock, err := lockPlaceholders(ctx, j.dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Release() }() // the lock ends with the process at the latest
	p.Ino, err = p.findInode(workspace)
	exists := err == nil
	if exists {
		shared, err := isShared(j.root, j.doc.Session, p)
		if err != nil {
			return 0, err
		}
		if !shared {
			return 0, fmt.Errorf("reserve %s: %w", p.Name, fs.ErrExist)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reserve %s: %w", p.Name, err)
	}
	ids, err := j.Add(Entry{Kind: KindPlaceholder, Placeholder: &p})
	if err != nil {
		return 0, err
	}
	if exists {
		return ids[0], nil
	}
	made, err := p.Make(workspace)
	if err != nil {
		// Not made, or another's, which must not be removed.
		return 0, errors.Join(err, j.Forget(ids[0]))
	}
	return ids[0], j.Update(ids[0], Entry{Kind: KindPlaceholder, Placeholder: &made})
}

// Release releases a placeholder. The last session that shares it removes it,
// unless it was changed.
func (j *CleanupList) Release(ctx context.Context, workspace *os.File, id int) error {
	lock, err := lockPlaceholders(ctx, j.dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }() // as in Reserve
	p, ok := j.findPlaceholder(id)
	if !ok {
		return nil
	}
	shared, err := isShared(j.root, j.doc.Session, p)
	if err != nil {
		return err
	}
	if !shared {
		if err := p.Remove(workspace); err != nil && !errors.Is(err, ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return j.Forget(id)
}

func (j *CleanupList) findPlaceholder(id int) (Placeholder, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := j.indexOf(id)
	if i < 0 || j.doc.Entries[i].Placeholder == nil {
		return Placeholder{}, false
	}
	return *j.doc.Entries[i].Placeholder, true
}

func lockPlaceholders(ctx context.Context, dir string) (*state.Lock, error) {
	lock, err := state.Acquire(ctx, filepath.Join(dir, placeholderLock), state.Forever)
	if err != nil {
		return nil, fmt.Errorf("wait for another session's placeholders: %w", err)
	}
	return lock, nil
}

// isShared reports whether another session's cleanup list contains the same
// placeholder. An unreadable list counts as containing it: removing a
// placeholder too early opens a running container, leaving it does no harm.
func isShared(root *os.Root, session string, p Placeholder) (bool, error) {
	names, err := listFileNames(root)
	if err != nil {
		return false, fmt.Errorf("read cleanup lists: %w", err)
	}
	for _, name := range names {
		if strings.TrimSuffix(name, ".json") == session {
			continue
		}
		data, err := readListFile(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its session ended meanwhile
		}
		// Not parseList: other versions' lists count too.
		var doc struct {
			Entries []struct {
				Placeholder *Placeholder `json:"placeholder"`
			} `json:"entries"`
		}
		if err != nil || json.Unmarshal(data, &doc) != nil {
			return true, nil // see above
		}
		for _, e := range doc.Entries {
			if e.Placeholder != nil && e.Placeholder.isSame(p) {
				return true, nil
			}
		}
	}
	return false, nil
}

// isSame reports whether p and q are the same file or directory.
func (p Placeholder) isSame(q Placeholder) bool {
	return p.WorkspaceDev == q.WorkspaceDev && p.WorkspaceIno == q.WorkspaceIno && p.Name == q.Name && p.Ino == q.Ino && p.Ino != 0
}
