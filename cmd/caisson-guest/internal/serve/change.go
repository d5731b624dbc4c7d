package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// reply is the answer on a stream that the host may cancel.
type reply struct {
	s      *Session
	id     uint32
	credit *wire.Credit
	ctx    context.Context
	stop   context.CancelCauseFunc
	sent   int64
}

// errCancelled is the cause with which a reply's context ends.
var errCancelled = errors.New("cancelled by the host")

func newReply(s *Session, id uint32) reply {
	r := reply{s: s, id: id, credit: wire.NewCredit()}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	return r
}

func (r *reply) addCredit(channel uint8, n uint32) error {
	if channel != wire.Stdout {
		return badChannel(channel)
	}
	return r.credit.Grant(n)
}

func (r *reply) stopReading(uint8) { r.credit.Close() }

func (r *reply) cancel(wire.Cancel) { r.stop(errCancelled) }

// send sends bytes of the answer, on its credit.
func (r *reply) send(text []byte) error {
	for len(text) > 0 {
		n := r.credit.Take(min(len(text), wire.MaxData), r.ctx.Done())
		if n == 0 {
			return errCancelled
		}
		if err := r.s.o.Writer.Send(wire.Frame{Stream: r.id, Type: wire.TypeData, Channel: wire.Stdout, Payload: text[:n]}); err != nil {
			return err
		}
		r.sent += int64(n)
		text = text[n:]
	}
	return nil
}

// change is an apply stream: one change to the workspace.
type change struct {
	reply
	size int64
	body *wire.Queue
}

func newChange(s *Session, id uint32, size int64) *change {
	return &change{reply: newReply(s, id), size: size, body: wire.NewQueue()}
}

func (c *change) takeData(channel uint8, p []byte) error {
	if channel != wire.Stdin {
		return badChannel(channel)
	}
	return c.body.Push(p)
}

func (c *change) takeEOF(channel uint8) error {
	if channel != wire.Stdin {
		return badChannel(channel)
	}
	return c.body.End()
}

func (c *change) cancel(request wire.Cancel) {
	c.reply.cancel(request)
	c.body.Break()
}

func (c *change) run() {
	defer c.stop(nil)
	answer := c.applyChange()
	c.s.removeStream(c.id)
	c.s.endStream(c.id, answer, wire.Stdout)
	if c.size > wire.MaxData {
		debug.FreeOSMemory() // the operation's text may have been large
	}
}

func (c *change) applyChange() wire.Applied {
	op, err := c.receiveOp()
	if err != nil {
		if c.ctx.Err() != nil {
			return wire.Applied{Cancelled: true}
		}
		return failedChange(workspace.KindInvalid, op.Path, err.Error())
	}
	done, err := c.s.o.Appliers.Apply(c.ctx, op)
	c.sendChange(done)
	var e *workspace.Error
	switch {
	case err == nil:
		return wire.Applied{}
	case errors.As(err, &e):
		return failedChange(e.Kind, e.Path, e.Detail)
	case errors.Is(err, errCancelled):
		return wire.Applied{Cancelled: true}
	}
	return failedChange(workspace.KindIO, op.Path, err.Error())
}

func failedChange(kind workspace.Kind, path, detail string) wire.Applied {
	return wire.Applied{Error: &wire.OpError{Kind: string(kind), Path: path, Detail: detail}}
}

func (c *change) receiveOp() (workspace.Op, error) {
	var op workspace.Op
	body := make([]byte, 0, min(c.size, wire.MaxData)) // more when it comes
	for b := c.body.Next(); b != nil; b = c.body.Next() {
		if int64(len(body)+len(b)) > c.size {
			return op, errors.New("the operation is longer than announced")
		}
		body = append(body, b...)
		if n := c.body.Done(len(b)); n > 0 {
			_ = c.s.o.Writer.SendCredit(c.id, wire.Stdin, n)
		}
	}
	if err := context.Cause(c.ctx); err != nil {
		return op, err
	}
	if int64(len(body)) != c.size {
		return op, errors.New("the operation is shorter than announced")
	}
	if err := wire.Decode(body, &op); err != nil {
		return op, err
	}
	return op.DecodePaths(), nil
}

func (c *change) sendChange(done workspace.Change) {
	text, err := json.Marshal(done.EncodePaths())
	if err != nil {
		panic(fmt.Sprintf("caisson-guest: encode change: %v", err)) // plain values always encode
	}
	_ = c.send(text) // the goroutine that reads sees a failure
}
