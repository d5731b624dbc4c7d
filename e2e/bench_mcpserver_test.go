package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/tools"
)

// BenchmarkMCPServer is a call by a client of caisson mcp on standard input and output,
// beside the same call in a session of this process.
func BenchmarkMCPServer(b *testing.B) {
	backend := anyBackend(b)
	calls := []struct {
		name  string
		tool  tools.Name
		input map[string]any
	}{
		{"read_file", "read_file", map[string]any{"path": "a.txt"}},
		{"shell", "shell", map[string]any{"command": "true"}},
	}
	m := newMachine(b)
	work := filepath.Join(m.home, "own")
	for _, dir := range []string{m.workspace, work} {
		writeFile(b, filepath.Join(dir, "a.txt"), "content\n", 0o644)
	}
	log := new(follower)
	cmd := m.mcpCommand(b, log, "--backend", backend)
	client, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		b.Fatalf("%v\n%s", err, log)
	}
	b.Cleanup(func() { _ = client.Close() })
	own, err := caisson.Open(context.WithoutCancel(b.Context()), caisson.Options{SandboxOptions: caisson.SandboxOptions{
		HostOptions: caisson.HostOptions{StateDir: filepath.Join(m.home, "own-state"), Guest: filepath.Join(binaries(b), "caisson-guest"), Runsc: filepath.Join(binaries(b), "runsc")},
		Workspace:   work, Backend: backend,
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { own.Close() })
	for _, c := range calls {
		input, err := json.Marshal(c.input)
		if err != nil {
			b.Fatal(err)
		}
		overStdio := func() error {
			r, err := client.CallTool(b.Context(), &mcp.CallToolParams{Name: string(c.tool), Arguments: c.input})
			if err == nil && r.IsError {
				err = fmt.Errorf("%+v", r.Content[0])
			}
			return err
		}
		inProcess := func() error {
			r, err := own.Call(b.Context(), c.tool, input)
			if err == nil && r.IsError {
				err = fmt.Errorf("%+v", r.Content)
			}
			return err
		}
		if err := errors.Join(overStdio(), inProcess()); err != nil { // the sandbox starts
			b.Fatalf("%v\n%s", err, log)
		}
		b.Run(c.name, func(b *testing.B) {
			compare(b, side{op: overStdio}, side{name: "session-", op: inProcess})
		})
	}
}
