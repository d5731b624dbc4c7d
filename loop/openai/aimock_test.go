package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/tools"
)

// TestModelServer tests the adapter, under the real loop, against a server of
// others: aimock, from npm.
func TestModelServer(t *testing.T) {
	base := startModelServer(t)
	for mode, stream := range map[string]bool{"whole": false, "stream": true} {
		t.Run(mode, func(t *testing.T) {
			t.Run("two calls in one round", func(t *testing.T) { testTwoCalls(t, base, stream) })
			t.Run("malformed arguments", func(t *testing.T) { testMalformed(t, base, stream) })
		})
	}
	t.Run("rate limit", func(t *testing.T) { testRateLimit(t, base) })
	t.Run("cut stream", func(t *testing.T) { testCutStream(t, base) })
	t.Run("nothing fits", func(t *testing.T) {
		out, _ := runTurn(t, base, true, "an unknown thing", &recordingDispatcher{}, new(0))
		if out.Reason != loop.StopProviderFailed {
			t.Errorf("reason %s, %v", out.Reason, out.Err)
		}
	})
}

func testTwoCalls(t *testing.T, base string, stream bool) {
	d := &recordingDispatcher{}
	out, shown := runTurn(t, base, stream, "two at once", d, nil)
	if out.Reason != loop.StopAnswered || out.Answer != "Done: three files, and the issue is open." {
		t.Fatalf("reason %s, answer %q, %v", out.Reason, out.Answer, out.Err)
	}
	want := []string{`shell {"command":"ls | wc -l","timeout_seconds":5}`, `github/get_issue {"number":7}`}
	if diff := cmp.Diff(want, d.ran); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if d.rounds != 1 {
		t.Errorf("the calls came in %d rounds", d.rounds)
	}
	if shown != "Both at once."+out.Answer {
		t.Errorf("deltas %q", shown)
	}
	if out.Usage.Rounds != 2 || out.Usage.Tokens() == 0 {
		t.Errorf("usage %+v", out.Usage)
	}
	// The server received both results, wrapped, with its own IDs.
	last := lastRequest(t, base)
	var ids []string
	for _, m := range last.Body.Messages {
		if m.Role == "tool" {
			ids = append(ids, m.ToolCallID)
			if strings.Count(m.Content, "caisson-output-") != 2 {
				t.Errorf("result %s is sent as %q", m.ToolCallID, m.Content)
			}
		}
	}
	if diff := cmp.Diff([]string{"call_a", "call_b"}, ids); diff != "" {
		t.Errorf("ids of the results (-want +got):\n%s", diff)
	}
	if last.Body.Stream != stream {
		t.Errorf("stream %v was requested", last.Body.Stream)
	}
}

func testMalformed(t *testing.T, base string, stream bool) {
	d := &recordingDispatcher{}
	out, _ := runTurn(t, base, stream, "malformed", d, nil)
	if out.Reason != loop.StopAnswered || len(d.ran) != 0 || len(d.refused) != 1 {
		t.Errorf("reason %s, %v; ran %v, refused %v", out.Reason, out.Err, d.ran, d.refused)
	}
}

func testRateLimit(t *testing.T, base string) {
	began := time.Now()
	out, _ := runTurn(t, base, true, "too often", &recordingDispatcher{}, nil)
	if out.Reason != loop.StopAnswered || out.Answer != "Here you are." {
		t.Errorf("reason %s, answer %q, %v", out.Reason, out.Answer, out.Err)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("waited %v, the server asked for 1 s", waited)
	}
}

func testCutStream(t *testing.T, base string) {
	d := &recordingDispatcher{}
	out, _ := runTurn(t, base, true, "cut off", d, nil)
	failure, ok := errors.AsType[*loop.ModelError](out.Err)
	if out.Reason != loop.StopProviderFailed || !ok || failure.Class != loop.ModelNetwork || len(d.ran) != 0 {
		t.Errorf("reason %s, %v; ran %v", out.Reason, out.Err, d.ran)
	}
}

// runTurn runs one turn with the server and returns the text of its deltas, too.
func runTurn(t *testing.T, base string, stream bool, task string, d *recordingDispatcher, retries *int) (loop.Outcome, string) {
	t.Helper()
	m, err := openai.New(openai.Options{Model: "mock", BaseURL: base + "/v1", APIKey: "test", Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var shown strings.Builder
	out, err := loop.Run(t.Context(), loop.Options{
		Profiles: []loop.Profile{{Model: m, MaxRetries: retries}}, Dispatcher: d, System: loop.SystemPrompt(loop.PromptOptions{}), Session: "ses_1", Turn: "trn_1",
		Messages: []loop.Message{loop.NewText(loop.RoleUser, task)},
		Emit: func(e loop.Event) error {
			if d, ok := e.(loop.TextDelta); ok {
				shown.WriteString(d.Text)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, shown.String()
}

// recordingDispatcher records its calls and returns "ok".
type recordingDispatcher struct {
	ran, refused []string
	rounds       int
}

func (r *recordingDispatcher) Definitions() []tools.Definition {
	return []tools.Definition{
		{Name: "shell", Description: "Runs a command.", InputSchema: []byte(`{"type":"object"}`)},
		{Name: "github/get_issue", Description: "Reads an issue.", InputSchema: []byte(`{"type":"object"}`)},
	}
}

func (r *recordingDispatcher) Round(_ context.Context, calls []tools.Call) ([]tools.Result, error) {
	r.rounds++
	var out []tools.Result
	for _, c := range calls {
		text := "ok"
		if c.InputError != "" {
			text = c.InputError
			r.refused = append(r.refused, text)
		} else {
			r.ran = append(r.ran, string(c.Name)+" "+string(c.Input))
		}
		out = append(out, tools.Result{CallID: c.ID, Name: c.Name, Content: []tools.Block{{Text: text}}, IsError: c.InputError != ""})
	}
	return out, nil
}

// journalEntry is a request that the server received.
type journalEntry struct {
	Body struct {
		Stream   bool `json:"stream"`
		Messages []struct {
			Role       string `json:"role"`
			Content    string `json:"content"`
			ToolCallID string `json:"tool_call_id"`
		} `json:"messages"`
	} `json:"body"`
}

// lastRequest returns the last request for a completion.
func lastRequest(t *testing.T, base string) journalEntry {
	t.Helper()
	data := getPage(t, base+"/__aimock/journal")
	var entries []journalEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatalf("journal: %v: %s", err, data)
	}
	for _, e := range slices.Backward(entries) {
		if len(e.Body.Messages) > 0 {
			return e
		}
	}
	t.Fatalf("no request in the journal: %s", data)
	return journalEntry{}
}

// getPage returns the content of a page, or nil if the server is unreachable. It
// does not keep the connection.
func getPage(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// startModelServer installs the server into a temporary directory, starts it and
// returns its base URL.
func startModelServer(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			t.Fatal("needs npm, and REQUIRE_BACKENDS forbids skipping")
		}
		t.Skip("needs npm")
	}
	dir := t.TempDir()
	// The end-to-end tests pin the version.
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "e2e", "testdata", "aimock", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
	install.Dir = dir
	if output, err := install.CombinedOutput(); err != nil {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			t.Fatalf("npm ci: %v\n%s", err, output)
		}
		t.Skipf("needs the npm registry: %v", err)
	}
	return startProgram(t, filepath.Join(dir, "node_modules", ".bin", "llmock"))
}

// freePort returns a free port for another process. It is below the range of ports
// that the kernel assigns, so no socket of a parallel test takes it.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.N(20_000)
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// startProgram starts the server on a free port, waits until it answers, and
// returns its base URL.
func startProgram(t *testing.T, program string) string {
	t.Helper()
	port := freePort(t)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	server := exec.CommandContext(ctx, program, "-p", fmt.Sprint(port), "-f", filepath.Join("testdata", "fixtures.json"),
		"--strict", "-l", "5", "-c", "8", "--log-level", "warn")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel(errors.New("the test ends"))
		_ = server.Wait() // killed, so it fails
		if t.Failed() {
			t.Logf("model server:\n%s", log.String())
		}
	})
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	until := time.Now().Add(2 * time.Minute)
	for getPage(t, base+"/__aimock/journal?limit=1") == nil {
		if time.Now().After(until) {
			t.Fatal("the model server doesn't answer")
		}
		time.Sleep(20 * time.Millisecond) // between two polls of another process
	}
	return base
}
