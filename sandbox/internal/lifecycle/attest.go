package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// observation compares the guest's hello with what was prepared.
type observation struct {
	prep  *Preparation
	hello wire.Hello
	probe bool // the guest tried what commands must not be able to do
}

// describeSandbox returns the parts of the attestation that this process made
// or the guest observed.
func (o *observation) describeSandbox(backend, container string) sandbox.Attestation {
	p := o.prep
	a := guest.Attest(o.hello)
	a.Backend, a.Container = backend, container
	a.Image, a.GuestSHA256 = p.Spec.Image.String(), p.Guest.SHA256
	if p.Image != nil {
		a.ImageDigest = p.Image.Digest
	}
	a.Workspace, a.WorkspaceTarget, a.WorkspaceMode, a.IDMapped = p.Mounts.Path, o.hello.Workspace.Path, string(p.Mounts.Mode), p.Mounts.IDMapped
	a.WorkspaceOwner = fmt.Sprintf("%d:%d", p.Mounts.OwnerUID, p.Mounts.OwnerGID)
	a.UserPolicy = string(cmp.Or(p.Spec.User, sandbox.UserOwner))
	a.Git = string(cmp.Or(p.Spec.Git, sandbox.GitReadOnly))
	a.Mounts = o.listMounts()
	a.Egress = o.describeEgress()
	a.Lost = append(a.Lost, p.Mounts.Lost...)
	if p.Identity.ForeignFiles {
		a.Lost = append(a.Lost, "files that commands of another identity create in directories of the workspace which everyone may write belong to their uid on the host")
	}
	return a
}

// verifySandbox returns every way in which the guest observes less than was
// requested.
func (o *observation) verifySandbox() error {
	if !o.prep.Remote && o.hello.Nonce != o.prep.Files.nonce {
		return fmt.Errorf("%w: %w: the guest does not see the nonce that was written for it: use mode copy, or an engine of this machine", sandbox.ErrUnavailable, ErrNotShared)
	}
	if err := errors.Join(guest.VerifyHardening(o.hello, o.expectedHardening()), o.verifyMounts(), o.verifyEgress()); err != nil {
		return WeakError(err)
	}
	return nil
}

// WeakError returns the error for a container that is weaker than requested.
func WeakError(err error) error {
	return fmt.Errorf("%w: the container is weaker than it must be: %w", sandbox.ErrUnavailable, err)
}

func (o *observation) expectedHardening() guest.Expectation {
	id := o.prep.Identity
	want := guest.Expectation{
		UID: uint32(id.CommandUID), GID: uint32(id.CommandGID), Groups: o.prep.groups(), SingleUID: id.SingleUID, Root: id.Root, Accepted: id.Accepted,
		Filters: 1, Probe: o.probe, WritableRoot: o.prep.Spec.Root == sandbox.RootEphemeral,
	}
	if !IsGVisor(o.hello) { // gVisor has its own namespaces and loads no profile
		want.Filters, want.HostNamespaces = 2, guest.HostNamespaces()
		want.UIDMap, want.GIDMap = id.idMaps()
	}
	for _, b := range o.prep.Mounts.Binds[1:] {
		if o.prep.Mounts.IsInside(b) {
			want.Submounts = append(want.Submounts, b.Target)
		}
	}
	return want
}

// IsGVisor reports whether the guest runs on gVisor's kernel.
func IsGVisor(hello wire.Hello) bool {
	return strings.Contains(strings.ToLower(hello.Kernel), "gvisor")
}

// verifyMounts compares each mount's device and inode with the file that was
// opened. They differ if the engine sees other mounts than this process, or if
// a path was replaced.
func (o *observation) verifyMounts() error {
	m := o.prep.Mounts
	for i, b := range m.Binds {
		if i == 0 && m.Mode == sandbox.ModeCopy {
			if seen := o.hello.Workspace; seen.Type != "tmpfs" {
				return fmt.Errorf("no tmpfs is mounted at %s, but %q", b.Target, seen.Type)
			}
			continue
		}
		if !m.IsInside(b) || i == 0 && m.Volume != nil && IsGVisor(o.hello) {
			continue // not observed; gVisor numbers an overlay's inodes itself
		}
		if len(b.Layers) > 0 {
			if err := o.verifyOverlay(b, o.hello.Workspace); err != nil {
				return err
			}
			continue
		}
		if i == 0 && m.Volume != nil {
			b.Device = o.hello.Workspace.Device // the overlay's own is not known
		}
		if err := o.verifyBind(b, append([]wire.Mount{o.hello.Workspace}, o.hello.Submounts...), i > 0); err != nil {
			return err
		}
	}
	for _, b := range m.Further {
		if len(b.Layers) > 0 {
			if err := o.verifyOverlay(b, mountAt(o.hello.Further, b.Target)); err != nil {
				return err
			}
			continue
		}
		if err := o.verifyBind(b, o.hello.Further, false); err != nil {
			return err
		}
	}
	for _, place := range o.hello.Mounts {
		if place == wire.LayersDir || strings.HasPrefix(place, wire.LayersDir+"/") {
			return fmt.Errorf("a layer is still mounted at %s", place)
		}
	}
	_, tmpfs := o.prep.Tmpfs()
	for _, t := range tmpfs {
		if seen := mountAt(o.hello.Further, t.Path); seen.Type != "tmpfs" {
			return fmt.Errorf("%w: no tmpfs is mounted at %s", ErrNotShared, t.Path)
		}
	}
	return nil
}

// verifyOverlay compares the sources of an overlay that the guest mounted with
// the directories that were opened, by their paths: gVisor numbers inodes itself.
func (o *observation) verifyOverlay(b workmount.Bind, seen wire.Mount) error {
	if seen.Type != "overlay" {
		return fmt.Errorf("no overlay is mounted at %s, but %q", b.Target, seen.Type)
	}
	for _, l := range b.Layers {
		device, inode, err := workmount.FileIdentity(l.Source)
		if err != nil {
			return err
		}
		if device != l.Device || inode != l.Inode {
			return fmt.Errorf("%w: the overlay at %s is not made of the %s that was opened", ErrNotShared, b.Target, l.Source)
		}
	}
	return nil
}

// verifyBind compares a bind with what the guest observes. gVisor numbers
// devices and inodes itself, so there it compares the source's path, unless no
// other process can change that. If the guest may not read the workspace, it
// observes no inodes below it. Staged mounts are then proved by the workspace's
// own mount.
func (o *observation) verifyBind(b workmount.Bind, observed []wire.Mount, inWorkspace bool) error {
	seen := mountAt(observed, b.Target)
	device, inode := seen.Device, seen.Inode
	switch {
	case seen.Type == "":
		return fmt.Errorf("%w: nothing is mounted at %s", ErrNotShared, b.Target)
	case b.ReadOnly && !slices.Contains(seen.Options, "ro"):
		return fmt.Errorf("the mount at %s is writable", b.Target)
	case b.Private && (IsGVisor(o.hello) || inWorkspace && inode == 0):
		return nil
	case IsGVisor(o.hello):
		var err error
		if device, inode, err = workmount.FileIdentity(b.Source); err != nil {
			return err
		}
	}
	if device != b.Device || inode != b.Inode {
		return fmt.Errorf("%w: another file than the one that was opened is mounted at %s (%d:%d, not %d:%d)",
			ErrNotShared, b.Target, device, inode, b.Device, b.Inode)
	}
	return nil
}

// mountAt returns the observed mount at path, or a zero Mount.
func mountAt(list []wire.Mount, path string) wire.Mount {
	for _, m := range list {
		if m.Path == path {
			return m
		}
	}
	return wire.Mount{}
}

// listMounts describes the home and the further mounts, which were just
// verified.
func (o *observation) listMounts() []sandbox.AttestedMount {
	var list []sandbox.AttestedMount
	for _, m := range o.prep.furtherMounts() {
		a := sandbox.AttestedMount{Target: m.Target, Type: m.Type, ReadOnly: m.ReadOnly, Path: m.Path}
		switch m.Type {
		case sandbox.MountTmpfs:
			a.Bytes = mountAt(o.hello.Further, m.Target).Bytes
		case sandbox.MountScratch:
			a.Path, a.Bytes = o.prep.Mounts.ScratchPath(m.Target), m.Bytes
		}
		list = append(list, a)
	}
	return list
}
