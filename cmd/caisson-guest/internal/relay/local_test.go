package relay

import "testing"

// TestParseLocal checks which requests to the proxy are for a server of the sandbox.
func TestParseLocal(t *testing.T) {
	for _, tt := range []struct{ first, to, request string }{
		{"GET http://127.1.2.3:8088/a?b HTTP/1.1\r\nHost: x\r\n\r\n", "127.1.2.3:8088", "GET /a?b HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n"},
		{"POST http://127.0.0.2 HTTP/1.0\r\n\r\nbody", "127.0.0.2:80", "POST / HTTP/1.0\r\nConnection: close\r\n\r\nbody"},
		{"GET http://127.0.0.2?q=/ HTTP/1.1\r\n", "127.0.0.2:80", "GET /?q=/ HTTP/1.1\r\nConnection: close\r\n"},
		{"CONNECT 127.0.0.2:443 HTTP/1.1\r\nHost: x\r\n\r\nhello", "127.0.0.2:443", "hello"},
		{"CONNECT 127.0.0.2:443 HTTP/1.1\r\nHost: x\r\n", "", ""}, // the head isn't complete
		{"GET http://127.0.0.2/ HTTP/1.1", "", ""},
		{"GET http://127.0.0.2/ HTTP/2.0\r\n", "", ""},
		{"GET https://127.0.0.2/ HTTP/1.1\r\n", "", ""},
		{"GET http://127.0.0.2@example.com/ HTTP/1.1\r\n", "", ""},
		{"GET http://127.0.0.2.example.com/ HTTP/1.1\r\n", "", ""},
		{"GET http://[::ffff:127.0.0.1]:80/ HTTP/1.1\r\n", "", ""},
		{"GET http://128.0.0.1/ HTTP/1.1\r\n", "", ""},
		{"GET http://10.0.0.1:80/ HTTP/1.1\r\n", "", ""},
		{"\x05\x01\x00", "", ""},
		{"", "", ""},
	} {
		to, request, _ := parseLocal([]byte(tt.first))
		if got := to.String(); to.IsValid() && got != tt.to || to.IsValid() != (tt.to != "") || to.IsValid() && string(request) != tt.request {
			t.Errorf("%q is for %v with %q", tt.first, to, request)
		}
	}
}
