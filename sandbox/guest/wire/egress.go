package wire

import (
	"fmt"
	"net/netip"
	"slices"
)

// Egress are the listeners that the guest opens for programs in the container
// before its hello.
//
//	{"port":61080,"names":true,"capture":[22,80,443]}
type Egress struct {
	// Port is that of the proxy, on every loopback address.
	Port int `json:"port"`
	// Names asks for port 53 of 127.0.0.1, UDP and TCP.
	Names bool `json:"names,omitempty"`
	// Capture are further ports on every loopback address.
	Capture []int `json:"capture,omitempty"`
	// LowPorts reports whether the guest has CAP_NET_BIND_SERVICE for the ports
	// below 1024 and has to drop it once they are open.
	LowPorts bool `json:"low_ports,omitempty"`
}

// NamePort is the port of name lookups.
const NamePort = 53

// ports returns the ports at which connections are accepted for the host.
func (e *Egress) ports() []int { return append([]int{e.Port}, e.Capture...) }

func (e *Egress) validate() error {
	if e == nil {
		return nil
	}
	ports := e.ports()
	if e.Names {
		ports = append(ports, NamePort)
	}
	slices.Sort(ports)
	if ports[0] < 1 || ports[len(ports)-1] > 65535 || len(slices.Compact(ports)) < len(ports) {
		return fmt.Errorf("ports %v of egress are out of range, or one is there twice", ports)
	}
	return nil
}

// EgressHello are the addresses at which the guest listens, as its sockets
// report them, such as "tcp 0.0.0.0:61080", the proxy's first.
type EgressHello struct {
	Listening []string `json:"listening"`
}

// Bounds of what a guest has open at once.
const (
	MaxRelays  = 64
	MaxLookups = 16
)

// RelayWindow is the credit of a channel of a relay. A larger one moves a little
// more, and makes other streams wait for what is in the pipe.
const RelayWindow = 256 << 10

// Accept announces a connection that a program made to a listener of the guest.
// Its first bytes may follow at once.
//
//	{"local":"127.80.0.7:61080","uid":10001}
type Accept struct {
	// Local is the address that the program connected to.
	Local netip.AddrPort `json:"local"`
	// UID is the user of the connecting socket in the container, nil if it could
	// not be observed.
	UID *uint32 `json:"uid,omitempty"`
}

// Check returns an error that wraps [ErrProtocol] unless a guest with these
// listeners can have accepted the connection.
func (a Accept) Check(e *Egress) error {
	if e == nil || !slices.Contains(e.ports(), int(a.Local.Port())) || !a.Local.Addr().Is4() || !a.Local.Addr().IsLoopback() {
		return fmt.Errorf("%w: a connection to %.40q, where the guest doesn't listen", ErrProtocol, a.Local.String())
	}
	return nil
}

// Lookup asks the host for the address of a name. The host answers with
// [LookupAnswer] as the end of the stream.
type Lookup struct {
	// Name is in lower case, of letters, digits, hyphens, underscores and dots,
	// without one at its end.
	Name string `json:"name"`
}

// maxName is the longest name in DNS, without a dot at its end.
const maxName = 253

// IsName reports whether a text can be in a [Lookup].
func IsName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '.' || name[len(name)-1] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		if c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// LookupAnswer is the address of a name, nil if there is no such name.
//
//	{"address":"127.96.0.1"}
type LookupAnswer struct {
	Address *netip.Addr `json:"address,omitempty"`
}

// RelayEnd is the guest's last frame of a relay: its socket is closed. The host
// answers with one, {}, once it is done with the connection too.
type RelayEnd struct {
	// Reset reports whether the connection ended other than by the ends of both
	// directions.
	Reset bool `json:"reset,omitempty"`
}
