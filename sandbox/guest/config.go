package guest

import (
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// The range of supplementary gids that mark commands, unless a backend's user
// namespace maps another: above what distributions give out, below 65536, so
// that the usual range of one namespace holds it.
const (
	DefaultGIDBase  = 30000
	DefaultGIDCount = 20000
)

// NewConfig makes the guest's configuration from a spec: the identity and
// paths of the contract, the spec's limits and times, the default gid range.
// A backend changes what differs (CommandUID, SingleUID, the gid range).
func NewConfig(spec sandbox.Spec) wire.Config {
	grace := spec.Grace
	if grace == 0 {
		grace = sandbox.DefaultGrace
	}
	return wire.Config{
		Protocol:      wire.Version,
		CommandUID:    sandbox.CommandUID,
		CommandGID:    sandbox.CommandGID,
		GIDBase:       DefaultGIDBase,
		GIDCount:      DefaultGIDCount,
		Workspace:     sandbox.WorkspaceDir,
		HostWorkspace: spec.Workspace.Path,
		Timeout:       spec.Resources.CommandTime,
		Grace:         grace,
		MemoryBytes:   spec.Resources.MemoryBytes,
		PIDs:          spec.Resources.PIDs,
	}
}
