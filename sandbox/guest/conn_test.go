package guest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// closing is a connection with another Close.
type closing struct {
	net.Conn
	err error
}

func (c closing) Close() error { return errors.Join(c.Conn.Close(), c.err) }

// TestDialEnds checks that a Dial that fails closes its connection, and that
// the end of its context does not end a successful one.
func TestDialEnds(t *testing.T) {
	cause := errors.New("no longer wanted")
	for name, tt := range map[string]struct {
		config func(*wire.Config)
		cancel bool
		gone   bool
		want   error
	}{
		"configuration": {config: func(c *wire.Config) { c.CommandUID = 0 }, want: sandbox.ErrInvalid},
		"context":       {config: func(*wire.Config) {}, cancel: true, want: cause},
		"guest is gone": {config: func(*wire.Config) {}, gone: true, want: sandbox.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			host, far := net.Pipe()
			defer far.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.cancel {
				cancel(cause)
			}
			if tt.gone {
				_ = far.Close()
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

// TestEnds checks that Close and a loss end everything, open or new, with
// ErrLost. Only a loss is an error of the connection, and logged once.
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
			for f := <-asked; f.Type != wire.TypeEOF; f = <-asked { // all that the change sends
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

// faulty is a connection whose writes fail or hang from a moment on.
type faulty struct {
	net.Conn
	fails, hangs *atomic.Bool
	free         chan struct{} // ends the writes that hang
}

func newFaulty(conn net.Conn) faulty {
	return faulty{conn, new(atomic.Bool), new(atomic.Bool), make(chan struct{})}
}

var errWrite = errors.New("write failed")

func (f faulty) Write(p []byte) (int, error) {
	if f.hangs.Load() {
		<-f.free
	}
	if f.fails.Load() {
		return 0, errWrite
	}
	return f.Conn.Write(p)
}

// TestWriteFails checks that the connection is lost if any frame can't be
// written, not only if an answer doesn't come.
func TestWriteFails(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, c *guest.Conn, f faulty, l *liar){
		"start": func(t *testing.T, c *guest.Conn, f faulty, _ *liar) {
			f.fails.Store(true)
			if _, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}}); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"ping": func(t *testing.T, c *guest.Conn, f faulty, _ *liar) {
			f.fails.Store(true)
			if err := c.Ping(t.Context()); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"change": func(t *testing.T, c *guest.Conn, f faulty, _ *liar) {
			f.fails.Store(true)
			if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"}); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"text of a change": func(t *testing.T, c *guest.Conn, f faulty, l *liar) {
			failed := make(chan error, 1)
			go func() {
				_, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: strings.Repeat("d", 100)})
				failed <- err
			}()
			var header [4]byte
			_, _ = io.ReadFull(l.raw, header[:]) // the beginning of the frame that opens the stream
			f.fails.Store(true)
			go func() { _, _ = io.Copy(io.Discard, l.raw) }()
			if err := <-failed; !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"cancellation of a change": func(t *testing.T, c *guest.Conn, f faulty, l *liar) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for l.next().Type != wire.TypeEOF {
				}
				f.fails.Store(true)
				cancel()
			}()
			if _, err := c.Apply(ctx, workspace.Op{Kind: workspace.OpMkdir, Path: "d"}); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"cancellation": func(t *testing.T, c *guest.Conn, f faulty, l *liar) {
			ctx, cancel := context.WithCancel(t.Context())
			p := startPlayed(ctx, t, c, l, sandbox.Command{})
			f.fails.Store(true)
			cancel()
			if _, err := p.Wait(); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
		"input": func(t *testing.T, c *guest.Conn, f faulty, l *liar) {
			in, write := io.Pipe()
			p := startPlayed(t.Context(), t, c, l, sandbox.Command{Stdin: in})
			f.fails.Store(true)
			if _, err := write.Write([]byte("in")); err != nil {
				t.Error(err)
			}
			if _, err := p.Wait(); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
			_ = write.Close()
		},
		"credit": func(t *testing.T, c *guest.Conn, f faulty, l *liar) {
			p := startPlayed(t.Context(), t, c, l, sandbox.Command{Stdout: io.Discard})
			f.fails.Store(true)
			l.send(1, wire.Stdout, wire.NewCredit(), make([]byte, wire.Window))
			if _, err := p.Wait(); !errors.Is(err, errWrite) {
				t.Errorf("error is %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, far := net.Pipe()
				f := newFaulty(host)
				c, l := playOver(t, f, far)
				began := time.Now()
				call(t, c, f, l)
				<-c.Done()
				if err := c.Err(); !errors.Is(err, sandbox.ErrLost) || !errors.Is(err, errWrite) || time.Since(began) > 0 {
					t.Errorf("after %v the connection's error is %v", time.Since(began), err)
				}
			})
		})
	}
}

// startPlayed starts a command in the played guest.
func startPlayed(ctx context.Context, t *testing.T, c *guest.Conn, l *liar, cmd sandbox.Command) sandbox.Process {
	t.Helper()
	go func() {
		l.next()
		l.json(1, wire.TypeStarted, wire.Started{})
		go l.drain()
	}()
	cmd.Argv = []string{"x"}
	p, err := c.Start(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCloseWaitsForBeat checks that no goroutine of a connection outlives
// Close.
func TestCloseWaitsForBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, far := net.Pipe()
		f := newFaulty(host)
		go func() {
			l := &liar{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), raw: far}
			l.next()
			l.json(0, wire.TypeHello, wire.Hello{Protocol: wire.Version})
			l.drain()
		}()
		config := guest.NewConfig(sandbox.Spec{})
		config.SilenceMS = 30_000
		c, err := guest.Dial(t.Context(), guest.Options{Conn: f, Config: config})
		if err != nil {
			t.Fatal(err)
		}
		f.hangs.Store(true)
		time.Sleep(11 * time.Second) // a beat is being written
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("closed while a beat is being written: %v", err)
		default:
			close(f.free)
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
	})
}

// written is a connection that calls a function after each write.
type written struct {
	net.Conn
	call func()
}

func (w written) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.call()
	return n, err
}

// TestCancelAfterEnd checks that the guest is not told about the end of a
// context after the call's end, even if both come before the call has begun to
// wait.
func TestCancelAfterEnd(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *guest.Conn) error{
		"command": func(ctx context.Context, c *guest.Conn) error {
			_, err := c.Start(ctx, sandbox.Command{Argv: []string{"x"}})
			return err
		},
		"change": func(ctx context.Context, c *guest.Conn) error {
			_, err := c.Apply(ctx, workspace.Op{Kind: workspace.OpMkdir, Path: "d"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, far := net.Pipe()
				ctx, cancel := context.WithCancel(t.Context())
				opened := false
				c, l := playOver(t, written{host, func() {
					if opened {
						synctest.Wait() // the guest's answer is taken
						cancel()
					}
				}}, far)
				opened = true
				go func() {
					l.next()
					l.json(1, wire.TypeRefused, wire.Refused{Code: wire.RefusedBusy})
					for f := l.next(); f.Type != 0; f = l.next() {
						if f.Type == wire.TypeCancel {
							t.Error("the guest is told")
						}
					}
				}()
				if err := call(ctx, c); !errors.Is(err, sandbox.ErrUnavailable) {
					t.Errorf("error is %v", err)
				}
				synctest.Wait()
				if err := c.Err(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
