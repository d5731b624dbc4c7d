package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/egresstest"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// httpServer is an HTTP/1 server. got has a line for each request, with its body.
type httpServer struct {
	addr string
	got  chan string
}

func startHTTP(t testing.TB, answer func(r *http.Request, body []byte) string) *httpServer {
	t.Helper()
	s := &httpServer{got: make(chan string, 1000)}
	s.addr = startServer(t, func(conn *net.TCPConn) {
		br := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			s.got <- fmt.Sprintf("%s %s %s %s %v", r.Method, r.RequestURI, r.Host, body, err)
			if err != nil {
				return
			}
			text := answer(r, body)
			if _, err := io.WriteString(conn, text); err != nil || !strings.Contains(text, "Content-Length") && !strings.Contains(text, "chunked") {
				return
			}
		}
	})
	return s
}

func answerHello(*http.Request, []byte) string {
	return "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
}

// takeSeen returns what the server got so far.
func (s *httpServer) takeSeen() []string {
	var out []string
	for {
		select {
		case x := <-s.got:
			out = append(out, x)
		default:
			return out
		}
	}
}

// TestAmbiguousRequests is attacks 5, 15, 16 and 17: requests that servers may read
// differently are refused with a reason, and nothing reaches the host.
func TestAmbiguousRequests(t *testing.T) {
	s := startHTTP(t, answerHello)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/pub/ GET,POST,PUT", "-http://"+s.addr+"/pub/secret/")
	head := func(method, path string) string {
		return method + " http://" + s.addr + path + " HTTP/1.1\r\n"
	}
	host := "Host: " + s.addr + "\r\n"
	for name, tt := range map[string]struct{ text, want string }{
		"two hosts":          {head("GET", "/pub/") + host + host + "\r\n", "authority"},
		"two hosts, one odd": {head("GET", "/pub/") + host + "Host: evil.test\r\n\r\n", "authority"},
		"host of another":    {head("GET", "/pub/") + "Host: evil.test\r\n\r\n", "authority"},
		"host of other port": {head("GET", "/pub/") + "Host: 127.0.0.1:1\r\n\r\n", "authority"},
		"host without port":  {head("GET", "/pub/") + "Host: 127.0.0.1\r\n\r\n", "authority"},
		"host with user":     {head("GET", "/pub/") + "Host: u@" + s.addr + "\r\n\r\n", "authority"},
		"empty host":         {head("GET", "/pub/") + "Host:\r\n\r\n", "authority"},
		"length and coding":  {head("POST", "/pub/") + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "invalid_request"},
		"two lengths":        {head("POST", "/pub/") + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "invalid_request"},
		"list of lengths":    {head("POST", "/pub/") + host + "Content-Length: 3, 3\r\n\r\nabc", "invalid_request"},
		"signed length":      {head("POST", "/pub/") + host + "Content-Length: +3\r\n\r\nabc", "invalid_request"},
		"odd coding":         {head("POST", "/pub/") + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "invalid_request"},
		"xchunked":           {head("POST", "/pub/") + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "invalid_request"},
		"two codings":        {head("POST", "/pub/") + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "invalid_request"},
		"coding of HTTP/1.0": {strings.Replace(head("POST", "/pub/"), "1.1\r", "1.0\r", 1) + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "invalid_request"},
		"continued line":     {head("GET", "/pub/") + host + "X: a\r\n b\r\n\r\n", "invalid_request"},
		"continued by tab":   {head("GET", "/pub/") + host + "X: a\r\n\tTransfer-Encoding: chunked\r\n\r\n", "invalid_request"},
		"space before colon": {head("POST", "/pub/") + host + "Content-Length : 3\r\n\r\nabc", "invalid_request"},
		"no colon":           {head("GET", "/pub/") + host + "Garbage\r\n\r\n", "invalid_request"},
		"bare LF":            {head("GET", "/pub/") + host + "X: a\nY: b\r\n\r\n", "invalid_request"},
		"LF only":            {"GET http://" + s.addr + "/pub/ HTTP/1.1\nHost: " + s.addr + "\n\n", "invalid_request"},
		"bare CR":            {head("GET", "/pub/") + host + "X: a\rY: b\r\n\r\n", "invalid_request"},
		"NUL":                {head("GET", "/pub/") + host + "X: a\x00b\r\n\r\n", "invalid_request"},
		"HTTP/2":             {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "invalid_request"},
		"HTTP/0.9":           {"GET http://" + s.addr + "/pub/\r\n\r\n", "invalid_request"},
		"two spaces":         {"GET  http://" + s.addr + "/pub/ HTTP/1.1\r\n" + host + "\r\n", "invalid_request"},
		"TRACE":              {head("TRACE", "/pub/") + host + "\r\n", "method"},
		"method of no rule":  {head("DELETE", "/pub/") + host + "\r\n", "method"},
		"lower case":         {head("get", "/pub/") + host + "\r\n", "method"},
		"override":           {head("POST", "/pub/") + host + "X-HTTP-Method-Override: DELETE\r\n\r\n", "method"},
		"path override":      {head("GET", "/pub/") + host + "X-Original-URL: /admin\r\n\r\n", "path"},
		"path override 2":    {head("GET", "/pub/") + host + "X_Rewrite_Url: /admin\r\n\r\n", "path"},
		"override 2":         {head("POST", "/pub/") + host + "x-http-method: DELETE\r\n\r\n", "method"},
		"override 3":         {head("GET", "/pub/") + host + "X_Method_Override: DELETE\r\n\r\n", "method"},
		"user":               {"GET http://u:p@" + s.addr + "/pub/ HTTP/1.1\r\n" + host + "\r\n", "userinfo"},
		"no URL":             {"GET /pub/ HTTP/1.1\r\n" + host + "\r\n", "invalid_url"},
		"other scheme":       {"GET ftp://" + s.addr + "/pub/ HTTP/1.1\r\n" + host + "\r\n", "scheme"},
		"asterisk":           {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", "scheme"},
		"other path":         {head("GET", "/other/") + host + "\r\n", "path"},
		"dots":               {head("GET", "/pub/../other/") + host + "\r\n", "path"},
		"escaped dots":       {head("GET", "/pub/%2e%2e/other/") + host + "\r\n", "path"},
		"escaped slash":      {head("GET", "/pub/..%2fother/") + host + "\r\n", "not_allowed"},
		"twice escaped":      {head("GET", "/pub/%252e%252e/other") + host + "\r\n", "not_allowed"},
		"dots and parameter": {head("GET", "/pub/..;/other") + host + "\r\n", "not_allowed"},
		"backslash":          {head("GET", "/pub/\\..\\other") + host + "\r\n", "invalid_url"},
		"no slash behind":    {head("GET", "/pubother") + host + "\r\n", "path"},
		"denied path":        {head("GET", "/pub/secret/x") + host + "\r\n", "not_allowed"},
		"denied in capitals": {head("GET", "/pub//SECRET;x/y") + host + "\r\n", "not_allowed"},
		"CONNECT with body":  {"CONNECT " + s.addr + " HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", "invalid_request"},
		"CONNECT unlike":     {"CONNECT " + s.addr + " HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "authority"},
		"CONNECT with user":  {"CONNECT u@" + s.addr + " HTTP/1.1\r\n\r\n", "userinfo"},
		"CONNECT port 0":     {"CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n", "port"},
		"CONNECT port 65536": {"CONNECT 127.0.0.1:65536 HTTP/1.1\r\n\r\n", "port"},
		"CONNECT port +80":   {"CONNECT 127.0.0.1:+80 HTTP/1.1\r\n\r\n", "port"},
		"CONNECT no port":    {"CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", "invalid_url"},
		"CONNECT URL":        {"CONNECT http://" + s.addr + "/ HTTP/1.1\r\n\r\n", "invalid_url"},
		"head too large":     {head("GET", "/pub/") + host + "X: " + strings.Repeat("a", maxHeadBytes) + "\r\n\r\n", "invalid_request"},
	} {
		res, _, conn := f.send(tt.text)
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusForbidden || detailsOf(res) != tt.want {
			t.Errorf("%s: %s %v %s, want %s", name, res.Status, res.Header, body, tt.want)
		}
		_ = conn.Close()
		f.wg.Wait()
		d := f.Denials(7)
		if len(d) != 1 || d[0].Reason != tt.want || strings.Contains(d[0].URL+d[0].Host, "u:p@") {
			t.Errorf("%s: reported %+v, want %s", name, d, tt.want)
		}
		if seen := s.takeSeen(); len(seen) != 0 {
			t.Errorf("%s: the host got %q", name, seen)
		}
	}
	// The control: the same path and host, unambiguous.
	for _, text := range []string{
		head("GET", "/pub/") + host + "\r\n", head("POST", "/pub/") + host + "Content-Length: 3\r\n\r\nabc",
		strings.Replace(head("GET", "/pub/"), "1.1\r", "1.0\r", 1) + "\r\n",
	} {
		if res, _, _ := f.send(text); res.StatusCode != http.StatusOK || len(s.takeSeen()) != 1 {
			t.Errorf("control: %q: %s", text, res.Status)
		}
	}
}

// TestBadChunks is attack 15: a body that is badly coded ends without a complete
// request at the host.
func TestBadChunks(t *testing.T) {
	s := startHTTP(t, answerHello)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/ POST")
	f.times.linger = 50 * time.Millisecond
	for _, body := range []string{"zz\r\nabc\r\n0\r\n\r\n", "3\nabc\n0\n\n", "-1\r\n\r\n", "3\r\nabcdef\r\n0\r\n\r\n", "ffffffffffffffffff\r\nabc", "3;a\nb\r\nabc\r\n0\r\n\r\n"} {
		conn := f.connectProxy()
		_, _ = fmt.Fprintf(conn, "POST http://%s/ HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n%s", s.addr, s.addr, body)
		_ = conn.CloseWrite()
		if got := readAnswer(conn); got.reached || got.typed == "" {
			t.Errorf("%q: %+v", body, got)
		}
		f.wg.Wait()
		for _, seen := range s.takeSeen() {
			if strings.HasSuffix(seen, "<nil>") {
				t.Errorf("%q: the host got %q", body, seen)
			}
		}
	}
}

// TestSmuggledRequest checks that bytes behind a request are another request, which
// is decided about by itself.
func TestSmuggledRequest(t *testing.T) {
	s := startHTTP(t, answerHello)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/pub/")
	one := "GET http://" + s.addr + "/pub/ HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n"
	two := "GET http://" + s.addr + "/secret HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n"
	res, br, _ := f.send(one + two + one)
	for i, want := range []int{200, 403, 200} {
		if i > 0 {
			var err error
			res, err = http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != want {
			t.Errorf("response %d: %s, want %d", i, res.Status, want)
		}
	}
	if seen := s.takeSeen(); len(seen) != 2 {
		t.Errorf("the host got %q", seen)
	}
}

// TestNestedConnect is attacks 6 and 7: a CONNECT inside a tunnel is for the host at
// its end, or refused where Caisson reads requests.
func TestNestedConnect(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	s := startHTTP(t, answerHello)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/")
	br, conn := f.tunnel(s.addr)
	_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", canary.addr, canary.addr)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != http.StatusForbidden || detailsOf(res) != rule.ReasonMethod {
		t.Errorf("CONNECT in a tunnel: %v, %v", res, err)
	}
	br, conn = f.tunnel(s.addr)
	_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", canary.addr, canary.addr)
	if res, err := http.ReadResponse(br, nil); err != nil || detailsOf(res) != rule.ReasonAuthority {
		t.Errorf("a URL in a tunnel: %v, %v", res, err)
	}
	br, conn = f.tunnel(s.addr)
	_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", canary.addr)
	if res, err := http.ReadResponse(br, nil); err != nil || detailsOf(res) != rule.ReasonAuthority {
		t.Errorf("another Host in a tunnel: %v, %v", res, err)
	}
	if canary.hits.Load() != 0 || len(s.takeSeen()) != 0 {
		t.Error("a request went out")
	}
	f.requireDenied(rule.ReasonMethod, rule.ReasonAuthority)
	br, conn = f.tunnel(s.addr)
	if got := get(conn, br, s.addr); got.typed != "" || len(s.takeSeen()) != 1 {
		t.Errorf("control: %+v", got)
	}
}

// TestSOCKS is attack 8: SOCKS4, BIND, UDP, and names that are none.
func TestSOCKS(t *testing.T) {
	echo := startEcho(t)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://"+echo)
	port := int(portOf(t, echo))
	long := bytes.Repeat([]byte("a"), 255)
	for name, tt := range map[string]struct {
		sent, want []byte
		reason     string
	}{
		"SOCKS4":         {[]byte{4, 1, 0, 80, 127, 0, 0, 1, 0}, []byte{0, 91}, "invalid_request"},
		"BIND":           {append([]byte{5, 1, 0, 5, 2}, socksConnect("127.0.0.1", port)[2:]...), []byte{5, 0, 5, 7}, "invalid_request"},
		"UDP":            {append([]byte{5, 1, 0, 5, 3}, socksConnect("127.0.0.1", port)[2:]...), []byte{5, 0, 5, 7}, "invalid_request"},
		"passwords only": {[]byte{5, 1, 2}, []byte{5, 255}, "invalid_request"},
		"no method":      {[]byte{5, 0}, []byte{5, 255}, "invalid_request"},
		"type 2":         {[]byte{5, 1, 0, 5, 1, 0, 2, 1, 1, 1, 1, 0, 80}, []byte{5, 0, 5, 8}, "invalid_request"},
		"version":        {[]byte{5, 1, 0, 4, 1, 0, 1, 127, 0, 0, 1, 0, 80}, []byte{5, 0, 5, 2}, "invalid_request"},
		"empty name":     {[]byte{5, 1, 0, 5, 1, 0, 3, 0, 0, 80}, []byte{5, 0, 5, 2}, "invalid_url"},
		"255 bytes":      {append(append([]byte{5, 1, 0, 5, 1, 0, 3, 255}, long...), 0, 80), []byte{5, 0, 5, 2}, "invalid_url"},
		"NUL in a name":  {append([]byte{5, 1, 0}, socksConnect("127.0.0.1\x00.test", port)...), []byte{5, 0, 5, 2}, "invalid_url"},
		"port 0":         {append([]byte{5, 1, 0}, socksConnect("127.0.0.1", 0)...), []byte{5, 0, 5, 2}, "port"},
		"mapped address": {append([]byte{5, 1, 0}, socksConnect("::ffff:127.0.0.1", port)...), []byte{5, 0, 5, 2}, "address"},
		"other port":     {append([]byte{5, 1, 0}, socksConnect("127.0.0.1", port^1)...), []byte{5, 0, 5, 2}, "not_allowed"},
	} {
		conn := f.connectProxy()
		_, _ = conn.Write(tt.sent)
		got, _ := io.ReadAll(conn)
		_ = conn.Close()
		f.wg.Wait()
		if !bytes.HasPrefix(got, tt.want) {
			t.Errorf("%s: replied % x, want % x", name, got, tt.want)
		}
		if d := f.Denials(7); len(d) != 1 || d[0].Reason != tt.reason || d[0].Way != WaySOCKS5 {
			t.Errorf("%s: reported %+v", name, d)
		}
	}
	conn := f.connectProxy()
	_, _ = conn.Write(append(append([]byte{5, 2, 2, 0}, socksConnect("127.0.0.1", port)...), "early"...))
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got[:4], []byte{5, 0, 5, 0}) || string(got[12:]) != "early" {
		t.Errorf("control: %q, %v", got, err)
	}
}

// helloOf returns the first message of a TLS client.
func helloOf(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() { _ = tls.Client(client, config).HandshakeContext(context.Background()) }()
	var head [5]byte
	if _, err := io.ReadFull(server, head[:]); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	_ = client.Close()
	return append(head[:], body...)
}

// splitRecords returns a handshake message in records of n bytes.
func splitRecords(hello []byte, n int) []byte {
	var out []byte
	for rest := hello[5:]; len(rest) > 0; {
		part := rest[:min(n, len(rest))]
		rest = rest[len(part):]
		out = binary.BigEndian.AppendUint16(append(out, hello[:3]...), uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

// addExtension returns a ClientHello with one more extension.
func addExtension(hello []byte, id uint16, data []byte) []byte {
	ext := binary.BigEndian.AppendUint16(nil, id)
	ext = binary.BigEndian.AppendUint16(ext, uint16(len(data)))
	ext = append(ext, data...)
	out := append(append([]byte{}, hello...), ext...)
	grow := func(at int) {
		binary.BigEndian.PutUint16(out[at:], binary.BigEndian.Uint16(out[at:])+uint16(len(ext)))
	}
	grow(3)                                              // record
	grow(7)                                              // handshake: the low two of three bytes
	at := 5 + 4 + 2 + 32                                 // version and random
	at += 1 + int(out[at])                               // session ID
	at += 2 + int(binary.BigEndian.Uint16(out[at:at+2])) // cipher suites
	at += 1 + int(out[at])                               // compression
	grow(at)
	return out
}

// TestSNI is attacks 12 and 13: where only TLS is allowed, its first message must
// name the host.
func TestSNI(t *testing.T) {
	server := startServer(t, func(conn *net.TCPConn) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(conn, first); err == nil {
			_, _ = conn.Write([]byte("REACHED"))
			_, _ = io.Copy(io.Discard, conn)
		}
	})
	port := portOf(t, server)
	resolver := newTestResolver(t, "127.0.0.1")
	f := newFixture(t, func(o *Options) { o.Guard, o.Resolver = allowLoopback(t, "good.test"), resolver }, fmt.Sprintf("tls://good.test:%d", port))
	f.times.header = 2 * time.Second
	f.times.linger = 200 * time.Millisecond
	hello := helloOf(t, &tls.Config{ServerName: "good.test"})
	ech := addExtension(hello, extensionECH, []byte{0, 0, 1, 0, 1, 7, 0, 1, 9, 0, 1, 9})
	sni := []byte("\x00\x0c\x00\x00\x09good.test")
	twoNames := []byte("\x00\x18\x00\x00\x09good.test\x00\x00\x09evil.test")
	none := helloOf(t, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // nothing is verified
	address := fmt.Sprintf("good.test:%d", port)
	for name, tt := range map[string]struct {
		sent   []byte
		reason string // "" reaches the host
	}{
		"good":             {hello, ""},
		"capitals":         {bytes.Replace(hello, []byte("good.test"), []byte("GOOD.test"), 1), ""},
		"64 records":       {splitRecords(hello, len(hello)/64), ""},
		"records of 1":     {splitRecords(hello, 1), ""},
		"other name":       {helloOf(t, &tls.Config{ServerName: "evil.test"}), "sni"},
		"name below":       {helloOf(t, &tls.Config{ServerName: "x.good.test"}), "sni"},
		"no name":          {none, "sni"},
		"two extensions":   {addExtension(hello, 0, sni), "sni"},
		"two names":        {addExtension(none, 0, twoNames), "sni"},
		"ECH":              {ech, "sni"},
		"ECH in 9 bytes":   {splitRecords(ech, 9), "sni"},
		"other in 9 bytes": {splitRecords(helloOf(t, &tls.Config{ServerName: "evil.test"}), 9), "sni"},
		"invalid":          {append(append([]byte{}, hello[:20]...), bytes.Repeat([]byte{0xff}, len(hello)-20)...), "sni"},
		"plain HTTP":       {[]byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"), "not_tls"},
		"SSH":              {[]byte("SSH-2.0-x\r\n"), "not_tls"},
		"SSL 2":            {[]byte{0x80, 0x2e, 1, 3, 1}, "not_tls"},
	} {
		for _, way := range []Way{WayConnect, WayCapture} {
			var r io.Reader
			var conn *net.TCPConn
			if way == WayConnect {
				r, conn = f.tunnel(address)
			} else {
				addr, _ := f.LookupName(t.Context(), "good.test")
				conn = f.connectTo(fmt.Sprintf("%s:%d", addr, port), nil)
				r = conn
			}
			_, _ = conn.Write(tt.sent)
			if tt.reason == "" {
				_ = conn.CloseWrite()
			}
			got, _ := io.ReadAll(r)
			_ = conn.Close()
			f.wg.Wait()
			denied := append(f.Denials(7), f.Denials(0)...)
			switch {
			case tt.reason == "":
				if string(got) != "REACHED" || len(denied) != 0 {
					t.Errorf("%s by %s: got %q, %+v", name, way, got, denied)
				}
				continue
			case len(denied) != 1 || denied[0].Reason != tt.reason || bytes.Contains(got, []byte("REACHED")):
				t.Errorf("%s by %s: got %q, reported %+v", name, way, got, denied)
			case tt.reason == "sni" && !bytes.Equal(got, alertAccessDenied):
				t.Errorf("%s by %s: the program got % x, want an alert", name, way, got)
			}
			f.mu.Lock()
			last := f.closed[len(f.closed)-1]
			f.mu.Unlock()
			if last.Sent != 0 || last.Ending != tt.reason {
				t.Errorf("%s by %s: closed %+v", name, way, last)
			}
		}
	}
	// One byte a second: the time of a header ends it.
	_, conn := f.tunnel(address)
	go func() {
		for _, b := range hello {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	start := time.Now()
	if got, _ := io.ReadAll(conn); len(got) != 0 || time.Since(start) > 10*time.Second {
		t.Errorf("slow: got %q after %s", got, time.Since(start))
	}
	f.wg.Wait()
	if d := f.Denials(7); len(d) != 1 || d[0].Reason != rule.ReasonTimeout {
		t.Errorf("slow: reported %+v", d)
	}
}

// TestTLSBesideHTTP checks a port at which rules allow TLS end to end and requests of
// plain HTTP.
func TestTLSBesideHTTP(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	o := func(o *Options) {
		o.Guard, o.Resolver = allowLoopback(t, "good.test"), newTestResolver(t, "127.0.0.1")
	}
	f := newFixture(t, o, fmt.Sprintf("tls://good.test:%d", canary.port), fmt.Sprintf("http://good.test:%d/", canary.port))
	f.times.linger = 50 * time.Millisecond
	for _, way := range allWays {
		if got := f.try(way, "good.test", int(canary.port)); !got.reached {
			t.Errorf("plain HTTP by %s: %+v", way, got)
		}
	}
	canary.hits.Store(0)
	for name, want := range map[string]int64{"good.test": 1, "evil.test": 0} {
		_, conn := f.tunnel(fmt.Sprintf("good.test:%d", canary.port))
		hello := helloOf(t, &tls.Config{ServerName: name})
		_, _ = conn.Write(hello)
		_ = conn.CloseWrite()
		_, _ = io.ReadAll(conn)
		f.wg.Wait()
		if got := lastClosed(f); (got.Sent == int64(len(hello))) != (want == 1) || got.SNI != name {
			t.Errorf("TLS for %s: closed %+v", name, got)
		}
	}
}

// newTestResolver returns a resolver that answers every name with an address.
func newTestResolver(t testing.TB, addr string) *net.Resolver {
	t.Helper()
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go answerDNS(server, addr)
		return client, nil
	}}
}

// TestUnrequestedSwitch is attack 21: a host that switches protocols unasked, or to
// another one than was asked for.
func TestUnrequestedSwitch(t *testing.T) {
	upgrade := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nraw"
	s := startHTTP(t, func(r *http.Request, _ []byte) string {
		switch r.URL.Path {
		case "/bare":
			return "HTTP/1.1 101 Switching Protocols\r\n\r\nraw"
		case "/h2c":
			return fmt.Sprintf(upgrade, "h2c")
		case "/seen":
			return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Upgrade: " + r.Header.Get("Upgrade") + "\r\n\r\n"
		}
		return fmt.Sprintf(upgrade, "websocket")
	})
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/")
	text := func(path, extra string) string {
		return "GET http://" + s.addr + path + " HTTP/1.1\r\nHost: " + s.addr + "\r\n" + extra + "\r\n"
	}
	for _, tt := range []string{
		text("/bare", ""), text("/ws", ""), text("/h2c", ""), text("/h2c", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
		text("/h2c", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), text("/ws", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
	} {
		res, _, conn := f.send(tt)
		if res.StatusCode != http.StatusBadGateway || detailsOf(res) != rule.ReasonProtocol {
			t.Errorf("%.40q: %s %v", tt, res.Status, res.Header)
		}
		_ = conn.Close()
	}
	if res, _, _ := f.send(text("/seen", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n")); res.Header.Get("X-Upgrade") != "" {
		t.Errorf("the host was asked to switch to %q", res.Header.Get("X-Upgrade"))
	}
	res, br, conn := f.send(text("/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\n"))
	raw := make([]byte, 3)
	_, err := io.ReadFull(br, raw)
	if res.StatusCode != http.StatusSwitchingProtocols || string(raw) != "raw" {
		t.Errorf("control: %s, %q, %v", res.Status, raw, err)
	}
	_ = conn.Close()
}

// TestCaptureOfNoName is attack 23: addresses that no name has, and names beyond the
// bound.
func TestCaptureOfNoName(t *testing.T) {
	echo := startEcho(t)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "public", "tcp://"+echo)
	f.times.linger = 50 * time.Millisecond
	for _, at := range []string{"127.96.0.1:443", "127.111.255.255:80", "127.96.0.0:443", "127.0.0.1:443", "127.80.0.7:443", "127.95.0.1:22"} {
		conn := f.connectTo(at, nil)
		_, _ = conn.Write([]byte{22, 3, 1})
		got, _ := io.ReadAll(conn)
		_ = conn.Close()
		f.wg.Wait()
		d := append(f.Denials(0), f.Denials(7)...)
		if !bytes.Equal(got, alertAccessDenied) || len(d) != 1 || d[0].Reason != rule.ReasonAddress {
			t.Errorf("%s: got % x, reported %+v", at, got, d)
		}
	}
	seen := map[string]bool{}
	for i := range maxNames {
		addr, ok := f.LookupName(t.Context(), fmt.Sprintf("n%d.test", i))
		if !ok || seen[addr.String()] {
			t.Fatalf("name %d has %v, %v", i, addr, ok)
		}
		seen[addr.String()] = true
	}
	if addr, ok := f.LookupName(t.Context(), "one-more.test"); ok {
		t.Errorf("name %d has %v", maxNames+1, addr)
	}
	if d := f.Denials(0); len(d) != 1 || d[0].Reason != rule.ReasonTooManyNames || d[0].Way != WayName {
		t.Errorf("reported %+v", d)
	}
	if addr, ok := f.LookupName(t.Context(), "N0.test."); !ok || addr.String() != "127.96.0.1" {
		t.Errorf("the first name has %v, %v now", addr, ok)
	}
}

// TestUnknownUser checks that a connection of an unknown user is refused by all ways.
func TestUnknownUser(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://localhost:"+fmt.Sprint(canary.port))
	addr, _ := f.LookupName(t.Context(), "localhost")
	at := fmt.Sprintf("localhost:%d", canary.port)
	for local, text := range map[string]string{
		proxyAddr:                               "GET http://" + at + "/ HTTP/1.1\r\nHost: " + at + "\r\n\r\n",
		"127.80.0.7:61080 ":                     "CONNECT " + at + " HTTP/1.1\r\nHost: " + at + "\r\n\r\n",
		fmt.Sprintf("%s:%d", addr, canary.port): "GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n",
	} {
		for _, unknown := range []bool{true, false} {
			conn := f.connectTo(strings.TrimSpace(local), func(c *testConn) { c.unknown = unknown })
			_, _ = io.WriteString(conn, text)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			_ = conn.Close()
			if err != nil || (detailsOf(res) == rule.ReasonUser) != unknown || unknown && canary.hits.Load() != 0 {
				t.Errorf("%q, unknown %v: %v, %v, %d hits", text, unknown, res, err, canary.hits.Load())
			}
			f.wg.Wait()
		}
		if canary.hits.Swap(0) == 0 {
			t.Errorf("control: %q reaches nothing", text)
		}
	}
}

// TestRecordFirst is attack 39: without a record there is no connection.
func TestRecordFirst(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	fails := true
	f := newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Opened = func(Opened) error {
			if canary.hits.Load() != 0 {
				t.Error("the connection was made before it was recorded")
			}
			if fails {
				return errors.New("the disk is full")
			}
			return nil
		}
	}, "tcp://"+canary.addr)
	for _, way := range allWays[:3] {
		if got := f.try(way, "127.0.0.1", int(canary.port)); got.reached || got.reason != rule.ReasonRecord || got.typed == "" {
			t.Errorf("%s: %+v", way, got)
		}
	}
	if canary.hits.Load() != 0 {
		t.Errorf("%d connections without a record", canary.hits.Load())
	}
	fails = false
	if got := f.try(WayConnect, "127.0.0.1", int(canary.port)); !got.reached {
		t.Errorf("control: %+v", got)
	}
}

// TestEmptyPolicy is attack 35: an empty list allows nothing, and a list of
// requirements only narrows.
func TestEmptyPolicy(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	within := newPolicy(t, "tcp://"+canary.addr)
	within.Within = [][]rule.Rule{{}}
	for name, p := range map[string]*rule.Policy{"nil": nil, "empty": {}, "empty requirements": within, "widening": {Within: [][]rule.Rule{newPolicy(t, "public").Allow}}} {
		f := newFixture(t, func(o *Options) { o.Guard, o.Policy = allowLoopback(t), p })
		for _, way := range allWays {
			if got := f.try(way, "127.0.0.1", int(canary.port)); got.reached || got.reason != rule.ReasonNotAllowed {
				t.Errorf("%s, %s: %+v", name, way, got)
			}
		}
	}
	if canary.hits.Load() != 0 {
		t.Errorf("%d connections", canary.hits.Load())
	}
	reachDirectly(t, "127.0.0.1", int(canary.port))
}

// TestPublish is attack 19: what publishes is no GET.
func TestPublish(t *testing.T) {
	s := startHTTP(t, answerHello)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/")
	for _, method := range []string{"PUT", "POST", "DELETE", "PATCH"} {
		res, _, _ := f.send(method + " http://" + s.addr + "/left-pad HTTP/1.1\r\nHost: " + s.addr + "\r\nContent-Length: 2\r\n\r\n{}")
		if detailsOf(res) != rule.ReasonMethod {
			t.Errorf("%s: %s %v", method, res.Status, res.Header)
		}
	}
	if seen := s.takeSeen(); len(seen) != 0 {
		t.Errorf("the host got %q", seen)
	}
	f.requireDenied(rule.ReasonMethod)
	open := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/ PUT")
	res, _, _ := open.send("PUT http://" + s.addr + "/left-pad HTTP/1.1\r\nHost: " + s.addr + "\r\nContent-Length: 2\r\n\r\n{}")
	if seen := s.takeSeen(); res.StatusCode != 200 || len(seen) != 1 {
		t.Errorf("control: %s, %q", res.Status, seen)
	}
}

// TestRedirect is attack 20: the target of a redirect is decided about as any other.
func TestRedirect(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	s := startHTTP(t, func(*http.Request, []byte) string {
		return "HTTP/1.1 302 Found\r\nLocation: " + hostURL(canary.addr) + "\r\nContent-Length: 0\r\n\r\n"
	})
	follow := func(f *fixture) *http.Response {
		res, _, _ := f.send("GET http://" + s.addr + "/ HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n")
		to := res.Header.Get("Location")
		res, _, _ = f.send("GET " + to + " HTTP/1.1\r\nHost: " + canary.addr + "\r\n\r\n")
		return res
	}
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/")
	if res := follow(f); detailsOf(res) != rule.ReasonNotAllowed || canary.hits.Load() != 0 {
		t.Errorf("%s %v, %d hits", res.Status, res.Header, canary.hits.Load())
	}
	f.requireDenied(rule.ReasonNotAllowed)
	open := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/", "http://"+canary.addr+"/")
	if res := follow(open); res.StatusCode != 200 || canary.hits.Load() != 1 {
		t.Errorf("control: %s", res.Status)
	}
}

// TestOtherSession is attack 41: two sessions share no names, answers or denials.
func TestOtherSession(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	ask := func(context.Context, Question) (Answer, error) { return Answer{Verdict: VerdictAlways}, nil }
	a := newFixture(t, func(o *Options) { o.Guard, o.Ask = allowLoopback(t), ask })
	b := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://other.test:80")
	if got := a.try(WayCapture, "localhost", int(canary.port)); !got.reached {
		t.Errorf("session A: %+v", got)
	}
	for _, way := range allWays {
		if got := b.try(way, "localhost", int(canary.port)); got.reached || got.reason != rule.ReasonNotAllowed {
			t.Errorf("session B, %s: %+v", way, got)
		}
	}
	addr, _ := a.LookupName(t.Context(), "localhost")
	conn := b.connectTo(fmt.Sprintf("%s:%d", addr, canary.port), nil)
	if got := get(conn, conn, "localhost"); got.reached {
		t.Error("session B reached the host by an address of session A")
	}
	b.wg.Wait()
	b.requireDenied(rule.ReasonAddress)
	if canary.hits.Load() != 1 || len(a.Denials(0)) != 0 {
		t.Errorf("%d connections", canary.hits.Load())
	}
}

// ownAddr is a public address of the machine itself.
const ownAddr = "93.184.217.77"

// TestPublicNetwork runs attacks on a server in a network with public addresses.
func TestPublicNetwork(t *testing.T) {
	if !egresstest.InNamespace() {
		egresstest.Run(t, 6)
		return
	}
	t.Run("same decision by all ways", namespaceSameDecision)
	t.Run("answers", namespaceAnswers)
	t.Run("own addresses", namespaceOwnAddresses)
	t.Run("private by name", namespacePrivate)
	t.Run("rebinding", namespaceRebinding)
	t.Run("lookups", namespaceLookups)
}

// network is the servers of the namespace: canaries at public and other addresses,
// on port 80.
type network struct {
	t        *testing.T
	public   *canary
	canaries []*canary
	names    *egresstest.NameServer
}

type answer = egresstest.Answer

func newNetwork(t *testing.T, answers map[string][]answer) *network {
	t.Helper()
	n := &network{t: t, names: egresstest.StartNameServer(t, answers)}
	n.public = newCanary(t, net.JoinHostPort(egresstest.PublicAddr, "80"))
	for _, addr := range egresstest.CanaryAddrs {
		n.canaries = append(n.canaries, newCanary(t, net.JoinHostPort(addr, "80")))
	}
	return n
}

// takeHits returns the number of connections to canaries that must not be reached,
// and resets it.
func (n *network) takeHits() int64 {
	var sum int64
	for _, c := range n.canaries {
		sum += c.hits.Swap(0)
	}
	return sum
}

func (n *network) requireUntouched(what string) {
	n.t.Helper()
	if hits := n.takeHits(); hits != 0 {
		n.t.Errorf("%s: %d connections to canaries", what, hits)
	}
}

// namespaceSameDecision is attacks 2, 3 and 4: sixty targets have one decision by
// all ways in.
func namespaceSameDecision(t *testing.T) {
	n := newNetwork(t, map[string][]answer{
		"good.test": {{Addrs: []string{egresstest.PublicAddr}}}, "other.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"a.wild.test": {{Addrs: []string{egresstest.PublicAddr}}}, "wild.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"denied.wild.test": {{Addrs: []string{egresstest.PublicAddr}}}, "tls.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"inner.test": {{Addrs: []string{"10.0.0.5"}}}, "xn--bcher-kva.test": {{Addrs: []string{egresstest.PublicAddr}}},
		"web.test": {{Addrs: []string{egresstest.PublicAddr}}},
	})
	f := newFixture(t, nil, "tcp://good.test:80", "tcp://*.wild.test:80", "-tcp://denied.wild.test:*", "tls://tls.test:80", "tcp://inner.test:80",
		"http://web.test/", "tcp://bücher.test:80", "tcp://127.0.0.1:80", "tcp://10.0.0.0/8:*", "tcp://[::1]:80")
	type target struct {
		host string
		port int
		want string
	}
	targets := []target{
		{"good.test", 80, ""},
		{"GOOD.test", 80, ""},
		{"good.test.", 80, ""},
		{"web.test", 80, ""},
		{"a.wild.test", 80, ""},
		{"A.WILD.TEST", 80, ""},
		{"xn--bcher-kva.test", 80, ""},
		{"good.test", 81, "not_allowed"},
		{"good.test", 25, "not_allowed"},
		{"good.test", 443, "not_allowed"},
		{"other.test", 80, "not_allowed"},
		{"wild.test", 80, "not_allowed"},
		{"denied.wild.test", 80, "not_allowed"},
		{"x.good.test", 80, "not_allowed"},
		{"goodxtest", 80, "not_allowed"},
		{"good.test.evil.test", 80, "not_allowed"},
		{"evil-good.test", 80, "not_allowed"},
		{"inner.test", 80, "address"},
		{"inner.test", 81, "not_allowed"},
		{egresstest.PublicAddr, 80, "not_allowed"}, // the literal of an allowed host
		{egresstest.PublicAddr6, 80, "not_allowed"},
		{"127.0.0.1", 80, "address"},
		{"::1", 80, "address"},
		{"10.0.0.5", 80, "address"},
		{"169.254.169.254", 80, "not_allowed"},
		{"192.168.0.5", 80, "not_allowed"},
		{"0.0.0.0", 80, "not_allowed"},
		{"::", 80, "not_allowed"},
		{"fc00::5", 80, "not_allowed"},
		{"64:ff9b::a00:5", 80, "not_allowed"},
		{"2002:a00:5::1", 80, "not_allowed"},
		{"168.63.129.16", 80, "not_allowed"},
		{"100.64.0.1", 80, "not_allowed"},
		{"198.18.0.1", 80, "not_allowed"},
		{"240.0.0.1", 80, "not_allowed"},
		{"localhost", 80, "not_allowed"},
		{"localhost.", 80, "not_allowed"},
		{"hosts-file.test", 80, "not_allowed"},
		{"wiki", 80, "not_allowed"},
		{"127.1", 80, "address"},
		{"127.0.1", 80, "address"},
		{"2130706433", 80, "address"},
		{"0x7f000001", 80, "address"},
		{"0x7f.0.0.1", 80, "address"},
		{"0177.0.0.1", 80, "address"},
		{"017700000001", 80, "address"},
		{"127.0.0.1.", 80, "address"},
		{"1.2.3", 80, "address"},
		{"256.1.1.1", 80, "address"},
		{"good.test.0x7f", 80, "address"},
		{"..", 80, "invalid_url"},
		{"good..test", 80, "invalid_url"},
		{".good.test", 80, "invalid_url"},
		{"good.test..", 80, "invalid_url"},
		{strings.Repeat("a", 64) + ".test", 80, "invalid_url"},
		{strings.Repeat("a.", 125) + "test", 80, "invalid_url"},
		{"dns.google", 443, "not_allowed"},
		{"cloudflare-dns.com", 443, "not_allowed"},
		{"evil-proxy.test", 3128, "not_allowed"},
		{"_x.good.test", 80, "not_allowed"},
		{"*.wild.test", 80, "invalid_url"},
	}
	if len(targets) < 60 {
		t.Errorf("%d targets", len(targets))
	}
	for _, target := range targets {
		for _, way := range allWays {
			_, err := netip.ParseAddr(target.host)
			if way == WayCapture && err == nil && target.want == "" {
				continue // an address needs no name
			}
			got := f.try(way, target.host, target.port)
			if got.reached != (target.want == "") || got.reason != target.want {
				t.Errorf("%s %s:%d: %+v, want %q", way, target.host, target.port, got, target.want)
			}
			if !got.reached && got.typed != map[Way]string{WayHTTP: target.want, WayConnect: target.want, WaySOCKS5: "reply 2", WayCapture: "NXDOMAIN"}[way] &&
				!(way == WayCapture && got.typed == target.want) {
				t.Errorf("%s %s:%d: the program got %+v", way, target.host, target.port, got)
			}
		}
	}
	n.requireUntouched("targets")
	for _, way := range allWays {
		if got := f.try(way, "tls.test", 80); got.reached || got.typed == "" {
			t.Errorf("%s of plain HTTP where TLS is allowed: %+v", way, got)
		}
	}
	// Spellings that not all ways can express.
	for _, host := range []string{
		"::ffff:10.0.0.5", "fe80::1%25lo", "fe80::1%lo", "good.test\x00.evil.test", "good.test\r\nX: y", "user@good.test", "user:pw@good.test",
		"good.test#.evil.test", "good.test/", "good.test\\", "good。test。evil.test", "ｇood.test evil", "1２7.0.0.1", "good.test:80", "",
	} {
		for _, way := range allWays {
			if got := f.try(way, host, 80); got.reached {
				t.Errorf("%s %q was reached", way, host)
			}
		}
	}
	n.requireUntouched("spellings")
	for _, addr := range []string{"127.0.0.1", "0.0.0.0", "10.0.0.5", "169.254.169.254", "fc00::5"} {
		reachDirectly(t, addr, 80)
		if n.takeHits() != 1 {
			t.Errorf("control: the canary at %s doesn't count", addr)
		}
	}
}

// namespaceAnswers is attacks 9 and 11: a name is refused if any of its answers may
// not be dialled, and no search list or hosts file opens another host.
func namespaceAnswers(t *testing.T) {
	n := newNetwork(t, map[string][]answer{
		"mixed.test": {{Addrs: []string{egresstest.PublicAddr, "127.0.0.1"}}}, "six.test": {{Addrs: []string{egresstest.PublicAddr, "::1"}}},
		"mapped.test": {{Addrs: []string{"::ffff:10.0.0.5"}}}, "nat64.test": {{Addrs: []string{"64:ff9b::a00:5"}}}, "sixtofour.test": {{Addrs: []string{"2002:a00:5::1"}}},
		"cname.test": {{CNAME: "localhost.", Addrs: []string{"127.0.0.1"}}}, "inner.test": {{Addrs: []string{"10.0.0.5"}}}, "meta.test": {{Addrs: []string{"169.254.169.254"}}},
		"azure.test": {{Addrs: []string{"168.63.129.16"}}}, "cgnat.test": {{Addrs: []string{"100.64.0.1"}}}, "wiki.evil.test": {{Addrs: []string{"10.0.0.5"}}},
		"searched.test.evil.test": {{Addrs: []string{egresstest.PublicAddr}}}, "none.test": {{}}, "denied.test": {{Addrs: []string{"93.184.216.99", egresstest.PublicAddr}}},
	})
	hosts := map[string]string{
		"mixed.test": "address", "six.test": "address", "mapped.test": "address", "nat64.test": "address", "sixtofour.test": "address", "cname.test": "address",
		"inner.test": "address", "meta.test": "address", "azure.test": "address", "cgnat.test": "address", "wiki": "address", "localhost": "address",
		"hosts-file.test": "address", "hosts-internal.test": "address", "denied.test": "address",
	}
	for _, rules := range [][]string{{"public", "-tcp://93.184.216.99:*"}, {"-tcp://93.184.216.99:*"}} {
		for host := range hosts {
			rules = append(rules, "tcp://"+host+":80")
		}
		f := newFixture(t, nil, rules...)
		for host, want := range hosts {
			for _, way := range allWays {
				if got := f.try(way, host, 80); got.reason != want {
					t.Errorf("%s %s: %+v, want %s", way, host, got, want)
				}
			}
		}
	}
	n.requireUntouched("answers")
	reachDirectly(t, "inner.test.", 80)
	reachDirectly(t, "hosts-internal.test", 80)
	if n.takeHits() != 2 {
		t.Error("control: names don't reach canaries")
	}
	f := newFixture(t, nil, "tcp://searched.test:80", "tcp://none.test:80", "tcp://unknown.test:80")
	for _, host := range []string{"searched.test", "none.test", "unknown.test"} {
		res, _, conn := f.send("CONNECT " + host + ":80 HTTP/1.1\r\nHost: " + host + ":80\r\n\r\n")
		if res.StatusCode != 502 || detailsOf(res) != "resolve" || !strings.Contains(res.Header.Get("Proxy-Status"), "dns_error") {
			t.Errorf("%s: %s %v", host, res.Status, res.Header)
		}
		_ = conn.Close()
	}
}

// namespaceOwnAddresses is attack 10: addresses of the machine's own interfaces are
// refused, public ones too.
func namespaceOwnAddresses(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "ip", "addr", "add", ownAddr+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	own := newCanary(t, ownAddr+":80")
	newNetwork(t, map[string][]answer{"own.test": {{Addrs: []string{ownAddr}}}})
	f := newFixture(t, nil, "public", "tcp://own.test:80", "tcp://"+ownAddr+":80")
	for _, host := range []string{"own.test", ownAddr} {
		for _, way := range allWays {
			if got := f.try(way, host, 80); got.reason != "address" {
				t.Errorf("%s %s: %+v", way, host, got)
			}
		}
	}
	if own.hits.Load() != 0 {
		t.Errorf("%d connections to the own address", own.hits.Load())
	}
	reachDirectly(t, ownAddr, 80)
	guard, err := rule.NewGuard(map[string][]netip.Prefix{"own.test": {netip.MustParsePrefix(ownAddr + "/32")}})
	if err != nil {
		t.Fatal(err)
	}
	named := newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://own.test:80")
	if got := named.try(WayConnect, "own.test", 80); !got.reached {
		t.Errorf("own address that is named: %+v", got)
	}
}

// namespacePrivate checks that only a named host may be at private addresses, and
// that the machine's own name is reached only if a rule and the guard name it.
func namespacePrivate(t *testing.T) {
	n := newNetwork(t, map[string][]answer{"db.test": {{Addrs: []string{"10.0.0.5"}}, {Addrs: []string{"169.254.169.254"}}}, "other.test": {{Addrs: []string{"10.0.0.5"}}}})
	private := map[string][]netip.Prefix{"db.test": {netip.MustParsePrefix("10.0.0.0/24")}, rule.HostName: {netip.MustParsePrefix("127.0.0.1/32")}}
	guard, err := rule.NewGuard(private)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://db.test:80", "tcp://other.test:80", "tcp://10.0.0.5:80", "tcp://"+rule.HostName+":80")
	if got := f.try(WayConnect, "db.test", 80); !got.reached {
		t.Errorf("the host that is allowed: %+v", got)
	}
	if got := f.try(WaySOCKS5, rule.HostName, 80); !got.reached {
		t.Errorf("this machine: %+v", got)
	}
	if n.takeHits() != 2 {
		t.Error("canaries don't count")
	}
	for _, host := range []string{"db.test", "other.test", "10.0.0.5"} { // the first has moved
		if got := f.try(WayConnect, host, 80); got.reason != "address" {
			t.Errorf("%s: %+v", host, got)
		}
	}
	for name, g := range map[string]*fixture{
		"without a rule":    newFixture(t, func(o *Options) { o.Guard = guard }, "public"),
		"without the guard": newFixture(t, nil, "public", "tcp://"+rule.HostName+":80"),
		"other port":        newFixture(t, func(o *Options) { o.Guard = guard }, "tcp://"+rule.HostName+":81"),
	} {
		for _, way := range allWays {
			if got := g.try(way, rule.HostName, 80); got.reached {
				t.Errorf("this machine %s: %+v", name, got)
			}
		}
	}
	n.requireUntouched("others")
}

// namespaceRebinding is attack 9 with a name that is public when it is checked and
// internal when it is dialled.
func namespaceRebinding(t *testing.T) {
	flip := []answer{}
	for range 50 {
		flip = append(flip, answer{Addrs: []string{egresstest.PublicAddr}}, answer{Addrs: []string{"127.0.0.1"}})
	}
	n := newNetwork(t, map[string][]answer{"flip.test": flip})
	f := newFixture(t, nil, "tcp://flip.test:80")
	reached := 0
	for range 50 {
		if f.try(WayConnect, "flip.test", 80).reached {
			reached++
		}
	}
	if reached != 25 {
		t.Errorf("%d of 50 connections to a name that is public every second time succeeded", reached)
	}
	n.requireUntouched("rebinding")
}

// namespaceLookups is attack 22 on the host: lookups never ask a resolver.
func namespaceLookups(t *testing.T) {
	n := newNetwork(t, map[string][]answer{"good.test": {{Addrs: []string{egresstest.PublicAddr}}}})
	f := newFixture(t, nil, "tcp://good.test:80", "tcp://*.wild.test:80")
	for i := range 10_000 {
		if _, ok := f.LookupName(context.Background(), fmt.Sprintf("%x.evil.test", i*7919)); ok {
			t.Fatal("a name that is not allowed has an address")
		}
	}
	for i := range maxNames {
		if _, ok := f.LookupName(context.Background(), fmt.Sprintf("%x.wild.test", i)); !ok {
			t.Fatalf("name %d has no address", i)
		}
	}
	if asked := n.names.Queries(); asked != 0 {
		t.Errorf("lookups asked the resolver %d times", asked)
	}
	if got := f.try(WayConnect, "good.test", 80); !got.reached || n.names.Queries() == 0 {
		t.Errorf("control: %+v, %d queries", got, n.names.Queries())
	}
	if len(f.denials.kept) > maxDenials+10 {
		t.Errorf("%d refusals are kept", len(f.denials.kept))
	}
}
