package execapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// repeater repeats each line that is typed, until "exit CODE" or a cancellation.
func repeater(ctx context.Context, r Request, stdin io.Reader, stdout, _ io.Writer) Result {
	fmt.Fprintln(stdout, "begins", strings.HasPrefix(r.ID, "exe_"))
	lines := make(chan string)
	go func() {
		defer close(lines)
		for typed := bufio.NewScanner(stdin); typed.Scan(); {
			select {
			case lines <- typed.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case line := <-lines:
			var code int
			if n, _ := fmt.Sscanf(line, "exit %d", &code); n == 1 {
				return Result{Status: sandbox.ExitStatus{Code: code}}
			}
			fmt.Fprintln(stdout, "got", line)
		case <-ctx.Done():
			return Result{Status: sandbox.ExitStatus{Code: -1, Cancelled: true}}
		}
	}
}

// peer is one client of a detachable command.
type peer struct {
	t      *testing.T
	typed  *io.PipeWriter
	shown  *bufio.Reader
	leave  context.CancelCauseFunc
	result chan Result
}

// attach connects with a new command, or goes back to one.
func attach(t *testing.T, dir string, to *string) *peer {
	t.Helper()
	stdin, typed := io.Pipe()
	shown, stdout := io.Pipe()
	ctx, leave := context.WithCancelCause(t.Context())
	p := &peer{t: t, typed: typed, shown: bufio.NewReader(shown), leave: leave, result: make(chan Result, 1)}
	conn := dial(t, dir)
	t.Cleanup(func() { _, _ = shown.Close(), typed.Close() })
	go func() {
		defer stdin.Close()
		r, err := Run(ctx, conn, Request{
			Argv: [][]byte{[]byte("x")}, Detachable: to == nil, Attach: to, Terminal: &sandbox.TerminalSize{Rows: 24, Columns: 80},
		}, Streams{Stdin: stdin, Stdout: stdout}, nil)
		if err != nil {
			r.Failure = &Failure{Cause: err.Error()}
		}
		_ = stdout.Close()
		p.result <- r
	}()
	return p
}

func (p *peer) want(line string) {
	p.t.Helper()
	if got, err := p.shown.ReadString('\n'); got != line+"\n" {
		p.t.Fatalf("got %q, %v, want %q", got, err, line)
	}
}

func (p *peer) say(line string) { _, _ = io.WriteString(p.typed, line+"\n") }

// TestDetach leaves a command in three ways, and goes back to it each time. A second peer takes it
// from the one before.
func TestDetach(t *testing.T) {
	dir, server := listening(t, repeater)
	only := ""
	p := attach(t, dir, nil)
	p.want("begins true")
	p.say("one")
	p.want("got one")
	p.leave(errors.New("the test leaves"))
	if r := <-p.result; !reflect.DeepEqual(r, Result{Detached: true}) {
		t.Errorf("left with %+v", r)
	}
	p = attach(t, dir, &only)
	p.want("begins true")
	p.want("got one")
	p.say("two")
	p.want("got two")
	other := attach(t, dir, &only)
	if r := <-p.result; !reflect.DeepEqual(r, Result{Detached: true}) {
		t.Errorf("another took it: %+v", r)
	}
	for _, line := range []string{"begins true", "got one", "got two"} {
		other.want(line)
	}
	second := attach(t, dir, nil)
	second.want("begins true")
	ambiguous, none := "exe_", "exe_x"
	if r := <-attach(t, dir, &ambiguous).result; r.Failure == nil || strings.Count(r.Failure.Cause, "\n  exe_") != 2 {
		t.Errorf("of two commands: %+v", r.Failure)
	}
	if r := <-attach(t, dir, &none).result; r.Failure == nil || !strings.Contains(r.Failure.Cause, "no command with this id") {
		t.Errorf("of no command: %+v", r.Failure)
	}
	second.say("exit 4")
	if r := <-second.result; !reflect.DeepEqual(r, Result{Status: sandbox.ExitStatus{Code: 4}}) {
		t.Errorf("ended with %+v", r)
	}
	other.say("exit 5")
	if r := <-other.result; r.Status.Code != 5 || r.Detached {
		t.Errorf("ended with %+v", r)
	}
	if r := <-attach(t, dir, &only).result; r.Failure == nil {
		t.Errorf("after the end: %+v", r)
	}
	if n := len(server.slots); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
}

// TestDetachedCommandsAreBounded fills the slots with commands that nobody is attached to, and ends
// them with the server.
func TestDetachedCommandsAreBounded(t *testing.T) {
	dir, server := listening(t, repeater)
	for range maxPeers {
		p := attach(t, dir, nil)
		p.want("begins true")
		p.leave(nil)
		<-p.result
	}
	if r := <-attach(t, dir, nil).result; r.Failure == nil || r.Failure.Kind != "busy" {
		t.Errorf("one more: %+v", r)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Close(errors.New("the session ends"))
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the commands go on")
	}
}

// TestUnreadTerminal floods a peer that reads nothing: it loses the terminal, and the command goes on.
func TestUnreadTerminal(t *testing.T) {
	was := readTime
	t.Cleanup(func() { readTime = was }) // after the server's end
	readTime = 100 * time.Millisecond
	written := make(chan struct{})
	dir, _ := listening(t, func(ctx context.Context, _ Request, _ io.Reader, stdout, _ io.Writer) Result {
		for range 1000 {
			_, _ = stdout.Write(make([]byte, 32<<10))
		}
		close(written)
		<-ctx.Done()
		return Result{}
	})
	attach(t, dir, nil)
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Fatal("the command waits for the peer")
	}
}
