package mcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// everythingVersion is that of the official server that has one of everything.
const everythingVersion = "2026.8.31"

// installEverything installs the server from npm and returns its program.
func installEverything(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("REQUIRE_BACKENDS") != "" {
				t.Fatalf("needs %s, and REQUIRE_BACKENDS forbids skipping", program)
			}
			t.Skipf("needs %s", program)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--prefix", dir,
		"@modelcontextprotocol/server-everything@"+everythingVersion)
	if output, err := install.CombinedOutput(); err != nil {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			t.Fatalf("npm install: %v\n%s", err, output)
		}
		t.Skipf("needs the npm registry: %v", err)
	}
	return filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// TestEverythingOverHTTP: the official server over both transports, the older one also
// where it is not configured.
func TestEverythingOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads a server")
	}
	program := installEverything(t)
	for mode, path := range map[string]string{"streamableHttp": "/mcp", "sse": "/sse"} {
		t.Run(mode, func(t *testing.T) {
			address := serveNode(t, program, mode)
			for _, sse := range []bool{mode == "sse", false} {
				h := startHTTP(t, Server{Name: "e", URL: "http://" + address + path, SSE: sse})
				out, err := h.call(t.Context(), "e/get-sum", `{"a":2,"b":3}`)
				if err != nil || outputText(out) != "The sum of 2 and 3 is 5." {
					t.Fatalf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
				}
				// Progress comes before the result.
				var progress atomic.Int32
				out, err = h.callWith(t.Context(), "e/trigger-long-running-operation", `{"duration":1,"steps":2}`, func(string, string) { progress.Add(1) })
				if err != nil || !out.Success || progress.Load() == 0 {
					t.Errorf("%q, %v, progress %d", outputText(out), err, progress.Load())
				}
				if err := h.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// serveNode starts the server and returns its address.
func serveNode(t *testing.T, program, mode string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), "node", program, mode)
	cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", l.Addr().(*net.TCPAddr).Port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 100 {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return address
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
	return ""
}
