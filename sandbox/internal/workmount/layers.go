package workmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// The directories of an overlay's layers; see package sandbox/overlay.
const (
	upperName = "upper"
	workName  = "work"
)

// overlayLayers are the open layers of one overlay. The caller must call
// release.
type overlayLayers struct {
	path string
	// dir contains upper and work. Its lock shows that a sandbox uses them.
	dir *os.File
	// frozen are the upper layers below it, the top one first.
	frozen []*os.File
}

// openLayers opens, locks and checks the layers for files of uid. Probe returns
// an error if their file system can't hold what is written to them. It locks the
// open directory itself with flock(2), unlike [state.Lock]. A process that
// applies or removes the layers takes the same lock: an overlay is undefined if
// its upper layer changes otherwise or belongs to two overlays (overlayfs.rst,
// "Changes to underlying filesystems").
func openLayers(where, stateDir string, uid int, probe func(*overlayLayers) error) (_ *overlayLayers, err error) {
	dir, err := os.OpenFile(where, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open layers: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Close())
		}
	}()
	if err := belowState(dir, where, stateDir); err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("layers %s: %w: a sandbox uses them already, or they are being applied: end that first", where, sandbox.ErrState)
	}
	if err != nil {
		return nil, fmt.Errorf("lock layers %s: %w", where, err)
	}
	l := &overlayLayers{path: where, dir: dir}
	if err := l.checkDirs(uid); err != nil {
		return nil, err
	}
	l.cleanWork()
	if err := probe(l); err != nil {
		return nil, fmt.Errorf("layers %s: %w: their file system can't hold what an overlay writes (%w): "+
			"use bind mode, or a state directory (XDG_STATE_HOME) on a local disk, such as ext4, xfs or btrfs", where, sandbox.ErrUnsupported, err)
	}
	return l, nil
}

// openFrozen opens the frozen layers below the upper one.
func (l *overlayLayers) openFrozen(paths []string, stateDir string, uid int) error {
	for _, path := range paths {
		dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open frozen layer: %w", err)
		}
		l.frozen = append(l.frozen, dir)
		if err := belowState(dir, path, stateDir); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
			return fmt.Errorf("examine frozen layer: %w", err)
		}
		if int(st.Uid) != uid {
			return fmt.Errorf("frozen layer %s: %w: it belongs to uid %d, but what commands write belongs to uid %d", path, sandbox.ErrInvalid, st.Uid, uid)
		}
	}
	return nil
}

// belowState refuses layers outside the state directory, where commands or
// other users might reach them.
func belowState(dir *os.File, where, stateDir string) error {
	up, err := listAncestors(int(dir.Fd()))
	if err != nil {
		return fmt.Errorf("examine layers: %w", err)
	}
	state, err := listAncestorsOf(stateDir)
	if err != nil {
		return fmt.Errorf("examine state directory: %w", err)
	}
	if slices.Contains(up[1:], state[0]) {
		return nil
	}
	return fmt.Errorf("layers %s: %w: they are not below the state directory %s", where, sandbox.ErrInvalid, stateDir)
}

// checkDirs checks that both layers exist on one mount, as overlayfs requires,
// and the owner of the upper one.
func (l *overlayLayers) checkDirs(uid int) error {
	for _, name := range []string{upperName, workName} {
		f, err := openBelow(l.dir, name, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("layers %s: %w: no directory %s: %w", l.path, sandbox.ErrInvalid, name, err)
		}
		var st unix.Stat_t
		err = unix.Fstat(int(f.Fd()), &st)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("examine layers: %w", err)
		}
		if name == upperName && int(st.Uid) != uid {
			return fmt.Errorf("layers %s: %w: they belong to uid %d, but what commands write belongs to uid %d: they were made for another workspace",
				l.path, sandbox.ErrInvalid, st.Uid, uid)
		}
	}
	return nil
}

// shareWithRoot opens the layers to commands that are root in the sandbox's own
// kernel. Their mounts map only the owner of the host's ids. So the kernel
// could neither make files in another user's work directory (EOVERFLOW) nor
// pass the directory above both. The directories above that stay this user's.
func (l *overlayLayers) shareWithRoot(decided identityPlan) error {
	if !decided.stage || !decided.want.Root || decided.want.Base.IsNamespace() {
		return nil
	}
	at, owner := int(l.dir.Fd()), decided.files
	err := unix.Fchownat(at, workName, owner.uid, owner.gid, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = unix.Fchmod(at, 0o711)
	}
	if err != nil {
		return fmt.Errorf("prepare layers: %w", err)
	}
	return nil
}

// cleanWork empties the work directory. The kernel keeps a whiteout there to
// make others from, and a session that died during a change left files. The
// layers must not be mounted. Files that this process may not remove (the
// engine kernel's, if it is an ordinary user) stay until the kernel cleans them
// at the next mount.
func (l *overlayLayers) cleanWork() {
	work, err := openBelow(l.dir, workName, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer func() { _ = work.Close() }()
	names, err := work.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		// Mostly the kernel's empty directory. Another user's can be removed,
		// but not opened.
		if unix.Unlinkat(int(work.Fd()), name, unix.AT_REMOVEDIR) != nil {
			_ = workspace.RemoveTreeAt(work, name) // see above
		}
	}
}

// probeFileSystem does what overlayfs does in the work directory: user
// attributes, unnamed files, whiteouts, and renames that leave one. The kernel
// would mount without some of these, and lose changes of directories later.
func (l *overlayLayers) probeFileSystem() error {
	work, err := openBelow(l.dir, workName, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = work.Close() }()
	at := int(work.Fd())
	unnamed, err := unix.Openat(at, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("unnamed file: %w", err)
	}
	err = unix.Fsetxattr(unnamed, probeAttribute, []byte("y"), 0)
	unix.Close(unnamed)
	if err != nil {
		return fmt.Errorf("attribute %s: %w", probeAttribute, err)
	}
	const whiteout, moved = ".probe", ".probe-moved"
	defer func() {
		for _, name := range []string{whiteout, moved} {
			_ = unix.Unlinkat(at, name, 0) // it may not be there
		}
	}()
	if err := unix.Mknodat(at, whiteout, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("whiteout: %w", err)
	}
	if err := unix.Renameat2(at, whiteout, at, moved, unix.RENAME_WHITEOUT); err != nil {
		return fmt.Errorf("rename with whiteout: %w", err)
	}
	return nil
}

// probe returns the check of layers for the kernel that mounts them.
func (p identityPlan) probe() func(*overlayLayers) error {
	if p.want.RuntimeMaps {
		return (*overlayLayers).probeWhiteouts
	}
	return (*overlayLayers).probeFileSystem
}

// probeWhiteouts does what gVisor's overlay and a collected copy do: opaque
// directories, and whiteouts of either form.
func (l *overlayLayers) probeWhiteouts() error {
	work, err := openBelow(l.dir, workName, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = work.Close() }()
	at := int(work.Fd())
	if err := unix.Fsetxattr(at, probeAttribute, []byte("y"), 0); err != nil {
		return fmt.Errorf("attribute %s: %w", probeAttribute, err)
	}
	if err := unix.Fremovexattr(at, probeAttribute); err != nil {
		return fmt.Errorf("attribute %s: %w", probeAttribute, err)
	}
	const whiteout = ".probe"
	if err := overlayfs.MakeWhiteout(at, whiteout); err != nil {
		return fmt.Errorf("whiteout: %w", err)
	}
	return unix.Unlinkat(at, whiteout, 0)
}

// probeAttribute is in overlayfs's namespace with `userxattr`.
const probeAttribute = "user.overlay.caisson"

// release empties the work directory, so that its owner can remove the layers,
// and unlocks them. It does nothing for nil.
func (l *overlayLayers) release() error {
	if l == nil {
		return nil
	}
	l.cleanWork()
	return l.unlock()
}

// unlock closes the layers. It releases the lock explicitly, because a process
// being forked elsewhere in this program would keep it until it executes.
func (l *overlayLayers) unlock() error {
	closeAll(l.frozen...)
	if raw, err := l.dir.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Flock(int(fd), unix.LOCK_UN) })
	}
	if err := l.dir.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("close layers: %w", err)
	}
	return nil
}
