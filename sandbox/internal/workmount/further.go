package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// furtherMount is one of Options.Further.
type furtherMount struct {
	sandbox.Mount
	// source is the path of the host directory, without symlinks.
	source string
	guards []guard
	layers *overlayLayers // nil without layers
}

// examineFurther returns the further mounts except tmpfs. It refuses mounts
// through which commands could reach forbidden places. Scratch directories have
// no source yet.
func examineFurther(o Options, work place) ([]furtherMount, error) {
	var list []furtherMount
	var places []place // of writable binds
	for _, m := range o.Further {
		if err := checkMountPoint(list, m.Target); err != nil {
			return nil, err
		}
		f := furtherMount{Mount: m}
		switch m.Type {
		case sandbox.MountTmpfs:
			continue
		case sandbox.MountScratch:
			list = append(list, f)
			continue
		}
		var err error
		if f.source, err = resolvedPath(m.Dir); err != nil {
			return nil, err
		}
		at, err := examinePlace(m.Dir, fmt.Sprintf("mount of %s at %s", f.source, m.Target))
		if err != nil {
			return nil, err
		}
		if err := f.checkFileSystem(); err != nil {
			return nil, err
		}
		if err := at.checkFurther(o, work); err != nil {
			return nil, err
		}
		if _, err := listSubmounts(at.what, f.source, nil); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(places, at.overlaps); i >= 0 {
			return nil, fmt.Errorf("%s: %w: one of its directories would be writable past the %s: mount one of them only, or both read-only",
				at.what, sandbox.ErrInvalid, places[i].what)
		}
		if !m.ReadOnly && m.Layers == "" {
			places = append(places, at)
		}
		list = append(list, f)
	}
	return list, nil
}

// checkMountPoint refuses a target that lies in a bind but doesn't exist there:
// a runtime would make it on the host.
func checkMountPoint(list []furtherMount, target string) error {
	for _, m := range slices.Backward(list) { // the closest parent comes last
		inside, ok := strings.CutPrefix(target, m.Target+"/")
		if !ok {
			continue
		}
		if m.Type == sandbox.MountScratch {
			return nil // makeScratch makes it
		}
		if first, _, _ := strings.Cut(inside, "/"); m.Guarded && slices.Contains([]string{gitName, mercurialName, ownConfig}, first) {
			return fmt.Errorf("mount at %s: %w: %s is protected there", target, sandbox.ErrInvalid, first)
		}
		f, err := openBelow(m.Dir, inside, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("mount at %s: %w: the mount of %s has no directory %s (%w): make it, or mount elsewhere", target, sandbox.ErrInvalid, m.source, inside, err)
		}
		_ = f.Close()
		return nil
	}
	return nil
}

// overlaps reports whether one place is or contains the other.
func (p place) overlaps(other place) bool {
	return slices.Contains(p.up, other.self) || slices.Contains(other.up, p.self)
}

// checkFurther refuses a further mount if its host directory is protected.
func (p place) checkFurther(o Options, work place) error {
	if err := p.checkProtected(o, sandbox.CachesDir(o.StateDir)); err != nil {
		return err
	}
	if p.overlaps(work) {
		return fmt.Errorf("%s: %w: it is, contains or lies in the %s, whose protection it would evade: use a directory elsewhere", p.what, sandbox.ErrInvalid, work.what)
	}
	for _, name := range []string{"/proc", "/sys", "/dev"} {
		if above, err := listAncestorsOf(name); err == nil && slices.Contains(p.up, above[0]) {
			return fmt.Errorf("%s: %w: it lies in %s, which belongs to the kernel", p.what, sandbox.ErrInvalid, name)
		}
	}
	for _, name := range engineSockets(o.EngineSocket) {
		if above, err := listAncestorsOf(filepath.Dir(name)); err == nil && slices.Contains(above, p.self) {
			return fmt.Errorf("%s: %w: it contains %s, by which a command could control an engine of this machine", p.what, sandbox.ErrInvalid, name)
		}
	}
	return nil
}

// engineSockets returns the existing sockets that control this machine's
// container engines, with symlinks resolved.
func engineSockets(own string) []string {
	user := fmt.Sprintf("/run/user/%d", os.Getuid())
	names := []string{
		own, "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock",
		user + "/docker.sock", user + "/podman/podman.sock", user + "/buildkit/buildkitd.sock",
	}
	var list []string
	for _, name := range names {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue
		}
		if info, err := os.Lstat(real); err == nil && info.Mode().Type() == os.ModeSocket {
			list = append(list, real)
		}
	}
	return list
}

// kernelFileSystems are the types of the kernel's own file systems (statfs(2)).
var kernelFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC, unix.NSFS_MAGIC,
	unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.BINFMTFS_MAGIC,
}

// checkFileSystem refuses the kernel's file systems wherever they are mounted.
func (m furtherMount) checkFileSystem() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(m.Dir.Fd()), &st); err != nil {
		return fmt.Errorf("examine mount of %s: %w", m.source, err)
	}
	if slices.Contains(kernelFileSystems, int64(st.Type)) { //nolint:unconvert // 32 bits on some processors
		return fmt.Errorf("mount of %s at %s: %w: it is a file system of the kernel's", m.source, m.Target, sandbox.ErrInvalid)
	}
	return nil
}

func (p *Mounts) stageFurther(s *stager, decided identityPlan) error {
	if err := p.cleanup.ownScratch(decided); err != nil {
		return err
	}
	for _, m := range p.cleanup.further {
		b, err := s.stageFurther(m, decided.want.Root)
		if err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.source, m.Target, err)
		}
		p.Further = append(p.Further, b)
		for _, g := range m.guards {
			b, err := s.stageGuard(m, g)
			if err != nil {
				return fmt.Errorf("protect %s in the mount at %s: %w", g.name, m.Target, err)
			}
			p.Further = append(p.Further, b)
		}
	}
	return nil
}

func (s *stager) stageGuard(m furtherMount, g guard) (Bind, error) {
	f, err := openBelow(m.Dir, g.name, unix.O_PATH)
	if err != nil {
		return Bind{}, err
	}
	defer func() { _ = f.Close() }()
	source, err := s.stageClone(f, g.readOnly, s.userns)
	if err != nil {
		return Bind{}, err
	}
	return s.cleanup.newBind(f, source, path.Join(m.Target, g.name), g.readOnly)
}

func (s *stager) stageLayered(m furtherMount) (Bind, error) {
	merged, source, err := s.stageLayers([]*os.File{m.Dir}, m.layers.dir, s.userns)
	if errors.Is(err, unix.EROFS) {
		return Bind{}, fmt.Errorf("%w: the kernel mounts the layers %s read-only: use another state directory (XDG_STATE_HOME)", sandbox.ErrUnsupported, m.layers.path)
	}
	if err != nil {
		return Bind{}, err
	}
	defer func() { _ = merged.Close() }()
	return s.cleanup.newBind(merged, source, m.Target, false)
}

// prepareFurther opens the layers of further mounts and reserves the protected
// names in them.
func (p *Mounts) prepareFurther(ctx context.Context, o Options, decided identityPlan) (err error) {
	for i := range p.cleanup.further {
		m := &p.cleanup.further[i]
		if m.Layers != "" {
			if m.layers, err = openLayers(m.Layers, o.StateDir, decided.files.uid, decided.probe()); err != nil {
				return fmt.Errorf("mount at %s: %w", m.Target, err)
			}
			if err := m.layers.shareWithRoot(decided); err != nil {
				return fmt.Errorf("mount at %s: %w", m.Target, err)
			}
		}
		if !m.Guarded {
			continue
		}
		list, lost, err := listGuards(sandbox.Workspace{Dir: m.Dir, Repositories: m.Repositories, Privileged: m.Privileged}, m.source, o.Git)
		if err != nil {
			return fmt.Errorf("mount of %s at %s: %w", m.source, m.Target, err)
		}
		for _, g := range list {
			if g.worktree.common != "" {
				lost = append(lost, "the repository lies elsewhere and is not mounted: git does not work there")
			}
		}
		for _, text := range lost {
			p.Lost = append(p.Lost, fmt.Sprintf("mount at %s: %s", m.Target, text))
		}
		if err := p.reserveNames(ctx, m.Dir, m.source, list, decided); err != nil {
			return err
		}
		m.guards = list
	}
	return nil
}

// countFurther returns how many mounts stageFurther makes.
func (u *cleanup) countFurther() (n int) {
	for _, m := range u.further {
		n += 1 + len(m.guards)
		if m.layers != nil {
			n += overlayMounts
		}
	}
	return n
}

// countOverlay returns how many mounts the workspace's overlay is staged from.
func (u *cleanup) countOverlay() int {
	if u.layers == nil {
		return overlayMounts
	}
	return overlayMounts + len(u.layers.frozen)
}

func (s *stager) stageFurther(m furtherMount, root bool) (Bind, error) {
	if m.layers != nil {
		return s.stageLayered(m)
	}
	dir, done, err := s.cleanup.openFurther(m)
	if err != nil {
		return Bind{}, err
	}
	defer done()
	userns := s.userns
	if m.Type == sandbox.MountScratch {
		userns = s.scratch // nil if it belongs to the commands' identity itself
	}
	source, err := s.stageClone(dir, m.ReadOnly, userns)
	if m.ReadOnly && !root && errors.Is(err, errNoIDMap) {
		source, err = s.stageClone(dir, true, nil) // nothing is made in it
	}
	if err != nil {
		return Bind{}, err
	}
	return s.cleanup.newBind(dir, source, m.Target, m.ReadOnly)
}

// stageClone clones and attaches the mount of a file or directory, and returns
// its path.
func (s *stager) stageClone(f *os.File, readOnly bool, userns *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	mount, err := cloneMount(int(f.Fd()), readOnly, userns)
	if err != nil {
		return "", err
	}
	defer func() { _ = mount.Close() }()
	return s.attachMount(mount, info.IsDir())
}

// bindFurther binds the further mounts by path, and plans the overlays of those
// with layers.
func (p *Mounts) bindFurther(o Options, decided identityPlan) error {
	if err := p.cleanup.ownScratch(decided); err != nil {
		return err
	}
	for i, m := range p.cleanup.further {
		if m.layers != nil && decided.want.RuntimeMaps {
			if err := p.addGuestOverlay(o, m); err != nil {
				return err
			}
			continue
		}
		if m.layers != nil && o.RuntimeJoins {
			if err := p.planLayered(o.Holder, m); err != nil {
				return fmt.Errorf("mount of %s at %s: %w", m.source, m.Target, err)
			}
			continue
		}
		if m.layers != nil {
			return fmt.Errorf("mount of %s at %s: %w: this process may not mount an overlay for it, and an engine mounts the workspace's alone: use the gvisor or runc backend, run as root, or mount it read-only",
				m.source, m.Target, sandbox.ErrUnsupported)
		}
		dir, done, err := p.cleanup.openFurther(m)
		if err != nil {
			return err
		}
		b, err := p.cleanup.newBind(dir, m.source, m.Target, m.ReadOnly)
		done()
		if err != nil {
			return err
		}
		if m.Type == sandbox.MountScratch {
			b.Maps = decided.scratch
		}
		p.Further = append(p.Further, b)
		for _, g := range m.guards {
			b, err := p.cleanup.bindByPath(m.Dir, g, m.source, m.Target, fmt.Sprintf("%s-%d", coverDir, i))
			if err != nil {
				return fmt.Errorf("protect %s in the mount at %s: %w", g.name, m.Target, err)
			}
			p.Further = append(p.Further, b)
		}
	}
	return nil
}

// openFurther returns a mount's host directory. done closes it if it is not the
// caller's.
func (u *cleanup) openFurther(m furtherMount) (dir *os.File, done func(), err error) {
	if m.Type != sandbox.MountScratch {
		return m.Dir, func() {}, nil
	}
	rel, err := filepath.Rel(u.base, m.source)
	if err != nil {
		return nil, nil, err
	}
	if dir, err = openBelow(u.dir, rel, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, nil, err
	}
	return dir, func() { _ = dir.Close() }, nil
}
