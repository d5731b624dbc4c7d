// Package launch starts a command's process through the spawner and ties it to
// the wait loop: directly if the guest may change identities, otherwise under a
// shim.
package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
)

// Direct makes a command the guest's own child. Its mark is the request's
// group.
type Direct struct {
	Spawner *spawn.Spawner
	Reaper  *reap.Loop
}

// Process is a command's running process.
type Process struct {
	spawn.Child
	// Exit gets its exit, once.
	Exit <-chan reap.Exit
	// Mark distinguishes its processes from others.
	Mark kill.Mark
	// Release releases what is held for the process. Call it when nothing of
	// the command is left.
	Release func()
}

// Launch starts the process. It returns errors as spawn.Spawner does.
func (d Direct) Launch(r spawn.Request) (Process, error) {
	p := Process{Mark: kill.Mark{Group: r.Group}, Release: func() {}}
	var err error
	p.Exit, err = d.startChild(r, &p.Child)
	return p, err
}

// startChild makes the process so that the wait loop can't miss its exit.
func (d Direct) startChild(r spawn.Request, child *spawn.Child) (<-chan reap.Exit, error) {
	return d.Reaper.Start(func() (pid int, err error) {
		*child, err = d.Spawner.Spawn(r)
		return child.PID, err
	})
}

// The shim's descriptors besides the command's 0, 1 and 2.
const (
	shimReport  = 3 // the shim reports on the command
	shimControl = 4 // the shim exits when it ends
)

// ShimWord is the first argument that makes the guest's binary a shim.
const ShimWord = "shim"

// Shimmed runs every command under its own shim, a child subreaper that
// inherits its daemons. It is for containers with one id, where commands can't
// be marked. There they can also kill the shim, and the guest then inherits its
// processes.
type Shimmed struct {
	Direct
	Shims *kill.Shims
	// Executable is the guest's own binary.
	Executable string
}

// shimmed is a shim's report, one JSON value per line: first the pid or the
// error number, then the exit.
type shimmed struct {
	PID    int            `json:"pid,omitempty"`
	Errno  int            `json:"errno,omitempty"`
	Status *uint32        `json:"status,omitempty"`
	Usage  syscall.Rusage `json:"usage,omitzero"`
}

// Launch starts the shim and returns once it has started the command. The mark
// is the shim. If the shim was killed before it reported the command's pid, the
// command counts as killed, with the shim's pid.
func (s Shimmed) Launch(r spawn.Request) (Process, error) {
	program, err := s.Spawner.Find(r)
	if err != nil {
		return Process{}, err
	}
	report, child, err := os.Pipe()
	if err != nil {
		return Process{}, fmt.Errorf("make pipe: %w", err)
	}
	childControl, control, err := os.Pipe()
	if err != nil {
		return Process{}, errors.Join(fmt.Errorf("make pipe: %w", err), report.Close(), child.Close())
	}
	inner := r
	inner.Program, inner.Shimmed = s.Executable, true
	inner.Argv = append([]string{"caisson-guest", ShimWord, program}, r.Argv...)
	inner.Extra = []uintptr{child.Fd(), childControl.Fd()}
	var p Process
	var gone <-chan reap.Exit
	err = s.Shims.Start(func() (pid int, err error) {
		gone, err = s.startChild(inner, &p.Child)
		return p.PID, err
	})
	err = errors.Join(err, child.Close(), childControl.Close())
	if err != nil {
		return Process{}, errors.Join(err, report.Close(), control.Close())
	}
	shim := p.PID
	p.Mark = kill.Mark{Shim: shim}
	p.Release = func() { s.releaseShim(shim, control, gone) }
	lines := json.NewDecoder(io.LimitReader(report, 64<<10))
	var first shimmed
	if err := lines.Decode(&first); err != nil {
		_ = report.Close()
		end := <-gone // it has ended, since the pipe has
		again, exit := make(chan reap.Exit, 1), make(chan reap.Exit, 1)
		again <- end
		exit <- shimmed{}.exit()
		gone, p.Exit = again, exit
		if end.Status.Signaled() { // perhaps by the command, which then runs: the caller kills it
			return p, nil
		}
		p.Close()
		p.Release()
		return Process{}, fmt.Errorf("start shim: it ended with status %d before it started the command", end.Status.ExitStatus())
	}
	if first.Errno != 0 {
		p.Close()
		p.Release()
		_ = report.Close()
		return Process{}, s.Spawner.Explain(r.Argv[0], program, syscall.Errno(first.Errno))
	}
	p.PID = first.PID
	exit := make(chan reap.Exit, 1)
	p.Exit = exit
	go func() {
		defer func() { _ = report.Close() }()
		var last shimmed
		_ = lines.Decode(&last)
		exit <- last.exit()
	}()
	return p, nil
}

// releaseShim lets the shim exit, and makes sure that it does.
func (s Shimmed) releaseShim(shim int, control io.Closer, gone <-chan reap.Exit) {
	_ = control.Close()
	select {
	case <-gone:
	case <-time.After(time.Second):
		_ = unix.Kill(shim, unix.SIGKILL)
		<-gone
	}
	s.Shims.Remove(shim)
}

// exit returns the command's exit. If its shim was killed, the command counts
// as killed, which it will be.
func (s shimmed) exit() reap.Exit {
	e := reap.Exit{Time: time.Now(), Status: unix.WaitStatus(unix.SIGKILL)}
	if s.Status != nil {
		e.Status = unix.WaitStatus(*s.Status)
	}
	e.Usage.Utime = unix.Timeval(s.Usage.Utime)
	e.Usage.Stime = unix.Timeval(s.Usage.Stime)
	e.Usage.Maxrss = s.Usage.Maxrss
	return e
}

// Shim is the shim's main function. Its arguments are the program's path and
// the command's argument vector. It returns an exit status.
func Shim(args []string) int {
	if len(args) < 2 {
		return 2
	}
	if err := identity.SetDumpable(false); err != nil {
		return 2
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 2
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	report := json.NewEncoder(os.NewFile(shimReport, "report"))
	unix.CloseOnExec(shimReport)
	unix.CloseOnExec(shimControl)
	pid, err := syscall.ForkExec(args[0], args[1:], &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: isTerminal(0)},
	})
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			errno = unix.EIO
		}
		_ = report.Encode(shimmed{Errno: int(errno)})
		return 0
	}
	_ = report.Encode(shimmed{PID: pid})
	// The command's streams must end with it, not with the shim.
	for fd := range 3 {
		_ = unix.Close(fd)
	}
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(shimControl, "control"))
		close(over)
	}()
	for {
		select {
		case <-over:
			return 0
		case <-children:
			shimReap(pid, report)
		}
	}
}

// isTerminal reports whether a standard stream is a terminal: the command's, as
// the guest gives no other.
func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// shimReap reaps all ended processes, and reports the command's own exit.
func shimReap(command int, report *json.Encoder) {
	for {
		var status syscall.WaitStatus
		var usage syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &usage)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == command {
			_ = report.Encode(shimmed{Status: new(uint32(status)), Usage: usage})
		}
	}
}
