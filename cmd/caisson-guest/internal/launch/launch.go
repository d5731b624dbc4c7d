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

// Process is a command's process, which runs.
type Process struct {
	spawn.Child
	// Exit gets its exit, once.
	Exit <-chan reap.Exit
	// Mark tells its processes from others.
	Mark kill.Mark
	// Release releases what is held for the process; call it when nothing of
	// the command is left.
	Release func()
}

// Launch starts the process. It fails as spawn.Spawner does.
func (d Direct) Launch(r spawn.Request) (Process, error) {
	p := Process{Mark: kill.Mark{Group: r.Group}, Release: func() {}}
	var err error
	p.Exit, err = d.startChild(r, &p.Child)
	return p, err
}

// startChild makes the process while the wait loop can't miss its exit.
func (d Direct) startChild(r spawn.Request, child *spawn.Child) (<-chan reap.Exit, error) {
	return d.Reaper.Start(func() (pid int, err error) {
		*child, err = d.Spawner.Spawn(r)
		return child.PID, err
	})
}
