package execapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Listen creates the socket of a session in its directory and serves peers until the server is
// closed. It fails if the socket exists. Cancelling ctx cancels the running commands.
func Listen(ctx context.Context, dir, name string, handlers Handlers) (*Server, error) {
	held, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.ListenUnix("unix", socketAddr(held, name))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), held.Close())
	}
	l.SetUnlinkOnClose(false) // remove unlinks it through the open directory, not by a path
	remove := func() {
		_ = unix.Unlinkat(int(held.Fd()), name, 0) // if it fails, the next sweep removes it
		_ = held.Close()
	}
	if err := unix.Fchmodat(int(held.Fd()), name, 0o600, 0); err != nil {
		remove()
		return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
	}
	return newServer(ctx, l, remove, handlers), nil
}

// Dial connects to the socket of a session and checks that this user owns it. It fails with
// [fs.ErrNotExist] if no process listens.
func Dial(dir, name string) (net.Conn, error) {
	held, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = held.Close() }()
	conn, err := net.DialUnix("unix", nil, socketAddr(held, name))
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("connect: its owner is gone: %w", fs.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := checkPeer(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), conn.Close())
	}
	return conn, nil
}

// End asks the owner of a session over conn, which it closes, to end the session, and waits until
// that process is gone. The failure is why the owner refuses.
func End(ctx context.Context, conn net.Conn) (*Failure, error) {
	defer func() { _ = conn.Close() }()
	peer, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errPeer
	}
	pid, err := checkPeer(peer)
	if err != nil {
		return nil, err
	}
	// The process has not answered yet, so it lives and the id is its own.
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return nil, fmt.Errorf("watch the session's process: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := wire.NewWriter(conn).SendJSON(stream, wire.TypeOpen, Request{End: true}); err != nil {
		return nil, fmt.Errorf("%w: %w", errHungUp, err)
	}
	r, err := receiveResult(conn, Streams{}, nil)
	if err != nil || r.Failure != nil {
		return r.Failure, err
	}
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return nil, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for the session's process: %w", err)
		}
	}
	return nil, context.Cause(ctx)
}

func openDir(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// socketAddr names a socket through its directory's descriptor: sun_path has 108 bytes (unix(7)),
// and a state directory's path can be longer.
func socketAddr(held *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", held.Fd(), name)}
}

var errPeer = errors.New("the peer belongs to another user")

// checkPeer returns a peer's process id. It refuses another user's process.
func checkPeer(conn *net.UnixConn) (int32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("%w: uid %d", errPeer, cred.Uid)
	}
	return cred.Pid, nil
}
