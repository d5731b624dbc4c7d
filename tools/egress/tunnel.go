package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// serveTunnel serves a CONNECT, SOCKS5 or captured connection. It calls established
// to let the program send bytes for the host, or refuse.
func (c *client) serveTunnel(ctx context.Context, r request, established func() error, refuse func(*refusal)) {
	s := c.s
	if s.isLocal(r.host) {
		c.serveLocalTunnel(ctx, r, established, refuse)
		return
	}
	h, f, err := s.openTunnel(ctx, r)
	if f != nil {
		defer f.cancel(nil)
	}
	if err != nil {
		refuse(asRefusal(ctx, err))
		return
	}
	c.first = 0   // the first byte belonged to the proxy's protocol
	if h == nil { // what the policy allows is decided for each request
		if established() == nil {
			c.serveReadable(f, r)
		}
		return
	}
	defer h.endConn(EndingProgram)
	if established() == nil {
		c.serveHost(h, f, r)
	}
}

func (c *client) serveHost(h *hostConn, f *flow, r request) {
	err := c.serveOpaque(h, f, r)
	if err == nil {
		return
	}
	if failed := asRefusal(f.ctx, err); failed != nil {
		h.endConn(failed.reason)
		c.refuseConn(r, failed)
	}
}

// serveOpaque relays bytes without reading them, except the ClientHello if only TLS
// is allowed.
func (c *client) serveOpaque(h *hostConn, f *flow, r request) error {
	if f.decision.Ways&rule.WayAny == 0 {
		hello, err := c.checkHello(h, r)
		if err != nil {
			return err
		}
		if _, err := h.Write(hello); err != nil {
			h.endConn(EndingHost)
			return h.budgetError()
		}
	}
	return relayConn(f.ctx, c, h)
}

// serveReadable serves a tunnel that allows HTTP requests, and at most TLS besides.
func (c *client) serveReadable(f *flow, r request) {
	s := c.s
	ctx, ways := f.ctx, f.decision.Ways
	err := c.awaitFirst(s.times.header)
	switch {
	case c.expired.Load():
		s.reportDenied(r, asRefusal(ctx, err))
	case err != nil: // the program has closed it
	case c.first == firstTLS && ways&rule.WayHTTPS != 0 && s.opts.Authority != nil:
		c.serveEndedTLS(ctx, r)
	case c.first == firstTLS && ways&rule.WayTLS != 0:
		h, err := s.connectHost(ctx, f, r)
		if err != nil {
			c.refuseConn(r, asRefusal(ctx, err))
			return
		}
		defer h.endConn(EndingProgram)
		c.serveHost(h, f, r)
	case c.first == firstTLS:
		c.refuseConn(r, newRefusal(rule.ReasonNotAllowed, "TLS to %s is not allowed at this port", r.host))
	case ways&rule.WayHTTP == 0:
		c.refuseConn(r, newRefusal(rule.ReasonNotTLS, "only TLS is allowed to %s", r.host))
	default:
		c.serveHTTP(ctx, &tunnel{request: r, scheme: "http"})
	}
}

// openTunnel decides about a tunnel and connects to its host. It returns no
// connection if HTTP requests are allowed but not any bytes: requests are decided
// one by one.
func (s *Server) openTunnel(ctx context.Context, r request) (*hostConn, *flow, error) {
	host, port := r.host, r.port
	f, err := s.admitRequest(ctx, r, func(p *rule.Policy) rule.Decision { return p.DecideHost(host, port) })
	if err != nil {
		return nil, nil, err
	}
	ways := f.decision.Ways
	if ways&rule.WayAny == 0 && ways&(rule.WayHTTP|rule.WayHTTPS) != 0 {
		return nil, f, nil
	}
	h, err := s.connectHost(f.ctx, f, r)
	return h, f, err
}

// extensionECH is the TLS extension that hides the name in the first message.
const extensionECH = 0xfe0d

// errHelloRead stops a handshake once the ClientHello is read.
var errHelloRead = errors.New("the ClientHello was read")

// checkHello reads the ClientHello, which must name the host, and returns all bytes
// that it read. The name may not be hidden: any host could be behind the outer
// name.
func (c *client) checkHello(h *hostConn, r request) ([]byte, error) {
	s := c.s
	if err := c.awaitFirst(s.times.header); err != nil {
		if c.expired.Load() {
			return nil, err
		}
		return nil, newFailure(err, rule.ReasonProtocol, "the program has closed the connection")
	}
	if c.first != firstTLS {
		return nil, newRefusal(rule.ReasonNotTLS, "only TLS is allowed to %s", r.host)
	}
	var seen *tls.ClientHelloInfo
	var read []byte
	err := c.limitTime(s.times.header, func() (err error) {
		seen, read, err = readHello(c)
		return err
	})
	switch {
	case c.expired.Load():
		return nil, err
	case err != nil:
		return nil, newFailure(err, rule.ReasonProtocol, "the program has closed the connection")
	case seen == nil:
		return nil, newRefusal(rule.ReasonSNI, "the first message of TLS is invalid, or names a host twice")
	}
	h.setSNI(utf8text.Clip(seen.ServerName, 256))
	name, err := rule.CanonicalHost(seen.ServerName)
	switch {
	case seen.ServerName == "":
		return nil, newRefusal(rule.ReasonSNI, "the first message of TLS names no host")
	case slices.Contains(seen.Extensions, extensionECH):
		return nil, newRefusal(rule.ReasonSNI, "the first message of TLS hides the name of the host (ECH)")
	case err != nil || name != r.host:
		return nil, newRefusal(rule.ReasonSNI, "the first message of TLS names another host than %s", r.host)
	}
	return read, nil
}

// readHello reads a ClientHello, or returns nil if it is invalid, and all bytes
// that it read. The error is the reader's.
func readHello(r io.Reader) (seen *tls.ClientHelloInfo, read []byte, err error) {
	tap := &helloConn{r: r}
	config := &tls.Config{
		MinVersion: tls.VersionTLS10, //nolint:gosec // nothing is negotiated
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = hello
			return nil, errHelloRead
		},
	}
	_ = tls.Server(tap, config).HandshakeContext(context.Background()) // always fails
	if seen == nil {
		err = tap.err
	}
	return seen, tap.read.Bytes(), err
}

// helloConn keeps what a handshake reads, and discards what it writes.
type helloConn struct {
	net.Conn // nil: a handshake without a deadline needs nothing else
	r        io.Reader
	read     bytes.Buffer
	err      error
}

func (t *helloConn) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.read.Write(p[:n])
	t.err = err
	return n, err
}

func (*helloConn) Write(p []byte) (int, error) { return len(p), nil }

func (*helloConn) Close() error { return nil }
