package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/term"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/agents"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Exit statuses of commands that pass on the exit status of the command they run.
const (
	exitTimedOut  = 124
	exitOwn       = 125 // a failure of Caisson
	exitNoProgram = 127 // no such program, as reported by the guest or a shell
)

const execStatusHelp = `
The exit status is the command's own, or 128 plus the number of the signal that ended it. A command may
end with one of these numbers itself, which is passed on as it is:
`

// execExits are the exit statuses of a command that passes on another's.
var execExits = statuses{
	exitDone: "", exitUsage: "", exitTimedOut: "the command's time was over", exitOwn: "a failure of Caisson, also a wrong flag; the reason is on standard error",
	126: "the program can't be executed", exitNoProgram: "there is no such program", exitInterrupted: "interrupted (129: hang-up, 143: terminated)",
}

// agentExits are execExits of commands that run agents too.
func agentExits() statuses {
	all := maps.Clone(execExits)
	all[exitLimit] = "with --agent, a limit was reached"
	return all
}

const execLong = `Run one command in a fresh sandbox, and remove the sandbox.

The sandbox is that of caisson run: the workspace, no network, and the mounts, caches, variables and
limits of the configuration. The policy does not apply, because you order the command yourself. Caisson
records it in a session of its own (caisson trace show). -i passes standard input on; output appears as
it is written.
` + terminalHelp + `
With --agent, the arguments are an instruction for one of the agents of caisson agents ls, which runs
in the sandbox instead of a command. It asks its model through Caisson, which has the key and holds the
limits; --model, --max-tokens and --max-cost-usd work as for caisson run, but without a model the agent
asks the default one of its protocol. It may run for an hour, unless --timeout or its definition says
otherwise. Policy and approvals don't apply to what it does.

Ctrl-C cancels a command that doesn't get it: SIGTERM to everything that it started, SIGKILL after the
grace period. A second Ctrl-C kills the sandbox.
`

const terminalHelp = `
-t gives the command a terminal with the size of yours. With -i -t, it gets every key, Ctrl-C too, and
may run for a day if --timeout isn't set. That needs a terminal on standard input; -t alone only shows
output, with both streams on standard output. The command gets TERM and COLORTERM from your environment.
`

const sandboxExecLong = `Run a command in a live sandbox of another Caisson process of this user.

ID is a session of caisson sandbox ls, the beginning of one, "last" for the newest of them, or a
container's name. The process that owns the session runs the command, as the same user and with the
same limits as the agent's own commands, and records it in the session. -i passes standard input on;
output appears as it is written.
` + terminalHelp + `
Ctrl-C cancels a command that doesn't get it: SIGTERM to everything that it started, SIGKILL after the
grace period. A second Ctrl-C ends this program without waiting for that. A command ends with its session.

With --detach-keys, the command on the terminal doesn't end with this program: the keys, SIGTERM and a
closed window leave it running. caisson sandbox attach goes back to it.
`

// maxTaskText bounds the command in its session's task. The records have all of it.
const maxTaskText = 500

// commandFlags are the flags of all commands that run one in a sandbox.
type commandFlags struct {
	Dir     string        `flag:"dir,C" doc:"working directory in the container, at or below the workspace's path"`
	Timeout time.Duration `flag:"timeout" doc:"wall time of the command (default: command_time of the configuration, or a day for one that gets what is typed)"`
}

// execFlags are the flags of both commands that run a program in a sandbox.
type execFlags struct {
	commandFlags
	Stdin bool `flag:"stdin,i" doc:"pass standard input on"`
	TTY   bool `flag:"tty,t" doc:"give the command a terminal"`
}

// interactiveTime is the default time of a command that a person types into.
const interactiveTime = 24 * time.Hour

// check refuses flags that don't fit together. It sets the default time of a command that
// a person types into.
func (f *execFlags) check(a *app) error {
	if f.Timeout < 0 {
		return newUsageError("--timeout %s is negative", f.Timeout)
	}
	if f.TTY && f.Stdin {
		if !a.terminal(a.stdin) {
			return newFailure(exitOwn, nil, "standard input is not a terminal", "-i without -t passes it on.")
		}
		f.Timeout = cmp.Or(f.Timeout, interactiveTime)
	}
	return nil
}

// ownFlagErrors makes a command end with 125 for a wrong flag. Flags after the first
// argument belong to the command that it runs.
func ownFlagErrors(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return ownFailure(&usageError{suggestFlag(cmd, err)}) })
	return cmd
}

// connect connects a command with this program's streams. It calls begin before each read
// and write, and cancel if output can't be written. Configured variables replace the
// terminal's.
func (f *execFlags) connect(a *app, c runner.UserCommand, configured map[string]string, begin func(), cancel context.CancelCauseFunc) runner.UserCommand {
	c.Stdout, c.Stderr = &cancellingWriter{to: a.stdout, begin: begin, cancel: cancel}, &cancellingWriter{to: a.stderr, begin: begin, cancel: cancel}
	c.Timeout = cmp.Or(f.Timeout, c.Timeout)
	c.Dir = f.Dir
	if f.Stdin && c.Stdin == nil {
		c.Stdin = beginningReader{a.stdin, begin}
	}
	if f.TTY {
		c.Env = append(withoutConfigured(terminalVariables(a.environ), configured), c.Env...)
	}
	return c
}

// beginningReader calls begin before each read.
type beginningReader struct {
	from  io.Reader
	begin func()
}

func (r beginningReader) Read(p []byte) (int, error) {
	r.begin()
	return r.from.Read(p)
}

// cancellingWriter calls cancel at the first write error, and drops the output after
// it.
type cancellingWriter struct {
	to     io.Writer
	begin  func()
	cancel context.CancelCauseFunc
	broken bool
}

func (w *cancellingWriter) Write(p []byte) (int, error) {
	if w.broken {
		return len(p), nil
	}
	w.begin()
	_, err := w.to.Write(p)
	switch {
	case errors.Is(err, syscall.EPIPE):
		w.cancel(&runner.Interrupted{Signal: sigpipe})
	case err != nil:
		w.cancel(fmt.Errorf("the command's output can't be written: %w", err))
	}
	w.broken = err != nil
	return len(p), nil
}

// ownFailure returns err as a failure of Caisson, not of the command that it runs. It
// returns an exitError unchanged.
func ownFailure(err error) error {
	if err == nil || errors.As(err, new(*exitError)) {
		return err
	}
	e := *describeError(err)
	e.Status = exitOwn
	if errors.As(err, new(*usageError)) && !as[*pflag.InvalidValueError](err) {
		e.Hint = "--help describes it."
	}
	return &e
}

func newExecCommand(a *app) *cobra.Command {
	var f struct {
		Agent          string `flag:"agent" doc:"run this agent; the arguments are its instruction"`
		workspaceFlags `groups:"Sandbox,Files and user,model,max-tokens,max-cost-usd"`
		execFlags
	}
	return ownFlagErrors(newCommand(&cobra.Command{
		Use: "exec [flags] [--] COMMAND [ARGUMENT...]", Short: "Run one command, or another agent, in a fresh sandbox", Long: execLong + execStatusHelp,
		Example: `  caisson exec -- make test
  caisson exec --image debian:bookworm-slim -- cat /etc/os-release
  caisson exec --image node:24 -e CI=1 -v ~/data:/data:ro -w /app -- npm test
  caisson exec --mode overlay --timeout 10m -- ./configure && caisson diff
  tar c src | caisson exec -i -C /workspace/copy -- tar x
  caisson exec --agent claude --max-tokens 2000000 -- "make the failing test pass"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			task := "caisson exec " + strings.Join(args, " ")
			if f.Agent != "" {
				task = strings.Join(args, " ")
			}
			e := execution{execFlags: f.execFlags, workspace: f.workspaceFlags, agent: f.Agent, task: task, argv: args}
			return ownFailure(e.run(cmd.Context(), a))
		},
	}, &f, 0, agentExits()))
}

// shellScript replaces itself by the first of its arguments that the image has.
const shellScript = `for shell do command -v "$shell" >/dev/null && exec "$shell"; done; exec sh`

func newShellCommand(a *app) *cobra.Command {
	var f struct {
		Agent          string `flag:"agent" doc:"open this agent's screen instead of a shell"`
		workspaceFlags `groups:"Sandbox,Files and user,model,max-tokens,max-cost-usd"`
		commandFlags
	}
	cmd := newCommand(&cobra.Command{
		Use: "shell [flags]", Short: "Open a shell, or another agent, in a fresh sandbox", Args: noArgs,
		Long: `Open a shell in a fresh sandbox, and remove the sandbox at its end.

It is caisson exec -i -t with your shell ($SHELL) if the image has it at that path, otherwise bash or sh.
With --agent, one of the agents of caisson agents ls begins on the terminal instead. It asks its model
through Caisson, as with caisson exec --agent.
` + execStatusHelp,
		Example: `  caisson shell
  caisson shell --image node:24 --mode overlay && caisson diff
  caisson shell --agent claude --max-tokens 5000000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e := execution{execFlags: execFlags{f.commandFlags, true, true}, workspace: f.workspaceFlags, agent: f.Agent, task: "caisson shell"}
			if e.agent == "" {
				e.argv = []string{"sh", "-c", shellScript, "caisson"}
				if own := a.environ.get("SHELL"); own != "" {
					e.argv = append(e.argv, own)
				}
				e.argv = append(e.argv, "bash")
			}
			return ownFailure(e.run(cmd.Context(), a))
		},
	}, &f, 0, agentExits())
	return ownFlagErrors(cmd)
}

// execution is what caisson exec and shell run in a fresh sandbox.
type execution struct {
	execFlags
	workspace workspaceFlags
	// agent is an agent's name, or "" for a command. task describes the session.
	agent, task string
	// argv is the command, or the words of the agent's instruction. Without any, the
	// agent has a terminal.
	argv []string
}

// run runs it, and returns the error for its exit status.
func (f *execution) run(ctx context.Context, a *app) error {
	if err := f.checkArguments(a); err != nil {
		return err
	}
	s, err := openSessionBuilder(a, f.workspace)
	if err != nil {
		return err
	}
	defer s.close()
	s.orders = true
	u := newInterface(a, false)
	ctx, force, cancel, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	session, commands, err := f.open(ctx, s, u, force)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	local, terminal := f.openTerminal(a)
	defer local.close()
	// From the first byte on, the terminal belongs to the command.
	begin := sync.OnceFunc(func() {
		_ = u.out.Drain(ctx) // the rest comes later
		u.render.Close()
		if local.typed {
			u.out.Queue(0, func() { <-local.over })
		}
		local.begin()
	})
	last := len(commands) - 1
	commands[last] = f.connect(a, commands[last], s.conf.Env, begin, cancel)
	if terminal != nil {
		commands[last].Terminal, commands[last].Stdout = terminal, local.watch(commands[last].Stdout)
	}
	result, err := execAll(ctx, session, commands)
	local.close()
	r := session.Close()
	u.showEnd(ctx, r)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	if r.Reason == loop.StopLimit {
		u.reportEnd(r)
		return exitWith(exitLimit)
	}
	status, err := endOfCommand(ctx, a, result, "--memory gives it more, up to the limit of a container job around it.")
	if image, err := images.ParseLocalReference(*s.conf.Image); err == nil && status == exitNoProgram {
		for _, text := range s.absentWarnings(ctx, image) {
			a.warn(text)
		}
	}
	if text := ui.PresetAdvice(result.NeedsPreset); text != "" {
		a.warn(text)
	}
	if status == exitDone && err == nil && r.ExitStatus != exitDone {
		u.reportEnd(r)
		status = exitOwn
	}
	return cmp.Or(err, exitWith(status))
}

// execAll runs commands of which all but the last prepare the sandbox. It returns the
// result of the last one.
func execAll(ctx context.Context, session *runner.Session, commands []runner.UserCommand) (result runner.UserResult, err error) {
	for i, c := range commands {
		result, err = session.Exec(ctx, c)
		switch {
		case err != nil:
			return result, err
		case i < len(commands)-1 && !result.Status.Success() && ctx.Err() == nil:
			return result, newFailure(exitOwn, nil, "the files of the agent can't be written: "+result.Status.String(), "Check agents and resources.home in the configuration.")
		}
	}
	return result, nil
}

// checkArguments refuses arguments and flags that have no effect together.
func (f *execution) checkArguments(a *app) error {
	agent, limits := f.agent != "", f.workspace.Settings.Limits
	switch {
	case len(f.argv) == 0 && !agent:
		return newUsageError("caisson exec needs a command")
	case len(f.argv) == 0 && !(f.TTY && f.Stdin):
		return newUsageError("caisson exec --agent needs an instruction; caisson shell --agent opens the agent on the terminal")
	case len(f.argv) > 0 && agent && (f.Stdin || f.TTY):
		return newUsageError("--stdin and --tty have no effect with an instruction; caisson shell --agent opens the agent on the terminal")
	case !agent && (f.workspace.Settings.Model != nil || limits.Tokens != nil || limits.Cost != nil):
		return newUsageError("--model and limits of tokens and cost need --agent: a command asks no model")
	}
	return f.check(a)
}

// open opens the session, and returns its commands: the user's, or an agent's with the
// one before it that writes its files.
func (f *execution) open(ctx context.Context, s *sessionBuilder, u *userInterface, force <-chan struct{}) (*runner.Session, []runner.UserCommand, error) {
	task := tools.Elide(f.task, maxTaskText)
	if f.agent == "" {
		session, err := s.openWithoutModel(ctx, u, force, task, nil)
		return session, []runner.UserCommand{{Argv: f.argv}}, err
	}
	r, err := s.findAgent(ctx, &s.conf, f.agent, s.workspace.Path)
	if err != nil {
		return nil, nil, err
	}
	o, err := s.agentOptions(ctx, r, task, u)
	if err != nil {
		return nil, nil, err
	}
	commands, err := r.commands(agents.Run{
		Instruction: strings.Join(f.argv, " "), Interactive: len(f.argv) == 0, Workspace: sandbox.Workspace{Target: o.Target}.MountPoint(),
	})
	if err != nil {
		return nil, nil, err
	}
	last := &commands[len(commands)-1]
	last.Env = append(s.gitIdentity(ctx), last.Env...)
	u.observe(&o, force, r.QuietHosts...)
	session, err := runner.Open(ctx, o)
	return session, commands, err
}

// openWithoutModel opens a session for calls and commands of the user. It makes no
// diffs in bind mode. Closing force ends the session at once. change, which may be nil,
// may change its options.
func (s *sessionBuilder) openWithoutModel(ctx context.Context, u *userInterface, force <-chan struct{}, task string, change func(*runner.Options)) (*runner.Session, error) {
	o, err := s.modelessOptions(ctx, task, u)
	if err != nil {
		return nil, err
	}
	u.observe(&o, force)
	if change != nil {
		change(&o)
	}
	return runner.Open(ctx, o)
}

// observe makes a session show only its start and warnings, but no refusals of quiet hosts.
func (u *userInterface) observe(o *runner.Options, force <-chan struct{}, quiet ...string) {
	u.attach(o, force)
	o.NoDiffs = true
	o.Mirror = func(r record.Record, _ []byte) {
		if r.Kind == record.KindSessionCreated || isWarning(r) && !isRefusalOf(r, quiet) {
			u.out.Queue(len(r.Payload), func() { u.render.RecordWarning(r) })
		}
	}
}

// isRefusalOf reports whether a record is a refused connection to one of the hosts.
func isRefusalOf(r record.Record, hosts []string) bool {
	if r.Kind != record.KindNetworkDenied {
		return false
	}
	host, _, _ := strings.Cut(record.PayloadOf[record.NetworkDenied](r).Host, ":")
	return slices.Contains(hosts, host)
}

func newSandboxExecCommand(a *app) *cobra.Command {
	var f struct {
		execFlags
		DetachKeys string `flag:"detach-keys" doc:"keys that leave the command running (see attach), such as ctrl-p,ctrl-q; needs -i and -t"`
	}
	return ownFlagErrors(newCommand(&cobra.Command{
		Use: "exec [flags] ID [--] COMMAND [ARGUMENT...]", Short: "Run a command in a live sandbox", Long: sandboxExecLong + execStatusHelp,
		Example: `  caisson sandbox exec ses_01J… -- ps aux
  caisson sandbox exec last -- ls -l /tmp
  caisson sandbox exec ses_01J… sh -c 'ls -l /workspace | head'
  echo data | caisson sandbox exec -i ses_01J… -- sh -c 'cat >copy'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return ownFailure(execInLive(cmd.Context(), a, f.execFlags, f.DetachKeys, args))
		},
	}, &f, 0, execExits))
}

func execInLive(ctx context.Context, a *app, f execFlags, detachKeys string, args []string) error {
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	if len(args) < 2 {
		return newUsageError("caisson sandbox exec needs a session and a command")
	}
	if detachKeys != "" && !(f.TTY && f.Stdin) {
		return newUsageError("--detach-keys needs -i and -t: only a command on a terminal can be left")
	}
	return f.runInLive(ctx, a, args[0], detachKeys, func(ctx context.Context, stateDir, session string, c runner.UserCommand) (runner.UserResult, error) {
		c.Argv, c.Detachable = args[1:], detachKeys != ""
		return runner.RunUserCommand(ctx, stateDir, session, c)
	})
}

// runInLive calls run with a live session and this program's streams. The detach keys, if
// any, end run's context.
func (f *execFlags) runInLive(ctx context.Context, a *app, id, detachKeys string, run func(ctx context.Context, stateDir, session string, c runner.UserCommand) (runner.UserResult, error)) error {
	keys, err := parseDetachKeys(detachKeys)
	if err != nil {
		return err
	}
	if err := f.check(a); err != nil {
		return err
	}
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	session, err := bs.findSession(ctx, id)
	if err != nil {
		return err
	}
	notices := []string{"cancelling the command; once more to end without waiting", "leaving; the command is being ended"}
	if keys != nil {
		notices = nil
	}
	local, terminal := f.openTerminal(a)
	defer local.close()
	say := func(string) {
		if len(notices) > 0 {
			local.say(notices[0])
			notices = notices[1:]
		}
	}
	ctx, abandon, cancel, stop := a.handleInterrupts(ctx, say)
	defer stop()
	command := f.connect(a, runner.UserCommand{}, nil, sync.OnceFunc(local.begin), cancel)
	command.Abandon = abandon
	if terminal != nil {
		command.Terminal, command.Stdout = terminal, local.watch(command.Stdout)
	}
	if keys != nil {
		command.Stdin = detachingReader{term.NewEscapeProxy(command.Stdin, keys), func() { cancel(errDetached) }}
	}
	r, err := run(ctx, bs.environ.stateDir(), session, command)
	local.close()
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	if r.Detached {
		return reportDetached(ctx, a, session)
	}
	status, err := endOfCommand(ctx, a, r, "Its session was started with too little: see --memory there.")
	return cmp.Or(err, exitWith(status))
}

// endOfCommand returns a command's exit status, or why it was cancelled. It prints what
// no status can tell. moreMemory is the hint if memory ran out.
func endOfCommand(ctx context.Context, a *app, r runner.UserResult, moreMemory string) (status int, _ error) {
	if r.Left > 0 {
		a.warn(fmt.Sprintf("%d processes of the command could not be killed; the session replaces its sandbox.", r.Left))
	}
	if r.PIDsLimitHit && !r.Status.Success() { // it may be another command's
		a.warn("the sandbox's limit of processes was reached. --pids sets it when the session starts.")
	}
	if len(r.Full) > 0 {
		a.warn("no space is left in " + strings.Join(r.Full, " and ") + ", which is in memory and bounded. Remove files there, or use the workspace.")
	}
	switch {
	case ctx.Err() != nil:
		return exitDone, cmp.Or(interruption(ctx), context.Cause(ctx))
	case r.Status.TimedOut:
		a.warn("the command's time was over. --timeout gives it more.")
		return exitTimedOut, nil
	case r.Status.OOMKilled:
		a.warn("the sandbox was out of memory while the command ran. " + moreMemory)
	case r.Status.Cancelled:
		a.warn("the command was cancelled, because its session ends.")
	}
	if r.Status.Signal != 0 {
		return 128 + r.Status.Signal, nil
	}
	return r.Status.Code, nil
}

// findSession finds the one live session that a user means. It asks no backend about a
// complete id.
func (bs *backends) findSession(ctx context.Context, id string) (string, error) {
	id = strings.TrimPrefix(id, "caisson-")
	if !strings.ContainsAny(id, "/.*?[\\") && runner.Listens(bs.environ.stateDir(), id) {
		return id, nil
	}
	found, failures := bs.listSandboxes(ctx)
	var matches []sandbox.Listing
	for _, l := range found {
		if l.Owner.State == "alive" && !l.Foreign && id != "" && (id == trace.Last || strings.HasPrefix(l.Session, id)) {
			matches = append(matches, l)
		}
	}
	if id == trace.Last && len(matches) > 1 { // ids sort by time
		matches = []sandbox.Listing{slices.MaxFunc(matches, func(a, b sandbox.Listing) int { return strings.Compare(a.Session, b.Session) })}
	}
	switch len(matches) {
	case 1:
		return matches[0].Session, nil
	case 0:
		cause := fmt.Sprintf("no live session begins with %q", id)
		if id == trace.Last {
			cause = "no session is live"
		}
		if len(failures) > 0 {
			cause += " (" + strings.Join(failures, "; ") + ")"
		}
		return "", newFailure(exitInput, nil, cause, "caisson sandbox ls lists them.")
	}
	return "", newFailure(exitInput, nil, fmt.Sprintf("%d live sessions begin with %q", len(matches), id), "Name more of it: "+matches[0].Session+", "+matches[1].Session+", …")
}
