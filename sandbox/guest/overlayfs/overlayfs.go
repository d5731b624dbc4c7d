// Package overlayfs mounts overlays with the mount API and descriptors (Linux
// 5.2). The host uses it where it may mount, and otherwise the guest's binary
// in its own user namespace. It imports only the standard library and
// golang.org/x/sys (rank 0).
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

// Settings are the options of every overlay except its layers, as mount(8)
// takes them. With userxattr (Linux 5.11) the kernel keeps its marks in
// user.overlay.*, which needs no privilege to read, and follows no redirects.
// The others are explicit because kernels may be built with other defaults
// (overlayfs.rst).
func Settings() []string { return []string{"userxattr", "index=off", "metacopy=off"} }

// Layers are the directories of an overlay; Lowers begins with the top one.
// Upper and Work must be on one mount. The caller keeps and closes them.
type Layers struct {
	Lowers      []*os.File
	Upper, Work *os.File
}

// LayerReference selects how layers are named to the kernel.
type LayerReference int

const (
	// ByDescriptor needs Linux 6.13, and 6.15 for unattached mounts.
	ByDescriptor LayerReference = iota
	// ByPath names the descriptors below /proc/self/fd, the one path to a
	// directory that can't be swapped. Their mounts must be attached in this
	// mount namespace. Before Linux 6.7 all lower layers are one string, which
	// has room for some 50.
	ByPath
)

// ErrTooManyLayers means that the names of the lower layers are too long
// together.
var ErrTooManyLayers = errors.New("too many lower layers")

// Mount makes an overlay and returns its unattached mount, nosuid and nodev,
// which the caller closes. Errors wrap ErrTooManyLayers or the kernel's: EPERM,
// ENOSYS or ENODEV if overlays can't be mounted at all, EINVAL if these layers
// can't.
func Mount(l Layers, ref LayerReference) (mount *os.File, err error) {
	if ref == ByDescriptor {
		return mountLayers(l, ref)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked, so the thread ends with the goroutine, and its
		// working directory with it.
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

// mountLayers is Mount. ByPath, it needs a thread whose working directory is
// /proc/self/fd.
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

// maxString is the longest value that FSCONFIG_SET_STRING takes.
const maxString = 255

// setLowers sets the lower layers. Linux before 6.7 takes only one list of
// paths.
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

func (ref LayerReference) setLayer(overlay int, key string, layer *os.File) error {
	if ref == ByPath {
		return unix.FsconfigSetString(overlay, key, strconv.Itoa(int(layer.Fd())))
	}
	return unix.FsconfigSetFd(overlay, key, int(layer.Fd()))
}

// Refused reports whether the kernel refused the layers in this form.
func Refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBADF) }

// kernelMessages returns the kernel's messages about a file system being
// configured: one per read, after a letter for its level (fsopen(2)).
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

// OpenDir opens for reading the directory at a descriptor, such as the root of
// an unattached mount.
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
