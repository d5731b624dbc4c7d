// Package launch starts a command's process by way of the spawner and ties it
// to the wait loop: directly where the guest may change identities, under a
// shim where it may not.
package launch

import (
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
)

// Direct makes a command the guest's own child. Its mark is the group that the
// request names.
type Direct struct {
	Spawner *spawn.Spawner
	Reaper  *reap.Loop
}

// Launch starts the process. The channel gets its exit; release is called when
// nothing of the command is left.
func (d Direct) Launch(r spawn.Request, _ *kill.Mark) (int, <-chan reap.Exit, func(), error) {
	pid, exit, err := d.Reaper.Start(func() (int, error) { return d.Spawner.Spawn(r) })
	return pid, exit, func() {}, err
}
