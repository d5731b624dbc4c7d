package chat

import (
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
)

// Turns are a chat's turns, for its page. It is safe for concurrent use.
type Turns struct{ c *chat }

// Running returns the running turn, or nil.
func (t Turns) Running() *runner.Turn { return t.c.running.Load() }

// shownTime is how long a message from the page waits to be shown before its turn.
// The terminal may belong to an editor.
const shownTime = time.Second

// Start begins a turn with a message that is not from the terminal's user.
func (t Turns) Start(user runner.User, message string, o runner.TurnOptions) (*runner.Turn, error) {
	if t.c.running.Load() != nil {
		return nil, runner.ErrBusy
	}
	shown := make(chan struct{})
	go t.c.postCall(func() {
		t.c.showLines(append(ui.MessageLines(message, t.c.Colour), ui.Dim("  from "+safeText(user.Name), t.c.Colour))...)
		close(shown)
	})
	select {
	case <-shown:
	case <-time.After(shownTime):
	}
	turn, err := t.c.Session.StartFor(user, message, o)
	go t.c.postCall(func() {
		switch {
		case err != nil:
			t.c.showLines(ui.Dim("  it was not sent: "+safeText(err.Error()), t.c.Colour))
		case t.c.turn == nil:
			t.c.follow(turn)
		}
	})
	return turn, err
}

// openPage shows the address of the session's page. It doesn't block the keyboard: the
// page reads all records first.
func openPage(c *chat, _ string) bool {
	go func() {
		address, err := c.Page(Turns{c})
		c.postCall(func() {
			if err != nil {
				c.showLines(ui.ErrorLine("the page can't be served: "+safeText(err.Error()), c.Colour))
			} else {
				c.showLines("open "+address, ui.Dim("the address signs in once, within a minute; /open again makes another", c.Colour))
			}
			c.yourTurn()
		})
	}()
	return true
}
