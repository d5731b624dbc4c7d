package probe

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTryProxy(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Setenv("HTTP_PROXY", server.URL)
	if got := tryProxy("127.0.0.1:9"); got != "403" || asked != "CONNECT 127.0.0.1:9" {
		t.Errorf("%s after %q", got, asked)
	}
	server.Close()
	if got := tryProxy("127.0.0.1:9"); got != "ECONNREFUSED" {
		t.Errorf("without a proxy: %s", got)
	}
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	go func() {
		if c, err := silent.Accept(); err == nil {
			_ = c.Close() // without an answer
		}
	}()
	t.Setenv("HTTP_PROXY", "http://"+silent.Addr().String())
	if got := tryProxy("127.0.0.1:9"); got != "no answer of HTTP" && got != "ECONNRESET" {
		t.Errorf("a proxy that hangs up: %s", got)
	}
	for _, bad := range []string{"", "http://proxy.lan:3128", "http://127.0.0.1", "socks5://127.0.0.1:1"} {
		t.Setenv("HTTP_PROXY", bad)
		if got := tryProxy("127.0.0.1:9"); got != "no proxy in the environment" {
			t.Errorf("%q: %s", bad, got)
		}
	}
}
