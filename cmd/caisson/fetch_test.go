package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestFetchScripts runs the program with two real servers: PAGES, which the scripts
// allow, and CANARY, which nobody may connect to.
func TestFetchScripts(t *testing.T) {
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		case "/hostile":
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "red\x1b[31m alert\x1b]0;owned\x07 \u202egnp.exe")
		default:
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<title>Guide</title><h1>Guide</h1><p>Run <code>make</code>.<script>x()</script>")
		}
	}))
	t.Cleanup(pages.Close)
	var hits atomic.Int64
	canary := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	t.Cleanup(canary.Close)
	naive, err := pages.Client().Get(pages.URL + "/away?to=" + canary.URL)
	if err != nil || hits.Swap(0) != 1 {
		t.Fatalf("control: a naive client doesn't reach the canary: %v", err)
	}
	_ = naive.Body.Close()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "fetch"), RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(e *testscript.Env) error {
			bin := filepath.Join(e.WorkDir, "bin")
			for _, dir := range []string{bin, filepath.Join(e.WorkDir, "home"), filepath.Join(e.WorkDir, "ws")} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
			for _, name := range []string{"caisson", "caisson-guest", "runsc"} {
				if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
					return err
				}
			}
			for name, value := range map[string]string{
				"HOME": filepath.Join(e.WorkDir, "home"), "FAKE_BIN": bin, "FAKE_DOCKER": "no engine answers", "DOCKER_HOST": "unix:///no/such.sock",
				"PAGES": pages.URL, "CANARY": canary.URL, "CAISSON_CONFIG": filepath.Join(e.WorkDir, "config.yaml"),
			} {
				e.Setenv(name, value)
			}
			return nil
		},
	})
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests reached the canary", n)
	}
}
