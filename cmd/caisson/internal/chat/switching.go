package chat

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

// Next says how a conversation continues after its session was closed: with the same
// session or another.
type Next struct {
	// Session is the session's id or the beginning of one.
	Session string
	// Model is the profile or provider/model of its next turns. "" keeps its own.
	Model string
}

// Switching is for continuing with another session or model.
type Switching struct {
	// Model is the profile of the session's turns. Models are the configured names.
	Model  string
	Models []string
	// List returns the newest sessions of the workspace that a chat can continue.
	List func() ([]trace.Entry, error)
	// Prepare returns n with the complete id of its session, or an error if the chat
	// can't continue with it.
	Prepare func(n Next) (Next, error)
	// Notice replaces the recap unless it is empty.
	Notice string
}

// switchModel lists the models, or continues with another one.
func switchModel(c *chat, name string) bool {
	if name == "" {
		c.showLines("the model is " + safeText(c.Switching.Model))
		for _, m := range c.Switching.Models {
			c.showLines("  " + safeText(m))
		}
		c.showLines(ui.Dim("/model NAME chooses one of these, or PROVIDER/MODEL, for the next turns", c.Colour))
		c.yourTurn()
		return true
	}
	if name == c.Switching.Model {
		c.showLines("the model is " + safeText(name) + " already")
		c.yourTurn()
		return true
	}
	return switchTo(c, "/model "+name, Next{Session: filepath.Base(c.Dir), Model: name})
}

// switchSession lists sessions, or continues with another one.
func switchSession(c *chat, name string) bool {
	if name == "" {
		listSessions(c)
		c.yourTurn()
		return true
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= len(c.listed) {
		name = c.listed[n-1]
	}
	return switchTo(c, "/resume "+name, Next{Session: name})
}

func listSessions(c *chat) {
	list, err := c.Switching.List()
	if err != nil {
		c.showLines(ui.ErrorLine("the sessions can't be listed: "+err.Error(), c.Colour))
		return
	}
	list = slices.DeleteFunc(list, func(e trace.Entry) bool { return e.Session == filepath.Base(c.Dir) })
	if c.listed = nil; len(list) == 0 {
		c.showLines("there is no other session on this workspace")
		return
	}
	for i, e := range list {
		c.listed = append(c.listed, e.Session)
		task, _, _ := strings.Cut(e.Task, "\n")
		line := fmt.Sprintf("%2d  %s  %s  ", i+1, e.Session, e.Begun.Local().Format("2006-01-02 15:04"))
		if e.State == trace.StateLive {
			line += "(in use) "
		}
		c.showLines(truncateText(safeText(line+task), c.Renderer.Columns()-1))
	}
	c.showLines(ui.Dim("/resume NUMBER or /resume SESSION goes on with one; this session is kept", c.Colour))
}

// switchTo ends the chat to continue with another session, if that is possible. While a
// turn runs, the command is queued.
func switchTo(c *chat, command string, n Next) bool {
	n, err := c.Switching.Prepare(n)
	if err != nil {
		c.showLines(ui.ErrorLine(err.Error(), c.Colour))
		c.yourTurn()
		return false
	}
	if c.turn != nil {
		c.queueText(command)
		return true
	}
	c.next, c.ended = &n, true
	return true
}

func safeText(text string) string {
	safe, _ := tools.Display(text)
	return ui.SureWidth(safe)
}

// WatchInterrupts calls stop when Ctrl+C is pressed or a signal comes, until release is
// called. It is for the time between two sessions, when no chat reads the keyboard. It
// drops other keys, but no lines of a plain chat.
func WatchInterrupts(ctx context.Context, k *Keyboard, signals <-chan os.Signal, stop func(cause error)) (release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	keys := k.keys
	if !k.raw {
		keys = nil
	}
	go func() {
		defer close(done)
		for {
			select {
			case pressed := <-keys:
				switch {
				case pressed.kind == keyEOF:
					keys = nil
					defer func() { go func() { k.keys <- pressed }() }() // it ends the next chat
				case pressed.kind == keyText && pressed.ctrl && pressed.text == "c":
					stop(&runner.CancelledByUser{Client: "terminal"})
				}
			case sig := <-signals:
				stop(&runner.Interrupted{Signal: signalNumber(sig)})
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(nil); <-done }
}
