package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// load is something that a hostile session does.
type load struct {
	name      string
	args      []string
	forever   bool
	resources func(*limits.Resources)
	// reported asserts that the result reports the limit that was hit.
	reported func(ctx context.Context, e *env, r result, err error) error
}

// allLoads returns what one session must not be able to do to another.
func allLoads() []load {
	small := func(r *limits.Resources) { r.MemoryBytes, r.TmpBytes = 256<<20, 32<<20 }
	return []load{
		{name: "flood", args: []string{"endless"}, forever: true, reported: toldFlood},
		{name: "fork bomb", args: []string{"storm"}, forever: true, reported: toldForks},
		{name: "memory hog", args: []string{"hog", strconv.Itoa(1 << 30)}, resources: small, reported: toldMemory},
		{name: "disk fill", args: []string{"hold", "/tmp", strconv.Itoa(1 << 30), "fail"}, resources: small, reported: toldFull},
		{name: "descriptors", args: []string{"open-files"}, reported: toldFiles},
		{name: "64 busy processes", args: []string{"busy", "64", "busy"}, forever: true, reported: toldTime},
	}
}

func toldFlood(_ context.Context, _ *env, r result, err error) error {
	if err != nil || !r.Status.TimedOut || r.Stdout.Total <= r.Stdout.Live || r.Stderr.Total <= r.Stderr.Live {
		return errorf("%+v, %w: want a timeout, and counts beyond what was passed on", r.Exit, err)
	}
	return nil
}

func toldForks(_ context.Context, e *env, r result, err error) error {
	// The limit may kill even the first process: a Go program dies if it gets
	// no thread. What it began is then killed after its end.
	ended := r.Status.TimedOut || r.Kill.AfterExit
	if err != nil || !ended || r.Kill.Left != 0 || r.PIDsLimitHit != e.target.countsForks() {
		return errorf("%+v, %w: want a timeout, nothing left, and the pids limit named: %t", r.Exit, err, e.target.countsForks())
	}
	return nil
}

func toldMemory(ctx context.Context, e *env, r result, err error) error {
	if e.target.OwnKernel {
		return expectDeath(ctx, e, err)
	}
	if err != nil || !r.Status.OOMKilled {
		return errorf("%+v, %w: want killed out of memory", r.Exit, err)
	}
	return nil
}

func toldFull(_ context.Context, _ *env, r result, err error) error {
	if err != nil || !slices.Equal(r.Full, []string{"/tmp"}) || !strings.Contains(r.out, "ENOSPC") {
		return errorf("%+v, %q, %w: want ENOSPC, and /tmp named", r.Exit, r.out, err)
	}
	return nil
}

func toldFiles(_ context.Context, _ *env, r result, err error) error {
	if err != nil || !strings.HasSuffix(r.out, " EMFILE\n") {
		return errorf("%+v, %q, %w: want EMFILE", r.Exit, r.out, err)
	}
	return nil
}

func toldTime(_ context.Context, _ *env, r result, err error) error {
	if err != nil || !r.Status.TimedOut || r.Kill.Left != 0 || r.CPU <= 0 {
		return errorf("%+v, %w: want a timeout, nothing left, CPU time told", r.Exit, err)
	}
	return nil
}

const loadTime = 4 * time.Second

// RunNeighbours runs hostile sessions, one after another, beside a session that
// keeps running small commands. These all succeed, and none takes longer than
// slowest. Afterwards the host has as many processes and descriptors as before,
// and its memory back.
func RunNeighbours(t *testing.T, target Target) {
	t.Helper()
	if target.Probe == "" {
		target.Probe = BuildProbe(t)
	}
	neighbour := newEnv(target, t.TempDir())
	if err := neighbour.start(t.Context(), func(r *limits.Resources) { r.MilliCPUs = 1000 }); err != nil {
		t.Fatal(err)
	}
	for _, l := range allLoads() {
		t.Run(l.name, func(t *testing.T) {
			if target.LimitsUnenforced && (l.name == "fork bomb" && !target.OwnKernel || l.name == "memory hog") {
				t.Skip("needs cgroups: without the limit this would be the host's")
			}
			if err := runBeside(t.Context(), neighbour, l, t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
	if err := neighbour.close(t.Context()); err != nil {
		t.Error(err)
	}
}

// slowest bounds a small command of the neighbour, which may slow down under
// load but not stand still. A calm one takes 1 to 10 ms. There is room for
// machines that do other things too.
const slowest = 30 * time.Second

// runBeside runs one load in its own session while the neighbour works.
func runBeside(ctx context.Context, neighbour *env, l load, base string) error {
	before, err := takeStock(base)
	if err != nil {
		return err
	}
	hostile := newEnv(neighbour.target, base)
	if err := hostile.start(ctx, l.resources); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan neighbourly, 1)
	go func() { done <- neighbour.runCommands(working) }()
	cmd := sandbox.Command{Argv: probeArgv(l.args...), Grace: testGrace, Output: sandbox.OutputLimits{Live: 1 << 20}}
	if l.forever {
		cmd.Timeout = loadTime
	}
	r, err := hostile.run(ctx, cmd)
	soon, cancel := context.WithTimeout(ctx, stuckTime)
	err = l.reported(soon, hostile, r, err)
	cancel()
	stop()
	did := <-done
	err = errors.Join(err, did.err)
	if did.commands < 3 || did.slowest > slowest {
		err = errors.Join(err, fmt.Errorf("the neighbour ran %d commands, the slowest took %s", did.commands, did.slowest))
	}
	if most := before.processes + otherProcesses; did.processes > most {
		err = errors.Join(err, fmt.Errorf("the host had %d processes meanwhile, %d before", did.processes, before.processes))
	}
	err = errors.Join(err, hostile.close(ctx))
	return errors.Join(err, before.checkReturned(base))
}

// otherProcesses is how many more processes a host may have with other tests
// running. An unbounded fork bomb makes tens of thousands.
const otherProcesses = 6000

type neighbourly struct {
	commands  int
	slowest   time.Duration
	processes int // most on the host at once
	err       error
}

func (e *env) runCommands(ctx context.Context) (did neighbourly) {
	for ctx.Err() == nil || did.commands < 3 {
		start := time.Now()
		r, err := e.runProbe(context.WithoutCancel(ctx), "exit", "0")
		if err == nil && (!r.Status.Success() || r.PIDsLimitHit || len(r.Full) > 0) {
			err = fmt.Errorf("the neighbour's command: %+v", r.Exit)
		}
		if err != nil {
			did.err = err
			return did
		}
		did.commands++
		did.slowest = max(did.slowest, time.Since(start))
		if n, err := hostProcesses(); err == nil {
			did.processes = max(did.processes, n)
		}
	}
	return did
}

type stock struct {
	processes, descriptors int
	memory, disk           int64
}

func hostProcesses() (int, error) {
	list, err := filepath.Glob("/proc/[0-9]*")
	return len(list), err
}

func takeStock(base string) (stock, error) {
	var s stock
	var err error
	if s.processes, err = hostProcesses(); err != nil {
		return s, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s, err
	}
	s.descriptors = len(files)
	if s.memory, err = residentMemory(); err != nil {
		return s, err
	}
	return s, filepath.Walk(base, func(_ string, info os.FileInfo, err error) error {
		if err == nil {
			s.disk += info.Size()
		}
		return nil
	})
}

// checkReturned asserts that what a session took is returned: only the
// session's own part, because other programs use the host too. Processes,
// mounts and cgroups were checked when it was destroyed.
func (s stock) checkReturned(base string) error {
	now, err := takeStock(base)
	if err != nil {
		return err
	}
	const room = 8 << 20 // the probe in the workspace
	if now.descriptors > s.descriptors+8 || now.memory > s.memory+flatBytes || now.disk > s.disk+room {
		return fmt.Errorf("afterwards the host has %+v, before %+v", now, s)
	}
	return nil
}

func residentMemory() (int64, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int64
	_, err = fmt.Sscan(string(data), &size, &pages)
	return pages * int64(os.Getpagesize()), err
}

// runNaive runs positive controls: a verb of the probe on the host, as the
// suite's user, without isolation. It gets its own namespaces, so that what is
// allowed there does not affect others.
func (e *env) runNaive(ctx context.Context, args ...string) (string, error) {
	return naiveAs(ctx, e, nil, e.target.Probe, args...)
}

// naiveAs is runNaive for any program, and as another user if user is not nil.
func naiveAs(ctx context.Context, e *env, user *syscall.Credential, program string, args ...string) (string, error) {
	attr := &syscall.SysProcAttr{Setsid: true, Credential: user}
	if !e.target.Contained {
		attr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID
	}
	if os.Geteuid() != 0 && !e.target.Contained {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return runOnHost(ctx, e, attr, program, args...)
}

// runPlain is runNaive in the host's own namespaces.
func (e *env) runPlain(ctx context.Context, args ...string) (string, error) {
	return runOnHost(ctx, e, nil, e.target.Probe, args...)
}

func runOnHost(ctx context.Context, e *env, attr *syscall.SysProcAttr, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.SysProcAttr = e.base, attr
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("positive control: %q on the host: %w: %s", args, err, errOut.String())
	}
	return out.String(), nil
}

// control returns the error of a positive control. In a container, where the
// control may be impossible, the error skips the check: call it when the rest of
// the check has passed.
func (e *env) control(err error) error {
	if err != nil && e.target.Contained {
		return skipError("the rest holds, but " + err.Error())
	}
	return err
}

// errSkip means that a check can't be made here; the text has the reason.
var errSkip = errors.New("skipped")

func skipError(why string) error { return fmt.Errorf("%w: %s", errSkip, why) }

var errNone = errors.New("no error")

// errorf is [fmt.Errorf] for errors that may be nil.
func errorf(format string, args ...any) error {
	for i, a := range args {
		if a == nil {
			args[i] = errNone
		}
	}
	return fmt.Errorf(format, args...)
}

// onTerminal runs a verb on the host with a new controlling terminal.
func onTerminal(ctx context.Context, e *env, args ...string) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer master.Close()
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return "", err
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return "", err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer slave.Close()
	cmd := exec.CommandContext(ctx, e.target.Probe, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = slave, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("positive control: %q on a terminal: %w", args, err)
	}
	return out.String(), nil
}
