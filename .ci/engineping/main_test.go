package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"
)

// engineAt answers /_ping with a status on a unix socket, as an engine does.
func engineAt(t *testing.T, status int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/_ping" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { _ = server.Close() })
	return "unix://" + path
}

func TestPing(t *testing.T) {
	for _, test := range []struct {
		name string
		host string
		ok   bool
	}{
		{"an engine that answers", engineAt(t, http.StatusOK), true},
		{"one that is ill", engineAt(t, http.StatusInternalServerError), false},
		{"none", "unix:///no/such.sock", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := ping(context.Background(), test.host); (err == nil) != test.ok {
				t.Errorf("ping(%q) = %v", test.host, err)
			}
		})
	}
}
