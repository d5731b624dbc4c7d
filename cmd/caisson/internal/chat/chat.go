package chat

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
)

const (
	// draftFile has the draft, in a session's directory. It is written draftTime after
	// the last key.
	draftFile = "draft.txt"
	draftTime = time.Second
	// stillTime is the time between notices of a plain chat that a turn is running.
	stillTime = 30 * time.Second
	// longTurn is the duration from which the end of a turn is announced.
	longTurn = 10 * time.Second
)

// Options configure a chat. Fields are required unless they say otherwise.
type Options struct {
	Renderer *ui.Renderer
	Keyboard *Keyboard
	Status   *Status
	// Queue calls do, which shows about size bytes, once everything queued earlier is
	// shown.
	Queue func(size int, do func())
	// Session is open. Dir is its directory.
	Session *runner.Session
	Dir     string
	Signals <-chan os.Signal
	// Stop ends the running turn and the session. Force, called once, destroys the
	// sandbox. Exit ends the program.
	Stop  func(cause error)
	Force func()
	Exit  func(status int)

	// Plain shows only lines.
	Plain bool
	// Echo repeats the messages of a plain chat if no terminal does.
	Echo   bool
	Colour bool
	// Notify draws attention to the chat. It may be nil.
	Notify func(text string)
	// Overlay reports that changes wait for /apply.
	Overlay bool
	// Command returns the command for a program on this machine, never one in the
	// workspace.
	Command func(name string, args ...string) (*exec.Cmd, error)
	// External runs a command on the terminal while the chat leaves the terminal alone.
	// It is nil for a plain chat.
	External  func(cmd *exec.Cmd) error
	Getenv    func(name string) string
	Switching Switching
	// Page serves the session's page until the chat ends, opens it in a browser if it
	// can, and returns the address that signs a browser in.
	Page func(t Turns) (address string, err error)
}

// End is the end of a chat.
type End struct {
	Report runner.Report
	// Signal is the signal that ended it, or 0.
	Signal int
	// Next says how the conversation continues. It is nil if it doesn't.
	Next *Next
}

// chat is a running chat. Its fields belong to Run's goroutine, except those that mu
// guards: the content of the live region.
type chat struct {
	Options

	ctx context.Context //nolint:containedctx // it ends with the chat
	// keys are the keyboard's, or nil after its end.
	keys   <-chan key
	events chan func()
	ended  bool
	signal int
	// turn is the running one, or nil. begun is when it began, answer the last answer.
	turn    *runner.Turn
	running atomic.Pointer[runner.Turn] // the same, for other goroutines
	begun   time.Time
	answer  string
	blurred bool
	notes   *time.Timer // writes the draft
	still   *time.Ticker
	// next is set if the chat ends to continue with another session or model. listed
	// are the sessions that /resume NUMBER chooses from.
	next   *Next
	listed []string

	mu       sync.Mutex
	composer composer
	queue    []string
	hint     string
	stops    int
}

// Run holds the conversation until the user ends it, and closes the session.
func Run(ctx context.Context, o Options) End {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &chat{Options: o, ctx: ctx, keys: o.Keyboard.keys, events: make(chan func(), 16), notes: time.NewTimer(time.Hour), still: time.NewTicker(stillTime)}
	defer c.still.Stop()
	c.notes.Stop()
	c.composer.complete = completeCommand
	c.goOn()
	c.readDraft()
	if !c.Plain {
		c.Status.setFooter(c.renderFooter)
		defer c.Status.setFooter(nil)
	}
	c.yourTurn()
	c.Renderer.Draw()
	for !c.ended {
		c.handleEvent()
	}
	c.writeDraft()
	return End{c.closeSession(), c.signal, c.next}
}

func (c *chat) handleEvent() {
	keys := c.keys
	if c.Echo && c.turn != nil {
		keys = nil // piped lines wait for the turn
	}
	select {
	case k := <-keys:
		c.pressKey(k)
		if len(c.keys) == 0 {
			c.Renderer.Draw()
		}
	case do := <-c.events:
		do()
		c.Renderer.Draw()
	case sig := <-c.Signals:
		c.handleSignal(sig)
	case <-c.notes.C:
		c.writeDraft()
	case <-c.ctx.Done():
		c.ended = true
	case <-c.still.C:
		if c.Plain && c.turn != nil {
			c.showLines("still running: " + c.Renderer.Activity())
		}
	}
}

// showLines queues lines, which must be safe to show.
func (c *chat) showLines(lines ...string) {
	size := 0
	for _, l := range lines {
		size += len(l)
	}
	c.Queue(size, func() {
		c.Renderer.Print(lines...)
		c.Renderer.Draw()
	})
}

// handleSignal stops the turn at an interrupt, and ends the chat at other signals.
func (c *chat) handleSignal(sig os.Signal) {
	if sig == os.Interrupt {
		c.stopTurn()
		return
	}
	c.ended, c.signal = true, signalNumber(sig)
	c.Stop(&runner.Interrupted{Signal: c.signal})
}

func signalNumber(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return int(s)
	}
	return int(syscall.SIGTERM)
}

func (c *chat) pressKey(k key) {
	switch k.kind {
	case keyFocus, keyBlur:
		c.blurred = k.kind == keyBlur
		return
	case keyEOF:
		c.ended = c.turn == nil // wait for the answer to the last line
		c.keys = nil
		return
	case keyLine:
		c.sendText(k.text)
		return
	}
	c.mu.Lock()
	act := c.composer.pressKey(k)
	c.hint = ""
	if act != actStop {
		c.stops = 0
	}
	c.mu.Unlock()
	switch act {
	case actEdit:
		c.notes.Reset(draftTime)
	case actSend:
		c.sendDraft()
	case actStop:
		c.stopTurn()
	case actEnd:
		c.ended = true
	case actTakeBack:
		c.takeBack()
	case actEditor:
		c.editDraft()
	}
}

// stopTurn stops the running turn. Without one it moves the draft into the history.
// Without a draft, the second call ends the chat.
func (c *chat) stopTurn() {
	if c.turn != nil {
		c.setHint("stopping: what runs is being ended")
		c.turn.Cancel(&runner.CancelledByUser{Client: "terminal"})
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.composer.text != "" {
		c.composer.takeDraft()
		c.notes.Reset(0)
		c.hint = "the draft is in the history: Up"
		return
	}
	if c.stops++; c.stops > 1 {
		c.ended = true
		return
	}
	c.hint = "Ctrl+C once more to end"
	if c.Plain { // on a line after the terminal's ^C
		c.showLines("", c.hint)
	}
}

func (c *chat) setHint(text string) {
	c.mu.Lock()
	c.hint = text
	c.mu.Unlock()
	if c.Plain && text != "" {
		c.showLines(text)
	}
}

func (c *chat) sendDraft() {
	c.mu.Lock()
	text := c.composer.text
	if strings.TrimSpace(text) == "" {
		c.mu.Unlock()
		return
	}
	c.composer.takeDraft()
	c.mu.Unlock()
	if !c.sendText(text) {
		c.mu.Lock()
		c.composer.setDraft(text)
		c.mu.Unlock()
	}
	c.writeDraft()
}

// sendText runs a command, or sends a message now or after the running turn. It returns
// false if the text must stay a draft.
func (c *chat) sendText(text string) bool {
	text = strings.TrimSpace(text)
	if text == "" {
		c.yourTurn()
		return true
	}
	if name, rest, ok := cutCommand(text); ok {
		return c.runCommand(name, rest)
	}
	if c.turn != nil {
		c.queueText(text)
		return true
	}
	return c.startTurn(text)
}

// queueText keeps a message or command until the running turn ends.
func (c *chat) queueText(text string) {
	c.mu.Lock()
	c.queue = append(c.queue, text)
	c.mu.Unlock()
	if c.Plain {
		c.showLines("queued, for after this turn")
	}
}

func (c *chat) startTurn(text string) bool {
	turn, err := c.Session.Start(text)
	if err != nil {
		c.showLines(ui.ErrorLine(describeOver(err), c.Colour))
		return false
	}
	if !c.Plain || c.Echo {
		c.showLines(ui.MessageLines(text, c.Colour)...)
	}
	c.follow(turn)
	return true
}

// follow waits for the end of a turn in the background.
func (c *chat) follow(turn *runner.Turn) {
	c.turn, c.begun = turn, time.Now()
	c.running.Store(turn)
	c.still.Reset(stillTime)
	go func() {
		r := turn.Report()
		c.postCall(func() { c.finishTurn(r) })
	}()
}

// goOn shows the recap of a resumed session, and continues an unfinished turn.
func (c *chat) goOn() {
	r := c.Session.Recap()
	if c.Switching.Notice != "" {
		c.showLines(safeText(c.Switching.Notice))
	}
	if r.Turns == 0 {
		return
	}
	if r.Used.Rounds > 0 {
		c.Status.setUsed(r.Used)
	}
	c.answer = r.Answer
	if c.Switching.Notice == "" {
		c.showLines(ui.RecapLines(r.Message, r.Answer, filepath.Base(c.Dir), c.Renderer.Columns(), c.Colour)...)
	}
	if !r.Unfinished {
		return
	}
	turn, err := c.Session.Continue()
	if err != nil {
		c.showLines(ui.ErrorLine(describeOver(err), c.Colour))
		return
	}
	c.showLines("going on with the turn that has no end")
	c.follow(turn)
}

// describeOver describes why a turn can't begin.
func describeOver(err error) string {
	if errors.Is(err, runner.ErrOver) {
		return err.Error() + ". Everything is kept: /quit, then caisson chat --resume goes on"
	}
	return err.Error()
}

// postCall calls do in the goroutine of the chat, unless that has ended.
func (c *chat) postCall(do func()) {
	select {
	case c.events <- do:
	case <-c.ctx.Done():
	}
}

// finishTurn shows the end of a turn and goes on with the queue.
func (c *chat) finishTurn(r runner.TurnReport) {
	c.turn = nil
	c.running.Store(nil)
	c.setHint("")
	if r.Answer != "" {
		c.answer = r.Answer
	}
	c.showLines(ui.TurnLines(r, c.Colour)...)
	for c.sendQueued(r.Reason == loop.StopAnswered) {
		if c.turn != nil || c.ended {
			return
		}
	}
	if c.Notify != nil && c.blurred && time.Since(c.begun) > longTurn {
		c.Notify("the turn has ended")
	}
	if c.keys == nil {
		c.ended = true
		return
	}
	if !c.Overlay {
		c.yourTurn()
		return
	}
	go func() {
		d, err := c.Session.Differences(c.ctx)
		c.postCall(func() { c.showCount(d, err) })
	}()
}

// sendQueued sends the first message or command of the queue and reports whether it did.
// If it doesn't, because send is false or the text can't be sent, the queue becomes a draft.
func (c *chat) sendQueued(send bool) bool {
	c.mu.Lock()
	queue := c.queue
	if len(queue) > 0 {
		c.queue = queue[1:]
	}
	c.mu.Unlock()
	if len(queue) == 0 || send && c.sendText(queue[0]) {
		return len(queue) > 0
	}
	c.mu.Lock()
	c.queue = nil
	c.composer.setDraft(joinDraft(append(slices.Clip(queue), c.composer.text)))
	c.mu.Unlock()
	return false
}

// showCount shows the number of changes that wait for /apply.
func (c *chat) showCount(d changes.Differences, err error) {
	if err == nil && c.Status.setChanged(d.Count.Files) && d.Count.Files > 0 {
		c.showLines("", d.Count.String()+": /diff, /apply, /discard")
	}
	if c.turn == nil {
		c.yourTurn()
	}
}

// yourTurn prompts the user of a plain chat.
func (c *chat) yourTurn() {
	if c.Plain && c.turn == nil {
		c.showLines("your turn: write a message, or /help")
	}
}

// takeBack moves the last queued message, or else the last one of the history, into the
// composer.
func (c *chat) takeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.queue)
	if n == 0 {
		c.composer.recallMessage(c.composer.at - 1)
		return
	}
	c.composer.setDraft(c.queue[n-1])
	c.queue = c.queue[:n-1]
	c.notes.Reset(draftTime)
}

// closeSession closes the session, which may wait for commands to end. A Ctrl+C or a
// signal meanwhile destroys the sandbox, and a second one ends the program.
func (c *chat) closeSession() runner.Report {
	c.setHint("ending the session")
	c.Renderer.Draw()
	keys := c.keys
	if c.Plain { // its lines are for the next session
		keys = nil
	}
	done := make(chan runner.Report, 1)
	go func() { done <- c.Session.Close() }()
	for n := 0; ; {
		select {
		case r := <-done:
			return r
		case k := <-keys:
			if k.kind == keyText && k.ctrl && k.text == "c" {
				n++
			}
		case <-c.Signals:
			n++
		case do := <-c.events:
			_ = do // of a turn that has ended with the session
		}
		switch n {
		case 1:
			c.Force()
			c.setHint("killing the sandbox; once more to end without waiting")
			n++
		case 3:
			c.Exit(130)
		}
		c.Renderer.Draw()
	}
}
