package guest_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestGuestKilled(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	up := signalled{make(chan struct{})}
	p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "echo 12345; sleep 1000"}, Stdout: up})
	if err != nil {
		t.Fatal(err)
	}
	<-up.ch
	g.Kill()
	exit, err := p.Wait()
	if !errors.Is(err, sandbox.ErrLost) || exit.Status.Success() {
		t.Fatalf("wait: %+v, %v", exit, err)
	}
	if exit.Stdout.Live != 6 {
		t.Errorf("what was captured is %+v", exit.Stdout)
	}
	<-c.Done()
	if !errors.Is(c.Err(), sandbox.ErrLost) {
		t.Errorf("connection's error is %v", c.Err())
	}
	if _, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("start: %v", err)
	}
	if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"}); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("apply: %v", err)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("ping: %v", err)
	}
}

// TestClose checks that the guest exits when its input ends, and everything
// with it.
func TestClose(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	up := signalled{make(chan struct{})}
	p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", daemons}, Stdout: up})
	if err != nil {
		t.Fatal(err)
	}
	<-up.ch
	if len(g.Processes(t)) < 8 {
		t.Fatal("the daemons don't run: this test proves nothing")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("wait: %v", err)
	}
	if c.Err() != nil {
		t.Errorf("after Close the connection's error is %v", c.Err())
	}
	if state := g.Exited(); state.ExitCode() != 0 {
		t.Errorf("the guest ended with %v: %s", state, g.Stderr)
	}
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	if err := c.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// TestHostBreaksProtocol checks that the guest ends rather than guesses.
func TestHostBreaksProtocol(t *testing.T) {
	for name, send := range map[string]func(w *wire.Writer, raw io.Writer) error{
		"no configuration": func(w *wire.Writer, _ io.Writer) error {
			return w.Send(wire.Frame{Type: wire.TypePing, Payload: make([]byte, 8)})
		},
		"not a frame": func(_ *wire.Writer, raw io.Writer) error {
			_, err := raw.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
			return err
		},
		"other version": func(w *wire.Writer, _ io.Writer) error {
			return w.SendJSON(0, wire.TypeConfig, wire.Config{Protocol: 99})
		},
		"commands as root": func(w *wire.Writer, _ io.Writer) error {
			c := guest.NewConfig(sandbox.Spec{})
			c.CommandUID = 0
			return w.SendJSON(0, wire.TypeConfig, c)
		},
		"even stream": func(w *wire.Writer, _ io.Writer) error {
			return errors.Join(
				w.SendJSON(0, wire.TypeConfig, guest.NewConfig(sandbox.Spec{})),
				w.SendJSON(2, wire.TypeOpen, wire.Open{Apply: &wire.Apply{Size: 1}}),
			)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := guesttest.Start(t, guesttest.Options{})
			go func() { _, _ = io.Copy(io.Discard, g.Conn) }()
			if err := send(wire.NewWriter(g.Conn), g.Conn); err != nil {
				t.Fatal(err)
			}
			if state := g.Exited(); state.ExitCode() != 1 {
				t.Errorf("the guest ended with %v", state)
			}
			if !strings.HasPrefix(g.Stderr.String(), "caisson-guest: ") {
				t.Errorf("the guest said %q", g.Stderr)
			}
		})
	}
}
