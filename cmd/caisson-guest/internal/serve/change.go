package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// change is an apply stream: one change to the workspace.
type change struct {
	s         *Session
	id        uint32
	size      int64
	body      *wire.Queue
	reply     *wire.Credit
	cancelled chan struct{}
	once      sync.Once
}

func newChange(s *Session, id uint32, size int64) *change {
	return &change{
		s: s, id: id, size: size,
		body: wire.NewQueue(), reply: wire.NewCredit(), cancelled: make(chan struct{}),
	}
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

func (c *change) addCredit(channel uint8, n uint32) error {
	if channel != wire.Stdout {
		return badChannel(channel)
	}
	return c.reply.Grant(n)
}

func (c *change) stopReading(uint8) { c.reply.Close() }

func (c *change) cancel(wire.Cancel) {
	c.once.Do(func() { close(c.cancelled) })
	c.body.Break()
}

// errCancelled is the cause with which a change's context ends.
var errCancelled = errors.New("cancelled by the host")

// run is the change's goroutine. It sends the stream's last frame.
func (c *change) run() {
	answer := c.applyChange()
	c.s.removeStream(c.id)
	c.s.endStream(c.id, answer, wire.Stdout)
	if c.size > wire.MaxData {
		debug.FreeOSMemory() // the operation's text may have been large
	}
}

func (c *change) applyChange() wire.Applied {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case <-c.cancelled:
			cancel(errCancelled)
		case <-ctx.Done():
		}
	}()
	op, err := c.receiveOp()
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errCancelled) {
			return wire.Applied{Cancelled: true}
		}
		return failedChange(workspace.KindInvalid, op.Path, err.Error())
	}
	done, err := c.s.o.Appliers.Apply(ctx, op)
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
	for {
		b := c.body.Next()
		if b == nil {
			break
		}
		if int64(len(body)+len(b)) > c.size {
			return op, errors.New("the operation is longer than announced")
		}
		body = append(body, b...)
		if n := c.body.Done(len(b)); n > 0 {
			_ = c.s.o.Writer.SendCredit(c.id, wire.Stdin, n)
		}
	}
	select {
	case <-c.cancelled:
		return op, errCancelled
	default:
	}
	if int64(len(body)) != c.size {
		return op, errors.New("the operation is shorter than announced")
	}
	if err := wire.Decode(body, &op); err != nil {
		return op, err
	}
	return op.DecodePaths(), nil
}

// sendChange answers with the change, on its credit.
func (c *change) sendChange(done workspace.Change) {
	text, err := json.Marshal(done.EncodePaths())
	if err != nil {
		panic(fmt.Sprintf("caisson-guest: encode change: %v", err)) // plain values always encode
	}
	for len(text) > 0 {
		n := c.reply.Take(min(len(text), wire.MaxData), c.cancelled)
		if n == 0 {
			return
		}
		if c.s.o.Writer.Send(wire.Frame{Stream: c.id, Type: wire.TypeData, Channel: wire.Stdout, Payload: text[:n]}) != nil {
			return
		}
		text = text[n:]
	}
}
