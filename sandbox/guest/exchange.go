package guest

import (
	"fmt"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// exchange is a stream with one request and one answer: bytes on Stdout, then an
// end of type T.
type exchange[T any] struct {
	c     *Conn
	id    uint32
	what  string // for errors: "a change"
	most  int64  // bounds the answer's bytes
	input *wire.Credit
	reply *wire.Queue
	// check returns an error if the end can't be true of the request.
	check func(end T, cancelled bool) error
	done  chan struct{} // closed when end and err are final

	mu        sync.Mutex
	cancelled bool
	ended     bool
	watch     *time.Timer // fires if the guest has not answered in time; may be nil
	end       T
	err       error
}

func newExchange[T any](c *Conn, what string, most int64, check func(end T, cancelled bool) error) *exchange[T] {
	return &exchange[T]{
		c: c, what: what, most: most, check: check,
		input: wire.NewCredit(), reply: wire.NewQueue(), done: make(chan struct{}),
	}
}

// open sends the request. Unless it is zero, answerTime bounds the whole answer.
func (x *exchange[T]) open(request wire.Open, answerTime time.Duration) error {
	return x.c.openStream(request, func(id uint32) call {
		x.id = id
		if answerTime > 0 {
			x.expectAnswer(answerTime)
		}
		return x
	})
}

func (x *exchange[T]) expectAnswer(within time.Duration) {
	if x.watch != nil {
		x.watch.Stop()
	}
	x.watch = time.AfterFunc(within, func() { x.c.lose(fmt.Errorf("no answer about %s in its time", x.what)) })
}

// cancel asks the guest to stop, once. The guest must then end the stream within
// Options.AnswerTime.
func (x *exchange[T]) cancel() {
	x.mu.Lock()
	if x.cancelled || x.ended {
		x.mu.Unlock()
		return
	}
	x.cancelled = true
	x.expectAnswer(x.c.o.AnswerTime)
	x.mu.Unlock()
	x.input.Close()
	if err := x.c.writer.SendJSON(x.id, wire.TypeCancel, wire.Cancel{}); err != nil {
		x.c.lose(err)
	}
}

func (x *exchange[T]) takeFrame(f wire.Frame) (last bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended { // the connection was lost meanwhile
		return false, nil
	}
	switch {
	case f.Type == wire.TypeCredit && f.Channel == wire.Stdin:
		return false, x.input.Grant(wire.CreditOf(f))
	case f.Type == wire.TypeData && f.Channel == wire.Stdout:
		if total, _ := x.reply.Total(); total+int64(len(f.Payload)) > x.most {
			return false, fmt.Errorf("%w: %s of more than %d bytes", wire.ErrProtocol, x.what, x.most)
		}
		return false, x.reply.Push(f.Payload)
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdout:
		return false, x.reply.End()
	case f.Type == wire.TypeRefused:
		var r wire.Refused
		if err := wire.Decode(f.Payload, &r); err != nil {
			return false, err
		}
		x.conclude(fmt.Errorf("%w: guest: %s", sandbox.ErrUnavailable, cleanText(r.Text)))
		return true, nil
	case f.Type == wire.TypeEnd:
		return true, x.takeEnd(f)
	}
	return false, fmt.Errorf("%w: a guest doesn't send this for %s", wire.ErrProtocol, x.what)
}

func (x *exchange[T]) takeEnd(f wire.Frame) error {
	if err := wire.Decode(f.Payload, &x.end); err != nil {
		return err
	}
	if _, ended := x.reply.Total(); !ended {
		return fmt.Errorf("%w: %s has not ended", wire.ErrProtocol, x.what)
	}
	if err := x.check(x.end, x.cancelled); err != nil {
		return err
	}
	x.conclude(nil)
	return nil
}

func (x *exchange[T]) connectionLost(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		x.conclude(err)
	}
}

func (x *exchange[T]) conclude(err error) {
	x.ended = true
	if x.watch != nil {
		x.watch.Stop()
	}
	x.err = err
	x.input.Close()
	x.reply.Break()
	close(x.done)
}
