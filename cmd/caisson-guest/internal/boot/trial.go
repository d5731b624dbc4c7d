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

// smokeTest starts the guest's own binary, the one program that every container
// has, in the same way as commands.
type smokeTest struct {
	executable string // the guest's own
	launcher   serve.Launcher
	killer     *kill.Killer
	gid        uint32
}

func (t smokeTest) launchWord(word string) (launch.Process, error) {
	p, err := t.launcher.Launch(spawn.Request{
		Argv: []string{t.executable, word}, Env: []string{"PATH=" + path.Dir(t.executable)},
		Stdin: true, Group: t.gid,
	})
	if err != nil {
		return p, fmt.Errorf("try a command: %w", err)
	}
	return p, nil
}

// tries is how often observeCommand tries, in case its process is killed from
// outside: by an operator, or the kernel when it is out of memory.
const tries = 3

// probeTime bounds the probe, which makes thirty system calls, and the end of a killed
// process. On a machine with a high load, the latter can take longer than a second.
const probeTime = 10 * time.Second

// errGone means that something other than the guest ended the process.
var errGone = errors.New("it was killed from outside")

// observeCommand starts a command that waits, reads its identity from /proc,
// and kills it as commands are killed. That proves the method on a real process
// in its own session before anything relies on it.
func (t smokeTest) observeCommand() (id wire.Identity, err error) {
	for range tries {
		if id, err = t.lookOnce(); !errors.Is(err, errGone) {
			break
		}
	}
	return id, err
}

func (t smokeTest) lookOnce() (wire.Identity, error) {
	p, err := t.launchWord(probe.IdleWord)
	if err != nil {
		return wire.Identity{}, err
	}
	defer p.Release()
	defer p.Close()
	command, err := identity.Read("/proc/" + strconv.Itoa(p.PID) + "/status")
	if err != nil {
		return wire.Identity{}, fmt.Errorf("observe a command: %w", goneOr(p, err))
	}
	if n := t.killer.Alive(p.Mark); n != 1 {
		return wire.Identity{}, goneOr(p, fmt.Errorf("try kill method %s: it finds %d of 1 process", t.killer.Method(), n))
	}
	var report kill.Report
	t.killer.Kill(p.Mark, &report)
	if report.Left() != 0 {
		return wire.Identity{}, fmt.Errorf("try kill method %s: the process stays", t.killer.Method())
	}
	select {
	case <-p.Exit:
	case <-time.After(probeTime):
		return wire.Identity{}, errors.New("try a command: its end is not seen")
	}
	return command, nil
}

// goneOr returns errGone if the process has ended, or is about to be reported
// as ended, and err otherwise.
func goneOr(p launch.Process, err error) error {
	select {
	case <-p.Exit:
		return errGone
	case <-time.After(time.Second):
		return err
	}
}

// runProbe starts a command that tries what it must not be able to do.
func (t smokeTest) runProbe() (*wire.Probe, error) {
	p, err := t.launchWord(probe.Word)
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
