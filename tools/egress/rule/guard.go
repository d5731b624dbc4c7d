package rule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

const (
	// maxDialled is the number of addresses dialled per host. All are checked.
	maxDialled  = 4
	connectTime = 10 * time.Second
)

// metadataAddrs are addresses at which clouds give credentials or commands to the
// machine that asks. Some are in public ranges.
var metadataAddrs = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254"), // most clouds
	netip.MustParseAddr("169.254.170.2"), netip.MustParseAddr("169.254.170.23"), netip.MustParseAddr("fd00:ec2::23"), // containers of AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("168.63.129.16"),   // Azure's agent
}

// HoldsMetadata reports whether a network has an address of a cloud's metadata
// service.
func HoldsMetadata(network netip.Prefix) bool {
	return slices.ContainsFunc(metadataAddrs, network.Contains)
}

// Guard decides which addresses of a host may be dialled: public ones that are not
// this machine's, and any that the configuration names for the host. It is safe for
// concurrent use. The zero value allows no others.
type Guard struct {
	private map[string][]netip.Prefix
}

// NewGuard returns a guard. Private has the networks of hosts that need not be
// public, by any spelling of the host. An address of this machine or a cloud's
// metadata service must be named itself.
func NewGuard(private map[string][]netip.Prefix) (*Guard, error) {
	g := &Guard{private: make(map[string][]netip.Prefix, len(private))}
	for host, networks := range private {
		canonical, err := CanonicalHost(host)
		if err != nil {
			return nil, fmt.Errorf("private host %q: %w", host, err)
		}
		g.private[canonical] = append(g.private[canonical], networks...)
	}
	return g, nil
}

// AddressError reports that a host is at an address that may not be dialled.
type AddressError struct {
	Host string
	Addr netip.Addr
	// Rule is the rule that denies the address, or the zero value if it is not
	// public.
	Rule Rule
	Err  error
}

func (e *AddressError) Error() string {
	if e.Rule != (Rule{}) {
		return fmt.Sprintf("%s is at an address that %s denies", e.Host, e.Rule)
	}
	return e.Host + " is at an address that is not public"
}

func (e *AddressError) Unwrap() error { return e.Err }

// IsNetwork reports whether the address is refused only because it is in a private
// network (RFC 1918, RFC 4193), not by a rule or as this machine's or a metadata
// service's.
func (e *AddressError) IsNetwork() bool {
	return e.Rule == (Rule{}) && e.Addr.IsPrivate() && !errors.Is(e.Err, errOwnAddr) && !errors.Is(e.Err, errMetadata)
}

// ResolveError reports that a name could not be resolved.
type ResolveError struct {
	Host string
	Err  error
}

func (e *ResolveError) Error() string { return "the name " + e.Host + " could not be resolved" }

func (e *ResolveError) Unwrap() error { return e.Err }

// ConnectError reports that no address of a host accepted a connection.
type ConnectError struct {
	Address string
	Err     error
}

func (e *ConnectError) Error() string { return "no connection to " + e.Address }

func (e *ConnectError) Unwrap() error { return e.Err }

type check struct {
	host     string
	port     uint16
	named    []netip.Prefix // that the configuration names for the host
	own      []netip.Addr   // of this machine's interfaces
	deny     []Rule
	guardian *ssrf.Guardian
}

func ownAddrs() ([]netip.Addr, error) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range interfaces {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own, nil
}

// IsOfMachine reports whether an address leads to this machine, to its link, or to
// a cloud's metadata service. No name of the Internet should have it.
func IsOfMachine(addr netip.Addr) bool {
	addr = addr.Unmap()
	own, err := ownAddrs()
	return err != nil || addr.IsLoopback() || addr.IsUnspecified() || addr.IsLinkLocalUnicast() ||
		slices.Contains(metadataAddrs, addr) || slices.Contains(own, addr)
}

// Reasons to refuse addresses that may be public.
var (
	errOwnAddr  = errors.New("an address of this machine")
	errMetadata = errors.New("the address of a metadata service")
)

// isNamed reports whether the configuration names the address itself, or a loopback
// network that contains it.
func (c *check) isNamed(addr netip.Addr) bool {
	return slices.ContainsFunc(c.named, func(p netip.Prefix) bool {
		return p.Contains(addr) && (p.IsSingleIP() || p.Addr().IsLoopback())
	})
}

func (c *check) checkAddr(addr netip.Addr) error {
	var err error
	switch {
	case c.isNamed(addr):
	case slices.Contains(metadataAddrs, addr):
		err = errMetadata
	case slices.Contains(c.own, addr):
		err = errOwnAddr
	default:
		err = c.guardian.SafeAddr(addr)
	}
	if err != nil {
		return &AddressError{Host: c.host, Addr: addr, Err: err}
	}
	at := slices.IndexFunc(c.deny, func(r Rule) bool { return r.deniesAll() && r.coversHost(addr.String(), c.port) })
	if at >= 0 {
		return &AddressError{Host: c.host, Addr: addr, Rule: c.deny[at]}
	}
	return nil
}

// control checks the address of a socket before it connects.
func (c *check) control(network, address string, conn syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	if at.Port() != c.port {
		return c.guardian.Safe(network, address, conn)
	}
	return c.checkAddr(at.Addr().Unmap())
}

// Dialer connects to hosts. Guard is required.
type Dialer struct {
	Guard    *Guard
	Resolver *net.Resolver
	// PublicOnly ignores the private networks of Guard.
	PublicOnly bool
	// Named are further addresses that the host may have.
	Named []netip.Addr
	// Deny are rules as in [Policy]. They also refuse addresses.
	Deny []Rule
}

// CheckLiteral returns Dial's error for a host that is an address. It allows names.
func (d *Dialer) CheckLiteral(host string, port uint16) error {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return d.CheckAddr(host, port, addr)
}

// CheckAddr returns Dial's error for a host at an address.
func (d *Dialer) CheckAddr(host string, port uint16, addr netip.Addr) error {
	c, err := d.newCheck(host, port)
	if err != nil {
		return err
	}
	return c.checkAddr(addr)
}

func (d *Dialer) newCheck(host string, port uint16) (*check, error) {
	c := &check{host: host, port: port, deny: d.Deny}
	if !d.PublicOnly {
		c.named = slices.Clone(d.Guard.private[host])
	}
	var v4, v6 []netip.Prefix
	for _, p := range c.named {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	c.guardian = ssrf.New(ssrf.WithPorts(port), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	for _, addr := range d.Named {
		c.named = append(c.named, netip.PrefixFrom(addr, addr.BitLen()))
	}
	var err error
	c.own, err = ownAddrs()
	return c, err
}

// Dial connects to a canonical host. It resolves the name once, refuses the host if
// any of its addresses may not be dialled, and dials only checked addresses. Each
// socket's address is checked again before it connects. Errors are an
// *AddressError, *ResolveError or *ConnectError.
func (d *Dialer) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	c, err := d.newCheck(host, port)
	if err != nil {
		return nil, err
	}
	addrs, err := d.lookupAddrs(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err := c.checkAddr(addr); err != nil {
			return nil, err
		}
	}
	dialer := &net.Dialer{Timeout: connectTime, Control: c.control, FallbackDelay: -1}
	var failed []error
	for _, addr := range addrs[:min(len(addrs), maxDialled)] {
		conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
		if err == nil {
			return conn, nil
		}
		if refused, ok := errors.AsType[*AddressError](err); ok { // can't happen: checked above
			return nil, refused
		}
		failed = append(failed, err)
	}
	return nil, &ConnectError{Address: Origin{Host: host, Port: port}.Address(), Err: errors.Join(failed...)}
}

// HostName is the name of this machine for programs in a sandbox. It means
// 127.0.0.1 and is not resolved. Like any address of this machine, that must be
// named for it in the private networks of a [Guard].
const HostName = "host.caisson.internal"

// lookupAddrs returns a host's addresses, at least one. A name with a dot is
// resolved as a full name, without the system's search list.
func (d *Dialer) lookupAddrs(ctx context.Context, host string) ([]netip.Addr, error) {
	if host == HostName {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	name := host
	if strings.Contains(name, ".") {
		name += "."
	}
	addrs, err := d.Resolver.LookupNetIP(ctx, "ip", name)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no addresses")
	}
	if err != nil {
		return nil, &ResolveError{Host: host, Err: err}
	}
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	return addrs, nil
}
