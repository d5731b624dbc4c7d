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

// EgressPlan describes the listeners that the guest opens on loopback for
// programs in the sandbox. The container has no other network: each connection
// goes to the session's [EgressHandler], which decides.
type EgressPlan struct {
	// Port is the proxy's port, 1024 or higher; zero means [DefaultEgressPort].
	Port int
	// Names makes the guest answer name lookups by asking the handler.
	// /etc/resolv.conf and /etc/nsswitch.conf are then the sandbox's own files.
	Names bool
	// Capture are ports at which the guest also accepts connections to any
	// loopback address, such as those from [EgressHandler.LookupName], for
	// programs that ignore the proxy. They are in ascending order, at most
	// [MaxCapturePorts], and need Names. Programs can't listen on these ports
	// themselves.
	Capture []int
	// Roots are PEM certificates for programs to trust besides the image's, at
	// most [MaxRootsBytes]. They are in [EgressDir], in place of the image's
	// system bundle, and variables name them.
	Roots []byte
	// JavaRoots makes a Java trust store of the same certificates. It needs
	// Roots.
	JavaRoots bool
	// Files are more small files in EgressDir, by name: configuration that Env
	// refers to.
	Files map[string]string
	// Env are more variables, as NAME=value, for commands without their own
	// Env; Spec.Env overrides them. Each [ProxyPlaceholder] in a value is
	// replaced by the URL of the command's proxy, without a trailing slash.
	Env []string
	// Reserved leaves the plan's variables out of the sandbox's own
	// environment: only commands with [Command].Proxy use the proxy.
	Reserved bool
	// Shared prepares the sandbox for containers that share its network
	// namespace: they get an /etc/hosts and an /etc/resolv.conf. Only the
	// docker backend heeds it.
	Shared bool
}

// ProxyPlaceholder stands for a URL such as http://127.80.0.7:61080 in
// [EgressPlan.Env].
const ProxyPlaceholder = "{proxy}"

// EgressDir is the read-only directory in the container for [EgressPlan.Roots]
// and Files: ca.pem has the plan's certificates, bundle.pem adds the image's,
// and java.p12 has the same as bundle.pem for Java.
const EgressDir = "/.caisson/net"

// Bounds of an EgressPlan.
const (
	MaxCapturePorts = 64
	MaxRootsBytes   = 1 << 20
)

// DefaultEgressPort is the proxy's port if the plan sets none.
const DefaultEgressPort = 61080

// MaxEgressConns is how many connections of one sandbox may be open at once.
// MaxCommandConns is how many may go to one address, such as a command's proxy,
// so that others get some. Further connections wait.
const (
	MaxEgressConns  = 64
	MaxCommandConns = 48
)

// EgressConn is a connection from a program in the sandbox to a listener of the
// guest. Its methods are safe for concurrent use. Unlike with TCP, Close resets
// the connection and discards what the program has not yet received, unless
// CloseWrite was called before. Read and Write fail if the program reset the
// connection or has ended.
type EgressConn interface {
	io.ReadWriteCloser
	// CloseWrite ends the stream to the program, which may continue to send.
	CloseWrite() error
	// LocalAddr returns the address that the program connected to, such as
	// 127.80.0.7:61080.
	LocalAddr() netip.AddrPort
	// Command returns the number of the running command whose environment has
	// that address, or 0. Every program in the sandbox can use any of these
	// addresses, so the number informs people but proves nothing.
	Command() int
	// UID returns the connecting socket's user as the guest observed it, and
	// false if that is unknown.
	UID() (uid int, known bool)
}

// EgressHandler serves the connections of one session. ServeEgress is called in
// a new goroutine for each connection and returns when it is done with the
// connection, which is then closed. The context ends with the sandbox, with the
// command whose address was used, or when the program has closed both
// directions or reset the connection. A connection counts towards
// [MaxEgressConns] until ServeEgress returns.
type EgressHandler interface {
	ServeEgress(ctx context.Context, c EgressConn)
	// LookupName returns the address for a name that a program looked up, or
	// false if it has none. The name is in lower case without a trailing dot.
	// The address is a [NameAddr], by which the handler recognises the name
	// when the program connects. LookupName is called in a new goroutine and
	// must return within about a second: programs ask again after five.
	LookupName(ctx context.Context, name string) (addr netip.Addr, ok bool)
}

// EgressServer is implemented by a [Sandbox] that can have an EgressPlan.
type EgressServer interface {
	// Serve sets the session's handler and replaces the previous one. Before
	// the first call, and while the handler is nil, connections are refused
	// with a reset. Open connections keep their handler.
	Serve(h EgressHandler)
}

// AttestedEgress describes the guest's listeners, as the guest reported them.
type AttestedEgress struct {
	// Listening are the addresses of the proxy and for name lookups, such as
	// "tcp 0.0.0.0:61080" and "udp 127.0.0.1:53".
	Listening []string `json:"listening"`
	// Capture are the ports of [EgressPlan.Capture].
	Capture []int `json:"capture,omitempty"`
}

// ProxyPort returns the proxy's port, by default DefaultEgressPort.
func (p *EgressPlan) ProxyPort() int {
	if p.Port == 0 {
		return DefaultEgressPort
	}
	return p.Port
}

// Validate returns an error that wraps [ErrInvalid] if no guest can have the
// plan, or if env, the session's variables, sets one of the proxy's. A nil plan
// is valid.
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

const namePort = 53

// rootNames are the files of EgressDir that are made from Roots.
var rootNames = []string{"ca.pem", "bundle.pem", "java.p12"}

// validateRoots refuses anything but certificates, above all private keys, and
// files whose names are taken.
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

// proxyNames are the proxy's variables, read in upper and lower case. ALL_PROXY
// is never set: some programs then expect SOCKS, which they may not support.
var proxyNames = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"}

// nodeProxy makes Node 24 and later use the proxy's variables.
const nodeProxy = "NODE_USE_ENV_PROXY"

// commandNet has an address for each command, whose last two bytes are the
// command's number.
var commandNet = netip.MustParsePrefix("127.80.0.0/16")

// MaxCommandNumber is the highest command number.
const MaxCommandNumber = 1<<16 - 1

// CommandAddr returns the proxy's address for a command.
func CommandAddr(number int) netip.Addr {
	a := commandNet.Addr().As4()
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// CommandNumber returns the number of the command that has addr, or 0.
func CommandNumber(addr netip.Addr) int {
	addr = addr.Unmap()
	if !commandNet.Contains(addr) {
		return 0
	}
	a := addr.As4()
	return int(a[2])<<8 | int(a[3])
}

// nameNet has an address for each name, whose last 20 bits are the name's
// number.
var nameNet = netip.MustParsePrefix("127.96.0.0/12")

// NameAddr returns a name's address. The number is 1 to 1<<20 - 1.
func NameAddr(number int) netip.Addr {
	a := nameNet.Addr().As4()
	a[1] |= byte(number >> 16)
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a)
}

// NameNumber returns the number of the name that has addr, or 0.
func NameNumber(addr netip.Addr) int {
	addr = addr.Unmap()
	if !nameNet.Contains(addr) {
		return 0
	}
	a := addr.As4()
	return int(a[1]&0xf)<<16 | int(a[2])<<8 | int(a[3])
}

// ProxyVariables returns the proxy variables for the command with this number.
// NO_PROXY has only the names of loopback, in the forms that programs compare
// with. Private networks are not in it because programs would then connect to
// them directly, and fail.
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

// CommandEnv returns env with the plan's variables for the command with this
// number, overridden by session, the variables of Spec.Env. It drops the
// defaults that keep package managers offline. A Reserved plan adds only
// session.
func (p *EgressPlan) CommandEnv(env, session []string, number int) []string {
	if p.Reserved {
		return SetVariables(env, session)
	}
	own := p.replaceProxy(p.Env, number)
	return SetVariables(withoutOffline(env), slices.Concat(p.rootVariables(), own, joinGoProxy(session, own), p.ProxyVariables(number)))
}

// joinGoProxy appends the plan's GOPROXY, if any, to a GOPROXY directory in
// session, so that modules the directory lacks are downloaded.
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

// AccessEnv returns env with what [Command].Proxy adds for the command with
// this number, and then with variables. It drops the defaults that keep package
// managers offline.
func (p *EgressPlan) AccessEnv(env, variables []string, number int) []string {
	return SetVariables(withoutOffline(env), slices.Concat(p.rootVariables(), p.ProxyVariables(number), p.replaceProxy(variables, number)))
}

// replaceProxy returns the variables for the command with this number.
func (p *EgressPlan) replaceProxy(variables []string, number int) []string {
	own := slices.Clone(variables)
	for i, v := range own {
		own[i] = strings.ReplaceAll(v, ProxyPlaceholder, p.proxyURL(number))
	}
	return own
}

func withoutOffline(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return slices.Contains(offlineEnv, v) })
}

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

// JavaPassword is the password of java.p12. It is no secret: Java reads no
// trust store without one.
const JavaPassword = "changeit"

// bundleNames are variables that name a file with all certificates to trust.
var bundleNames = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "npm_config_cafile",
}
