package guest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// blocked is a writer that takes nothing until it is opened.
type blocked struct{ open chan struct{} }

func (b blocked) Write(p []byte) (int, error) {
	<-b.open
	return len(p), nil
}

// TestWaitForWriters checks that the end of a command waits for its writers,
// but at most two seconds after an end by force or a loss. Bytes from before a
// loss are counted.
func TestWaitForWriters(t *testing.T) {
	const opens = time.Minute // when a writer that blocks is opened
	for name, tt := range map[string]struct {
		tell  func(*wire.Exit) // nil for a guest that is lost
		stuck bool
		took  time.Duration
		live  int64
	}{
		"ended":             {tell: func(*wire.Exit) {}, live: 3},
		"ended, stuck":      {tell: func(*wire.Exit) {}, stuck: true, took: opens, live: 3},
		"timed out":         {tell: func(x *wire.Exit) { x.TimedOut = true }, live: 3},
		"timed out, stuck":  {tell: func(x *wire.Exit) { x.TimedOut = true }, stuck: true, took: 2 * time.Second},
		"cancelled, stuck":  {tell: func(x *wire.Exit) { x.Cancelled = true }, stuck: true, took: 2 * time.Second},
		"guest lost":        {live: 3},
		"guest lost, stuck": {stuck: true, took: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					l.next()
					l.json(1, wire.TypeStarted, wire.Started{PID: 7})
					l.next() // the host cancels
					go l.drain()
					l.frame(1, wire.TypeData, wire.Stdout, "out")
					if tt.tell == nil {
						_ = l.raw.Close()
						return
					}
					l.end(func(x *wire.Exit) {
						x.Stdout.Live, x.Stdout.Total = 3, 3
						tt.tell(x)
					})
				}()
				var out io.Writer = io.Discard
				if tt.stuck {
					stuck := blocked{make(chan struct{})}
					time.AfterFunc(opens, func() { close(stuck.open) })
					out = stuck
				}
				p, err := c.Start(ctx, sandbox.Command{Argv: []string{"x"}, Stdout: out})
				if err != nil {
					t.Fatal(err)
				}
				cancel()
				began := time.Now()
				exit, err := p.Wait()
				if took := time.Since(began); took != tt.took || exit.Stdout.Live != tt.live || exit.Stdout.Total != 3 {
					t.Errorf("took %v, stdout %+v, want %v and %d live bytes of 3", took, exit.Stdout, tt.took, tt.live)
				}
				if lost := tt.tell == nil; errors.Is(err, sandbox.ErrLost) != lost || lost && exit.Status.Code != -1 {
					t.Errorf("status %v, error %v", exit.Status, err)
				}
				time.Sleep(24 * time.Hour) // no time that the guest had is left over
				if err := c.Err(); (err != nil) != (tt.tell == nil) {
					t.Errorf("a day after the end: %v", err)
				}
			})
		})
	}
}

// TestCancelSent checks that the guest is told once that a command is
// cancelled, and whether it has a grace period, and nothing after the command's
// end.
func TestCancelSent(t *testing.T) {
	for name, tt := range map[string]struct {
		cause error
		kill  bool
	}{
		"plain": {cause: errors.New("plain")},
		"time":  {cause: &limits.ExceededError{Kind: limits.KindWallTime}},
		"disk":  {cause: &limits.ExceededError{Kind: limits.KindDisk}, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := play(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			told := make(chan wire.Frame, 2)
			go func() {
				l.next()
				l.json(1, wire.TypeStarted, wire.Started{})
				told <- l.next()
				l.end(func(x *wire.Exit) { x.Cancelled = true })
				told <- l.next()
				l.pong(1)
			}()
			p, err := c.Start(ctx, sandbox.Command{Argv: []string{"x"}})
			if err != nil {
				t.Fatal(err)
			}
			cancel(tt.cause)
			if _, err := p.Wait(); err != nil {
				t.Fatal(err)
			}
			if err := c.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			var request wire.Cancel
			if f := <-told; f.Type != wire.TypeCancel || wire.Decode(f.Payload, &request) != nil || request.Kill != tt.kill {
				t.Errorf("the guest is told %d %s", f.Type, f.Payload)
			}
			if f := <-told; f.Type != wire.TypePing {
				t.Errorf("then %d %s", f.Type, f.Payload)
			}
		})
	}
}

// counted is a context that counts those who stopped watching it.
type counted struct {
	context.Context
	done  chan struct{}
	stops *atomic.Int32
}

func (c counted) Done() <-chan struct{} { return c.done }

func (c counted) AfterFunc(func()) func() bool {
	return func() bool {
		c.stops.Add(1)
		return true
	}
}

// TestContextReleased checks that the caller's context, which may live long,
// does not keep an ended command.
func TestContextReleased(t *testing.T) {
	for _, late := range []bool{false, true} { // the end comes when Start has returned
		c, l := play(t)
		running := make(chan struct{})
		if !late {
			close(running)
		}
		go func() {
			l.next()
			go l.drain()
			l.json(1, wire.TypeStarted, wire.Started{})
			<-running
			l.end(func(*wire.Exit) {})
		}()
		ctx := counted{t.Context(), make(chan struct{}), new(atomic.Int32)}
		p, err := c.Start(ctx, sandbox.Command{Argv: []string{"x"}})
		if err != nil {
			t.Fatal(err)
		}
		if late {
			close(running)
		}
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		if ctx.stops.Load() == 0 {
			t.Errorf("late end %t: the context is still watched", late)
		}
	}
}

// TestStartCancelled checks that nothing is sent for a command whose context
// has ended.
func TestStartCancelled(t *testing.T) {
	c, l := play(t)
	cause := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := c.Start(ctx, sandbox.Command{Argv: []string{"x"}}); !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
	go func() {
		if f := l.next(); f.Type != wire.TypePing {
			t.Errorf("the guest is sent frame type %d", f.Type)
		}
		l.pong(1)
	}()
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStdin checks that input is sent on its credit, to its end or its reader's
// error, and no longer once the command stops it.
func TestStdin(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", wire.Window/8) // twice the credit
	for name, tt := range map[string]struct {
		stdin io.Reader
		stop  bool
		ends  bool // the command, before it has read all
		want  string
	}{
		"short":   {stdin: strings.NewReader("in"), want: "in"},
		"long":    {stdin: strings.NewReader(long), want: long},
		"broken":  {stdin: iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("in"))), want: "i"},
		"endless": {stdin: endless{}, stop: true, want: strings.Repeat("x", wire.Window)},
		"unread":  {stdin: endless{}, ends: true, want: strings.Repeat("x", wire.Window)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				got := make(chan string, 1)
				go func() {
					l.next()
					l.json(1, wire.TypeStarted, wire.Started{})
					var in bytes.Buffer
					for f := l.next(); f.Type == wire.TypeData; f = l.next() {
						if f.Channel != wire.Stdin || f.Stream != 1 {
							t.Errorf("channel %d of stream %d", f.Channel, f.Stream)
						}
						in.Write(f.Payload)
						if !tt.stop && !tt.ends {
							_ = l.writer.SendCredit(1, wire.Stdin, uint32(len(f.Payload)))
						} else if in.Len() >= wire.Window {
							break
						}
					}
					got <- in.String()
					go func() {
						for f := l.next(); f.Type != 0; f = l.next() {
							t.Errorf("then frame type %d comes", f.Type)
						}
					}()
					if tt.stop {
						l.frame(1, wire.TypeStop, wire.Stdin, "")
						_ = l.writer.SendCredit(1, wire.Stdin, wire.Window)
						time.Sleep(time.Hour)
					}
					l.end(func(*wire.Exit) {})
				}()
				p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdin: tt.stdin, Timeout: 2 * time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.Wait(); err != nil {
					t.Error(err)
				}
				if in := <-got; in != tt.want {
					t.Errorf("%d bytes came, want %d", len(in), len(tt.want))
				}
			})
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestCredit checks that bytes that writers took are granted again, in few
// frames and for their own stream and channel.
func TestCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := play(t)
		const size = 2 * wire.Window
		credits := map[uint8]*wire.Credit{wire.Stdout: wire.NewCredit(), wire.Stderr: wire.NewCredit()}
		send := func() {
			for channel, credit := range credits {
				l.send(3, channel, credit, make([]byte, size))
				l.frame(3, wire.TypeEOF, channel, "")
			}
			x := goodExit()
			x.Stdout.Live, x.Stdout.Total, x.Stderr.Live, x.Stderr.Total = size, size, size, size
			l.json(3, wire.TypeEnd, x)
		}
		go func() {
			l.next()
			l.json(1, wire.TypeStarted, wire.Started{})
			l.next()
			l.json(3, wire.TypeStarted, wire.Started{})
			go send()
			for f, err := l.frames.Next(); err == nil; f, err = l.frames.Next() {
				if f.Type != wire.TypeCredit || f.Stream != 3 || wire.CreditOf(f) < wire.Window/2 {
					t.Errorf("the host sends frame type %d of stream %d: %x", f.Type, f.Stream, f.Payload)
				} else if err := credits[f.Channel].Grant(wire.CreditOf(f)); err != nil {
					t.Error(err)
				}
			}
		}()
		if _, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"first"}}); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		p, err := c.Start(t.Context(), sandbox.Command{
			Argv: []string{"second"}, Stdout: &out, Stderr: &errs, Output: sandbox.OutputLimits{Live: size},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); err != nil || out.Len() != size || errs.Len() != size {
			t.Errorf("%v, %d and %d bytes came", err, out.Len(), errs.Len())
		}
		// The end of the test ends its context, which cancels the first
		// command.
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// send sends data on a channel's credit.
func (l *liar) send(stream uint32, channel uint8, credit *wire.Credit, data []byte) {
	for len(data) > 0 {
		n := credit.Take(min(len(data), wire.MaxData), nil)
		l.frame(stream, wire.TypeData, channel, string(data[:n]))
		data = data[n:]
	}
}
