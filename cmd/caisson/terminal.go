package main

import (
	"cmp"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/sandbox"
)

// localTerminal is the user's terminal while a command has one in the sandbox.
type localTerminal struct {
	app *app
	// typed is set if the command gets what is typed.
	typed bool
	// over is closed when the terminal is the user's again.
	over chan struct{}

	mu          sync.Mutex
	raw, closed bool
	modes       terminalModes
	held        []string // notices for later
}

// openTerminal opens the local terminal, which the caller must close, and returns the
// one for the command, or nil without -t.
func (f *execFlags) openTerminal(a *app) (*localTerminal, *sandbox.Terminal) {
	t := &localTerminal{app: a, typed: f.TTY && f.Stdin, over: make(chan struct{})}
	if !f.TTY {
		return t, nil
	}
	changed, resizes := make(chan os.Signal, 1), make(chan sandbox.TerminalSize)
	signal.Notify(changed, syscall.SIGWINCH)
	go t.watchSize(changed, resizes)
	return t, &sandbox.Terminal{TerminalSize: a.terminalSize(), Resizes: resizes}
}

func (t *localTerminal) watchSize(changed chan os.Signal, resizes chan<- sandbox.TerminalSize) {
	defer signal.Stop(changed)
	for {
		select {
		case <-changed:
		case <-t.over:
			return
		}
		select {
		case resizes <- t.app.terminalSize():
		case <-t.over:
			return
		}
	}
}

// terminalVariables returns what programs on a terminal have to know about it.
func terminalVariables(env environ) []string {
	variables := []string{"TERM=" + cmp.Or(env.get("TERM"), "xterm")}
	if colours := env.get("COLORTERM"); colours != "" {
		variables = append(variables, "COLORTERM="+colours)
	}
	return variables
}

// terminalSize returns the size of the first standard stream that is a terminal.
func (a *app) terminalSize() sandbox.TerminalSize {
	for _, stream := range []any{a.stdin, a.stdout, a.stderr} {
		if f, ok := stream.(*os.File); ok && a.terminal(stream) {
			if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
				return sandbox.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}
			}
		}
	}
	columns, rows := a.size()
	return sandbox.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}
}

// begin gives the terminal to the command, if it gets what is typed: every key is
// passed on, and everything else that would be printed waits.
func (t *localTerminal) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if keys, ok := t.app.keys.(*ui.TerminalKeys); ok && t.typed && !t.closed {
		t.raw = keys.SetRaw() == nil // otherwise the terminal is gone
	}
}

// watch returns a writer that passes the command's output on to w. It notes which modes of
// the terminal to reset at the end.
func (t *localTerminal) watch(w io.Writer) io.Writer {
	if !t.app.terminal(t.app.stdout) {
		return w
	}
	return &watchedWriter{t, w}
}

type watchedWriter struct {
	t  *localTerminal
	to io.Writer
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	w.t.mu.Lock()
	w.t.modes.add(p)
	w.t.mu.Unlock()
	return w.to.Write(p)
}

// say prints a notice, after the command if that has the terminal.
func (t *localTerminal) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.raw {
		t.held = append(t.held, text)
		return
	}
	t.app.warn(text)
}

// close gives the terminal back to the user. It may be called again.
func (t *localTerminal) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	close(t.over)
	if t.modes.escaped {
		_, _ = io.WriteString(t.app.stdout, readable+t.modes.reset()) // the terminal may be gone
	}
	if t.raw {
		t.app.keys.SetSingle(false)
		t.raw = false
	}
	for _, text := range t.held {
		t.app.warn(text)
	}
}
