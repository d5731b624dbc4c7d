package egress

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"
)

// BenchmarkTLS compares TLS that ends here with TLS that passes end to end, over
// loopback connections and without a sandbox: a download, a request on a connection
// that is open, and one on a new connection.
func BenchmarkTLS(b *testing.B) {
	const size = 16 << 20
	data := make([]byte, size)
	server := startSecure(b, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			_, _ = w.Write(data)
			return
		}
		_, _ = io.WriteString(w, "x")
	})
	get := func(b *testing.B, c *http.Client, path string) {
		b.Helper()
		res, err := c.Get(server.url(path))
		if err != nil {
			b.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(res.Status, err)
		}
	}
	for _, tt := range []struct{ name, rule, protocol string }{
		{"end to end/http1", "tls://localhost:", "http/1.1"},
		{"end to end/http2", "tls://localhost:", "h2"},
		{"ended/http1", "https://localhost:", "http/1.1"},
		{"ended/http2", "https://localhost:", "h2"},
	} {
		s := newSession(b, server, nil, tt.rule+server.port)
		newClient := func() *http.Client {
			c := s.client(tt.protocol)
			c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: poolOf(b, s.authority, server.authority)}
			return c
		}
		c := newClient()
		get(b, c, "/")
		b.Run(tt.name+"/download", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				get(b, c, "/big")
			}
		})
		b.Run(tt.name+"/request", func(b *testing.B) {
			for b.Loop() {
				get(b, c, "/")
			}
		})
		b.Run(tt.name+"/connection", func(b *testing.B) {
			for b.Loop() {
				fresh := newClient()
				get(b, fresh, "/")
				fresh.CloseIdleConnections()
			}
		})
		c.CloseIdleConnections()
	}
}
