package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestFetch replays a run that fetches from a server that its configuration
// allows, and is refused another, which nobody connects to, on every backend:
// from the tool, by a redirect, and from a command in the sandbox. What was
// fetched is then checked by verify and verify_shell.
func TestFetch(t *testing.T) {
	for _, backend := range []string{"docker", "gvisor", "runc"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if to := r.URL.Query().Get("to"); to != "" {
					http.Redirect(w, r, to, http.StatusFound)
					return
				}
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, "<h1>The guide</h1><p>Write <b>answer.txt</b>.</p>")
			}))
			t.Cleanup(pages.Close)
			var hits atomic.Int64
			canary := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
			t.Cleanup(canary.Close)
			for _, u := range []string{canary.URL, pages.URL + "/?to=" + canary.URL} {
				res, err := pages.Client().Get(u)
				if err != nil || hits.Swap(0) != 1 {
					t.Fatalf("control: a naive client doesn't reach the canary by %s: %v", u, err)
				}
				_ = res.Body.Close()
			}

			m := newMachine(t)
			m.config(t, fmt.Sprintf("fetch:\n  allow: [%q]\n  private: {127.0.0.1: [127.0.0.1]}\n", pages.URL+"/"))
			get := func(url string) scriptCall { return call("fetch", map[string]any{"url": url}) }
			check := func(tool string, checks ...map[string]any) scriptCall {
				return call(tool, map[string]any{"checks": checks})
			}
			args := m.playing(t,
				[]scriptCall{get(pages.URL + "/guide")},
				[]scriptCall{get(canary.URL), get(pages.URL + "/?to=" + canary.URL)},
				[]scriptCall{shell("echo 42 > answer.txt; (exec 3<>/dev/tcp/127.0.0.1/" + canary.URL[strings.LastIndex(canary.URL, ":")+1:] + ") 2>/dev/null; true")},
				[]scriptCall{
					check("verify", map[string]any{"kind": "contains", "path": "answer.txt", "value": "42"}, map[string]any{"kind": "file_exists", "path": "no"}),
					check("verify_shell", map[string]any{"kind": "shell", "cmd": "cat answer.txt", "expect_stdout_contains": "42"}, map[string]any{"kind": "shell", "cmd": "false"}),
				},
			)
			out := m.runTask(t, append([]string{"--backend", backend}, args...)...)
			if out.status != 0 {
				t.Fatalf("status %d\n%s", out.status, out.stderr)
			}
			if n := hits.Load(); n != 0 {
				t.Errorf("the canary was reached %d times", n)
			}
			type denied struct{ URL, Host, Reason string }
			var got []denied
			for _, r := range out.records.of("network.denied") {
				got = append(got, decode[denied](t, r))
			}
			want := denied{canary.URL + "/", strings.TrimPrefix(canary.URL, "http://"), "not_allowed"}
			if len(got) != 2 || got[0] != want || got[1] != want {
				t.Errorf("network.denied: %+v, want two of %+v", got, want)
			}
			for _, text := range []string{
				"# The guide", `\"summary\":\"1 of 2 checks passed\"`, `\"exit_code\":1`, `"tool_name":"verify","success":false`, `"tool_name":"verify_shell","success":false`,
			} {
				if !strings.Contains(out.stdout, text) {
					t.Errorf("%s is not in the records", text)
				}
			}
			kept, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "fetched", "*"))
			if err != nil || len(kept) != 1 {
				t.Fatalf("kept %v, %v", kept, err)
			}
			if body, err := os.ReadFile(kept[0]); err != nil || !strings.HasPrefix(string(body), "<h1>") {
				t.Errorf("kept %q, %v", body, err)
			}
		})
	}
}
