package runner

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// TestBridgeRecordsAreBounded floods a session with requests that are refused, between
// which one is answered: all are counted, and the answered ones are recorded.
func TestBridgeRecordsAreBounded(t *testing.T) {
	dir := t.TempDir()
	rec, err := record.NewRecorder(record.RecorderOptions{Dir: dir, Session: "ses_1"})
	if err != nil {
		t.Fatal(err)
	}
	b := &modelBridge{events: newEventRecorder(rec, nil), log: zap.NewNop(), bodies: newBodyLog(dir, nil)}
	b.over, b.end = context.WithCancelCause(t.Context())
	b.written = sync.NewCond(&b.mu)
	for range 3 * maxUnused {
		b.recordCall(bridge.Call{Stage: bridge.Failed, Class: bridge.ClassRefused, Protocol: bridge.Anthropic, Message: "no"})
	}
	b.recordCall(bridge.Call{Stage: bridge.Completed, Protocol: bridge.Anthropic, Usage: limits.Usage{Rounds: 1, InputTokens: 7}})
	totals, used := b.close()
	if totals.Calls != 3*maxUnused+1 || totals.Answered != 1 || totals.Unrecorded != 2*maxUnused || used.InputTokens != 7 {
		t.Errorf("%+v, %+v", totals, used)
	}
	none := &modelBridge{events: b.events, log: zap.NewNop(), bodies: newBodyLog(t.TempDir(), nil), end: func(error) {}}
	if _, used := none.close(); used.CostMicroUSD == nil || *used.CostMicroUSD != 0 {
		t.Errorf("no request costs %v", used.CostMicroUSD)
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, record.TraceFile))
	if n := strings.Count(string(text), `"bridge.model_call"`); err != nil || n != maxUnused+1 || !strings.Contains(string(text), `"input_tokens":7`) {
		t.Errorf("%d requests are recorded, %v", n, err)
	}
}

// TestCommandEndsAfterItsRequests: when a user's command has ended, the bodies of its
// requests to models are written.
func TestCommandEndsAfterItsRequests(t *testing.T) {
	b := newBench(t, "  - text: Done.\n")
	s := b.opened()
	m := &modelBridge{events: s.events, log: zap.NewNop(), bodies: newBodyLog(t.TempDir(), nil)}
	m.written = sync.NewCond(&m.mu)
	s.users.bridge = m
	b.backend.Scripts["ask"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		m.bodies.mu.Lock() // a slow disk
		time.AfterFunc(100*time.Millisecond, m.bodies.mu.Unlock)
		m.recordCall(bridge.Call{Stage: bridge.Failed, Class: bridge.ClassRefused, Protocol: bridge.Anthropic, Request: []byte("a body")})
		return sandbox.ExitStatus{}
	}
	if _, err := s.Exec(t.Context(), UserCommand{Argv: []string{"run", "ask"}, Stdout: io.Discard, Stderr: io.Discard}); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	if m.unwritten != 0 || m.totals.Calls != 1 {
		t.Errorf("of %d requests %d are not written", m.totals.Calls, m.unwritten)
	}
	m.mu.Unlock()
	m.settle()
	b.checkSession(s.Close())
}
