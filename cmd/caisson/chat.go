package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/chat"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/approval"
)

// chatRounds is the built-in bound of model calls in a turn of a conversation.
const chatRounds = 25

// plainEnv makes conversations plain.
const plainEnv = "CAISSON_PLAIN"

const chatLong = `Talk with an agent about a workspace. --plain is for screen readers and simple terminals: lines
alone, no colours and no escape sequences; CAISSON_PLAIN=1 and TERM=dumb choose it too.

The agent works on an overlay of the workspace, and asks nothing in it; afterwards /diff shows what
has changed. With --mode bind, and where there are no overlays, it asks before it writes or runs
something.

Enter sends a message, or queues it while a turn runs; Ctrl+J, Alt+Enter and Shift+Enter begin a
line, Ctrl+X opens $EDITOR, Up recalls, Ctrl+C stops the turn. /help lists commands and keys.

--resume goes on with a session of caisson chat or caisson run, under the same id: with its last turn
if that has no end, and otherwise with the next message. The draft comes back.

Standard input and standard error must be a terminal. With --plain, standard input may also be a
file or a pipe: each line is a message, and no one is asked.
`

func newChatCommand(a *app) *cobra.Command {
	var f runFlags
	var plain bool
	cmd := &cobra.Command{
		Use:   "chat [flags]",
		Short: "Talk with an agent about a workspace",
		Long:  chatLong + exitHelp(map[int]string{exitFailed: "something was left behind", exitLimit: "", exitNoApprover: "", exitInterrupted: "ended by a signal (129: hang-up, 143: terminated)"}, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|asksModel|interruptible),
		Example: `  caisson chat
  caisson chat --workspace ~/src/project --model anthropic/claude-sonnet-4-5
  caisson chat --resume last
  caisson chat --plain`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.named = cmd.Flags().Changed("workspace")
			return runChat(cmd.Context(), a, f, plain)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&plain, "plain", false, "lines alone, without colours and escape sequences: for screen readers")
	flags.StringVar(&f.workspace, "workspace", ".", "directory that the agent works on")
	flags.StringVar(&f.resume, "resume", "", "go on with a SESSION: its id, or last for the newest one on the workspace")
	flags.StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	flags.BoolVar(&f.project.require, "require-trust", false, "end with status 55 where the workspace is not trusted (caisson trust)")
	flags.BoolVar(&f.project.ignore, "ignore-project-config", false, "leave out the workspace's own settings, though it is trusted")
	flags.StringArrayVar(&f.submounts, "submount", nil, "accept a mount inside the workspace (repeatable)")
	addSettings(cmd, &f.settings)
	return cmd
}

// runChat holds a conversation to its end.
func runChat(ctx context.Context, a *app, f runFlags, plain bool) error {
	plain = plain || a.environ.get(plainEnv) != "" || a.environ.get("TERM") == "dumb"
	interactive := a.terminal(a.stdin) && a.terminal(a.stderr)
	if !interactive && !plain {
		return &commandError{Status: exitInput, Problem: record.Problem{
			Cause: "a conversation needs a terminal, at standard input and standard error",
			Hint:  "caisson run does one task without one; --plain takes one message per line.",
		}}
	}
	if f.submounts != nil {
		f.settings.Submounts = f.submounts
	}
	resumed, err := f.findResumed(a)
	if err != nil {
		return err
	}
	conf, err := loadChatSettings(a, f.settings, f.profile)
	if err != nil {
		return err
	}
	s, err := openBuilder(conf, f.workspace, f.project)
	if err != nil {
		return err
	}
	defer s.close()
	s.chat, s.resume = true, resumed
	t := newChatTerminal(a, plain, interactive)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer t.close(ctx)
	t.attention = *s.conf.Chat.Notify
	o, done, err := s.sessionOptions(ctx, "", t.userInterface)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	defer done()
	redactor := redact.New(o.Secrets)
	t.redact = func(text string) string { return string(redactor.Bytes([]byte(text))) }
	force := make(chan struct{})
	o.Broker, o.Mirror, o.Live = t.newBroker(), t.showRecord, t.showDelta
	o.Force, o.Warner = force, func(warn func(string)) { t.warn.Store(&warn) }
	session, err := runner.Open(ctx, o)
	if err != nil {
		return err
	}
	if err := t.openTerminal(); err != nil {
		session.Close()
		return err
	}
	end := chat.Run(ctx, chat.Options{
		Renderer: t.render, Keyboard: t.keyboard, Status: &t.status, Queue: func(size int, do func()) { t.out.Queue(size, do) },
		Session: session, Dir: o.Dir.Path, Signals: a.takeSignals(), Stop: cancel, Force: sync.OnceFunc(func() { close(force) }), Exit: t.exitProgram,
		Plain: plain, Echo: plain && !interactive, Colour: t.colour, Notify: t.notify,
		Overlay: sandbox.WorkspaceMode(*s.conf.Mode).KeepsChanges(), External: t.programRunner(ctx), Getenv: a.environ.get,
	})
	return exitWith(t.finish(ctx, end))
}

// chatTerminal is the terminal of a conversation.
type chatTerminal struct {
	*userInterface

	plain    bool
	keyboard *chat.Keyboard
	status   chat.Status
	redact   func(string) string
	// attention is how the chat asks for it: off, bell or osc9.
	attention string
	// restore restores the terminal's state, nil while it is unchanged.
	restore func()

	mu sync.Mutex
	// asking counts the questions, and free is closed unless another program has the
	// screen.
	asking int
	free   chan struct{}
}

func newChatTerminal(a *app, plain, interactive bool) *chatTerminal {
	t := &chatTerminal{plain: plain, free: make(chan struct{}), redact: func(text string) string { return text }}
	close(t.free)
	u := &userInterface{
		app: a, broken: func() {}, out: ui.NewAsyncWriter(), interactive: interactive,
		colour: !plain && a.environ.get("NO_COLOR") == "",
	}
	u.tell = u.out
	t.userInterface = u
	o := ui.Options{
		Out: a.stderr, Live: !plain, Colour: u.colour, Reflow: breaksLinesAnew(a.environ), Chat: true, Words: plain,
		Redact: func(text string) string { return t.redact(text) }, Footer: t.status.Footer,
		OnSuspend: func(on bool) { t.keyboard.Ask(on) },
	}
	if a.terminal(a.stderr) {
		o.Size = a.size
	}
	t.keyboard = chat.NewKeyboard(a.stdin, !plain, func(typed string, done bool) { u.render.Retype(typed, done) })
	u.render = ui.New(o)
	return t
}

// openTerminal takes the terminal, and reads it from now on.
func (t *chatTerminal) openTerminal() error {
	if !t.plain {
		if err := t.takeTerminal(); err != nil {
			return &commandError{Status: exitInput, Err: err, Problem: record.Problem{
				Cause: "the terminal can't be read key by key: " + err.Error(), Hint: "--plain reads it line by line.",
			}}
		}
	}
	t.keyboard.Start()
	return nil
}

// takeTerminal has the terminal deliver keys, pastes as such, and its focus.
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
	if t.app.environ.get("TERM") != "linux" { // which would show the rest
		on, off = on+"\x1b[>1u", "\x1b[<u"+off
	}
	t.render.SendSequence(on)
	t.restore = func() {
		t.render.SendSequence(off)
		restore()
	}
	return nil
}

// giveTerminal restores the terminal's state.
func (t *chatTerminal) giveTerminal() {
	if t.restore != nil {
		t.restore()
		t.restore = nil
	}
}

// exitProgram ends the program where it stands.
func (t *chatTerminal) exitProgram(status int) {
	t.giveTerminal()
	t.app.exit(status)
}

// newBroker asks the person at the terminal; nil where there is none.
func (t *chatTerminal) newBroker() *approval.Broker {
	if !t.interactive {
		return nil
	}
	b := approval.NewBroker(approval.BrokerOptions{})
	b.Attach("terminal", &orderedApprover{t.out, &screenApprover{t, &ui.Prompt{
		In: t.keyboard, Out: t.render, Pending: b.Pending,
		Pressed: func(ctx context.Context, wait time.Duration) (bool, error) {
			return t.keyboard.Pressed(ctx, wait, t.app.pressed)
		},
	}}})
	return b
}

// screenApprover asks once no other program has the screen.
type screenApprover struct {
	t      *chatTerminal
	person approval.Approver
}

// Approve implements approval.Approver.
func (s *screenApprover) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	if err := s.t.beginQuestion(ctx); err != nil {
		return approval.Answer{}, err
	}
	defer s.t.endQuestion()
	s.t.notify("a question waits")
	return s.person.Approve(ctx, c)
}

// beginQuestion waits until no other program has the screen, and keeps others from it.
func (t *chatTerminal) beginQuestion(ctx context.Context) error {
	for {
		t.mu.Lock()
		free := t.free
		select {
		case <-free:
			t.asking++
			t.mu.Unlock()
			return nil
		default:
		}
		t.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return fmt.Errorf("ask: %w", context.Cause(ctx))
		}
	}
}

func (t *chatTerminal) endQuestion() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asking--
}

// errAsking reports that a question has the screen.
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

// programRunner returns a function that runs a program on the terminal, nil for a plain chat.
func (t *chatTerminal) programRunner(ctx context.Context) func(name string, args ...string) error {
	if t.plain {
		return nil
	}
	return func(name string, args ...string) error {
		release, err := t.takeScreen()
		if err != nil {
			return err
		}
		defer release()
		defer t.keyboard.Pause()()
		defer t.render.Suspend()()
		t.giveTerminal()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = t.app.stdin, t.app.stderr, t.app.stderr, t.app.environ
		err = cmd.Run()
		if takeErr := t.takeTerminal(); err == nil {
			err = takeErr
		}
		return err
	}
}

// notify draws attention to the terminal.
func (t *chatTerminal) notify(text string) {
	switch {
	case !t.interactive || t.attention == "off":
	case t.attention == "bell", t.plain, t.app.environ.get("TERM") == "linux":
		t.render.SendSequence("\a")
	default:
		t.render.SendSequence("\a\x1b]9;caisson: " + text + "\a")
	}
}

// showRecord passes a record on and never waits.
func (t *chatTerminal) showRecord(r record.Record, line []byte) {
	t.status.AddRecord(r)
	t.userInterface.showRecord(r, line)
}

// showDelta passes live output on. Of an answer nothing is left out.
func (t *chatTerminal) showDelta(d runner.Delta) {
	if d.CallID != "" {
		t.userInterface.showDelta(d)
		return
	}
	t.out.Queue(len(d.Text), func() { t.render.Delta(d) })
}

// close ends what finish has not ended.
func (t *chatTerminal) close(ctx context.Context) {
	t.userInterface.close(ctx)
	t.keyboard.Close()
	t.giveTerminal()
}

// finish shows the end of the conversation and returns its exit status.
func (t *chatTerminal) finish(ctx context.Context, end chat.End) int {
	t.finished = true
	if t.flush(ctx) {
		t.render.Print(ui.Summary(end.Report, t.colour)...)
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
