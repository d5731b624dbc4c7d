package caches

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	recordFile = "workspace.json"
	lockSuffix = ".lock"
	// removedPrefix begins the names of directories that are being removed.
	removedPrefix = ".removed-"
	// configPrefix begins the names of directories with a ConfigFile.
	configPrefix = "."
	// archiveSuffix ends the names of files with what an MCP server installed.
	archiveSuffix = ".tar"
)

// ErrBusy reports that a session uses the caches.
var ErrBusy = errors.New("a session uses it")

// Store is the directory of all caches. Only its user can write to it.
type Store struct{ dir string }

// NewStore returns the store in a state directory, which need not exist.
func NewStore(stateDir string) *Store { return &Store{filepath.Join(stateDir, "caches")} }

// Owner is the user and group that own a workspace's files.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// workspaceID returns the name of the directory with a workspace's caches. It
// depends on the owner, so that a workspace that another user removed and
// recreated doesn't get the former one's caches.
func workspaceID(workspace string, owner Owner) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", owner.UID, workspace))
	return hex.EncodeToString(sum[:8])
}

type workspaceRecord struct {
	Workspace string `json:"workspace"`
	Owner
}

// Dir is one open cache.
type Dir struct {
	// Target is its mount point, Path the directory, and File the same, open.
	Target, Path string
	File         *os.File
}

// Lease keeps caches open. No process removes them until it is closed.
type Lease struct {
	Dirs []Dir

	dir     string // of the workspace
	configs []*os.File
	lock    *state.Lock
}

// Close closes the directories and ends the lease.
func (l *Lease) Close() error {
	var errs []error
	for _, d := range l.Dirs {
		errs = append(errs, d.File.Close())
	}
	for _, f := range l.configs {
		errs = append(errs, f.Close())
	}
	_ = os.Chtimes(l.lock.Path(), time.Time{}, time.Now()) // the caches were used until now
	return errors.Join(append(errs, l.lock.Release())...)
}

// Open opens a workspace's caches with the given mount points, and creates
// missing ones. workspace is its path without symlinks, owner the owner of new
// files.
func (s *Store) Open(workspace string, owner Owner, targets []string) (_ *Lease, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open caches: %w", err)
		}
	}()
	store, err := s.lockStore()
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Release() }() // the lock ends with the process at the latest
	name := workspaceID(workspace, owner)
	// Others hold it exclusively only for a moment.
	lock, err := state.AcquireShared(context.Background(), filepath.Join(s.dir, name+lockSuffix), state.Forever)
	if err != nil {
		return nil, err
	}
	l := &Lease{lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	l.dir = filepath.Join(s.dir, name)
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	text, err := json.Marshal(workspaceRecord{workspace, owner})
	if err == nil {
		err = atomicwriter.WriteFile(filepath.Join(l.dir, recordFile), append(text, '\n'), 0o600)
	}
	if err != nil {
		return nil, err
	}
	for _, target := range targets {
		d := Dir{Target: target, Path: filepath.Join(l.dir, url.PathEscape(target))}
		if d.File, err = openCache(d.Path, owner); err != nil {
			return nil, err
		}
		l.Dirs = append(l.Dirs, d)
	}
	return l, os.Chtimes(l.lock.Path(), time.Time{}, time.Now())
}

// OpenConfig writes a cache's file, and opens its directory, which the lease
// closes. The directory must be mounted read-only. All users may read it.
func (l *Lease) OpenConfig(f ConfigFile) (Dir, error) {
	d := Dir{Target: f.Target(), Path: filepath.Join(l.dir, configPrefix+url.PathEscape(f.Target()))}
	err := os.Mkdir(d.Path, 0o700)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Chmod(d.Path, 0o755) // whatever the umask is
	}
	if err == nil {
		err = atomicwriter.WriteFile(filepath.Join(d.Path, path.Base(f.Path)), []byte(f.Text), 0o644)
	}
	if err == nil {
		d.File, err = os.Open(d.Path)
	}
	if err != nil {
		return Dir{}, fmt.Errorf("open caches: %w", err)
	}
	l.configs = append(l.configs, d.File)
	return d, nil
}

// Archive returns the path of the archive of what an MCP server installed. It
// need not exist. key identifies the server's definition.
func (l *Lease) Archive(server, key string) string {
	return filepath.Join(l.dir, server+"."+key+archiveSuffix)
}

// WriteArchive replaces all archives of path's server, whatever their keys,
// with one at path that write fills. If write writes nothing, it changes
// nothing.
func WriteArchive(path string, write func(io.Writer) error) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, configPrefix+"archive-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // unless it was renamed
	err = write(f)
	size, sizeErr := f.Seek(0, io.SeekCurrent)
	if err := errors.Join(err, sizeErr, f.Close()); err != nil || size == 0 {
		return err
	}
	server, _, _ := strings.Cut(name, ".")
	old, err := filepath.Glob(filepath.Join(dir, server+".*"+archiveSuffix))
	for _, name := range old {
		err = errors.Join(err, state.IgnoreMissing(os.Remove(name)))
	}
	return errors.Join(err, os.Rename(f.Name(), path))
}

// openCache opens a cache's directory, and creates it if it is missing. Its
// parent belongs only to this process's user.
func openCache(path string, owner Owner) (*os.File, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", path)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	opened, err := dir.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s was replaced", path)
	}
	if err == nil {
		err = setOwner(dir, owner)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

func (s *Store) lockStore() (*state.Lock, error) {
	return state.Acquire(context.Background(), filepath.Join(s.dir, "lock"), state.Forever)
}

// Entry describes the caches of one workspace.
type Entry struct {
	ID        string `json:"id"`
	Workspace string `json:"workspace"`
	// Caches are the mount points, and the MCP servers with an archive. Bytes
	// is the size of all files.
	Caches []string `json:"caches"`
	Bytes  int64    `json:"bytes"`
	// Used is when the last session that used them ended. InUse reports that
	// one is using them.
	Used  time.Time `json:"used"`
	InUse bool      `json:"in_use"`
}

// List returns the caches of all workspaces, sorted by workspace. Files that
// can't be read don't count.
func (s *Store) List() ([]Entry, error) {
	ids, err := s.listIDs()
	if err != nil {
		return nil, err
	}
	list := []Entry{}
	for _, id := range ids {
		e, err := s.describeCaches(id)
		if err != nil {
			return nil, fmt.Errorf("list caches: %w", err)
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Workspace+"\x00"+a.ID, b.Workspace+"\x00"+b.ID) })
	return list, nil
}

func (s *Store) listIDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list caches: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func (s *Store) describeCaches(id string) (Entry, error) {
	e := Entry{ID: id, Caches: []string{}}
	dir := filepath.Join(s.dir, id)
	var err error
	if e.Workspace, err = s.readWorkspace(id); err != nil {
		return e, err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return e, err
	}
	for _, name := range names {
		if server, _, _ := strings.Cut(name.Name(), "."); !name.IsDir() && server != "" && strings.HasSuffix(name.Name(), archiveSuffix) {
			e.Caches = append(e.Caches, "MCP server "+server)
			if info, err := name.Info(); err == nil {
				e.Bytes += info.Size()
			}
		}
		if target, err := url.PathUnescape(name.Name()); err == nil && name.IsDir() && !strings.HasPrefix(name.Name(), configPrefix) {
			e.Caches = append(e.Caches, shortenHome(target))
			e.Bytes += sizeOf(filepath.Join(dir, name.Name()))
		}
	}
	e.Used, e.InUse = s.readUse(id)
	return e, nil
}

// readWorkspace returns the workspace whose caches have an ID, or "" if its
// record is missing or invalid.
func (s *Store) readWorkspace(id string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, id, recordFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var record workspaceRecord
	if json.Unmarshal(text, &record) != nil {
		return "", nil
	}
	return record.Workspace, nil
}

// readUse returns when a workspace's caches were last used, and whether a
// session is using them.
func (s *Store) readUse(id string) (last time.Time, inUse bool) {
	path := filepath.Join(s.dir, id+lockSuffix)
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}, false
	}
	inUse, err = state.IsHeld(path)
	return info.ModTime(), err == nil && inUse
}

// sizeOf adds up the files in a directory. It follows no symlinks, even if a
// command creates one meanwhile, and skips what it can't read.
func sizeOf(path string) int64 {
	root, err := os.OpenRoot(path)
	if err != nil {
		return 0
	}
	defer func() { _ = root.Close() }()
	size := int64(0)
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the rest counts
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}

// Remove removes the caches of one workspace. It returns [ErrBusy] if a session
// uses them, and an error that wraps fs.ErrNotExist if there are none.
func (s *Store) Remove(id string) error {
	return s.removeUnused(id, time.Time{})
}

// removeUnused removes caches that no session uses, or has used since the given
// time, unless that is zero. Otherwise it returns ErrBusy.
func (s *Store) removeUnused(id string, since time.Time) error {
	if id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return fmt.Errorf("remove caches: %q is not a valid id", id)
	}
	gone, err := s.takeAway(id, since)
	if err == nil {
		err = workspace.RemoveTree(gone)
	}
	if err != nil {
		return fmt.Errorf("remove caches: %w", err)
	}
	return nil
}

// takeAway renames a workspace's directory, so that no session opens it any
// more, and returns the new path.
func (s *Store) takeAway(id string, since time.Time) (string, error) {
	dir := filepath.Join(s.dir, id)
	if _, err := os.Lstat(dir); err != nil {
		return "", err
	}
	lock, err := s.lockStore()
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Release() }() // as in Open
	if used, inUse := s.readUse(id); inUse || !since.IsZero() && !used.Before(since) {
		return "", ErrBusy
	}
	to := filepath.Join(s.dir, fmt.Sprintf("%s%s-%d", removedPrefix, id, time.Now().UnixNano()))
	if err := os.Rename(dir, to); err != nil {
		return "", err
	}
	return to, state.IgnoreMissing(os.Remove(filepath.Join(s.dir, id+lockSuffix)))
}

// Expire removes caches that no session has used for the time keep, and the
// rest of interrupted removals. It returns the workspaces whose caches it
// removed, and continues after an error.
func (s *Store) Expire(keep time.Duration) ([]string, error) {
	ids, err := s.listIDs()
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	before := time.Now().Add(-keep)
	for _, id := range ids {
		of, err := s.readWorkspace(id)
		if err == nil {
			err = s.removeUnused(id, before)
		}
		switch {
		case errors.Is(err, ErrBusy), errors.Is(err, fs.ErrNotExist): // it is in use, or another process was faster
		case err != nil:
			errs = append(errs, err)
		default:
			removed = append(removed, of)
		}
	}
	left, err := filepath.Glob(filepath.Join(s.dir, removedPrefix+"*"))
	errs = append(errs, err)
	for _, dir := range left {
		errs = append(errs, workspace.RemoveTree(dir))
	}
	return removed, errors.Join(errs...)
}
