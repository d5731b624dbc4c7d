package egress

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/caisson-run/caisson/limits"
)

// relayBytes is the size of the buffer of each direction of a relay.
const relayBytes = 32 << 10

// buffers are for relays and responses.
var buffers = &bufferPool{sync.Pool{New: func() any { return new([relayBytes]byte) }}}

// bufferPool is a pool of buffers, for [httputil.ReverseProxy] too.
type bufferPool struct{ pool sync.Pool }

// Get returns a buffer.
func (b *bufferPool) Get() []byte { return b.pool.Get().(*[relayBytes]byte)[:] }

// Put takes a buffer back.
func (b *bufferPool) Put(p []byte) { b.pool.Put((*[relayBytes]byte)(p)) }

// relay moves bytes between a program and a host until both have ended theirs, or
// ctx ends. It passes half-closed and reset connections on. The error is nil or a
// *limits.ExceededError.
func relay(ctx context.Context, c *client, h *hostConn) error {
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errPolicy) {
			h.end(EndingPolicy)
		} else {
			h.end(EndingCanceled)
		}
	})
	defer stop()
	h.setOnClose(func() { _ = c.Close() })
	var up, down error
	var wg sync.WaitGroup
	wg.Go(func() { up = relayOneWay(c, h, h, EndingProgram, EndingHost) })
	down = relayOneWay(h, c, h, EndingHost, EndingProgram)
	wg.Wait()
	h.end(EndingDone)
	return errors.Join(up, down)
}

// relayOneWay moves bytes in one direction. If a side fails, it ends the connection
// with that side's ending.
func relayOneWay(from io.Reader, to interface {
	io.Writer
	CloseWrite() error
}, h *hostConn, fromEnding, toEnding string,
) error {
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				return endRelay(h, failed, toEnding)
			}
		}
		switch {
		case err == io.EOF: //nolint:errorlint // readers return it as it is
			if failed := to.CloseWrite(); failed != nil {
				return endRelay(h, failed, toEnding)
			}
			return nil
		case err != nil:
			return endRelay(h, err, fromEnding)
		}
	}
}

// endRelay ends the connection of a relay that failed. It returns the error of a
// budget.
func endRelay(h *hostConn, err error, ending string) error {
	if over, ok := errors.AsType[*limits.ExceededError](err); ok {
		h.end(string(over.Kind))
		return over
	}
	h.end(ending)
	return nil
}
