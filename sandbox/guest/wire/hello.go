package wire

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Config is the host's first frame: what the guest must know before it changes
// anything about itself.
//
//	{"protocol":4,"command_uid":10001,"command_gid":10001,"gid_base":20000,"gid_count":4096,"workspace":"/workspace",…}
type Config struct {
	Protocol int `json:"protocol"`
	// CommandUID and CommandGID are the commands' identity, not 0 unless Root.
	// Unused with SingleUID: commands then have the guest's identity.
	CommandUID uint32 `json:"command_uid"`
	CommandGID uint32 `json:"command_gid"`
	// Groups are supplementary groups of commands besides their mark, for
	// identity 0 only. Not allowed with SingleUID or Root.
	Groups []uint32 `json:"groups,omitempty"`
	// SingleUID reports that this container has only one id, so guest and
	// commands share it: no separate identities, no supplementary groups. The
	// hello reports that lost protection.
	SingleUID bool `json:"single_uid,omitempty"`
	// Root reports that commands are user and group 0 of the container, like
	// the guest, with [RootCapabilities].
	Root bool `json:"root,omitempty"`
	// GIDBase and GIDCount are the range of supplementary gids of which one
	// marks every process of a command. They must be mapped in the container's
	// user namespace and mean nothing on the host.
	GIDBase  uint32 `json:"gid_base"`
	GIDCount uint32 `json:"gid_count"`
	// A command with identity n, if not 0, has user and group IdentityBase+n.
	// IdentityCount is how many there are. All must be mapped in the
	// container's user namespace. The guest makes their homes in IdentityDir.
	// Unused with SingleUID.
	IdentityBase  uint32 `json:"identity_base"`
	IdentityCount uint32 `json:"identity_count"`
	IdentityDir   string `json:"identity_dir"`
	// Workspace is the workspace's absolute path in the container.
	// HostWorkspace is its path on the host, for paths in operations; it is
	// never opened.
	Workspace     string `json:"workspace"`
	HostWorkspace string `json:"host_workspace,omitempty"`
	// Mounts are the mount points of further directories, which the hello must
	// describe.
	Mounts []string `json:"mounts,omitempty"`
	// Layered are the mounts that the guest makes, in this order, before anything
	// else. What they are made of is mounted below LayersDir, and unmounted then.
	Layered []Layered `json:"layered,omitempty"`
	// MilliCPUs is the container's limit, set by the host. Commands see the number
	// of processors that it amounts to.
	MilliCPUs int64 `json:"milli_cpus"`
	// View reports that the host can't see the workspace and will send read
	// requests, which costs two threads.
	View bool `json:"view,omitempty"`
	// SilenceMS is how many milliseconds the guest waits for a byte from its
	// host before it ends, and the container with it; 0 means forever. It is
	// for connections whose end may never be reported. The host sends a ping in
	// each third of it.
	SilenceMS int64 `json:"silence_ms,omitempty"`
	// Egress are listeners for programs in the container, or nil.
	Egress *Egress `json:"egress,omitempty"`
	// Probe asks for Hello.Probe, which costs the start of another process.
	Probe bool `json:"probe,omitempty"`
}

// RootCapabilities is a bit mask of the capabilities of root commands: CHOWN,
// DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID and NET_BIND_SERVICE. A user
// namespace or the sandbox's own kernel bounds them.
const RootCapabilities uint64 = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7 | 1<<10

// LayersDir is where the runtime mounts what the guest makes Config.Layered of.
// It lies in a tmpfs, so that the guest can remove the mount points.
const LayersDir = "/run/caisson-layers"

// Layered is a mount that the guest makes in a sandbox with its own kernel: of
// Source, or if that is empty, an overlay. Lowers begins with the top one.
type Layered struct {
	Target string   `json:"target"`
	Source string   `json:"source,omitempty"`
	Upper  string   `json:"upper,omitempty"`
	Lowers []string `json:"lowers,omitempty"`
}

// Places returns the paths of what the mount is made of.
func (l Layered) Places() []string {
	if l.Source != "" {
		return []string{l.Source}
	}
	return append([]string{l.Upper}, l.Lowers...)
}

// LayerCapabilities is a bit mask of the capabilities with which the guest makes
// Config.Layered: CHOWN, DAC_OVERRIDE, FOWNER, FSETID and SYS_ADMIN. An overlay
// uses its layers with them. The guest drops those that it needs for nothing
// else.
const LayerCapabilities uint64 = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<21

// Validate returns what is wrong with a configuration.
func (c Config) Validate() error {
	shared := c.SingleUID || c.Root // the guest's identity, without gids that mark commands
	switch {
	case c.Protocol != Version:
		return fmt.Errorf("host speaks protocol %d, guest %d: they must be of one build", c.Protocol, Version)
	case c.SilenceMS < 0:
		return fmt.Errorf("silence of %d ms is negative", c.SilenceMS)
	case !strings.HasPrefix(c.Workspace, "/"):
		return fmt.Errorf("workspace path %q is not absolute", c.Workspace)
	case c.Root && (c.CommandUID != 0 || c.CommandGID != 0):
		return fmt.Errorf("root commands can't be user %d, group %d", c.CommandUID, c.CommandGID)
	case !shared && (c.CommandUID == 0 || c.CommandGID == 0):
		return errors.New("commands must not be user or group 0")
	case !shared && (c.GIDBase == 0 || c.GIDCount == 0 || uint64(c.GIDBase)+uint64(c.GIDCount) > math.MaxInt32):
		return fmt.Errorf("gid range %d+%d is empty or too high", c.GIDBase, c.GIDCount)
	case !shared && c.CommandGID >= c.GIDBase && c.CommandGID-c.GIDBase < c.GIDCount:
		return fmt.Errorf("gid range %d+%d holds the commands' own gid", c.GIDBase, c.GIDCount)
	case shared && len(c.Groups) > 0:
		return fmt.Errorf("commands that share the guest's user can't have the groups %v", c.Groups)
	}
	for _, l := range c.Layered {
		if err := l.validate(); err != nil {
			return err
		}
	}
	for _, g := range c.Groups {
		if g == 0 || g >= c.GIDBase && g-c.GIDBase < c.GIDCount {
			return fmt.Errorf("group %d is root's or marks a command", g)
		}
	}
	if err := c.Egress.validate(); err != nil || c.SingleUID {
		return err
	}
	return c.validateIdentities()
}

// validate returns an error for paths that can't be part of an overlay's options.
func (l Layered) validate() error {
	if l.Source == "" && len(l.Lowers) == 0 {
		return fmt.Errorf("mount at %q is made of nothing", l.Target)
	}
	for _, place := range l.Places() {
		if !strings.HasPrefix(place, LayersDir+"/") || strings.ContainsAny(place, ",:\\") {
			return fmt.Errorf("mount at %q is made of %q, which is not below %s", l.Target, place, LayersDir)
		}
	}
	return nil
}

// validateIdentities returns an error if another identity would be root, the
// agent's commands or the mark of a command.
func (c Config) validateIdentities() error {
	first, last := uint64(c.IdentityBase)+1, uint64(c.IdentityBase)+uint64(c.IdentityCount)
	has := func(id uint32) bool { return uint64(id) >= first && uint64(id) <= last }
	switch {
	case c.IdentityCount == 0:
		return nil
	case last > math.MaxInt32:
		return fmt.Errorf("identity range %d+%d is too high", c.IdentityBase, c.IdentityCount)
	case has(c.CommandUID) || has(c.CommandGID) || slices.ContainsFunc(c.Groups, has):
		return fmt.Errorf("identity range %d+%d holds the commands' own user or group", c.IdentityBase, c.IdentityCount)
	case last >= uint64(c.GIDBase) && first < uint64(c.GIDBase)+uint64(c.GIDCount):
		return fmt.Errorf("identity range %d+%d and gid range %d+%d overlap", c.IdentityBase, c.IdentityCount, c.GIDBase, c.GIDCount)
	case !strings.HasPrefix(c.IdentityDir, "/"):
		return fmt.Errorf("directory of identities %q is not absolute", c.IdentityDir)
	}
	return nil
}

// Hello has the guest's observations of itself, a real command and the
// container. It is untrusted input to the host: it reveals a container that was
// made wrong, not a guest that lies.
type Hello struct {
	// Error is why the guest can't serve. Then only the versions are set.
	Error string `json:"error,omitempty"`

	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the guest's build
	Kernel   string `json:"kernel"`  // /proc/version
	PID      int    `json:"pid"`
	// Guest is the guest's own identity. Command is the identity of a command
	// that was started to observe it.
	Guest   Identity `json:"guest"`
	Command Identity `json:"command"`
	// Identities is the number of identities that commands can have, including
	// 0. The guest has tried the first and the last.
	Identities int `json:"identities"`
	// Dumpable reports whether another process with the guest's uid could trace
	// it.
	Dumpable bool `json:"dumpable"`
	// Namespaces maps a kind (pid, mnt, net, …) to its inode number.
	Namespaces map[string]uint64 `json:"namespaces"`
	// UIDMap and GIDMap are the maps of the guest's user namespace, from
	// /proc/self/uid_map and gid_map. The initial namespace maps all ids to
	// themselves.
	UIDMap []IDRange `json:"uid_map"`
	GIDMap []IDRange `json:"gid_map"`
	Root   Mount     `json:"root"`
	// Workspace is the workspace's mount, Submounts the mounts below it.
	Workspace Mount   `json:"workspace"`
	Submounts []Mount `json:"submounts,omitempty"`
	// Further are the mounts at Config.Mounts, in that order, as a command sees
	// them. One without a type is not mounted.
	Further []Mount `json:"further,omitempty"`
	Tmpfs   []Mount `json:"tmpfs,omitempty"`
	// Mounts are the paths of all mounts.
	Mounts     []string `json:"mounts,omitempty"`
	Limits     Limits   `json:"limits"`
	Interfaces []string `json:"interfaces"`
	// Localhost are the addresses of localhost in /etc/hosts.
	Localhost []string `json:"localhost,omitempty"`
	// KillMethod is how a command's processes are found: "gid" or "subreaper".
	// The guest has tried it on a process that had left its session.
	KillMethod string `json:"kill_method"`
	// Nonce is the content of NoncePath, trimmed, if it exists.
	Nonce string `json:"nonce,omitempty"`
	// Egress has the listeners of Config.Egress, or is nil.
	Egress *EgressHello `json:"egress,omitempty"`
	// Lost describes missing protections, one sentence each.
	Lost []string `json:"lost,omitempty"`
	// Probe lists what a command tried that it must not be able to do; nil
	// unless Config.Probe.
	Probe *Probe `json:"probe,omitempty"`
}

// NoncePath is the file by which the host proves that it shares its file system
// with the container.
const NoncePath = "/.caisson/nonce"

// Identity is a process's credentials, as in /proc/PID/status.
type Identity struct {
	// UID and GID are the real, effective, saved and file system id.
	UID    [4]uint32 `json:"uid"`
	GID    [4]uint32 `json:"gid"`
	Groups []uint32  `json:"groups"`
	// The capability sets as bit masks; bit n is capability n.
	Inheritable uint64 `json:"cap_inh"`
	Permitted   uint64 `json:"cap_prm"`
	Effective   uint64 `json:"cap_eff"`
	Bounding    uint64 `json:"cap_bnd"`
	Ambient     uint64 `json:"cap_amb"`
	NoNewPrivs  bool   `json:"no_new_privs"`
	// Seccomp is the mode; 2 is a filter. Filters is how many, 0 if the kernel
	// does not report it.
	Seccomp int `json:"seccomp"`
	Filters int `json:"seccomp_filters,omitempty"`
}

// IDRange maps Count ids of a user namespace from Inside on to the ids from
// Outside on in the namespace around it.
type IDRange struct {
	Inside  uint32 `json:"inside"`
	Outside uint32 `json:"outside"`
	Count   uint32 `json:"count"`
}

// ParseIDMap parses the content of /proc/PID/uid_map or gid_map. It returns nil
// for any other text.
func ParseIDMap(text string) []IDRange {
	var list []IDRange
	for line := range strings.Lines(text) {
		var r IDRange
		if n, err := fmt.Sscan(line, &r.Inside, &r.Outside, &r.Count); n != 3 || err != nil {
			return nil
		}
		list = append(list, r)
	}
	return list
}

// Mount is a mount of the container.
type Mount struct {
	Path string `json:"path"`
	Type string `json:"type"` // tmpfs, overlay, 9p, …
	// Options are the options of the mount and the file system: ro, nosuid, …
	Options []string `json:"options"`
	// Device and Inode identify the mount's root directory (stat).
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Bytes is the file system's size (statfs), only for tmpfs.
	Bytes int64 `json:"bytes,omitempty"`
}

// Limits are the limits that can be read inside; 0 means "could not be read",
// -1 "none".
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes"`
	PIDs        int64 `json:"pids"`
	MilliCPUs   int64 `json:"milli_cpus"`
	OpenFiles   int64 `json:"open_files"` // RLIMIT_NOFILE, soft, of commands
	CoreBytes   int64 `json:"core_bytes"` // RLIMIT_CORE
	UserPIDs    int64 `json:"user_pids"`  // RLIMIT_NPROC, soft, of commands
}

// Probe has the results of a command's attempts.
type Probe struct {
	// Results maps an attempt, such as "clone3" or "kill-guest", to its
	// outcome: an errno such as "EPERM", or "ok", which is a hole.
	Results map[string]string `json:"results"`
	// Descriptors are the open file descriptors that it got.
	Descriptors []int `json:"descriptors"`
}
