package report

import (
	"context"
	"errors"
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
	srv := httptest.NewServer(NewHandler(ViewOptions{Dir: dir, Title: "shop", Story: func(w io.Writer, dir string) error {
		_, err := fmt.Fprintln(w, "the story of", filepath.Base(dir))
		return err
	}}))
	t.Cleanup(srv.Close)
	return fetcher(t, srv, "")
}

// fetcher returns a function that fetches a server's pages below a prefix.
func fetcher(t testing.TB, srv *httptest.Server, prefix string) func(path string) (status int, header http.Header, body string) {
	return func(path string) (int, http.Header, string) {
		t.Helper()
		r, err := srv.Client().Get(srv.URL + prefix + path)
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

// TestTrialIsBounded: a trial of many steps has a page that can be read.
func TestTrialIsBounded(t *testing.T) {
	s, results := newSample(1, 1)
	files := map[string]string{}
	for i := range maxParts + 5 {
		name := fmt.Sprintf("step-%03d", i)
		results[0].Steps = append(results[0].Steps, batch.StepResult{Name: name})
		results[0].Faults = append(results[0].Faults, batch.Fault{Class: batch.VerifierNetwork, Cause: "cut off"})
		files["steps/"+name+"/"+batch.AgentOutputFile] = "the output of " + name
		files["steps/"+name+"/"+batch.VerifierSessionDir+"/"+record.TraceFile] = "{}\n"
	}
	dir, trial := writeBatch(t, s, results[:1], files)
	_, _, page := serveBatch(t, dir)("/" + batch.TrialsDir + "/" + filepath.Base(trial) + "/")
	for what, most := range map[string]int{"cut off": maxParts, "the output of": maxTexts, `verifier-session/">`: maxParts} {
		if n := strings.Count(page, what); n != most {
			t.Errorf("%d of %q, want %d", n, what, most)
		}
	}
	for _, want := range []string{"and 5 more", fmt.Sprintf("%d more files are not shown", maxParts+5-maxTexts)} {
		if !strings.Contains(page, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
}

// TestNameThatIsNoText: a directory whose name isn't UTF-8 is counted and hides nothing.
func TestNameThatIsNoText(t *testing.T) {
	s, results := newSample(1, 1)
	dir, trial := writeBatch(t, s, results[:1], map[string]string{"artifacts/\xff/x": "x", "artifacts/y": "y"})
	status, _, page := serveBatch(t, dir)("/" + batch.TrialsDir + "/" + filepath.Base(trial) + "/")
	if status != http.StatusOK || !strings.Contains(page, "artifacts/y") || !strings.Contains(page, "1 more") {
		t.Errorf("status %d: %s", status, page)
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
		if status != http.StatusOK || h.Get("Content-Type") != want || h.Get("Content-Security-Policy") != filePolicy+noFrames || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", path, status, h)
		}
	}
}

// TestServe: pages are only below the key, and the context's end stops the server.
// TestViewOfForeignBatch: the whole directory of trials may be a symlink, in a batch of
// somebody else.
func TestViewOfForeignBatch(t *testing.T) {
	s, results := newSample(1, 1)
	dir, trial := writeBatch(t, s, results[:1], map[string]string{"artifacts/file": "hidden"})
	trials, path := filepath.Join(dir, batch.TrialsDir), "/"+batch.TrialsDir+"/"+filepath.Base(trial)+"/artifacts/file"
	get := serveBatch(t, dir)
	if status, _, body := get(path); status != http.StatusOK || body != "hidden" { // the control
		t.Fatalf("status %d: %s", status, body)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.Rename(trials, elsewhere), os.Symlink(elsewhere, trials)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, "/", "/" + batch.TrialsDir + "/" + filepath.Base(trial) + "/"} {
		if status, _, body := get(path); status == http.StatusOK || strings.Contains(body, "hidden") {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
	}
}

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

// TestCompareView: two agents are compared under a prefix, with links to the trials of
// both, and what can't be compared is said.
func TestCompareView(t *testing.T) {
	s, results := newSample(8, 1)
	for i := range results {
		results[i].Checksum, results[i].Outcome, results[i].Class = "sha256:"+results[i].Task, batch.Passed, ""
		if results[i].Agent == s.Agents[1] && results[i].Task != "shop-007" {
			results[i].Outcome = batch.Failed
		}
	}
	results[0].Outcome, results[0].Class = batch.Suspect, batch.VerifierNetwork
	s.Agents = append(s.Agents, "a&b=c <i>\u202e")
	dir, _ := writeBatch(t, s, results, nil)
	srv := httptest.NewServer(http.StripPrefix("/b/x", NewHandler(ViewOptions{Dir: dir, Title: "shop", Home: "/b"})))
	t.Cleanup(srv.Close)
	get := fetcher(t, srv, "/b/x")
	status, header, page := get("/compare?a=openai%2Fgpt-5&b=ollama%2Ffast")
	text := textOf(t, page)
	for _, want := range []string{
		"openai/gpt-5 is better than ollama/fast by 85.7 points on 7 tasks", "7 tasks in both, 1 left out", "better on 6, worse on 0, same on 1; McNemar's exact test decides",
		"Tasks on which they differ: 6", "shop-001 1/1 0/1", "Left out: 1 shop-000 no trial of openai/gpt-5 was judged", "openai/gpt-5 7 / 7", "1 suspect", "All batches", `a&b=c <i>\u202e`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the comparison lacks %q", want)
		}
	}
	for _, r := range results[2:4] {
		if !strings.Contains(page, `<a href="trials/`+r.Key.Name()+`/">`) {
			t.Errorf("there is no link to %s", r.Key.Name())
		}
	}
	if policy := header.Get("Content-Security-Policy"); status != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || !strings.HasSuffix(policy, "form-action 'self'; frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("status %d, policy %q", status, policy)
	}
	if t.Failed() {
		t.Log(text)
	}
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/": {200, `<form class="choose" method="get" action="compare">`}, "/compare": {200, "Choose two different agents"}, "/compare?a=openai/gpt-5&b=openai/gpt-5": {200, "Choose two different agents"},
		"/compare?a=openai/gpt-5&b=gone%1b":                      {404, `the batch has no such agent: "gone\x1b". Choose one of these: openai/gpt-5, ollama/fast, `},
		"/compare?a=openai/gpt-5&b=a%26b%3Dc%20%3Ci%3E%E2%80%AE": {200, "no task in common"}, "/compare?a=openai/gpt-5&b=a%26b%3Dc%20%3Ci%3E%5Cu202e": {200, "no task in common"},
	} {
		status, _, page := get(path)
		if status != want.status || !strings.Contains(page, want.text) {
			t.Errorf("%s: status %d: %s", path, status, page)
		}
	}
}
