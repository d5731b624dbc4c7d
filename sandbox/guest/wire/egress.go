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

// Egress describes the listeners that the guest opens for programs in the
// container before its hello.
//
//	{"port":61080,"names":true,"capture":[22,80,443]}
type Egress struct {
	// Port is the proxy's, on every loopback address.
	Port int `json:"port"`
	// Names asks for port 53 of 127.0.0.1, UDP and TCP.
	Names bool `json:"names,omitempty"`
	// Capture are more ports on every loopback address.
	Capture []int `json:"capture,omitempty"`
	// LowPorts reports that the guest has CAP_NET_BIND_SERVICE for ports below
	// 1024, and must drop it once they are open.
	LowPorts bool `json:"low_ports,omitempty"`
}

// NamePort is the port of name lookups.
const NamePort = 53

// ports returns the ports at which the guest accepts connections for the host.
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

// EgressHello has the addresses at which the guest listens, as its sockets
// report them, such as "tcp 0.0.0.0:61080". The proxy's is first.
type EgressHello struct {
	Listening []string `json:"listening"`
}

// Bounds of a guest's open streams.
const (
	MaxRelays  = 64
	MaxLookups = 16
)

// RelayWindow is the credit of a relay's channel. A larger one would be
// slightly faster, but make other streams wait longer for the pipe.
const RelayWindow = 256 << 10

// Accept announces a connection that a program made to a listener of the guest.
// Its first bytes may follow at once.
//
//	{"local":"127.80.0.7:61080","uid":10001}
type Accept struct {
	// Local is the address that the program connected to.
	Local netip.AddrPort `json:"local"`
	// UID is the user of the connecting socket in the container, or nil if it
	// could not be observed.
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

// Lookup asks the host for the address of a name. [LookupAnswer] ends the
// stream.
type Lookup struct {
	// Name is a name for which [IsName] returns true.
	Name string `json:"name"`
}

// maxName is the length of the longest name in DNS, without a final dot.
const maxName = 253

// IsName reports whether a name can be in a [Lookup]: lower case letters,
// digits, hyphens, underscores and dots, without a dot at either end.
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

// LookupAnswer is the address of a name, or nil if the name does not exist.
//
//	{"address":"127.96.0.1"}
type LookupAnswer struct {
	Address *netip.Addr `json:"address,omitempty"`
}

// RelayEnd is the guest's last frame of a relay: its socket is closed. The host
// answers with an empty one when it is done with the connection.
type RelayEnd struct {
	// Reset reports that the connection ended other than by both directions'
	// ends.
	Reset bool `json:"reset,omitempty"`
}

// ReachWord is the argument that makes the guest's binary try to connect to
// targets, and write a Reach.
const ReachWord = "reach"

// Reach reports the targets to which a command could connect.
//
//	{"interfaces":["lo"],"results":{"tcp:7f000001:4711":"ECONNREFUSED"}}
type Reach struct {
	// Interfaces are the names of the command's network interfaces.
	Interfaces []string `json:"interfaces"`
	// Results maps each target, as given, to an errno's name, or "ok" for a
	// connection. With [ByProxy] it is the status of the proxy's answer, and
	// with [ByName] NameUnknown for a name that does not exist.
	Results map[string]string `json:"results"`
}

// Targets besides [Target]: a host:port that the environment's proxy is asked
// for, and a name to look up.
const (
	ByProxy = "proxy:"
	ByName  = "name:"
)

// NameUnknown is the result for a name that does not exist.
const NameUnknown = "NXDOMAIN"

// Target is a stream socket: an IPv4 (4 bytes) or IPv6 address (16) with a
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
