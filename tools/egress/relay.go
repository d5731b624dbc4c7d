package egress

import (
	"context"
	"io"
	"sync"
)

const relayBytes = 32 << 10

var buffers = &bufferPool{sync.Pool{New: func() any { return new([relayBytes]byte) }}}

// bufferPool is a pool of buffers. It is an [net/http/httputil.BufferPool].
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte { return b.pool.Get().(*[relayBytes]byte)[:] }

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[relayBytes]byte)(p)) }

// relayConn moves bytes between a program and a host until both have ended, or ctx
// ends. It passes on half-closed and reset connections. The error is nil or a
// *limits.ExceededError.
func relayConn(ctx context.Context, c *client, h *hostConn) error {
	stop := context.AfterFunc(ctx, func() { h.endConn(endingOf(ctx, EndingCanceled)) })
	defer stop()
	h.setOnClose(func() { _ = c.Close() })
	var wg sync.WaitGroup
	fail := func(error) { h.endConn(EndingFailed) } // which closes the program's connection
	wg.Go(func() {
		defer c.s.recoverPanic(fail)
		relayUp(ctx, c, h)
	})
	func() {
		defer c.s.recoverPanic(fail)
		relayDown(ctx, c, h)
	}()
	wg.Wait()
	h.endConn(EndingDone)
	return h.budgetError()
}

// endingOf returns the ending of a connection that failed. If ctx has ended, the
// failure only follows from that.
func endingOf(ctx context.Context, failed string) string {
	if ctx.Err() == nil {
		return failed
	}
	return EndingCanceled
}

func relayUp(ctx context.Context, c *client, h *hostConn) {
	read, written := copyBytes(h, c)
	switch {
	case written != nil:
		// The host takes no more. Still pass on what it has sent: relayDown sees
		// how that ends.
	case read != nil:
		h.endConn(endingOf(ctx, EndingProgram))
	default:
		_ = h.CloseWrite()
	}
}

func relayDown(ctx context.Context, c *client, h *hostConn) {
	read, written := copyBytes(c, h)
	switch {
	case written != nil:
		h.endConn(endingOf(ctx, EndingProgram))
	case read != nil:
		h.endConn(endingOf(ctx, EndingHost))
	case c.CloseWrite() != nil:
		h.endConn(endingOf(ctx, EndingProgram))
	}
}

// copyBytes copies until the source ends, which is no error. It returns errors of
// the source and the destination separately.
func copyBytes(to io.Writer, from io.Reader) (read, written error) {
	buf := buffers.Get()
	defer buffers.Put(buf)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				return nil, failed
			}
		}
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}
