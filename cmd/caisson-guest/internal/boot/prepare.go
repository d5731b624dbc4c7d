package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/apply"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/probe"
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
		UID: c.CommandUID, GID: c.CommandGID, Separate: !c.SingleUID, Workspace: c.Workspace,
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
	submounts, err := below(c)
	if err != nil {
		return serve.Options{}, wire.Hello{}, err
	}
	// Last, because every change of an effective id resets it.
	if err := identity.SetDumpable(false); err != nil {
		return serve.Options{}, wire.Hello{}, err
	}
	s := serve.Options{
		Config: c, Reaper: reaper, Appliers: appliers, OOM: observe.OpenOOM(), Null: null,
	}
	direct := launch.Direct{Spawner: spawner, Reaper: reaper}
	s.Launcher, s.Killer = direct, kill.New(kill.MethodGroup, nil)
	if c.SingleUID {
		shims := kill.NewShims()
		s.Killer = kill.New(kill.MethodSubreaper, shims)
		s.Launcher = launch.Shimmed{Direct: direct, Shims: shims, Executable: o.Executable}
	}
	h := observe.Container(c.Workspace)
	h.Submounts = submounts
	h.Version, h.KillMethod, h.OOMCounter = o.Version, s.Killer.Method(), s.OOM.Path()
	h.Lost = append(h.Lost, spawner.Lost()...)
	if c.SingleUID {
		h.Lost = append(h.Lost, "guest and commands share one user: a command can signal the guest's shims and escape its own kill")
	}
	t := trial{o: o, s: s, null: null, gid: c.GIDBase}
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

// trial starts the guest's own binary as a command, by the way that commands
// go: it is the one program that every container has.
type trial struct {
	o    Options
	s    serve.Options
	null *os.File
	gid  uint32
}

// look starts a command that waits, reads what it is from /proc, and kills it
// by the method that commands are killed by. So the method is proven on a real
// process in a session of its own before anything relies on it.
func (t trial) look() (wire.Identity, error) {
	stdin, hold, err := os.Pipe()
	if err != nil {
		return wire.Identity{}, fmt.Errorf("make pipe: %w", err)
	}
	defer hold.Close()
	mark := kill.Mark{Group: t.gid}
	pid, exit, release, err := t.s.Launcher.Launch(spawn.Request{
		Argv: []string{t.o.Executable, probe.IdleWord}, Env: []string{"PATH=" + path.Dir(t.o.Executable)},
		Files: []uintptr{stdin.Fd(), t.null.Fd(), t.null.Fd()}, Group: t.gid,
	}, &mark)
	_ = stdin.Close()
	if err != nil {
		return wire.Identity{}, fmt.Errorf("try a command: %w", err)
	}
	defer release()
	p, err := identity.Read("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return wire.Identity{}, fmt.Errorf("look at a command: %w", err)
	}
	if n := t.s.Killer.Alive(mark); n != 1 {
		return wire.Identity{}, fmt.Errorf("try kill method %s: it finds %d of 1 process", t.s.Killer.Method(), n)
	}
	var report kill.Report
	t.s.Killer.Kill(mark, &report)
	if report.Left() != 0 {
		return wire.Identity{}, fmt.Errorf("try kill method %s: the process stays", t.s.Killer.Method())
	}
	select {
	case <-exit:
	case <-time.After(time.Second):
		return wire.Identity{}, errors.New("try a command: its end is not seen")
	}
	return p.Identity, nil
}

// probe starts a command that tries what it must not be able to do.
func (t trial) probe() (*wire.Probe, error) {
	report, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer report.Close()
	mark := kill.Mark{Group: t.gid}
	_, exit, release, err := t.s.Launcher.Launch(spawn.Request{
		Argv: []string{t.o.Executable, probe.Word}, Env: []string{"PATH=" + path.Dir(t.o.Executable)},
		Files: []uintptr{t.null.Fd(), out.Fd(), t.null.Fd()}, Group: t.gid,
	}, &mark)
	_ = out.Close()
	if err != nil {
		return nil, fmt.Errorf("probe as a command: %w", err)
	}
	defer release()
	var p wire.Probe
	_ = report.SetReadDeadline(time.Now().Add(probeTime))
	err = json.NewDecoder(report).Decode(&p)
	t.s.Killer.Kill(mark, new(kill.Report))
	<-exit
	if err != nil {
		return nil, fmt.Errorf("probe as a command: %w", err)
	}
	return &p, nil
}

// probeTime bounds the probe: it makes thirty system calls.
const probeTime = 10 * time.Second
