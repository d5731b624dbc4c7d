package boot

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/apply"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/serve"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// prepare restricts the guest and its threads, tries on a real process what
// the session relies on, and observes the container.
func prepare(o Options, c wire.Config, null *os.File) (serve.Options, wire.Hello, error) {
	if !c.SingleUID {
		if err := identity.BecomeRoot(); err != nil {
			return serve.Options{}, wire.Hello{}, fmt.Errorf("be another user than commands: %w", err)
		}
	}
	// A core pattern that is a pipe runs on the host.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return serve.Options{}, wire.Hello{}, fmt.Errorf("forbid core files: %w", err)
	}
	reaper := reap.New()
	go reaper.Run()
	spawner, err := spawn.New(spawn.Options{
		UID: c.CommandUID, GID: c.CommandGID, Separate: !c.SingleUID,
		Workspace: c.Workspace, Null: null, MilliCPUs: c.MilliCPUs,
	})
	if err != nil {
		return serve.Options{}, wire.Hello{}, fmt.Errorf("prepare commands: %w", err)
	}
	appliers, err := apply.New(apply.Options{
		UID: c.CommandUID, GID: c.CommandGID, Separate: !c.SingleUID,
		Workspace: c.Workspace, HostWorkspace: c.HostWorkspace,
	})
	if err != nil {
		return serve.Options{}, wire.Hello{}, fmt.Errorf("prepare changes: %w", err)
	}
	var readers *apply.Readers
	if c.View {
		readers, err = apply.NewReaders(apply.Options{UID: c.CommandUID, GID: c.CommandGID, Separate: !c.SingleUID, Workspace: c.Workspace})
		if err != nil {
			return serve.Options{}, wire.Hello{}, fmt.Errorf("prepare reads: %w", err)
		}
	}
	submounts, err := below(c)
	if err != nil {
		return serve.Options{}, wire.Hello{}, err
	}
	// Last, because every change of an effective id resets it.
	if err := identity.SetDumpable(false); err != nil {
		return serve.Options{}, wire.Hello{}, err
	}
	s := serve.Options{
		Config: c, Appliers: appliers, Readers: readers, OOM: observe.OpenOOM(), PIDs: observe.OpenPIDs(),
		Volumes: observe.OpenVolumes(), Reaper: reaper,
	}
	direct := launch.Direct{Spawner: spawner, Reaper: reaper}
	s.Launcher, s.Killer = direct, kill.New(kill.MethodGroup, reaper, nil)
	if c.SingleUID {
		shims := kill.NewShims()
		s.Killer = kill.New(kill.MethodSubreaper, reaper, shims)
		s.Launcher = launch.Shimmed{Direct: direct, Shims: shims, Executable: o.Executable}
	}
	h := observe.Container(c.Workspace)
	h.Submounts = submounts
	h.Version, h.KillMethod = o.Version, s.Killer.Method()
	h.OOMCounter, h.PIDsCounter = s.OOM.Path(), s.PIDs.Path()
	h.Lost = append(h.Lost, spawner.Lost()...)
	if c.SingleUID {
		h.Lost = append(h.Lost, "guest and commands share one user: a command can signal the guest's shims and escape its own kill")
	}
	t := trial{o: o, s: s, gid: c.GIDBase}
	if h.Command, err = t.look(); err != nil {
		return serve.Options{}, wire.Hello{}, err
	}
	if c.Probe {
		if h.Probe, err = t.probe(); err != nil {
			return serve.Options{}, wire.Hello{}, err
		}
	}
	return s, h, nil
}

// below looks at the mounts below the workspace as a command would. No command
// runs yet, so that the thread may lend itself.
func below(c wire.Config) ([]wire.Mount, error) {
	if c.SingleUID {
		return observe.Below(c.Workspace), nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := identity.SetEffective(c.CommandUID, c.CommandGID); err != nil {
		return nil, fmt.Errorf("look at the workspace as a command: %w", err)
	}
	mounts := observe.Below(c.Workspace)
	if err := identity.Restore(0, 0); err != nil {
		return nil, fmt.Errorf("look at the workspace as a command: %w", err)
	}
	return mounts, nil
}
