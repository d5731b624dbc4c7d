package execsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Listen makes the socket of a session in its folder and takes commands until
// it is closed; cancelling ctx cancels those that run. It fails where a socket
// is there already.
func Listen(ctx context.Context, dir, name string, handle Handler) (*Server, error) {
	folder, err := openFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.ListenUnix("unix", address(folder, name))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), folder.Close())
	}
	l.SetUnlinkOnClose(false) // by the folder that is held, not by a path
	remove := func() {
		unix.Unlinkat(int(folder.Fd()), name, 0) //nolint:errcheck // the next sweep removes it
		folder.Close()                           //nolint:errcheck // only held
	}
	if err := unix.Fchmodat(int(folder.Fd()), name, 0o600, 0); err != nil {
		remove()
		return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
	}
	return serve(ctx, l, remove, handle), nil
}

// Dial connects to the socket of a session, and checks that its owner is this
// user. It fails with fs.ErrNotExist where no process listens.
func Dial(dir, name string) (net.Conn, error) {
	folder, err := openFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer folder.Close()
	conn, err := net.DialUnix("unix", nil, address(folder, name))
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

func openFolder(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// address names a socket through its folder's descriptor: sun_path has 108
// bytes (unix(7)), and a state folder may be deeper.
func address(folder *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), name)}
}

// errPeer says that the other side is another user's.
var errPeer = errors.New("it is another user's")

// checkPeer refuses another user's process and gives the pid of one's own.
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
