package workmount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
)

// privateDir is where private mounts are attached. Outside it stays empty. It
// is not below the state directory, because root of a container's user
// namespace must be able to pass all directories above its root.
const privateDir = "/run/caisson"

// PrivateMounts are id-mapped mounts of this machine's files that only one
// program sees, from its start. They need no cleanup: they end with the mount
// namespaces of the program and its children. The zero value is ready to use.
type PrivateMounts struct{ mounts []privateMount }

type privateMount struct {
	file  *os.File // a mount that is not attached
	isDir bool
}

// ShiftOwners returns a descriptor of a user namespace for [PrivateMounts.Add]
// and [StageImage], made with the executable holder. It shows the ids from 0 to
// IDCount-1 as the ids of a container's user namespace at base.
func ShiftOwners(holder string, base Base) (*os.File, error) {
	return mapOwners(holder, idRange{0, int64(base.UID), IDCount}, idRange{0, int64(base.GID), IDCount})
}

// HideOwners is ShiftOwners with a map that shows no owner. The kernel then
// grants every process only a file's permissions for others, whatever its
// capabilities.
func HideOwners(holder string) (*os.File, error) {
	one := idRange{FirstID, FirstID, 1} // a map must not be empty
	return mapOwners(holder, one, one)
}

func mapOwners(holder string, uids, gids idRange) (*os.File, error) {
	f, err := openUserNamespace(holder, []idRange{uids}, []idRange{gids})
	if err != nil {
		return nil, fmt.Errorf("map owners: %w: %w", sandbox.ErrUnsupported, err)
	}
	return f, nil
}

// Add adds a read-only mount of a directory or file, without submounts, and
// returns its path.
func (p *PrivateMounts) Add(source string, owners *os.File) (string, error) {
	return p.add(source, true, owners)
}

// AddWritable is Add for a writable mount without an id map.
func (p *PrivateMounts) AddWritable(source string) (string, error) { return p.add(source, false, nil) }

func (p *PrivateMounts) add(source string, readOnly bool, owners *os.File) (string, error) {
	f, err := os.OpenFile(source, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", fmt.Errorf("mount image: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("mount image: %w", err)
	}
	mount, err := cloneMount(int(f.Fd()), readOnly, owners)
	if err != nil {
		return "", ownersError(source, err)
	}
	p.mounts = append(p.mounts, privateMount{mount, info.IsDir()})
	return filepath.Join(privateDir, strconv.Itoa(len(p.mounts))), nil
}

// ownersError adds a hint to an error of mounting files with other owners.
func ownersError(source string, err error) error {
	return fmt.Errorf("mount %s with other owners: %w: %w: use user owner, or keep images on a file system with id-mapped mounts",
		source, sandbox.ErrUnsupported, err)
}

// Start starts a command that sees the mounts, and closes them here.
func (p *PrivateMounts) Start(cmd *exec.Cmd) error {
	defer p.Close()
	if len(p.mounts) == 0 {
		return cmd.Start()
	}
	started := make(chan error)
	Dedicate(func() {
		err := p.attachAll()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	})
	return <-started
}

// Dedicate runs f on its own thread, which ends when f returns, because f may
// have changed its state. It is never the main thread: that one doesn't end, and
// its namespaces count as the process's.
func Dedicate(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// attachAll attaches the mounts in a new mount namespace of this thread.
func (p *PrivateMounts) attachAll() error {
	if err := os.Mkdir(privateDir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make mount point: %w: %w", sandbox.ErrUnsupported, err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts in a namespace: %w", err)
	}
	if err := unix.Mount("tmpfs", privateDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=1m"); err != nil {
		return fmt.Errorf("mount %s: %w", privateDir, err)
	}
	for i, m := range p.mounts {
		at := filepath.Join(privateDir, strconv.Itoa(i+1))
		makePoint := func() error { return os.Mkdir(at, 0o755) }
		if !m.isDir {
			makePoint = func() error { return os.WriteFile(at, nil, 0o444) }
		}
		if err := makePoint(); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		if err := overlayfs.Attach(m.file, unix.AT_FDCWD, at); err != nil {
			return err
		}
	}
	return nil
}

// Close closes mounts that no command was started with.
func (p *PrivateMounts) Close() {
	for _, m := range p.mounts {
		_ = m.file.Close()
	}
	p.mounts = nil
}
