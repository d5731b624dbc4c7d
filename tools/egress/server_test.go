package egress

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestConnect(t *testing.T) {
	echo := startEcho(t)
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://"+echo)
	br, conn := f.tunnel(echo)
	text := make([]byte, 1<<20)
	_, _ = rand.Read(text)
	go func() {
		_, _ = conn.Write(text)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(br)
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	awaitTrue(t, "closed", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.closed) == 1 })
	c := f.closed[0]
	if c.Command != 7 || c.Way != WayConnect || c.Sent != 1<<20 || c.Received != 1<<20 || c.Ending != EndingDone || c.Addr.String() != echo {
		t.Errorf("closed: %+v", c)
	}
	res, _, _ := f.send("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusForbidden || detailsOf(res) != "not_allowed" || !strings.Contains(string(body), "example.com:443 is not allowed") {
		t.Errorf("refused with %s, %v, %s", res.Status, res.Header, body)
	}
	if d := f.Denials(7); len(d) != 1 || d[0].Host != "example.com" || d[0].Port != 443 || d[0].Way != WayConnect || d[0].Count != 1 {
		t.Errorf("denials: %+v", d)
	}
}

func TestPlainHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", r.Method+" "+r.URL.String()+" "+r.Host)
		_, _ = w.Write(append([]byte("got "), body...))
	}))
	defer s.Close()
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, s.URL+"/pub/", s.URL+"/post POST")
	host := strings.TrimPrefix(s.URL, "http://")
	get := func(text string) (*http.Response, string) {
		res, _, _ := f.send(text)
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res, string(body)
	}
	res, body := get("GET " + s.URL + "/pub/a?q=1 HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	if res.StatusCode != 200 || body != "got " || res.Header.Get("X-Seen") != "GET /pub/a?q=1 "+host {
		t.Errorf("%s %v %q", res.Status, res.Header, body)
	}
	res, body = get("POST " + s.URL + "/post HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	if res.StatusCode != 200 || body != "got abc" {
		t.Errorf("%s %v %q", res.Status, res.Header, body)
	}
	for text, want := range map[string]string{
		"POST " + s.URL + "/pub/a": "method",
		"GET " + s.URL + "/secret": "path",
		"GET " + s.URL + "/pub/..": "path",
		"GET http://other.test/":   "not_allowed",
		"GET https://other.test/":  "scheme",
	} {
		_, target, _ := strings.Cut(text, "://")
		at, _, _ := strings.Cut(target, "/")
		res, _ := get(text + " HTTP/1.1\r\nHost: " + at + "\r\n\r\n")
		if res.StatusCode != 403 || detailsOf(res) != want {
			t.Errorf("%s: %s %v, want %s", text, res.Status, res.Header, want)
		}
	}
}
