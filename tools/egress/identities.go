package egress

import (
	"context"
	"net/netip"

	"github.com/caisson-run/caisson/sandbox"
)

// Identities serves a sandbox whose programs have several identities. The user of
// the connecting socket decides which identity's server handles a connection. It is
// a [sandbox.EgressHandler] and safe for concurrent use.
type Identities struct {
	// Base is the sandbox's [sandbox.IdentityBase].
	Base int
	// Servers are the servers by identity. Server 0 is required and also serves
	// identities without a server. All servers share their Names and Numbers.
	Servers map[int]*Server
	// Owner returns the identity of a running command, or false if no command has
	// the number.
	Owner func(command int) (identity int, ok bool)
}

var _ sandbox.EgressHandler = (*Identities)(nil)

// ServeEgress implements [sandbox.EgressHandler]. A command's proxy address serves
// only programs of the command's identity.
func (m *Identities) ServeEgress(ctx context.Context, conn sandbox.EgressConn) {
	identity := 0
	var from caller
	uid, known := conn.UID()
	if n := uid - m.Base; known && n > 0 && n <= sandbox.MaxIdentity {
		from.other = true
		if m.Servers[n] != nil {
			identity = n
		}
	}
	owner, running := 0, false
	if number := conn.Command(); number != 0 {
		owner, running = m.Owner(number)
	}
	from.foreign = running && owner != identity
	m.Servers[identity].serveConn(ctx, conn, from)
}

// LookupName implements [sandbox.EgressHandler]. Nothing tells which program looks
// a name up, so it returns an address if any identity may connect to the name. The
// connecting program's identity decides about the connection.
func (m *Identities) LookupName(ctx context.Context, name string) (addr netip.Addr, ok bool) {
	defer m.Servers[0].recoverPanic(func(error) { addr, ok = netip.Addr{}, false })
	for identity, s := range m.Servers {
		if identity == 0 {
			continue
		}
		if addr, _, refused := s.lookupName(name); refused == nil {
			return addr, true
		}
	}
	return m.Servers[0].LookupName(ctx, name)
}
