package relay

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// backlog is how many connections wait at a listener. Beyond it the kernel
	// drops requests, which programs repeat after 1, 3, 7 and more seconds.
	backlog = 1024
	// bufferSize bounds what the kernel buffers of a connection in each
	// direction, in bytes; it doubles that. By itself it would use up to 6 MiB,
	// which no limit of the container counts.
	bufferSize = 128 << 10
)

// Listeners are the sockets of a configuration. They stay open for good.
type Listeners struct {
	Hello wire.EgressHello

	ports   []int     // all, the proxy's first
	streams []*socket // accepted for the host
	names   *socket   // UDP; nil without names
	queries *socket   // TCP
}

// socket is a socket that the runtime polls.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

// Listen opens the listeners, without SO_REUSEADDR. With it, a command in
// gVisor could bind an address beside a listener on all.
func Listen(c wire.Egress) (*Listeners, error) {
	if err := checkLoopback(); err != nil {
		return nil, err
	}
	l := &Listeners{ports: append([]int{c.Port}, c.Capture...)}
	all, local := [4]byte{}, [4]byte{127, 0, 0, 1}
	for _, port := range l.ports {
		s, err := l.open(unix.SOCK_STREAM, all, port)
		if err != nil {
			return nil, err
		}
		l.streams = append(l.streams, s)
	}
	if !c.Names {
		return l, nil
	}
	l.ports = append(l.ports, wire.NamePort)
	var err error
	if l.names, err = l.open(unix.SOCK_DGRAM, local, wire.NamePort); err != nil {
		return nil, err
	}
	l.queries, err = l.open(unix.SOCK_STREAM, local, wire.NamePort)
	return l, err
}

// checkLoopback returns an error if the loopback interface is down: nothing
// would reach a listener on all addresses.
func checkLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("listen on loopback: %w", err)
	}
	defer unix.Close(fd) // nothing was sent
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: wire.NamePort}); err != nil {
		return fmt.Errorf("listen on loopback: the container's runtime leaves the interface down: %w", err)
	}
	return nil
}

func (l *Listeners) open(kind int, addr [4]byte, port int) (*socket, error) {
	name := "tcp"
	if kind == unix.SOCK_DGRAM {
		name = "udp"
	}
	fail := func(err error) (*socket, error) {
		return nil, fmt.Errorf("listen at %s %v: %w", name, netip.AddrPortFrom(netip.AddrFrom4(addr), uint16(port)), err)
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	if err := prepare(fd, kind, addr, port); err != nil {
		_ = unix.Close(fd)
		return fail(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return fail(err)
	}
	l.Hello.Listening = append(l.Hello.Listening, name+" "+addrPort(bound).String())
	return newSocket(fd, "listener")
}

func prepare(fd, kind int, addr [4]byte, port int) error {
	if kind == unix.SOCK_STREAM { // connections inherit these
		if err := boundBuffers(fd); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr, Port: port}); err != nil || kind == unix.SOCK_DGRAM {
		return err
	}
	return unix.Listen(fd, backlog)
}

// boundBuffers bounds what the kernel buffers of a connection.
func boundBuffers(fd int) error {
	for _, o := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, bufferSize); err != nil {
			return err
		}
	}
	return nil
}

// newSocket takes over a non-blocking descriptor.
func newSocket(fd int, name string) (*socket, error) {
	s := &socket{file: os.NewFile(uintptr(fd), name)}
	var err error
	s.raw, err = s.file.SyscallConn()
	return s, err
}

// addrPort returns the address of an IPv4 socket.
func addrPort(a unix.Sockaddr) netip.AddrPort {
	in, ok := a.(*unix.SockaddrInet4)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
}
