package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestApplyLies(t *testing.T) {
	op := workspace.Op{Kind: workspace.OpWrite, Path: "/workspace/a/../b/f", Content: []byte("12345")}
	good := workspace.Change{Kind: workspace.OpWrite, Path: "b/f", Bytes: 5}
	answer := func(change func(*workspace.Change), applied wire.Applied) func(*liar) {
		return func(l *liar) {
			done := good
			change(&done)
			text, _ := json.Marshal(done)
			for len(text) > 0 {
				n := min(len(text), wire.MaxData)
				l.frame(1, wire.TypeData, 1, string(text[:n]))
				text = text[n:]
			}
			l.frame(1, wire.TypeEOF, 1, "")
			l.json(1, wire.TypeEnd, applied)
		}
	}
	for _, tt := range []struct {
		name string
		play func(*liar)
		want error
		kind workspace.Kind
	}{
		{name: "truth", play: answer(func(*workspace.Change) {}, wire.Applied{})},
		{name: "failure", play: answer(func(*workspace.Change) {}, wire.Applied{Error: &wire.OpError{Kind: "escape", Path: "x", Detail: "\x1bd"}}), kind: workspace.KindEscape},
		{name: "another path", play: answer(func(c *workspace.Change) { c.Path = "../../x" }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "another file", play: answer(func(c *workspace.Change) { c.Path = "g" }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "part of a name", play: answer(func(c *workspace.Change) { c.Path = "orkspace/b/f" }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "another target", play: answer(func(c *workspace.Change) { c.To = "g" }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "another kind", play: answer(func(c *workspace.Change) { c.Kind = workspace.OpDelete }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "another size", play: answer(func(c *workspace.Change) { c.Bytes = 4 }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "negative", play: answer(func(c *workspace.Change) { c.Removed = -1 }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "large pre-image", play: answer(func(c *workspace.Change) { c.HasBefore, c.Before = true, make([]byte, workspace.MaxPreimageBytes+1) }, wire.Applied{}), want: sandbox.ErrLost},
		{name: "unknown kind of error", play: answer(func(*workspace.Change) {}, wire.Applied{Error: &wire.OpError{Kind: "root"}}), want: sandbox.ErrLost},
		{name: "cancelled", play: answer(func(*workspace.Change) {}, wire.Applied{Cancelled: true}), want: sandbox.ErrLost},
		{name: "nothing", play: func(l *liar) { l.frame(1, wire.TypeEOF, 1, ""); l.json(1, wire.TypeEnd, wire.Applied{}) }, want: sandbox.ErrLost},
		{name: "no end of the change", play: func(l *liar) { l.json(1, wire.TypeEnd, wire.Applied{}) }, want: sandbox.ErrLost},
		{name: "one byte and a failure", play: func(l *liar) {
			l.frame(1, wire.TypeData, 1, " ")
			l.frame(1, wire.TypeEOF, 1, "")
			l.json(1, wire.TypeEnd, wire.Applied{Error: &wire.OpError{Kind: "escape"}})
		}, want: sandbox.ErrLost},
		{name: "not JSON", play: func(l *liar) {
			l.frame(1, wire.TypeData, 1, "{")
			l.frame(1, wire.TypeEOF, 1, "")
			l.json(1, wire.TypeEnd, wire.Applied{})
		}, want: sandbox.ErrLost},
		{name: "output on stderr", play: func(l *liar) { l.frame(1, wire.TypeData, wire.Stderr, "{}") }, want: sandbox.ErrLost},
		{name: "end of stderr", play: func(l *liar) { l.frame(1, wire.TypeEOF, wire.Stderr, "") }, want: sandbox.ErrLost},
		{name: "ends twice", play: func(l *liar) { l.frame(1, wire.TypeEOF, 1, ""); l.frame(1, wire.TypeEOF, 1, "") }, want: sandbox.ErrLost},
		{name: "data after its end", play: func(l *liar) { l.frame(1, wire.TypeEOF, 1, ""); l.frame(1, wire.TypeData, 1, "{") }, want: sandbox.ErrLost},
		{name: "credit for output", play: func(l *liar) { _ = l.writer.SendCredit(1, wire.Stdout, 1) }, want: sandbox.ErrLost},
		{name: "too much credit", play: func(l *liar) { _ = l.writer.SendCredit(1, wire.Stdin, wire.Window+1) }, want: sandbox.ErrLost},
		{name: "started", play: func(l *liar) { l.json(1, wire.TypeStarted, wire.Started{}) }, want: sandbox.ErrLost},
		{name: "refusal that is no JSON", play: func(l *liar) { l.frame(1, wire.TypeRefused, 0, "{") }, want: sandbox.ErrLost},
		{name: "end that is no JSON", play: func(l *liar) { l.frame(1, wire.TypeEOF, 1, ""); l.frame(1, wire.TypeEnd, 0, "{") }, want: sandbox.ErrLost},
		{name: "endless", play: func(l *liar) {
			for range wire.MaxChange/wire.MaxData + 1 {
				l.frame(1, wire.TypeData, 1, strings.Repeat(" ", wire.MaxData))
			}
		}, want: sandbox.ErrLost},
		{name: "refused", play: func(l *liar) { l.json(1, wire.TypeRefused, wire.Refused{Code: "busy"}) }, want: sandbox.ErrUnavailable},
		{name: "gone", play: func(l *liar) { _ = l.raw.Close() }, want: sandbox.ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				go func() {
					l.next()
					go l.drain()
					tt.play(l)
				}()
				began := time.Now()
				got, err := c.Apply(t.Context(), op)
				if took := time.Since(began); took > 0 { // no answer would be a loss too
					t.Errorf("it took %v", took)
				}
				var e *workspace.Error
				switch {
				case tt.kind != "":
					if !errors.As(err, &e) || e.Kind != tt.kind || e.Detail != "?d" {
						t.Errorf("error is %v", err)
					}
				case tt.want != nil:
					if !errors.Is(err, tt.want) {
						t.Errorf("error is %v, want one of %v", err, tt.want)
					}
				case err != nil || !cmp.Equal(got, good):
					t.Errorf("got %+v, %v", got, err)
				}
				if lost := c.Err(); (lost != nil) != errors.Is(tt.want, sandbox.ErrLost) {
					t.Errorf("the connection's error is %v", lost)
				}
				go l.frame(1, wire.TypeEOF, wire.Stdout, "") // of a stream that has ended
				<-c.Done()
			})
		})
	}
}

// TestApplyRefusedWhileSent checks that an operation that waits for credit is
// not sent once the guest has refused it.
func TestApplyRefusedWhileSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		c, l := play(t)
		go func() {
			for range 1 + wire.Window/wire.MaxData {
				l.next()
			}
			l.json(1, wire.TypeRefused, wire.Refused{Code: wire.RefusedBusy})
		}()
		op := workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: make([]byte, 2*wire.Window)}
		if _, err := c.Apply(t.Context(), op); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("error is %v", err)
		}
	})
}

// TestApplyUnsendable checks that texts that JSON can't carry are refused, not
// changed.
func TestApplyUnsendable(t *testing.T) {
	c, _ := play(t)
	var e *workspace.Error
	_, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpPatch, Path: "a", Old: "a\xff"})
	if !errors.As(err, &e) || e.Kind != workspace.KindInvalid {
		t.Errorf("a text that is no UTF-8: %v", err)
	}
	_, err = c.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "a", Content: make([]byte, wire.MaxOp)})
	if !errors.As(err, &e) || e.Kind != workspace.KindTooLarge {
		t.Errorf("a content that is too large: %v", err)
	}
}

// TestApplyTalk checks that an operation larger than the credit is sent as the
// guest grants more, and that the largest change comes as the host grants more.
func TestApplyTalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l := play(t)
		op := workspace.Op{Kind: workspace.OpWrite, Path: "d\xff/f", Content: bytes.Repeat([]byte("0123456789"), wire.Window/8)}
		op.Old = "x"
		first, err := json.Marshal(op.EncodePaths())
		if err != nil {
			t.Fatal(err)
		}
		op.Old += strings.Repeat("x", wire.MaxData-(len(first)-1)%wire.MaxData) // so that one byte comes last
		want := workspace.Change{Kind: op.Kind, Path: op.Path, Bytes: int64(len(op.Content))}
		sent, asked := make(chan []byte, 1), make(chan int64, 1)
		go func() {
			var open wire.Open
			if err := wire.Decode(l.next().Payload, &open); err != nil || open.Apply == nil {
				t.Errorf("the host opens %+v, %v", open, err)
				return
			}
			asked <- open.Apply.Size
			var body []byte
			for f := l.next(); f.Type == wire.TypeData; f = l.next() {
				body = append(body, f.Payload...)
				_ = l.writer.SendCredit(1, wire.Stdin, uint32(len(f.Payload)))
			}
			sent <- body
			text, _ := json.Marshal(want.EncodePaths())
			text = append(text, bytes.Repeat([]byte(" "), wire.MaxChange-len(text))...)
			credit := wire.NewCredit()
			go func() {
				l.send(1, wire.Stdout, credit, text)
				l.frame(1, wire.TypeEOF, wire.Stdout, "")
				l.json(1, wire.TypeEnd, wire.Applied{})
			}()
			for f, err := l.frames.Next(); err == nil; f, err = l.frames.Next() {
				if f.Type != wire.TypeCredit || credit.Grant(wire.CreditOf(f)) != nil {
					t.Errorf("then frame type %d comes", f.Type)
				}
			}
		}()
		got, err := c.Apply(t.Context(), op)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, change (-want +got):\n%s", err, diff)
		}
		body := <-sent
		var came workspace.Op
		if size := <-asked; wire.Decode(body, &came) != nil || size != int64(len(body)) || !cmp.Equal(came.DecodePaths(), op) {
			t.Errorf("an operation of %d bytes comes as %d", size, len(body))
		}
		time.Sleep(24 * time.Hour)
		if err := c.Err(); err != nil {
			t.Errorf("a day after the end: %v", err)
		}
	})
}

// TestApplyCancel checks that the guest is told once, and its change returned
// with the cause. A context that has ended before sends nothing.
func TestApplyCancel(t *testing.T) {
	cause := errors.New("changed my mind")
	op := workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: make([]byte, 2*wire.Window)}
	done := workspace.Change{Kind: op.Kind, Path: "f", Bytes: 5}
	for name, tt := range map[string]struct {
		text string
		want workspace.Change
	}{
		"nothing done": {want: workspace.Change{Kind: op.Kind}},
		"partly done":  {text: `{"kind":"write","path":"f","bytes":5}`, want: done},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					l.next()
					for range wire.Window / wire.MaxData {
						l.next()
					}
					cancel(cause)
					if f := l.next(); f.Type != wire.TypeCancel {
						t.Errorf("the guest is told %d", f.Type)
					}
					_ = l.writer.SendCredit(1, wire.Stdin, 1)
					if tt.text != "" {
						l.frame(1, wire.TypeData, wire.Stdout, tt.text)
					}
					l.frame(1, wire.TypeEOF, wire.Stdout, "")
					l.json(1, wire.TypeEnd, wire.Applied{Cancelled: true})
					if f := l.next(); f.Type != wire.TypePing {
						t.Errorf("then it is told %d", f.Type)
					}
					l.pong(1)
				}()
				got, err := c.Apply(ctx, op)
				if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, cause) {
					t.Errorf("%v, change (-want +got):\n%s", err, diff)
				}
				if _, err := c.Apply(ctx, op); !errors.Is(err, cause) {
					t.Errorf("cancelled before: %v", err)
				}
				if err := c.Ping(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
