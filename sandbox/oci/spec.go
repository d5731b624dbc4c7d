package oci

import (
	"math"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// specVersion is the version in config.json. Runtimes refuse a newer minor
// version than their own. runc 1.1 and our gVisor support what we use of this
// one.
const specVersion = "1.0.2"

type plan struct {
	traits   traits
	identity identity
	image    *images.RootFS
	// volumes are tmpfs mounts that replace the image's VOLUMEs.
	volumes   []harden.Tmpfs
	workspace []workmount.Bind
	resources limits.Resources
	// rootfs is the container's root: the image's skeleton, or the whole image
	// below a writable layer.
	rootfs   string
	writable bool
	// tmpfs are mounted in every container. further and furtherTmpfs are the
	// session's mounts.
	tmpfs        []harden.Tmpfs
	further      []workmount.Bind
	furtherTmpfs []harden.Tmpfs
	// files are bound read-only in every container.
	files []images.Bind
	// cgroup is empty if limits can't be set.
	cgroup cgroupPlan
	// lowPorts gives the guest the capability for ports below 1024.
	lowPorts bool
	// seccomp is empty for a runtime with its own kernel; see
	// docs/design/guest.md#gvisor-loads-no-profile.
	seccomp harden.Seccomp
	// hosted reports that gVisor serves the mounts' sources in our own
	// namespaces. Then it follows no symlink in their paths.
	hosted bool
	// owners maps the owners of the files that don't belong to the session: the
	// root, the image and the files of every container.
	owners workmount.IDMaps
	// oomScore is for every process; see [oomScore].
	oomScore int
	// ceiling returns the host's hard limit of this name, which an ordinary
	// user can't raise, or -1 for none.
	ceiling func(name string) int64
}

// identity says which users and groups the guest and commands have.
type identity struct {
	// guestUID and guestGID are PID 1's identity when it starts.
	guestUID, guestGID     int
	commandUID, commandGID int
	// user is the user namespace's mapping; nil means no user namespace.
	user *idMapping
	// single reports that guest and commands share one ID.
	single bool
	// root reports that commands are root in the container, like the guest.
	root bool
}

func (i identity) hasOneID() bool { return i.user != nil && i.user.size == 1 }

// idMapping maps size IDs in the container, starting at uid and gid, to the
// host's.
type idMapping struct{ uid, gid, hostUID, hostGID, size int }

func (p plan) spec() *specs.Spec {
	s := &specs.Spec{
		Version:  specVersion,
		Hostname: images.Hostname,
		Root:     &specs.Root{Path: p.rootfs, Readonly: !p.writable},
		Process:  p.process(),
		Mounts:   p.listMounts(),
		Linux: &specs.Linux{
			Namespaces:    p.namespaces(),
			Seccomp:       p.seccomp.OCI,
			MaskedPaths:   harden.MaskedPaths(),
			ReadonlyPaths: harden.ReadonlyPaths(),
			Resources:     p.limits(),
			CgroupsPath:   p.cgroup.path,
		},
	}
	if u := p.identity.user; u != nil {
		s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: uint32(u.uid), HostID: uint32(u.hostUID), Size: uint32(u.size)}}
		s.Linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: uint32(u.gid), HostID: uint32(u.hostGID), Size: uint32(u.size)}}
	} else { // for our runsc, which maps the root's owners by them
		s.Linux.UIDMappings, s.Linux.GIDMappings = mappings(p.owners.UIDs), mappings(p.owners.GIDs)
	}
	return s
}

// mapOwner shows the files of uid and gid, who unpacked the image, as root's, or
// as the commands' if they may write to it. Other owners stay.
func (p *plan) mapOwner(uid, gid int, writable bool) {
	show := func(id, inside int) []workmount.IDRange {
		owner := uint32(id)
		return []workmount.IDRange{{Inside: uint32(inside), Host: owner, Size: 1}, {Inside: 0, Host: 0, Size: owner}, {Inside: owner + 1, Host: owner + 1, Size: math.MaxUint32 - owner - 1}}
	}
	var as identity // root
	if writable {
		as = p.identity
	}
	p.owners = workmount.IDMaps{UIDs: show(uid, as.commandUID), GIDs: show(gid, as.commandGID)}
}

func mappings(ranges []workmount.IDRange) (list []specs.LinuxIDMapping) {
	for _, r := range ranges {
		list = append(list, specs.LinuxIDMapping{ContainerID: r.Inside, HostID: r.Host, Size: r.Size})
	}
	return list
}

func (p plan) process() *specs.Process {
	caps := harden.ContainerCapabilities(p.identity.root)
	if p.lowPorts {
		caps = append(caps, "CAP_NET_BIND_SERVICE")
	}
	if p.isLayered() {
		caps = append(caps, harden.LayerCapabilities()...)
	}
	set := &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	if p.identity.guestUID != 0 {
		// Only ambient capabilities survive the exec of a uid other than 0.
		set.Inheritable, set.Ambient = caps, caps
	}
	score := p.oomScore
	return &specs.Process{
		User:            specs.User{UID: uint32(p.identity.guestUID), GID: uint32(p.identity.guestGID)},
		Args:            []string{sandbox.GuestPath},
		Env:             harden.GuestEnv(),
		Cwd:             "/",
		Capabilities:    set,
		Rlimits:         p.rlimits(),
		NoNewPrivileges: true,
		OOMScoreAdj:     &score,
	}
}

func (p plan) namespaces() []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.NetworkNamespace},
		{Type: specs.CgroupNamespace},
	}
	if p.identity.user != nil {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	return list
}

func (p plan) rlimits() []specs.POSIXRlimit {
	var list []specs.POSIXRlimit
	for _, l := range harden.Rlimits(p.resources, p.traits.ownKernel) {
		soft, hard := l.Soft, l.Hard
		if top := p.ceiling(l.Name); top >= 0 {
			soft, hard = min(soft, top), min(hard, top)
		}
		list = append(list, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(l.Name), Soft: uint64(soft), Hard: uint64(hard)})
	}
	return list
}

// limits returns the container's limits, without those of a cgroup if it has
// none.
func (p plan) limits() *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if p.cgroup.path == "" {
		return r
	}
	memory, pids := p.resources.MemoryBytes, harden.HostPIDs(p.resources.PIDs, p.traits.ownKernel)
	quota, period := p.resources.MilliCPUs*cpuPeriod/1000, uint64(cpuPeriod)
	r.Memory = &specs.LinuxMemory{Limit: &memory}
	if p.cgroup.swap {
		r.Memory.Swap = &memory
	}
	r.Pids = &specs.LinuxPids{Limit: &pids}
	r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	return r
}

// cpuPeriod is in microseconds, the kernel's default.
const cpuPeriod = 100_000
