package probe

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestReaches reaches targets without an obstacle: a self-test that reached
// nothing anywhere would show nothing.
func TestReaches(t *testing.T) {
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := tcp.Addr().(*net.TCPAddr).Port
	target := wire.Target{IP: []byte{127, 0, 0, 1}, Port: port}.String()
	name := "caisson-test-" + strings.ReplaceAll(tcp.Addr().String(), ":", "-")
	unixSocket, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	abstract := wire.Target{Abstract: name}.String()
	for _, to := range []string{target, abstract} {
		if errno := tryConnect(to); errno != 0 {
			t.Errorf("%s: %s", to, errnoName(errno))
		}
	}
	tcp.Close()
	unixSocket.Close()
	for _, to := range []string{target, abstract} {
		if errno := tryConnect(to); errno != unix.ECONNREFUSED {
			t.Errorf("%s, closed: %s", to, errnoName(errno))
		}
	}
	if errno := tryConnect("nonsense"); errno != unix.EINVAL {
		t.Errorf("nonsense: %s", errnoName(errno))
	}
}
