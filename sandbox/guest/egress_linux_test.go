package guest_test

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestRealRelays: connections that programs make at once to a real guest carry
// their bytes, are their command's and their user's, and count at most as many as
// may be open.
func TestRealRelays(t *testing.T) {
	c, _ := dial(t, guesttest.Options{}, func(o *guest.Options) {
		withEgress(o)
		o.Config.Egress = &wire.Egress{Port: 61080}
	})
	var open, most, wrong atomic.Int64
	var number atomic.Int64
	c.Serve(handler{serve: func(_ context.Context, conn sandbox.EgressConn) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		buf := make([]byte, 64<<10)
		if _, err := io.ReadFull(conn, buf); err == nil { // or else the socket may have been gone at once
			if uid, known := conn.UID(); !known || uid != sandbox.CommandUID || int64(conn.Command()) != number.Load() {
				wrong.Add(1)
			}
			_, _ = conn.Write(buf)
			_ = conn.CloseWrite()
		}
	}})
	// 200 at once, each of which sends 64 KiB, reads them, and then to the end; 20
	// more are closed with unread bytes.
	script := `p=${HTTP_PROXY#http://}; a=/dev/tcp/${p%:*}/${p#*:}
one() { exec 3<>$a; head -c 65536 /dev/zero >&3; n=$(cat <&3 | wc -c); [ $n = 65536 ] || echo $n; }
bad() { exec 3<>$a; head -c 1000 /dev/zero >&3; exec 3>&-; }
for i in $(seq 200); do one & [ $((i % 10)) = 0 ] && bad & done; wait; echo done`
	r := start(t.Context(), t, c, sandbox.Command{
		Argv: []string{"/bin/bash", "-c", script}, NotifyNumber: func(n int) { number.Store(int64(n)) },
	})()
	if strings.TrimSpace(r.stdout) != "done" || !r.Status.Success() {
		t.Errorf("%s: %q, %q", r.Status, r.stdout, r.stderr)
	}
	if most.Load() > wire.MaxRelays || wrong.Load() > 0 {
		t.Errorf("%d were open at once, %d of another command or user", most.Load(), wrong.Load())
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(c.Hello().Egress.Listening) != "[tcp 0.0.0.0:61080]" {
		t.Errorf("listens at %q", c.Hello().Egress.Listening)
	}
}

// TestLocalRequests checks that what a program sends to its proxy for another loopback
// address of the sandbox reaches the server there, and never the host, while requests for
// the guest's own listeners and other hosts do reach the host.
func TestLocalRequests(t *testing.T) {
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("needs python3")
	}
	c, _ := dial(t, guesttest.Options{}, func(o *guest.Options) {
		withEgress(o)
		o.Config.Egress = &wire.Egress{Port: 61080}
	})
	var mu sync.Mutex
	var lines []string
	c.Serve(handler{serve: func(_ context.Context, conn sandbox.EgressConn) {
		buf := make([]byte, 1<<10)
		n, _ := conn.Read(buf)
		line, _, _ := strings.Cut(string(buf[:n]), "\r\n")
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}})
	r := start(t.Context(), t, c, sandbox.Command{Argv: []string{python, "-c", `
import http.server, os, socket, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])) + b" " + (self.path + " " + self.headers["connection"]).encode()
        self.send_response(200); self.end_headers(); self.wfile.write(body[-100:])
s = http.server.ThreadingHTTPServer(("0.0.0.0", 0), H); port = s.server_address[1]
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.1.2.3:{port}/a?b", b"x" * 1000000 + b"end", timeout=20).read().decode()[-30:])
host, proxy = os.environ["HTTP_PROXY"][7:].split(":")
def ask(text):
    c = socket.create_connection((host, int(proxy)), 20); c.sendall(text.encode()); out = b""
    try:
        while b := c.recv(1 << 16): out += b
    except ConnectionResetError: pass
    return out.decode().replace("\r", "").split("\n")
print(ask(f"CONNECT 127.1.2.3:{port} HTTP/1.1\r\n\r\nPOST /c HTTP/1.0\r\nContent-Length: 1\r\nConnection: k\r\n\r\nz")[-1])
s.shutdown(); s.server_close()
print(ask(f"GET http://127.1.2.3:{port}/ HTTP/1.1\r\n\r\n")[-2].split(": ")[1])
for to in "127.1.2.3:61080", "127.80.0.9:61080", "example.com", "10.0.0.1": ask(f"GET http://{to}/ HTTP/1.1\r\n\r\n")
`}})()
	if want := "end /a?b close\nz /c k\nconnection refused\n"; !strings.HasSuffix(strings.ReplaceAll(r.stdout, "x", ""), want) || !r.Status.Success() {
		t.Errorf("%s: %q, %q", r.Status, r.stdout, r.stderr)
	}
	want := "GET http://127.1.2.3:61080/ HTTP/1.1\nGET http://127.80.0.9:61080/ HTTP/1.1\nGET http://example.com/ HTTP/1.1\nGET http://10.0.0.1/ HTTP/1.1"
	if err := c.Ping(t.Context()); err != nil { // the host has seen everything
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("the host was asked for\n%s", got)
	}
}
