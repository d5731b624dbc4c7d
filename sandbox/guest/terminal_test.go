package guest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

// terminal is a command on a terminal.
type terminal struct {
	t       *testing.T
	keys    *io.PipeWriter
	resizes chan sandbox.TerminalSize
	cancel  context.CancelFunc
	process sandbox.Process

	mu    sync.Mutex
	wrote sync.Cond
	text  strings.Builder
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote.Broadcast()
	return s.text.Write(p)
}

// onTerminal starts a shell script on a terminal of 24 by 80 without echo.
func onTerminal(t *testing.T, c *guest.Conn, script string) *terminal {
	t.Helper()
	r, w := io.Pipe()
	s := &terminal{t: t, keys: w, resizes: make(chan sandbox.TerminalSize)}
	s.wrote.L = &s.mu
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(t.Context())
	t.Cleanup(func() { _ = w.Close() })
	var err error
	s.process, err = c.Start(ctx, sandbox.Command{
		Argv: []string{"sh", "-c", "stty -echo; echo ready; " + script}, Stdin: r, Stdout: s, Stderr: failingWriter{t}, Grace: 100 * time.Millisecond,
		Terminal: &sandbox.Terminal{TerminalSize: sandbox.TerminalSize{Rows: 24, Columns: 80}, Resizes: s.resizes},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.await("ready\r\n")
	return s
}

type failingWriter struct{ t *testing.T }

func (w failingWriter) Write(p []byte) (int, error) {
	w.t.Errorf("standard error has %q", p)
	return len(p), nil
}

// await waits for a text and drops all up to its end.
func (s *terminal) await(text string) {
	s.t.Helper()
	over := time.AfterFunc(time.Minute, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.text.WriteString(text)
		s.t.Errorf("%q did not come", text)
		s.wrote.Broadcast()
	})
	defer over.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if _, after, ok := strings.Cut(s.text.String(), text); ok {
			s.text.Reset()
			s.text.WriteString(after)
			return
		}
		s.wrote.Wait()
	}
}

func (s *terminal) typeKeys(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, keys); err != nil {
		s.t.Error(err)
	}
}

// end waits for the end, and returns the rest of the output.
func (s *terminal) end() (sandbox.Exit, string) {
	s.t.Helper()
	exit, err := s.process.Wait()
	if err != nil || exit.Kill.Left != 0 {
		s.t.Errorf("it ends with %+v, %v", exit, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return exit, s.text.String()
}

// TestTerminalKeys checks what control characters do, and the end of input.
func TestTerminalKeys(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	for name, tt := range map[string]struct {
		script, keys string
		close        bool
		status       sandbox.ExitStatus
		rest         string
	}{
		"a line":          {script: "read -r x; echo \"<$x>\"; exit 7", keys: "grüßß\x7fe\n", status: sandbox.ExitStatus{Code: 7}, rest: "<grüße>\r\n"},
		"^C":              {script: "cat", keys: "\x03", status: sandbox.ExitStatus{Code: -1, Signal: 2}},
		"^C and a trap":   {script: "trap 'echo over; exit 3' INT; echo set; read -r x; exit 4", keys: "\x03", status: sandbox.ExitStatus{Code: 3}, rest: "\r\nover\r\n"},
		"^\\":             {script: "cat", keys: "\x1c", status: sandbox.ExitStatus{Code: -1, Signal: 3}},
		"^D":              {script: "cat; echo ended", keys: "\x04", rest: "ended\r\n"},
		"the end":         {script: "cat; echo ended", close: true, rest: "ended\r\n"},
		"the end in line": {script: "cat; echo ended", keys: "abc", close: true, rest: "abcended\r\n"},
		"a raw terminal":  {script: "stty raw; echo set; head -c 3 | od -An -tx1", keys: "\x03\x04\r", rest: "\n 03 04 0d\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := onTerminal(t, c, tt.script)
			if strings.Contains(tt.script, "echo set") {
				s.await("set")
			}
			if tt.status.Signal != 0 { // until cat runs, dash notes a signal and may forget it
				s.typeKeys("x\n")
				s.await("x\r\n")
			}
			s.typeKeys(tt.keys)
			if tt.close {
				_ = s.keys.Close()
			}
			exit, rest := s.end()
			if exit.Status != tt.status || rest != tt.rest {
				t.Errorf("%v with %q, want %v with %q", exit.Status, rest, tt.status, tt.rest)
			}
			if exit.Stderr.Total != 0 {
				t.Errorf("%d bytes on stderr", exit.Stderr.Total)
			}
		})
	}
}

// TestTerminalResizes checks that the last of many sizes is the one that
// counts, and that a late one hurts nothing.
func TestTerminalResizes(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	s := onTerminal(t, c, "trap 'stty size' WINCH; stty size; while ! read -r x; do :; done; stty size")
	s.await("24 80\r\n")
	s.resizes <- sandbox.TerminalSize{Rows: 1, Columns: 2}
	s.await("1 2\r\n")
	for i := range 200 {
		s.resizes <- sandbox.TerminalSize{Rows: uint16(i), Columns: uint16(2 * i)}
	}
	s.await("199 398\r\n")
	s.typeKeys("x\n")
	if exit, rest := s.end(); !exit.Status.Success() || !strings.HasSuffix(rest, "199 398\r\n") {
		t.Errorf("%v with %q", exit.Status, rest)
	}
	select {
	case s.resizes <- sandbox.TerminalSize{Rows: 5, Columns: 5}:
	default:
	}
	if r := sh(t, c, "echo still"); r.stdout != "still\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestTerminalKill checks that nothing of a command on a terminal survives its
// cancellation.
func TestTerminalKill(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	// While dash (0.5.12) runs a program with vfork, it holds signals back, and the program can
	// end of SIGTERM although it is ignored. So both shells wait.
	s := onTerminal(t, c, `trap '' TERM HUP INT; setsid sh -c 'trap "" TERM HUP; echo child >/dev/tty || { sleep 1000 & echo away; wait; }' & wait`)
	s.await("away")
	s.cancel()
	if exit, _ := s.end(); !exit.Status.Cancelled || exit.Kill.Killed != 3 {
		t.Errorf("it ends with %+v", exit)
	}
	s = onTerminal(t, c, "trap '' TERM HUP; setsid sleep 1000 & exit 3")
	if exit, _ := s.end(); exit.Status.Code != 3 || !exit.Kill.AfterExit {
		t.Errorf("a command with a daemon ends with %+v", exit)
	}
}

// TestTerminalFlood checks that much output is complete and in order.
func TestTerminalFlood(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	s := onTerminal(t, c, "stty -opost; seq 1500000")
	exit, rest := s.end()
	var want strings.Builder
	for i := range 1500000 {
		fmt.Fprintln(&want, i+1)
	}
	if rest != want.String() {
		t.Errorf("%d bytes came, want %d", len(rest), want.Len())
	}
	sum := sha256.Sum256([]byte("ready\r\n" + rest))
	if exit.Stdout.SHA256 != hex.EncodeToString(sum[:]) {
		t.Error("the hash is another")
	}
}

// TestTerminalInvalid checks the errors of a start.
func TestTerminalInvalid(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	_, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"true"}, Dir: "/workspace/none", Terminal: &sandbox.Terminal{}})
	if !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"none"}, Terminal: &sandbox.Terminal{}})()
	if r.Status.Code != 127 || r.stdout != "caisson: \"none\": not found\r\n" || r.stderr != "" {
		t.Errorf("no program: %+v", r)
	}
}
