package terminal

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

var small, large = sandbox.TerminalSize{Rows: 24, Columns: 80}, sandbox.TerminalSize{Rows: 50, Columns: 132}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(text), err)
	}
}

// rest reads what a client gets until an error.
func rest(c *Client) (string, error) {
	var out bytes.Buffer
	for {
		p, err := c.Next()
		if err != nil {
			return out.String(), err
		}
		out.Write(p)
	}
}

func sizes(t *Terminal) (all []sandbox.TerminalSize) {
	for {
		select {
		case size := <-t.ForCommand().Resizes:
			all = append(all, size)
		default:
			return all
		}
	}
}

// TestClients lets clients come and go, also at once: each gets the last output and then all that
// follows, and one at most has the terminal.
func TestClients(t *testing.T) {
	term := New(small)
	first := term.Attach(small)
	write(t, term, "one ")
	if p, err := first.Next(); string(p) != "one " || err != nil {
		t.Errorf("got %q, %v", p, err)
	}
	first.Detach()
	if _, err := first.Next(); !errors.Is(err, ErrDetached) {
		t.Errorf("after Detach: %v", err)
	}
	if _, err := first.Write([]byte("x")); !errors.Is(err, ErrDetached) {
		t.Errorf("typed after Detach: %v", err)
	}
	write(t, term, strings.Repeat("x", 3*ringBytes)+"end ") // nobody makes it wait
	second := term.Attach(small)
	write(t, second, "typed")
	third := term.Attach(large)
	if _, err := second.Next(); !errors.Is(err, ErrTaken) {
		t.Errorf("after another came: %v", err)
	}
	second.Resize(small)
	second.Detach()
	term.End()
	text, err := rest(third)
	if !errors.Is(err, io.EOF) || len(text) != ringBytes || !strings.HasSuffix(text, "xend ") {
		t.Errorf("got %d bytes, %v", len(text), err)
	}
	if n, err := term.Read(make([]byte, 9)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("input after the end: %d, %v", n, err)
	}
	if term.Total() != 3*ringBytes+8 {
		t.Errorf("counted %d bytes", term.Total())
	}
	third.Detach()
	late := term.Attach(large)
	if text, err := rest(late); !errors.Is(err, io.EOF) || len(text) != endedBytes || !strings.HasSuffix(text, "xend ") {
		t.Errorf("after the end: %d bytes, %v", len(text), err)
	}
}

// TestSlowClient checks how far a command gets ahead of a client, and what lets it go on.
func TestSlowClient(t *testing.T) {
	for name, release := range map[string]func(*Terminal, *Client){
		"it reads":    func(_ *Terminal, c *Client) { _, _ = c.Next() },
		"it leaves":   func(_ *Terminal, c *Client) { c.Detach() },
		"cancelled":   func(t *Terminal, _ *Client) { t.Hurry() },
		"it is taken": func(t *Terminal, _ *Client) { t.Attach(large).Detach() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				term := New(small)
				c := term.Attach(small)
				written := false
				go func() {
					write(t, term, strings.Repeat("a", ringBytes))
					write(t, term, "b")
					written = true
				}()
				synctest.Wait()
				if written || term.Total() != ringBytes {
					t.Fatalf("%d bytes are written, more: %t", term.Total(), written)
				}
				release(term, c)
				synctest.Wait()
				if !written {
					t.Error("the command still waits")
				}
			})
		})
	}
}

// TestInput checks that input arrives in order, waits for a command that doesn't read, and that the
// end of either side ends the wait.
func TestInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := New(small)
		c := term.Attach(small)
		go func() {
			for range 3 {
				_, _ = c.Write(bytes.Repeat([]byte("ab"), typedBytes/2))
			}
			_, _ = c.Write([]byte("c"))
		}()
		synctest.Wait()
		if !c.Blocked() || len(term.typed) != typedBytes {
			t.Errorf("%d bytes wait; blocked: %t", len(term.typed), c.Blocked())
		}
		got := make([]byte, 3*typedBytes+1)
		if _, err := io.ReadFull(term, got); err != nil || string(got) != strings.Repeat("ab", 3*typedBytes/2)+"c" {
			t.Errorf("%v, %d bytes", err, len(got))
		}
		if c.Blocked() {
			t.Error("still blocked")
		}
		for _, end := range []func(){func() { c.Detach() }, term.End} {
			c = term.Attach(small)
			write(t, c, strings.Repeat("x", typedBytes))
			over := false
			go func() {
				_, _ = c.Write([]byte("y"))
				over = true
			}()
			synctest.Wait()
			if over {
				t.Error("more input is taken")
			}
			end()
			if synctest.Wait(); !over {
				t.Error("it still waits")
			}
			_, _ = term.Read(got)
		}
	})
}

// TestSizes checks that the last size arrives, and that a returning client's program sees a change
// even if the size is the same.
func TestSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := New(small)
		c := term.Attach(small)
		if got := sizes(term); len(got) != 0 {
			t.Errorf("the first client changed the size: %v", got)
		}
		for rows := range uint16(1000) {
			c.Resize(sandbox.TerminalSize{Rows: rows + 1, Columns: 80})
		}
		if got := sizes(term); len(got) == 0 || got[len(got)-1].Rows != 1000 {
			t.Errorf("got %v", got)
		}
		c.Resize(small)
		_ = sizes(term)
		c.Detach()
		c = term.Attach(small)
		before := sizes(term)
		time.Sleep(redrawTime + 1)
		if after := sizes(term); len(before) != 1 || before[0] == small || len(after) != 1 || after[0] != small {
			t.Errorf("a returning client: %v, then %v", before, after)
		}
		c.Detach()
		_ = term.Attach(small)
		term.Attach(large).Detach()
		_ = sizes(term)
		time.Sleep(redrawTime + 1)
		if got := sizes(term); len(got) != 0 {
			t.Errorf("a client that has gone set %v", got)
		}
	})
}
