package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

// BenchmarkGrowth is how much longer something takes on machines that have more of a thing:
// the fewest, ten and a hundred times as many. .ci/benchtable has the targets: most should
// not need the things at all.
func BenchmarkGrowth(b *testing.B) {
	const session = "ses_01JD0000000000000000000000"
	bind := []string{"exec", "--backend", "runc", "--mode", "bind", "--", "true"}
	// filled returns what runs a command on a machine that fill has filled.
	filled := func(args []string, fill func(b *testing.B, m *machine, n int)) func(b *testing.B, m *machine, n int) func() error {
		return func(b *testing.B, m *machine, n int) func() error {
			fill(b, m, n)
			return func() error { return runOn(b, m, args...) }
		}
	}
	for _, g := range []struct {
		name   string
		fewest int
		make   func(b *testing.B, m *machine, n int) func() error
	}{
		{"bind", 1000, filled(bind, fillWorkspace)},
		{"overlay", 1000, filled([]string{"exec", "--backend", "runc", "--mode", "overlay", "--", "true"}, fillWorkspace)},
		{"objects", 1000, filled(bind, fillRepository)},
		{"sessions", 1000, filled(bind, func(b *testing.B, m *machine, n int) { fillSessions(b, m, n, bind) })},
		{"changes", 1000, filled([]string{"diff", "--stat"}, func(b *testing.B, m *machine, n int) {
			script := fmt.Sprintf("seq %d | split -l 1 -a 5", n)
			if err := runOn(b, m, "exec", "--backend", "runc", "--mode", "overlay", "--", "sh", "-c", script); err != nil {
				b.Fatal(err)
			}
		})},
		{"records", 1000, filled([]string{"trace", "show", session}, func(b *testing.B, m *machine, n int) { fillTrace(b, m, n, session) })},
		{"trials", 1000, filled([]string{"batch", "report", "results"}, fillResults)},
		{"tools", 10, filled([]string{"run", "--backend", "runc", "--policy", "sandboxed", "--model", "replay/answer.yaml", "task"}, serveTools)},
		{"followers", 1, followTurns},
	} {
		b.Run(g.name, func(b *testing.B) {
			needBackend(b, "runc")
			var sides []side
			for _, times := range []int{1, 10, 100} {
				n := times * g.fewest
				sides = append(sides, side{name: strconv.Itoa(n) + "-", op: g.make(b, newMachine(b), n)})
			}
			compare(b, sides...)
		})
	}
}

// fillResults runs a trial, and adds results like its own until there are n.
func fillResults(b *testing.B, m *machine, n int) {
	m.write(b, "tasks.jsonl", `{"id":"one","prompt":"Do nothing.","verify":"true"}`+"\n")
	if err := runOn(b, m, "batch", "tasks.jsonl", "--agent", "nop", "--backend", "runc", "--out", "results"); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(m.workspace, "results", batch.ResultsFile)
	text := readFile(b, path)
	r := parse[batch.Result](b, text)
	for r.Attempt = 2; r.Attempt <= n; r.Attempt++ {
		r.Name = r.Key.Name()
		line, err := json.Marshal(r)
		if err != nil {
			b.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	writeFile(b, path, text, 0o600)
}

// serveTools configures an MCP server that has n tools.
func serveTools(b *testing.B, m *machine, n int) {
	s := mcp.NewServer(&mcp.Implementation{Name: "many", Version: "1"}, nil)
	for i := range n {
		s.AddTool(&mcp.Tool{Name: fmt.Sprintf("tool%d", i), Description: "Returns what it gets, as one of many tools.", InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","description":"Any text."}}}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
	}
	served := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	b.Cleanup(served.Close)
	m.write(b, "answer.yaml", "version: 1\nname: answer\nturns: [{text: an answer}]\n")
	m.config(b, fmt.Sprintf("mcpServers: {many: {url: %q}}\n", served.URL))
}

// followTurns returns what runs a turn of a session whose records n clients follow.
func followTurns(b *testing.B, m *machine, n int) func() error {
	c := apiClient{t: b, base: m.serving(b, "runc", strings.Repeat("  - text: An answer.\n", 1000)), token: m.token()}
	session := c.start(m.workspace)
	for range n {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, c.base+"/sessions/"+session+"/events", nil)
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+c.token)
		stream, err := http.DefaultClient.Do(r)
		if err != nil || stream.StatusCode != http.StatusOK {
			b.Fatal(stream, err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, stream.Body) // until the benchmark ends
			_ = stream.Body.Close()
		}()
	}
	return func() error {
		turn := c.turn(session, "answer")
		for !bytes.Contains(c.do(http.MethodGet, "/sessions/"+session+"/turns/"+turn, nil, http.StatusOK), []byte(`"state":"ended"`)) {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
}

// runOn runs caisson in the workspace of a machine.
func runOn(b *testing.B, m *machine, args ...string) error {
	var failed bytes.Buffer
	c := exec.Command(filepath.Join(binaries(b), "caisson"), args...)
	c.Env, c.Dir, c.Stderr = m.env, m.workspace, &failed
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, &failed)
	}
	return nil
}

// fillWorkspace makes n files in directories of 50.
func fillWorkspace(b *testing.B, m *machine, n int) {
	writeMany(b, m.workspace, n, func(i int) string { return fmt.Sprintf("d%d/s%d/f%d", i/1000, i/50, i) })
}

// fillRepository makes a repository with n loose objects.
func fillRepository(b *testing.B, m *machine, n int) {
	if out, err := exec.Command("git", "init", "-q", m.workspace).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	writeMany(b, filepath.Join(m.workspace, ".git", "objects"), n, func(i int) string { return fmt.Sprintf("%02x/%038x", i%256, i) })
}

func writeMany(b *testing.B, root string, n int, name func(i int) string) {
	b.Helper()
	for i := range n {
		path := filepath.Join(root, name(i))
		err := os.WriteFile(path, []byte("content\n"), 0o644)
		if errors.Is(err, os.ErrNotExist) {
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte("content\n"), 0o644)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fillSessions runs a session and copies the files that it leaves.
func fillSessions(b *testing.B, m *machine, n int, args []string) {
	if err := runOn(b, m, args...); err != nil {
		b.Fatal(err)
	}
	made, err := sessiondir.List(m.stateDir())
	if err != nil || len(made) != 1 {
		b.Fatal(made, err)
	}
	left := map[string][]byte{}
	for _, name := range []string{record.TraceFile, sessiondir.LogFile, "report.json"} {
		if left[name], err = os.ReadFile(filepath.Join(sessiondir.Path(m.stateDir(), made[0]), name)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n - 1 {
		id := ulid.MustNew(ulid.Timestamp(time.Now().Add(-time.Duration(i)*time.Second)), ulid.DefaultEntropy())
		dir := sessiondir.Path(m.stateDir(), "ses_"+id.String())
		err := os.Mkdir(dir, 0o700)
		for name, text := range left {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fillTrace makes a session of n records.
func fillTrace(b *testing.B, m *machine, n int, session string) {
	dir := sessiondir.Path(m.stateDir(), session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	r, err := record.NewRecorder(record.RecorderOptions{Dir: dir, Session: session})
	if err != nil {
		b.Fatal(err)
	}
	write := func(p record.Payload) {
		if _, err := r.Write(record.Entry{Turn: "trn_01JD0000000000000000000000", Actor: record.ActorTool, Payload: p}); err != nil {
			b.Fatal(err)
		}
	}
	write(record.SessionCreated{Task: "many calls", Workspace: m.workspace, Tools: []record.OfferedTool{}, Configuration: []record.Source{}})
	write(record.TurnStarted{})
	for i := range (n - 2) / 2 {
		id := fmt.Sprintf("tu_%d", i)
		write(record.ToolCalled{CallID: id, Name: "shell", Class: tools.ClassExecute, Rule: "sandboxed execute", Summary: "go test ./store"})
		write(record.ToolCompleted{CallID: id, Name: "shell", Success: true, OutputBytes: 40, FilesModified: []string{}})
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
}
