package report

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
)

// writeBatch makes a batch's directory, in which each trial has some files, and returns
// it with the first trial's name.
func writeBatch(t testing.TB, s batch.Spec, results []batch.Result, files map[string]string) (dir, trial string) {
	t.Helper()
	dir = t.TempDir()
	l, err := batch.OpenLedger(dir, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		running, err := l.Begin(r.Key)
		for name, text := range files {
			path := filepath.Join(running, filepath.FromSlash(name))
			if err == nil {
				err = os.MkdirAll(filepath.Dir(path), 0o755)
			}
			if err == nil {
				err = os.WriteFile(path, []byte(text), 0o600)
			}
		}
		if err == nil {
			err = l.Finish(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, batch.TrialsDir, results[0].Key.Name())
}

// serveBatch shows a batch, and returns a function that fetches its pages.
func serveBatch(t testing.TB, dir string) func(path string) (status int, header http.Header, body string) {
	t.Helper()
	srv := httptest.NewServer(newHandler(ViewOptions{Dir: dir, Title: "shop", Story: func(w io.Writer, dir string) error {
		_, err := fmt.Fprintln(w, "the story of", filepath.Base(dir))
		return err
	}}))
	t.Cleanup(srv.Close)
	return func(path string) (int, http.Header, string) {
		t.Helper()
		r, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, r.Header, string(body)
	}
}

// TestView: the links of the report and of a trial's page work, as a browser follows
// them.
func TestView(t *testing.T) {
	s, results := newSample(2, 2)
	results[0].Steps = []batch.StepResult{{Name: "build", Class: batch.MinRewardNotMet, Cause: "too little"}}
	dir, _ := writeBatch(t, s, results, map[string]string{
		"session/" + record.TraceFile:                      "{}\n",
		"steps/build/verifier-session/" + record.TraceFile: "{}\n",
		batch.PatchFile: "+one line\n",
		"steps/build/verifier/" + batch.OutputFile:             "\x1b[2Jpassed",
		"artifacts/a file, 100 % <b>odd</b> ?x#y":              "odd",
		"verifier/" + batch.OutputFile:                         strings.Repeat("begin ", 1+maxText/6) + "the end\xff",
		"artifacts/" + strings.Repeat("deep/", 20) + "one.txt": "deep",
	})
	get := serveBatch(t, dir)
	seen := map[string]string{}
	for queue := []string{"/"}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if _, ok := seen[at]; ok {
			continue
		}
		status, header, body := get(at)
		if status != http.StatusOK {
			t.Errorf("%s: status %d: %s", at, status, body)
		}
		seen[at] = body
		if !strings.HasPrefix(header.Get("Content-Type"), "text/html") || strings.HasPrefix(body, "the story of") {
			continue
		}
		for n := range parse(t, body).Descendants() {
			for _, a := range n.Attr {
				if n.Type == html.ElementNode && a.Key == "href" && !strings.HasPrefix(a.Val, "#") {
					base, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+at, nil)
					if err != nil {
						t.Fatal(err)
					}
					to, err := base.URL.Parse(a.Val)
					if err != nil {
						t.Fatal(err)
					}
					queue = append(queue, to.EscapedPath())
				}
			}
		}
	}
	if want := 1 + len(results)*(1+2+8); len(seen) != want { // the report; for each trial its page, 2 stories, 7 files and its result
		t.Errorf("%d pages, want %d", len(seen), want)
	}
	page := "/" + batch.TrialsDir + "/" + results[0].Key.Name() + "/"
	text := textOf(t, seen[page])
	for _, want := range []string{"shop-000", "openai/gpt-5", "attempt 1", "build · min_reward too little", "+one line", `\x1b[2Jpassed`, "the end�", "10 bytes are left out here", "<b>odd</b>", "ollama/fast 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of a trial lacks %q", want)
		}
	}
	if got := seen[page+"steps/build/verifier-session/"]; got != "the story of verifier-session\n" {
		t.Errorf("story: %q", got)
	}
}

// TestViewIsConfined: an agent's files are shown as text, and lead nowhere.
func TestViewIsConfined(t *testing.T) {
	s, results := newSample(1, 1)
	dir, trial := writeBatch(t, s, results[:1], map[string]string{
		"artifacts/page.html": "<script>alert(1)</script>", "artifacts/image": "\x89PNG\x00", "session/" + record.TraceFile: "{}\n",
		"artifacts/session/" + record.TraceFile: "{}\n",
	})
	secret := filepath.Join(t.TempDir(), "secret")
	err := os.WriteFile(secret, []byte("hidden"), 0o600)
	for name, to := range map[string]string{"out": secret, "up": "../../../" + batch.SpecFile, "dir": filepath.Dir(secret), "in": "page.html"} {
		if err == nil {
			err = os.Symlink(to, filepath.Join(trial, "artifacts", name))
		}
	}
	if err == nil {
		err = syscall.Mkfifo(filepath.Join(trial, "artifacts", "fifo"), 0o600)
	}
	if err == nil {
		err = os.Symlink(filepath.Dir(secret), filepath.Join(dir, batch.TrialsDir, "planted"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(trial, "artifacts", "out")); string(text) != "hidden" { // the control
		t.Fatalf("the symlink leads nowhere: %v", err)
	}
	get := serveBatch(t, dir)
	base := "/" + batch.TrialsDir + "/" + filepath.Base(trial) + "/"
	for path, want := range map[string]int{
		base + "artifacts/out": 404, base + "artifacts/up": 404, base + "artifacts/dir/secret": 500, base + "artifacts/in": 404, base + "artifacts/fifo": 404,
		base + "artifacts/session/": 404, base + "artifacts/": 404, base + "artifacts": 404, base + "%2e%2e/%2e%2e/" + batch.SpecFile: 404, base + "..%2f..%2f" + batch.SpecFile: 404,
		"/" + batch.TrialsDir + "/planted/secret": 404, "/" + batch.TrialsDir + "/..%2f" + batch.TrialsDir + "/x": 404, "/" + batch.TrialsDir + "/%2e%2e/" + batch.SpecFile: 404,
		"/" + batch.SpecFile: 404, "/" + batch.TrialsDir + "/": 404,
		"/" + batch.TrialsDir + "/absent/": 500, // results with a planted symlink are refused
	} {
		status, _, body := get(path)
		if status != want || strings.Contains(body, "hidden") || strings.Contains(body, "schema_version") {
			t.Errorf("%s: status %d, want %d: %s", path, status, want, body)
		}
	}
	for path, want := range map[string]string{base + "artifacts/page.html": "text/plain; charset=utf-8", base + "artifacts/image": "application/octet-stream"} {
		status, h, _ := get(path)
		if status != http.StatusOK || h.Get("Content-Type") != want || h.Get("Content-Security-Policy") != filePolicy || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", path, status, h)
		}
	}
}

// TestServe: pages are only below the key, and the context's end stops the server.
func TestServe(t *testing.T) {
	s, results := newSample(1, 1)
	dir, _ := writeBatch(t, s, results, nil)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, "KEY", ViewOptions{Dir: dir, Title: "shop"}) }()
	for path, want := range map[string]int{"/KEY/": 200, "/": 404, "/KEX/": 404, "/KEY/" + batch.TrialsDir + "/" + results[0].Key.Name() + "/": 200} {
		r, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Body.Close(); err != nil || r.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, r.StatusCode, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
