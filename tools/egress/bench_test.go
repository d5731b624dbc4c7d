package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// benchPeer names another HTTP proxy, as host:port, that is measured beside the
// server.
const benchPeer = "CAISSON_BENCH_PROXY"

// startPlainRelay starts a relay to a host that decides and counts nothing.
func startPlainRelay(b *testing.B, host string) string {
	return startServer(b, func(conn *net.TCPConn) {
		up, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", host)
		if err != nil {
			return
		}
		defer func() { _ = up.Close() }()
		go func() {
			// Without the type, io.Copy would splice, which no connection of a sandbox can.
			_, _ = io.CopyBuffer(struct{ io.Writer }{up}, struct{ io.Reader }{conn}, make([]byte, relayBytes))
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{up}, make([]byte, relayBytes))
	})
}

// listenProxy serves connections to an address of the host as ones to an address in
// the sandbox.
func (f *fixture) listenProxy(b *testing.B, local string) string {
	at := netip.MustParseAddrPort(local)
	return startServer(b, func(conn *net.TCPConn) {
		f.ServeEgress(context.Background(), &testConn{TCPConn: conn, local: at, command: 7, uid: 10001})
	})
}

// benchWay is a way to connect to the host. dial also returns a reader of what the host
// sends.
type benchWay struct {
	name string
	dial func() (net.Conn, io.Reader, error)
}

func benchWays(b *testing.B, host string) []benchWay {
	f := newFixture(b, func(o *Options) { o.Guard = allowLoopback(b) }, "tcp://localhost:*", "tcp://"+host)
	connect := func(proxy, target string) func() (net.Conn, io.Reader, error) {
		return func() (net.Conn, io.Reader, error) {
			conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", proxy)
			if err != nil {
				return nil, nil, err
			}
			_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
			br := bufio.NewReader(conn)
			res, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
			if err == nil && res.StatusCode != http.StatusOK {
				err = fmt.Errorf("CONNECT: %s", res.Status)
			}
			return conn, br, err
		}
	}
	plain := func(at string) func() (net.Conn, io.Reader, error) {
		return func() (net.Conn, io.Reader, error) {
			conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", at)
			return conn, conn, err
		}
	}
	proxy := f.listenProxy(b, proxyAddr)
	name, ok := f.LookupName(context.Background(), "localhost")
	if !ok {
		b.Fatal("no name")
	}
	captured := f.listenProxy(b, netip.AddrPortFrom(name, portOf(b, host)).String())
	socks := func() (net.Conn, io.Reader, error) {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", proxy)
		if err != nil {
			return nil, nil, err
		}
		_, _ = conn.Write(append([]byte{5, 1, 0}, socksConnect("127.0.0.1", int(portOf(b, host)))...))
		_, err = io.ReadFull(conn, make([]byte, 12))
		return conn, conn, err
	}
	ways := []benchWay{
		{"direct", plain(host)}, {"relay", plain(startPlainRelay(b, host))}, {"connect", connect(proxy, host)}, {"socks5", socks}, {"capture", plain(captured)},
	}
	if peer := os.Getenv(benchPeer); peer != "" {
		ways = append(ways, benchWay{"peer", connect(peer, host)})
	}
	return ways
}

// BenchmarkDownload measures the throughput of one connection.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	host := startServer(b, func(conn *net.TCPConn) {
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			return
		}
		buf := make([]byte, 256<<10)
		for range size / len(buf) {
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	})
	for _, way := range benchWays(b, host) {
		b.Run(way.name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				conn, r, err := way.dial()
				if err != nil {
					b.Fatal(err)
				}
				_, _ = conn.Write([]byte("x"))
				if n, err := io.Copy(io.Discard, struct{ io.Reader }{r}); n != size {
					b.Fatal(n, err)
				}
				_ = conn.Close()
			}
		})
	}
}

// BenchmarkFirstByte measures the time from connecting to the first byte of the host.
func BenchmarkFirstByte(b *testing.B) {
	host := startServer(b, func(conn *net.TCPConn) {
		if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil {
			_, _ = conn.Write([]byte("y"))
		}
	})
	for _, way := range benchWays(b, host) {
		b.Run(way.name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				start := time.Now()
				conn, r, err := way.dial()
				if err != nil {
					b.Fatal(err)
				}
				_, _ = conn.Write([]byte("x"))
				if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
				_ = conn.Close()
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkLookupName measures a name lookup.
func BenchmarkLookupName(b *testing.B) {
	f := newFixture(b, nil, "tls://*.wild.test", "tls://a.test", "tcp://db.lan:5432", "-tls://no.wild.test")
	for b.Loop() {
		if _, ok := f.LookupName(context.Background(), "x.wild.test"); !ok {
			b.Fatal("no address")
		}
	}
}
