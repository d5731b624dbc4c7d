package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

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
