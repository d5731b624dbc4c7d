package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/chat"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/approval"
)

// chatRounds is the default bound of model calls in a turn.
const chatRounds = 25

// plainEnv is the variable that makes conversations plain.
const plainEnv = "CAISSON_PLAIN"

func newChatCommand(a *app) *cobra.Command {
	var f struct {
		Plain bool `flag:"plain" doc:"only lines, without colours and escape sequences: for screen readers"`
		sessionFlags
	}
	return newCommand(&cobra.Command{
		Use: "chat [flags]", Short: "Talk with an agent about a workspace", Args: noArgs,
		Long: `Talk with an agent about a workspace. --plain is for screen readers and simple terminals: it writes only
lines, without colours and escape sequences; CAISSON_PLAIN=1 and TERM=dumb choose it too.

The agent works on an overlay of the workspace, where it asks you nothing; afterwards, /diff shows the
changes. With --mode bind, or if overlays don't work here, it asks before it writes or runs something.

Enter sends a message, or queues it while a turn runs. Ctrl+J, Alt+Enter and Shift+Enter begin a new
line, Ctrl+X opens $EDITOR, Up recalls, Ctrl+C stops the turn. /help lists commands and keys.

--resume continues a session of caisson chat or caisson run, under the same id: its last turn if that did
not end, otherwise with your next message. It restores the draft.

Standard input and standard error must be a terminal. With --plain, standard input may also be a file or
a pipe: each line is a message, and Caisson asks no questions.
`,
		Example: `  caisson chat
  caisson chat --workspace ~/src/project --model anthropic/claude-sonnet-4-5
  caisson chat --resume last
  caisson chat --plain`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.complete(cmd)
			return runChat(cmd.Context(), a, f.sessionFlags, f.Plain)
		},
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|asksModel|interruptible,
		statuses{exitFailed: "something was left behind", exitLimit: "", exitNoApprover: "", exitInterrupted: "ended by a signal (129: hang-up, 143: terminated)"})
}

func runChat(ctx context.Context, a *app, f sessionFlags, plain bool) error {
	plain = plain || a.environ.get(plainEnv) != "" || a.environ.get("TERM") == "dumb"
	interactive := a.terminal(a.stdin) && a.terminal(a.stderr)
	if !interactive && !plain {
		return newFailure(exitInput, nil, "a conversation needs a terminal, at standard input and standard error", "caisson run does one task without one; --plain takes one message per line.")
	}
	t := newChatTerminal(a, plain, interactive)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer t.close(ctx)
	var before *sessionFlags // to go back to if the next session can't be opened
	for notice := ""; ; {
		end, err := t.holdConversation(ctx, f, notice)
		switch {
		case err != nil && before != nil && ctx.Err() == nil:
			problem := describeError(err).Problem
			line := ui.ErrorLine(strings.TrimSpace(problem.Cause+". "+problem.Hint), t.colour)
			t.out.Queue(len(line), func() { t.render.Print(line) })
			f, before, notice = *before, nil, "going back to the session before"
		case err != nil:
			return err
		case end.Next == nil || end.Report.ExitStatus == exitFatal || end.Report.ExitStatus == exitUnvouched || len(end.Report.Left) > 0:
			return exitWith(t.finish(ctx, end))
		default:
			back := f.continueWith(chat.Next{Session: end.Report.Session, Model: valueOf(f.Settings.Model)})
			before, f, notice = &back, f.continueWith(*end.Next), ""
			if end.Next.Session == end.Report.Session {
				notice = "the next turns use " + end.Next.Model
			}
		}
	}
}

// continueWith returns the flags for continuing in another session or with another
// model. The settings that a session keeps are cleared.
func (f sessionFlags) continueWith(n chat.Next) sessionFlags {
	f.Resume, f.named = n.Session, false
	f.Settings.Mode, f.Settings.Workdir, f.Settings.Image, f.Settings.Backend, f.Settings.Model = nil, nil, nil, nil, nil
	if n.Model != "" {
		f.Settings.Model = &n.Model
	}
	return f
}

// holdConversation holds a conversation in one session and closes it.
func (t *chatTerminal) holdConversation(ctx context.Context, f sessionFlags, notice string) (chat.End, error) {
	a := t.app
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release := func() {}
	if t.opened {
		release = sync.OnceFunc(chat.WatchInterrupts(ctx, t.keyboard, a.takeSignals(), cancel))
	}
	defer func() { release() }()
	resumed, err := f.findResumed(a)
	if err != nil {
		return chat.End{}, err
	}
	conf, err := loadChatSettings(a, f.Settings, f.Profile)
	if err != nil {
		return chat.End{}, err
	}
	s, err := openBuilder(conf, f.Workspace, f.projectOptions)
	if err != nil {
		return chat.End{}, err
	}
	defer s.close()
	required := s.conf.Requirements.Mode != nil || s.conf.Project.Mode != nil
	if s.conf.IsBuiltin("mode") && !required && sandbox.WorkspaceMode(*s.conf.Mode).KeepsChanges() && !s.mountsOverlays(ctx) {
		s.conf.Mode = new(string(sandbox.ModeBind))
	}
	s.chat, s.resume = true, resumed
	t.attention = *s.conf.Chat.Notify
	o, err := s.sessionOptions(ctx, "", t.userInterface)
	if err != nil {
		return chat.End{}, cmp.Or(interruption(ctx), err)
	}
	t.redactor.Store(redact.New(o.Secrets))
	force := make(chan struct{})
	p := &chatPage{settings: s.settings, adoption: server.Adoption{StateDir: a.environ.stateDir(), ID: o.Dir.Session, Dir: o.Dir.Path}}
	o.Broker, o.Mirror, o.Live = t.newBroker(), p.passRecord(t.showRecord), p.passDelta(t.showDelta)
	o.Force, o.Warner = force, func(warn func(string)) { t.warn.Store(&warn) }
	session, err := runner.Open(ctx, o)
	if err != nil {
		return chat.End{}, err
	}
	if err := t.openTerminal(); err != nil {
		session.Close()
		return chat.End{}, err
	}
	release()
	p.adoption.Session, p.adoption.Broker = session, o.Broker
	defer p.close()
	return chat.Run(ctx, chat.Options{
		Renderer: t.render, Keyboard: t.keyboard, Status: &t.status, Queue: func(size int, do func()) { t.out.Queue(size, do) },
		Session: session, Dir: o.Dir.Path, Signals: a.takeSignals(), Stop: cancel, Force: sync.OnceFunc(func() { close(force) }), Exit: t.exitProgram,
		Plain: t.plain, Echo: t.plain && !t.interactive, Colour: t.colour, Notify: t.notify,
		Overlay: sandbox.WorkspaceMode(*s.conf.Mode).KeepsChanges(), External: t.programRunner(), Getenv: a.environ.get,
		Command: func(name string, args ...string) (*exec.Cmd, error) {
			return programs.Command(ctx, s.environ, s.writableDirs(s.workspace.Path), name, args...)
		},
		Page: func(turns chat.Turns) (string, error) { return p.open(ctx, turns, s.workspace.Path) },
		Switching: chat.Switching{
			Model: cmp.Or(o.Profiles[0].Name, o.Profiles[0].Model.Info().String()), Models: slices.Sorted(maps.Keys(s.conf.Models)), Notice: notice,
			List:    func() ([]trace.Entry, error) { return listResumable(a, s.workspace.Path) },
			Prepare: func(n chat.Next) (chat.Next, error) { return f.prepareNext(a, n, o.Dir.Session) },
		},
	}), nil
}

// prepareNext finds the session to continue with. It checks as much as possible before
// the current session is closed.
func (f sessionFlags) prepareNext(a *app, n chat.Next, current string) (chat.Next, error) {
	fail := func(err error) (chat.Next, error) {
		p := describeError(err).Problem
		return n, errors.New(strings.TrimPrefix(strings.TrimSpace(p.Cause+". "+p.Hint), "--model: "))
	}
	next := f.continueWith(n)
	id, err := next.findResumed(a)
	switch {
	case err != nil:
		return fail(err)
	case id == current && n.Model == "":
		return n, errors.New("this is session " + id)
	case id != current && sessiondir.SessionLives(sessiondir.Path(a.environ.stateDir(), id)):
		return fail(fmt.Errorf("session %s: %w", id, sessiondir.ErrAlive))
	}
	conf, err := loadChatSettings(a, next.Settings, next.Profile)
	if err != nil {
		return fail(err)
	}
	if _, err := conf.conf.SelectModels(conf.environ); err != nil {
		return fail(noModel(err))
	}
	n.Session = id
	return n, nil
}

type chatTerminal struct {
	*userInterface

	plain    bool
	keyboard *chat.Keyboard
	status   chat.Status
	redactor atomic.Pointer[redact.Redactor]
	// prompt asks the questions of all sessions. broker is the current session's.
	prompt *ui.Prompt
	broker atomic.Pointer[approval.Broker]
	// opened is set once the terminal is being read.
	opened bool
	// attention is how the chat calls for attention: off, bell or osc9.
	attention string
	// restore restores the terminal's state. It is nil while that is unchanged.
	restore func()

	mu sync.Mutex
	// asking counts the questions. free is open while another program has the screen.
	asking int
	free   chan struct{}
}

func newChatTerminal(a *app, plain, interactive bool) *chatTerminal {
	t := &chatTerminal{plain: plain, free: make(chan struct{})}
	close(t.free)
	u := &userInterface{app: a, untold: allFacts, out: ui.NewAsyncWriter(), interactive: interactive, colour: !plain && a.environ.get("NO_COLOR") == ""}
	u.tell = u.out
	t.userInterface = u
	t.keyboard = chat.NewKeyboard(a.stdin, !plain, func(typed string, done bool) { u.render.Retype(typed, done) })
	u.openRenderer(ui.Options{
		Live: !plain, Parked: isScreen(a.environ), Chat: true, Words: plain, Redact: t.redact, Footer: t.status.Footer,
		OnSuspend: func(on bool) { t.keyboard.Ask(on) },
	})
	t.prompt = &ui.Prompt{
		In: t.keyboard, Out: u.render, Pending: func() []approval.Confirmation { return t.broker.Load().Pending() },
		Pressed: func(ctx context.Context, wait time.Duration) (bool, error) {
			return t.keyboard.Pressed(ctx, wait, a.pressed)
		},
	}
	if !plain {
		t.prompt.Keys = t.keyboard
	}
	return t
}

// redact removes the session's secrets from a text.
func (t *chatTerminal) redact(text string) string {
	if r := t.redactor.Load(); r != nil {
		return string(r.Bytes([]byte(text)))
	}
	return text
}

// openTerminal prepares the terminal and starts to read it.
func (t *chatTerminal) openTerminal() error {
	if t.opened {
		return nil
	}
	if !t.plain {
		if err := t.takeTerminal(); err != nil {
			return newFailure(exitInput, err, "the terminal can't be read key by key: "+err.Error(), "--plain reads it line by line.")
		}
	}
	t.keyboard.Start()
	t.opened = true
	return nil
}

// takeTerminal makes the terminal deliver keys, marked pastes, and focus changes.
func (t *chatTerminal) takeTerminal() error {
	tty, ok := t.app.stdin.(*os.File)
	if !ok {
		return os.ErrInvalid
	}
	restore, err := chat.SetRaw(tty)
	if err != nil {
		return err
	}
	on, off := "\x1b[?2004h\x1b[?1004h", "\x1b[?25h\x1b[?1004l\x1b[?2004l"
	if t.app.environ.get("TERM") != "linux" { // it would show the sequence
		on, off = on+"\x1b[>1u", "\x1b[<u"+off
	}
	t.render.SendSequence(on)
	t.restore = func() {
		t.render.SendSequence(off)
		restore()
	}
	return nil
}

func (t *chatTerminal) giveTerminal() {
	if t.restore != nil {
		t.restore()
		t.restore = nil
	}
}

func (t *chatTerminal) exitProgram(status int) {
	t.giveTerminal()
	t.app.exit(status)
}

// newBroker returns a broker that asks the user, or nil without a terminal.
func (t *chatTerminal) newBroker() *approval.Broker {
	if !t.interactive {
		return nil
	}
	b := approval.NewBroker(approval.BrokerOptions{})
	t.broker.Store(b)
	b.Attach("terminal", &orderedApprover{t.out, &screenApprover{t, t.prompt}})
	return b
}

// screenApprover asks once no other program has the screen.
type screenApprover struct {
	t      *chatTerminal
	person approval.Approver
}

func (s *screenApprover) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	first, err := s.t.beginQuestion(ctx)
	if err != nil {
		return approval.Answer{}, err
	}
	defer s.t.endQuestion()
	if first {
		s.t.notify("a question waits")
	}
	return s.person.Approve(ctx, c)
}

// beginQuestion waits until no other program has the screen, and keeps them from taking
// it. It reports whether no other question is waiting.
func (t *chatTerminal) beginQuestion(ctx context.Context) (first bool, err error) {
	for {
		t.mu.Lock()
		free := t.free
		select {
		case <-free:
			t.asking++
			first = t.asking == 1
			t.mu.Unlock()
			return first, nil
		default:
		}
		t.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return false, fmt.Errorf("ask: %w", context.Cause(ctx))
		}
	}
}

func (t *chatTerminal) endQuestion() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking--
}

// errAsking is returned if a question has the screen.
var errAsking = errors.New("a question waits")

// takeScreen keeps questions from the screen until release is called.
func (t *chatTerminal) takeScreen() (release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking > 0 {
		return nil, errAsking
	}
	free := make(chan struct{})
	t.free = free
	return func() { close(free) }, nil
}

// programRunner returns a function that runs a command on the terminal, or nil if the
// chat is plain.
func (t *chatTerminal) programRunner() func(cmd *exec.Cmd) error {
	if t.plain {
		return nil
	}
	return func(cmd *exec.Cmd) error {
		release, err := t.takeScreen()
		if err != nil {
			return err
		}
		defer release()
		defer t.keyboard.Pause()()
		defer t.render.Suspend()()
		t.giveTerminal()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = t.app.stdin, t.app.stderr, t.app.stderr
		err = cmd.Run()
		if takeErr := t.takeTerminal(); err == nil {
			err = takeErr
		}
		return err
	}
}

func (t *chatTerminal) notify(text string) {
	switch {
	case !t.interactive || t.attention == "off":
	case t.attention == "bell", t.plain, t.app.environ.get("TERM") == "linux":
		t.render.SendSequence("\a")
	default:
		t.render.SendSequence("\a\x1b]9;caisson: " + text + "\a")
	}
}

// showRecord passes a record on. It never waits.
func (t *chatTerminal) showRecord(r record.Record, line []byte) {
	t.status.AddRecord(r)
	t.userInterface.showRecord(r, line)
}

// showDelta passes live output on. It never drops parts of an answer.
func (t *chatTerminal) showDelta(d runner.Delta) {
	if d.CallID != "" {
		t.userInterface.showDelta(d)
		return
	}
	t.out.Queue(len(d.Text), func() { t.render.Delta(d) })
}

// close ends everything that finish has not ended.
func (t *chatTerminal) close(ctx context.Context) {
	t.userInterface.close(ctx)
	t.keyboard.Close()
	t.giveTerminal()
}

func (t *chatTerminal) finish(ctx context.Context, end chat.End) int {
	t.finished = true
	if t.flush(ctx) {
		t.render.Print(ui.EndLines(end.Report, t.colour)...)
		if end.Report.ExitStatus != exitFatal {
			t.render.Print(ui.Dim("to go on: caisson chat --resume "+end.Report.Session, t.colour))
		}
		t.render.Close()
	}
	t.giveTerminal()
	switch r := end.Report; {
	case end.Signal != 0:
		return 128 + end.Signal
	case r.ExitStatus == exitFatal, r.ExitStatus == exitUnvouched:
		t.reportEnd(r)
		return r.ExitStatus
	case len(r.Left) > 0:
		return exitFailed
	}
	return exitDone
}
