package egress

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// outcome describes an attempt of a program to get / from a host.
type outcome struct {
	reached bool
	// reason is what was reported, typed what the program was told.
	reason, typed string
}

// allWays are the ways in.
var allWays = []Way{WayHTTP, WayConnect, WaySOCKS5, WayCapture}

// try tries to get / from a host and port by HTTP in one way.
func (f *fixture) try(way Way, host string, port int) outcome {
	f.t.Helper()
	f.takeDenied()
	var out outcome
	switch way {
	case WayHTTP:
		out = f.tryHTTP(host, port)
	case WayConnect:
		out = f.tryConnect(host, port)
	case WaySOCKS5:
		out = f.trySOCKS(host, port)
	case WayCapture:
		out = f.tryCapture(host, port)
	}
	f.wg.Wait() // a connection is over when its refusal was reported
	for _, d := range f.takeDenied() {
		out.reason = d.Reason
	}
	for command := range 8 {
		f.Denials(command) // so that the next equal one is reported again
	}
	if out.reached == (out.reason != "") {
		f.t.Errorf("%s %s:%d: reached %v, reported %q", way, host, port, out.reached, out.reason)
	}
	return out
}

func joinPort(host string, port int) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d", host, port)
}

func (f *fixture) tryHTTP(host string, port int) outcome {
	at := joinPort(host, port)
	conn := f.connectProxy()
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)
	return readAnswer(conn)
}

// readAnswer reads the answer of a canary or a refusal.
func readAnswer(r io.Reader) outcome {
	res, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		return outcome{typed: "closed"}
	}
	body, _ := io.ReadAll(res.Body)
	return outcome{reached: string(body) == "secret", typed: detailsOf(res)}
}

func (f *fixture) tryConnect(host string, port int) outcome {
	at := joinPort(host, port)
	conn := f.connectProxy()
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return outcome{typed: "closed"}
	case res.StatusCode != http.StatusOK:
		return outcome{typed: detailsOf(res)}
	}
	return get(conn, br, joinPort(host, port))
}

// get gets / over a tunnel.
func get(w io.Writer, r io.Reader, host string) outcome {
	_, _ = fmt.Fprintf(w, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	return readAnswer(r)
}

func (f *fixture) trySOCKS(host string, port int) outcome {
	conn := f.connectProxy()
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write(append([]byte{5, 1, 0}, socksConnect(host, port)...))
	var reply [12]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil {
		return outcome{typed: "closed"}
	}
	if reply[3] != 0 {
		return outcome{typed: fmt.Sprint("reply ", reply[3])}
	}
	return get(conn, conn, joinPort(host, port))
}

// socksConnect returns a request of SOCKS5. Addresses are sent as such.
func socksConnect(host string, port int) []byte {
	out := []byte{5, 1, 0, 3, byte(len(host))}
	out = append(out, host...)
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" {
		out = []byte{5, 1, 0, 1}
		if addr.Is6() {
			out[3] = 4
		}
		out = append(out, addr.AsSlice()...)
	}
	return binary.BigEndian.AppendUint16(out, uint16(port))
}

func (f *fixture) tryCapture(host string, port int) outcome {
	addr, ok := f.LookupName(context.Background(), host)
	if !ok {
		return outcome{typed: "NXDOMAIN"}
	}
	conn := f.connectTo(netip.AddrPortFrom(addr, uint16(port)).String(), nil)
	defer func() { _ = conn.Close() }()
	return get(conn, conn, joinPort(host, port))
}

// reachDirectly is the positive control: it fails the test unless a program without
// a policy reaches a canary.
func reachDirectly(t testing.TB, host string, port int) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err != nil {
		t.Errorf("control: %s:%d is not reached directly, so nothing is shown: %v", host, port, err)
		return
	}
	defer func() { _ = conn.Close() }()
	if !get(conn, conn, host).reached {
		t.Errorf("control: %s:%d doesn't answer", host, port)
	}
}
