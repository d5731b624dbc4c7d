package lifecycle

import (
	"fmt"
	"path"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/service"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Preparation is the input of a container. Its fields are set in this order,
// each group before the [Container] method that it names.
type Preparation struct {
	// Spec, Name and Log are set from the beginning. Name is the container's.
	Spec sandbox.Spec
	Name string
	Log  *zap.Logger
	// Remote reports that the container sees nothing of this machine's file
	// system; see Options.Remote.
	Remote   bool
	LowPorts bool

	// Job is set by NewContainer if the container has no limits of its own, but
	// shares those of the job around this process. Threads is how many threads
	// of the machine it may then use, or 0 if there is no limit. It is set
	// before Plan. Plan and Create lower Spec.Resources to what the job has.
	Job     *admission.Job
	Threads int64
	// OOMKills, if not nil, returns how many processes the kernel killed because
	// memory ran out. NewContainer sets it if the guest can't count them.
	OOMKills func() int64

	// Cleanup is the session's cleanup list. Set before Begin, like Files.
	Cleanup *ownership.CleanupList
	Files   *Files

	// Set before Create. Identity is the commands' identity with Mounts. Image
	// is nil for an image of the engine's own; FetchImage then sets Config, the
	// image's configuration, and Begin sets Account, the image's user if
	// commands run as it. Env is the commands' environment.
	Guest    GuestCopy
	Mounts   *workmount.Mounts
	Identity Identity
	Image    *images.RootFS
	Config   images.Config
	Account  images.UserAccount
	Env      []string

	service *service.Plan // nil if the spec has none
	egress  []images.Bind // names and certificates; one may be a directory
}

// FileBinds returns the files to mount read-only in every container: the guest,
// the nonce, files about processors, and the files of replaceFile and
// AddEgressFiles, one of which is a directory. A remote container has none.
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

// readsThroughGuest reports whether the guest reads the workspace for the host,
// because no process of this machine sees it.
func (p *Preparation) readsThroughGuest() bool {
	m := p.Mounts
	return m.Volume != nil || m.Mode == sandbox.ModeCopy || len(m.Binds) > 0 && len(m.Binds[0].Layers) > 0
}

// layered returns the mounts that the guest makes.
func (p *Preparation) layered() (list []wire.Layered) {
	for _, b := range slices.Concat(p.Mounts.Binds, p.Mounts.Further) {
		switch {
		case b.Place != "":
			list = append(list, wire.Layered{Target: b.Target, Source: b.Place})
		case len(b.Layers) > 0:
			l := wire.Layered{Target: b.Target, Upper: b.Layers[0].Target}
			for _, lower := range b.Layers[1:] {
				l.Lowers = append(l.Lowers, lower.Target)
			}
			list = append(list, l)
		}
	}
	return list
}

// VolumeMounts returns tmpfs mounts for an image's VOLUMEs, except at or in
// further mounts.
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

// Identity is the commands' identity in a container.
type Identity struct {
	CommandUID, CommandGID int
	// SingleUID reports that the guest has the commands' identity too.
	SingleUID bool
	// ForeignFiles reports that files of commands with another identity than 0
	// belong to that uid on the host.
	ForeignFiles bool
	Root         bool
	// Workspace is the identity that the workspace's mounts are made for.
	Workspace workmount.Identity
	// Accepted names the attempts of the guest's probe that may succeed; see
	// guest.Expectation.
	Accepted []string
}

// RootIdentity returns the identity of root commands in a container with a user
// namespace or its own kernel; see workmount.Identity.
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

// idMaps returns the maps of the container's user namespace, or nil.
func (i Identity) idMaps() (uids, gids []wire.IDRange) {
	base := i.Workspace.Base
	if !base.IsNamespace() {
		return nil, nil
	}
	return []wire.IDRange{{Outside: uint32(base.UID), Count: workmount.IDCount}}, []wire.IDRange{{Outside: uint32(base.GID), Count: workmount.IDCount}}
}

// ContainerName returns the name of a session's container.
func ContainerName(session string) string { return "caisson-" + session }
