package limits

import (
	"net"
	"sync/atomic"
	"time"
)

// MeteredConn is a connection that takes every byte from a budget before reading or
// writing it.
type MeteredConn struct {
	net.Conn
	Budget *Egress
	// Idle is the timeout of the wait for a byte. Zero means none.
	Idle time.Duration

	sent, received atomic.Int64
	last           atomic.Int64 // when bytes were moved, in nanoseconds since 1970
}

// Sent returns the number of bytes that were written.
func (c *MeteredConn) Sent() int64 { return c.sent.Load() }

// Received returns the number of bytes that were read.
func (c *MeteredConn) Received() int64 { return c.received.Load() }

// LastMoved returns when bytes were read or written, the zero time if none were.
func (c *MeteredConn) LastMoved() time.Time {
	if last := c.last.Load(); last != 0 {
		return time.Unix(0, last)
	}
	return time.Time{}
}

// Read reads at most as many bytes as the budget allows.
func (c *MeteredConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.Budget.Take(int64(len(p)))
	if err != nil {
		return 0, err
	}
	got := 0
	err = c.setDeadline(c.SetReadDeadline)
	if err == nil {
		got, err = c.Conn.Read(p[:n])
	}
	c.Budget.Return(n - int64(got))
	c.received.Add(int64(got))
	c.last.Store(time.Now().UnixNano())
	return got, err
}

// Write writes p. If the budget ends first, it returns the budget's error.
func (c *MeteredConn) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := c.Budget.TakeUpload(int64(len(p) - written))
		if err != nil {
			return written, err
		}
		got := 0
		err = c.setDeadline(c.SetWriteDeadline)
		if err == nil {
			got, err = c.Conn.Write(p[written : written+int(n)])
		}
		c.Budget.ReturnUpload(n - int64(got))
		c.sent.Add(int64(got))
		c.last.Store(time.Now().UnixNano())
		written += got
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (c *MeteredConn) setDeadline(set func(time.Time) error) error {
	if c.Idle == 0 {
		return nil
	}
	return set(time.Now().Add(c.Idle))
}
