package relay

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// headTime is how long a connection to the proxy may take to send its first
// bytes. Afterwards it goes to the host in any case.
const headTime = time.Second

// serveLocal serves a request to the proxy for a loopback address, and reports
// whether it did. Some programs, such as Python's urllib, don't understand
// 127.0.0.0/8 in NO_PROXY. The guest connects to the sandbox's own loopback, as
// the program could itself, without asking the host, which has another
// loopback. first is what the program has sent.
func (s *Server) serveLocal(c connection, first []byte) bool {
	to, request, isConnect := parseLocal(first)
	// Otherwise the guest would seem to be a program at its own listener.
	if !to.IsValid() || slices.Contains(s.l.ports, int(to.Port())) {
		return false
	}
	defer func() { _ = c.file.Close() }()
	server, err := s.dialLocal(to)
	if err != nil {
		text := fmt.Sprintf("%v: %v\n", to, err)
		_ = s.slots.WriteAll(c.raw, fmt.Appendf(nil, "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(text), text))
		return true
	}
	defer func() { _ = server.file.Close() }()
	if isConnect {
		err = s.slots.WriteAll(c.raw, []byte("HTTP/1.1 200 OK\r\n\r\n"))
	}
	if err != nil || s.slots.WriteAll(server.raw, request) != nil {
		return true
	}
	var up sync.WaitGroup
	up.Go(func() { s.copyAll(server, c.socket) })
	s.copyAll(c.socket, server)
	_ = c.file.SetReadDeadline(time.Now().Add(closeTime))
	up.Wait()
	return true
}

// copyAll copies to the end of from, and ends to.
func (s *Server) copyAll(to, from *socket) {
	var block [firstRead]byte
	for {
		n := s.readSome(from, block[:])
		if n <= 0 || s.slots.WriteAll(to.raw, block[:n]) != nil {
			break
		}
	}
	_ = to.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
}

// readSome waits for bytes and reads them. It returns 0 at the end, and a
// negative number for an error.
func (s *Server) readSome(from *socket, b []byte) (n int) {
	err := from.raw.Read(func(fd uintptr) bool {
		var err error
		s.slots.Do(func() { n, err = unix.Read(int(fd), b) })
		return err != unix.EAGAIN
	})
	if err != nil {
		return -1
	}
	return n
}

func (s *Server) dialLocal(to netip.AddrPort) (*socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := boundBuffers(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil, err
	}
	server, err := newSocket(fd, "local connection")
	if err == nil {
		_ = server.file.SetWriteDeadline(time.Now().Add(drainTime)) // its backlog may be full
		err = server.raw.Write(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
			return n > 0
		})
	}
	if err == nil {
		var code int
		_ = server.raw.Control(func(fd uintptr) { code, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) })
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
	}
	if err != nil {
		_ = server.file.Close()
		return nil, err
	}
	return server, server.file.SetWriteDeadline(time.Time{})
}

// parseLocal returns the address in 127.0.0.0/8 that a request to a proxy is
// for, which is invalid for other requests, and what to send there. That is the
// request as a server expects it, for one connection only, since the next may
// be to another host; for CONNECT it is what follows the head. first must have
// the request's whole line, or for CONNECT the whole head.
func parseLocal(first []byte) (to netip.AddrPort, request []byte, isConnect bool) {
	none := netip.AddrPort{}
	line, rest, ok := bytes.Cut(first, []byte("\r\n"))
	method, target, _ := strings.Cut(string(line), " ")
	target, version, _ := strings.Cut(target, " ")
	if !ok || !strings.HasPrefix(version, "HTTP/1.") {
		return none, nil, false
	}
	if isConnect = method == "CONNECT"; isConnect {
		if _, rest, ok = bytes.Cut(first, []byte("\r\n\r\n")); !ok {
			return none, nil, false
		}
		return localAddr(target), rest, true
	}
	if target, ok = strings.CutPrefix(target, "http://"); !ok {
		return none, nil, false
	}
	host, path := target, "/"
	if i := strings.IndexAny(target, "/?"); i >= 0 {
		host, path = target[:i], "/"+strings.TrimPrefix(target[i:], "/")
	}
	if !strings.Contains(host, ":") {
		host += ":80"
	}
	return localAddr(host), fmt.Appendf(nil, "%s %s %s\r\nConnection: close\r\n%s", method, path, version, rest), false
}

func localAddr(host string) netip.AddrPort {
	to, err := netip.ParseAddrPort(host)
	if err != nil || !to.Addr().Is4() || !to.Addr().IsLoopback() {
		return netip.AddrPort{}
	}
	return to
}
