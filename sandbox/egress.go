package sandbox

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
)

// EgressPlan is the listeners that the guest opens on loopback for programs in
// the sandbox. The container has no network besides: each connection to a
// listener goes to the [EgressHandler] of the session, which decides.
type EgressPlan struct {
	// Port is the port of the proxy, from 1024 on; zero means
	// [DefaultEgressPort].
	Port int
	// Names makes the guest answer name lookups of programs, by asking the
	// handler. /etc/resolv.conf and /etc/nsswitch.conf are then files of the
	// sandbox's own.
	Names bool
	// Capture are the ports at which connections to any loopback address are
	// accepted too, for programs that ignore the proxy: those that
	// [EgressHandler.LookupName] returns. It is in ascending order, at most
	// [MaxCapturePorts], and needs Names. A program can't listen on these ports
	// itself.
	Capture []int
	// Roots are certificates in PEM that programs are to trust beside those of
	// the image, at most [MaxRootsBytes]. The directory [EgressDir] has them,
	// they are in place of the image's system bundle, and variables name them.
	// A sandbox with Roots is never started ahead.
	Roots []byte
	// JavaRoots makes a trust store for Java of the same certificates. It needs
	// Roots.
	JavaRoots bool
	// Files are further small files of EgressDir, by name: configuration of programs
	// that Env refers to. A sandbox with Files is never started ahead.
	Files map[string]string
	// Env are more variables of commands that have no Env of their own, as
	// NAME=value, below those of Spec.Env. Each [ProxyPlaceholder] in a value is
	// replaced by the URL of the command's proxy, without a slash at its end.
	Env []string
	// Reserved leaves all variables of the plan out of the sandbox's own environment: only
	// commands with [Command].Proxy use the proxy.
	Reserved bool
	// Shared prepares the sandbox for containers of the same engine that share its
	// network namespace: they get an /etc/hosts and an /etc/resolv.conf. Backends other
	// than docker ignore it.
	Shared bool
}

// ProxyPlaceholder stands for a URL such as http://127.80.0.7:61080 in
// [EgressPlan.Env].
const ProxyPlaceholder = "{proxy}"

// EgressDir is the directory of [EgressPlan.Roots] and Files in the container, which
// is read-only: ca.pem has the certificates of the plan, bundle.pem those and the
// image's, java.p12 the same for Java.
const EgressDir = "/.caisson/net"

// Bounds of an EgressPlan.
const (
	MaxCapturePorts = 64
	MaxRootsBytes   = 1 << 20
)

// DefaultEgressPort is the proxy's port unless a plan has another one.
const DefaultEgressPort = 61080

// MaxEgressConns is the number of connections of one sandbox that are open at
// once, and MaxCommandConns that of connections to one address, such as the proxy
// of a command: some are left for others. Further ones wait.
const (
	MaxEgressConns  = 64
	MaxCommandConns = 48
)

// EgressConn is one connection that a program in the sandbox made to a listener
// of the guest. Its methods are safe for concurrent use. Where it differs from a
// TCP connection: Close resets it, and discards what the program has not yet
// received, unless CloseWrite was called before. A program that reset the
// connection or has ended is an error of Read and Write.
type EgressConn interface {
	io.ReadWriteCloser
	// CloseWrite ends the bytes to the program, which may go on sending.
	CloseWrite() error
	// LocalAddr returns the address that the program connected to, such as
	// 127.80.0.7:61080.
	LocalAddr() netip.AddrPort
	// Command returns the number of the running command whose environment has
	// that address, or 0. Every program in the sandbox can use any of these
	// addresses, so it is for people and no boundary.
	Command() int
	// UID returns the user of the connecting socket as the guest observed it,
	// and false if that is unknown.
	UID() (uid int, known bool)
}

// EgressHandler serves the connections of one session. ServeEgress is called in
// a goroutine of its own for each connection, and returns when the connection is
// over. The connection is closed then. The context ends with the sandbox, with
// the command whose address was used, or when the program has ended both
// directions of the connection or reset it. A connection counts towards
// [MaxEgressConns] until ServeEgress returns.
type EgressHandler interface {
	ServeEgress(ctx context.Context, c EgressConn)
	// LookupName returns the address of a name for a program that looked it up,
	// in lower case and without a dot at its end, and false if there is none. The
	// address is one of [NameAddr], by which the handler recognises the name when
	// the program connects to it. It is called in a goroutine of its own, and must
	// return within a second or so: programs ask again after five.
	LookupName(ctx context.Context, name string) (addr netip.Addr, ok bool)
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
	// Listening are the addresses of the proxy and for names, such as "tcp
	// 0.0.0.0:61080" and "udp 127.0.0.1:53".
	Listening []string `json:"listening"`
	// Capture are the ports at which connections of programs that ignore the
	// proxy are accepted.
	Capture []int `json:"capture,omitempty"`
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
	if err := errors.Join(p.validateCapture(), p.validateRoots(), CheckVariables(p.Env)); err != nil {
		return err
	}
	for _, v := range slices.Concat(env, p.Env) {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(proxyNames, strings.ToUpper(name)) || name == nodeProxy {
			return fmt.Errorf("%w: the variable %s is the sandbox's own where commands have a proxy", ErrInvalid, name)
		}
	}
	return nil
}

func (p *EgressPlan) validateCapture() error {
	switch {
	case len(p.Capture) > MaxCapturePorts:
		return fmt.Errorf("%w: %d captured ports, at most %d are possible", ErrInvalid, len(p.Capture), MaxCapturePorts)
	case len(p.Capture) > 0 && !p.Names:
		return fmt.Errorf("%w: captured ports without names", ErrInvalid)
	}
	last := 0
	for _, port := range p.Capture {
		switch {
		case port < 1 || port > 65535 || port == namePort || port == p.ProxyPort():
			return fmt.Errorf("%w: port %d can't be captured", ErrInvalid, port)
		case port <= last:
			return fmt.Errorf("%w: captured ports are not in ascending order", ErrInvalid)
		}
		last = port
	}
	return nil
}

// namePort is the port of name lookups.
const namePort = 53

// rootNames are the files of EgressDir that are made from Roots.
var rootNames = []string{"ca.pem", "bundle.pem", "java.p12"}

// validateRoots refuses everything but certificates, a private key above all, and
// files that can't be beside them.
func (p *EgressPlan) validateRoots() error {
	switch {
	case len(p.Roots) > MaxRootsBytes:
		return fmt.Errorf("%w: roots of %d bytes, at most %d are possible", ErrInvalid, len(p.Roots), MaxRootsBytes)
	case p.JavaRoots && len(p.Roots) == 0:
		return fmt.Errorf("%w: a trust store for Java without roots", ErrInvalid)
	}
	size := 0
	for name, text := range p.Files {
		size += len(text)
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" || strings.HasPrefix(name, ".") || slices.Contains(rootNames, name) {
			return fmt.Errorf("%w: a file can't have the name %q", ErrInvalid, name)
		}
	}
	if size > MaxRootsBytes {
		return fmt.Errorf("%w: files of %d bytes, at most %d are possible", ErrInvalid, size, MaxRootsBytes)
	}
	for rest := bytes.TrimSpace(p.Roots); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return fmt.Errorf("%w: the roots have something else than certificates in PEM", ErrInvalid)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("%w: the roots have an invalid certificate: %w", ErrInvalid, err)
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

// nameNet is the network of the addresses of names: the number of a name is its
// last 20 bits.
var nameNet = netip.MustParsePrefix("127.96.0.0/12")

// NameAddr returns the address of the name with this number, from 1 to 1<<20 - 1.
func NameAddr(number int) netip.Addr {
	a := nameNet.Addr().As4()
	a[1] |= byte(number >> 16)
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// NameNumber returns the number of the name that has an address, or 0.
func NameNumber(addr netip.Addr) int {
	addr = addr.Unmap()
	if !nameNet.Contains(addr) {
		return 0
	}
	a := addr.As4()
	return int(a[1]&0xf)<<16 | int(a[2])<<8 | int(a[3])
}

// ProxyVariables returns the variables of the command with this number. NO_PROXY has the
// names of loopback only, in the forms that programs compare with. Otherwise programs
// would connect directly to private networks, which can't be reached.
func (p *EgressPlan) ProxyVariables(number int) []string {
	none := "localhost,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0," + images.Hostname + "," + CommandAddr(number).String()
	url := p.proxyURL(number)
	return []string{
		"HTTP_PROXY=" + url, "http_proxy=" + url, "HTTPS_PROXY=" + url, "https_proxy=" + url,
		"NO_PROXY=" + none, "no_proxy=" + none, nodeProxy + "=1",
	}
}

func (p *EgressPlan) proxyURL(number int) string {
	return "http://" + netip.AddrPortFrom(CommandAddr(number), uint16(p.ProxyPort())).String()
}

// CommandEnv returns an environment with the variables of the plan for the
// command with this number, in place of those of the same name. session are the
// variables of Spec.Env, which are above Env. The defaults that make package managers
// work offline are left out. A Reserved plan adds session alone.
func (p *EgressPlan) CommandEnv(env, session []string, number int) []string {
	if p.Reserved {
		return SetVariables(env, session)
	}
	own := make([]string, len(p.Env))
	for i, v := range p.Env {
		name, value, _ := strings.Cut(v, "=")
		own[i] = name + "=" + strings.ReplaceAll(value, ProxyPlaceholder, p.proxyURL(number))
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return slices.Contains(offlineEnv, v) })
	return SetVariables(env, slices.Concat(p.rootVariables(), own, joinGoProxy(session, own), p.ProxyVariables(number)))
}

// joinGoProxy returns the variables of a session in which the plan's GOPROXY, if there is
// one, follows a directory with modules: those that the directory lacks are downloaded.
func joinGoProxy(session, plan []string) []string {
	session = slices.Clone(session)
	for i, v := range session {
		for _, own := range plan {
			if proxy, ok := strings.CutPrefix(own, "GOPROXY="); ok && strings.HasPrefix(v, "GOPROXY=file://") && !strings.ContainsAny(v, ",|") {
				session[i] = v + "," + proxy
			}
		}
	}
	return session
}

// AccessEnv returns an environment with what [Command].Proxy adds for the command with
// this number, and with the command's own variables. The defaults that make package
// managers work offline are left out.
func (p *EgressPlan) AccessEnv(env, variables []string, number int) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return slices.Contains(offlineEnv, v) })
	own := slices.Clone(variables)
	for i, v := range own {
		own[i] = strings.ReplaceAll(v, ProxyPlaceholder, p.proxyURL(number))
	}
	return SetVariables(env, slices.Concat(p.rootVariables(), p.ProxyVariables(number), own))
}

// rootVariables returns the variables by which programs find the roots.
func (p *EgressPlan) rootVariables() []string {
	if len(p.Roots) == 0 {
		return nil
	}
	var list []string
	for _, name := range bundleNames {
		list = append(list, name+"="+EgressDir+"/bundle.pem")
	}
	list = append(list, "NODE_EXTRA_CA_CERTS="+EgressDir+"/ca.pem", "UV_NATIVE_TLS=1", "DENO_TLS_CA_STORE=system")
	if p.JavaRoots {
		list = append(list, "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore="+EgressDir+"/java.p12 -Djavax.net.ssl.trustStoreType=PKCS12 -Djavax.net.ssl.trustStorePassword="+JavaPassword)
	}
	return list
}

// JavaPassword is the password of java.p12, which is no secret: Java reads no
// trust store without one.
const JavaPassword = "changeit"

// bundleNames are the variables of programs whose value is a file with all
// certificates to trust.
var bundleNames = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "npm_config_cafile",
}
