package overlay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/atomicwriter"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Names in the directory of the layers.
const (
	UpperDir = "upper"
	WorkDir  = "work"

	baseFile   = "base.json"
	stampsFile = "stamps.json"
	lowersFile = "lowers.json"
	lowersDir  = "lowers"
	applyFile  = "apply.json"
	doneFile   = "applied.json"
	stateFile  = "state.json"
	lockFile   = "lock"
)

// MaxLowers bounds the frozen layers below the upper one. Each costs every
// lookup in the merged directory a little.
const MaxLowers = 20

// MaxEntries bounds the files and directories that are recorded at the start of
// a session, and its changes. One million is five times a large repository with
// its dependencies.
const MaxEntries = 1_000_000

// MaxTextBytes bounds the bytes of their paths and symlink targets: 134 bytes
// for each of MaxEntries.
const MaxTextBytes = 128 << 20

// Errors of this package; test for them with errors.Is.
var (
	// ErrBusy is the error if the session still runs, or another apply is under
	// way.
	ErrBusy = errors.New("in use")
	// ErrGone is the error if the changes were applied, discarded or expired.
	ErrGone = errors.New("no changes are kept")
	// ErrOther is the error if the directory is not the one of the session.
	ErrOther = errors.New("another directory")
	// ErrTooMany is the error if there are more than MaxEntries changes, or
	// more than MaxTextBytes of their paths and symlink targets. None is
	// applied then.
	ErrTooMany = errors.New("too many changes")
	// ErrPartlyApplied is the error if a part of the changes was applied: the session
	// would not see which of its later changes are already in the workspace.
	ErrPartlyApplied = errors.New("the changes were applied in part")
)

// State is the state of the layers of a session.
type State string

// The states of layers.
const (
	Kept      State = "kept" // the session runs or ran; nothing or a part was applied
	Applied   State = "applied"
	Discarded State = "discarded"
	Expired   State = "expired"
	Empty     State = "empty" // the session changed nothing
)

// Info describes layers without their content.
type Info struct {
	Version   int       `json:"version"`
	Session   string    `json:"session"`
	Workspace string    `json:"workspace"` // path, for messages
	Began     time.Time `json:"began"`
	// BaseAt is when the recording of the directory began, in a fork the first
	// session's recording. Layers of earlier versions don't have it.
	BaseAt time.Time `json:"base_at,omitzero"`
	// Device, Inode and Born (nanoseconds, 0 if unknown) identify the
	// directory. Device numbers change with each Boot.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Born   int64  `json:"born"`
	Boot   string `json:"boot"`
	// Recorded reports whether the state of the directory was recorded, or at
	// least the time. No command ran before.
	Recorded bool `json:"recorded"`
	// State is the state of the layers, and At the time of its last change.
	State State     `json:"state"`
	At    time.Time `json:"at,omitzero"`
	// By is the label of the user who applied or discarded changes last.
	By string `json:"by,omitempty"`
}

// recordedAt returns the time from which on changes of the directory are later ones.
func (i Info) recordedAt() time.Time {
	if i.BaseAt.IsZero() {
		return i.Began
	}
	return i.BaseAt
}

// CreateOptions identifies the session and workspace of the layers. All fields
// are required.
type CreateOptions struct {
	Session string
	// Path is the path of the workspace, for messages. Workspace is its
	// directory, held open; the caller keeps it.
	Path      string
	Workspace *os.File
}

// Layers are the layers of one session. The caller must close them. They are
// not safe for concurrent use; [Layers.Record] has an exception.
type Layers struct {
	dir    string
	info   Info
	lowers lowersList
	// lock is held since Create or Lock; nil means that the layers are only
	// read.
	lock *state.Lock
}

// Create creates the layers of a new session in the directory dir, which must
// not exist, and locks them. The upper layer gets the owner and mode of the
// workspace, because the merged root shows those. The caller must call
// [Layers.Record] or [Layers.RecordTime] before anything is written. After an
// error nothing is left.
func Create(dir string, o CreateOptions) (_ *Layers, err error) {
	info := Info{Version: 1, Session: o.Session, Workspace: o.Path, Began: time.Now().UTC(), State: Kept, Boot: state.BootID()}
	var st unix.Stat_t
	if err := unix.Fstat(int(o.Workspace.Fd()), &st); err != nil {
		return nil, fmt.Errorf("create layers: examine workspace: %w", err)
	}
	info.Device = st.Dev
	info.Inode = st.Ino
	info.Born = readBirthTime(int(o.Workspace.Fd()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create layers: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	l := &Layers{dir: dir, info: info}
	for _, name := range []string{UpperDir, WorkDir} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("create layers: %w", err)
		}
	}
	upper := filepath.Join(dir, UpperDir)
	if os.Geteuid() == 0 || int(st.Gid) != os.Getegid() {
		// An ordinary user can set the group if it is one of the user's own.
		// Otherwise the upper layer keeps its group.
		if err := os.Lchown(upper, -1, int(st.Gid)); err != nil && os.Geteuid() == 0 {
			return nil, fmt.Errorf("create layers: %w", err)
		}
		if os.Geteuid() == 0 {
			if err := os.Lchown(upper, int(st.Uid), -1); err != nil {
				return nil, fmt.Errorf("create layers: %w", err)
			}
		}
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, upper, st.Mode&0o7777, 0); err != nil {
		return nil, fmt.Errorf("create layers: %w", err)
	}
	if err := l.acquireLock(); err != nil {
		return nil, err
	}
	if err := l.writeInfo(); err != nil {
		return nil, errors.Join(fmt.Errorf("create layers: %w", err), l.Close())
	}
	return l, nil
}

// writeInfo writes base.json without stamps. Layers without the file are not made
// yet.
func (l *Layers) writeInfo() error {
	text, err := json.Marshal(l.info)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, baseFile)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Open opens the layers in dir for reading. Its error wraps fs.ErrNotExist if
// there are none, because the session had not begun to write.
func Open(dir string) (*Layers, error) {
	l := &Layers{dir: dir}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open layers: %w", err)
	}
	// The state file outlives the layers.
	for _, name := range []string{stateFile, baseFile} {
		info, err := readInfo(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open layers: %w", err)
		}
		l.info = info
		return l, l.readLowers()
	}
	return nil, fmt.Errorf("open layers: %w", &fs.PathError{Op: "open", Path: filepath.Join(dir, baseFile), Err: fs.ErrNotExist})
}

// readInfo reads the first line of a file.
func readInfo(path string) (Info, error) {
	var info Info
	f, err := os.Open(path)
	if err != nil {
		return info, err
	}
	defer func() { _ = f.Close() }()
	line, err := bufio.NewReader(io.LimitReader(f, 64<<10)).ReadBytes('\n')
	if err != nil {
		return info, fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(line, &info); err != nil {
		return info, fmt.Errorf("%s: %w", path, err)
	}
	if info.Version != 1 {
		return info, fmt.Errorf("%s: version %d is not known", path, info.Version)
	}
	return info, nil
}

// Dir returns the directory of the layers, for sandbox.Workspace.Layers.
func (l *Layers) Dir() string { return l.dir }

// Info returns the description of the layers, without reading their content.
func (l *Layers) Info() Info { return l.info }

// Lock locks the layers for a change. It returns [ErrBusy] if their session
// runs or another process applies them. It completes or removes what a killed
// process left half made.
func (l *Layers) Lock() error {
	if l.lock != nil {
		return nil
	}
	if err := l.acquireLock(); err != nil {
		return err
	}
	if err := l.finishFreeze(); err != nil {
		return errors.Join(fmt.Errorf("lock layers: %w", err), l.Close())
	}
	return nil
}

// acquireLock takes the lock, or returns [ErrBusy].
func (l *Layers) acquireLock() error {
	lock, err := state.TryAcquire(filepath.Join(l.dir, lockFile))
	if errors.Is(err, state.ErrHeld) {
		err = ErrBusy
	}
	if err != nil {
		return fmt.Errorf("lock layers: %w", err)
	}
	l.lock = lock
	return nil
}

// Close releases the lock. The layers stay.
func (l *Layers) Close() error {
	lock := l.lock
	l.lock = nil
	return lock.Release()
}

// Same returns [ErrOther] unless dir is the directory of the session.
func (l *Layers) Same(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("examine workspace: %w", err)
	}
	born := readBirthTime(int(dir.Fd()))
	switch i := l.info; {
	case st.Ino != i.Inode,
		st.Dev != i.Device && state.BootID() == i.Boot,
		born != 0 && i.Born != 0 && born != i.Born:
		return fmt.Errorf("%w: session %s worked on %s as it was then", ErrOther, i.Session, i.Workspace)
	}
	return nil
}

// End removes the layers permanently and records the reason: applied,
// discarded, expired or empty. The lock must be held.
func (l *Layers) End(state State) error {
	if l.lock == nil {
		return fmt.Errorf("end layers: %w: they are not locked", ErrBusy)
	}
	unmounted, err := lockLayers(l.dir)
	if err != nil {
		return fmt.Errorf("end layers: %w", err)
	}
	defer unmounted()
	return l.endAs(state)
}

// Interrupted reports whether a process was killed while it ended or froze the
// layers, so that [Layers.Sweep] has something to do.
func (l *Layers) Interrupted() bool {
	if l.info.State == Kept {
		return isUnfinished(l)
	}
	_, upper := os.Lstat(filepath.Join(l.dir, UpperDir))
	_, lowers := os.Lstat(filepath.Join(l.dir, lowersDir))
	return !errors.Is(upper, fs.ErrNotExist) || !errors.Is(lowers, fs.ErrNotExist)
}

// Sweep removes the rest of layers whose End was interrupted, and what a killed
// process left half made of other layers. It may lock the layers.
func (l *Layers) Sweep() error {
	if !l.Interrupted() {
		return nil
	}
	if err := l.Lock(); err != nil || l.info.State == Kept {
		return err
	}
	return l.removeLayers()
}

// SweepUnmade removes the directory of layers whose process was killed while it made
// them, and reports whether it did. The process must be gone.
func SweepUnmade(dir string) (bool, error) {
	if _, err := os.Lstat(dir); err != nil {
		return false, state.IgnoreMissing(err)
	}
	for _, name := range []string{stateFile, baseFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !isMissing(err) {
			return false, err
		}
	}
	return true, workspace.RemoveTree(dir)
}

// endAs records the state and removes the layers.
func (l *Layers) endAs(state State) error {
	if state != Applied && state != Discarded {
		l.info.By = "" // no user did
	}
	if err := l.writeState(state); err != nil {
		return fmt.Errorf("end layers: %w", err)
	}
	return l.removeLayers()
}

// writeState records the state of the changes, the time and the user.
func (l *Layers) writeState(state State) error {
	l.info.State, l.info.At = state, time.Now().UTC()
	text, err := json.Marshal(l.info)
	if err != nil {
		return err
	}
	return atomicwriter.WriteFile(filepath.Join(l.dir, stateFile), append(text, '\n'), 0o600)
}

// SetUser sets the label of the user who applies or discards the changes. It is
// stored with their state.
func (l *Layers) SetUser(label string) { l.info.By = label }

// removeLayers removes the layers, the upper one last: as long as it or a link to
// a frozen one exists, something is left to remove.
func (l *Layers) removeLayers() error {
	all := []error{dropLowers(l)}
	for _, name := range []string{baseFile, stampsFile, lowersFile, applyFile, doneFile} {
		if err := os.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, fmt.Errorf("end layers: %w", err))
		}
	}
	for _, name := range []string{WorkDir, UpperDir} {
		if err := workspace.RemoveTree(filepath.Join(l.dir, name)); err != nil {
			all = append(all, fmt.Errorf("end layers: %w", err))
		}
	}
	return errors.Join(all...)
}

// Reopen opens the layers in dir for another process of their session, and locks
// them. It returns the state that they had, or [Empty] if there were none. Unless
// that is [Kept], it creates new layers, like [Create]. It returns [ErrBusy] while
// another process uses the layers, [ErrOther] for another workspace, and
// [ErrPartlyApplied].
func Reopen(dir string, o CreateOptions) (_ *Layers, state State, err error) {
	if _, err := SweepUnmade(dir); err != nil {
		return nil, "", fmt.Errorf("reopen layers: %w", err)
	}
	l, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		l, err = Create(dir, o)
		return l, Empty, err
	}
	if err != nil {
		return nil, "", err
	}
	if err := l.Lock(); err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.Same(o.Workspace); err != nil {
		return nil, "", err
	}
	if l.info.State != Kept {
		state := l.info.State
		if err := errors.Join(workspace.RemoveTree(dir), l.Close()); err != nil {
			return nil, "", fmt.Errorf("reopen layers: %w", err)
		}
		l, err = Create(dir, o)
		return l, state, err
	}
	for _, name := range []string{applyFile, doneFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !isMissing(err) {
			return nil, "", fmt.Errorf("reopen layers: %w", ErrPartlyApplied)
		}
	}
	return l, Kept, nil
}

// IdentifyDir returns a text that identifies an open directory as long as it exists, or
// "" if its file system does not record when it was made.
func IdentifyDir(dir *os.File) string {
	var st unix.Stat_t
	born := readBirthTime(int(dir.Fd()))
	if born == 0 || unix.Fstat(int(dir.Fd()), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d-%d", st.Ino, born)
}
