package lifecycle

import (
	"fmt"
	"path"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/service"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Preparation is the input of a container. The lifecycle sets its fields
// in this order; a [Container] reads what was set before the method that is
// called.
type Preparation struct {
	// Spec, Name and Log are set from the beginning. Name is the container's.
	Spec sandbox.Spec
	Name string
	Log  *zap.Logger
	// Remote reports that the container has nothing of this machine's file
	// system; see Options.Remote.
	Remote bool
	// LowPorts reports that ports below 1024 need a capability; see
	// Options.LowPorts.
	LowPorts bool

	// Cleanup is the session's cleanup list. Set, as Files, before Begin.
	Cleanup *ownership.CleanupList
	Files   *Files

	// Guest is the guest's binary. Mounts are the workspace's mounts, and
	// Identity is the identity that commands have with them. Image is the root
	// file system, or nil for an image of the engine's own. Config is the image's
	// configuration, which FetchImage sets for such an image, and Account the
	// user in it that commands run as, if they do, which Begin sets then. Env is
	// the environment of commands. Set before Create.
	Guest    GuestCopy
	Mounts   *workmount.Mounts
	Identity Identity
	Image    *images.RootFS
	Config   images.Config
	Account  images.UserAccount
	Env      []string

	service *service.Plan // nil if the spec has none
	egress  []images.Bind // for names and certificates; one may be a directory
}

// FileBinds returns the files that are mounted read-only in every container: the guest,
// the nonce, files about processors, /etc/hosts of an unpacked root file system, and the
// files of AddEgressFiles, one of which is a directory. A remote container has none.
func (p *Preparation) FileBinds() []images.Bind {
	if p.Remote {
		return nil
	}
	list := []images.Bind{{Source: p.Guest.Path, Path: sandbox.GuestPath}, {Source: p.Files.Path(nonceFile), Path: wire.NoncePath}}
	for _, path := range []string{harden.OnlinePath, harden.CPUInfoPath} {
		if source := p.Files.processors[path]; source != "" {
			list = append(list, images.Bind{Source: source, Path: path})
		}
	}
	return append(list, p.egress...)
}

// readsThroughGuest reports whether no process of this machine sees the
// workspace, so that the guest reads it for the host.
func (p *Preparation) readsThroughGuest() bool {
	return p.Mounts.Volume != nil || p.Mounts.Mode == sandbox.ModeCopy
}

// VolumeMounts returns the tmpfs mounts in place of the VOLUMEs that an
// image declares, except at or in a further mount.
func (p *Preparation) VolumeMounts(volumes []string) ([]harden.Tmpfs, error) {
	taken := []string{sandbox.HomeDir}
	own, _ := p.Tmpfs()
	for _, t := range own {
		taken = append(taken, t.Path)
	}
	volumes = slices.DeleteFunc(slices.Clone(volumes), func(v string) bool {
		v = path.Clean("/" + v)
		return slices.ContainsFunc(p.furtherMounts(), func(m sandbox.Mount) bool { return v == m.Target || isBelow(v, m.Target) })
	})
	list, err := harden.VolumeMounts(volumes, taken, p.Spec.Workspace.MountPoint(), p.Identity.CommandUID, p.Identity.CommandGID)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w: %w", p.Spec.Image, sandbox.ErrUnsupported, err)
	}
	return list, nil
}

// Identity is the identity of commands in a container.
type Identity struct {
	// CommandUID and CommandGID are the identity of commands in the container.
	CommandUID, CommandGID int
	// SingleUID reports that the guest has it too.
	SingleUID bool
	// ForeignFiles reports that files which commands of another identity than 0
	// create in the workspace belong to their uid on the host.
	ForeignFiles bool
	// Root reports that commands are root in the container.
	Root bool
	// Workspace is the identity that the workspace's mounts are made for.
	Workspace workmount.Identity
	// Accepted names the attempts of the guest's probe that may succeed; see
	// guest.Expectation.
	Accepted []string
}

// RootIdentity returns the identity of commands that are root in the container,
// which has a user namespace or a kernel of its own; see workmount.Identity.
func RootIdentity(spec sandbox.Spec, base workmount.Base) Identity {
	id := Identity{
		Root: true, Workspace: workmount.Identity{Root: true, Base: base},
		Accepted: []string{"list-guest-descriptors", "setgroups", "setuid-root"},
	}
	if spec.Root == sandbox.RootEphemeral {
		id.Accepted = append(id.Accepted, "write-root")
	}
	return id
}

// idMaps returns the maps of the container's user namespace, nil without one.
func (i Identity) idMaps() (uids, gids []wire.IDRange) {
	base := i.Workspace.Base
	if !base.IsNamespace() {
		return nil, nil
	}
	return []wire.IDRange{{Outside: uint32(base.UID), Count: workmount.IDCount}}, []wire.IDRange{{Outside: uint32(base.GID), Count: workmount.IDCount}}
}

// ContainerName returns the name of a session's container.
func ContainerName(session string) string { return "caisson-" + session }
