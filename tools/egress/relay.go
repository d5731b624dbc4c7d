package egress

import (
	"context"
	"errors"
	"io"
	"sync"
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
	var wg sync.WaitGroup
	wg.Go(func() { relayUp(c, h) })
	relayDown(c, h)
	wg.Wait()
	h.end(EndingDone)
	return h.budgetError()
}

// relayUp moves bytes from a program to a host.
func relayUp(c *client, h *hostConn) {
	read, written := copyBytes(h, c)
	switch {
	case written != nil:
		// The host takes no more. What it has sent is still passed on: relayDown sees
		// how that ends.
	case read != nil:
		h.end(EndingProgram)
	default:
		_ = h.CloseWrite()
	}
}

// relayDown moves bytes from a host to a program.
func relayDown(c *client, h *hostConn) {
	read, written := copyBytes(c, h)
	switch {
	case written != nil:
		h.end(EndingProgram)
	case read != nil:
		h.end(EndingHost)
	case c.CloseWrite() != nil:
		h.end(EndingProgram)
	}
}

// copyBytes copies until the end of the source, which is no error. Errors of the
// source and the destination are returned apart.
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
		if err == io.EOF { //nolint:errorlint // readers return it as it is
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}
