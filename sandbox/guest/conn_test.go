package guest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// closing is a connection whose Close says what the test says.
type closing struct {
	net.Conn
	err error
}

func (c closing) Close() error { return errors.Join(c.Conn.Close(), c.err) }

// TestDialEnds: a Dial that fails before or by its context closes what it was
// given; one that has succeeded is not ended by its context.
func TestDialEnds(t *testing.T) {
	cause := errors.New("no longer wanted")
	for name, tt := range map[string]struct {
		config func(*wire.Config)
		cancel bool
		want   error
	}{
		"configuration": {config: func(c *wire.Config) { c.CommandUID = 0 }, want: sandbox.ErrInvalid},
		"context":       {config: func(*wire.Config) {}, cancel: true, want: cause},
	} {
		t.Run(name, func(t *testing.T) {
			host, far := net.Pipe()
			defer far.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.cancel {
				cancel(cause)
			}
			config := guest.NewConfig(sandbox.Spec{})
			tt.config(&config)
			if _, err := guest.Dial(ctx, guest.Options{Conn: host, Config: config}); !errors.Is(err, tt.want) {
				t.Errorf("error is %v, want one of %v", err, tt.want)
			}
			if _, err := host.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("the connection is left open: %v", err)
			}
		})
	}
	t.Run("context after it", func(t *testing.T) {
		host, far := net.Pipe()
		defer far.Close()
		l := &liar{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), raw: far}
		go func() {
			l.next()
			l.json(0, wire.TypeHello, wire.Hello{Protocol: wire.Version, PID: 7})
			l.next()
			l.pong(1)
			l.drain()
		}()
		ctx, cancel := context.WithCancel(t.Context())
		c, err := guest.Dial(ctx, guest.Options{Conn: host, Config: guest.NewConfig(sandbox.Spec{})})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := c.Ping(t.Context()); err != nil || c.Hello().PID != 7 {
			t.Errorf("ping: %v, hello %+v", err, c.Hello())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestEnds: Close and a loss end all that is open or begins later with an error
// of ErrLost. Only a loss is an error of the connection, and logged, once.
func TestEnds(t *testing.T) {
	failed := errors.New("close failed")
	for name, tt := range map[string]struct {
		end  func(t *testing.T, c *guest.Conn, l *liar)
		lost string // what the connection's error and the log say
		text string // what calls fail with
	}{
		"closed": {
			end: func(t *testing.T, c *guest.Conn, _ *liar) {
				if err := c.Close(); !errors.Is(err, failed) {
					t.Errorf("close: %v", err)
				}
				select {
				case <-c.Done():
				default:
					t.Error("closed, and not done")
				}
			},
			text: "the connection was closed",
		},
		"guest ended": {
			end: func(t *testing.T, c *guest.Conn, l *liar) {
				_ = l.raw.Close()
				<-c.Done()
			},
			lost: "the guest ended", text: "the guest ended",
		},
		"guest lies": {
			end: func(t *testing.T, c *guest.Conn, l *liar) {
				l.pong(9)
				<-c.Done()
				if _, err := l.raw.Write([]byte{0}); err == nil {
					t.Error("the host has not hung up")
				}
			},
			lost: "not sent", text: "not sent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			log, entries := observer.New(zap.DebugLevel)
			host, far := net.Pipe()
			defer far.Close()
			l := &liar{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), raw: far}
			asked := make(chan wire.Frame, 9)
			go func() {
				l.next()
				l.json(0, wire.TypeHello, wire.Hello{Protocol: wire.Version})
				for f := l.next(); f.Type != 0; f = l.next() {
					if f.Type == wire.TypeOpen && f.Stream == 1 {
						l.json(1, wire.TypeStarted, wire.Started{})
					}
					asked <- f
				}
			}()
			c, err := guest.Dial(t.Context(), guest.Options{
				Conn: closing{host, failed}, Config: guest.NewConfig(sandbox.Spec{}), Logger: zap.New(log),
			})
			if err != nil {
				t.Fatal(err)
			}
			errs := make(chan error, 9)
			p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			calls := []func() error{
				func() error { return c.Ping(t.Context()) },
				func() error {
					_, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}})
					return err
				},
				func() error {
					_, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"})
					return err
				},
			}
			<-asked
			for i, call := range calls {
				go func() { errs <- call() }()
				if f := <-asked; f.Type == wire.TypeOpen && f.Stream != uint32(2*i+1) {
					t.Errorf("call %d has stream %d", i, f.Stream)
				}
			}
			tt.end(t, c, l)
			_, err = p.Wait()
			errs <- err
			for _, call := range calls {
				errs <- call()
			}
			for range 2*len(calls) + 1 {
				if err := <-errs; !errors.Is(err, sandbox.ErrLost) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("a call fails with %v, want one of ErrLost with %q", err, tt.text)
				}
			}
			err = c.Err()
			if lost := tt.lost != ""; errors.Is(err, sandbox.ErrLost) != lost || lost && !strings.Contains(err.Error(), tt.lost) {
				t.Errorf("the connection's error is %v", err)
			}
			if logged := entries.FilterMessage("guest lost").Len(); logged != min(1, len(tt.lost)) {
				t.Errorf("logged are %v", entries.All())
			}
			_ = c.Close()
		})
	}
}
