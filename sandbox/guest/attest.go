package guest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Attest returns the parts of an attestation that are observed from inside. The
// backend fills the rest, and replaces limits of 0 by those that it read back
// from the engine or runtime. A capability counts if it is in any of a
// process's five sets.
func Attest(h wire.Hello) sandbox.Attestation {
	a := sandbox.Attestation{
		Kernel:            cleanText(h.Kernel),
		GuestVersion:      cleanText(h.Version),
		User:              userName(h.Command),
		GuestUser:         userName(h.Guest),
		Capabilities:      listCapabilities(allSets(h.Command)),
		GuestCapabilities: listCapabilities(allSets(h.Guest)),
		NoNewPrivileges:   h.Command.NoNewPrivs,
		Seccomp:           seccompMode(h.Command.Seccomp),
		Network:           networkName(h.Interfaces),
		RootReadOnly:      slices.Contains(h.Root.Options, "ro"),
		Namespaces:        slices.Sorted(maps.Keys(h.Namespaces)),
		UIDMap:            formatIDMap(h.UIDMap),
		GIDMap:            formatIDMap(h.GIDMap),
		Identities:        min(max(h.Identities, 1), sandbox.MaxIdentity+1),
		KillMethod:        h.KillMethod,
		Limits: sandbox.AttestedLimits{
			MemoryBytes: knownLimit(h.Limits.MemoryBytes), PIDs: knownLimit(h.Limits.PIDs),
			MilliCPUs: knownLimit(h.Limits.MilliCPUs), OpenFiles: knownLimit(h.Limits.OpenFiles),
		},
	}
	for _, text := range h.Localhost {
		a.Localhost = append(a.Localhost, cleanText(text))
	}
	for _, m := range h.Tmpfs {
		if m.Path == "/tmp" {
			a.Limits.TmpBytes = knownLimit(m.Bytes)
		}
	}
	for _, text := range h.Lost {
		a.Lost = append(a.Lost, cleanText(text))
	}
	return a
}

func userName(id wire.Identity) string { return fmt.Sprintf("%d:%d", id.UID[1], id.GID[1]) }

func formatIDMap(list []wire.IDRange) string {
	var lines []string
	for _, r := range list {
		lines = append(lines, fmt.Sprint(r.Inside, " ", r.Outside, " ", r.Count))
	}
	return strings.Join(lines, ", ")
}

func allSets(id wire.Identity) uint64 {
	return id.Inheritable | id.Permitted | id.Effective | id.Bounding | id.Ambient
}

func seccompMode(mode int) string {
	switch mode {
	case 1:
		return "strict"
	case 2:
		return "filter"
	}
	return "none"
}

// networkName returns "none" if there is only the loopback interface.
func networkName(interfaces []string) string {
	if slices.ContainsFunc(interfaces, func(name string) bool { return name != "lo" }) {
		return cleanText(strings.Join(interfaces, ","))
	}
	return "none"
}

// knownLimit turns "no limit" into "not known": an attestation contains only
// limits that were read.
func knownLimit(n int64) int64 { return max(n, 0) }

// HostNamespaces returns the inodes of the calling process's namespaces, of the
// kinds that every container must have to itself, for [Expectation].
func HostNamespaces() map[string]uint64 {
	out := map[string]uint64{}
	for _, kind := range []string{"ipc", "mnt", "net", "pid", "uts"} {
		link, err := os.Readlink("/proc/self/ns/" + kind) // "pid:[4026531836]"
		if err != nil {
			continue
		}
		_, number, _ := strings.Cut(link, "[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
			out[kind] = n
		}
	}
	return out
}
