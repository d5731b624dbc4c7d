package main

import (
	"io"
	"net/http"
	"net/http/httptest"
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
			e.Setenv("PAGES", pages.URL)
			e.Setenv("CANARY", canary.URL)
			e.Setenv("CAISSON_CONFIG", filepath.Join(e.WorkDir, "config.yaml"))
			return setUpScript(e)
		},
	})
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests reached the canary", n)
	}
}
