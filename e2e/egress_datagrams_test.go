package e2e

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/egresstest"
)

// pastProxy tries what no proxy carries, at public and private addresses that exist, and
// prints the result of each attempt.
const pastProxy = `python3 -c '
import errno, socket
def attempt(name, family, kind, proto, to):
    try:
        s = socket.socket(family, kind, proto)
        s.settimeout(3)
        if kind == socket.SOCK_STREAM:
            s.connect(to)
        else:
            s.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", to)
        print(name, "left")
    except OSError as e:
        print(name, "refused", errno.errorcode.get(e.errno, e))
for host in ["93.184.216.34", "10.0.0.5"]:
    for port in [53, 443]:
        attempt("udp %s:%d" % (host, port), socket.AF_INET, socket.SOCK_DGRAM, 0, (host, port))
    attempt("icmp " + host, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, (host, 0))
    attempt("raw icmp " + host, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP, (host, 0))
    attempt("tcp " + host, socket.AF_INET, socket.SOCK_STREAM, 0, (host, 443))
attempt("udp6", socket.AF_INET6, socket.SOCK_DGRAM, 0, ("2606:4700::1111", 443))
attempt("tcp6", socket.AF_INET6, socket.SOCK_STREAM, 0, ("2606:4700::1111", 443))
'`

// TestEgressDatagrams is attack 1: under the widest rule, UDP, QUIC's port, ICMP, IPv6 and
// connections that avoid the proxy reach nothing. The control sends the same from outside.
func TestEgressDatagrams(t *testing.T) {
	if !egresstest.InNamespace() {
		dir := binaries(t)
		egresstest.Run(t, len(backendNames)-1, "E2E_BIN="+dir)
		return
	}
	var hits atomic.Int64
	datagrams := []string{"93.184.216.34:53", "93.184.216.34:443", "10.0.0.5:53", "10.0.0.5:443", "[2606:4700::1111]:443"}
	streams := []string{"93.184.216.34:443", "10.0.0.5:443", "[2606:4700::1111]:443"}
	for _, addr := range datagrams {
		c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			for buf := make([]byte, 64); ; hits.Add(1) {
				if _, _, err := c.ReadFrom(buf); err != nil {
					return
				}
			}
		}()
	}
	for _, addr := range streams {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for ; ; hits.Add(1) {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
	for network, list := range map[string][]string{"udp": datagrams, "tcp": streams} {
		for _, addr := range list {
			c, err := (&net.Dialer{}).DialContext(context.Background(), network, addr)
			if err != nil {
				t.Fatalf("control: %v", err)
			}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}
	want := int64(len(datagrams) + len(streams))
	for end := time.Now().Add(10 * time.Second); hits.Load() < want && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if hits.Swap(0) != want {
		t.Fatal("control: the canaries don't count")
	}
	for _, backend := range []string{"gvisor", "runc"} {
		t.Run(backend, func(t *testing.T) {
			if err := probeBackend(t, backend); err != nil {
				if strings.Contains(os.Getenv("REQUIRE_BACKENDS"), backend) {
					t.Fatal(err)
				}
				t.Logf("needs %s: %v", backend, err)
				return
			}
			if !isInUsr(t, "python3") {
				return
			}
			m := newMachine(t)
			m.config(t, "egress:\n  allow: [public, \"tcp://10.0.0.5:443\"]\n  private: {\"10.0.0.5\": [10.0.0.5]}\n")
			out := m.egressCall(t, backend, pastProxy)
			if n := strings.Count(out.stdout, " refused E"); n != 12 || strings.Contains(out.stdout, " left") {
				t.Errorf("%d of 12 attempts were refused:\n%s\n%s", n, out.stdout, out.stderr)
			}
			if n := hits.Load(); n != 0 {
				t.Errorf("%d arrived", n)
			}
		})
	}
}
