package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/quarantine"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Executor runs what tools request in the session's sandbox: shell commands and changes of
// files. It is safe for concurrent use.
type Executor struct {
	opts    ExecutorOptions
	sandbox *Sandbox
	spill   *spiller
	// disk ends commands before they fill the host's disk; nil doesn't watch.
	disk       *diskwatch.Watch
	background *backgrounds
	servers    sync.WaitGroup

	mu     sync.Mutex
	shell  string
	killed int
}

// ExecutorOptions configures an [Executor]. All fields but Secrets and Room are required.
type ExecutorOptions struct {
	// Dir is the session's directory. It gets long output, without Secrets.
	Dir     string
	Secrets []redact.Secret
	// Room returns the room for commands on the host's disk; nil is no bound.
	Room func() diskwatch.Room
	// WaitRecorded waits until the workspace is recorded. Nothing may change it before, or if
	// that fails.
	WaitRecorded func(ctx context.Context) error
	// IsFresh reports whether a file is still as the session found it.
	IsFresh func(ctx context.Context, path string) bool
	// AfterCommand is called after each command, and after a change that can make a
	// repository. It returns when ctx ends, even if it is not finished.
	AfterCommand func(ctx context.Context)
	// Images receives files before changes replace them.
	Images           *changes.Preimages
	RecordBackground func(record.BackgroundEnded) error
	// Handles is the largest number of a background handle that earlier processes of the
	// session gave.
	Handles int
	// Offline is set if the agent's commands have no network.
	Offline bool
	Log     *zap.Logger
}

// NewExecutor returns an executor for a session's sandbox.
func NewExecutor(sandbox *Sandbox, o ExecutorOptions) *Executor {
	x := &Executor{opts: o, sandbox: sandbox, spill: newSpiller(o.Dir, o.Secrets)}
	if o.Room != nil {
		x.disk = diskwatch.New(diskwatch.Reserve, o.Room, sandbox.KillCurrent)
	}
	x.background = &backgrounds{x: x, ended: o.RecordBackground, log: o.Log, all: map[string]*background{}}
	sandbox.services = serviceBounds{
		waitRecorded: o.WaitRecorded, redact: x.spill.redact.Text,
		watchDisk: func(ctx context.Context, g *generation) (context.Context, func()) {
			return x.disk.WatchContext(ctx, g.bounds...)
		},
	}
	return x
}

// Background returns the background commands.
func (x *Executor) Background() shell.Background { return x.background }

// EndBackground ends the background commands and the service, and waits for them. None can
// start afterwards.
func (x *Executor) EndBackground() {
	x.background.endAll()
	x.sandbox.endService()
}

// EndRunning ends the background commands so that their changes can be collected, waits for
// them, and returns their number. Others may start afterwards.
func (x *Executor) EndRunning() int { return x.background.endRunning(errCollect) }

// EndRepeating is EndRunning for commands that keep recreating quarantined repositories.
func (x *Executor) EndRepeating() int { return x.background.endRunning(errRepeating) }

// Suspend ends the background commands, suspends the sandbox, and returns the number of
// commands that it ended; see [Sandbox.Suspend].
func (x *Executor) Suspend(ctx context.Context, reason string) (ended int, resume func(), err error) {
	ended = x.background.endRunning(errFork)
	resume, err = x.sandbox.Suspend(ctx, reason)
	return ended, resume, err
}

// Run runs a shell command to its end.
func (x *Executor) Run(ctx context.Context, cmd shell.Command) (shell.Result, error) {
	g, err := x.waitReady(ctx)
	if err != nil {
		return shell.Result{}, err
	}
	program, err := x.shellProgram(ctx, g)
	if err != nil {
		return shell.Result{}, x.sandbox.checkLoss(g, err)
	}
	done := x.sandbox.copy.beginUse()
	defer done()
	command := x.spill.nextCommand()
	stdout := x.spill.newCapture(command, "stdout", cmd.Stdout)
	stderr := x.spill.newCapture(command, "stderr", cmd.Stderr)
	watched, stop := x.disk.WatchContext(ctx, g.bounds...)
	defer stop()
	start := cmd.Command
	start.Argv, start.Stdout, start.Stderr = scriptArgv(program, cmd), stdout, stderr
	refused := x.trackCommand(&start, cmd)
	defer refused(true)
	p, err := g.sandbox.Start(watched, start)
	full, isFull := errors.AsType[*limits.ExceededError](context.Cause(watched))
	if isFull && err != nil { // it ended before it began
		return shell.Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1}, Exceeded: full}}, nil
	}
	if err != nil {
		return shell.Result{}, fmt.Errorf("start command: %w", x.badDir(cmd, x.sandbox.checkLoss(g, err)))
	}
	exit, err := p.Wait()
	done()
	result := shell.Result{Exit: exit, Offline: x.opts.Offline, Stdout: stdout.finishCapture(exit.Stdout), Stderr: stderr.finishCapture(exit.Stderr)}
	blameDisk(watched, &result.Exit)
	result.Refused, result.Allowed = refused(false)
	x.addKilled(result)
	result.Notice = x.sandbox.takeNotice(g)
	if err = x.settle(ctx, g, exit, err); err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return result, fmt.Errorf("run command: %w", err)
	}
	return result, nil
}

// settle handles the end of a command, even a cancelled one: a lost sandbox, processes left
// behind, changes of the workspace. err is the command's error; the result is the call's.
func (x *Executor) settle(ctx context.Context, g *generation, exit sandbox.Exit, err error) error {
	if err != nil {
		err = x.sandbox.checkLoss(g, err)
	} else if left := exit.Kill.Left; left > 0 {
		// The command has its result; only a loss for good fails the call.
		if lost := x.sandbox.retireSandbox(g, left); errors.Is(lost, tools.ErrSandboxLost) {
			err = lost
		}
	}
	if !errors.Is(err, tools.ErrSandboxLost) { // otherwise the session ends
		x.afterCommand(ctx)
	}
	return err
}

// afterCommandWait bounds how long a result waits for AfterCommand.
const afterCommandWait = time.Second

// afterCommand checks the workspace after a command, even a cancelled one.
func (x *Executor) afterCommand(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), afterCommandWait, context.DeadlineExceeded)
	defer cancel()
	x.opts.AfterCommand(ctx)
}

// lookEvery is the time between checks of the workspace during a background program.
const lookEvery = 5 * time.Second

// waitWatched waits for the end of a background program and meanwhile checks the workspace
// as after a command.
func (x *Executor) waitWatched(p sandbox.Process) (sandbox.Exit, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var looks sync.WaitGroup
	looks.Go(func() {
		pause := lookEvery
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			began := time.Now()
			x.opts.AfterCommand(ctx)
			pause = max(lookEvery, 20*time.Since(began)) // at most 5 % of a processor
		}
	})
	defer looks.Wait()
	defer cancel(nil)
	return p.Wait()
}

// trackCommand announces a command to the network, and returns the function that reports its
// refused connections; see [Network].TrackCommand.
func (x *Executor) trackCommand(start *sandbox.Command, cmd shell.Command) func(ended bool) ([]shell.Refused, []string) {
	if x.sandbox.opts.Network == nil {
		return noneRefused
	}
	var refused func(bool) ([]shell.Refused, []string)
	start.NotifyNumber, refused = x.sandbox.opts.Network.TrackCommand(cmd.CallID, cmd.Script)
	return refused
}

func noneRefused(bool) ([]shell.Refused, []string) { return nil, nil }

// RunProgram runs a program to its end, and starts the sandbox if necessary.
func (x *Executor) RunProgram(ctx context.Context, cmd sandbox.Command) (sandbox.Exit, error) {
	g, err := x.waitReady(ctx)
	if err != nil {
		return sandbox.Exit{}, err
	}
	done := x.sandbox.copy.beginUse()
	defer done()
	watched, stop := x.disk.WatchContext(ctx, g.bounds...)
	defer stop()
	p, err := g.sandbox.Start(watched, cmd)
	if err != nil {
		if full := diskFull(watched); full != nil { // it ended before it began
			return sandbox.Exit{}, full
		}
		err = x.sandbox.checkLoss(g, err)
		x.sandbox.tellBack(g)
		return sandbox.Exit{}, err
	}
	exit, err := p.Wait()
	done()
	lost := err != nil
	if err = x.settle(ctx, g, exit, err); lost {
		x.sandbox.tellBack(g)
	}
	if err != nil {
		return exit, err
	}
	if blameDisk(watched, &exit) {
		return exit, diskFull(watched)
	}
	return exit, nil
}

// blameDisk turns a cancellation caused by a full disk into an exceeded limit, and reports
// whether it was one.
func blameDisk(watched context.Context, exit *sandbox.Exit) bool {
	full := diskCause(watched)
	if full == nil || !exit.Status.Cancelled {
		return false
	}
	exit.Status.Cancelled, exit.Exceeded = false, full
	return true
}

func diskFull(watched context.Context) error {
	if full := diskCause(watched); full != nil {
		return fmt.Errorf("the command was stopped: %w", full)
	}
	return nil
}

func diskCause(watched context.Context) *limits.ExceededError {
	full, ok := errors.AsType[*limits.ExceededError](context.Cause(watched))
	if !ok || full.Kind != limits.KindDisk {
		return nil
	}
	return full
}

// badDir turns a refused working directory into an error that the model understands.
func (x *Executor) badDir(cmd shell.Command, err error) error {
	if !errors.Is(err, sandbox.ErrInvalid) || cmd.Dir == "" || cmd.Dir == x.sandbox.opts.Spec.Workspace.MountPoint() {
		return err
	}
	message := fmt.Sprintf("The command did not run: the directory %q does not exist, is no directory, or leads out of the workspace.", cmd.Dir)
	if cmd.NoLinks {
		message = fmt.Sprintf("The command did not run: the directory %q does not exist, is no directory, or goes through a symlink, which an approval does not cover; give its real path.", cmd.Dir)
	}
	return &tools.Error{Class: tools.ErrorExecution, Reason: "cwd", Message: message, Visible: true, Err: err}
}

// Apply makes one change to the workspace. If that can make a repository, it checks the
// workspace as after a command: what git takes for a repository depends on names.
func (x *Executor) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	change, err := x.apply(ctx, op)
	made := change.Created || op.Kind == workspace.OpMkdir || op.Kind == workspace.OpRename
	if made && (quarantine.IsPart(op.Path) || quarantine.IsPart(op.To) || quarantine.IsPart(change.Path)) {
		x.afterCommand(ctx)
	}
	return change, err
}

func (x *Executor) apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	g, err := x.waitReady(ctx)
	if err != nil {
		return workspace.Change{}, err
	}
	defer x.sandbox.copy.beginUse()()
	var fresh, noted bool
	switch op.Kind {
	case workspace.OpWrite, workspace.OpAppend, workspace.OpPatch, workspace.OpDelete:
		noted, fresh = true, x.opts.IsFresh(ctx, op.Path)
	}
	change, err := g.sandbox.Apply(ctx, op)
	if err != nil {
		return change, x.sandbox.checkLoss(g, err)
	}
	if noted {
		x.opts.Images.Note(change, fresh)
	}
	return change, nil
}

// ApplyAnywhere makes one change to the workspace, in a fresh sandbox if it is gone.
func (x *Executor) ApplyAnywhere(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	change, err := x.apply(ctx, op)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Reason == ReplacedReason {
		change, err = x.apply(ctx, op)
	}
	if errors.Is(err, tools.ErrSandboxLost) {
		if err = x.sandbox.startAgain(); err == nil {
			change, err = x.apply(ctx, op)
		}
	}
	return change, err
}

func scriptArgv(program string, cmd shell.Command) []string {
	argv := []string{program, "-c", "--", cmd.Script}
	if len(cmd.Args) > 0 {
		argv = append(append(argv, "caisson"), cmd.Args...) // $0 and $1
	}
	return argv
}

// Output opens the output of a command, even of a running one.
func (x *Executor) Output(handle string) (shell.Kept, error) {
	if k, ok, err := x.background.openOutput(handle); ok {
		return k, err
	}
	return x.spill.Output(handle)
}

// waitReady starts the sandbox if necessary, and waits for it and until the workspace is
// recorded.
func (x *Executor) waitReady(ctx context.Context) (*generation, error) {
	g, err := x.sandbox.waitRunning(ctx)
	if err != nil {
		return nil, err
	}
	if err := x.opts.WaitRecorded(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// shellProgram returns bash if the image has it, else sh. It looks once per session.
func (x *Executor) shellProgram(ctx context.Context, g *generation) (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.shell != "" {
		return x.shell, nil
	}
	p, err := g.sandbox.Start(ctx, sandbox.Command{Argv: []string{"bash", "-c", ":"}, Timeout: 30 * time.Second})
	if err != nil {
		return "", fmt.Errorf("look for bash: %w", err)
	}
	exit, err := p.Wait()
	if err != nil {
		return "", fmt.Errorf("look for bash: %w", err)
	}
	switch {
	case exit.Status.Success():
		x.shell = "bash"
	case ctx.Err() == nil:
		x.shell = "sh"
	default:
		return "", fmt.Errorf("look for bash: %w", context.Cause(ctx))
	}
	return x.shell, nil
}

func (x *Executor) addKilled(r shell.Result) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.killed += r.KilledProcesses()
}

// ProcessesKilled returns the number of processes that had to be killed so far.
func (x *Executor) ProcessesKilled() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.killed
}
