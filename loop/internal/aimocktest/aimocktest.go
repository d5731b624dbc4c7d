// Package aimocktest runs turns against a third-party mock of model providers: aimock,
// from npm. It is for packages beside loop/internal.
package aimocktest

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
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/tools"
)

// TestTwoCalls tests two calls in one round. stream says whether the model requests a
// stream.
func TestTwoCalls(t *testing.T, base string, m loop.Model, stream bool) {
	d := &wiretest.Dispatcher{}
	out, shown := RunTurn(t, m, "two at once", d, nil)
	if out.Reason != loop.StopAnswered || out.Answer != "Done: three files, and the issue is open." {
		t.Fatalf("reason %s, answer %q, %v", out.Reason, out.Answer, out.Err)
	}
	want := []string{`shell {"command":"ls | wc -l","timeout_seconds":5}`, `github/get_issue {"number":7}`}
	if diff := cmp.Diff(want, d.Ran); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if d.Rounds != 1 {
		t.Errorf("the calls came in %d rounds", d.Rounds)
	}
	if shown != "Both at once."+out.Answer {
		t.Errorf("deltas %q", shown)
	}
	if out.Usage.Rounds != 2 || out.Usage.InputTokens != 200 || out.Usage.OutputTokens != 20 {
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

// TestFailures tests a streaming model: a rate limit, a stream that ends within a call,
// and an error.
func TestFailures(t *testing.T, m loop.Model) {
	t.Run("rate limit", func(t *testing.T) { TestRateLimit(t, m) })
	t.Run("cut stream", func(t *testing.T) { testCutStream(t, m) })
	t.Run("nothing fits", func(t *testing.T) {
		out, _ := RunTurn(t, m, "an unknown thing", &wiretest.Dispatcher{}, new(0))
		if out.Reason != loop.StopProviderFailed {
			t.Errorf("reason %s, %v", out.Reason, out.Err)
		}
	})
}

// TestRateLimit tests a rate limit with a Retry-After.
func TestRateLimit(t *testing.T, m loop.Model) {
	began := time.Now()
	out, _ := RunTurn(t, m, "too often", &wiretest.Dispatcher{}, nil)
	if out.Reason != loop.StopAnswered || out.Answer != "Here you are." {
		t.Errorf("reason %s, answer %q, %v", out.Reason, out.Answer, out.Err)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("waited %v, the server asked for 1 s", waited)
	}
}

func testCutStream(t *testing.T, m loop.Model) {
	d := &wiretest.Dispatcher{}
	out, _ := RunTurn(t, m, "cut off", d, nil)
	failure, ok := errors.AsType[*loop.ModelError](out.Err)
	if out.Reason != loop.StopProviderFailed || !ok || failure.Class != loop.ModelNetwork || len(d.Ran) != 0 {
		t.Errorf("reason %s, %v; ran %v", out.Reason, out.Err, d.Ran)
	}
}

// RunTurn runs one turn and also returns the text of its deltas. The task selects the
// server's answers.
func RunTurn(t *testing.T, m loop.Model, task string, d *wiretest.Dispatcher, retries *int) (loop.Outcome, string) {
	t.Helper()
	d.Tools = []tools.Name{"shell", "github/get_issue"}
	return wiretest.RunTurn(t, loop.Options{
		Profiles: []loop.Profile{{Model: m, MaxRetries: retries}}, Dispatcher: d, System: loop.SystemPrompt(loop.PromptOptions{}),
		Messages: []loop.Message{loop.NewText(loop.RoleUser, boundary.Text(task))},
	})
}

type request struct {
	Body struct {
		Stream   bool `json:"stream"`
		Messages []struct {
			Role       string `json:"role"`
			Content    string `json:"content"`
			ToolCallID string `json:"tool_call_id"`
		} `json:"messages"`
	} `json:"body"`
}

func lastRequest(t *testing.T, base string) request {
	t.Helper()
	data := getPage(t, base+"/__aimock/journal")
	var entries []request
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatalf("journal: %v: %s", err, data)
	}
	for _, e := range slices.Backward(entries) {
		if len(e.Body.Messages) > 0 {
			return e
		}
	}
	t.Fatalf("no request in the journal: %s", data)
	return request{}
}

// getPage returns a page's content, or nil if the server is unreachable. It keeps no
// connection.
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

// Start installs the server in a temporary directory, starts it and returns its base
// URL.
func Start(t *testing.T) string {
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

// freePort returns a port for another process. It is below the kernel's ephemeral
// range, so that no socket of a parallel test takes it.
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

func startProgram(t *testing.T, program string) string {
	t.Helper()
	port := freePort(t)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	server := exec.CommandContext(ctx, program, "-p", fmt.Sprint(port), "-f", filepath.Join("..", "internal", "aimocktest", "testdata", "fixtures.json"),
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
