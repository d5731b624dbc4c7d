package mcp

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestManyServers starts 50 servers with 40 tools each.
func TestManyServers(t *testing.T) {
	const servers, each = 50, 40
	var running, most atomic.Int32
	fakes := map[string]serverFunc{}
	for i := range servers {
		fakes[fmt.Sprintf("s%02d", i)] = sdkServer(func(s *mcp.Server) {
			for j := range each {
				addTool(s, fmt.Sprintf("tool_%d", j))
			}
		})
	}
	h := newHarness(t, fakes, func(o *Options) {
		launch := o.Launch
		o.Launch = func(ctx context.Context, s Server, stderr io.Writer) (Process, error) {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			defer running.Add(-1)
			return launch(ctx, s, stderr)
		}
	})
	began := time.Now()
	h.Start(t.Context())
	took := time.Since(began)
	if n := len(h.Tools()); n != servers*each {
		t.Errorf("%d tools, want %d; failed: %+v", n, servers*each, eventsOf[ServerFailed](h))
	}
	if n := most.Load(); n > startParallel {
		t.Errorf("%d servers started at once, want at most %d", n, startParallel)
	}
	if out, err := h.call(t.Context(), "s49/tool_39", `{}`); err != nil || outputText(out) != "tool_39" {
		t.Errorf("call = %q, %v", outputText(out), err)
	}
	began = time.Now()
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("start of %d servers with %d tools each: %v; close: %v", servers, each, took, time.Since(began))
}

// BenchmarkStart starts and stops one server with 40 tools: with the SDK alone, and
// with a Set.
func BenchmarkStart(b *testing.B) {
	server := sdkServer(func(s *mcp.Server) {
		for j := range 40 {
			addTool(s, fmt.Sprintf("tool_%d", j))
		}
	})
	b.Run("sdk", func(b *testing.B) {
		for b.Loop() {
			session := connectRaw(b, server)
			for _, err := range session.Tools(b.Context(), nil) {
				if err != nil {
					b.Fatal(err)
				}
			}
			_ = session.Close()
		}
	})
	b.Run("set", func(b *testing.B) {
		for b.Loop() {
			h := startHarness(b, map[string]serverFunc{"a": server}, nil)
			if err := h.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCall calls a tool: with the SDK alone, and through a Set.
func BenchmarkCall(b *testing.B) {
	server := sdkServer(func(s *mcp.Server) { addTool(s, "one") })
	b.Run("sdk", func(b *testing.B) {
		session := connectRaw(b, server)
		defer session.Close()
		for b.Loop() {
			if _, err := session.CallTool(b.Context(), &mcp.CallToolParams{Name: "one"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("set", func(b *testing.B) {
		h := startHarness(b, map[string]serverFunc{"a": server}, nil)
		for b.Loop() {
			if _, err := h.call(b.Context(), "a/one", `{}`); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// connectRaw connects the SDK's own client, with its own transport.
func connectRaw(b *testing.B, server serverFunc) *mcp.ClientSession {
	b.Helper()
	p := server.start(io.Discard)
	client := mcp.NewClient(&mcp.Implementation{Name: "raw", Version: "0"}, nil)
	session, err := client.Connect(b.Context(), &mcp.IOTransport{Reader: p.stdout, Writer: p.stdin}, &mcp.ClientSessionOptions{ProtocolVersion: legacyProtocol})
	if err != nil {
		b.Fatal(err)
	}
	return session
}
