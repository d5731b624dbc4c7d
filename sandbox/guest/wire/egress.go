package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// ReachWord is the argument of the guest's binary after which it tries to
// connect to targets, and writes a Reach.
const ReachWord = "reach"

// Reach reports the targets to which a command could connect.
// {"interfaces":["lo"],"results":{"tcp:7f000001:4711":"ECONNREFUSED"}}
type Reach struct {
	// Interfaces are the names of the network interfaces that it has.
	Interfaces []string `json:"interfaces"`
	// Results maps a target, as it was given, to an errno's name: "ok" is a
	// connection. That of a target with [ByProxy] is the status of the proxy's
	// answer, and of one with [ByName] NameUnknown for a name that does not exist.
	Results map[string]string `json:"results"`
}

// Targets besides those of [Target]: a host:port to which the proxy of the
// environment is asked to connect, and a name to look up.
const (
	ByProxy = "proxy:"
	ByName  = "name:"
)

// NameUnknown is the result for a name that does not exist.
const NameUnknown = "NXDOMAIN"

// Target is a stream socket: an address of IPv4 (4 bytes) or IPv6 (16) with a
// port, or the name of an abstract socket.
type Target struct {
	IP       []byte
	Port     int
	Abstract string
}

// String returns the target as an argument: "tcp:7f000001:4711",
// "abstract:name".
func (t Target) String() string {
	if t.IP == nil {
		return "abstract:" + t.Abstract
	}
	return fmt.Sprintf("tcp:%x:%d", t.IP, t.Port)
}

// ParseTarget parses the result of String.
func ParseTarget(s string) (Target, error) {
	if name, ok := strings.CutPrefix(s, "abstract:"); ok && name != "" {
		return Target{Abstract: name}, nil
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 || parts[0] != "tcp" {
		return Target{}, fmt.Errorf("read target %q: neither tcp:ADDRESS:PORT nor abstract:NAME", s)
	}
	ip, err := hex.DecodeString(parts[1])
	if err == nil && len(ip) != 4 && len(ip) != 16 {
		err = errors.New("no address has this length")
	}
	port, portErr := strconv.ParseUint(parts[2], 10, 16)
	if err := errors.Join(err, portErr); err != nil {
		return Target{}, fmt.Errorf("read target %q: %w", s, err)
	}
	return Target{IP: ip, Port: int(port)}, nil
}
