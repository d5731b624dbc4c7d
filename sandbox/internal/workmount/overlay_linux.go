package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// overlaySettings are the options of every overlay but its layers. With
// userxattr the kernel keeps its marks in user.overlay.*, which needs no
// privilege to read and follows no redirects; the others are named because a
// kernel may be built with other defaults (overlayfs.rst).
var overlaySettings = [...]struct{ key, value string }{
	{"userxattr", ""},
	{"index", "off"},
	{"metacopy", "off"},
}

// stageOverlay mounts the overlay and attaches it as the first of the binds,
// with the guards in it after it.
func (p *Prepared) stageOverlay(s *stage, guards []guard) error {
	lower, err := s.clone(int(p.undo.workspace.Fd()), true, s.userns)
	if err != nil {
		return err
	}
	defer lower.Close()
	own, err := s.clone(int(p.undo.layers.dir.Fd()), false, s.userns)
	if err != nil {
		return err
	}
	defer own.Close()
	merged, err := s.mountOverlay(lower, own)
	if err != nil {
		return err
	}
	defer merged.Close()
	if err := p.checkOverlay(merged); err != nil {
		return err
	}
	source, err := s.attach(merged, true)
	if err != nil {
		return err
	}
	root, err := openDot(merged)
	if err != nil {
		return err
	}
	p.undo.view = root
	if err := p.add(root, guard{name: "."}, source); err != nil {
		return err
	}
	for _, g := range guards {
		if err := p.guardIn(s, root, g); err != nil {
			return err
		}
	}
	return nil
}

// guardIn binds something in the overlay on itself.
func (p *Prepared) guardIn(s *stage, root *os.File, g guard) error {
	f, err := openBelow(root, g.name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	mount, err := s.clone(int(f.Fd()), g.readOnly, nil) // its ids are the overlay's
	if err != nil {
		return err
	}
	defer mount.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	source, err := s.attach(mount, info.IsDir())
	if err != nil {
		return err
	}
	return p.add(f, g, source)
}

// mountOverlay mounts an overlay of two unattached mounts and attaches it
// nowhere. Since Linux 6.15 layers can be given by descriptors of unattached
// mounts; before, they are attached below the session's folder until the
// overlay, which holds clones of its own, is there.
func (s *stage) mountOverlay(lower, own *os.File) (*os.File, error) {
	if !s.attachLayers {
		merged, err := newOverlay(lower, own, setByDescriptor)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBADF) {
			return merged, err
		}
	}
	for _, m := range []*os.File{lower, own} {
		if _, err := s.attach(m, true); err != nil {
			return nil, err
		}
	}
	merged, err := newOverlay(lower, own, setByPath)
	if errors.Is(err, unix.EINVAL) && s.userns != nil { // as id-mapped layers are before Linux 5.19
		err = fmt.Errorf("%w: %w", errNoIDMap, err)
	}
	return merged, err
}

// setLayer gives an overlay in the making one of its layers.
type setLayer func(overlay int, key string, layer *os.File) error

func setByDescriptor(overlay int, key string, layer *os.File) error {
	if key == "lowerdir" {
		key = "lowerdir+" // which alone takes a descriptor
	}
	return unix.FsconfigSetFd(overlay, key, int(layer.Fd()))
}

// setByPath names a layer by its descriptor too, by the one path to it that
// nobody can change on the way.
func setByPath(overlay int, key string, layer *os.File) error {
	return unix.FsconfigSetString(overlay, key, fmt.Sprintf("/proc/self/fd/%d", layer.Fd()))
}

func newOverlay(lower, own *os.File, set setLayer) (*os.File, error) {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("open overlay: %w: %w", errNoMounts, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open overlay: %w", err)
	}
	overlay := os.NewFile(uintptr(fd), "overlay")
	defer overlay.Close()
	for _, o := range overlaySettings {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fd, o.key)
		} else {
			err = unix.FsconfigSetString(fd, o.key, o.value)
		}
		if err != nil { // userxattr came with Linux 5.11
			return nil, fmt.Errorf("set overlay's %s: %w%s", o.key, err, complaints(overlay))
		}
	}
	if err := setLayers(fd, lower, own, set); err != nil {
		return nil, fmt.Errorf("%w%s", err, complaints(overlay))
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, fmt.Errorf("make overlay: %w%s", err, complaints(overlay))
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	return os.NewFile(uintptr(mount), "mount"), nil
}

// setLayers gives the lower layer, and the two of own, which the kernel wants
// on one mount.
func setLayers(overlay int, lower, own *os.File, set setLayer) error {
	low, err := openDot(lower)
	if err != nil {
		return err
	}
	defer low.Close()
	if err := set(overlay, "lowerdir", low); err != nil {
		return fmt.Errorf("set lower layer: %w", err)
	}
	for key, name := range map[string]string{"upperdir": upperName, "workdir": workName} {
		f, err := openBelow(own, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		err = set(overlay, key, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	return nil
}

// openDot opens for reading the folder that a mount's descriptor names.
func openDot(mount *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(mount.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open mount: %w", err)
	}
	return os.NewFile(uintptr(fd), mount.Name()), nil
}

// complaints are what the kernel says about a file system in the making: one
// message a read, with a letter for its level before (fsopen(2)).
func complaints(overlay *os.File) string {
	var out strings.Builder
	buf := make([]byte, 512)
	for range 8 {
		n, err := unix.Read(int(overlay.Fd()), buf)
		if err != nil || n <= 2 {
			break
		}
		out.WriteString(": " + strings.TrimSpace(string(buf[2:n])))
	}
	return out.String()
}

// overlayError says what would help where an overlay can't be mounted.
func overlayError(path string, l *layers, err error) error {
	switch {
	case errors.Is(err, errNoMounts):
		return fmt.Errorf("workspace %s: %w: this process may not mount an overlay (%w): run as root, use the docker or gvisor backend, or bind mode",
			path, sandbox.ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EREMOTE), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("workspace %s: %w: no overlay can be made of it and the layers %s (%w): use bind mode, "+
			"or, where it is the layers' file system, a state folder (XDG_STATE_HOME) on a local disk", path, sandbox.ErrUnsupported, l.path, err)
	}
	return fmt.Errorf("mount workspace: %w", err)
}

// checkOverlay refuses an overlay that the kernel made read-only because it
// could not use the work folder.
func (p *Prepared) checkOverlay(merged *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(merged.Fd()), &st); err != nil {
		return fmt.Errorf("examine overlay: %w", err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("layers %s: %w: the kernel mounts them read-only: use bind mode, or another state folder (XDG_STATE_HOME)",
			p.undo.layers.path, sandbox.ErrUnsupported)
	}
	return nil
}

// overlayMounts is how many mounts an overlay is staged from, besides its own
// and its guards'.
const overlayMounts = 2

// overlay makes a workspace's copy-on-write view. Nothing of a repository is
// guarded in it: the host's own is untouched whatever is committed. Its
// .caisson is, as it is in the folder itself: one that a command made is not
// read by anybody.
func (p *Prepared) overlay(ctx context.Context, o Options, decided plan) error {
	var err error
	if p.undo.layers, err = openLayers(o, decided.files.uid); err != nil {
		return err
	}
	list, err := configGuards(o.Workspace.Dir)
	if err != nil {
		return fmt.Errorf("workspace %s: %w", p.Path, err)
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("prepare workspace: %w", err)
	}
	if !decided.stage && o.EngineMounts {
		return p.volume(decided, list)
	}
	if !decided.stage {
		return overlayError(p.Path, p.undo.layers, errNoMounts)
	}
	if err := p.stageAll(o, &decided, append([]guard{{name: "."}}, list...), 0); err != nil {
		return overlayError(p.Path, p.undo.layers, err)
	}
	p.settle(decided)
	return nil
}

// volume leaves the overlay to an engine. A .caisson in it is covered, as it is
// wherever nothing can be staged.
func (p *Prepared) volume(decided plan, list []guard) error {
	v, err := p.engineVolume()
	if err != nil {
		return fmt.Errorf("describe overlay: %w", err)
	}
	p.Volume, p.undo.volume = v, v
	p.Binds = []Bind{{Target: sandbox.WorkspaceDir, Dir: true, Inode: v.root.ino}}
	for _, g := range list {
		f, err := openBelow(p.undo.workspace, g.name, unix.O_PATH)
		if err != nil {
			return err
		}
		err = p.cover(f, g)
		f.Close()
		if err != nil {
			return err
		}
	}
	decided.lost = slices.DeleteFunc(decided.lost, func(text string) bool { return text == LostFlags })
	p.settle(decided)
	return nil
}
