package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// SOCKS5 replies (RFC 1928).
const (
	socksOK             = 0
	socksNotAllowed     = 2
	socksHostFailed     = 4
	socksRefused        = 5
	socksBadCommand     = 7
	socksBadAddressType = 8
	socksNoMethod       = 0xff
)

type socksError struct {
	reply   byte
	message string
}

func (e *socksError) Error() string { return e.message }

// serveSOCKS serves a SOCKS5 connection. It supports only CONNECT without
// authentication.
func (c *client) serveSOCKS(ctx context.Context) {
	s := c.s
	r := c.newRequest(WaySOCKS5, "", 0)
	err := c.limitTime(s.times.header, func() error {
		err := readSOCKSGreeting(c.br)
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte{firstSOCKS5, 0}); err != nil { // no authentication
			return err
		}
		r.host, r.port, err = readSOCKSRequest(c.br)
		return err
	})
	bad, isBad := errors.AsType[*socksError](err)
	switch {
	case c.expired.Load():
		s.reportDenied(r, asRefusal(ctx, err))
		return
	case isBad:
		s.reportDenied(r, newRefusal(rule.ReasonInvalidRequest, "%v", err))
		if bad.reply == socksNoMethod {
			_, _ = c.Write([]byte{firstSOCKS5, socksNoMethod})
		} else {
			_ = writeSOCKSReply(c, bad.reply)
		}
		c.finishConn()
		return
	case err != nil: // the program has closed it
		return
	}
	if err := r.canonicalizeHost(); err != nil {
		c.refuseSOCKS(r, asRefusal(ctx, err))
		return
	}
	c.serveTunnel(ctx, r, func() error { return writeSOCKSReply(c, socksOK) }, func(f *refusal) { c.refuseSOCKS(r, f) })
}

func (c *client) refuseSOCKS(r request, f *refusal) {
	s := c.s
	if f == nil {
		return
	}
	s.reportDenied(r, f)
	reply := byte(socksNotAllowed)
	switch {
	case f.denied:
	case f.reason == rule.ReasonConnect:
		reply = socksRefused
	default:
		reply = socksHostFailed
	}
	_ = writeSOCKSReply(c, reply)
	c.finishConn()
}

func writeSOCKSReply(w io.Writer, reply byte) error {
	_, err := w.Write([]byte{firstSOCKS5, reply, 0, 1, 0, 0, 0, 0, 0, 0})
	return err
}

func readSOCKSGreeting(r io.Reader) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(r, methods); err != nil {
		return err
	}
	if slices.Contains(methods, 0) {
		return nil
	}
	return &socksError{reply: socksNoMethod, message: "the program wants to authenticate, which is not supported"}
}

// readSOCKSRequest reads the program's second message, the target. The host is not
// canonical.
func readSOCKSRequest(r io.Reader) (host string, port uint16, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, err
	}
	if head[0] != firstSOCKS5 || head[2] != 0 {
		return "", 0, &socksError{reply: socksNotAllowed, message: "invalid request of SOCKS5"}
	}
	size := 0
	switch head[3] {
	case 1:
		size = 4
	case 3:
		var n [1]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return "", 0, err
		}
		size = int(n[0])
	case 4:
		size = 16
	default:
		return "", 0, &socksError{reply: socksBadAddressType, message: "unknown type of address of SOCKS5"}
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(r, rest); err != nil {
		return "", 0, err
	}
	host, port = string(rest[:size]), binary.BigEndian.Uint16(rest[size:])
	if addr, ok := netip.AddrFromSlice(rest[:size]); ok && head[3] != 3 {
		host = addr.String()
	}
	if head[1] != 1 {
		return host, port, &socksError{reply: socksBadCommand, message: "only CONNECT of SOCKS5 is supported"}
	}
	return host, port, nil
}
