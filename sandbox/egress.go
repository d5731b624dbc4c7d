package sandbox

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// EgressPlan is the listeners that the guest opens on loopback for programs in
// the sandbox. The container has no network besides: each connection to a
// listener goes to the [EgressHandler] of the session, which decides.
type EgressPlan struct {
	// Port is the port of the proxy, from 1024 on; zero means
	// [DefaultEgressPort].
	Port int
}

// DefaultEgressPort is the proxy's port unless a plan has another one.
const DefaultEgressPort = 61080

// MaxEgressConns is the number of connections of one sandbox that are open at
// once. Further ones wait in the backlog of the listener.
const MaxEgressConns = 64

// EgressConn is one connection that a program in the sandbox made to a listener
// of the guest. Its methods are safe for concurrent use. Where it differs from a
// TCP connection: Close discards what the program has not yet received, and a
// program that was reset or has ended is an error of Read and Write.
type EgressConn interface {
	io.ReadWriteCloser
	// CloseWrite ends the bytes to the program, which may go on sending.
	CloseWrite() error
	// LocalAddr returns the address that the program connected to, such as
	// 127.80.0.7:61080.
	LocalAddr() netip.AddrPort
	// Command returns the number of the command whose environment has that
	// address, or 0. Every program in the sandbox can use any of these
	// addresses, so it is for people and no boundary.
	Command() int
	// UID returns the user of the connecting socket as the guest observed it,
	// and false if that is unknown.
	UID() (uid int, known bool)
}

// EgressHandler serves the connections of one session. ServeEgress is called in
// a goroutine of its own for each connection, and returns when the connection is
// over. The connection is closed then. The context ends with the sandbox or with
// the command whose address was used.
type EgressHandler interface {
	ServeEgress(ctx context.Context, c EgressConn)
}

// EgressServer is implemented by a [Sandbox] that can have an EgressPlan.
type EgressServer interface {
	// Serve sets the handler of the session, in place of the one before. Until
	// its first call, and after one with nil, connections are refused: the
	// program sees a connection that was reset. Connections that are open keep
	// their handler.
	Serve(h EgressHandler)
}

// AttestedEgress is the listeners of the guest, as the guest reported them.
type AttestedEgress struct {
	// Listening are the addresses, such as "0.0.0.0:61080".
	Listening []string `json:"listening"`
}

// ProxyPort returns the port of the proxy.
func (p *EgressPlan) ProxyPort() int {
	if p.Port == 0 {
		return DefaultEgressPort
	}
	return p.Port
}

// Validate returns an error that wraps [ErrInvalid] for a plan that no guest
// can have, or if one of the session's variables is the proxy's. A nil plan is
// valid.
func (p *EgressPlan) Validate(env []string) error {
	if p == nil {
		return nil
	}
	if port := p.ProxyPort(); port < 1024 || port > 65535 {
		return fmt.Errorf("%w: the proxy's port %d is not within 1024 and 65535", ErrInvalid, port)
	}
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(proxyNames, strings.ToUpper(name)) || name == nodeProxy {
			return fmt.Errorf("%w: the variable %s is the sandbox's own where commands have a proxy", ErrInvalid, name)
		}
	}
	return nil
}

// The variables of a proxy. They are read in upper and lower case. ALL_PROXY is
// never set: programs take it for SOCKS where they lack support of it.
var proxyNames = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"}

// nodeProxy makes Node 24 and later use the variables.
const nodeProxy = "NODE_USE_ENV_PROXY"

// commandNet is the network in which each command has an address: its number is
// the last two bytes.
var commandNet = netip.MustParsePrefix("127.80.0.0/16")

// MaxCommandNumber is the highest number of a command.
const MaxCommandNumber = 1<<16 - 1

// CommandAddr returns the address of the proxy for the command with this
// number.
func CommandAddr(number int) netip.Addr {
	a := commandNet.Addr().As4()
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// CommandNumber returns the number of the command that has an address, or 0.
func CommandNumber(addr netip.Addr) int {
	addr = addr.Unmap()
	if !commandNet.Contains(addr) {
		return 0
	}
	a := addr.As4()
	return int(a[2])<<8 | int(a[3])
}

// ProxyVariables returns the variables of the command with this number. NO_PROXY
// has loopback addresses only: programs would connect to private networks
// directly, which can't be reached.
func (p *EgressPlan) ProxyVariables(number int) []string {
	host := CommandAddr(number).String()
	url := "http://" + host + ":" + strconv.Itoa(p.ProxyPort())
	none := "localhost,127.0.0.1,::1," + host
	return []string{
		"HTTP_PROXY=" + url, "http_proxy=" + url, "HTTPS_PROXY=" + url, "https_proxy=" + url,
		"NO_PROXY=" + none, "no_proxy=" + none, nodeProxy + "=1",
	}
}
