package probe

import (
	"encoding/json"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// reachTime bounds the wait for an answer, in milliseconds: the listener is on
// this machine.
const reachTime = 1000

// Reach tries each target and writes the results. It returns an exit status.
func Reach(targets []string) int {
	r := wire.Reach{Interfaces: observe.Interfaces(), Results: map[string]string{}}
	for _, target := range targets {
		if authority, ok := strings.CutPrefix(target, wire.ByProxy); ok {
			r.Results[target] = tryProxy(authority)
		} else if name, ok := strings.CutPrefix(target, wire.ByName); ok {
			r.Results[target] = tryName(name)
		} else {
			r.Results[target] = errnoName(tryConnect(target))
		}
	}
	if json.NewEncoder(os.Stdout).Encode(r) != nil {
		return 1
	}
	return 0
}

// tryConnect connects to a target and returns the error number, 0 for a
// connection.
func tryConnect(target string) unix.Errno {
	address, err := wire.ParseTarget(target)
	if err != nil {
		return unix.EINVAL
	}
	family, to := unix.AF_UNIX, unix.Sockaddr(&unix.SockaddrUnix{Name: "@" + address.Abstract})
	switch len(address.IP) {
	case 4:
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: address.Port, Addr: [4]byte(address.IP)}
	case 16:
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: address.Port, Addr: [16]byte(address.IP)}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(fd) // nothing was written
	if err := unix.Connect(fd, to); err == nil || errnoOf(err) != unix.EINPROGRESS {
		return errnoOf(err)
	}
	if errno := awaitEvent(fd, unix.POLLOUT, reachTime); errno != 0 {
		return errno
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return errnoOf(err)
	}
	return unix.Errno(code)
}

// awaitEvent waits until a socket is ready, at most limit milliseconds.
// Signals, which the runtime sends itself, don't end the wait.
func awaitEvent(fd int, event int16, limit int) unix.Errno {
	until := time.Now().Add(time.Duration(limit) * time.Millisecond)
	for {
		left := max(time.Until(until).Milliseconds(), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: event}}, int(left))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return errnoOf(err)
		case n == 0:
			return unix.ETIMEDOUT
		}
		return 0
	}
}
