package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

const localHost = "model.caisson.internal"

// serveEcho answers with the command, the path and the body.
func serveEcho(w http.ResponseWriter, req *http.Request, command int) {
	body, err := io.ReadAll(req.Body)
	_, _ = fmt.Fprintf(w, "%d %s%s %s %v", command, req.URL, req.URL.RawPath, body, err)
}

// readEcho returns the status and the body of the response to a request.
func readEcho(t *testing.T, r io.Reader) (int, string) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// TestLocalHost reaches a local host in each way, without a rule, and at no other port.
func TestLocalHost(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Local = map[string]Local{localHost: serveEcho} })
	post := "POST /v1/x HTTP/1.1\r\nHost: " + localHost + "\r\nContent-Length: 2\r\n\r\nhi"
	want := "http://" + localHost + "/v1/x hi <nil>"

	proxied := f.connectProxy()
	_, _ = io.WriteString(proxied, strings.Replace(post, "/v1", "http://"+localHost+"/v1", 1))
	if status, body := readEcho(t, proxied); status != http.StatusOK || body != "7 "+want {
		t.Errorf("proxy: %d %q", status, body)
	}
	br, tunnel := f.tunnel(localHost + ":80")
	_, _ = io.WriteString(tunnel, post)
	if status, body := readEcho(t, br); status != http.StatusOK || body != "7 "+want {
		t.Errorf("CONNECT: %d %q", status, body)
	}
	addr, ok := f.LookupName(t.Context(), localHost)
	if !ok {
		t.Fatal("the name has no address")
	}
	captured := f.connectTo(netip.AddrPortFrom(addr, LocalPort).String(), nil)
	_, _ = io.WriteString(captured, post)
	if status, body := readEcho(t, captured); status != http.StatusOK || body != "0 "+want {
		t.Errorf("captured: %d %q", status, body)
	}
	socks := f.connectProxy()
	_, _ = fmt.Fprintf(socks, "\x05\x01\x00\x05\x01\x00\x03%c%s\x00\x50%s", len(localHost), localHost, post)
	if _, err := io.ReadFull(socks, make([]byte, 2+10)); err != nil {
		t.Fatal(err)
	}
	if status, body := readEcho(t, socks); status != http.StatusOK || body != "7 "+want {
		t.Errorf("SOCKS5: %d %q", status, body)
	}

	for address, reason := range map[string]string{localHost + ":443": rule.ReasonPort, localHost + ":8080": rule.ReasonPort, "sub." + localHost + ":80": rule.ReasonNotAllowed} {
		res, _, _ := f.send("CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n")
		if res.StatusCode != http.StatusForbidden || detailsOf(res) != reason {
			t.Errorf("%s: %s, %s", address, res.Status, detailsOf(res))
		}
	}
	if _, ok := f.LookupName(t.Context(), "sub."+localHost); ok {
		t.Error("a name below the local host has an address")
	}
	if f.openNow() != 0 {
		t.Error("a connection was reported as opened")
	}
}

// TestLocalHostStreams checks that a response arrives as it is written, and that its
// request ends with the program.
func TestLocalHostStreams(t *testing.T) {
	ended := make(chan error, 1)
	f := newFixture(t, func(o *Options) {
		o.Local = map[string]Local{localHost: func(w http.ResponseWriter, req *http.Request, _ int) {
			_, _ = io.WriteString(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
			ended <- context.Cause(req.Context())
		}}
	})
	ctx, gone := context.WithCancel(t.Context())
	defer gone()
	conn := f.connectWith(ctx, proxyAddr, nil)
	_, _ = io.WriteString(conn, "GET http://"+localHost+"/ HTTP/1.1\r\nHost: "+localHost+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "first" {
		t.Fatalf("%q, %v", first, err)
	}
	gone() // as the sandbox does when the program closes the connection
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the request doesn't end with its program")
	}
}

// TestLocalHostUnread checks that a program that doesn't read its response is cut off at
// the deadline, and that the deadline doesn't hold for the next response.
func TestLocalHostUnread(t *testing.T) {
	ended := make(chan error, 1)
	f := newFixture(t, func(o *Options) {
		o.Local = map[string]Local{localHost: func(w http.ResponseWriter, req *http.Request, _ int) {
			control := http.NewResponseController(w)
			if req.URL.Path == "/short" {
				if err := control.SetWriteDeadline(time.Now().Add(-time.Hour)); err != nil {
					t.Error(err)
				}
				_ = control.SetWriteDeadline(time.Time{})
				return
			}
			_ = control.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 64<<10))
			}
			ended <- err
		}}
	})
	conn := f.connectProxy()
	_, _ = io.WriteString(conn, "GET http://"+localHost+"/short HTTP/1.1\r\nHost: "+localHost+"\r\n\r\n")
	if status, _ := readEcho(t, conn); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	_, _ = io.WriteString(conn, "GET http://"+localHost+"/ HTTP/1.1\r\nHost: "+localHost+"\r\n\r\n")
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the response doesn't end, although nobody reads it")
	}
}

// TestLocalHostIdentities checks that only the agent's own programs reach a local host.
func TestLocalHostIdentities(t *testing.T) {
	f := newIdentityFixture(t, func(identity int, o *Options) {
		if identity == 0 {
			o.Local = map[string]Local{localHost: serveEcho}
		}
	}, nil, nil)
	head := "GET http://" + localHost + "/ HTTP/1.1\r\nHost: " + localHost + "\r\nConnection: close\r\n\r\n"
	for _, tt := range []struct {
		name         string
		command, uid int
		unknown      bool
		want         string
	}{
		{"agent", agentCommand, 10001, false, ""},
		{"root", agentCommand, 0, false, ""},
		{"server, its own proxy", serverCommand, testBase + 2, false, rule.ReasonNotAllowed},
		{"server, proxy of the agent", agentCommand, testBase + 2, false, rule.ReasonNotAllowed},
		{"identity without a server", agentCommand, testBase + 3, false, rule.ReasonIdentity},
		{"agent, proxy of a server", serverCommand, 10001, false, rule.ReasonIdentity},
		{"unknown", agentCommand, 0, true, rule.ReasonUser},
	} {
		if status, reason := f.request(tt.command, tt.uid, !tt.unknown, head); reason != tt.want || (status == http.StatusOK) != (tt.want == "") {
			t.Errorf("%s: %d %q, want %q", tt.name, status, reason, tt.want)
		}
	}
	addr, _ := f.LookupName(t.Context(), localHost)
	if sandbox.NameNumber(addr) == 0 {
		t.Error("the name has no address")
	}
}
