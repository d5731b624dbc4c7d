package boot

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/apply"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/relay"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/serve"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/warm"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// prepare restricts the guest and its threads, tries on a real process what the
// session relies on, and observes the container. Independent parts run at the
// same time. In gVisor, where system calls cost more, that halves the time
// until the hello.
func prepare(o Options, c wire.Config, null *os.File) (serve.Options, wire.Hello, error) {
	fail := func(err error) (serve.Options, wire.Hello, error) { return serve.Options{}, wire.Hello{}, err }
	if !c.SingleUID {
		if err := identity.BecomeRoot(); err != nil {
			return fail(fmt.Errorf("be another user than commands: %w", err))
		}
	}
	if err := mountLayered(c); err != nil {
		return fail(err)
	}
	if err := forbidCores(); err != nil {
		return fail(fmt.Errorf("forbid core files: %w", err))
	}
	if c.Root || c.SingleUID {
		if err := ignoreSignals(); err != nil {
			return fail(fmt.Errorf("ignore signals: %w", err))
		}
	}
	p := preparation{o: o, c: c, null: null, session: serve.Options{Config: c, Reaper: reap.New(), Executable: o.Executable}}
	if err := p.listen(); err != nil {
		return fail(err)
	}
	go p.session.Reaper.Run()
	var all sync.WaitGroup
	var errs [3]error
	for i, part := range []func() error{p.makeCommands, p.makeAppliers, p.observe} {
		all.Go(func() { errs[i] = part() })
	}
	all.Go(func() { warm.Up(warm.Threads) })
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return fail(err)
	}
	// After the changes of effective ids, which reset it, and before a command
	// looks at the guest.
	if err := identity.SetDumpable(false); err != nil {
		return fail(err)
	}
	if c.Root {
		if err := p.protectGuest(); err != nil {
			return fail(fmt.Errorf("protect guest: %w", err))
		}
	}
	h := p.hello()
	if c.Probe {
		var err error
		if h.Probe, err = p.newTrial().runProbe(); err != nil {
			return fail(err)
		}
	}
	return p.session, h, nil
}

// preparation has the results of prepare's parts. Each part sets its own
// fields.
type preparation struct {
	o       Options
	c       wire.Config
	null    *os.File
	session serve.Options
	seen    wire.Hello

	spawner   *spawn.Spawner
	command   wire.Identity
	submounts []wire.Mount
	further   []wire.Mount
}

// listen opens the listeners before programs start, and while all threads still
// have the same capabilities.
func (p *preparation) listen() (err error) {
	e := p.c.Egress
	if e == nil {
		return nil
	}
	if p.session.Listeners, err = relay.Listen(*e); err != nil {
		return err
	}
	if !e.LowPorts {
		return nil
	}
	if err := identity.DropCapability(unix.CAP_NET_BIND_SERVICE); err != nil {
		return fmt.Errorf("drop the capability of low ports: %w", err)
	}
	return nil
}

// sharesUser reports whether commands have the guest's user.
func (p *preparation) sharesUser() bool { return p.c.SingleUID || p.c.Root }

func (p *preparation) commands() identity.Commands {
	return identity.Commands{
		UID: p.c.CommandUID, GID: p.c.CommandGID, Groups: p.c.Groups, Separate: !p.sharesUser(), Root: p.c.Root,
	}
}

// protectGuest keeps root commands from signalling the guest by the ids of its
// threads, all of which exist by now. Linux drops signals to PID 1 without a
// handler; gVisor does not.
func (p *preparation) protectGuest() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	last := os.Getpid()
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			last = max(last, id)
		}
	}
	return p.spawner.ProtectGuest(last)
}

// makeCommands makes what starts and ends commands, and tests it.
func (p *preparation) makeCommands() error {
	spawner, err := spawn.New(spawn.Options{
		Commands: p.commands(), IdentityBase: p.c.IdentityBase, IdentityCount: p.c.IdentityCount, IdentityDir: p.c.IdentityDir,
		Workspace: p.c.Workspace, Null: p.null, MilliCPUs: p.c.MilliCPUs,
	})
	if err != nil {
		return fmt.Errorf("prepare commands: %w", err)
	}
	p.spawner, p.session.Identities = spawner, spawner.Identities()
	direct := launch.Direct{Spawner: spawner, Reaper: p.session.Reaper}
	p.session.Launcher, p.session.Killer = direct, kill.New(kill.MethodGroup, p.session.Reaper, nil)
	if p.sharesUser() {
		shims := kill.NewShims()
		p.session.Killer = kill.New(kill.MethodSubreaper, p.session.Reaper, shims)
		// In a writable root, commands of the same user could replace the path.
		p.session.Launcher = launch.Shimmed{Direct: direct, Shims: shims, Executable: "/proc/self/exe"}
	}
	p.command, err = p.newTrial().observeCommand()
	return err
}

func (p *preparation) newTrial() smokeTest {
	return smokeTest{executable: p.o.Executable, launcher: p.session.Launcher, killer: p.session.Killer, gid: p.c.GIDBase}
}

// transferThreads bounds concurrent file transfers. Others wait.
const transferThreads = 4

// makeAppliers makes what changes and reads the workspace.
func (p *preparation) makeAppliers() error {
	o := apply.Options{Commands: p.commands(), Workspace: p.c.Workspace, HostWorkspace: p.c.HostWorkspace}
	appliers, err := apply.New(o)
	if err != nil {
		return fmt.Errorf("prepare changes: %w", err)
	}
	p.session.Appliers = appliers
	p.session.Transfers, err = identity.NewPool(o.Commands, transferThreads)
	if err != nil {
		return fmt.Errorf("prepare transfers: %w", err)
	}
	if p.c.View {
		if p.session.Readers, err = apply.NewReaders(o); err != nil {
			return fmt.Errorf("prepare reads: %w", err)
		}
	}
	return nil
}

func (p *preparation) observe() error {
	if err := p.observeMounts(); err != nil {
		return err
	}
	p.session.OOM, p.session.PIDs = observe.OpenCounters()
	p.session.Volumes = observe.OpenVolumes(p.c.IdentityDir)
	p.seen = observe.Container(p.c.Workspace)
	return nil
}

func (p *preparation) hello() wire.Hello {
	h := p.seen
	h.Version, h.Dumpable = p.o.Version, identity.Dumpable()
	h.Submounts, h.Further, h.Command = p.submounts, p.further, p.command
	h.Identities = p.session.Identities
	h.KillMethod = p.session.Killer.Method()
	if p.session.Listeners != nil {
		h.Egress = &p.session.Listeners.Hello
	}
	h.Lost = append(h.Lost, p.spawner.Lost()...)
	if p.c.SingleUID {
		h.Lost = append(h.Lost, "guest and commands share one user: a command can signal the guest's shims and escape its own kill",
			"commands have one identity: this container has no users for others")
	}
	return h
}

// observeMounts observes the mounts below the workspace and the further mounts
// as a command would. The thread may take that identity because no command runs
// yet.
func (p *preparation) observeMounts() error {
	if p.sharesUser() {
		p.submounts, p.further = observe.Directories(p.c.Workspace, p.c.Mounts)
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := identity.SetEffective(p.c.CommandUID, p.c.CommandGID); err != nil {
		return fmt.Errorf("observe the workspace as a command: %w", err)
	}
	p.submounts, p.further = observe.Directories(p.c.Workspace, p.c.Mounts)
	if err := identity.Restore(0, 0); err != nil {
		return fmt.Errorf("observe the workspace as a command: %w", err)
	}
	return nil
}
