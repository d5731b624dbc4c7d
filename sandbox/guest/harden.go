package guest

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Expectation describes what a container must look like from inside. The zero
// value is the strictest.
type Expectation struct {
	// UID and GID are the commands' identity; zero means the sandbox package's.
	UID, GID uint32
	// Groups are the commands' supplementary groups besides their mark.
	Groups []uint32
	// SingleUID accepts that guest and commands share one id.
	SingleUID bool
	// Root requires that commands are root in the container, with at most
	// wire.RootCapabilities.
	Root bool
	// Submounts names the expected mounts below the workspace, as absolute
	// container paths.
	Submounts []string
	// Filters is the least number of seccomp filters on a command, if the
	// kernel reports it: 2 with a profile of the runtime, otherwise 1; zero
	// means 1.
	Filters int
	// HostNamespaces, from the function of this name, are namespaces that the
	// container must not be in; nil accepts any.
	HostNamespaces map[string]uint64
	// UIDMap and GIDMap are the required maps of the container's user
	// namespace; nil accepts any.
	UIDMap, GIDMap []wire.IDRange
	// Accepted names attempts of the probe that may succeed, because the
	// backend knows that they do no harm or has attested the loss.
	Accepted []string
	// Probe requires that a command probed its limits (wire.Config.Probe).
	Probe bool
	// WritableRoot requires a root that is not read-only.
	WritableRoot bool
}

// VerifyHardening returns every way in which the container is weaker than it
// must be, joined, each wrapping sandbox.ErrUnavailable. A backend then
// destroys the container.
func VerifyHardening(h wire.Hello, want Expectation) error {
	if want.UID == 0 && !want.Root {
		want.UID = sandbox.CommandUID
	}
	if want.GID == 0 && !want.Root {
		want.GID = sandbox.CommandGID
	}
	v := &violations{}
	v.checkCommand(h.Command, want)
	v.checkGuest(h, want)
	v.checkMounts(h, want)
	v.checkNamespaces(h, want)
	v.checkIDMaps(h, want)
	v.checkProbe(h.Probe, want)
	return errors.Join(v.list...)
}

type violations struct{ list []error }

func (v *violations) add(bad bool, format string, args ...any) {
	if bad {
		text := cleanText(fmt.Sprintf(format, args...))
		v.list = append(v.list, fmt.Errorf("verify container: %w: %s", sandbox.ErrUnavailable, text))
	}
}

func (v *violations) checkCommand(id wire.Identity, want Expectation) {
	allowed, shared := uint64(0), want.SingleUID || want.Root
	if want.Root {
		allowed = wire.RootCapabilities
	}
	for i, kind := range []string{"real", "effective", "saved", "file system"} {
		v.add(id.UID[i] != want.UID && !want.SingleUID, "a command's %s uid is %d, not %d", kind, id.UID[i], want.UID)
		v.add(id.GID[i] != want.GID && !want.SingleUID, "a command's %s gid is %d, not %d", kind, id.GID[i], want.GID)
	}
	others := slices.DeleteFunc(slices.Clone(id.Groups), func(g uint32) bool { return slices.Contains(want.Groups, g) })
	v.add(len(others) > 1 && !want.SingleUID, "a command has the groups %v, not only its mark and %v", id.Groups, want.Groups)
	for _, g := range want.Groups {
		v.add(!slices.Contains(id.Groups, g), "a command is not in group %d", g)
	}
	v.add(slices.Contains(id.Groups, 0) && !shared, "a command is in group 0")
	excess := allSets(id) &^ allowed
	v.add(excess != 0, "a command has capabilities: %v", listCapabilities(excess))
	v.add(!id.NoNewPrivs, "a command may gain privileges: no_new_privs is not set")
	v.add(id.Seccomp != 2, "a command runs without a seccomp filter (mode %d)", id.Seccomp)
	v.add(id.Filters != 0 && id.Filters < max(want.Filters, 1), "a command has %d seccomp filters, not %d", id.Filters, max(want.Filters, 1))
}

func (v *violations) checkGuest(h wire.Hello, want Expectation) {
	v.add(h.PID != 1, "the guest is PID %d, not 1", h.PID)
	v.add(h.Dumpable, "the guest can be traced by its own user")
	v.add(!h.Guest.NoNewPrivs, "the guest may gain privileges: no_new_privs is not set")
	needed, shared := uint64(guestCapabilities), want.SingleUID || want.Root
	if want.Root {
		needed |= wire.RootCapabilities // for commands
	}
	excess := allSets(h.Guest) &^ needed
	v.add(excess != 0, "the guest has capabilities that it doesn't need: %v", listCapabilities(excess))
	v.add(!shared && h.Guest.UID[0] == h.Command.UID[0], "guest and commands are the same user %d", h.Guest.UID[0])
	methods := []string{"gid"}
	if shared {
		methods = append(methods, "subreaper")
	}
	v.add(!slices.Contains(methods, h.KillMethod), "commands are killed by method %q", h.KillMethod)
	v.add(h.Limits.CoreBytes < 0 || h.Limits.CoreBytes > 1, "core files are allowed: a core pattern may run a program on the host")
}

func (v *violations) checkMounts(h wire.Hello, want Expectation) {
	readOnly := slices.Contains(h.Root.Options, "ro")
	v.add(!want.WritableRoot && !readOnly, "the root file system is writable")
	v.add(want.WritableRoot && readOnly, "the root file system is read-only")
	v.add(h.Workspace.Type == "", "the workspace is not a mount of its own")
	for _, m := range h.Submounts {
		v.add(!slices.Contains(want.Submounts, m.Path), "%s is mounted inside the workspace", m.Path)
	}
	for _, path := range h.Mounts {
		v.add(path == "/run/docker.sock" || path == "/var/run/docker.sock", "the engine's socket is mounted at %s", path)
	}
}

func (v *violations) checkNamespaces(h wire.Hello, want Expectation) {
	v.add(networkName(h.Interfaces) != "none", "there are network interfaces beside the loopback: %v", h.Interfaces)
	for _, kind := range slices.Sorted(maps.Keys(want.HostNamespaces)) {
		inode, ok := h.Namespaces[kind]
		v.add(!ok || inode == want.HostNamespaces[kind], "the %s namespace is the host's, or unknown", kind)
	}
}

// ErrUserNamespace means that a container has another user namespace than was
// asked for.
var ErrUserNamespace = errors.New("its user namespace is another one")

// checkIDMaps checks the user namespace. Root of a container on the host's
// kernel must never be the host's root.
func (v *violations) checkIDMaps(h wire.Hello, want Expectation) {
	for name, m := range map[string]struct{ got, want []wire.IDRange }{"uids": {h.UIDMap, want.UIDMap}, "gids": {h.GIDMap, want.GIDMap}} {
		if m.want != nil && !slices.Equal(m.got, m.want) {
			v.list = append(v.list, fmt.Errorf("verify container: %w: %w: it maps the %s %q, not %q",
				sandbox.ErrUnavailable, ErrUserNamespace, name, formatIDMap(m.got), formatIDMap(m.want)))
		}
		isHost := len(m.got) == 0 || slices.ContainsFunc(m.got, func(r wire.IDRange) bool { return r.Outside == 0 })
		v.add(want.Root && want.HostNamespaces != nil && isHost, "its root would be root of the machine: its user namespace maps the %s %q", name, formatIDMap(m.got))
	}
}

// refusals are the answers that a probe may get.
var refusals = [...]string{"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EROFS", "ENOENT", "ESRCH"}

func (v *violations) checkProbe(p *wire.Probe, want Expectation) {
	if p == nil {
		v.add(want.Probe, "no command probed what it may do, though that was asked for")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.Results)) {
		refused := slices.Contains(refusals[:], p.Results[name])
		v.add(!refused && !slices.Contains(want.Accepted, name), "a command's attempt at %s was not refused but answered with %q", name, p.Results[name])
	}
	v.add(len(p.Results) == 0, "the probe tried nothing")
	v.add(!slices.Equal(p.Descriptors, []int{0, 1, 2}), "a command has the descriptors %v, not 0, 1 and 2", p.Descriptors)
}

// capabilityNames are Linux's capabilities by number (include/uapi/linux/capability.h, 6.12).
var capabilityNames = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// The capabilities that the guest needs, as bits.
const guestCapabilities = 1<<5 | 1<<6 | 1<<7 | 1<<8 // KILL, SETGID, SETUID, SETPCAP

// listCapabilities returns the names of the set's bits, in order. It is never
// nil, so that JSON distinguishes "none" from "unknown".
func listCapabilities(set uint64) []string {
	out := []string{}
	for ; set != 0; set &= set - 1 {
		n := bits.TrailingZeros64(set)
		name := fmt.Sprintf("CAP_%d", n)
		if n < len(capabilityNames) {
			name = capabilityNames[n]
		}
		out = append(out, name)
	}
	return out
}
