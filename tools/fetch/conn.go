package fetch

import (
	"net"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// meteredConn is a connection that takes every byte from the session's budget
// before reading or writing it, and that waits at most idle for a byte.
type meteredConn struct {
	net.Conn
	egress *limits.Egress
	idle   time.Duration
}

// Read reads at most as many bytes as the budget allows.
func (c *meteredConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.egress.Take(int64(len(p)))
	if err != nil {
		return 0, err
	}
	if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
		c.egress.Return(n)
		return 0, err
	}
	got, err := c.Conn.Read(p[:n])
	c.egress.Return(n - int64(got))
	return got, err
}

// Write writes p. If the budget ends first, it returns the budget's error.
func (c *meteredConn) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := c.egress.Take(int64(len(p) - written))
		if err != nil {
			return written, err
		}
		if err := c.SetWriteDeadline(time.Now().Add(c.idle)); err != nil {
			c.egress.Return(n)
			return written, err
		}
		got, err := c.Conn.Write(p[written : written+int(n)])
		c.egress.Return(n - int64(got))
		written += got
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
