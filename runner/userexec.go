package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/execapi"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/preset"
)

// userCommands runs users' commands in the session's container, beside the agent's calls.
// They have the same identity, limits and termination, and are recorded as the users'.
type userCommands struct {
	exec   *livesandbox.Executor
	events *eventRecorder
	sync   func() error
	hint   func(Fault) string
	log    *zap.Logger
	bridge *modelBridge // may be nil
	// offline is set if commands have no network.
	offline bool
	maxTime time.Duration // of a command; zero means no bound
	// session is the session's id, dir the directory of its records.
	session, dir string
	endSession   func()

	// ran reports that [Session.Exec] was called. startErr is why the sandbox could not
	// start for one of its commands.
	mu       sync.Mutex
	ran      bool
	startErr error
}

func (u *userCommands) hasRun() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ran
}

// endOutcome returns the outcome of a session without turns whose context ended with cause,
// and the cause of a cancellation.
func (u *userCommands) endOutcome(cause error) (loop.Outcome, error) {
	over, limited := u.bridge.outcome()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !u.ran:
		return loop.Outcome{Reason: StopNoTurn}, nil
	case u.startErr != nil:
		return loop.Outcome{Reason: loop.StopSandboxStart, Err: u.startErr}, nil
	case limited:
		return over, nil
	case errors.Is(cause, tools.ErrSandboxLost):
		return loop.Outcome{Reason: loop.StopSandboxLost, Err: cause}, nil
	case cause != nil:
		return loop.Outcome{Reason: loop.StopCancelled, Err: cause}, cause
	}
	return loop.Outcome{Reason: StopNoTurn}, nil
}

var errEnding = errors.New("the session ends")

// serveCommands serves users' commands until ctx ends or stop is called. If it can't, it logs
// why, and the session goes on.
func (u *userCommands) serveCommands(ctx context.Context) (stop func()) {
	server, err := execapi.Listen(ctx, filepath.Join(u.dir, sessiondir.SandboxDir), sandbox.ExecSocket, execapi.Handlers{Run: u.serveRequest, End: u.endSession})
	if err != nil {
		u.log.Warn("commands of users can't reach this session", zap.Error(err))
		return func() {}
	}
	return func() { server.Close(errEnding) }
}

func (u *userCommands) serveRequest(ctx context.Context, r execapi.Request, stdin io.Reader, stdout, stderr io.Writer) execapi.Result {
	command := UserCommand{
		ID: r.ID, Argv: r.Args(), Dir: r.Dir, Env: r.Env, Timeout: time.Duration(r.TimeoutMS) * time.Millisecond, Stdin: stdin, Stdout: stdout, Stderr: stderr,
	}
	if r.Terminal != nil {
		command.Terminal = &sandbox.Terminal{TerminalSize: *r.Terminal, Resizes: r.Resizes}
	}
	result, err := u.runCommand(ctx, command, LocalUser(), r.PID)
	if err != nil {
		return execapi.Result{Failure: &execapi.Failure{Kind: string(err.Kind), Cause: err.Cause, Hint: err.Hint}}
	}
	return execapi.Result{Status: result.Status, Shortage: result.Shortage, Killed: result.Killed, Left: result.Left}
}

// runCommand runs one command to its end, with a record before and after. The error is nil if
// the command ended.
func (u *userCommands) runCommand(ctx context.Context, c UserCommand, client string, pid int32) (UserResult, *UserCommandError) {
	id := cmp.Or(c.ID, record.NewID("exe"))
	start := record.UserCommandStarted{ExecID: id, Argv: recordTexts(c.Argv), Dir: c.Dir, Env: variableNames(c.Env), PID: pid, Client: client}
	if c.Terminal != nil {
		start.Terminal = &c.Terminal.TerminalSize
	}
	started, err := u.events.recordUser(start, "")
	if err == nil {
		err = u.sync()
	}
	if err != nil {
		return UserResult{}, u.notRun(err)
	}
	if u.maxTime > 0 && c.Timeout > u.maxTime {
		c.Timeout = u.maxTime
	}
	out, errOut := newCounted(c.Stdout), newCounted(c.Stderr)
	command := sandbox.Command{
		Argv: c.Argv, Dir: c.Dir, Variables: c.Env, Stdin: c.Stdin, Stdout: out, Stderr: errOut, Terminal: c.Terminal,
		Output: sandbox.OutputLimits{Live: unbounded}, Timeout: c.Timeout,
	}
	endRecording := u.recordTerminal(&command)
	exit, err := u.exec.RunProgram(ctx, command)
	u.bridge.settle()
	ended := record.UserCommandEnded{
		ExecID: id, ExitStatus: exit.Status, Shortage: exit.Shortage, Stdout: out.recordStream(), Stderr: errOut.recordStream(),
		WallMS: exit.Wall.Milliseconds(), CPUMS: exit.CPU.Milliseconds(), Kill: exit.Kill, Recording: endRecording(),
	}
	if err != nil {
		ended.Code = -1
		ended.Error = err.Error()
	}
	if _, recordErr := u.events.recordUser(ended, started); recordErr != nil {
		u.log.Error("record a user's command", zap.Error(recordErr))
	}
	if err != nil {
		return UserResult{}, u.notRun(err)
	}
	result := UserResult{Status: exit.Status, Shortage: exit.Shortage, Killed: exit.Kill.Killed, Left: exit.Kill.Left}
	if u.offline && !exit.Status.Success() {
		result.NeedsPreset = preset.NeededBy([]byte(out.tail.String()), []byte(errOut.tail.String()))
	}
	return result, nil
}

// recordTerminal makes a command's output and sizes go through a recording, if it has a
// terminal. The caller calls end when the command has ended.
func (u *userCommands) recordTerminal(c *sandbox.Command) (end func() *record.Recording) {
	none := func() *record.Recording { return nil }
	if c.Terminal == nil {
		return none
	}
	term := ""
	for _, v := range c.Variables {
		if value, ok := strings.CutPrefix(v, "TERM="); ok {
			term = value
		}
	}
	recording, err := u.exec.StartRecording(c.Terminal.TerminalSize, term)
	if err != nil {
		u.log.Error("a terminal is not recorded", zap.Error(err))
		return none
	}
	from, sizes, over := c.Terminal.Resizes, make(chan sandbox.TerminalSize), make(chan struct{})
	go func() {
		for {
			select {
			case size := <-from:
				recording.Resize(size)
				select {
				case sizes <- size:
				case <-over:
					return
				}
			case <-over:
				return
			}
		}
	}()
	c.Stdout = io.MultiWriter(recording, c.Stdout)
	c.Terminal = &sandbox.Terminal{TerminalSize: c.Terminal.TerminalSize, Resizes: sizes}
	return func() *record.Recording {
		close(over)
		return new(recording.Close())
	}
}

// unbounded lets all output through: a command blocks if its client stops reading.
const unbounded = 1 << 50

func (u *userCommands) notRun(err error) *UserCommandError {
	f := Fault{Kind: commandFault(err), Session: u.session, Dir: u.dir, Err: err}
	e := &UserCommandError{Kind: f.Kind, Cause: err.Error(), Hint: u.hint(f), Err: err}
	switch t, ok := errors.AsType[*tools.Error](err); {
	case f.Kind == FaultSandboxStart:
		e.Cause = startCause(err)
	case f.Kind == FaultReplaced && ok:
		e.Cause = t.Message
	}
	return e
}

func commandFault(err error) FaultKind {
	full, isFull := errors.AsType[*limits.ExceededError](err)
	t, isTool := errors.AsType[*tools.Error](err)
	switch {
	case isTool && t.Reason == livesandbox.ReplacedReason:
		return FaultReplaced
	case isFull && full.Kind == limits.KindDisk:
		return FaultDisk
	case errors.Is(err, tools.ErrRecord):
		return FaultRecords
	case errors.Is(err, tools.ErrSandboxStart):
		return FaultSandboxStart
	case errors.Is(err, tools.ErrSandboxLost), errors.Is(err, sandbox.ErrLost), errors.Is(err, sandbox.ErrState):
		return FaultCommandLost
	case errors.Is(err, sandbox.ErrInvalid):
		return FaultCommand
	}
	return FaultOther
}

// UserCommandError reports that a user's command was not run, or that how it ended is unknown.
type UserCommandError struct {
	Kind  FaultKind
	Cause string
	// Hint is from the session that did not run the command, or "" if it didn't answer.
	Hint string
	// Err is the underlying error, nil if another process reported the cause.
	Err error
}

func (e *UserCommandError) Error() string { return e.Cause }

func (e *UserCommandError) Unwrap() error { return e.Err }

// counted counts and hashes what is written through it.
type counted struct {
	to   io.Writer
	mu   sync.Mutex
	sum  hash.Hash
	tail limits.Tail
}

// maxCountedTail bounds the end of the output that is searched for a missing network.
const maxCountedTail = 16 << 10

func newCounted(w io.Writer) *counted {
	if w == nil {
		w = io.Discard
	}
	return &counted{to: w, sum: sha256.New(), tail: limits.Tail{Size: maxCountedTail}}
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Write(p[:n])
	_, _ = c.tail.Write(p[:n]) // never fails
	return n, err
}

func (c *counted) recordStream() record.UserStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return record.UserStream{Bytes: c.tail.Total(), SHA256: hex.EncodeToString(c.sum.Sum(nil))}
}

// recordTexts returns argv for a record, with invalid UTF-8 quoted.
func recordTexts(argv []string) []string {
	out := []string{}
	for _, a := range argv {
		if !utf8.ValidString(a) {
			a = strconv.Quote(a)
		}
		out = append(out, a)
	}
	return out
}

// UserCommand is a user's command in the sandbox of a session, which this process or another
// one owns.
type UserCommand struct {
	// Argv is the program and its arguments. Dir is a directory in the sandbox; "" is the
	// workspace.
	Argv []string
	Dir  string
	// ID is the command's id in the records; "" makes one. Client is its user; "" means
	// Options.User. [RunUserCommand] ignores both.
	ID, Client string
	// Env has variables (NAME=value) to add.
	Env []string
	// Timeout bounds the wall time; zero means the session's limit.
	Timeout time.Duration
	// Stdin may be nil. It is read until the command has ended, or longer if a read doesn't
	// return.
	Stdin io.Reader
	// Stdout and Stderr receive output as it is written; nil discards it.
	Stdout, Stderr io.Writer
	// Terminal, if not nil, gives the command a terminal; see [sandbox.Command].
	Terminal *sandbox.Terminal
	// Detachable makes a command with a terminal go on if [RunUserCommand]'s ctx ends or its
	// process is killed. [Session.Exec] ignores it.
	Detachable bool
	// EndAtLimit cancels the command some seconds after a request of the session's bridge has
	// reached a limit. [RunUserCommand] ignores it.
	EndAtLimit bool
	// Abandon, when closed, makes [RunUserCommand] return without waiting for the end of a
	// cancelled command, which its owner ends anyway. It may be nil. [Session.Exec] ignores
	// it.
	Abandon <-chan struct{}
}

// PackCommand returns a command that writes a file or directory of the sandbox to w as a tar
// archive (PAX), under a name; "." puts a directory's content at the top. Programs in the
// sandbox control the content. The exit status is [archive.StatusNoFile] or
// [archive.StatusRefused] if there is nothing to pack, and [archive.StatusIncomplete] if
// something could not be read, which standard error names. Special files are left out. With
// exit status 1, the archive may be incomplete.
func PackCommand(path, name string, w io.Writer) UserCommand {
	return UserCommand{Argv: []string{sandbox.GuestPath, archive.PackWord, path, name}, Stdout: w}
}

// UnpackCommand returns a command that unpacks a tar archive below a directory of the sandbox.
// The exit status is [archive.StatusNoDirectory] if the directory is missing, with nothing
// unpacked. It is [archive.StatusRefused] for a broken or refused archive, and 1 if
// something could not be written.
func UnpackCommand(dir string, r io.Reader) UserCommand {
	return UserCommand{Argv: []string{sandbox.GuestPath, archive.UnpackWord, dir}, Stdin: r}
}

// PackChangesCommand returns a command that writes the changes in directories of the sandbox
// since a time to w, for [UnpackChangesCommand]; see [archive.PackChanges]. layer is a time
// before the sandbox was made. Exit status and trust are as for [PackCommand].
func PackChangesCommand(since, layer time.Time, dirs []string, w io.Writer) UserCommand {
	argv := []string{sandbox.GuestPath, archive.PackChangesWord, strconv.FormatInt(since.UnixNano(), 10), strconv.FormatInt(layer.UnixNano(), 10)}
	return UserCommand{Argv: append(argv, dirs...), Stdout: w}
}

// UnpackChangesCommand returns a command that makes those changes below a directory of another
// sandbox. It keeps symlinks to files of the archive, and into directories of within but not
// of except. It leaves out others, with a line each on standard error; see
// [archive.LinkRule] and [archive.LeftOutPrefix]. Exit status as for [UnpackCommand].
func UnpackChangesCommand(dir string, within, except []string, r io.Reader) UserCommand {
	argv := slices.Concat([]string{sandbox.GuestPath, archive.UnpackChangesWord, dir}, within, []string{archive.ExceptWord}, except)
	return UserCommand{Argv: argv, Stdin: r}
}

// EndBackground ends the commands that the model left running, and waits for them. No turn may be
// running. The next message tells the model.
func (s *Session) EndBackground() {
	if ended := s.exec.EndRunning(); ended > 0 {
		s.prompt.notice = loop.NoticePrefix + boundary.Sprintf("%s in the background ended with the last message.", boundary.Text(limits.FormatCount(ended, "command")))
	}
}

// UserResult tells how a user's command ended.
type UserResult struct {
	Status sandbox.ExitStatus
	sandbox.Shortage
	// Killed counts the processes that had to be killed, Left the ones that survived.
	Killed, Left int
	// Detached is set if [RunUserCommand] or [AttachUserCommand] left the command, which goes
	// on.
	Detached bool
	// NeedsPreset names the egress preset that a command without a network needed, or "".
	// [RunUserCommand] never sets it.
	NeedsPreset string
}

// Exec runs a user's command in the session's sandbox, without the model, and waits for its
// end. It starts the sandbox if necessary. The policy is not asked. Commands may run beside a
// turn and each other. If ctx or the session ends, the command is cancelled: its processes get
// SIGTERM, and SIGKILL after the grace period. Its output until then and its result are still
// delivered. The error is a [UserCommandError], or wraps [ErrOver].
func (s *Session) Exec(ctx context.Context, c UserCommand) (UserResult, error) {
	ctx, done, err := s.calls.beginCall(ctx)
	if err != nil {
		return UserResult{}, fmt.Errorf("run command: %w", err)
	}
	defer done()
	if s.ctx.Err() != nil {
		return UserResult{}, fmt.Errorf("run command: %w: %w", ErrOver, context.Cause(s.ctx))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	if c.EndAtLimit {
		defer s.bridge.boundCommand(cancel)()
	}
	s.users.mu.Lock()
	s.users.ran = true
	s.users.mu.Unlock()
	s.sandbox.EnsureStarted() // while the first record is written
	s.startServices()
	r, failed := s.users.runCommand(ctx, c, cmp.Or(c.Client, s.opts.User.Name), int32(os.Getpid()))
	if failed == nil {
		return r, nil
	}
	if failed.Kind == FaultSandboxStart {
		s.users.mu.Lock()
		s.users.startErr = failed.Err
		s.users.mu.Unlock()
	}
	return r, failed
}

// Listens reports whether a session's socket exists. Its process may still not answer
// [RunUserCommand].
func Listens(stateDir, session string) bool {
	matches, err := filepath.Glob(filepath.Join(sessiondir.Path(stateDir, session), sessiondir.SandboxDir, sandbox.ExecSocket))
	return err == nil && len(matches) > 0
}

// RunUserCommand runs a command in a live session's sandbox, through the process that owns
// it. If ctx ends, it cancels the command and still waits for the result. The error is a
// [UserCommandError].
func RunUserCommand(ctx context.Context, stateDir, session string, c UserCommand) (UserResult, error) {
	var argv [][]byte
	for _, a := range c.Argv {
		argv = append(argv, []byte(a))
	}
	return askOwner(ctx, stateDir, session, c, execapi.Request{
		Argv: argv, Dir: c.Dir, Env: c.Env, TimeoutMS: c.Timeout.Milliseconds(), Detachable: c.Detachable,
	})
}

// AttachUserCommand goes back to a detachable command of a live session, with c's streams and
// terminal. id is the beginning of the command's id, or "" for the only one. If another client has
// the command, that one is detached. The error is a [UserCommandError].
func AttachUserCommand(ctx context.Context, stateDir, session, id string, c UserCommand) (UserResult, error) {
	return askOwner(ctx, stateDir, session, c, execapi.Request{Attach: &id})
}

func askOwner(ctx context.Context, stateDir, session string, c UserCommand, request execapi.Request) (UserResult, error) {
	conn, err := dialOwner(stateDir, session)
	if err != nil {
		return UserResult{}, err
	}
	if c.Terminal != nil {
		request.Terminal, request.Resizes = &c.Terminal.TerminalSize, c.Terminal.Resizes
	}
	r, err := execapi.Run(ctx, conn, request,
		execapi.Streams{Stdin: c.Stdin, Stdout: newCounted(c.Stdout), Stderr: newCounted(c.Stderr)}, c.Abandon)
	if err != nil {
		return UserResult{}, &UserCommandError{Kind: FaultEndUnknown, Cause: "the command's end is not known: " + err.Error(), Err: err}
	}
	if f := r.Failure; f != nil {
		return UserResult{}, &UserCommandError{Kind: FaultKind(f.Kind), Cause: f.Cause, Hint: f.Hint}
	}
	return UserResult{Status: r.Status, Shortage: r.Shortage, Killed: r.Killed, Left: r.Left, Detached: r.Detached}, nil
}

func dialOwner(stateDir, session string) (net.Conn, error) {
	conn, err := execapi.Dial(filepath.Join(sessiondir.Path(stateDir, session), sessiondir.SandboxDir), sandbox.ExecSocket)
	if err == nil {
		return conn, nil
	}
	e := &UserCommandError{Kind: FaultUnreachable, Cause: fmt.Sprintf("session %s can't be reached: %v", session, err), Err: err}
	if errors.Is(err, fs.ErrNotExist) {
		e.Kind, e.Cause = FaultNotLive, fmt.Sprintf("no process owns a live sandbox of session %s", session)
	}
	return nil, e
}

// EndSession asks a session's owner to end it, and waits until that process is gone. It is for
// sessions with Options.EndRequested. The error is a [UserCommandError], or from ctx.
func EndSession(ctx context.Context, stateDir, session string) error {
	conn, err := dialOwner(stateDir, session)
	if err != nil {
		return err
	}
	failure, err := execapi.End(ctx, conn)
	switch {
	case failure != nil:
		return &UserCommandError{Kind: FaultKind(failure.Kind), Cause: failure.Cause, Hint: failure.Hint}
	case err != nil:
		return &UserCommandError{Kind: FaultEndUnknown, Cause: fmt.Sprintf("the end of session %s is not known: %v", session, err), Err: err}
	}
	return nil
}

// User is a user of a session.
type User struct {
	// Name is the label in the records, such as http:alice or uid:1000; "" is unknown.
	Name string
	// Admin permits tools that require an administrator.
	Admin bool
}

// MayUse reports whether the user may use a tool.
func (u User) MayUse(def tools.Definition) bool {
	return def.EnabledByDefault && (!def.RequiresAdmin || u.Admin)
}

// LocalUser returns the label of this process's user.
func LocalUser() string { return fmt.Sprintf("uid:%d", os.Geteuid()) }

// CancelledByUser is the cause of a turn that a user cancelled.
type CancelledByUser struct{ Client string }

func (c *CancelledByUser) Error() string { return "cancelled by " + c.Client }

// cancellationRecord returns the record of a turn that was cancelled with cause.
func cancellationRecord(cause error) record.TurnCancelled {
	if i, ok := errors.AsType[*Interrupted](cause); ok {
		return record.TurnCancelled{Reason: i.Error(), By: "signal"}
	}
	if c, ok := errors.AsType[*CancelledByUser](cause); ok {
		return record.TurnCancelled{Reason: "cancelled", By: "user", Client: c.Client}
	}
	return record.TurnCancelled{Reason: "cancelled", By: "session"}
}

// CommandWatch finds out when a session without a model is no longer used. [Hooks].Mirror must
// call Observe for every record.
type CommandWatch struct {
	// running counts the running commands. used is signalled when a command begins or ends or
	// the sandbox is lost.
	running atomic.Int64
	used    chan struct{}
}

// NewCommandWatch returns a watch for a session that is not open yet.
func NewCommandWatch() *CommandWatch { return &CommandWatch{used: make(chan struct{}, 1)} }

// Observe notes a record. It doesn't block.
func (w *CommandWatch) Observe(kind record.Kind) {
	switch kind {
	case record.KindUserCommandStarted:
		w.running.Add(1)
	case record.KindUserCommandEnded:
		w.running.Add(-1)
	case record.KindSandboxLost:
	default:
		return
	}
	select {
	case w.used <- struct{}{}:
	default: // an earlier signal is still pending
	}
}

// Running returns the number of running commands.
func (w *CommandWatch) Running() int { return int(w.running.Load()) }

// Wait returns when the session should end: ctx has ended, no command has run for the time
// unused, or the session can run no more commands.
func (w *CommandWatch) Wait(ctx context.Context, session *Session, unused time.Duration) {
	idle := time.NewTimer(unused)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			if w.Running() == 0 { // one that begins now keeps the session
				return
			}
		case <-w.used:
			if session.Status().Over != "" {
				return
			}
			idle.Stop()
			if w.Running() == 0 {
				idle.Reset(unused)
			}
		}
	}
}
