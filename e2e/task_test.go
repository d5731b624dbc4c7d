package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTaskIsTheSameEverywhere does one task on each backend, driven by a model
// server that no one here wrote, streaming and not, with two calls in one
// round: the final workspaces are byte-identical, and the records too, but for
// times, ids and facts of the backend.
func TestTaskIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	base := modelServer(t)
	type run struct {
		name    string
		files   map[string]string
		records []string
	}
	var runs []run
	for _, stream := range []bool{true, false} {
		onEach := func(t *testing.T, backend string) {
			m := newMachine(t)
			m.tally(t)
			m.env = append(m.env, "OPENAI_API_KEY=test", "OPENAI_BASE_URL="+base+"/v1")
			before := requests(t, base)
			out := m.runTask(t, "--backend", backend, "--model", "openai/gpt-test", fmt.Sprintf("--stream=%t", stream), "mend the tally")
			out.want(t, 0)
			if end := out.records.end(t); end.Reason != "answered" {
				t.Errorf("reason %q, want answered", end.Reason)
			}
			if got := out.records.attestation(t); got.Backend != backend {
				t.Errorf("attested backend %q, want %q", got.Backend, backend)
			}
			if streamed := askedToStream(t, base, before); streamed != stream {
				t.Errorf("the server was asked to stream: %t, want %t", streamed, stream)
			}
			runs = append(runs, run{fmt.Sprintf("%s stream=%t", backend, stream), treeOf(t, m.workspace), out.records.comparable(t, m)})
			m.wantNothingLeft(t, out.records[0].Session)
		}
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) { onAllBackends(t, onEach) })
	}
	if len(runs) == 0 {
		t.Skip("needs a backend: none ran")
	}
	if got := runs[0].files["result.txt"]; got != "-rw-r--r-- PASS\n" {
		t.Errorf("result.txt is %q", got)
	}
	// What is compared must hold what the tools said, or it proves nothing.
	for _, said := range []string{"FAIL: tally.sh 2 3 4 is -9, want 9", "PASS", "It subtracted.", "now it adds"} {
		if !strings.Contains(strings.Join(runs[0].records, "\n"), said) {
			t.Errorf("the records lack %q:\n%s", said, strings.Join(runs[0].records, "\n"))
		}
	}
	for _, other := range runs[1:] {
		if diff := cmp.Diff(runs[0].files, other.files); diff != "" {
			t.Errorf("final workspaces differ: -%s +%s\n%s", runs[0].name, other.name, diff)
		}
		if diff := cmp.Diff(runs[0].records, other.records); diff != "" {
			t.Errorf("records differ: -%s +%s\n%s", runs[0].name, other.name, diff)
		}
	}
}

// tally puts the task's project into the workspace.
func (m *machine) tally(t *testing.T) {
	t.Helper()
	if err := os.CopyFS(m.workspace, os.DirFS(filepath.Join("testdata", "tally"))); err != nil {
		t.Fatal(err)
	}
}

// treeOf returns the files' modes and contents by path.
func treeOf(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		tree[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			tree[name] += " " + string(content)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// modelServer starts the OpenAI-compatible server from npm on a free port and
// gives its address. It is stopped with the test.
func modelServer(t *testing.T) string {
	t.Helper()
	program := installedModelServer(t)
	fixtures, err := filepath.Abs(filepath.Join("testdata", "aimock", "tally.json"))
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	server := exec.CommandContext(ctx, program, "-p", fmt.Sprint(port), "-f", fixtures,
		"--strict", "-l", "2", "-c", "20", "--log-level", "warn")
	server.Env = append(os.Environ(), "AIMOCK_STRICT_TURN_INDEX=1")
	log := new(follower)
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel(errors.New("the test ends"))
		_ = server.Wait()
		if t.Failed() {
			t.Logf("model server:\n%s", log)
		}
	})
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	eventually(t, "the model server answers", 2*time.Minute, func() bool {
		response, err := http.Get(base + "/__aimock/journal?limit=1")
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	return base
}

// installedModelServer installs the server into the tests' folder, once.
func installedModelServer(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		lacking(t, "", "needs npm")
	}
	dir, err := installOnce()
	if err != nil {
		t.Fatalf("install the model server: %v", err)
	}
	return filepath.Join(dir, "node_modules", ".bin", "llmock")
}

var installOnce = sync.OnceValues(func() (string, error) {
	dir, err := shared()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "model")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "aimock"))); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, out)
	}
	return dir, nil
})

// freePort finds a port for another process: one below those that the kernel gives
// out, so that no socket of a test beside this one gets it meanwhile.
func freePort(t testing.TB) int {
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

// journalEntry is one request as the model server saw it.
type journalEntry struct {
	Body struct {
		Stream bool `json:"stream"`
	} `json:"body"`
	Response struct {
		Status int `json:"status"`
	} `json:"response"`
}

// journal gives every request that the server saw.
func journal(t *testing.T, base string) []journalEntry {
	t.Helper()
	response, err := http.Get(base + "/__aimock/journal?limit=1000")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var entries []journalEntry
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&entries); err != nil {
		t.Fatalf("journal: %v: %.200s", err, text)
	}
	return entries
}

func requests(t *testing.T, base string) int { return len(journal(t, base)) }

// askedToStream says how the requests after the first skip ones wanted their
// answer; all must agree, and all must have been served.
func askedToStream(t *testing.T, base string, skip int) bool {
	t.Helper()
	entries := journal(t, base)
	if len(entries) != skip+4 {
		t.Errorf("%d requests, want 4: one a round and the answer", len(entries)-skip)
	}
	streams := 0
	for _, e := range entries[skip:] {
		if e.Response.Status != http.StatusOK {
			t.Errorf("a request got status %d", e.Response.Status)
		}
		if e.Body.Stream {
			streams++
		}
	}
	if streams != 0 && streams != len(entries)-skip {
		t.Errorf("%d of %d requests asked to stream", streams, len(entries)-skip)
	}
	return streams > 0
}
