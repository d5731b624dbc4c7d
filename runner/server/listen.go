package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Listen listens on an address: HOST:PORT, or unix:PATH for a socket that only
// its user may use. It refuses an address that is not loopback unless remote is
// true.
func Listen(ctx context.Context, address string, remote bool) (net.Listener, error) {
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		l, err = listenUnix(ctx, path)
	} else {
		l, err = listenTCP(ctx, address, remote)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

// ErrRemote reports that other machines could reach an address.
var ErrRemote = errors.New("it is not a loopback address")

func listenTCP(ctx context.Context, address string, remote bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ip := net.ParseIP(host)
	if !remote && !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
		return nil, ErrRemote
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// localhost may resolve to any address.
	if tcp, ok := l.Addr().(*net.TCPAddr); !remote && (!ok || !tcp.IP.IsLoopback()) {
		return nil, errors.Join(ErrRemote, l.Close())
	}
	return l, nil
}

// listenUnix creates the socket in a private directory, and moves it to its
// path once its mode is set, so that no other user can connect in between.
func listenUnix(ctx context.Context, path string) (_ net.Listener, err error) {
	if !filepath.IsAbs(path) {
		return nil, errors.New("the socket's path must be absolute")
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".caisson-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	temp := filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", temp)
	if err != nil {
		return nil, err
	}
	unix := l.(*net.UnixListener)
	unix.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &socket{UnixListener: unix, path: path}, nil
}

// removeStale removes a socket on which no process listens.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return errors.New("another file is there")
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process listens on it already")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

type socket struct {
	*net.UnixListener
	path string
	once sync.Once
}

func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close also removes the socket's file.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	s.once.Do(func() { err = errors.Join(err, os.Remove(s.path)) })
	return err
}
