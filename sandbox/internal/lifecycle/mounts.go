package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// maxMounts bounds a sandbox's further mounts: each costs the runtime time.
const maxMounts = 64

// validateMounts refuses further mounts that no backend could make.
func validateMounts(list []sandbox.Mount, workspace string) error {
	if len(list) > maxMounts {
		return fmt.Errorf("%w: %d mounts, at most %d are possible", sandbox.ErrInvalid, len(list), maxMounts)
	}
	targets := map[string]bool{}
	for _, m := range list {
		if err := sandbox.CheckMountTarget(m.Target, workspace); err != nil {
			return err
		}
		err := validateSource(m)
		if err == nil && targets[m.Target] {
			err = errors.New("another mount has the same target")
		}
		if err != nil {
			return &sandbox.MountError{Err: fmt.Errorf("mount at %q: %w: %w", m.Target, sandbox.ErrInvalid, err)}
		}
		targets[m.Target] = true
	}
	return nil
}

// isBelow reports whether p lies strictly below dir.
func isBelow(p, dir string) bool { return strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") }

// validateSource refuses fields that don't go together.
func validateSource(m sandbox.Mount) error {
	switch m.Type {
	case "", sandbox.MountBind:
		switch {
		case m.Dir == nil || !filepath.IsAbs(m.Path):
			return fmt.Errorf("the host directory %q is not open", m.Path)
		case m.Bytes != 0:
			return errors.New("a bind has no size of its own")
		case m.ReadOnly && (m.Guarded || m.Layers != ""):
			return errors.New("a read-only bind needs neither guards nor layers")
		case m.Guarded && m.Layers != "":
			return errors.New("a bind with layers needs no guards")
		case m.Layers != "" && !filepath.IsAbs(m.Layers):
			return fmt.Errorf("the directory of layers %q is no absolute path", m.Layers)
		}
	case sandbox.MountTmpfs, sandbox.MountScratch:
		switch {
		case m.Dir != nil || m.Path != "" || m.Layers != "" || m.Guarded:
			return fmt.Errorf("a %s has no host directory", m.Type)
		case m.ReadOnly:
			return fmt.Errorf("a read-only %s would stay empty", m.Type)
		case m.Bytes < 1<<20:
			return fmt.Errorf("a %s needs a size of at least 1 MiB", m.Type)
		}
	default:
		return fmt.Errorf("invalid type %q", m.Type)
	}
	return nil
}

// furtherMounts returns the spec's mounts, and the home if it is a directory on
// disk, parents first and with their types set.
func (p *Preparation) furtherMounts() []sandbox.Mount {
	list := slices.Clone(p.Spec.Mounts)
	if !p.Remote { // a remote engine can't mount a directory of this machine
		list = append(list, sandbox.Mount{Target: sandbox.HomeDir, Type: sandbox.MountScratch, Bytes: p.Spec.Resources.HomeBytes})
	}
	for i := range list {
		list[i].Type = cmp.Or(list[i].Type, sandbox.MountBind)
	}
	slices.SortFunc(list, func(a, b sandbox.Mount) int { return strings.Compare(a.Target, b.Target) })
	return list
}

// copyGrowth is the factor by which a copy of the workspace may grow.
const copyGrowth = 4

func (p *Preparation) copyBounds() overlay.CopyBounds {
	w := p.Spec.Workspace
	return overlay.CopyBounds{
		Bytes:   cmp.Or(w.CopyBytes, sandbox.DefaultCopyBytes),
		Entries: cmp.Or(w.CopyEntries, sandbox.DefaultCopyEntries),
	}
}

// Tmpfs returns the tmpfs mounts of every container, and those of the spec.
func (p *Preparation) Tmpfs() (own, further []harden.Tmpfs) {
	var asked []harden.Tmpfs
	if p.Remote {
		asked = append(asked, harden.Tmpfs{Path: sandbox.HomeDir, Bytes: p.Spec.Resources.HomeBytes})
	}
	if p.Spec.Workspace.Mode == sandbox.ModeCopy {
		asked = append(asked, harden.Tmpfs{Path: p.Spec.Workspace.MountPoint(), Bytes: copyGrowth * p.copyBounds().Bytes})
	}
	asked = append(asked, p.identityHomes()...)
	count := 0
	for _, m := range p.Spec.Mounts {
		if m.Type == sandbox.MountTmpfs {
			asked = append(asked, harden.Tmpfs{Path: m.Target, Bytes: m.Bytes})
			count++
		}
	}
	all := harden.TmpfsMounts(p.Spec.Resources, p.Identity.CommandUID, p.Identity.CommandGID, asked...)
	return all[:len(all)-count], all[len(all)-count:]
}

// identityHomes returns tmpfs mounts for the homes of identities that have a
// size. The guest makes the directories in them. Programs may run there, since
// npx and uvx install programs below the home.
func (p *Preparation) identityHomes() []harden.Tmpfs {
	if p.Identity.SingleUID || p.Identity.Root {
		return nil
	}
	var list []harden.Tmpfs
	for i, size := range p.Spec.Homes {
		if size > 0 {
			n := i + 1
			gid := sandbox.IdentityBase(p.Identity.CommandUID, p.Identity.CommandGID) + n
			list = append(list, harden.Tmpfs{Path: sandbox.IdentityRoot(n), Bytes: size, Mode: 0o750, GID: gid, Exec: true})
		}
	}
	return list
}

// addMountPoints returns an image with the mount points of the workspace and
// the further mounts. It refuses targets that lead elsewhere. Unless the root
// is writable, it also refuses targets that are missing in a directory of the
// host, where nothing can be made.
func addMountPoints(image *images.RootFS, workspace string, list []sandbox.Mount, writable bool) (*images.RootFS, error) {
	out := *image
	out.Dirs, out.Binds = slices.Clone(image.Dirs), slices.Clone(image.Binds)
	for _, m := range append([]sandbox.Mount{{Target: workspace}}, list...) {
		if m.Target == sandbox.HomeDir || slices.ContainsFunc(list, func(o sandbox.Mount) bool { return isBelow(m.Target, o.Target) }) {
			continue // the image has it, or it is made in the other mount
		}
		if slices.ContainsFunc([]string{"/tmp", "/run"}, func(own string) bool { return isBelow(m.Target, own) }) {
			continue // the runtime makes it in the tmpfs
		}
		err := error(nil)
		if !writable {
			err = addMountPoint(&out, m.Target)
		} else if err = checkInside(images.Bind{Source: image.Dir, Path: "/"}, m.Target); errors.Is(err, os.ErrNotExist) {
			err = nil // the runtime makes it
		}
		if err != nil {
			return nil, &sandbox.MountError{Err: fmt.Errorf("mount at %q: %w: %w", m.Target, sandbox.ErrInvalid, err)}
		}
	}
	return &out, nil
}

func addMountPoint(image *images.RootFS, target string) error {
	// gVisor mounts two things on one directory in any order.
	image.Binds = slices.DeleteFunc(image.Binds, func(b images.Bind) bool { return b.IsDir && b.Path == target })
	for _, b := range image.Binds {
		if isBelow(b.Path, target) {
			return fmt.Errorf("the image mounts %s in it: use a directory of its own", b.Path)
		}
	}
	for _, mask := range image.Masks {
		if mask == target || isBelow(mask, target) || isBelow(target, mask) {
			return fmt.Errorf("%s is hidden: use a directory of its own", mask)
		}
	}
	for at := target; at != "/"; at = path.Dir(at) {
		for _, l := range image.Symlinks {
			if l.Path == at {
				return fmt.Errorf("%s is a symlink to %s in the image: mount at what it leads to", at, l.Target)
			}
		}
		if slices.ContainsFunc(image.Files, func(f images.File) bool { return f.Path == at }) {
			return fmt.Errorf("%s is a file in the image", at)
		}
		if i := slices.IndexFunc(image.Binds, func(b images.Bind) bool { return b.Path == at }); i >= 0 {
			return checkInside(image.Binds[i], target)
		}
	}
	for at := target; at != "/"; at = path.Dir(at) {
		if !slices.ContainsFunc(image.Dirs, func(d images.Dir) bool { return d.Path == at }) {
			image.Dirs = append(image.Dirs, images.Dir{Path: at, Mode: 0o755})
		}
	}
	slices.SortFunc(image.Dirs, func(a, b images.Dir) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// checkInside refuses a target in bind b that does not exist or leads
// elsewhere.
func checkInside(b images.Bind, target string) error {
	at, name := b.Source, b.Path
	rest := strings.TrimPrefix(strings.TrimPrefix(target, b.Path), "/")
	for part := range strings.SplitSeq(rest, "/") {
		at, name = filepath.Join(at, part), path.Join(name, part)
		info, err := os.Lstat(at)
		switch {
		case err != nil:
			return fmt.Errorf("the image has no directory %s (%w), and none can be made in its %s: use a target in the home (%s) or at the top level",
				name, err, b.Path, sandbox.HomeDir)
		case info.Mode().Type() == os.ModeSymlink:
			return fmt.Errorf("%s is a symlink in the image: mount at what it leads to", name)
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory in the image", name)
		}
	}
	return nil
}
