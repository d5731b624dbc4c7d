package fetch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"code.dny.dev/ssrf"
)

// azureHost is the address of Azure's virtual machine agent. It is in a public
// range but internal to every machine there.
var azureHost = netip.MustParsePrefix("168.63.129.16/32")

// newGuardian returns the check of addresses to dial for an origin. It permits
// public addresses, and those that the configuration allows for this host.
func (c *Client) newGuardian(o origin) *ssrf.Guardian {
	var v4, v6 []netip.Prefix
	for _, p := range c.opts.Private[o.host] {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return ssrf.New(ssrf.WithPorts(o.port), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...),
		ssrf.WithDeniedV4Prefixes(azureHost))
}

// dialOrigin connects to an origin. It resolves the name once, refuses it if any
// of its addresses may not be dialled, and dials only checked addresses. The
// dialer checks each address again before it connects.
func (c *Client) dialOrigin(ctx context.Context, o origin) (net.Conn, error) {
	guard := c.newGuardian(o)
	addrs, err := c.lookupAddrs(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err := guard.SafeAddr(addr); err != nil {
			f := newDenied("address", "%s is at an address that is not public; an operator can allow it under fetch.private", o.host)
			f.addr, f.err = addr.String(), err
			return nil, f
		}
	}
	dialer := &net.Dialer{Timeout: connectTime, Control: guard.Safe, FallbackDelay: -1}
	var failed []error
	for _, addr := range addrs[:min(len(addrs), maxDialled)] {
		conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, o.port).String())
		if err == nil {
			return c.meterConn(conn), nil
		}
		failed = append(failed, err)
		if errors.Is(err, ssrf.ErrProhibitedIP) { // can't happen: checked above
			return nil, newDenied("address", "%s is at an address that is not public", o.host)
		}
	}
	return nil, newOutage(errors.Join(failed...), "connect", "no connection to %s", o.address())
}

// lookupAddrs returns the addresses of an origin, at least one. A name with a dot
// is resolved as a full name, without the search list of the system's
// configuration.
func (c *Client) lookupAddrs(ctx context.Context, o origin) ([]netip.Addr, error) {
	if addr, ok := o.literalAddr(); ok {
		return []netip.Addr{addr}, nil
	}
	name := o.host
	if strings.Contains(name, ".") {
		name += "."
	}
	addrs, err := c.opts.Resolver.LookupNetIP(ctx, "ip", name)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no addresses")
	}
	if err != nil {
		return nil, newOutage(err, "resolve", "the name %s could not be resolved", o.host)
	}
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	return addrs, nil
}

// dialProxy connects to the proxy. Its address is not checked, because the
// operator chose it.
func (c *Client) dialProxy(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTime, Resolver: c.opts.Resolver}).DialContext(ctx, network, address)
	if err != nil {
		return nil, newOutage(err, "connect", "no connection to the configured proxy")
	}
	return c.meterConn(conn), nil
}

// checkLiteral refuses a URL whose host is an address that may not be dialled,
// even if a proxy would dial it.
func (c *Client) checkLiteral(o origin) error {
	addr, ok := o.literalAddr()
	if !ok {
		return nil
	}
	if err := c.newGuardian(o).SafeAddr(addr); err != nil {
		f := newDenied("address", "%s is not a public address; an operator can allow it under fetch.private", o.host)
		f.addr, f.err = addr.String(), err
		return f
	}
	return nil
}

// meterConn returns conn with the egress budget and the idle timeout applied.
func (c *Client) meterConn(conn net.Conn) net.Conn {
	return &meteredConn{Conn: conn, egress: c.opts.Egress, idle: c.opts.Idle}
}
