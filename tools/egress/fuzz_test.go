package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// FuzzSOCKS checks that messages of SOCKS5 are read without reading more than they
// have, and that a host that is accepted is the one that was sent.
func FuzzSOCKS(f *testing.F) {
	f.Add(socksConnect("example.com", 443))
	f.Add(socksConnect("127.0.0.1", 80))
	f.Add(socksConnect("::1", 80))
	f.Add([]byte{5, 3, 0, 3, 0, 0, 80})
	f.Fuzz(func(t *testing.T, sent []byte) {
		r := bytes.NewReader(append(bytes.Clone(sent), "behind"...))
		host, port, err := readSOCKSRequest(r)
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		used := len(sent) + len("behind") - len(rest)
		if used > 4+1+255+2 || len(host) > 255 {
			t.Errorf("%d bytes were read for a host of %d", used, len(host))
		}
		again := socksConnect(host, int(port))
		if sent[3] == 3 && !strings.Contains(string(again), host) || int(port) != int(again[len(again)-2])<<8|int(again[len(again)-1]) {
			t.Errorf("% x is %q and %d", sent, host, port)
		}
	})
}

// FuzzHead checks that a head that is accepted has one meaning: net/http reads the
// same, and what it writes anew is accepted with the same parts.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", "GET / HTTP/1.0\n\n", "CONNECT a:1 HTTP/1.1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		br := bufio.NewReaderSize(bytes.NewReader(sent), maxHeadBytes)
		h, err := peekHead(br)
		if err != nil {
			if f, ok := errors.AsType[*refusal](err); ok && f.reason == "" {
				t.Errorf("refused without a reason: %v", err)
			}
			return
		}
		if !bytes.HasPrefix(sent, []byte(h.text)) || strings.Contains(strings.ReplaceAll(h.text, "\r\n", ""), "\n") {
			t.Fatalf("head %q of %q", h.text, sent)
		}
		req, err := http.ReadRequest(br)
		if err != nil || h.method == http.MethodConnect {
			return
		}
		switch {
		case req.Method != h.method || req.RequestURI != h.target:
			t.Errorf("%q is %s %q, and %s %q to net/http", h.text, h.method, h.target, req.Method, req.RequestURI)
		case len(req.TransferEncoding) > 0 && req.ContentLength >= 0:
			t.Errorf("%q has two lengths", h.text)
		case len(h.hosts) == 1 && strings.HasPrefix(h.target, "/") && req.Host != h.hosts[0]:
			t.Errorf("%q is for %q, and for %q to net/http", h.text, h.hosts[0], req.Host)
		}
		for name, values := range req.Header {
			for _, v := range values {
				if strings.ContainsAny(name+v, "\r\n\x00") {
					t.Errorf("%q has a field %q: %q", h.text, name, v)
				}
			}
		}
	})
}

// FuzzAuthority checks that the host and port of CONNECT are those that net/url
// reads, if it reads any.
func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"a.test:443", "[::1]:80", "u@a:1", "a", ":1", "a:", "[::1]", "a:1:2", "[a]:1", "1.2.3.4:65536", "\x80:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		r := request{}
		if err := r.readAuthority(&head{target: target}); err != nil {
			if asRefusal(t.Context(), err).reason == "" {
				t.Errorf("%q: %v", target, err)
			}
			return
		}
		u, err := rule.ParseTarget("http://" + target + "/")
		if err != nil || u.Host != r.host || u.Port != r.port {
			t.Errorf("%q is %s and %d, and %+v as a URL: %v", target, r.host, r.port, u, err)
		}
	})
}

// FuzzHello checks that the first message of TLS is never taken for naming a host
// unless its bytes do, whatever the records, and that all bytes are kept.
func FuzzHello(f *testing.F) {
	hello := helloOf(f, &tls.Config{ServerName: "good.test"})
	f.Add(hello)
	f.Add(splitRecords(hello, 7))
	f.Add(addExtension(hello, extensionECH, []byte{0}))
	f.Add(addExtension(hello, 0, []byte("\x00\x0c\x00\x00\x09evil.test")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		seen, read, _ := readHello(bytes.NewReader(sent))
		if !bytes.HasPrefix(sent, read) {
			t.Fatal("bytes were changed")
		}
		if seen != nil && seen.ServerName != "" && len(sent) < len(seen.ServerName) {
			t.Errorf("a name of %d bytes in %d", len(seen.ServerName), len(sent))
		}
	})
}
