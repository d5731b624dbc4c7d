package guest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Attest fills the parts of an attestation that are observed from inside:
// Kernel, GuestVersion, User, GuestUser, Capabilities, GuestCapabilities,
// NoNewPrivileges, Seccomp, Network, RootReadOnly, Namespaces, Limits,
// KillMethod and Lost. The backend fills the rest, and replaces limits of 0 by
// what it read back from the engine or runtime. A capability counts if it is
// in any of a process's five sets.
func Attest(h wire.Hello) sandbox.Attestation {
	a := sandbox.Attestation{
		Kernel:            clean(h.Kernel),
		GuestVersion:      clean(h.Version),
		User:              user(h.Command),
		GuestUser:         user(h.Guest),
		Capabilities:      capabilities(allSets(h.Command)),
		GuestCapabilities: capabilities(allSets(h.Guest)),
		NoNewPrivileges:   h.Command.NoNewPrivs,
		Seccomp:           seccomp(h.Command.Seccomp),
		Network:           network(h.Interfaces),
		RootReadOnly:      slices.Contains(h.Root.Options, "ro"),
		Namespaces:        slices.Sorted(maps.Keys(h.Namespaces)),
		KillMethod:        h.KillMethod,
		Limits: sandbox.AttestedLimits{
			MemoryBytes: known(h.Limits.MemoryBytes), PIDs: known(h.Limits.PIDs),
			MilliCPUs: known(h.Limits.MilliCPUs), OpenFiles: known(h.Limits.OpenFiles),
		},
	}
	for _, m := range h.Tmpfs {
		if m.Path == "/tmp" {
			a.Limits.TmpBytes = known(m.Bytes)
		}
	}
	for _, text := range h.Lost {
		a.Lost = append(a.Lost, clean(text))
	}
	return a
}

func user(id wire.Identity) string { return fmt.Sprintf("%d:%d", id.UID[1], id.GID[1]) }

func allSets(id wire.Identity) uint64 {
	return id.Inheritable | id.Permitted | id.Effective | id.Bounding | id.Ambient
}

func seccomp(mode int) string {
	switch mode {
	case 1:
		return "strict"
	case 2:
		return "filter"
	}
	return "none"
}

// network is "none" where there is no interface but the loopback.
func network(interfaces []string) string {
	if slices.ContainsFunc(interfaces, func(name string) bool { return name != "lo" }) {
		return clean(strings.Join(interfaces, ","))
	}
	return "none"
}

// known turns "no limit" into "not known": an attestation claims no limit that
// was not read.
func known(n int64) int64 { return max(n, 0) }
