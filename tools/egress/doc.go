// Package egress is the network of a session's commands. A [Server] gets each
// connection that a program in the sandbox makes to a listener of the guest,
// decides whether it is allowed, connects from the host and relays the bytes.
//
// A program reaches it in four ways: a request to an HTTP proxy, CONNECT, SOCKS5,
// or a connection to the address given to a name, which is captured. Each becomes a
// request for a host and port, and one function decides about it:
//
//	connection ─▶ host, port ─▶ user, deny, allow, ask ─▶ budget ─▶ Opened ─▶ resolve, check, dial
//	                                                                                     │
//	                 Closed ◀─ metered relay ◀─ first bytes match the rule  ◀────────────┘
//
// Nothing is resolved for a host that is refused or still being asked about. A
// refusal is reported through [Options.Denied] and to the program: as status 403
// with a JSON body and Proxy-Status (RFC 9209), a SOCKS5 reply, a TLS alert, or a
// closed connection.
package egress
