package livesandbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/internal/emulator"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

const (
	// recentBytes bounds the kept output of a terminal, from which its screen is drawn.
	recentBytes = 256 << 10
	// typedInputs is how many inputs may wait until the program reads.
	typedInputs = 16
	// drawTime bounds the drawing of a screen.
	drawTime = time.Second
)

// terminal is the model's side of a command's terminal.
type terminal struct {
	size  sandbox.TerminalSize
	typed chan []byte
	rest  []byte // of the last input; the reader's alone
	// shows is signalled when there is new output.
	shows chan struct{}
	over  <-chan struct{}

	mu sync.Mutex
	// safe writes the output without secrets to recent. A look flushes it: what may be
	// the beginning of a secret waits for the rest.
	safe        *redact.Writer
	recent      []byte // at least the last recentBytes
	total, seen int64
	state       shell.Typed
}

func newTerminal(size sandbox.TerminalSize, r *redact.Redactor, over <-chan struct{}) *terminal {
	t := &terminal{size: size, typed: make(chan []byte, typedInputs), shows: make(chan struct{}, 1), over: over}
	t.safe = r.NewWriter(recentOutput{t})
	return t
}

// Read returns what is typed, until the command is over.
func (t *terminal) Read(p []byte) (int, error) {
	if len(t.rest) == 0 {
		select {
		case t.rest = <-t.typed:
		case <-t.over:
			return 0, io.EOF
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Write takes output. It never fails.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	_, _ = t.safe.Write(p) // recentOutput never fails
	t.mu.Unlock()
	select {
	case t.shows <- struct{}{}:
	default: // an earlier signal is still pending
	}
	return len(p), nil
}

// recentOutput keeps a terminal's output. The caller holds its lock.
type recentOutput struct{ t *terminal }

func (o recentOutput) Write(p []byte) (int, error) {
	t := o.t
	t.recent = append(t.recent, p...)
	if len(t.recent) > 2*recentBytes {
		t.recent = bytes.Clone(t.recent[len(t.recent)-recentBytes:])
	}
	t.total += int64(len(p))
	return len(p), nil
}

// cursorMode returns keys as the program has asked for cursor keys (DECCKM).
func (t *terminal) cursorMode(keys []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.safe.Flush()
	if bytes.LastIndex(t.recent, []byte("\x1b[?1h")) <= bytes.LastIndex(t.recent, []byte("\x1b[?1l")) {
		return keys
	}
	for _, c := range "ABCDHF" {
		keys = bytes.ReplaceAll(keys, []byte("\x1b["+string(c)), []byte("\x1bO"+string(c)))
	}
	return keys
}

// waitQuiet waits until output has come and then paused, at most for a time.
func (t *terminal) waitQuiet(ctx context.Context, most time.Duration) {
	late, pause := time.NewTimer(most), min(max(most/5, 100*time.Millisecond), time.Second)
	defer late.Stop()
	var quiet <-chan time.Time
	for {
		select {
		case <-t.shows:
			quiet = time.After(pause)
		case <-quiet:
			return
		case <-late.C:
			return
		case <-t.over:
			return
		case <-ctx.Done():
			return
		}
	}
}

// trim drops all but the end of the output of a command that has ended.
func (t *terminal) trim() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.safe.Close()
	t.recent = bytes.Clone(t.recent[max(0, len(t.recent)-captureBytes):])
}

// takeNew returns the output that takeNew has not returned before, without secrets, and the
// number of bytes before it that are lost.
func (t *terminal) takeNew() (output []byte, lost int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.safe.Flush()
	n := min(t.total-t.seen, int64(len(t.recent)))
	lost = t.total - t.seen - n
	t.seen = t.total
	return bytes.Clone(t.recent[int64(len(t.recent))-n:]), lost
}

// Typed returns what the policy must know about a terminal's input. b is nil for tools that
// have only definitions.
func (b *backgrounds) Typed(handle string) shell.Typed {
	if b == nil {
		return shell.Typed{}
	}
	j := b.find(handle)
	if j == nil || j.terminal == nil {
		return shell.Typed{}
	}
	j.terminal.mu.Lock()
	defer j.terminal.mu.Unlock()
	return j.terminal.state
}

// Type types into a command's terminal and waits for its output.
func (b *backgrounds) Type(ctx context.Context, handle string, in shell.Typing) (shell.Shown, error) {
	j := b.find(handle)
	switch {
	case j == nil:
		return shell.Shown{}, shell.ErrNoOutput
	case j.terminal == nil:
		return shell.Shown{}, shell.ErrNoTerminal
	}
	t := j.terminal
	if len(in.Bytes) > 0 {
		if state, running := j.state(); !running {
			return shell.Shown{}, notTyped("ended", fmt.Sprintf("%s has ended: %s. %s reads what it wrote.", handle, state, shell.OutputName))
		}
		select {
		case <-t.shows: // output from before
		default:
		}
		select {
		case t.typed <- t.cursorMode(in.Bytes):
		default:
			return shell.Shown{}, notTyped("busy", fmt.Sprintf("The program has not read the last %d inputs; wait, or end it with %s.", typedInputs, shell.KillName))
		}
		t.mu.Lock()
		t.state = in.State
		t.mu.Unlock()
	}
	t.waitQuiet(ctx, in.Wait)
	return b.show(j, in.Screen), nil
}

func notTyped(reason, why string) error {
	return &tools.Error{Class: tools.ErrorExecution, Reason: reason, Visible: true, Message: "Nothing was typed: " + why}
}

// show returns what a command's terminal shows.
func (b *backgrounds) show(j *background, screen bool) (s shell.Shown) {
	s.State, s.Running = j.state()
	s.New, s.LeftOut = j.terminal.takeNew()
	s.Redact = b.x.spill.redact.Bytes
	if screen {
		if err := j.terminal.draw(&s); err != nil {
			s.Undrawn = err.Error()
		}
		s.Screen = b.x.spill.redact.Text(s.Screen)
	}
	return s
}

// draw draws the screen from the recent output, which is not trusted.
func (t *terminal) draw(s *shell.Shown) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the program's output broke the emulator: %v", v)
		}
	}()
	t.mu.Lock()
	_ = t.safe.Flush()
	output := string(t.recent)
	t.mu.Unlock()
	e := emulator.New(int(t.size.Columns), int(t.size.Rows))
	if err := emulator.Play(e, output, time.Now().Add(drawTime)); err != nil {
		return err
	}
	at := e.CursorPosition()
	s.Screen, s.Row, s.Column = strings.TrimRight(e.String(), " \n"), at.Y+1, at.X+1
	return nil
}
