package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
)

// stageOverlay mounts the overlay, attaches it as the first bind, and stages
// its guards.
func (p *Mounts) stageOverlay(s *stager, guards []guard) error {
	lowers := append(slices.Clone(p.cleanup.layers.frozen), p.cleanup.workspace)
	merged, source, err := s.stageLayers(lowers, p.cleanup.layers.dir, s.userns)
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("layers %s: %w: the kernel mounts them read-only: use bind mode, or another state directory (XDG_STATE_HOME)",
			p.cleanup.layers.path, sandbox.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	defer func() { _ = merged.Close() }()
	root, err := overlayfs.OpenDir(merged)
	if err != nil {
		return err
	}
	p.cleanup.view = root
	p.cleanup.upper, err = openBelow(p.cleanup.layers.dir, upperName, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if err := p.addBind(root, guard{name: "."}, source); err != nil {
		return err
	}
	for _, g := range guards {
		var userns *os.File // the overlay shows mapped ids already
		if g.from != "" {
			userns = s.userns
		}
		if err := p.stageBind(s, root, g, userns); err != nil {
			return err
		}
	}
	return nil
}

// stageLayers mounts an overlay of the directories lowers, id-mapped by s.userns,
// and of the layers in own, id-mapped by ownIDs, and attaches it. It returns
// EROFS if the kernel mounts it read-only because it can't use the work
// directory.
func (s *stager) stageLayers(lowers []*os.File, own, ownIDs *os.File) (merged *os.File, source string, err error) {
	var clones []*os.File
	defer func() { closeAll(clones...) }()
	for _, dir := range lowers {
		lower, err := cloneMount(int(dir.Fd()), true, s.userns)
		if err != nil {
			return nil, "", err
		}
		clones = append(clones, lower)
	}
	upper, err := cloneMount(int(own.Fd()), false, ownIDs)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = upper.Close() }()
	if merged, err = s.mountOverlay(upper, clones...); err != nil {
		return nil, "", err
	}
	var st unix.Statfs_t
	if err = unix.Fstatfs(int(merged.Fd()), &st); err == nil && st.Flags&unix.ST_RDONLY != 0 {
		err = unix.EROFS
	}
	if err == nil {
		source, err = s.attachMount(merged, true)
	}
	if err != nil {
		_ = merged.Close()
		return nil, "", err
	}
	return merged, source, nil
}

// overlayGuards returns the guards of the workspace's configuration and of a
// linked worktree, whose repository is not in the overlay.
func overlayGuards(p *Mounts, o Options, decided identityPlan) ([]guard, error) {
	list, err := existingGuards(o.Workspace.Dir, ownConfig)
	if err != nil {
		return nil, err
	}
	if kind, err := kindOf(o.Workspace.Dir, gitName); err != nil || kind != unix.S_IFREG {
		return list, nil // no guards for a repository in the overlay
	}
	// Errors of bind mode are harmless in an overlay.
	git, lost, err := linkGuards(o.Workspace.Dir, p.Path)
	if err != nil || git[0].worktree.common == "" {
		p.Lost = append(p.Lost, lost...)
		return list, nil // as above
	}
	return linkWorktrees(p, append(list, git[0]), decided)
}

// mountOverlay mounts an overlay of unattached mounts and returns it
// unattached. own contains the upper layer; lowers begin with the top one.
// Kernels before 6.15 need the layers attached. They stay attached below the
// session's directory until staging is removed; the overlay holds its own
// clones.
func (s *stager) mountOverlay(own *os.File, lowers ...*os.File) (*os.File, error) {
	l, err := openLayersOf(own, lowers)
	if err != nil {
		return nil, err
	}
	defer closeLayers(l)
	if !s.attachLayers {
		merged, err := overlayfs.Mount(l, overlayfs.ByDescriptor)
		if !overlayfs.Refused(err) {
			return merged, noMounts(err)
		}
	}
	for _, m := range append(slices.Clone(lowers), own) {
		if _, err := s.attachMount(m, true); err != nil {
			return nil, err
		}
	}
	merged, err := overlayfs.Mount(l, overlayfs.ByPath)
	if errors.Is(err, unix.EINVAL) && s.userns != nil { // as for id-mapped layers before Linux 5.19
		err = fmt.Errorf("%w: %w", errNoIDMap, err)
	}
	return merged, noMounts(err)
}

// noMounts wraps err in errNoMounts if it means that this process or kernel
// can't mount overlays.
func noMounts(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", errNoMounts, err)
	}
	return err
}

// openLayersOf opens the lower layers, and own's upper layer and work
// directory.
func openLayersOf(own *os.File, lowers []*os.File) (l overlayfs.Layers, err error) {
	defer func() {
		if err != nil {
			closeLayers(l)
		}
	}()
	for _, mount := range lowers {
		dir, err := overlayfs.OpenDir(mount)
		if err != nil {
			return l, err
		}
		l.Lowers = append(l.Lowers, dir)
	}
	if l.Upper, err = openBelow(own, upperName, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return l, err
	}
	l.Work, err = openBelow(own, workName, unix.O_RDONLY|unix.O_DIRECTORY)
	return l, err
}

func closeLayers(l overlayfs.Layers) { closeAll(append(l.Lowers, l.Upper, l.Work)...) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// overlayError adds a hint to an error of mounting an overlay.
func overlayError(path string, l *overlayLayers, err error) error {
	switch {
	case errors.Is(err, errNoMounts):
		return fmt.Errorf("workspace %s: %w: this process may not mount an overlay (%w): run as root, use the docker or gvisor backend, or bind mode",
			path, sandbox.ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EREMOTE), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("workspace %s: %w: no overlay can be made of it and the layers %s (%w): use bind mode, "+
			"or, where it is the layers' file system, a state directory (XDG_STATE_HOME) on a local disk", path, sandbox.ErrUnsupported, l.path, err)
	}
	return fmt.Errorf("mount workspace: %w", err)
}

// overlayMounts is the number of mounts that an overlay is staged from, besides
// its guards and frozen layers.
const overlayMounts = 2

// prepareOverlay makes a workspace's copy-on-write view. It guards no
// repository: commits in the view don't touch the host's. It guards .caisson as
// in bind mode; a .caisson that a command made is never read.
func (p *Mounts) prepareOverlay(ctx context.Context, o Options, decided identityPlan) error {
	var err error
	if p.cleanup.layers, err = openLayers(o.Workspace.Layers, o.StateDir, decided.files.uid, decided.probe()); err != nil {
		return err
	}
	if err := p.cleanup.layers.shareWithRoot(decided); err != nil {
		return err
	}
	if err := p.cleanup.layers.openFrozen(o.Workspace.Lowers, o.StateDir, decided.files.uid); err != nil {
		return err
	}
	list, err := overlayGuards(p, o, decided)
	if err != nil {
		return fmt.Errorf("workspace %s: %w", p.Path, err)
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("prepare workspace: %w", err)
	}
	if decided.want.RuntimeMaps {
		return p.planGuestOverlay(o, decided, list)
	}
	if !decided.stage && o.EngineMounts {
		return p.planVolume(o, decided, list)
	}
	if !decided.stage && o.RuntimeJoins {
		return p.planNamespace(o, decided, list)
	}
	if !decided.stage {
		return overlayError(p.Path, p.cleanup.layers, errNoMounts)
	}
	if err := p.stageAll(o, &decided, append([]guard{{name: "."}}, list...)); err != nil {
		return overlayError(p.Path, p.cleanup.layers, err)
	}
	p.setIdentity(decided)
	return nil
}

// planVolume leaves the overlay to an engine. It covers a .caisson, since it
// can't stage it.
func (p *Mounts) planVolume(o Options, decided identityPlan, list []guard) error {
	v, err := p.engineVolume()
	if err != nil {
		return fmt.Errorf("describe overlay: %w", err)
	}
	p.Volume, p.cleanup.volume = v, v
	p.Binds = []Bind{{Target: p.Target, Dir: true, Inode: v.root.ino}}
	return p.bindUnstaged(o, decided, list)
}

// bindUnstaged covers the guards of an overlay that this process does not
// mount, and sets the identity. The overlay's flags are not lost.
func (p *Mounts) bindUnstaged(o Options, decided identityPlan, list []guard) error {
	for _, g := range list {
		if err := p.bindByPath(g); err != nil {
			return err
		}
	}
	if len(p.cleanup.further) == 0 {
		decided.lost = slices.DeleteFunc(decided.lost, func(text string) bool { return text == LostFlags })
	}
	p.setIdentity(decided)
	return p.bindFurther(o, decided)
}
