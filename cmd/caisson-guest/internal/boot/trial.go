package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/probe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/serve"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// trial starts the guest's own binary as a command, by the way that commands
// go: it is the one program that every container has.
type trial struct {
	executable string // the guest's own
	launcher   serve.Launcher
	killer     *kill.Killer
	gid        uint32
}

func (t trial) launch(word string) (launch.Process, error) {
	p, err := t.launcher.Launch(spawn.Request{
		Argv: []string{t.executable, word}, Env: []string{"PATH=" + path.Dir(t.executable)},
		Stdin: true, Group: t.gid,
	})
	if err != nil {
		return p, fmt.Errorf("try a command: %w", err)
	}
	return p, nil
}

// tries is how often look begins again because somebody outside, an operator or
// the kernel that is out of memory, killed its process first.
const tries = 3

// errGone says that the process ended although nobody here ended it.
var errGone = errors.New("it was killed from outside")

// look starts a command that waits, reads what it is from /proc, and kills it
// by the method that commands are killed by. So the method is proven on a real
// process in a session of its own before anything relies on it.
func (t trial) look() (id wire.Identity, err error) {
	for range tries {
		if id, err = t.lookOnce(); !errors.Is(err, errGone) {
			break
		}
	}
	return id, err
}

func (t trial) lookOnce() (wire.Identity, error) {
	p, err := t.launch(probe.IdleWord)
	if err != nil {
		return wire.Identity{}, err
	}
	defer p.Release()
	defer p.Close()
	command, err := identity.Read("/proc/" + strconv.Itoa(p.PID) + "/status")
	if err != nil {
		return wire.Identity{}, fmt.Errorf("look at a command: %w", ended(p, err))
	}
	if n := t.killer.Alive(p.Mark); n != 1 {
		return wire.Identity{}, ended(p, fmt.Errorf("try kill method %s: it finds %d of 1 process", t.killer.Method(), n))
	}
	var report kill.Report
	t.killer.Kill(p.Mark, &report)
	if report.Left() != 0 {
		return wire.Identity{}, fmt.Errorf("try kill method %s: the process stays", t.killer.Method())
	}
	select {
	case <-p.Exit:
	case <-time.After(time.Second):
		return wire.Identity{}, errors.New("try a command: its end is not seen")
	}
	return command.Identity, nil
}

// ended is err, or errGone where the process has ended, of which the wait loop
// may be about to tell.
func ended(p launch.Process, err error) error {
	select {
	case <-p.Exit:
		return errGone
	case <-time.After(100 * time.Millisecond):
		return err
	}
}

// probeTime bounds the probe: it makes thirty system calls.
const probeTime = 10 * time.Second

// probe starts a command that tries what it must not be able to do.
func (t trial) probe() (*wire.Probe, error) {
	p, err := t.launch(probe.Word)
	if err != nil {
		return nil, err
	}
	defer p.Release()
	defer p.Close()
	var found wire.Probe
	_ = p.Stdout.SetReadDeadline(time.Now().Add(probeTime))
	err = json.NewDecoder(p.Stdout).Decode(&found)
	t.killer.Kill(p.Mark, new(kill.Report))
	<-p.Exit
	if err != nil {
		return nil, fmt.Errorf("probe as a command: %w", err)
	}
	return &found, nil
}
