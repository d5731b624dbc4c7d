package relay

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnerIsConnected checks that a connected socket's user is found, and none
// once it is gone, even if another socket listens at its address by then.
func TestOwnerIsConnected(t *testing.T) {
	for _, proc := range []bool{false, true} {
		o := newOwners()
		if proc {
			o = &owners{fd: -1, files: openProc(), buf: make([]byte, procRead)}
		} else if o.fd < 0 {
			continue
		}
		server, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		shared := func(_, _ string, c syscall.RawConn) (err error) {
			_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			return err
		}
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}, Control: shared}
		client, err := dialer.Dial("tcp4", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		local, remote := addrOf(server.Addr()), addrOf(client.LocalAddr())
		config := net.ListenConfig{Control: shared}
		other, err := config.Listen(t.Context(), "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), remote.Port()).String())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if uid := o.find(local, remote); uid == nil || int(*uid) != os.Getuid() {
			t.Errorf("proc %t: user %v of a connected socket", proc, uid)
		}
		_ = client.(*net.TCPConn).SetLinger(0)
		_ = client.Close()
		if uid := o.find(local, remote); uid != nil {
			t.Errorf("proc %t: user %d of a socket that is gone", proc, *uid)
		}
	}
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
