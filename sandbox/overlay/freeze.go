package overlay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/atomicwriter"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/workspace"
)

// frozenFile is a file in the directory of each frozen layer. Every session that
// needs the layer has a hard link to it, so that the kernel counts the users:
// one link is the layer's own.
const frozenFile = "users"

// lowersList is the content of lowers.json: the frozen layers of a session, the
// top one first, as names in Dir, which is relative to the session's layers. It
// is written before the links to the layers, and removed after them.
type lowersList struct {
	Dir    string   `json:"dir"`
	Lowers []string `json:"lowers"`
}

// Lowers returns the frozen layers below the upper one, the top one first, for
// sandbox.Workspace.Lowers.
func (l *Layers) Lowers() []string {
	var paths []string
	for _, name := range l.lowers.Lowers {
		paths = append(paths, frozenPath(l, name, UpperDir))
	}
	return paths
}

// frozenPath returns the path of a file of a frozen layer.
func frozenPath(l *Layers, name, file string) string {
	return filepath.Join(l.dir, l.lowers.Dir, name, file)
}

// readLowers reads lowers.json. A top layer that has no content yet belongs to a
// freeze that was killed before it changed anything.
func (l *Layers) readLowers() error {
	text, err := os.ReadFile(filepath.Join(l.dir, lowersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &l.lowers)
	}
	if err != nil {
		return fmt.Errorf("read frozen layers: %w", err)
	}
	if len(l.lowers.Lowers) == 0 {
		return nil
	}
	_, frozen := os.Lstat(frozenPath(l, l.lowers.Lowers[0], UpperDir))
	_, own := os.Lstat(filepath.Join(l.dir, UpperDir))
	if isMissing(frozen) && own == nil {
		l.lowers.Lowers = l.lowers.Lowers[1:]
	}
	return nil
}

// writeLowers replaces the list of frozen layers.
func (l *Layers) writeLowers(names []string) error {
	list := l.lowers
	list.Lowers = names
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return atomicwriter.WriteFile(filepath.Join(l.dir, lowersFile), append(text, '\n'), 0o600)
}

// Freeze makes the upper layer one that is only read, in a new directory below
// frozen, and continues with an empty one: [Layers.Fork] then makes layers of
// other sessions above the same content. The layers must be recorded, locked
// and not mounted, and frozen must be on their file system. If there are
// MaxLowers frozen layers, Freeze merges them first, without copying files. After
// an error the layers are as they were, and also if the process is killed. Freeze
// does nothing if there is a frozen layer and the upper one is empty.
func (l *Layers) Freeze(ctx context.Context, frozen string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("freeze layers: %w", err)
		}
	}()
	switch {
	case l.lock == nil:
		return fmt.Errorf("%w: they are not locked", ErrBusy)
	case l.info.State != Kept || !l.info.Recorded:
		return fmt.Errorf("%w: session %s", ErrGone, l.info.Session)
	}
	unmounted, err := lockLayers(l.dir)
	if err != nil {
		return err
	}
	defer unmounted()
	if l.lowers.Dir == "" {
		if l.lowers.Dir, err = filepath.Rel(l.dir, frozen); err != nil {
			return err
		}
	}
	if same, err := isUpperEmpty(l); same || err != nil {
		return err
	}
	if len(l.lowers.Lowers) >= MaxLowers {
		if err := mergeLowers(ctx, l); err != nil {
			return err
		}
	}
	before := l.lowers.Lowers
	name := newLayerName()
	// From here on the list names a layer without content: it does not count.
	if err := l.writeLowers(slices.Insert(slices.Clone(before), 0, name)); err != nil {
		return err
	}
	if err := moveUpper(l, name); err != nil {
		return errors.Join(err, l.writeLowers(before), dropLower(l, name))
	}
	l.lowers.Lowers = slices.Insert(slices.Clone(before), 0, name)
	return nil
}

// isUpperEmpty reports whether the upper layer changes nothing of the frozen ones.
func isUpperEmpty(l *Layers) (bool, error) {
	if len(l.lowers.Lowers) == 0 {
		return false, nil
	}
	s, err := l.openStack()
	if err != nil {
		return false, err
	}
	defer s.close()
	return changesNothing(s[0].fd, s[1].fd)
}

// changesNothing reports whether an upper directory shows the one below it as it is.
func changesNothing(upper, lower int) (bool, error) {
	var top, below unix.Stat_t
	if err := errors.Join(unix.Fstat(upper, &top), unix.Fstat(lower, &below)); err != nil {
		return false, err
	}
	err := eachName(upper, func(string) error { return errNotEmpty })
	if errors.Is(err, errNotEmpty) {
		return false, nil
	}
	return top.Mode == below.Mode, err
}

// IsUnchanged reports whether the layers certainly hold no changes. It does not need
// the record of the original directory.
func (l *Layers) IsUnchanged(original *os.File) (bool, error) {
	s, err := l.openStack()
	if err != nil {
		return false, fmt.Errorf("read changes: %w", err)
	}
	defer s.close()
	if len(s) > 1 {
		return false, nil
	}
	return changesNothing(s[0].fd, int(original.Fd()))
}

// errNotEmpty ends a walk of a directory that has entries.
var errNotEmpty = errors.New("not empty")

func newLayerName() string { return "lay_" + rand.Text() }

// moveUpper makes the upper layer the content of a new frozen layer, and makes a
// new one like it.
func moveUpper(l *Layers, name string) error {
	upper, next, frozen := filepath.Join(l.dir, UpperDir), newUpper(l.dir), frozenPath(l, name, UpperDir)
	if err := makeUpperLike(next, upper); err != nil {
		return errors.Join(err, workspace.RemoveTree(next))
	}
	err := makeFrozen(l, name)
	if err == nil {
		err = os.Rename(upper, frozen)
	}
	if err != nil {
		return errors.Join(err, workspace.RemoveTree(next))
	}
	if err := os.Rename(next, upper); err != nil {
		return errors.Join(err, os.Rename(frozen, upper), workspace.RemoveTree(next))
	}
	return nil
}

// newFrozen returns the path at which the directory of a frozen layer is made.
func newFrozen(dir string) string { return filepath.Join(dir, "frozen.new") }

// makeFrozen makes the directory of a new frozen layer that this session uses. It
// gets its place with the file of its users, so one without is being removed.
func makeFrozen(l *Layers, name string) error {
	for _, dir := range []string{filepath.Join(l.dir, l.lowers.Dir), filepath.Join(l.dir, lowersDir), newFrozen(l.dir)} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	link := filepath.Join(l.dir, lowersDir, name)
	if err := os.WriteFile(link, nil, 0o600); err != nil {
		return err
	}
	if err := os.Link(link, filepath.Join(newFrozen(l.dir), frozenFile)); err != nil {
		return err
	}
	return os.Rename(newFrozen(l.dir), frozenPath(l, name, ""))
}

// finishFreeze ends a freeze whose process was killed, and removes what is half
// made. The layers must be locked.
func (l *Layers) finishFreeze() error {
	if l.info.State != Kept {
		return nil
	}
	if err := l.readLowers(); err != nil {
		return err
	}
	var all []error
	for _, path := range halfMade(l.dir) {
		all = append(all, workspace.RemoveTree(path))
	}
	upper, next := filepath.Join(l.dir, UpperDir), newUpper(l.dir)
	if _, err := os.Lstat(upper); isMissing(err) && len(l.lowers.Lowers) > 0 {
		err = makeUpperLike(next, l.Lowers()[0])
		if err == nil {
			err = os.Rename(next, upper)
		}
		all = append(all, err)
	}
	links, err := os.ReadDir(filepath.Join(l.dir, lowersDir))
	all = append(all, state.IgnoreMissing(err))
	for _, link := range links {
		if !slices.Contains(l.lowers.Lowers, link.Name()) {
			all = append(all, dropLower(l, link.Name()))
		}
	}
	return errors.Join(all...)
}

// isUnfinished reports whether a process that was killed may have left something
// half made, or one that lives is making it.
func isUnfinished(l *Layers) bool {
	_, err := os.Lstat(filepath.Join(l.dir, UpperDir))
	links, _ := os.ReadDir(filepath.Join(l.dir, lowersDir)) // there may be none
	return isMissing(err) || len(links) != len(l.lowers.Lowers) || len(halfMade(l.dir)) > 0
}

// halfMade returns what is in the directory of layers under a name that it has only
// until it is complete.
func halfMade(dir string) []string {
	names, _ := os.ReadDir(dir) // using the layers fails with the same error
	var paths []string
	for _, name := range names {
		path := filepath.Join(dir, name.Name())
		if path == newUpper(dir) || path == newFrozen(dir) || path == filepath.Join(dir, baseFile+".new") || strings.HasPrefix(name.Name(), ".tmp-") { // of atomicwriter
			paths = append(paths, path)
		}
	}
	return paths
}

// makeUpperLike makes an empty upper layer with the owner, mode and user
// attributes of another one, because the merged root shows them.
func makeUpperLike(path, other string) error {
	var st unix.Stat_t
	if err := unix.Lstat(other, &st); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	from, err := unix.Open(other, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return copyDirectoryMetadata(to, from)
}

// Fork makes layers of another session in the directory dir, which must not
// exist, above the frozen layers of l: what l writes from now on is not in them.
// Nothing may have been written to l since its last [Layers.Freeze]. The fork has
// the state of the original that l recorded. The caller must close the new
// layers. After an error nothing is left.
func (l *Layers) Fork(dir, session string) (_ *Layers, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("fork layers: %w", err)
		}
	}()
	if len(l.lowers.Lowers) == 0 {
		return nil, fmt.Errorf("session %s has no frozen layer", l.info.Session)
	}
	info := l.info
	info.Session, info.Began, info.BaseAt = session, time.Now().UTC(), l.info.recordedAt()
	fork := &Layers{dir: dir, info: info}
	if fork.lowers.Dir, err = filepath.Rel(dir, filepath.Join(l.dir, l.lowers.Dir)); err != nil {
		return nil, err
	}
	for _, made := range []string{dir, filepath.Join(dir, WorkDir), filepath.Join(dir, lowersDir)} {
		if err := os.Mkdir(made, 0o700); err != nil {
			return nil, err
		}
		if made == dir {
			defer func() {
				if err != nil {
					err = errors.Join(err, fork.Close(), fork.removeLayers(), os.RemoveAll(dir))
				}
			}()
		}
	}
	if err := fork.acquireLock(); err != nil {
		return nil, err
	}
	list, err := json.Marshal(lowersList{Dir: fork.lowers.Dir, Lowers: l.lowers.Lowers})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, lowersFile), list, 0o600); err != nil {
		return nil, err
	}
	for _, name := range l.lowers.Lowers {
		if err := os.Link(filepath.Join(l.dir, lowersDir, name), filepath.Join(dir, lowersDir, name)); err != nil {
			return nil, err
		}
	}
	fork.lowers.Lowers = slices.Clone(l.lowers.Lowers)
	if err := makeUpperLike(filepath.Join(dir, UpperDir), l.Lowers()[0]); err != nil {
		return nil, err
	}
	if err := os.Link(stampsPath(l), filepath.Join(dir, stampsFile)); err != nil {
		return nil, err
	}
	return fork, fork.writeInfo()
}

// stampsPath returns the file with the recorded state of the original.
func stampsPath(l *Layers) string {
	stamps := filepath.Join(l.dir, stampsFile)
	if _, err := os.Lstat(stamps); err == nil {
		return stamps
	}
	return filepath.Join(l.dir, baseFile)
}

// dropLowers releases the frozen layers, and removes the ones that no other
// session needs.
func dropLowers(l *Layers) error {
	if l.lowers.Dir == "" {
		if err := l.readLowers(); err != nil {
			return err
		}
	}
	links := filepath.Join(l.dir, lowersDir)
	names, err := os.ReadDir(links)
	if err != nil {
		return state.IgnoreMissing(err)
	}
	var all []error
	for _, name := range names {
		all = append(all, dropLower(l, name.Name()))
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	return state.IgnoreMissing(os.Remove(links))
}

// dropLower releases one frozen layer.
func dropLower(l *Layers, name string) error {
	link := filepath.Join(l.dir, lowersDir, name)
	if err := state.IgnoreMissing(os.Remove(link)); err != nil {
		return err
	}
	return removeUnused(frozenPath(l, name, ""))
}

// removeUnused removes a frozen layer that no session uses. Only a session with a
// link can fork, so an unused layer stays unused.
func removeUnused(dir string) error {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(dir, frozenFile), &st)
	if err != nil && !isMissing(err) || err == nil && st.Nlink > 1 {
		return err
	}
	return workspace.RemoveTree(dir)
}

// SweepFrozen removes the layers below frozen that no session uses, for example
// because the directories of their sessions were removed. It continues after an
// error.
func SweepFrozen(frozen string) error {
	names, err := os.ReadDir(frozen)
	if err != nil {
		return state.IgnoreMissing(err)
	}
	var all []error
	for _, name := range names {
		all = append(all, removeUnused(filepath.Join(frozen, name.Name())))
	}
	return errors.Join(all...)
}
