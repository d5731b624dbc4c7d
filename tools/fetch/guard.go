package fetch

import (
	"context"
	"errors"
	"net"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

func (c *Client) dialOrigin(ctx context.Context, o rule.Origin) (net.Conn, error) {
	conn, err := c.newDialer().Dial(ctx, o.Host, o.Port)
	if err != nil {
		return nil, dialFailure(err)
	}
	return c.meterConn(conn), nil
}

func (c *Client) newDialer() *rule.Dialer {
	return &rule.Dialer{Guard: c.guard, Resolver: c.opts.Resolver, Deny: c.opts.Deny}
}

func dialFailure(err error) error {
	if refused, ok := errors.AsType[*rule.AddressError](err); ok {
		f := newDenied("address", "%v; an operator can allow it under fetch.private", refused)
		f.addr, f.err = refused.Addr.String(), refused.Err
		return f
	}
	if failed, ok := errors.AsType[*rule.ResolveError](err); ok {
		return newOutage(failed.Err, "resolve", "%v", failed)
	}
	if failed, ok := errors.AsType[*rule.ConnectError](err); ok {
		return newOutage(failed.Err, "connect", "%v", failed)
	}
	return err
}

// dialProxy connects to the proxy. Its address is not checked: the operator chose
// it.
func (c *Client) dialProxy(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTime, Resolver: c.opts.Resolver}).DialContext(ctx, network, address)
	if err != nil {
		return nil, newOutage(err, "connect", "no connection to the configured proxy")
	}
	return c.meterConn(conn), nil
}

func (c *Client) meterConn(conn net.Conn) net.Conn {
	return &limits.MeteredConn{Conn: conn, Budget: c.opts.Egress, Idle: c.opts.Idle}
}
