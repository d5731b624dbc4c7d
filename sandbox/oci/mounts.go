package oci

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// listMounts returns the container's mounts in order: the kernel's file
// systems, tmpfs, the image, the files of every container, the home, the
// workspace, and the further mounts, parents first.
func (p plan) listMounts() []specs.Mount {
	list := p.kernelMounts()
	for _, t := range p.tmpfs {
		list = append(list, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: p.tmpfsOptions(t)})
	}
	for _, b := range p.imageBinds() {
		// gVisor mounts two things on the same directory in any order.
		if !slices.ContainsFunc(p.volumes, func(t harden.Tmpfs) bool { return t.Path == b.Path }) {
			list = append(list, p.imageBind(b))
		}
	}
	for _, m := range p.image.Masks {
		list = append(list, specs.Mount{
			Destination: m, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"ro", "nosuid", "nodev", "noexec", "size=4096", "mode=0555"},
		})
	}
	for _, t := range p.volumes {
		list = append(list, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: p.tmpfsOptions(t)})
	}
	for _, f := range p.files {
		list = append(list, mapped(bind(p.resolve(f.Source), f.Path, "ro"), p.owners))
	}
	further := p.furtherMounts()
	i := slices.IndexFunc(further, func(m specs.Mount) bool { return m.Destination == sandbox.HomeDir })
	if i >= 0 {
		list = append(list, further[i])
		further = slices.Delete(further, i, i+1)
	}
	for _, b := range p.workspace {
		list = append(list, p.mountsOf(b)...)
	}
	return append(list, further...)
}

func (p plan) furtherMounts() []specs.Mount {
	var list []specs.Mount
	for _, b := range p.further {
		list = append(list, p.mountsOf(b)...)
	}
	for _, t := range p.furtherTmpfs {
		list = append(list, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: p.tmpfsOptions(t)})
	}
	slices.SortStableFunc(list, func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) })
	return list
}

// imageBinds returns the image's binds. A writable root contains them already.
func (p plan) imageBinds() []images.Bind {
	if p.writable {
		return nil
	}
	return p.image.Binds
}

// imageBind mounts a part of the image. In a user namespace the kernel refuses
// to bind a directory without the mounts below it, so they are bound too,
// read-only. In gVisor's kernel they are part of one read-only mount.
func (p plan) imageBind(b images.Bind) specs.Mount {
	m := bind(p.resolve(b.Source), b.Path, "ro")
	if p.traits.ownKernel || p.identity.user != nil {
		m.Options[0] = "rbind"
	}
	if !p.traits.ownKernel && p.identity.user != nil {
		m.Options = append(m.Options, "rro", "rnosuid", "rnodev")
	}
	if p.hosted {
		// Without directfs each lookup asks the file server, so let gVisor's kernel
		// cache the image, which doesn't change.
		m.Options = append(m.Options, "file-access=exclusive")
	}
	if p.image.Reference.Scheme == images.SchemeHost {
		return m
	}
	return mapped(m, p.owners)
}

// mapped adds ID maps of the owners of the mount's files. Only our runsc applies
// them without ID-mapped mounts.
func mapped(m specs.Mount, owners workmount.IDMaps) specs.Mount {
	m.UIDMappings, m.GIDMappings = mappings(owners.UIDs), mappings(owners.GIDs)
	return m
}

// resolve returns a source without symlinks if gVisor's file server must open it,
// which follows none. Commands can't change these paths.
func (p plan) resolve(source string) string {
	if !p.hosted {
		return source
	}
	if real, err := filepath.EvalSymlinks(source); err == nil {
		return real
	}
	return source // the start will report it
}

// layerOption tells our runsc that a mount has whiteouts (hostns.IsLayer).
const layerOption = "caisson.layer"

// mountsOf returns a bind, the layers of an overlay that the guest mounts, or
// nothing for a copy, which has a tmpfs.
func (p plan) mountsOf(b workmount.Bind) (list []specs.Mount) {
	for i, l := range b.Layers {
		m := p.bindOf(l)
		if i < len(b.Layers)-1 {
			m.Options = append(m.Options, layerOption)
		}
		list = append(list, m)
	}
	if b.Source != "" {
		b.Target = cmp.Or(b.Place, b.Target)
		list = append(list, p.bindOf(b))
	}
	return list
}

// isLayered reports whether the guest must mount something.
func (p plan) isLayered() bool {
	return slices.ContainsFunc(slices.Concat(p.workspace, p.further), func(b workmount.Bind) bool { return len(b.Layers) > 0 })
}

func (p plan) bindOf(b workmount.Bind) specs.Mount {
	if b.Private {
		b.Source = p.resolve(b.Source)
	}
	access := "rw"
	if b.ReadOnly {
		access = "ro"
	}
	return mapped(bind(b.Source, b.Target, access), b.Maps)
}

// bind mounts one directory or file, without the mounts inside it.
func bind(source, target, access string) specs.Mount {
	return specs.Mount{
		Destination: target, Type: "bind", Source: source,
		Options: []string{"bind", "private", access, "nosuid", "nodev"},
	}
}

func (p plan) kernelMounts() []specs.Mount {
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if !p.identity.hasOneID() {
		pts = append(pts, "gid=5") // not mapped if there is only one ID
	}
	dev := []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536"}
	if p.identity.single || p.identity.root {
		dev = append(dev, "ro") // commands have its owner's ID
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: slices.Concat([]string{"nosuid", "nodev", "noexec"}, p.traits.procOptions)},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: dev},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	if p.traits.cgroupMount && p.cgroup.isLimited() {
		list = append(list, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "ro"},
		})
	}
	return list
}

// tmpfsOptions omits options that the runtime does not accept, and owners that
// a user namespace with one ID can't name.
func (p plan) tmpfsOptions(t harden.Tmpfs) []string {
	return slices.DeleteFunc(t.Options(), func(o string) bool {
		switch {
		case strings.HasPrefix(o, "nr_inodes="):
			return !p.traits.inodes
		case strings.HasPrefix(o, "uid="), strings.HasPrefix(o, "gid="):
			return p.identity.hasOneID() && !p.traits.ownKernel
		}
		return false
	})
}
