// Package overlayfs mounts overlays by the mount API with descriptors (Linux 5.2).
// The host's side mounts with it where it may, and the guest's binary in a user
// namespace of its own where the host's may not. It imports the standard library
// and golang.org/x/sys only (rank 0).
package overlayfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Settings are the options of every overlay but its layers, as mount(8) takes
// them. With userxattr (Linux 5.11) the kernel keeps its marks in user.overlay.*,
// which needs no privilege to read, and follows no redirects; the others are
// named because a kernel may be built with other defaults (overlayfs.rst).
func Settings() []string { return []string{"userxattr", "index=off", "metacopy=off"} }

// Layers are the directories of an overlay; Lowers begins with the top one. Upper
// and Work must be on one mount. They stay their opener's.
type Layers struct {
	Lowers      []*os.File
	Upper, Work *os.File
}

// LayerReference selects how layers are named to the kernel.
type LayerReference int

// The ways.
const (
	// ByDescriptor needs Linux 6.13, and takes directories of unattached mounts
	// from 6.15 on.
	ByDescriptor LayerReference = iota
	// ByPath names the same descriptors below /proc/self/fd, the one path to a
	// directory that can't be changed on the way. Their mounts must be attached
	// in this mount namespace. Before Linux 6.7 all lower layers are one string,
	// which has room for some 50.
	ByPath
)

// ErrTooManyLayers is the error if the names of the lower layers have no room.
var ErrTooManyLayers = errors.New("too many lower layers")

// Mount makes an overlay and returns its mount, nosuid and nodev, which is not
// attached. The caller closes it. Errors wrap the kernel's: EPERM, ENOSYS or
// ENODEV if overlays can't be mounted at all, EINVAL if not of these layers; or they
// wrap ErrTooManyLayers.
func Mount(l Layers, ref LayerReference) (mount *os.File, err error) {
	if ref == ByDescriptor {
		return mountLayers(l, ref)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine, and its working
		// directory with it.
		runtime.LockOSThread()
		if err = unix.Unshare(unix.CLONE_FS); err == nil {
			err = unix.Chdir("/proc/self/fd")
		}
		if err != nil {
			err = fmt.Errorf("enter /proc/self/fd: %w", err)
			return
		}
		mount, err = mountLayers(l, ref)
	}()
	<-done
	return mount, err
}

// mountLayers is Mount. To name layers by path it needs a thread whose working
// directory is /proc/self/fd.
func mountLayers(l Layers, ref LayerReference) (*os.File, error) {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open overlay: %w", err)
	}
	overlay := os.NewFile(uintptr(fd), "overlay")
	defer func() { _ = overlay.Close() }()
	if err := configureOverlay(fd, l, ref); err != nil {
		return nil, fmt.Errorf("%w%s", err, kernelMessages(fd))
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	return os.NewFile(uintptr(mount), "mount"), nil
}

func configureOverlay(overlay int, l Layers, ref LayerReference) error {
	for _, s := range Settings() {
		key, value, isString := strings.Cut(s, "=")
		err := error(nil)
		if isString {
			err = unix.FsconfigSetString(overlay, key, value)
		} else {
			err = unix.FsconfigSetFlag(overlay, key)
		}
		if err != nil {
			return fmt.Errorf("set overlay's %s: %w", key, err)
		}
	}
	if err := ref.setLowers(overlay, l.Lowers); err != nil {
		return fmt.Errorf("set overlay's lowerdir: %w", err)
	}
	for key, file := range map[string]*os.File{"upperdir": l.Upper, "workdir": l.Work} {
		if err := ref.setLayer(overlay, key, file); err != nil {
			return fmt.Errorf("set overlay's %s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(overlay); err != nil {
		return fmt.Errorf("make overlay: %w", err)
	}
	return nil
}

// maxString is the length of the longest value that FSCONFIG_SET_STRING takes.
const maxString = 255

// setLowers sets the lower layers of an overlay that is being configured. Linux
// before 6.7 knows only one list of paths.
func (ref LayerReference) setLowers(overlay int, lowers []*os.File) error {
	if ref == ByPath {
		var names []string
		for _, f := range lowers {
			names = append(names, strconv.Itoa(int(f.Fd())))
		}
		list := strings.Join(names, ":")
		if len(list) > maxString {
			return fmt.Errorf("%w: the names of %d have %d bytes, and the kernel takes %d", ErrTooManyLayers, len(lowers), len(list), maxString)
		}
		return unix.FsconfigSetString(overlay, "lowerdir", list)
	}
	for _, f := range lowers {
		if err := ref.setLayer(overlay, "lowerdir+", f); err != nil {
			return err
		}
	}
	return nil
}

// setLayer sets one of the layers of an overlay that is being configured.
func (ref LayerReference) setLayer(overlay int, key string, layer *os.File) error {
	if ref == ByPath {
		return unix.FsconfigSetString(overlay, key, strconv.Itoa(int(layer.Fd())))
	}
	return unix.FsconfigSetFd(overlay, key, int(layer.Fd()))
}

// Refused reports whether the kernel refused the layers in this form.
func Refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBADF) }

// kernelMessages returns the kernel's messages about a file system that is
// being configured: one per read, with a letter for its level before
// (fsopen(2)).
func kernelMessages(overlay int) string {
	var out strings.Builder
	buf := make([]byte, 512)
	for range 8 {
		n, err := unix.Read(overlay, buf)
		if err != nil || n <= 2 {
			break
		}
		out.WriteString(": " + strings.TrimSpace(string(buf[2:n])))
	}
	return out.String()
}

// OpenDir opens for reading the directory that a descriptor names, such as the
// root of a mount that is attached nowhere.
func OpenDir(at *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(at.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open mount: %w", err)
	}
	return os.NewFile(uintptr(fd), at.Name()), nil
}

// Attach attaches a mount to a directory.
func Attach(mount *os.File, at int, name string) error {
	if err := unix.MoveMount(int(mount.Fd()), "", at, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach mount: %w", err)
	}
	return nil
}
