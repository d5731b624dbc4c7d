package egress

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// client is a program's connection. Everything the program sends is read from br.
type client struct {
	sandbox.EgressConn
	s  *Server
	br *bufio.Reader
	// small is the reader below br, if br has room for the head of a request.
	small *bufio.Reader
	// first is the first byte from the program, or 0 if none was read.
	first byte
	// expired reports whether a wait for the program took too long.
	expired atomic.Bool
	// writeBy is the deadline of writes in nanoseconds since 1970, or 0.
	writeBy atomic.Int64
	caller
}

func newClient(s *Server, conn sandbox.EgressConn) *client {
	return &client{EgressConn: conn, s: s, br: bufio.NewReader(conn)}
}

func (c *client) newRequest(way Way, host string, port uint16) request {
	_, known := c.UID()
	r := request{way: way, host: host, port: port, command: c.Command(), userKnown: known, caller: c.caller}
	if c.foreign { // the command isn't the program's
		r.command = 0
	}
	return r
}

func (c *client) Read(p []byte) (int, error) { return c.br.Read(p) }

// Write sends bytes to the program. If the program doesn't receive them within the
// idle time or until the deadline, the connection is closed.
func (c *client) Write(p []byte) (int, error) {
	wait := c.s.times.idle
	if by := c.writeBy.Load(); by != 0 {
		wait = min(wait, time.Until(time.Unix(0, by)))
	}
	timer := time.AfterFunc(wait, func() { _ = c.Close() })
	defer timer.Stop()
	return c.EgressConn.Write(p)
}

// limitTime calls f. If f takes longer than d, it closes the connection and returns
// a *refusal.
func (c *client) limitTime(d time.Duration, f func() error) error {
	timer := time.AfterFunc(d, func() {
		c.expired.Store(true)
		_ = c.Close()
	})
	defer timer.Stop()
	err := f()
	if c.expired.Load() {
		return newRefusal(rule.ReasonTimeout, "the program sent no complete request within %s", d)
	}
	return err
}

func (c *client) awaitFirst(d time.Duration) error {
	if c.first != 0 {
		return nil
	}
	return c.limitTime(d, func() error {
		first, err := c.br.Peek(1)
		if err == nil {
			c.first = first[0]
		}
		return err
	})
}

func (c *client) speaksHTTP() bool {
	sent, _ := c.br.Peek(min(c.br.Buffered(), 32))
	method, _, ok := bytes.Cut(sent, []byte(" "))
	return ok && isToken(string(method))
}

// finishConn ends the stream to the program and waits for the program to receive
// it: closing the connection discards what it has not received.
func (c *client) finishConn() {
	if c.CloseWrite() != nil {
		return
	}
	timer := time.AfterFunc(c.s.times.linger, func() { _ = c.Close() })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, c.br)
}

// alertAccessDenied is a TLS record with the fatal alert access_denied.
var alertAccessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

const (
	firstTLS    = 22
	firstSOCKS4 = 4
	firstSOCKS5 = 5
)

// refuseConn reports a refusal. If the program speaks TLS or HTTP and has no answer
// yet, it tells the program too. The connection can't be used afterwards.
func (c *client) refuseConn(r request, f *refusal) {
	s := c.s
	if f == nil { // the command or the session has ended
		return
	}
	s.reportDenied(r, f)
	switch err := c.awaitFirst(s.times.linger); {
	case err != nil:
	case c.first == firstTLS:
		_, _ = c.Write(alertAccessDenied)
		c.finishConn()
	case c.speaksHTTP():
		c.answerRefusal(r, f)
	}
}

// answerRefusal answers an HTTP request with a refusal and ends the connection.
func (c *client) answerRefusal(r request, f *refusal) {
	w := newResponseWriter(c, nil)
	writeRefusal(w, r, f)
	if w.finishResponse() == nil {
		c.finishConn()
	}
}

type netConn struct{ *client }

func (netConn) SetDeadline(time.Time) error      { return nil }
func (netConn) SetReadDeadline(time.Time) error  { return nil }
func (netConn) SetWriteDeadline(time.Time) error { return nil }

func (c netConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.EgressConn.LocalAddr()) }

// RemoteAddr returns the address that the program connected to: the program's is
// unknown.
func (c netConn) RemoteAddr() net.Addr { return c.LocalAddr() }

func (c *client) serveProxy(ctx context.Context) {
	s := c.s
	err := c.awaitFirst(s.times.header)
	r := c.newRequest(WayHTTP, "", 0)
	switch {
	case c.expired.Load():
		s.reportDenied(r, asRefusal(ctx, err))
	case err != nil: // the program has closed it
	case c.first == firstSOCKS5:
		c.serveSOCKS(ctx)
	case c.first == firstSOCKS4:
		r.way = WaySOCKS5
		s.reportDenied(r, newRefusal(rule.ReasonInvalidRequest, "SOCKS4 is not supported"))
		_, _ = c.Write([]byte{0, 91, 0, 0, 0, 0, 0, 0}) // request rejected
		c.finishConn()
	case c.first == firstTLS:
		c.refuseConn(r, newRefusal(rule.ReasonInvalidRequest, "the proxy is spoken to without TLS"))
	default:
		c.serveHTTP(ctx, nil)
	}
}
