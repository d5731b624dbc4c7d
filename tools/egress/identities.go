package egress

import (
	"context"
	"net/netip"

	"github.com/caisson-run/caisson/sandbox"
)

// Identities serves one sandbox in which programs have several identities, each with a
// server of its own: the user of the connecting socket decides which one. It is a
// [sandbox.EgressHandler], and safe for concurrent use.
type Identities struct {
	// Base is that of the sandbox's users; see [sandbox.IdentityBase].
	Base int
	// Servers are the servers by identity. That of 0 is required, and also serves the
	// identities which have none. They share their Names and Numbers.
	Servers map[int]*Server
	// Owner returns the identity of the running command with a number, and false for a
	// number of none.
	Owner func(command int) (identity int, ok bool)
}

var _ sandbox.EgressHandler = (*Identities)(nil)

// ServeEgress implements [sandbox.EgressHandler]. The proxy's address of a command
// serves programs of its own identity only.
func (m *Identities) ServeEgress(ctx context.Context, conn sandbox.EgressConn) {
	identity := 0
	uid, known := conn.UID()
	if n := uid - m.Base; known && n > 0 && n <= sandbox.MaxIdentity && m.Servers[n] != nil {
		identity = n
	}
	owner, running := 0, false
	if number := conn.Command(); number != 0 {
		owner, running = m.Owner(number)
	}
	m.Servers[identity].serveConn(ctx, conn, running && owner != identity)
}

// LookupName implements [sandbox.EgressHandler]. Nothing tells which program looks a
// name up, so there is an address if any of the identities may connect to the name;
// the connection is decided by its own.
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
