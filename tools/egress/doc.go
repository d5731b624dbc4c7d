// Package egress is the network of the commands of one session. A [Server] gets
// each connection that a program in the sandbox makes to a listener of the guest,
// decides whether it is allowed, connects on the host, and moves its bytes.
//
// A program reaches it in four ways: a request to an HTTP proxy, CONNECT, SOCKS5,
// and a connection to the address that a name was given, which is captured. All of
// them become a request for a host and a port, and one function decides about it:
//
//	connection ─▶ host, port ─▶ user, deny, allow, ask ─▶ budget ─▶ Opened ─▶ resolve, check, dial
//	                                                                                     │
//	                 Closed ◀─ metered relay ◀─ first bytes match the rule  ◀────────────┘
//
// Nothing is resolved for a host that is refused or still being asked about. What
// is refused is reported by [Options.Denied] and to the program: as status 403 with
// a JSON body and Proxy-Status (RFC 9209), as a reply of SOCKS5, as an alert of TLS,
// or as a connection that ends.
package egress
